//! Testing a reconciler in ten lines: a cluster, paused time, and what was written.
//!
//! [`Harness`] runs controllers against any [`Client`], records what they write, and can let a write
//! fail. With a cluster inside the process, such as `devcluster`'s (its `client()` needs no socket),
//! and tokio's paused time, a test is exact: time passes only when everybody waits, so an hour of
//! backoff takes no time, and nothing is still under way when [`Harness::pass`] returns.
//!
//! ```
//! use std::time::Duration;
//!
//! use controller::testing::Harness;
//! use controller::{Action, Context, Controller, Informer, Lister, Manager, ObjectKey};
//! use controller::{ReconcileError, Reconciler};
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube_client::Api;
//! use kube_client::api::{Patch, PatchParams, PostParams};
//! use serde_json::json;
//!
//! /// Counts the entries of each ConfigMap in an annotation.
//! struct Census { configs: Lister<ConfigMap>, api: Api<ConfigMap> }
//!
//! impl Reconciler for Census {
//!     async fn reconcile(&self, key: &ObjectKey, _: &Context) -> Result<Action, ReconcileError> {
//!         let Some(config) = self.configs.get(key) else { return Ok(Action::Done) };
//!         let entries = config.data.iter().flatten().count().to_string();
//!         let noted = config.metadata.annotations.iter().flatten().any(|(_, v)| *v == entries);
//!         if !noted {
//!             let patch = json!({ "metadata": { "annotations": { "entries": entries } } });
//!             self.api.patch(key.name(), &PatchParams::default(), &Patch::Merge(patch)).await?;
//!         }
//!         Ok(Action::Done)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let cluster = devcluster::DevCluster::builder().start().await?;
//! let mut harness = Harness::over(cluster.client());
//! let configs = Informer::new(harness.client(), Default::default())?;
//! let api = Api::namespaced(harness.client(), "default");
//! let census = Controller::builder("census", Census { configs: configs.lister(), api })
//!     .for_object(&configs)
//!     .build()?;
//! harness.run(Manager::default().add_informer(&configs).add_controller(census));
//!
//! let config: ConfigMap = serde_json::from_value(json!({
//!     "metadata": { "name": "a" }, "data": { "x": "1", "y": "2" },
//! }))?;
//! Api::namespaced(cluster.client(), "default").create(&PostParams::default(), &config).await?;
//! harness.pass(Duration::from_secs(1)).await;
//! let written = harness.writes_to("/api/v1/namespaces/default/configmaps/a");
//! assert_eq!(written[0].body["metadata"]["annotations"]["entries"], "2");
//! assert_eq!(written.len(), 1, "it doesn't answer to its own write");
//! harness.stop().await?;
//! # Ok(()) }
//! ```
//!
//! `informer`'s scripted source (its feature `testing`, which this one enables) stands in for a
//! cluster where a test is about single events.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use kube_client::Client;
use kube_client::client::Body;
use kube_core::Status;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::manager::{self, Manager};
use crate::reconcile::BoxError;

/// A request that changes something.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Write {
    /// POST, PUT, PATCH or DELETE.
    pub method: Method,
    /// Path without query, such as `/api/v1/namespaces/ns/configmaps/a/status`.
    pub path: String,
    /// The query, empty where there is none.
    pub query: String,
    /// What was sent; null where there was nothing, or no JSON.
    pub body: Value,
    /// What was answered; none while it is not, and for good if the call was dropped or broke off.
    pub status: Option<StatusCode>,
}

impl fmt::Display for Write {
    /// Prints method and path, such as `PATCH /api/v1/namespaces/ns/configmaps/a`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

/// Runs controllers in a test; see the [module documentation](self).
///
/// Dropping it ends what runs at its next await.
pub struct Harness {
    client: Client,
    record: Arc<Record>,
    running: JoinSet<Result<(), manager::Error>>,
    stop: CancellationToken,
}

impl fmt::Debug for Harness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Harness")
            .field("writes", &self.record.state().writes.len())
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Record(Mutex<State>);

#[derive(Default)]
struct State {
    /// Number of writes that were taken out before the first of `writes`.
    taken: usize,
    writes: Vec<Write>,
    refusals: VecDeque<Status>,
}

impl Record {
    /// Every change is whole, so a panic of a test elsewhere leaves it usable.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Harness {
    /// A harness whose controllers talk to the cluster of `cluster`.
    #[must_use]
    pub fn over(cluster: Client) -> Self {
        let record = Arc::<Record>::default();
        let namespace = cluster.default_namespace().to_owned();
        let service = {
            let record = Arc::clone(&record);
            tower::service_fn(move |request| pass_on(cluster.clone(), Arc::clone(&record), request))
        };
        Self {
            client: Client::new(service, namespace),
            record,
            running: JoinSet::new(),
            stop: CancellationToken::new(),
        }
    }

    /// The client that what is tested must use: it records writes. A test prepares its objects with
    /// the cluster's own, so that they don't stand in the record.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Runs a manager until [`stop`](Self::stop).
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn run(&mut self, manager: Manager) {
        self.running.spawn(manager.run(self.stop.clone()));
    }

    /// Lets time pass. With paused time, everything that is due by then has happened afterwards.
    ///
    /// # Panics
    /// If a manager has ended meanwhile, with its error: a test would wait in vain.
    pub async fn pass(&mut self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            Some(ended) = self.running.join_next() => panic!("the manager ended: {ended:?}"),
        }
        // What became due at the same moment runs before the test goes on.
        for _ in 0..64 {
            tokio::task::yield_now().await;
        }
    }

    /// Lets time pass until `done` gives something, and gives that.
    ///
    /// # Panics
    /// After five minutes, with `what` and all writes until then; as [`pass`](Self::pass).
    pub async fn until<T>(&mut self, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
        for _ in 0..30_000 {
            if let Some(done) = done() {
                return done;
            }
            self.pass(Duration::from_millis(10)).await;
        }
        let writes: Vec<_> = self.writes().iter().map(ToString::to_string).collect();
        panic!("did not come to be: {what}; written was {writes:#?}");
    }

    /// All writes so far, in the order of their beginnings.
    #[must_use]
    pub fn writes(&self) -> Vec<Write> {
        self.record.state().writes.clone()
    }

    /// The writes so far whose path is this one.
    #[must_use]
    pub fn writes_to(&self, path: &str) -> Vec<Write> {
        let mut writes = self.writes();
        writes.retain(|write| write.path == path);
        writes
    }

    /// All writes since the last call of this, taken out of the record.
    pub fn take_writes(&mut self) -> Vec<Write> {
        let mut state = self.record.state();
        state.taken += state.writes.len();
        std::mem::take(&mut state.writes)
    }

    /// Refuses the next write that is not refused already with this status, without passing it on.
    ///
    /// ```
    /// # fn example(harness: &controller::testing::Harness) {
    /// let conflict = kube_core::Status::failure("somebody was faster", "Conflict").with_code(409);
    /// harness.refuse_next(conflict);
    /// # }
    /// ```
    pub fn refuse_next(&self, status: Status) {
        self.record.state().refusals.push_back(status);
    }

    /// Stops what runs and waits for its end.
    ///
    /// # Errors
    /// The first error of a manager.
    ///
    /// # Panics
    /// With the panic of a manager.
    pub async fn stop(mut self) -> Result<(), manager::Error> {
        self.stop.cancel();
        let mut result = Ok(());
        while let Some(ended) = self.running.join_next().await {
            match ended {
                Ok(ended) => result = result.and(ended),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        result
    }
}

/// Sends a request on, and notes it if it is a write.
async fn pass_on(
    cluster: Client,
    record: Arc<Record>,
    request: Request<Body>,
) -> Result<Response<Body>, BoxError> {
    let method = request.method().clone();
    if method == Method::GET || method == Method::HEAD {
        return Ok(cluster.send(request).await?);
    }
    let (head, body) = request.into_parts();
    let body = body.collect_bytes().await?;
    let (place, refusal) = {
        let mut state = record.state();
        state.writes.push(Write {
            method,
            path: head.uri.path().to_owned(),
            query: head.uri.query().unwrap_or_default().to_owned(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
            status: None,
        });
        let place = state.taken + state.writes.len() - 1;
        (place, state.refusals.pop_front())
    };
    let answer = match refusal {
        Some(status) => refuse(&status)?,
        None => cluster.send(Request::from_parts(head, body.into())).await?,
    };
    let mut state = record.state();
    let noted = place.checked_sub(state.taken);
    if let Some(write) = noted.and_then(|at| state.writes.get_mut(at)) {
        write.status = Some(answer.status());
    }
    drop(state);
    Ok(answer)
}

fn refuse(status: &Status) -> Result<Response<Body>, BoxError> {
    let answer = Response::builder()
        .status(status.code)
        .header(http::header::CONTENT_TYPE, "application/json");
    Ok(answer.body(serde_json::to_vec(status)?.into())?)
}
