//! The calls of an election against the API server.

use futures::FutureExt;
use futures::future::BoxFuture;
use kube_client::Client;
use kube_core::params::{GetParams, PostParams};
use serde_json::Value;

use super::Config;
use super::contender::{Answer, Call};
use super::record::Lease;
use crate::error::api_status;
use crate::reconcile::BoxError;

/// Where the Lease lies.
pub(super) trait Lock: Send + Sync {
    /// Makes one call. The caller limits its time and may drop it at any moment.
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Lease, BoxError>>;
}

/// What an election makes of an error.
pub(super) fn answer_to(error: &BoxError) -> Answer {
    match api_status(&**error).map(|status| status.code) {
        Some(404) => Answer::NotFound,
        Some(409) => Answer::Conflict,
        _ => Answer::Failed,
    }
}

/// A Lease of the API server, read and written whole, so that unknown fields come back.
pub(super) struct KubeLock {
    client: Client,
    requests: kube_core::Request,
    name: String,
}

impl KubeLock {
    pub(super) fn new(client: Client, config: &Config) -> Self {
        let namespace = &config.namespace;
        let url = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        Self {
            client,
            requests: kube_core::Request::new(url),
            name: config.name.clone(),
        }
    }

    fn request(&self, call: &Call) -> Result<http::Request<Vec<u8>>, BoxError> {
        let params = PostParams::default();
        Ok(match call {
            Call::Get => self.requests.get(&self.name, &GetParams::default())?,
            Call::Create(lease) => {
                let body = serde_json::to_vec(lease.to_json())?;
                self.requests.create(&params, body)?
            }
            Call::Update(lease) => {
                let body = serde_json::to_vec(lease.to_json())?;
                self.requests.replace(&self.name, &params, body)?
            }
        })
    }
}

impl Lock for KubeLock {
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Lease, BoxError>> {
        async move {
            let request = self.request(&call)?;
            let object = self.client.request::<Value>(request).await?;
            Ok(Lease::from_json(object))
        }
        .boxed()
    }
}
