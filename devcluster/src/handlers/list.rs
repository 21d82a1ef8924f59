//! Lists: whole or in pages, of the newest or an earlier revision.

use std::{ops::ControlFlow, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{
    Api, Call,
    options::{ListOptions, ListRevision},
    present::{ListMetadata, View},
    select::Selection,
};
use crate::{
    error::{ApiError, ApiResult},
    http::response::ApiResponse,
    store::{Compacted, StoredObject},
};

/// Where the next page of a list starts and which revision it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ContinueToken {
    /// `None`: the newest revision at that time.
    revision: Option<u64>,
    start: String,
}

impl ContinueToken {
    fn encode(&self) -> String {
        let revision = self
            .revision
            .map_or(-1, |revision| i64::try_from(revision).unwrap_or(i64::MAX));
        let token = json!({"v": "meta.k8s.io/v1", "rv": revision, "start": self.start});
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    /// Reads a token that this server gave out at revision `now` or before.
    ///
    /// # Errors
    /// 400 for anything else.
    fn decode(text: &str, now: u64) -> ApiResult<Self> {
        let bad =
            || ApiError::bad_request("continue key is not valid: start a new list without it");
        let bytes = URL_SAFE_NO_PAD
            .decode(text.trim_end_matches('='))
            .map_err(|_| bad())?;
        let token: Value = serde_json::from_slice(&bytes).map_err(|_| bad())?;
        if token["v"] != "meta.k8s.io/v1" {
            return Err(bad());
        }
        let start = token["start"]
            .as_str()
            .filter(|start| !start.is_empty())
            .ok_or_else(bad)?;
        let revision = match token["rv"].as_i64().ok_or_else(bad)? {
            -1 => None,
            revision => Some(
                u64::try_from(revision)
                    .ok()
                    .filter(|rv| (1..=now).contains(rv))
                    .ok_or_else(bad)?,
            ),
        };
        Ok(Self {
            revision,
            start: start.to_owned(),
        })
    }
}

impl Api {
    pub(super) async fn list(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        let view = View::for_list(self, call)?;
        let selection = Selection::parse(call)?;
        let options = ListOptions::parse(&call.query)?;
        let token = options
            .continue_token
            .as_deref()
            .map(|text| ContinueToken::decode(text, self.store.revision()))
            .transpose()?;
        let at = match (&token, options.revision) {
            (Some(token), _) => token.revision,
            (None, ListRevision::Newest) => None,
            (None, ListRevision::AtLeast(revision)) => {
                self.wait_for_revision(revision).await?;
                None
            }
            (None, ListRevision::Exactly(revision)) => {
                self.wait_for_revision(revision).await?;
                Some(revision)
            }
        };
        let page = Page {
            selection: &selection,
            limit: options.limit,
            start: token.as_ref(),
            at,
        };
        let (objects, metadata) = page.read(call)?;
        Ok(view.list(objects, &metadata))
    }
}

struct Page<'a> {
    selection: &'a Selection,
    limit: Option<usize>,
    start: Option<&'a ContinueToken>,
    at: Option<u64>,
}

impl Page<'_> {
    fn read(&self, call: &Call) -> ApiResult<(Vec<Arc<StoredObject>>, ListMetadata)> {
        let whole = self.selection.is_whole_scope();
        let mut objects = Vec::new();
        let mut next: Option<String> = None;
        let mut rest = 0_usize;
        let mut last = String::new();
        let start = self.start.map(|token| token.start.as_str());
        let scanned =
            call.resource
                .collection
                .scan(self.selection.scope(), start, self.at, |key, object| {
                    if !whole && !self.selection.matches(&call.resource, key, object) {
                        return ControlFlow::Continue(());
                    }
                    if self.limit.is_some_and(|limit| objects.len() == limit) {
                        next.get_or_insert_with(|| format!("{last}\0"));
                        rest += 1;
                        // What is left is only counted where the count is told.
                        return if whole {
                            ControlFlow::Continue(())
                        } else {
                            ControlFlow::Break(())
                        };
                    }
                    objects.push(Arc::clone(object));
                    if self.limit.is_some() {
                        last = key.as_str().to_owned();
                    }
                    ControlFlow::Continue(())
                });
        let revision = scanned.map_err(|compacted| self.expired(compacted))?;
        let token = next.map(|start| {
            ContinueToken {
                revision: Some(revision),
                start,
            }
            .encode()
        });
        let remaining = (whole && token.is_some()).then_some(rest);
        Ok((
            objects,
            ListMetadata {
                revision,
                continue_token: token,
                remaining,
            },
        ))
    }

    fn expired(&self, compacted: Compacted) -> ApiError {
        match self.start {
            Some(token) => {
                let newest = ContinueToken {
                    revision: None,
                    start: token.start.clone(),
                };
                ApiError::expired(
                    "The provided continue parameter is too old to display a consistent list result. You can start \
                     a new list without the continue parameter, or use the continue token in this response to \
                     retrieve the remainder of the results. Continuing with the provided token results in an \
                     inconsistent list - objects that were created, modified, or deleted between the time the \
                     first chunk was returned and now may show up in the list.",
                )
                .with_continue(newest.encode())
            }
            None => ApiError::expired(format!(
                "The resourceVersion for the provided list is too old: the oldest that is kept is {}",
                compacted.oldest
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continue_tokens_come_back_and_garbage_is_400() {
        for token in [
            ContinueToken {
                revision: Some(7),
                start: "ns/a\0".to_owned(),
            },
            ContinueToken {
                revision: None,
                start: "a".to_owned(),
            },
        ] {
            assert_eq!(ContinueToken::decode(&token.encode(), 7).unwrap(), token);
        }
        let bad = [
            "garbage".to_owned(),
            URL_SAFE_NO_PAD.encode("{}"),
            URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#),
            URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":4,"start":""}"#),
            URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":8,"start":"a"}"#),
        ];
        for text in bad {
            assert_eq!(
                ContinueToken::decode(&text, 7).unwrap_err().code(),
                400,
                "{text}"
            );
        }
    }
}
