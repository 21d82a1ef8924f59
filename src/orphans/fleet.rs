//! The Proxies as the API server has them at this moment, never as a cache does.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use controller::informer::{Cause, ErrorHandler, ReflectorError};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_client::{Api, Client};
use kube_core::Resource;
use kube_core::params::ListParams;
use serde::Deserialize;
use tokio::time::Instant;

use super::Guard;
use super::decide::Claim;
use crate::Refused;
use crate::api::Proxy;

/// Proxies asked for in one list call.
const PAGE: u32 = 500;

/// Reads Proxies live.
#[derive(Clone)]
pub(crate) struct Fleet {
    client: Client,
    /// The namespaces that are looked into; all of them if none is named.
    namespaces: Vec<String>,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet")
            .field("namespaces", &self.namespaces)
            .finish_non_exhaustive()
    }
}

impl Fleet {
    /// Reads Proxies of these namespaces; without a name in it of all of them.
    pub(crate) fn new(client: Client, namespaces: Vec<String>) -> Self {
        Self { client, namespaces }
    }

    /// Whether the Proxies of that namespace are among those that are read. Of others nothing is
    /// known, so what belongs to them is nobody's business here.
    pub(crate) fn covers(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|one| one == namespace)
    }

    /// What all Proxies claim, by their UIDs: each page of the newest state, or none of them.
    pub(crate) async fn claims(&self) -> Result<HashMap<String, Claim>, Guard> {
        let mut claims = HashMap::new();
        if self.namespaces.is_empty() {
            gather(&Api::all(self.client.clone()), &mut claims).await?;
        }
        for namespace in &self.namespaces {
            let proxies = Api::namespaced(self.client.clone(), namespace);
            gather(&proxies, &mut claims).await?;
        }
        Ok(claims)
    }

    /// What that one Proxy claims; `None` only if the API server says that there is no such Proxy.
    pub(crate) async fn claim(&self, namespace: &str, name: &str) -> Result<Option<Claim>, Guard> {
        let proxies: Api<Light> = Api::namespaced(self.client.clone(), namespace);
        match proxies.get(name).await {
            Ok(proxy) => Ok(Some(proxy.into())),
            Err(kube_client::Error::Api(status)) if is_absence(&status, name) => Ok(None),
            Err(error) => Err(unread(error)),
        }
    }
}

/// Adds what the Proxies of all pages claim.
async fn gather(proxies: &Api<Light>, claims: &mut HashMap<String, Claim>) -> Result<(), Guard> {
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = proxies.list(&params).await.map_err(unread)?;
        claims.extend(page.items.into_iter().map(|proxy| {
            let claim = Claim::from(proxy);
            (claim.uid.clone(), claim)
        }));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = ListParams::default().limit(PAGE).continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// A server that does not know Proxies, or that is no API server, answers 404 as well; only one
/// that looked for this very object names it.
fn is_absence(status: &kube_core::Status, name: &str) -> bool {
    let about = status.details.as_ref().map(|details| details.name.as_str());
    status.is_not_found() && about == Some(name)
}

fn unread(error: kube_client::Error) -> Guard {
    match error {
        // For a path that it does not serve an API server answers in plain text, without a reason.
        kube_client::Error::Api(status) if status.code == 404 => Guard::DefinitionMissing,
        error => Guard::Unread(Refused::from(error).to_string().into()),
    }
}

/// A Proxy without all that decides nothing here, and that may break no read.
#[derive(Clone, Debug, Deserialize)]
struct Light {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Spec {
    #[serde(default)]
    paused: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Status {
    #[serde(default, rename = "providerID")]
    provider_id: Option<String>,
    #[serde(default, rename = "instanceUID")]
    instance_uid: Option<String>,
}

impl From<Light> for Claim {
    fn from(proxy: Light) -> Self {
        Self {
            uid: proxy.metadata.uid.unwrap_or_default(),
            provider_id: proxy.status.provider_id.filter(|id| !id.is_empty()),
            instance_uid: proxy.status.instance_uid.filter(|uid| !uid.is_empty()),
            paused: proxy.spec.paused,
        }
    }
}

impl Resource for Light {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Proxy::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Proxy::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Proxy::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Proxy::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// For how long the API server has answered without a break, as far as this process knows; clones
/// share it. What was before the process began counts as a break.
#[derive(Clone, Debug)]
pub(crate) struct Calm(Arc<Mutex<Instant>>);

impl Calm {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    /// The server did not answer just now.
    pub(crate) fn broken(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(crate) fn lasted(&self) -> Duration {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed()
    }

    /// What an informer tells its failures to.
    pub(crate) fn listener(&self) -> ErrorHandler {
        let calm = self.clone();
        Arc::new(move |error| {
            if is_a_break(error) {
                calm.broken();
            }
        })
    }
}

/// An open watch that ends is the ordinary course; one that cannot be opened again is not.
fn is_a_break(error: &ReflectorError) -> bool {
    match error {
        ReflectorError::List(_) | ReflectorError::OpenWatch(_) => !matches!(
            error.cause(),
            Cause::Expired | Cause::VersionTooLarge | Cause::Throttled
        ),
        ReflectorError::BeganAnew { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn g02_only_a_404_that_names_the_proxy_says_that_it_is_gone() {
        let status = |value| serde_json::from_value::<kube_core::Status>(value).expect("a Status");
        let gone = json!({ "code": 404, "reason": "NotFound",
            "details": { "name": "a", "kind": "proxies" } });
        assert!(is_absence(&status(gone.clone()), "a"));
        assert!(!is_absence(&status(gone), "b"));
        for other in [
            json!({ "code": 404, "reason": "NotFound", "details": {} }),
            json!({ "code": 404, "message": "404 page not found" }),
            json!({ "code": 500, "reason": "InternalError", "details": { "name": "a" } }),
        ] {
            assert!(!is_absence(&status(other.clone()), "a"), "{other}");
        }
        let plain = json!({ "code": 404, "message": "404 page not found",
            "reason": "Failed to parse error data" });
        let answer = kube_client::Error::Api(Box::new(status(plain)));
        assert_eq!(unread(answer), Guard::DefinitionMissing);
    }

    #[test]
    fn what_an_older_definition_let_into_a_proxy_breaks_no_read() {
        let proxy = json!({ "metadata": { "name": "a", "uid": "u" },
            "spec": { "port": "no number" }, "status": { "providerID": "sim://px-u" } });
        let claim = Claim::from(serde_json::from_value::<Light>(proxy).expect("read"));
        assert_eq!(claim.provider_id.as_deref(), Some("sim://px-u"));
        assert_eq!((claim.uid.as_str(), claim.paused), ("u", false));
    }
}
