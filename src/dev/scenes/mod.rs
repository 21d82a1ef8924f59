//! `dev --scene NAME`: one hard moment in the life of a fleet, step by step, each step proven.
//!
//! All of them play on a simulated cloud, which can be told to refuse and to lose answers.

mod crash;
mod quota;
mod rotation;

use std::time::Duration;

use kube_client::Client;
use serde_json::{Value, json};

use crate::Timing;
use crate::api::conditions::{self, ConditionType, Reason};
use crate::provider::sim::{Settings, World};

use super::Error;
use super::console::Console;
use super::fleet::{self, Member, NAMESPACE};
use super::machines::{Machines, SIM};
use super::stage::Stage;

/// What is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Scene {
    /// A quota is used up: the circuit opens, one create asks for all, then a slow start.
    Quota,
    /// The operator dies in the middle of a create and of a delete: one machine remains.
    Crash,
    /// A Secret that twenty Proxies share changes: they are replaced two at a time.
    Rotation,
}

impl Scene {
    /// How its cloud behaves at first.
    pub(super) fn cloud(self) -> Settings {
        let length = |millis: u64| Duration::from_millis(millis);
        let quick = Settings {
            boot: length(100)..length(200),
            deletion: length(100)..length(200),
            ..Settings::default()
        };
        match self {
            Self::Quota => Settings {
                quota: Some(quota::FIRST),
                ..quick
            },
            Self::Crash | Self::Rotation => quick,
        }
    }

    /// Plays it; the first step that cannot be proven ends it.
    pub(super) async fn play(self, stage: &mut Stage, console: &mut Console) -> Result<(), Error> {
        let Machines::Sim(world) = stage.machines.clone() else {
            return Err(Error::NoCloud);
        };
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE },
        });
        fleet::apply(&stage.client, &namespace).await?;
        match self {
            Self::Quota => quota::play(stage, console, &world).await?,
            Self::Crash => crash::play(stage, console, &world).await?,
            Self::Rotation => rotation::play(stage, console, &world).await?,
        }
        console.timed("every step was proven")?;
        Ok(())
    }
}

/// Times that let a scene be seen in seconds; all of them have flags.
fn quick() -> Timing {
    Timing {
        provisioning_poll: Duration::from_millis(200),
        deletion_poll: Duration::from_millis(200),
        drift_poll: Duration::from_secs(1),
        quota_retry: Duration::from_secs(1),
        budget_retry: Duration::from_millis(400),
        ..Timing::default()
    }
}

/// Applies Proxies `NAME-01` and so on of that spec, at the simulated cloud.
async fn apply(client: &Client, name: &str, n: usize, spec: &Value) -> Result<(), Error> {
    for i in 1..=n {
        let mut proxy = json!({
            "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
            "metadata": { "name": format!("{name}-{i:02}"), "namespace": NAMESPACE },
            "spec": spec,
        });
        proxy["spec"]["provider"] = json!(SIM);
        fleet::apply(client, &proxy).await?;
    }
    Ok(())
}

/// The Proxies of the scene.
async fn members(client: &Client, world: &World) -> Result<Vec<Member>, String> {
    let machines = Machines::Sim(world.clone());
    let members = fleet::members(client, &machines, Some(NAMESPACE)).await;
    members.map_err(|error| error.to_string())
}

/// Why a Proxy has no machine that runs.
fn reason(member: &Member) -> Option<Reason> {
    let status = member.proxy.status.as_ref()?;
    conditions::reason(&status.conditions, ConditionType::Provisioned)
}
