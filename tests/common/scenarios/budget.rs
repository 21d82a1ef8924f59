//! What the operator asks of the API server, counted by the server (O-09).
//!
//! Watches, the Lease and Events are apart, and so are reads of Secrets. The embedded server counts by user; of the
//! real one's counters, which know no user, those count that nobody but the operator adds to.

use std::collections::BTreeMap;
use std::time::Duration;

use kube_client::Client;
use serde_json::json;

use crate::common::eventually::eventually;
use crate::common::fleet;
use crate::common::history::History;
use crate::common::operator::Operator;
use crate::common::world::{OPERATOR_USER, World};

/// The simulated pod is Ready, or gone, well before the first poll.
const POLLS: [&str; 4] = ["--provisioning-poll", "3s", "--deletion-poll", "3s"];

/// Requests by verb and resource, such as `patch proxies/status`.
type Count = BTreeMap<String, u64>;

/// The operator's requests so far.
async fn count(world: &World) -> Count {
    match world.embedded_cluster() {
        Some(cluster) => {
            let counters = cluster.counters();
            let own = counters.requests().filter(|(key, _)| {
                key.user == OPERATOR_USER
                    && key.verb != "watch"
                    && !["leases", "events", "secrets"].contains(&key.resource.as_str())
            });
            let mut count = Count::new();
            for (key, number) in own {
                let dash = if key.subresource.is_empty() { "" } else { "/" };
                let what = format!("{} {}{dash}{}", key.verb, key.resource, key.subresource);
                *count.entry(what).or_default() += number;
            }
            count
        }
        None => count_of_real(&world.admin).await,
    }
}

/// Of the requests that `apiserver_request_total` counts, those of Proxies, and reads and creates of pods: nodes and
/// test make none while the test only watches. A pod is deleted twice, by the operator and, once it ended, by its node.
async fn count_of_real(admin: &Client) -> Count {
    let request = http::Request::get("/metrics")
        .body(Vec::new())
        .expect("a request");
    let page = admin.request_text(request).await.expect("metrics");
    let mut count = Count::new();
    for line in page.lines() {
        let Some(rest) = line.strip_prefix("apiserver_request_total{") else {
            continue;
        };
        let (labels, number) = rest.rsplit_once("} ").expect("a sample");
        let label = |name: &str| {
            let mut all = labels.split("\",");
            all.find_map(|one| one.strip_prefix(&format!("{name}=\"")))
                .unwrap_or_default()
                .trim_end_matches('"')
        };
        let (verb, resource) = (label("verb"), label("resource"));
        let is_own = match resource {
            "proxies" => verb != "WATCH" && verb != "LIST",
            "pods" => matches!(verb, "GET" | "POST") && label("subresource").is_empty(),
            _ => false,
        };
        if is_own {
            let dash = if label("subresource").is_empty() {
                ""
            } else {
                "/"
            };
            let what = format!("{verb} {resource}{dash}{}", label("subresource"));
            *count.entry(what).or_default() += number.parse::<u64>().expect("few requests");
        }
    }
    count
}

fn since(before: &Count, after: &Count) -> Count {
    let new = after.iter().map(|(what, number)| {
        let old = before.get(what).copied().unwrap_or_default();
        (what.clone(), number - old)
    });
    new.filter(|(_, number)| *number > 0).collect()
}

/// Waits for the last line of the history without asking the server for it.
async fn until(history: &History, what: &str, lines: usize) {
    eventually(fleet::STEP, what, || async {
        let seen = history.lines();
        let ready = seen
            .iter()
            .filter(|line| line.starts_with("Ready:"))
            .count();
        if ready >= lines {
            Ok(())
        } else {
            Err(seen.join("\n"))
        }
    })
    .await;
}

/// Lets passes end that follow a status write.
const CALM: Duration = Duration::from_secs(1);

pub(crate) async fn a_creation_costs_at_most_ten_requests_and_a_replacement_sixteen(world: &World) {
    let _operator = Operator::start(&world.operator_kubeconfig(), &POLLS);
    fleet::put_secret(world, "boot", "user-data", "first").await;
    let addition = json!({ "cloudInit": { "secretRef": { "name": "boot" } } });
    // The first one waits for the operator's start.
    fleet::create(world, &fleet::managed("first", &json!({}))).await;
    fleet::ready(world, "first").await;

    let history = History::start(world, "one").await;
    let proxy = fleet::managed("one", &addition);
    let before = count(world).await;
    fleet::create(world, &proxy).await;
    until(&history, "one is Ready", 1).await;
    tokio::time::sleep(CALM).await;
    let mut created = since(&before, &count(world).await);
    // The test's own, where the server does not tell who asked.
    created.remove("POST proxies");
    let sum: u64 = created.values().sum();
    assert!(sum <= 10, "a creation costs {sum} requests: {created:#?}");

    let before = count(world).await;
    fleet::put_secret(world, "boot", "user-data", "second").await;
    until(&history, "one is Ready again", 2).await;
    tokio::time::sleep(CALM).await;
    let replaced = since(&before, &count(world).await);
    let sum: u64 = replaced.values().sum();
    assert!(
        sum <= 16,
        "a replacement costs {sum} requests: {replaced:#?}"
    );
    crate::common::say(&format!("creation {created:#?}\nreplacement {replaced:#?}"));
}
