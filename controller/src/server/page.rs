//! A request and its answer, as far as endpoints are concerned.

use http::StatusCode;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest<'a> {
    /// The path below that of the endpoint, without the slash between; empty for the endpoint's own.
    pub subpath: &'a str,
    /// What stands after the question mark.
    pub query: &'a str,
}

impl PageRequest<'_> {
    /// Values of a query parameter, decoded, in their order; one without `=` counts as empty.
    #[must_use]
    pub fn values(&self, name: &str) -> Vec<String> {
        form_urlencoded::parse(self.query.as_bytes())
            .filter(|(key, _)| key == name)
            .map(|(_, value)| value.into_owned())
            .collect()
    }

    /// Whether a query parameter is there, with or without a value.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        form_urlencoded::parse(self.query.as_bytes()).any(|(key, _)| key == name)
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Code of the answer.
    pub status: StatusCode,
    /// Value of the header `Content-Type`.
    pub content_type: &'static str,
    /// The text.
    pub body: String,
}

impl Page {
    /// Plain text with a code.
    #[must_use]
    pub fn text(status: StatusCode, body: impl Into<String>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: body.into(),
        }
    }

    /// 404.
    #[must_use]
    pub fn not_found() -> Self {
        Self::text(StatusCode::NOT_FOUND, "404 not found\n")
    }
}

/// Answers for a path of a server; must not block. A panic is answered by 500.
///
/// Any `Fn(&PageRequest) -> Page` is one.
pub trait Endpoint: Send + Sync + 'static {
    /// The answer to one request.
    fn answer(&self, request: &PageRequest<'_>) -> Page;
}

impl<F> Endpoint for F
where
    F: Fn(&PageRequest<'_>) -> Page + Send + Sync + 'static,
{
    fn answer(&self, request: &PageRequest<'_>) -> Page {
        self(request)
    }
}
