//! A server of one Lease, for tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube_core::Status;
use tokio_util::task::TaskTracker;

use super::Record;
use super::contender::{Answer, Call};
use super::lock::Lock;
use super::record::Lease;
use crate::reconcile::BoxError;

/// Keeps one Lease and refuses writes by version, as the API server does.
#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) lease: Option<Lease>,
    version: u64,
    pub(super) calls: Vec<&'static str>,
}

impl Server {
    pub(super) fn apply(&mut self, call: &Call) -> Answer {
        self.calls.push(match call {
            Call::Get => "get",
            Call::Create(_) => "create",
            Call::Update(_) => "update",
        });
        match (call, self.lease.clone()) {
            (Call::Get, Some(lease)) => Answer::Lease(lease),
            (Call::Get | Call::Update(_), None) => Answer::NotFound,
            (Call::Create(_), Some(_)) => Answer::Conflict,
            (Call::Create(lease), None) => Answer::Lease(self.store(lease)),
            (Call::Update(lease), Some(known)) if lease.version() == known.version() => {
                Answer::Lease(self.store(lease))
            }
            (Call::Update(_), Some(_)) => Answer::Conflict,
        }
    }

    fn store(&mut self, lease: &Lease) -> Lease {
        self.version += 1;
        let mut object = lease.to_json().clone();
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let stored = Lease::from_json(object);
        self.lease = Some(stored.clone());
        stored
    }

    pub(super) fn record(&self) -> Record {
        self.lease.as_ref().expect("there is a Lease").record()
    }

    /// Somebody writes a record for 15 s.
    pub(super) fn put(&mut self, holder: &str, transitions: u32) {
        let record = Record {
            holder: holder.to_owned(),
            lease_duration: Some(Duration::from_secs(15)),
            acquire_time: None,
            renew_time: None,
            transitions,
        };
        let none = BTreeMap::new();
        let lease = match &self.lease {
            Some(lease) => lease.with(&record, &none),
            None => Lease::new("ns", "name", &none, &record),
        };
        self.store(&lease);
    }

    /// Somebody writes the Lease without changing its record.
    pub(super) fn touch(&mut self) {
        let lease = self.lease.clone().expect("there is a Lease");
        self.store(&lease);
    }
}

/// How long a call takes there and back, or none if it never arrives.
type Way = dyn Fn(&Call) -> Option<(Duration, Duration)> + Send + Sync;

/// The way to a server.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) server: Arc<Mutex<Server>>,
    way: Arc<Way>,
    /// Calls on their way.
    arrivals: TaskTracker,
}

impl Wire {
    /// Every call takes 1 ms each way.
    pub(super) fn to(server: &Arc<Mutex<Server>>) -> Self {
        let milli = Duration::from_millis(1);
        Self::with(server, move |_| Some((milli, milli)))
    }

    pub(super) fn with(
        server: &Arc<Mutex<Server>>,
        way: impl Fn(&Call) -> Option<(Duration, Duration)> + Send + Sync + 'static,
    ) -> Self {
        Self {
            server: Arc::clone(server),
            way: Arc::new(way),
            arrivals: TaskTracker::new(),
        }
    }
}

impl Lock for Wire {
    fn call(&self, call: Call) -> BoxFuture<'_, Result<Lease, BoxError>> {
        async move {
            let Some((there, back)) = (self.way)(&call) else {
                return std::future::pending().await;
            };
            // What is on its way arrives, whether or not anybody waits for the answer.
            let server = Arc::clone(&self.server);
            let arrival = self.arrivals.spawn(async move {
                tokio::time::sleep(there).await;
                server.lock().unwrap().apply(&call)
            });
            let answer = arrival.await.unwrap();
            tokio::time::sleep(back).await;
            let status = |code, reason| {
                let status = Status::failure("as the test wants it", reason).with_code(code);
                Err(kube_client::Error::Api(Box::new(status)).into())
            };
            match answer {
                Answer::Lease(lease) => Ok(lease),
                Answer::NotFound => status(404, "NotFound"),
                Answer::Conflict => status(409, "Conflict"),
                Answer::Failed => status(500, "InternalError"),
            }
        }
        .boxed()
    }
}
