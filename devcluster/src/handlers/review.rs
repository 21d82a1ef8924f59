//! Questions that are answered and not stored: who is it, and may they.

use http::header;
use serde_json::{Value, json};

use super::{Api, Call, body, options::WriteOptions};
use crate::{
    auth::{ISSUER, Identity, User},
    error::{ApiError, ApiResult},
    http::{
        accept::{self, Offer},
        path::Verb,
        response::{self, ApiResponse},
    },
    registry::resource::Review,
};

impl Api {
    pub(super) fn review(&self, call: &mut Call, review: Review) -> ApiResult<ApiResponse> {
        let wrong_scope = call.resource.namespaced && call.namespace().is_none();
        if call.verb != Verb::Create || call.path.name.is_some() || wrong_scope {
            return Err(ApiError::method_not_allowed());
        }
        accept::negotiate(call.header(header::ACCEPT), Offer::Plain)?;
        let options = WriteOptions::parse(&call.query, "CreateOptions")?;
        let mut object = body::decode(call, options)?;
        object["status"] = match review {
            Review::SelfSubject => {
                object["metadata"]["creationTimestamp"] = Value::from(self.clock.stamp());
                json!({"userInfo": user_info(&call.user)})
            }
            Review::Token => self.review_token(&object["spec"]),
            // Whoever is known may do everything.
            Review::Access => json!({"allowed": true}),
        };
        Ok(response::json(201, &object))
    }

    fn review_token(&self, spec: &Value) -> Value {
        let token = spec["token"].as_str().unwrap_or_default();
        let audiences = audiences_of(spec);
        let uid_of = |namespace: &str, name: &str| self.account_uid(namespace, name);
        match self.authenticator.identity_of(token, &audiences, uid_of) {
            Some(Identity { user, audiences }) => json!({
                "authenticated": true, "user": user_info(&user), "audiences": audiences,
            }),
            None => json!({
                "authenticated": false, "user": {}, "error": "[invalid bearer token, token lookup failed]",
            }),
        }
    }
}

/// The audiences that a review or a request for a token names; without any, the server itself.
pub(super) fn audiences_of(spec: &Value) -> Vec<String> {
    let named = spec["audiences"].as_array().into_iter().flatten();
    let named: Vec<String> = named.filter_map(Value::as_str).map(str::to_owned).collect();
    if named.is_empty() {
        vec![ISSUER.to_owned()]
    } else {
        named
    }
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = Value::from(user.uid.as_str());
    }
    info
}
