//! The Lease of a member: kept fresh, read by the others, deleted at the end.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use informer::ObjectKey;
use k8s_openapi::jiff::Timestamp;
use kube_client::Client;
use kube_core::Request;
use kube_core::params::{
    DeleteParams, GetParams, ListParams, Patch, PatchParams, PostParams, Preconditions,
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::gate::Gate;
use super::handover::{Observed, Published};
use super::ring::View;
use super::{Sharding, ShardingOptions};
use crate::error::{Chain, api_status};
use crate::reconcile::BoxError;

/// Label by which the members of a ring find each other.
const GROUP: &str = "controller.proxyoperator.dev/shard-group";
/// Label with the name of the member.
const MEMBER: &str = "controller.proxyoperator.dev/shard-member";
/// Annotation with the view that the member has drained to.
const DRAINED_TO: &str = "controller.proxyoperator.dev/shard-drained-to";

/// What the keeper does with the keys of a member.
pub(crate) trait Keys: Send + Sync {
    /// Asks for a run of everything that the controller has objects of, and of `parked`.
    fn resume(&self, parked: Vec<ObjectKey>);
}

/// Keeps a member in its ring until `stop`, and takes it out in order.
pub(crate) async fn keep(sharding: Sharding, keys: &dyn Keys, stop: &CancellationToken) {
    let mut keeper = Keeper::new(sharding);
    let gate = Arc::clone(&keeper.gate);
    let look_again = keeper.options.retry_period;
    tokio::select! {
        biased;
        never = fence_in_time(&gate, look_again) => match never {},
        () = keeper.rounds(keys, stop) => {}
    }
    keeper.leave().await;
}

/// Fences the member whenever its last renewal has lapsed, also while a call is under way.
async fn fence_in_time(gate: &Gate, look_again: Duration) -> Infallible {
    loop {
        match gate.valid_until() {
            Some(until) if until <= Instant::now() => {
                warn!("not renewed in time: all runs are dropped until the ring agrees again");
                gate.fence();
            }
            Some(until) => tokio::time::sleep_until(until).await,
            // The first renewal holds for longer than this.
            None => tokio::time::sleep(look_again).await,
        }
    }
}

struct Keeper {
    client: Client,
    leases: Request,
    name: String,
    options: ShardingOptions,
    gate: Arc<Gate>,
    /// The version of our own Lease, once it is there.
    version: Option<String>,
    /// Of each Lease the version seen last, and since when.
    seen: HashMap<String, (String, Instant)>,
    failures: u64,
}

/// A member's Lease, as far as the ring goes.
struct Member {
    lease: String,
    name: String,
    version: String,
    duration: Duration,
    drained_to: Option<View>,
}

impl Keeper {
    fn new(sharding: Sharding) -> Self {
        let Sharding {
            client,
            options,
            gate,
        } = sharding;
        let namespace = &options.namespace;
        let url = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        Self {
            client,
            leases: Request::new(url),
            name: format!("{}-{}", options.group, options.identity),
            options,
            gate,
            version: None,
            seen: HashMap::new(),
            failures: 0,
        }
    }

    async fn rounds(&mut self, keys: &dyn Keys, stop: &CancellationToken) {
        while !stop.is_cancelled() {
            let again = self.round(keys).await;
            let pause = if again {
                Duration::ZERO
            } else {
                self.options.retry_period
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.gate.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Renews, looks and decides; reports whether there is something to publish right away.
    async fn round(&mut self, keys: &dyn Keys) -> bool {
        // The fence must not wait for an answer that does not come.
        let limit = self.options.renew_deadline / 2;
        let round = async {
            self.renew().await?;
            self.live().await
        };
        let live = match tokio::time::timeout(limit, round).await {
            Ok(Ok(live)) => live,
            Ok(Err(error)) => {
                self.failed(&*error);
                return false;
            }
            Err(elapsed) => {
                self.failed(&elapsed);
                return false;
            }
        };
        self.failures = 0;
        let before = self.gate.drained_to();
        let (observed, parked) = self.gate.observe(&live);
        match observed {
            Observed::Same => {}
            Observed::Changed => info!(
                group = self.options.group,
                members = self.gate.members().join(", "),
                "the ring changed"
            ),
            Observed::Agreed => {
                debug!(group = self.options.group, "all members have drained");
                keys.resume(parked);
            }
        }
        self.gate.drained_to() != before
    }

    fn failed(&mut self, error: &(dyn std::error::Error + 'static)) {
        self.failures += 1;
        let (group, failures) = (&self.options.group, self.failures);
        if failures.is_power_of_two() {
            warn!(group, failures, error = %Chain(error), "could not keep the place in the ring");
        }
    }

    /// Writes our Lease, with the view we have drained to if there is one.
    async fn renew(&mut self) -> Result<(), BoxError> {
        let began = Instant::now();
        let mut lease = self.lease();
        let request = match &self.version {
            None => {
                lease["metadata"]["name"] = json!(self.name);
                let body = serde_json::to_vec(&lease)?;
                self.leases.create(&PostParams::default(), body)?
            }
            Some(version) => {
                // An earlier renewal that comes late must not undo a later one.
                lease["metadata"]["resourceVersion"] = json!(version);
                let patch = Patch::Merge(&lease);
                self.leases
                    .patch(&self.name, &PatchParams::default(), &patch)?
            }
        };
        // Without an answer the version is not known any more.
        self.version = None;
        let written = match self.client.request::<Value>(request).await {
            Err(error) => {
                let code = api_status(&error).map(|status| status.code);
                if code == Some(409) {
                    self.version = self.read_version().await?;
                }
                return Err(error.into());
            }
            Ok(written) => written,
        };
        self.version = text(&written, "/metadata/resourceVersion");
        if let Some(until) = began.checked_add(self.options.renew_deadline) {
            self.gate.renewed(until);
        }
        Ok(())
    }

    async fn read_version(&self) -> Result<Option<String>, BoxError> {
        let request = self.leases.get(&self.name, &GetParams::default())?;
        let lease = self.client.request::<Value>(request).await?;
        Ok(text(&lease, "/metadata/resourceVersion"))
    }

    fn lease(&self) -> Value {
        let seconds = self.options.lease_duration.as_secs();
        let mut lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "labels": { GROUP: self.options.group, MEMBER: self.label() },
            },
            "spec": {
                "holderIdentity": self.options.identity,
                "leaseDurationSeconds": seconds,
                "renewTime": wall_clock(),
            },
        });
        if let Some(view) = self.gate.drained_to() {
            // A view is plain numbers and texts.
            let view = serde_json::to_string(&view).unwrap_or_default();
            lease["metadata"]["annotations"] = json!({ DRAINED_TO: view });
        }
        lease
    }

    /// A label holds 63 characters at most; the holder of the Lease is the name in full.
    fn label(&self) -> &str {
        let identity = &self.options.identity;
        identity
            .get(..63)
            .unwrap_or(identity)
            .trim_end_matches(['-', '.'])
    }

    /// What the members have published whose Leases are live; takes those away that are long dead.
    async fn live(&mut self) -> Result<Published, BoxError> {
        let params = ListParams::default().labels(&format!("{GROUP}={}", self.options.group));
        // Without a version the answer is the newest state, which has our own renewal.
        let list = self.client.request::<Value>(self.leases.list(&params)?);
        let list = list.await?;
        let now = Instant::now();
        let members: Vec<_> = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(member)
            .collect();
        self.seen
            .retain(|lease, _| members.iter().any(|member| member.lease == *lease));
        let mut live = Published::new();
        for member in members {
            let version = &member.version;
            let first = || (version.clone(), now);
            let seen = self.seen.entry(member.lease.clone()).or_insert_with(first);
            if seen.0 != *version {
                *seen = (version.clone(), now);
            }
            let quiet = now.duration_since(seen.1);
            if member.lease == self.name || quiet < member.duration {
                live.insert(member.name, member.drained_to);
            } else if quiet >= member.duration.saturating_mul(2) {
                self.take_away(&member).await;
            }
        }
        Ok(live)
    }

    /// Deletes the Lease of a member that is gone, unless it has come back.
    async fn take_away(&self, member: &Member) {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                resource_version: Some(member.version.clone()),
                uid: None,
            }),
            ..DeleteParams::default()
        };
        let deleted = async {
            let request = self.leases.delete(&member.lease, &params)?;
            Ok::<_, BoxError>(self.client.request::<Value>(request).await?)
        };
        // The next round tries again.
        if let Err(error) = deleted.await {
            debug!(lease = member.lease, error = %Chain(&*error), "a dead member's Lease stays");
        }
    }

    /// Leaves the ring, if nothing runs here any more.
    async fn leave(self) {
        if !self.gate.is_idle() {
            // Others would take its keys over at once. So they wait until the Lease is out of date.
            warn!("did not leave the ring: a run has not ended; the Lease is left to expire");
            return;
        }
        let deleted = async {
            let request = self.leases.delete(&self.name, &DeleteParams::default())?;
            Ok::<_, BoxError>(self.client.request::<Value>(request).await?)
        };
        match tokio::time::timeout(self.options.retry_period, deleted).await {
            Ok(Ok(_)) => {}
            // The others wait until it is out of date.
            Ok(Err(error)) => warn!(error = %Chain(&*error), "could not leave the ring in order"),
            Err(_) => warn!("could not leave the ring in order: no answer in time"),
        }
    }
}

fn member(lease: &Value) -> Option<Member> {
    let seconds = lease.pointer("/spec/leaseDurationSeconds")?.as_u64()?;
    let drained_to = lease["metadata"]["annotations"][DRAINED_TO]
        .as_str()
        .and_then(|view| serde_json::from_str(view).ok());
    Some(Member {
        lease: text(lease, "/metadata/name")?,
        name: text(lease, "/spec/holderIdentity")?,
        version: text(lease, "/metadata/resourceVersion")?,
        duration: Duration::from_secs(seconds),
        drained_to,
    })
}

fn text(object: &Value, pointer: &str) -> Option<String> {
    Some(object.pointer(pointer)?.as_str()?.to_owned())
}

/// The time of a renewal for people: no member compares it with anything.
fn wall_clock() -> String {
    let now = Timestamp::now();
    format!("{now:.6}")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube_client::client::Body;

    use super::super::ShardBy;
    use super::super::gate::Entry;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn w74_a_member_leaves_the_ring_only_when_nothing_runs() {
        for runs in [false, true] {
            let deletions = Arc::new(AtomicUsize::new(0));
            let seen = Arc::clone(&deletions);
            let service = tower::service_fn(move |request: http::Request<Body>| {
                if request.method() == http::Method::DELETE {
                    seen.fetch_add(1, Ordering::Relaxed);
                }
                let answer = http::Response::new(Body::from(b"{}".to_vec()));
                async { Ok::<_, Infallible>(answer) }
            });
            let options = ShardingOptions {
                identity: "a".to_owned(),
                ..ShardingOptions::new("ns", "ring")
            };
            let client = Client::new(service, "ns");
            let sharding = Sharding::over(client, options, ShardBy::key()).unwrap();
            let gate = Arc::clone(sharding.gate());
            let alone = |view| Published::from([("a".to_owned(), view)]);
            gate.renewed(Instant::now() + Duration::from_secs(10));
            gate.observe(&alone(None));
            gate.observe(&alone(gate.drained_to()));
            let Entry::Run(pass) = gate.enter(&ObjectKey::namespaced("ns", "x")) else {
                panic!("the only member runs everything")
            };
            let pass = runs.then_some(pass);
            Keeper::new(sharding).leave().await;
            let expected = usize::from(!runs);
            assert_eq!(deletions.load(Ordering::Relaxed), expected, "runs: {runs}");
            drop(pass);
        }
    }
}
