//! A fleet at rest: what it asks of the API server, and what it says (O-06, O-09).

use std::time::Duration;

use devcluster::CounterKey;
use serde_json::json;
use tokio::time::Instant;

use crate::common::eventually::eventually;
use crate::common::fleet;
use crate::common::operator::Operator;
use crate::common::world::{OPERATOR_USER, World};

/// Proxies without a Secret, and with one.
const PLAIN: [&str; 3] = ["one", "two", "three"];
const WITH_SECRET: [&str; 2] = ["four", "five"];
/// `--drift-poll`.
const DRIFT: Duration = Duration::from_millis(600);
/// Drift polls of each Proxy that are counted.
const POLLS: u64 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn o09_a_poll_reads_the_pod_once_and_each_secret_once_and_o06_nothing_is_written_or_said() {
    let world = World::embedded().await;
    let operator = Operator::start(&world.operator_kubeconfig(), &["--drift-poll", "600ms"]);
    fleet::put_secret(&world, "boot", "user-data", "text").await;
    for name in PLAIN {
        fleet::create(&world, &fleet::managed(name, &json!({}))).await;
    }
    let with_secret = json!({ "cloudInit": { "secretRef": { "name": "boot" } } });
    for name in WITH_SECRET {
        fleet::create(&world, &fleet::managed(name, &with_secret)).await;
    }
    for name in PLAIN.into_iter().chain(WITH_SECRET) {
        fleet::ready(&world, name).await;
    }
    let cluster = world.embedded_cluster().expect("an embedded one");
    // What comes after Ready, such as the last Event, is over when a whole round says nothing.
    let settled = |gets: u64| {
        let (before, said) = (cluster.counters(), operator.log().len());
        let operator = &operator;
        async move {
            let by_operator = |key: &CounterKey| key.user == OPERATOR_USER;
            eventually(fleet::STEP, "drift polls", || async {
                let since = cluster.counters().since(&before);
                let seen = since.count(|key| by_operator(key) && key.resource == "pods");
                if seen >= gets {
                    Ok(())
                } else {
                    Err(seen.to_string())
                }
            })
            .await;
            (
                cluster.counters().since(&before),
                operator.log()[said..].to_owned(),
            )
        }
    };
    let all = (PLAIN.len() + WITH_SECRET.len()) as u64;
    eventually(
        fleet::STEP,
        "a round in which nothing is written",
        || async {
            let (counted, _) = settled(2 * all).await;
            match counted.writes_by(OPERATOR_USER) {
                0 => Ok(()),
                writes => Err(writes.to_string()),
            }
        },
    )
    .await;

    let began = Instant::now();
    let (counted, said) = settled(POLLS * all).await;
    let polls = began.elapsed().as_millis() / (DRIFT.as_millis() * 9 / 10);
    assert_eq!(counted.writes_by(OPERATOR_USER), 0, "{counted:?}");
    assert_eq!(said, "", "nothing is logged at info");
    let gets = |resource: &str| {
        counted
            .count(|key| key.user == OPERATOR_USER && key.verb == "get" && key.resource == resource)
    };
    let others = counted.count(|key| {
        let is_a_poll = key.verb == "get" && ["pods", "secrets"].contains(&key.resource.as_str());
        key.user == OPERATOR_USER && !is_a_poll && key.verb != "watch"
    });
    assert_eq!(others, 0, "{counted:?}");
    // No Proxy comes sooner than its poll, less 10 %.
    let most = (polls + 2) * u128::from(all);
    assert!(
        u128::from(gets("pods")) <= most,
        "at most {most}: {counted:?}"
    );
    // Polls are spread by 10 %, so that the edges of the time looked at count one for each Proxy.
    let secrets = gets("pods") * WITH_SECRET.len() as u64 / all;
    let fault = gets("secrets").abs_diff(secrets);
    assert!(
        fault <= all,
        "{} reads of Secrets, not {secrets}: {counted:?}",
        gets("secrets")
    );
    drop(operator);
    world.shutdown().await;
}
