//! `dev --once`: the life of the fleet, step by step, each with what proves it.

use std::time::Duration;

use super::Error;
use super::console::Console;
use super::fleet::{self, CLOUD_INIT_SECRET, Member, NAMESPACE, VICTIM, WITH_CLOUD_INIT, short};
use super::stage::Stage;
use super::visit::visit;

/// Proxies of the sample fleet.
const SIZE: usize = 6;
const UP_LIMIT: Duration = Duration::from_secs(20);
const REPLACE_LIMIT: Duration = Duration::from_secs(20);
const RECOVER_LIMIT: Duration = Duration::from_secs(20);
const DELETE_LIMIT: Duration = Duration::from_secs(15);
const VISIT_LIMIT: Duration = Duration::from_secs(5);

/// Walks through every step; the first that cannot be proven ends it.
pub(super) async fn run(stage: &mut Stage, console: &mut Console) -> Result<(), Error> {
    let members = bring_up(stage, console).await?;
    send_requests(stage, console, &members).await?;
    rotate_secret(stage, console).await?;
    recover(stage, console).await?;
    delete(stage, console).await?;
    console.timed("every step was proven")?;
    Ok(())
}

async fn bring_up(stage: &mut Stage, console: &mut Console) -> Result<Vec<Member>, Error> {
    let (client, machines) = (stage.client.clone(), stage.machines.clone());
    let members = stage
        .until("every Proxy of the fleet is Ready", UP_LIMIT, async || {
            let members = fleet::members(&client, &machines, Some(NAMESPACE)).await;
            let members = members.map_err(|error| error.to_string())?;
            let waiting: Vec<String> = members
                .iter()
                .filter(|member| !member.is_ready())
                .map(|member| format!("{} is {}", member.name(), explain(member)))
                .collect();
            match (members.len(), waiting.as_slice()) {
                (SIZE, []) => Ok(members),
                (SIZE, waiting) => Err(waiting.join("; ")),
                (n, _) => Err(format!("{n} of {SIZE} Proxies are there")),
            }
        })
        .await?;
    console.timed(&format!("fleet is up: {SIZE} of {SIZE} Proxies Ready"))?;
    for member in &members {
        console.line(&format!("         {}", member.line()))?;
    }
    Ok(members)
}

async fn send_requests(
    stage: &mut Stage,
    console: &mut Console,
    members: &[Member],
) -> Result<(), Error> {
    console.timed(&format!(
        "requests to {} through each proxy:",
        stage.echo.url()
    ))?;
    for member in members {
        visit_through(stage, console, member).await?;
    }
    Ok(())
}

pub(super) async fn visit_through(
    stage: &Stage,
    console: &mut Console,
    member: &Member,
) -> Result<(), Error> {
    let step = "a request through the proxy is answered";
    let visited = tokio::time::timeout(
        VISIT_LIMIT,
        visit(&stage.client, &member.proxy, &stage.echo),
    );
    let visit = visited
        .await
        .unwrap_or_else(|_| Err("no answer".to_owned()))
        .map_err(|problem| {
            Error::not_so(step, VISIT_LIMIT, format!("{}: {problem}", member.name()))
        })?;
    console.line(&format!("         {:<16} {}", member.name(), visit.line()))?;
    Ok(())
}

async fn rotate_secret(stage: &mut Stage, console: &mut Console) -> Result<(), Error> {
    let before = present(stage, WITH_CLOUD_INIT).await?;
    fleet::rotate_cloud_init(&stage.client).await?;
    console.timed(&format!(
        "Secret {CLOUD_INIT_SECRET} rotated: {WITH_CLOUD_INIT} must be replaced"
    ))?;
    let after = successor(
        stage,
        "the Proxy of the rotated Secret is replaced",
        REPLACE_LIMIT,
        {
            let hash = before.hash().to_owned();
            move |member| {
                if member.hash() == hash {
                    Err("the hash is the old one".to_owned())
                } else {
                    Ok(())
                }
            }
        },
        &before,
    )
    .await?;
    show_change(console, "replaced", &before, &after)?;
    visit_through(stage, console, &after).await
}

async fn recover(stage: &mut Stage, console: &mut Console) -> Result<(), Error> {
    let (client, machines) = (stage.client.clone(), stage.machines.clone());
    let before = present(stage, VICTIM).await?;
    machines.lose(&client, VICTIM).await?;
    let word = machines.word();
    console.timed(&format!("{word} of {VICTIM} deleted: it must come back"))?;
    let after = successor(
        stage,
        "the Proxy whose machine was deleted recovers",
        RECOVER_LIMIT,
        {
            let hash = before.hash().to_owned();
            move |member| {
                if member.hash() == hash {
                    Ok(())
                } else {
                    Err("the hash has changed".to_owned())
                }
            }
        },
        &before,
    )
    .await?;
    show_change(console, "recovered", &before, &after)?;
    visit_through(stage, console, &after).await
}

async fn delete(stage: &mut Stage, console: &mut Console) -> Result<(), Error> {
    let (client, machines) = (stage.client.clone(), stage.machines.clone());
    let members = fleet::members(&client, &machines, Some(NAMESPACE))
        .await
        .map_err(Error::api("list the fleet"))?;
    fleet::delete(&client, &members).await?;
    console.timed("fleet deleted: nothing may be left")?;
    let left = stage
        .until("nothing of the fleet is left", DELETE_LIMIT, async || {
            let left = fleet::leftovers(&client, &machines).await?;
            let text: Vec<String> = left.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
            let text = text.join(", ");
            if left.iter().all(|(_, n)| *n == 0) {
                Ok(text)
            } else {
                Err(format!("{text} left"))
            }
        })
        .await?;
    let serving = stage.n_serving();
    if serving > 0 {
        return Err(Error::not_so(
            "nothing of the fleet is left",
            DELETE_LIMIT,
            format!("{serving} {}s still serve", machines.word()),
        ));
    }
    console.timed(&format!("fleet is gone: {left}, {serving} proxies serving"))?;
    Ok(())
}

/// The Proxy as it is now; it must be Ready.
async fn present(stage: &mut Stage, name: &str) -> Result<Member, Error> {
    let (client, machines) = (stage.client.clone(), stage.machines.clone());
    stage
        .until("the Proxy is Ready before the step", UP_LIMIT, async || {
            let member = fleet::member(&client, &machines, name).await?;
            if member.is_ready() {
                Ok(member)
            } else {
                Err(explain(&member))
            }
        })
        .await
}

/// Waits until the Proxy is Ready again with another machine, and as `right` says.
async fn successor(
    stage: &mut Stage,
    step: &'static str,
    limit: Duration,
    right: impl Fn(&Member) -> Result<(), String>,
    before: &Member,
) -> Result<Member, Error> {
    let (client, machines) = (stage.client.clone(), stage.machines.clone());
    stage
        .until(step, limit, async || {
            let member = fleet::member(&client, &machines, before.name()).await?;
            if !member.is_ready() {
                Err(explain(&member))
            } else if member.machine() == before.machine() {
                Err(format!("it has its old {}", member.word()))
            } else {
                right(&member).map(|()| member)
            }
        })
        .await
}

fn show_change(
    console: &mut Console,
    what: &str,
    before: &Member,
    after: &Member,
) -> Result<(), Error> {
    console.timed(&format!(
        "{} {what}: {} {} -> {}, {} -> {}, hash {} -> {}",
        after.name(),
        after.word(),
        before.machine().unwrap_or("-"),
        after.machine().unwrap_or("-"),
        before.ip(),
        after.ip(),
        short(before.hash()),
        short(after.hash()),
    ))?;
    Ok(())
}

/// Phase with the message of the condition Provisioned.
pub(super) fn explain(member: &Member) -> String {
    use crate::api::conditions::{ConditionType, find};
    let status = member.proxy.status.as_ref();
    let condition = status.and_then(|s| find(&s.conditions, ConditionType::Provisioned));
    match condition {
        Some(condition) => {
            format!(
                "{} ({}: {})",
                member.phase(),
                condition.reason,
                condition.message
            )
        }
        None => member.phase().to_owned(),
    }
}
