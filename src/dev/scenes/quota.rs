//! S-09: a quota is used up, and the operator asks for all who wait by one create at a time.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{apply, members, quick, reason};
use crate::api::conditions::Reason;
use crate::dev::Error;
use crate::dev::console::Console;
use crate::dev::stage::Stage;
use crate::provider::sim::{Op, Rule, World};

/// Machines that the cloud has at first.
pub(super) const FIRST: usize = 3;
/// Proxies, and machines that the cloud has in the end.
const ALL: usize = 8;
/// How long a create takes once there is quota, so that it can be seen how many go at once.
const CREATE: Duration = Duration::from_millis(700);
/// Creates that end within less than this of each other went at once.
const AT_ONCE: Duration = Duration::from_millis(350);
const LIMIT: Duration = Duration::from_secs(40);

pub(super) async fn play(
    stage: &mut Stage,
    console: &mut Console,
    world: &World,
) -> Result<(), Error> {
    let timing = quick();
    let retry = timing.quota_retry;
    stage.start_operator(timing)?;
    let client = stage.client.clone();
    apply(&client, "quota", ALL, &json!({})).await?;
    console.timed(&format!(
        "{ALL} Proxies applied; the cloud has a quota of {FIRST} machines, --quota-retry is {}s",
        retry.as_secs()
    ))?;

    let waiting = ALL - FIRST;
    stage
        .until(
            "the Proxies without a machine wait for quota",
            LIMIT,
            async || {
                let members = members(&client, world).await?;
                let ready = members.iter().filter(|member| member.is_ready()).count();
                let held = members
                    .iter()
                    .filter(|member| reason(member) == Some(Reason::QuotaExceeded))
                    .count();
                if (ready, held) == (FIRST, waiting) {
                    Ok(())
                } else {
                    Err(format!("{ready} are Ready, {held} wait for quota"))
                }
            },
        )
        .await?;
    console.timed(&format!(
        "{FIRST} are Ready, {waiting} wait with reason QuotaExceeded after {} create calls: the \
         circuit is open",
        world.calls(Op::Create)
    ))?;

    let rounds = 3;
    let calls = world.calls(Op::Create);
    sleep(retry * rounds).await;
    let tried = world.calls(Op::Create) - calls;
    let step = "one create in each retry time tries for all who wait";
    if !(1..=u64::from(rounds) + 1).contains(&tried) {
        let last = format!("{tried} create calls in {rounds} retry times");
        return Err(Error::not_so(step, retry * rounds, last));
    }
    console.timed(&format!(
        "{tried} create calls in {}s ask for all {waiting}: one in each retry time",
        (retry * rounds).as_secs()
    ))?;

    world.add_rule(Rule {
        op: Some(Op::Create),
        delay: CREATE,
        ..Rule::default()
    });
    world.change_settings(|settings| settings.quota = Some(ALL));
    let raised = Instant::now();
    console.timed(&format!(
        "quota raised to {ALL}; a create takes {}ms now",
        CREATE.as_millis()
    ))?;
    let bursts = watch_creates(stage, console, world, raised).await?;
    let step = "creates go one by one at first, then more at once";
    if bursts.first() != Some(&1) || bursts.get(1) != Some(&1) {
        return Err(Error::not_so(step, LIMIT, format!("{bursts:?} at once")));
    }
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
    console.timed(&format!("slow start is over: {ALL} of {ALL} Ready"))?;
    Ok(())
}

/// Follows the creates until every Proxy has a machine; how many ended together, in their order.
async fn watch_creates(
    stage: &mut Stage,
    console: &mut Console,
    world: &World,
    began: Instant,
) -> Result<Vec<usize>, Error> {
    let mut bursts: Vec<usize> = Vec::new();
    let mut seen = FIRST;
    let mut last = began;
    while seen < ALL {
        let now = stage
            .until("another machine is made", LIMIT, async || {
                let count = world.count();
                if count > seen {
                    Ok(count)
                } else {
                    Err(format!("{count} of {ALL} machines are made"))
                }
            })
            .await?;
        let made = now - seen;
        match bursts.last_mut() {
            Some(burst) if last.elapsed() < AT_ONCE => *burst += made,
            _ => bursts.push(made),
        }
        last = Instant::now();
        seen = now;
        console.timed(&format!("machine {now} of {ALL} is made"))?;
    }
    Ok(bursts)
}
