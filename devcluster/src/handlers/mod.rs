//! What requests do: verbs on resources, discovery, health.
//!
//! Handlers are the same for every kind; what differs stands in the resource's row.

mod apply;
mod body;
mod collection;
mod create;
mod delete;
mod discovery;
mod list;
mod openapi;
mod options;
mod other;
mod ownership;
mod patch;
mod present;
mod review;
mod scale;
mod select;
mod subresource;
mod update;
mod watch;

use std::{sync::Arc, time::Duration};

pub(crate) use options::DeleteOptions;
pub(crate) use ownership::{Ownership, Writer};

use bytes::Bytes;
use http::{HeaderMap, header};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{
    apply::FieldTracking,
    auth::{Authenticator, User},
    authorization::{self, Access, Authorizer},
    clock::Clock,
    counters::Recorder,
    error::{ApiError, ApiResult},
    http::{
        path::{ResourcePath, Verb},
        query::Query,
        response::ApiResponse,
    },
    registry::{Registry, Resource},
    store::{Key, Store, StoredObject},
};

/// How long a read of a future revision waits for it.
const REVISION_WAIT: Duration = Duration::from_secs(3);

/// The API of one cluster, without transport.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) store: Store,
    pub(crate) registry: Registry,
    pub(crate) clock: Clock,
    pub(crate) authenticator: Authenticator,
    pub(crate) recorder: Recorder,
    documents: discovery::DocumentCache,
    /// Cancelled when the cluster stops.
    stop: CancellationToken,
    /// Cancelled when it stops serving, if only for a while: watches end.
    serving: Mutex<CancellationToken>,
    pub(crate) authorizer: Authorizer,
    /// Which objects have owners of their fields.
    pub(crate) tracking: FieldTracking,
    namespaces: Arc<Resource>,
    accounts: Arc<Resource>,
}

/// A request on a resource.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) user: User,
    pub(crate) verb: Verb,
    pub(crate) path: ResourcePath,
    pub(crate) resource: Arc<Resource>,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Texts for `Warning` headers.
    pub(crate) warnings: Vec<String>,
}

impl Call {
    fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The namespace of the path, for namespaced kinds.
    fn namespace(&self) -> Option<&str> {
        self.path.namespace.as_deref()
    }

    /// The key of the item that the path names.
    fn key(&self) -> Key {
        Key::new(
            self.namespace(),
            self.path.name.as_deref().unwrap_or_default(),
        )
    }

    fn name(&self) -> &str {
        self.path.name.as_deref().unwrap_or_default()
    }

    fn not_found(&self) -> ApiError {
        ApiError::not_found(self.resource.named(), self.name())
    }
}

impl Api {
    pub(crate) fn new(
        store: Store,
        clock: Clock,
        authenticator: Authenticator,
        stop: CancellationToken,
    ) -> Self {
        let registry = Registry::new(&store);
        let namespaces = registry.built_in("", "namespaces");
        let accounts = registry.built_in("", "serviceaccounts");
        let recorder = Recorder::default();
        let authorizer = Authorizer::new(&registry);
        Self {
            store,
            registry,
            clock,
            authenticator,
            recorder,
            documents: discovery::DocumentCache::default(),
            serving: Mutex::new(stop.child_token()),
            stop,
            authorizer,
            tracking: FieldTracking::default(),
            namespaces,
            accounts,
        }
    }

    /// The token that ends the watches that are opened now.
    fn serving(&self) -> CancellationToken {
        self.serving.lock().clone()
    }

    /// Ends all watches.
    pub(crate) fn end_watches(&self) {
        let next = self.stop.child_token();
        std::mem::replace(&mut *self.serving.lock(), next).cancel();
    }

    /// Carries out a request on a resource.
    ///
    /// # Errors
    /// The failure to answer with.
    pub(crate) async fn handle(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        if let Some(custom) = call.resource.custom()
            && let Some(text) = &custom.deprecation
        {
            call.warnings.push(text.clone());
        }
        if let Some(review) = call.resource.review {
            return self.review(call, review);
        }
        if call.path.subresource.is_some() {
            return self.handle_subresource(call).await;
        }
        match call.verb {
            Verb::Get => self.get(call).await,
            Verb::List => self.list(call).await,
            Verb::Watch => self.watch(call).await,
            Verb::Create => self.create(call),
            Verb::Update => self.update(call),
            Verb::Patch => self.patch(call),
            Verb::Delete => self.delete(call),
            Verb::DeleteCollection => self.delete_collection(call),
        }
    }

    /// Whether the user may also create what an update or an apply would make.
    fn authorize_create(&self, call: &Call) -> ApiResult<()> {
        let access = Access {
            verb: Verb::Create.as_str(),
            group: &call.path.group,
            resource: &call.path.plural,
            namespace: call.namespace().unwrap_or_default(),
            name: call.name(),
            ..Access::default()
        };
        let verdict = self.authorizer.decide(&call.user, &access);
        if verdict.allowed {
            Ok(())
        } else {
            Err(authorization::forbidden(
                &call.user,
                &access,
                &verdict.reason,
            ))
        }
    }

    /// The uid of an existing service account.
    pub(crate) fn account_uid(&self, namespace: &str, name: &str) -> Option<String> {
        let stored = self
            .accounts
            .collection
            .get(&Key::new(Some(namespace), name))?;
        Some(stored.field("metadata.uid").into_owned())
    }

    /// Waits until the store has reached a revision.
    ///
    /// # Errors
    /// 504 when that takes longer than three seconds.
    async fn wait_for_revision(&self, revision: u64) -> ApiResult<()> {
        if revision <= self.store.revision() {
            return Ok(());
        }
        match tokio::time::timeout(REVISION_WAIT, self.store.reached(revision)).await {
            Ok(()) => Ok(()),
            Err(_) => Err(ApiError::revision_too_large(
                revision,
                self.store.revision(),
            )),
        }
    }

    async fn get(&self, call: &mut Call) -> ApiResult<ApiResponse> {
        let view = present::View::for_item(self, call)?;
        if let Some(text) = call.query.text("resourceVersion")
            && text != "0"
        {
            let revision: u64 = text.parse().map_err(|_| {
                ApiError::unknown(format!(
                    "strconv.ParseUint: parsing \"{text}\": invalid syntax"
                ))
            })?;
            self.wait_for_revision(revision).await?;
        }
        let stored = self.existing(call)?;
        Ok(view.stored(200, &stored))
    }

    /// The item that the path names.
    fn existing(&self, call: &Call) -> ApiResult<Arc<StoredObject>> {
        call.resource
            .collection
            .get(&call.key())
            .ok_or_else(|| call.not_found())
    }
}
