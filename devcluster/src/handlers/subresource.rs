//! Subresources: status, finalize, binding, eviction, token, scale.

use std::sync::Arc;

use http::header;
use serde_json::{Value, json};

use super::{
    Api, Call, body,
    delete::check_preconditions,
    options::{DeleteOptions, WriteOptions},
    ownership::{Ownership, Writer},
    present::View,
    review::audiences_of,
    update::{Change, Changed, Origin, Part},
};
use crate::{
    auth::Account,
    clock::seconds_text,
    error::{ApiError, ApiResult},
    http::{
        accept::{self, Offer},
        path::Verb,
        response::{self, ApiResponse},
    },
    registry::{hooks::binding::bind, resource::metadata_text},
    schema::FieldError,
};

/// Seconds that a service account token lives when the request does not say.
const TOKEN_SECONDS: i64 = 3600;
/// The shortest life of a token that may be asked for.
const MIN_TOKEN_SECONDS: i64 = 600;
/// The longest.
const MAX_TOKEN_SECONDS: i64 = 1 << 32;

impl Api {
    pub(super) async fn handle_subresource(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        let resource = Arc::clone(&call.resource);
        let name = call.path.subresource.clone().unwrap_or_default();
        if resource.namespaced && call.namespace().is_none() {
            return Err(ApiError::no_such_resource());
        }
        match (name.as_str(), call.verb) {
            ("status", verb) if resource.status => match verb {
                Verb::Get => self.get(call).await,
                Verb::Update => self.update_part(call, Part::Status),
                Verb::Patch => self.patch_part(call, Part::Status),
                _ => Err(ApiError::method_not_allowed()),
            },
            ("scale", verb) if resource.scale.is_some() => match verb {
                Verb::Get => self.get_scale(call),
                Verb::Update => self.update_scale(call),
                Verb::Patch => self.patch_scale(call),
                _ => Err(ApiError::method_not_allowed()),
            },
            (other, verb) if resource.extra.contains(&other) => match (other, verb) {
                ("finalize", Verb::Update) => self.finalize(call),
                ("binding", Verb::Create) => self.bind(call),
                ("eviction", Verb::Create) => self.evict(call),
                ("token", Verb::Create) => self.create_token(call),
                _ => Err(ApiError::method_not_allowed()),
            },
            ("log" | "exec" | "attach" | "portforward" | "proxy", _)
                if &*resource.kind == "Pod" =>
            {
                Err(ApiError::not_implemented(&format!("pods/{name}")))
            }
            _ if resource.is_custom() => Err(call.not_found()),
            _ => Err(ApiError::no_such_resource()),
        }
    }

    /// Sets `spec.finalizers` of a namespace.
    fn finalize(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        let view = View::for_item(self, call)?;
        let options = WriteOptions::parse(&call.query, "UpdateOptions")?;
        let sent = body::decode(call, options)?;
        let finalizers = sent["spec"]["finalizers"].clone();
        let sent_revision = metadata_text(&sent, "resourceVersion").to_owned();
        let writer = Writer::of(call, "finalize");
        let key = call.key();
        let resource = Arc::clone(&call.resource);
        let mut change = Change {
            resource: &resource,
            key: &key,
            part: Part::Whole,
            origin: Origin::Put,
            ownership: Ownership::Update(&writer),
            dry_run: options.dry_run,
        };
        let changed = self.change(&mut change, &mut call.warnings, |current, _| {
            let mut new = current.clone();
            new["metadata"]["resourceVersion"] = Value::from(sent_revision.as_str());
            match finalizers.as_array().filter(|list| !list.is_empty()) {
                Some(_) => new["spec"]["finalizers"] = finalizers.clone(),
                None => new["spec"] = json!({}),
            }
            Ok(new)
        })?;
        Ok(changed.response(&view))
    }

    /// Puts a pod on a node.
    fn bind(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        accept::negotiate(call.header(header::ACCEPT), Offer::Plain)?;
        let options = WriteOptions::parse(&call.query, "CreateOptions")?;
        let binding = body::decode_as(call, "v1", "Binding")?;
        let target = binding["target"]["name"].as_str().unwrap_or_default();
        if target.is_empty() {
            let error = FieldError::required("target.name", "");
            return Err(ApiError::invalid("", "Binding", call.name(), &[error]));
        }
        let stamp = self.clock.stamp();
        let resource = Arc::clone(&call.resource);
        let key = call.key();
        let mut change = Change {
            resource: &resource,
            key: &key,
            part: Part::Whole,
            origin: Origin::Patch,
            ownership: Ownership::Kept,
            dry_run: options.dry_run,
        };
        let sent_uid = metadata_text(&binding, "uid").to_owned();
        self.change(&mut change, &mut call.warnings, |current, _| {
            let conflict = |why: &str| {
                ApiError::conflict(
                    crate::error::Named {
                        group: "",
                        plural: "pods/binding",
                    },
                    key.name(),
                    why,
                )
            };
            if !sent_uid.is_empty() && sent_uid != metadata_text(current, "uid") {
                return Err(conflict("the uid of the binding is not that of the pod"));
            }
            let mut new = current.clone();
            bind(&mut new, &binding, &stamp).map_err(|why| conflict(&why))?;
            Ok(new)
        })?;
        Ok(response::json(201, &created_status()))
    }

    /// Deletes a pod after noting the disruption in its status.
    fn evict(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        accept::negotiate(call.header(header::ACCEPT), Offer::Plain)?;
        let options = WriteOptions::parse(&call.query, "CreateOptions")?;
        let eviction = body::decode_as(call, "policy/v1", "Eviction")?;
        let delete = DeleteOptions::checked(&eviction["deleteOptions"])?;
        let mut delete = DeleteOptions {
            dry_run: delete.dry_run || options.dry_run,
            ..delete
        };
        let resource = Arc::clone(&call.resource);
        let key = call.key();
        let stamp = self.clock.stamp();
        let mut change = Change {
            resource: &resource,
            key: &key,
            part: Part::Whole,
            origin: Origin::Patch,
            ownership: Ownership::Kept,
            dry_run: delete.dry_run,
        };
        let changed = self.change(&mut change, &mut call.warnings, |current, _| {
            check_preconditions(&resource, &key, current, &delete)?;
            let mut new = current.clone();
            let mut conditions: Vec<Value> =
                new["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if !conditions.iter().any(|condition| condition["type"] == "DisruptionTarget") {
                conditions.push(json!({
                    "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                    "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": stamp,
                }));
                new["status"]["conditions"] = Value::Array(conditions);
            }
            Ok(new)
        })?;
        // The pod that was looked at, not a successor of its name; and not the version from before.
        delete.uid = Some(metadata_text(&object_of(&resource, changed), "uid").to_owned());
        delete.resource_version = None;
        self.delete_object(&resource, &key, &delete)?;
        Ok(response::json(201, &created_status()))
    }

    /// Issues a token of a service account.
    fn create_token(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        accept::negotiate(call.header(header::ACCEPT), Offer::Plain)?;
        let mut request = body::decode_as(call, "authentication.k8s.io/v1", "TokenRequest")?;
        let account = self.existing(call)?;
        let spec = &request["spec"];
        if !spec["boundObjectRef"].is_null() {
            // A token that outlives the object it was bound to would be worse than none.
            let why = "tokens are not bound to objects here: leave it out";
            let error = FieldError::forbidden("spec.boundObjectRef", why);
            return Err(ApiError::invalid(
                "authentication.k8s.io",
                "TokenRequest",
                call.name(),
                &[error],
            ));
        }
        let seconds = spec["expirationSeconds"].as_i64().unwrap_or(TOKEN_SECONDS);
        let problem = if seconds < MIN_TOKEN_SECONDS {
            Some("may not specify a duration less than 10 minutes")
        } else if seconds > MAX_TOKEN_SECONDS {
            Some("may not specify a duration larger than 2^32 seconds")
        } else {
            None
        };
        if let Some(problem) = problem {
            let error = FieldError::invalid("spec.expirationSeconds", seconds, problem);
            return Err(ApiError::invalid(
                "authentication.k8s.io",
                "TokenRequest",
                call.name(),
                &[error],
            ));
        }
        let audiences = audiences_of(spec);
        let namespace = call.namespace().unwrap_or_default();
        let uid = account.field("metadata.uid");
        let account = Account {
            namespace,
            name: call.name(),
            uid: &uid,
        };
        let token = self.authenticator.sign(account, &audiences, seconds)?;
        let expires = self
            .clock
            .now()
            .checked_add(k8s_openapi::jiff::SignedDuration::from_secs(seconds))
            .unwrap_or(k8s_openapi::jiff::Timestamp::MAX);
        request["metadata"] = json!({
            "name": call.name(), "namespace": namespace, "creationTimestamp": self.clock.stamp(),
        });
        request["spec"]["audiences"] = Value::from(audiences);
        request["spec"]["expirationSeconds"] = Value::from(seconds);
        request["status"] = json!({"token": token, "expirationTimestamp": seconds_text(expires)});
        Ok(response::json(201, &request))
    }
}

fn created_status() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

/// The object of a change, whether it was stored or not.
pub(super) fn object_of(resource: &crate::registry::Resource, changed: Changed) -> Value {
    match changed {
        Changed::Stored(object) | Changed::Removed(object) => resource.read(&object),
        Changed::Checked(value) => value,
    }
}
