//! The clean-ups of a controller by name: added to each live object, run when it is deleted.

use std::fmt;
use std::fmt::Debug;
use std::future::Future;

use futures::future::BoxFuture;
use kube_client::Api;
use kube_core::Resource;
use serde::de::DeserializeOwned;

use super::{Error, contains, listed, plan, send};
use crate::reconcile::BoxError;

/// What must be done before an object may go.
pub trait CleanUp<K>: Send + Sync + 'static {
    /// Cleans up after `object`, as it was read.
    ///
    /// Called again after any failure or restart until the finalizer is off, so it must be
    /// idempotent: what is gone already is no error.
    ///
    /// # Errors
    /// Any error keeps the finalizer, and with it the object.
    fn clean_up(&self, object: &K) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// [`CleanUp`] behind a pointer.
trait ErasedCleanUp<K>: Send + Sync {
    fn clean_up<'a>(&'a self, object: &'a K) -> BoxFuture<'a, Result<(), BoxError>>;
}

impl<K, C: CleanUp<K>> ErasedCleanUp<K> for C {
    fn clean_up<'a>(&'a self, object: &'a K) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(CleanUp::clean_up(self, object))
    }
}

/// Named clean-ups that hold back the deletion of objects of one kind.
///
/// Mirrors controller-runtime's `finalizer.Finalizers`, except that the clean-ups run in the order
/// of registration, and that the change is written here, guarded by the version it was decided on.
///
/// ```no_run
/// # use controller::BoxError;
/// # use k8s_openapi::api::core::v1::ConfigMap;
/// # async fn example(api: kube_client::Api<ConfigMap>, config: &ConfigMap) -> Result<(), BoxError> {
/// use controller::finalizer::{CleanUp, Finalized, Finalizers};
///
/// struct Volume;
///
/// impl CleanUp<ConfigMap> for Volume {
///     async fn clean_up(&self, config: &ConfigMap) -> Result<(), BoxError> {
///         tracing::info!(config = config.metadata.name, "delete its volume");
///         Ok(())
///     }
/// }
///
/// let finalizers = Finalizers::new().register("example.dev/volume", Volume)?;
/// match finalizers.run(&api, config).await? {
///     Finalized::Live { changed: false } => { /* reconcile the rest */ }
///     // The event of the change brings the object back.
///     Finalized::Live { changed: true } | Finalized::Deleting { .. } => {}
/// }
/// # Ok(()) }
/// ```
pub struct Finalizers<K> {
    all: Vec<(String, Box<dyn ErasedCleanUp<K>>)>,
}

impl<K> Debug for Finalizers<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl<K> Default for Finalizers<K> {
    fn default() -> Self {
        Self { all: Vec::new() }
    }
}

/// Where an object stands after [`Finalizers::run`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finalized {
    /// It is not being deleted, and bears every finalizer.
    Live {
        /// Whether a finalizer was added by this call.
        changed: bool,
    },
    /// It is being deleted, and every clean-up is done.
    Deleting {
        /// Whether a finalizer was removed by this call.
        changed: bool,
    },
}

/// A clean-up that failed; its finalizer stays.
#[derive(Debug, thiserror::Error)]
#[error("clean-up of finalizer {finalizer}")]
pub struct CleanUpError {
    /// The finalizer.
    pub finalizer: String,
    /// What the clean-up reported.
    #[source]
    pub source: BoxError,
}

impl<K> Finalizers<K> {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a clean-up under the name of its finalizer, such as `example.dev/volume`.
    ///
    /// # Errors
    /// [`Error::Registered`] if the name is taken.
    pub fn register(
        mut self,
        finalizer: impl Into<String>,
        clean_up: impl CleanUp<K>,
    ) -> Result<Self, Error> {
        let finalizer = finalizer.into();
        if self.names().any(|name| name == finalizer) {
            return Err(Error::Registered { finalizer });
        }
        self.all.push((finalizer, Box::new(clean_up)));
        Ok(self)
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|(name, _)| name.as_str())
    }
}

impl<K> Finalizers<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Sync + 'static,
{
    /// Puts the finalizers on a live object; cleans up after one that is being deleted.
    ///
    /// A live object gets all missing names by one patch. For a deleted one each clean-up whose
    /// name it bears runs, one after the other; a failure does not keep the later ones from
    /// running. Then one patch removes the names of those that succeeded. An object that is gone
    /// meanwhile counts as cleaned up. Finalizers of others are left alone.
    ///
    /// Cancellation safety: a dropped call may have run clean-ups and changed finalizers; calling
    /// again is harmless.
    ///
    /// # Errors
    /// [`Error::CleanUp`] with each clean-up that failed, after the others' names are off;
    /// [`Error::Patch`], which is a conflict if `object` is stale; [`Error::Incomplete`].
    pub async fn run(&self, api: &Api<K>, object: &K) -> Result<Finalized, Error> {
        let meta = object.meta();
        if meta.deletion_timestamp.is_none() {
            let missing: Vec<_> = self
                .names()
                .filter(|name| !contains(object, name))
                .collect();
            let changed = !missing.is_empty();
            if changed {
                let wanted = listed(meta).iter().map(String::as_str).chain(missing);
                send(api, meta, &plan(meta, wanted)?).await?;
            }
            return Ok(Finalized::Live { changed });
        }
        let (done, failures) = self.clean_up(object).await;
        let changed = !done.is_empty();
        if changed {
            let left = listed(meta)
                .iter()
                .map(String::as_str)
                .filter(|name| !done.contains(name));
            match send(api, meta, &plan(meta, left)?).await {
                Err(error) if !error.is_gone() => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
        if failures.is_empty() {
            Ok(Finalized::Deleting { changed })
        } else {
            let object = meta.name.clone().unwrap_or_default();
            Err(Error::CleanUp { object, failures })
        }
    }

    /// Runs each clean-up that is still to be done; gives the names of those that succeeded.
    async fn clean_up(&self, object: &K) -> (Vec<&str>, Vec<CleanUpError>) {
        let (mut done, mut failures) = (Vec::new(), Vec::new());
        for (name, clean_up) in &self.all {
            if !contains(object, name) {
                continue;
            }
            match clean_up.clean_up(object).await {
                Ok(()) => done.push(name.as_str()),
                Err(source) => failures.push(CleanUpError {
                    finalizer: name.clone(),
                    source,
                }),
            }
        }
        (done, failures)
    }
}

/// Prints what failed, and why, as one line.
pub(super) fn failed(failures: &[CleanUpError]) -> String {
    use crate::error::Chain;
    let lines: Vec<_> = failures
        .iter()
        .map(|failure| Chain(failure).to_string())
        .collect();
    lines.join("; ")
}
