//! An API server of one Lease, in memory, so that paused time passes over it.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use kube_client::Client;
use kube_client::client::Body;
use serde_json::{Value, json};

/// Keeps a Lease; clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Leases(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    lease: Option<Value>,
    version: u64,
    is_away: bool,
    releases: Vec<tokio::time::Instant>,
}

impl Leases {
    /// A client of this server. One that is away answers nothing, ever.
    pub(crate) fn client(&self) -> Client {
        let leases = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let leases = leases.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.expect("a body");
                let body = serde_json::from_slice(&body).unwrap_or_default();
                if leases.0.lock().unwrap().is_away {
                    std::future::pending::<()>().await;
                }
                let (code, answer) = leases.answer(&head.method, body);
                let body = Body::from(serde_json::to_vec(&answer).expect("JSON"));
                let response = http::Response::builder().status(code).body(body);
                Ok::<_, Infallible>(response.expect("a response"))
            }
        });
        Client::new(service, "default")
    }

    fn answer(&self, method: &http::Method, body: Value) -> (u16, Value) {
        let mut state = self.0.lock().unwrap();
        let failure = |code: u16, reason| {
            let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure",
                "code": code, "reason": reason, "message": reason });
            (code, status)
        };
        let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
        match (method.as_str(), &state.lease) {
            ("GET", Some(lease)) => (200, lease.clone()),
            ("GET" | "PUT", None) => failure(404, "NotFound"),
            ("POST", Some(_)) => failure(409, "AlreadyExists"),
            ("PUT", Some(lease)) if version(lease) != version(&body) => failure(409, "Conflict"),
            ("POST" | "PUT", _) => {
                if body["spec"]["holderIdentity"] == "" {
                    state.releases.push(tokio::time::Instant::now());
                }
                (200, state.store(body))
            }
            (method, _) => panic!("an election does not {method}"),
        }
    }

    /// The server stops answering, or answers again.
    pub(crate) fn set_away(&self, is_away: bool) {
        self.0.lock().unwrap().is_away = is_away;
    }

    /// Somebody holds the Lease for 15 s from now.
    pub(crate) fn hold(&self, identity: &str) {
        let mut state = self.0.lock().unwrap();
        let lease = json!({ "metadata": { "name": "lease" }, "spec": {
            "holderIdentity": identity, "leaseDurationSeconds": 15, "leaseTransitions": 7 } });
        state.store(lease);
    }

    pub(crate) fn holder(&self) -> String {
        let state = self.0.lock().unwrap();
        let holder = state
            .lease
            .as_ref()
            .and_then(|lease| lease["spec"]["holderIdentity"].as_str());
        holder.unwrap_or("nobody knows").to_owned()
    }

    /// When the Lease was given back.
    pub(crate) fn releases(&self) -> Vec<tokio::time::Instant> {
        self.0.lock().unwrap().releases.clone()
    }
}

impl State {
    fn store(&mut self, mut lease: Value) -> Value {
        self.version += 1;
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.lease = Some(lease.clone());
        lease
    }
}
