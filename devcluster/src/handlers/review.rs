//! Questions that are answered and not stored: who is it, and may they.

use http::header;
use serde_json::{Value, json};

use super::{Api, Call, body, options::WriteOptions};
use crate::{
    auth::{ISSUER, Identity, User},
    authorization::{Access, list_of},
    error::{ApiError, ApiResult},
    http::{
        accept::{self, Offer},
        path::Verb,
        response::{self, ApiResponse},
    },
    registry::resource::{Review, metadata_text},
    schema::FieldError,
};

const ONE_OF_BOTH: &str =
    "exactly one of nonResourceAttributes or resourceAttributes must be specified";

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
            Review::Access => self.review_access(call, &object)?,
            Review::Rules => {
                let status = self.review_rules(call, &object["spec"])?;
                object["spec"] = json!({});
                status
            }
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

    fn review_access(&self, call: &Call, review: &Value) -> ApiResult<Value> {
        let spec = &review["spec"];
        let problems = access_problems(call, review);
        if !problems.is_empty() {
            return Err(ApiError::invalid(&call.resource.group, "", "", &problems));
        }
        let user = if is_of_oneself(call) {
            call.user.clone()
        } else {
            let groups = spec["groups"].as_array().into_iter().flatten();
            User {
                name: text(spec, "user").to_owned(),
                uid: text(spec, "uid").to_owned(),
                groups: groups
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect(),
            }
        };
        let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
        let access = Access {
            verb: if path.is_object() {
                text(path, "verb")
            } else {
                text(resource, "verb")
            },
            group: text(resource, "group"),
            resource: text(resource, "resource"),
            subresource: text(resource, "subresource"),
            namespace: text(resource, "namespace"),
            name: text(resource, "name"),
            path: text(path, "path"),
        };
        let verdict = self.authorizer.decide(&user, &access);
        let mut status = json!({"allowed": verdict.allowed});
        if !verdict.reason.is_empty() {
            status["reason"] = Value::from(verdict.reason);
        }
        Ok(status)
    }

    fn review_rules(&self, call: &Call, spec: &Value) -> ApiResult<Value> {
        let namespace = text(spec, "namespace");
        if namespace.is_empty() {
            return Err(ApiError::bad_request("no namespace on request"));
        }
        let found = self.authorizer.rules_of(&call.user, namespace);
        let (of_paths, of_resources): (Vec<Value>, Vec<Value>) = found
            .rules
            .into_iter()
            .partition(|rule| rule["nonResourceURLs"].is_array());
        let mut status = json!({
            "resourceRules": of_resources, "nonResourceRules": of_paths, "incomplete": false,
        });
        if !found.problems.is_empty() {
            status["evaluationError"] = Value::from(list_of(&found.problems));
        }
        Ok(status)
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn is_of_oneself(call: &Call) -> bool {
    &*call.resource.kind == "SelfSubjectAccessReview"
}

/// What is wrong with a review of an access.
fn access_problems(call: &Call, review: &Value) -> Vec<FieldError> {
    let spec = &review["spec"];
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let mut problems = Vec::new();
    if resource.is_object() == path.is_object() {
        problems.push(FieldError::invalid("spec", path.clone(), ONE_OF_BOTH));
    }
    let nobody = text(spec, "user").is_empty()
        && spec["groups"]
            .as_array()
            .is_none_or(|groups| groups.is_empty());
    if !is_of_oneself(call) && nobody {
        let why = "at least one of user or group must be specified";
        problems.push(FieldError::invalid("spec.user", "", why));
    }
    if call.resource.namespaced {
        let namespace = text(resource, "namespace");
        let own = call.namespace().unwrap_or_default();
        if resource.is_object() && (namespace != own || metadata_text(review, "namespace") != own) {
            problems.push(FieldError::invalid(
                "spec.resourceAttributes.namespace",
                namespace,
                "must match metadata.namespace",
            ));
        }
        if path.is_object() {
            problems.push(FieldError::invalid(
                "spec.nonResourceAttributes",
                path.clone(),
                "disallowed on this kind of request",
            ));
        }
    }
    problems
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
