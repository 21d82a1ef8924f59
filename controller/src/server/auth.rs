//! Who may read: decided by the API server, from the token of a request.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube_client::core::params::PostParams;
use kube_client::{Api, Client};
use std::time::Duration;
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use crate::error::Chain;

/// Questions to the API server at the same time; more wait, so that a flood of requests is none there.
const MAX_REVIEWS: usize = 4;

/// Longest time for both questions about one request, the wait for a turn included.
const REVIEW_LIMIT: Duration = Duration::from_secs(10);

/// Asks the API server who sends a bearer token (`TokenReview`) and whether they may `get` the path
/// (`SubjectAccessReview` of a non-resource URL). Nothing is kept from one request to the next.
///
/// The process needs the right to create both kinds.
#[derive(Debug)]
pub struct TokenAuth {
    client: Hidden,
    audiences: Option<Vec<String>>,
    authorize: bool,
    turns: Semaphore,
}

/// A client, which shows nothing of itself.
struct Hidden(Client);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

/// What comes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    /// Without a token, or with one that the API server does not know.
    Unknown,
    Forbidden,
    /// The API server could not be asked.
    Unavailable,
}

impl TokenAuth {
    /// Lets those read who are known and may `get` the path.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client: Hidden(client),
            audiences: None,
            authorize: true,
            turns: Semaphore::new(MAX_REVIEWS),
        }
    }

    /// Takes tokens for these audiences; by default for those of the API server.
    #[must_use]
    pub fn audiences(mut self, audiences: Vec<String>) -> Self {
        self.audiences = Some(audiences);
        self
    }

    /// Lets everybody read whom the API server knows.
    #[must_use]
    pub fn without_authorization(mut self) -> Self {
        self.authorize = false;
        self
    }

    pub(super) async fn verdict(&self, headers: &HeaderMap, path: &str) -> Verdict {
        let Some(token) = bearer(headers) else {
            return Verdict::Unknown;
        };
        match tokio::time::timeout(REVIEW_LIMIT, self.review(token, path)).await {
            Ok(Ok(verdict)) => verdict,
            Ok(Err(error)) => {
                warn!(error = %Chain(&error), "cannot ask who sends a request");
                Verdict::Unavailable
            }
            Err(_) => {
                warn!("the API server did not say in time who sends a request");
                Verdict::Unavailable
            }
        }
    }

    async fn review(&self, token: &str, path: &str) -> Result<Verdict, kube_client::Error> {
        let turn = self.turns.acquire().await;
        let _turn = turn.expect("the semaphore is never closed");
        let Some(user) = self.user(token).await? else {
            return Ok(Verdict::Unknown);
        };
        if !self.authorize || self.may_get(&user, path).await? {
            return Ok(Verdict::Allowed);
        }
        debug!(user = user.username, path, "not allowed to get this path");
        Ok(Verdict::Forbidden)
    }

    async fn user(&self, token: &str) -> Result<Option<UserInfo>, kube_client::Error> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: self.audiences.clone(),
            },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.client.0.clone());
        let answer = reviews.create(&PostParams::default(), &review).await?;
        let status = answer.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return Ok(None);
        }
        let meant_for_us = self.audiences.as_ref().is_none_or(|wanted| {
            let given = status.audiences.unwrap_or_default();
            wanted.iter().any(|one| given.contains(one))
        });
        Ok(status.user.filter(|_| meant_for_us))
    }

    async fn may_get(&self, user: &UserInfo, path: &str) -> Result<bool, kube_client::Error> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username.clone(),
                uid: user.uid.clone(),
                groups: user.groups.clone(),
                extra: user.extra.clone(),
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(path.to_owned()),
                    verb: Some("get".to_owned()),
                }),
                resource_attributes: None,
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.0.clone());
        let answer = reviews.create(&PostParams::default(), &review).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }
}

/// The token of the header `Authorization: Bearer …`.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_a_bearer_token_is_one() {
        for (header, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Basic abc", None),
            ("Bearer", None),
            ("Bearer ", None),
            ("abc", None),
        ] {
            let value = HeaderValue::from_str(header).unwrap();
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value)]);
            assert_eq!(bearer(&headers), token, "{header:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
