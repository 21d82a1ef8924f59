//! Responses and their headers.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::Value;

use super::body::{self, Body};
use crate::{error::ApiError, store};

/// The response to a request.
pub(crate) type ApiResponse = Response<Body>;

/// A response of JSON bytes.
pub(crate) fn json_bytes(code: u16, bytes: Bytes) -> ApiResponse {
    with_type(code, "application/json", body::full(bytes))
}

/// A response of one object, `kind` and `apiVersion` first.
pub(crate) fn json(code: u16, value: &Value) -> ApiResponse {
    json_bytes(code, store::object_bytes(value))
}

/// A plain text response.
pub(crate) fn text(code: u16, text: impl Into<Bytes>) -> ApiResponse {
    with_type(code, "text/plain; charset=utf-8", body::full(text))
}

/// The answer to a path that no part of the API serves.
pub(crate) fn page_not_found() -> ApiResponse {
    text(404, "404 page not found\n")
}

/// A response with a body of that media type.
pub(crate) fn with_type(code: u16, media: &'static str, body: Body) -> ApiResponse {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

/// The Status response of a failure.
pub(crate) fn failure(error: &ApiError) -> ApiResponse {
    let mut response = json(error.code(), &error.status());
    if let Some(seconds) = error.retry_after() {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// Adds `Warning` headers: each text once; when they are long together, each is cut.
pub(crate) fn add_warnings(response: &mut ApiResponse, warnings: &[String]) {
    const TOTAL: usize = 4096;
    const EACH: usize = 256;
    let mut texts: Vec<&str> = Vec::new();
    for warning in warnings {
        if !texts.contains(&warning.as_str()) {
            texts.push(warning);
        }
    }
    let long = texts.iter().map(|text| text.len()).sum::<usize>() > TOTAL;
    for text in texts {
        let mut kept = text;
        if long && text.len() > EACH {
            let cut = (0..=EACH)
                .rev()
                .find(|at| text.is_char_boundary(*at))
                .unwrap_or(0);
            kept = &text[..cut];
        }
        let escaped: String = kept
            .chars()
            .filter(|c| !c.is_control())
            .flat_map(|c| {
                matches!(c, '"' | '\\')
                    .then_some('\\')
                    .into_iter()
                    .chain([c])
            })
            .collect();
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{escaped}\"").as_bytes()) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(texts: &[String]) -> Vec<String> {
        let mut response = text(200, "");
        add_warnings(&mut response, texts);
        let values = response.headers().get_all(header::WARNING);
        values
            .iter()
            .map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn warnings_are_quoted_once_and_cut_when_long_together() {
        assert_eq!(
            warnings(&["a \"b\" \\".to_owned(), "a \"b\" \\".to_owned()]),
            [r#"299 - "a \"b\" \\""#]
        );
        let long: Vec<String> = (0..20)
            .map(|n| format!("{n:02}{}", "x".repeat(300)))
            .collect();
        assert!(
            warnings(&long)
                .iter()
                .all(|text| text.len() == "299 - \"\"".len() + 256)
        );
    }
}
