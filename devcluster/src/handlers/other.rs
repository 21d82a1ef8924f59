//! Paths outside the API: health, version, OpenAPI.

use http::{HeaderMap, Method, header};
use serde_json::json;

use super::Api;
use crate::{
    error::{ApiError, ApiResult},
    http::{
        accept, body,
        query::Query,
        response::{self, ApiResponse},
    },
};

/// The Kubernetes version whose API is served.
const GIT_VERSION: &str = "v1.37.2+devcluster";

/// The health checks by name; all hold as long as the cluster answers.
const CHECKS: [&str; 2] = ["ping", "store"];

impl Api {
    /// Answers a path outside the API.
    ///
    /// # Errors
    /// 405 for anything but reading.
    pub(crate) fn other(
        &self,
        method: &Method,
        path: &[String],
        query: &Query,
        headers: &HeaderMap,
    ) -> ApiResult<ApiResponse> {
        let segments: Vec<&str> = path.iter().map(String::as_str).collect();
        let known = match segments.as_slice() {
            [] => response::json(200, &json!({"paths": self.paths()})),
            ["version"] => response::json(200, &version()),
            ["healthz" | "livez" | "readyz", rest @ ..] => self.health(segments[0], rest, query),
            ["openapi", "v3", rest @ ..] => self.openapi_v3(rest, query, headers),
            ["openapi", "v2"] => openapi_v2(headers),
            _ => return Ok(response::page_not_found()),
        };
        if matches!(*method, Method::GET | Method::HEAD) {
            Ok(known)
        } else {
            Err(ApiError::method_not_allowed())
        }
    }

    fn paths(&self) -> Vec<String> {
        let catalog = self.registry.catalog();
        let mut paths = vec!["/api".to_owned(), "/api/v1".to_owned(), "/apis".to_owned()];
        for (group, versions) in catalog.groups().filter(|(group, _)| !group.is_empty()) {
            paths.push(format!("/apis/{group}"));
            paths.extend(
                versions
                    .iter()
                    .map(|gv| format!("/apis/{group}/{}", gv.version)),
            );
        }
        for path in ["/healthz", "/livez", "/openapi/v3", "/readyz", "/version"] {
            paths.push(path.to_owned());
        }
        paths
    }

    fn health(&self, endpoint: &str, rest: &[&str], query: &Query) -> ApiResponse {
        let stopping = endpoint == "readyz" && self.stop.is_cancelled();
        let code = if stopping { 500 } else { 200 };
        match rest {
            [] if query.flag("verbose").is_none() && !stopping => response::text(200, "ok"),
            [] => {
                let mut text: String = CHECKS
                    .iter()
                    .map(|check| format!("[+]{check} ok\n"))
                    .collect();
                if stopping {
                    text.push_str("[-]shutdown failed: the cluster is stopping\n");
                }
                let outcome = if stopping { "failed" } else { "passed" };
                response::text(code, format!("{text}{endpoint} check {outcome}\n"))
            }
            [check] if CHECKS.contains(check) => response::text(200, "ok"),
            _ => response::page_not_found(),
        }
    }
}

fn version() -> serde_json::Value {
    json!({
        "major": "1", "minor": "37", "gitVersion": GIT_VERSION, "gitCommit": "", "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    })
}

/// Protobuf is what kubectl asks for.
const OPENAPI_V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The second version is only offered as an empty document: clients use the third, and ask for this one when
/// a kind is not found there.
fn openapi_v2(headers: &HeaderMap) -> ApiResponse {
    let accepted = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let media = accept::clauses(accepted)
        .into_iter()
        .map(|clause| clause.media.replace('@', "."))
        .find(|media| media == OPENAPI_V2_PROTOBUF || media.contains("json") || media == "*/*");
    match media {
        Some(media) if media == OPENAPI_V2_PROTOBUF => {
            let info = [field(1, b"Kubernetes"), field(2, GIT_VERSION.as_bytes())].concat();
            let document = [field(1, b"2.0"), field(2, &info), field(8, b"")].concat();
            response::with_type(200, OPENAPI_V2_PROTOBUF, body::full(document))
        }
        None if !accepted.is_empty() => {
            let offered = format!("offered are application/json and {OPENAPI_V2_PROTOBUF}\n");
            response::text(406, offered)
        }
        _ => response::json(
            200,
            &json!({
                "swagger": "2.0", "info": {"title": "Kubernetes", "version": GIT_VERSION}, "paths": {},
                "definitions": {},
            }),
        ),
    }
}

/// A protobuf field of fewer than 128 bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = u8::try_from(content.len()).unwrap_or(0) & 0x7f;
    [&[number << 3 | 2, length], &content[..usize::from(length)]].concat()
}
