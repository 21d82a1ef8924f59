//! Where events go: the API server, or whatever a test puts in its place.

use futures::future::BoxFuture;
use k8s_openapi::api::{core, events};
use kube_client::Client;
use kube_client::api::{Patch, PatchParams, PostParams, Request};
use kube_core::Resource;
use serde_json::Value;

use super::ledger::Repeats;
use super::recorder::EventForm;

/// Takes events; implemented by the API server and by tests.
///
/// A call is dropped when it takes longer than 30 s; then it may or may not have taken place.
pub trait EventSink: Send + Sync + 'static {
    /// Creates `event` in `namespace`.
    fn create<'a>(
        &'a self,
        namespace: &'a str,
        event: &'a Value,
    ) -> BoxFuture<'a, Result<(), kube_client::Error>>;

    /// Merges `patch` into the event `name` in `namespace`.
    fn patch<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: &'a Value,
    ) -> BoxFuture<'a, Result<(), kube_client::Error>>;
}

type Answer = Result<(), kube_client::Error>;

/// The API server.
pub(super) struct ApiSink {
    client: Client,
    form: EventForm,
}

impl ApiSink {
    pub(super) fn new(client: Client, form: EventForm) -> Self {
        Self { client, form }
    }

    fn at(&self, namespace: &str) -> Request {
        Request::new(match self.form.repeats() {
            Repeats::Series => events::v1::Event::url_path(&(), Some(namespace)),
            Repeats::Each => core::v1::Event::url_path(&(), Some(namespace)),
        })
    }

    async fn send(
        &self,
        request: Result<http::Request<Vec<u8>>, kube_core::request::Error>,
    ) -> Answer {
        let request = request.map_err(kube_client::Error::BuildRequest)?;
        // The answer repeats what was sent.
        self.client.request_text(request).await.map(drop)
    }
}

impl EventSink for ApiSink {
    fn create<'a>(&'a self, namespace: &'a str, event: &'a Value) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            let body = serde_json::to_vec(event).map_err(kube_client::Error::SerdeError)?;
            let request = self.at(namespace).create(&PostParams::default(), body);
            self.send(request).await
        })
    }

    fn patch<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: &'a Value,
    ) -> BoxFuture<'a, Answer> {
        let params = PatchParams::default();
        let request = self
            .at(namespace)
            .patch(name, &params, &Patch::Merge(patch));
        Box::pin(self.send(request))
    }
}

/// What an error of a sink means for the write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// There is no event of this name, or no such namespace.
    NotFound,
    /// There is one already.
    Exists,
    /// The namespace goes, and its events with it.
    Terminating,
    /// Refused: a repetition would be refused alike.
    Rejected,
    /// The server was not reached, or its answer not understood.
    Transport,
}

impl Failure {
    pub(super) fn of(error: &kube_client::Error) -> Self {
        match error {
            kube_client::Error::Api(status) if status.is_not_found() => Self::NotFound,
            kube_client::Error::Api(status) if status.is_already_exists() => Self::Exists,
            kube_client::Error::Api(status) => {
                let causes = status.details.iter().flat_map(|details| &details.causes);
                if causes
                    .into_iter()
                    .any(|cause| cause.reason == "NamespaceTerminating")
                {
                    Self::Terminating
                } else {
                    Self::Rejected
                }
            }
            // Would be built alike the next time.
            kube_client::Error::BuildRequest(_) | kube_client::Error::HttpError(_) => {
                Self::Rejected
            }
            _ => Self::Transport,
        }
    }
}
