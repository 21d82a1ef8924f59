//! What users and the world do in a run.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use super::super::testing::Server;
use super::{PROVIDERS, TROUBLE, Universe};
use crate::cluster::{CONFIG_MAP, KEY};
use crate::provider::name_from_uid;

/// One thing that happens.
#[derive(Clone, Debug)]
pub(super) enum Act {
    /// A user changes something of a Proxy.
    Edit { name: String, patch: Value },
    /// A user deletes a Proxy, and makes another of that name.
    Recreate {
        name: String,
        uid: String,
        spec: Value,
    },
    /// A user deletes a Proxy for good.
    Delete { name: String },
    /// A user writes new content into the Secret that Proxies share.
    Rotate { data: String },
    /// A machine is lost in one way or the other.
    Loss { nth: usize, how: Loss },
    /// The process dies at one of its next calls.
    Death,
    /// Another process takes itself for the leader too.
    SecondLeader,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Loss {
    Stop,
    Preempt,
    Vanish,
}

impl Act {
    /// True for what users neither do nor want.
    pub(super) fn is_fault(&self) -> bool {
        matches!(self, Self::Death | Self::SecondLeader | Self::Loss { .. })
    }

    pub(super) fn happen(&self, universe: &Universe) {
        let server = &universe.server;
        match self {
            Self::Edit { name, patch } => {
                if server
                    .newest(&path(name))
                    .is_some_and(|object| fits(&object, patch))
                {
                    server.edit(&path(name), patch);
                }
            }
            Self::Recreate { name, uid, spec } => {
                server.delete(&path(name));
                // While the old one is held, the name is taken; users try again later.
                server.put_when_free(&path(name), proxy(name, uid, spec));
            }
            Self::Delete { name } => server.delete(&path(name)),
            Self::Rotate { data } => server.put("secrets/boot", secret(data)),
            Self::Loss { nth, how } => {
                let machines: Vec<_> = universe
                    .worlds
                    .iter()
                    .flat_map(|world| {
                        world
                            .all()
                            .into_iter()
                            .map(move |(owner, _)| (world, owner))
                    })
                    .collect();
                if let Some((world, owner)) = machines.get(nth % machines.len().max(1)) {
                    let name = name_from_uid(&owner.uid);
                    match how {
                        Loss::Stop => world.stop(&name),
                        Loss::Preempt => world.preempt(&name),
                        Loss::Vanish => world.vanish(&name),
                    };
                }
            }
            Self::Death => universe.fates.kill(),
            Self::SecondLeader => {}
        }
    }
}

/// Whether an API server would let that edit in: an External Proxy has no machine to describe.
fn fits(object: &Value, patch: &Value) -> bool {
    let is_external = object["spec"]["mode"] == "External" && patch["spec"]["mode"].is_null();
    let of_machines = ["machine", "rotation", "cloudInit"];
    !(is_external
        && of_machines
            .iter()
            .any(|field| patch["spec"].get(field).is_some()))
}

fn path(name: &str) -> String {
    format!("proxies/{name}")
}

fn proxy(name: &str, uid: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
        "metadata": { "name": name, "namespace": "crawl", "uid": uid, "generation": 1 },
        "spec": spec,
    })
}

fn secret(data: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": "boot", "namespace": "crawl" }, "data": { "user-data": data } })
}

/// All acts of a run, in the order of their times.
pub(super) struct Script {
    names: Vec<String>,
    specs: Vec<Value>,
    acts: Vec<(Duration, Act)>,
}

impl Script {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x5c1);
        let names: Vec<_> = (0..rng.random_range(1..=3))
            .map(|n| format!("p{n}"))
            .collect();
        let specs = names.iter().map(|_| managed(&mut rng)).collect();
        let mut acts: Vec<_> = (0..rng.random_range(3..=14))
            .map(|nth| {
                let at = rng.random_range(Duration::ZERO..TROUBLE - Duration::from_secs(120));
                (at, act(&mut rng, &names, nth))
            })
            .collect();
        acts.sort_by_key(|(at, _)| *at);
        Self { names, specs, acts }
    }

    pub(super) fn acts(&self) -> &[(Duration, Act)] {
        &self.acts
    }

    pub(super) fn set_the_stage(&self, server: &Server) {
        server.put("secrets/boot", secret("aGVsbG8="));
        let stored = json!({ "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": CONFIG_MAP, "namespace": "crawl" },
            "data": { KEY: "cluster" } });
        server.put(&format!("configmaps/{CONFIG_MAP}"), stored);
        for (n, (name, spec)) in self.names.iter().zip(&self.specs).enumerate() {
            server.put(&path(name), proxy(name, &format!("u-{n}"), spec));
        }
    }

    /// Users take back what holds a Proxy.
    pub(super) fn free_all(&self, server: &Server) {
        for name in &self.names {
            if server.newest(&path(name)).is_some() {
                let patch = json!({ "spec": { "paused": false },
                    "metadata": { "annotations": { "crawl.proxyoperator.dev/retry": "again" } } });
                server.edit(&path(name), &patch);
                server.edit_held(&path(name), &patch);
            }
        }
    }
}

fn managed(rng: &mut StdRng) -> Value {
    let mut spec = json!({ "provider": PROVIDERS[usize::from(rng.random_bool(0.5))] });
    if rng.random_bool(0.5) {
        spec["cloudInit"] = json!({ "secretRef": { "name": "boot" } });
    }
    spec
}

fn act(rng: &mut StdRng, names: &[String], nth: usize) -> Act {
    let name = names[rng.random_range(0..names.len())].clone();
    let edit = |patch| Act::Edit {
        name: name.clone(),
        patch,
    };
    match rng.random_range(0..20) {
        0..=3 => edit(json!({ "spec": { "machine": { "size": format!("s{nth}") } } })),
        4 => edit(json!({ "metadata": { "labels": { "n": format!("{nth}") } } })),
        5 => edit(json!({ "spec": { "paused": rng.random_bool(0.5) } })),
        6 => edit(
            json!({ "spec": { "mode": "External", "provider": null, "machine": null,
            "cloudInit": null, "rotation": null, "endpoint": { "host": "h.example", "port": 1 } } }),
        ),
        7 => edit(json!({ "spec": { "mode": "Managed", "endpoint": null,
            "provider": PROVIDERS[usize::from(rng.random_bool(0.5))] } })),
        8 => edit(json!({ "spec": { "rotation": { "nonce": format!("{nth}") } } })),
        9..=10 => Act::Rotate {
            data: ["aGVsbG8=", "d29ybGQ=", "YWdhaW4="][rng.random_range(0..3)].to_owned(),
        },
        11 => Act::Delete { name },
        12 => Act::Recreate {
            name,
            uid: format!("u-again-{nth}"),
            spec: managed(rng),
        },
        13..=14 => Act::Loss {
            nth: rng.random_range(0..8),
            how: [Loss::Stop, Loss::Preempt, Loss::Vanish][rng.random_range(0..3)],
        },
        15 => Act::SecondLeader,
        _ => Act::Death,
    }
}
