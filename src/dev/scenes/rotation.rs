//! S-07, H-18: a Secret that many Proxies share changes, and they are replaced a few at a time.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube_client::Api;
use kube_client::api::{ListParams, Patch, PatchParams, WatchParams};
use kube_core::{ResourceExt as _, WatchEvent};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{apply, members, quick};
use crate::api::Proxy;
use crate::api::conditions::{ConditionStatus, ConditionType, status};
use crate::dev::Error;
use crate::dev::console::Console;
use crate::dev::fleet::{self, NAMESPACE};
use crate::dev::stage::Stage;
use crate::provider::sim::World;

const ALL: usize = 20;
/// H-18: a tenth.
const BUDGET: usize = ALL / 10;
const SECRET: &str = "shared-cloud-init";
const LIMIT: Duration = Duration::from_secs(60);

fn secret(revision: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": SECRET, "namespace": NAMESPACE },
        "stringData": { "user-data": format!("#cloud-config\nrevision: {revision}\n") },
    })
}

/// What the latest event of a Proxy said.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    serves: bool,
    machine: Option<String>,
}

impl Shown {
    fn of(proxy: &Proxy) -> Self {
        let seen = proxy.status.as_ref();
        let serves = seen.is_some_and(|seen| {
            status(&seen.conditions, ConditionType::Ready) == Some(ConditionStatus::True)
        });
        Self {
            serves,
            machine: seen.and_then(|seen| seen.instance_uid.clone()),
        }
    }
}

/// The fleet while it is replaced, event by event.
struct Roll {
    before: BTreeMap<String, Shown>,
    now: BTreeMap<String, Shown>,
    peak: usize,
}

impl Roll {
    fn new(proxies: &[Proxy]) -> Self {
        let shown = proxies
            .iter()
            .map(|proxy| (proxy.name_any(), Shown::of(proxy)));
        let before: BTreeMap<_, _> = shown.collect();
        Self {
            now: before.clone(),
            before,
            peak: 0,
        }
    }

    /// Takes an event in; tells a Proxy that serves by a new machine since then.
    fn take(&mut self, proxy: &Proxy) -> Option<String> {
        let name = proxy.name_any();
        let shown = Shown::of(proxy);
        let last = self.now.insert(name.clone(), shown.clone());
        self.peak = self.peak.max(self.n_out());
        let is_new = shown.serves
            && last.is_none_or(|last| !last.serves)
            && self
                .before
                .get(&name)
                .is_some_and(|old| old.machine != shown.machine);
        is_new.then(|| {
            let old = self
                .before
                .get(&name)
                .and_then(|old| old.machine.as_deref());
            format!(
                "{name}: machine {} -> {}",
                old.unwrap_or("-"),
                shown.machine.as_deref().unwrap_or("-")
            )
        })
    }

    fn n_out(&self) -> usize {
        self.now.values().filter(|shown| !shown.serves).count()
    }

    fn n_replaced(&self) -> usize {
        let replaced = self.now.iter().filter(|(name, shown)| {
            shown.serves
                && self
                    .before
                    .get(*name)
                    .is_some_and(|old| old.machine != shown.machine)
        });
        replaced.count()
    }
}

pub(super) async fn play(
    stage: &mut Stage,
    console: &mut Console,
    world: &World,
) -> Result<(), Error> {
    stage.start_operator(quick())?;
    let client = stage.client.clone();
    fleet::apply(&client, &secret(1)).await?;
    let spec = json!({ "cloudInit": { "secretRef": { "name": SECRET } } });
    apply(&client, "roll", ALL, &spec).await?;
    stage
        .until("every Proxy is Ready", LIMIT, async || {
            let members = members(&client, world).await?;
            let ready = members.iter().filter(|member| member.is_ready()).count();
            if ready == ALL {
                Ok(())
            } else {
                Err(format!("{ready} of {ALL} are Ready"))
            }
        })
        .await?;
    console.timed(&format!(
        "{ALL} Proxies Ready, all with Secret {SECRET}; {BUDGET} of them may be out of service at once"
    ))?;

    let proxies: Api<Proxy> = Api::namespaced(client.clone(), NAMESPACE);
    let listed = proxies.list(&ListParams::default()).await;
    let listed = listed.map_err(Error::api("list the fleet"))?;
    let version = listed.metadata.resource_version.clone().unwrap_or_default();
    let mut roll = Roll::new(&listed.items);
    let events = proxies
        .watch(&WatchParams::default(), &version)
        .await
        .map_err(Error::api("watch the fleet"))?;
    let mut events = pin!(events);

    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let rotated = Patch::Merge(secret(2));
    let params = PatchParams::default();
    let rotated = secrets.patch(SECRET, &params, &rotated).await;
    rotated.map_err(Error::api(format!("rotate Secret {SECRET}")))?;
    console.timed(&format!(
        "Secret {SECRET} rotated: all {ALL} are to be replaced"
    ))?;

    let deadline = Instant::now() + LIMIT;
    while roll.n_replaced() < ALL {
        let event = tokio::select! {
            event = events.next() => event,
            error = stage.operator_ended() => return Err(error),
            () = sleep_until(deadline) => {
                let last = format!("{} of {ALL} are replaced", roll.n_replaced());
                return Err(Error::not_so("every Proxy is replaced", LIMIT, last));
            }
        };
        let proxy = match event {
            Some(Ok(WatchEvent::Added(proxy) | WatchEvent::Modified(proxy))) => proxy,
            Some(Ok(_)) => continue,
            Some(Err(error)) => return Err(Error::api("watch the fleet")(error)),
            None => {
                let last = "the watch ended".to_owned();
                return Err(Error::not_so("every event is seen", LIMIT, last));
            }
        };
        let replaced = roll.take(&proxy);
        let out = roll.n_out();
        if out > BUDGET {
            let last = format!("{out} are out of service");
            return Err(Error::not_so("the budget is never exceeded", LIMIT, last));
        }
        if let Some(replaced) = replaced {
            console.timed(&format!(
                "{replaced}; {} of {ALL} done, {out} out of service",
                roll.n_replaced()
            ))?;
        }
    }
    console.timed(&format!(
        "all {ALL} are replaced; never more than {} of {BUDGET} were out of service, at any event",
        roll.peak
    ))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(name: &str, ready: bool, machine: &str) -> Proxy {
        serde_json::from_value(json!({
            "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
            "metadata": { "name": name }, "spec": { "provider": "sim" },
            "status": {
                "instanceUID": machine,
                "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" },
                    "reason": "Serving", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
            },
        }))
        .expect("a Proxy")
    }

    #[test]
    fn each_event_counts_and_a_proxy_is_replaced_once_it_serves_by_another_machine() {
        let mut roll = Roll::new(&[proxy("a", true, "1"), proxy("b", true, "2")]);
        assert_eq!((roll.n_replaced(), roll.n_out()), (0, 0));
        assert_eq!(roll.take(&proxy("a", false, "1")), None);
        assert_eq!(roll.take(&proxy("b", false, "2")), None);
        assert_eq!(roll.take(&proxy("a", false, "3")), None);
        assert_eq!((roll.n_replaced(), roll.n_out(), roll.peak), (0, 2, 2));
        let told = roll.take(&proxy("a", true, "3")).expect("replaced");
        assert_eq!(told, "a: machine 1 -> 3");
        assert_eq!(roll.take(&proxy("b", true, "2")), None, "the same machine");
        assert_eq!((roll.n_replaced(), roll.n_out(), roll.peak), (1, 0, 2));
    }
}
