//! What a request wants, read from its method, path and query.

use http::{Method, Request, header::CONTENT_TYPE};

/// What a request wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    Get,
    List,
    /// A watch, or a log that is followed: an answer without an end.
    Watch,
    /// Server-side apply, the same however often it is done.
    Apply,
    /// A whole object, or a patch of one.
    Update,
    Create,
    Delete,
    Other,
}

impl Intent {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let of_collection = is_collection(request.uri().path());
        match *request.method() {
            Method::GET if is_endless(request.uri().query()) => Self::Watch,
            Method::GET if of_collection => Self::List,
            Method::GET | Method::HEAD => Self::Get,
            Method::POST => Self::Create,
            Method::PUT => Self::Update,
            Method::PATCH if is_apply(request) => Self::Apply,
            Method::PATCH => Self::Update,
            Method::DELETE => Self::Delete,
            _ => Self::Other,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Apply => "apply",
            Self::Update => "update",
            Self::Create => "create",
            Self::Delete => "delete",
            Self::Other => "call",
        }
    }
}

fn is_endless(query: Option<&str>) -> bool {
    query.is_some_and(|query| {
        query
            .split('&')
            .any(|pair| matches!(pair, "watch=true" | "watch=1" | "watch" | "follow=true"))
    })
}

fn is_apply<B>(request: &Request<B>) -> bool {
    request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("application/apply-patch"))
}

/// Whether a path names all objects of a kind: `/api/v1/pods`, `/apis/apps/v1/namespaces/n/x`.
fn is_collection(path: &str) -> bool {
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let behind_version: Vec<_> = match parts.next() {
        Some("api") => parts.skip(1).collect(),
        Some("apis") => parts.skip(2).collect(),
        _ => return false,
    };
    matches!(behind_version[..], [_] | ["namespaces", _, _])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_what_it_wants() {
        let cases = [
            ("GET", "/api/v1/pods?limit=5", Intent::List),
            ("GET", "/api/v1/namespaces", Intent::List),
            ("GET", "/api/v1/namespaces/n", Intent::Get),
            ("GET", "/api/v1/namespaces/n/pods", Intent::List),
            ("GET", "/api/v1/namespaces/n/pods/p", Intent::Get),
            ("GET", "/api/v1/namespaces/n/pods/p/status", Intent::Get),
            ("GET", "/apis/apps/v1/deployments?watch=true", Intent::Watch),
            ("GET", "/apis/apps/v1/deployments?watch=false", Intent::List),
            (
                "GET",
                "/apis/apps/v1/namespaces/n/deployments/d",
                Intent::Get,
            ),
            (
                "GET",
                "/api/v1/namespaces/n/pods/p/log?follow=true",
                Intent::Watch,
            ),
            ("GET", "/apis", Intent::Get),
            ("GET", "/version", Intent::Get),
            ("POST", "/api/v1/namespaces/n/pods", Intent::Create),
            ("PUT", "/api/v1/namespaces/n/pods/p", Intent::Update),
            ("PATCH", "/api/v1/namespaces/n/pods/p", Intent::Update),
            ("DELETE", "/api/v1/namespaces/n/pods/p", Intent::Delete),
            ("OPTIONS", "/", Intent::Other),
        ];
        for (method, uri, want) in cases {
            let request = Request::builder().method(method).uri(uri).body(()).unwrap();
            assert_eq!(Intent::of(&request), want, "{method} {uri}");
        }
        let apply = Request::patch("/api/v1/namespaces/n/pods/p")
            .header(CONTENT_TYPE, "application/apply-patch+yaml")
            .body(())
            .unwrap();
        assert_eq!(Intent::of(&apply), Intent::Apply);
    }
}
