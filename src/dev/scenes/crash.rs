//! the operator dies between an effect at the cloud and its record, and one machine remains.

use std::time::Duration;

use kube_client::Api;
use kube_client::api::{Patch, PatchParams};
use serde_json::json;

use super::{apply, members, quick};
use crate::api::Proxy;
use crate::dev::Error;
use crate::dev::console::Console;
use crate::dev::fleet::{Member, NAMESPACE};
use crate::dev::script::{explain, visit_through};
use crate::dev::stage::Stage;
use crate::provider::Reason;
use crate::provider::sim::{Op, Rule, When, World};

const PROXY: &str = "crash-01";
const LIMIT: Duration = Duration::from_secs(20);

/// A call that has its effect and whose answer does not come while the operator lives.
fn unanswered(op: Op) -> Rule {
    Rule {
        op: Some(op),
        error: Some(Reason::Timeout),
        times: Some(1),
        delay: Duration::from_secs(3600),
        when: When::After,
        ..Rule::default()
    }
}

pub(super) async fn play(
    stage: &mut Stage,
    console: &mut Console,
    world: &World,
) -> Result<(), Error> {
    world.add_rule(unanswered(Op::Create));
    stage.start_operator(quick())?;
    let client = stage.client.clone();
    apply(&client, "crash", 1, &json!({})).await?;
    console.timed("a Proxy applied; the answer to its create will be lost")?;
    stage
        .until("the cloud makes a machine", LIMIT, async || {
            match world.count() {
                1 => Ok(()),
                n => Err(format!("{n} machines")),
            }
        })
        .await?;
    stage.crash_operator().await;
    let orphaned = one(stage, world).await?;
    let known = orphaned.proxy.status.as_ref();
    let id = known.and_then(|status| status.provider_id.as_deref());
    if let Some(id) = id {
        let step = "the operator dies before it knows of the machine";
        return Err(Error::not_so(step, LIMIT, format!("it is on record: {id}")));
    }
    console.timed(&format!(
        "operator killed: the cloud runs machine {}, the Proxy knows nothing of it (providerID -, \
         hash {})",
        orphaned.machine().unwrap_or("-"),
        orphaned.hash()
    ))?;

    stage.start_operator(quick())?;
    let first = ready(stage, world, None).await?;
    prove(
        console,
        world,
        1,
        &format!(
            "a new operator took machine {} over: machines ever made 1, running 1",
            first.machine().unwrap_or("-")
        ),
    )?;
    visit_through(stage, console, &first).await?;

    world.add_rule(unanswered(Op::Delete));
    let proxies: Api<Proxy> = Api::namespaced(client.clone(), NAMESPACE);
    let edit = Patch::Merge(json!({ "spec": { "tags": { "pool": "news" } } }));
    let edited = proxies.patch(PROXY, &PatchParams::default(), &edit).await;
    edited.map_err(Error::api(format!("edit Proxy {PROXY}")))?;
    console.timed(
        "spec edited, so the machine is to be replaced; the answer to its delete will be lost",
    )?;
    stage
        .until(
            "the cloud is asked to delete the machine",
            LIMIT,
            async || match world.calls(Op::Delete) {
                0 => Err("no delete call".to_owned()),
                _ => Ok(()),
            },
        )
        .await?;
    stage.crash_operator().await;
    console.timed("operator killed: the machine goes, and nothing on record says so")?;

    stage.start_operator(quick())?;
    let second = ready(stage, world, first.machine()).await?;
    prove(
        console,
        world,
        2,
        &format!(
            "a new operator finished the replacement: machine {} -> {}, hash {} -> {}; machines \
             ever made 2, running 1",
            first.machine().unwrap_or("-"),
            second.machine().unwrap_or("-"),
            crate::dev::fleet::short(first.hash()),
            crate::dev::fleet::short(second.hash())
        ),
    )?;
    visit_through(stage, console, &second).await
}

/// Says it, if the cloud runs one machine and made no more than so many.
fn prove(console: &mut Console, world: &World, made: u64, text: &str) -> Result<(), Error> {
    let found = (world.made(), world.count());
    if found != (made, 1) {
        let last = format!("{} were made, {} run", found.0, found.1);
        return Err(Error::not_so("exactly one machine remains", LIMIT, last));
    }
    console.timed(text)?;
    Ok(())
}

async fn one(stage: &Stage, world: &World) -> Result<Member, Error> {
    let found = members(&stage.client, world).await;
    let found = found.map(|members| members.into_iter().find(|member| member.name() == PROXY));
    match found {
        Ok(Some(member)) => Ok(member),
        Ok(None) => Err(Error::not_so(
            "the Proxy is there",
            LIMIT,
            "it is not".to_owned(),
        )),
        Err(problem) => Err(Error::not_so("the Proxy can be read", LIMIT, problem)),
    }
}

/// The Proxy once it is Ready by another machine than `old`.
async fn ready(stage: &mut Stage, world: &World, old: Option<&str>) -> Result<Member, Error> {
    let client = stage.client.clone();
    stage
        .until("the Proxy is Ready after the crash", LIMIT, async || {
            let members = members(&client, world).await?;
            let member = members.into_iter().find(|member| member.name() == PROXY);
            let member = member.ok_or("it is gone")?;
            if !member.is_ready() {
                Err(explain(&member))
            } else if old.is_some() && member.machine() == old {
                Err("it has its old machine".to_owned())
            } else {
                Ok(member)
            }
        })
        .await
}
