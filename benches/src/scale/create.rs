//! From apply to Ready on simulated machines that boot at once, and the fleet at rest.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep};

use super::board::Followed;
use super::cluster::{Cluster, PROXIES};
use super::operator::Operator;
use super::report::{Goal, Report};
use super::spent::Stretch;
use super::{MIB, Options, failed};
use crate::Error;

const PROVIDERS: &str = "sim:\n  kind: sim\n  boot: 0s\n";
/// Longest time for a thousand Proxies.
const LIMIT_PER_1000: Duration = Duration::from_secs(10);
/// What comes after the last Ready: answers, echoes, caches that shrink.
const SETTLE: Duration = Duration::from_secs(5);

/// Runs it; the settled operator's resident memory in bytes.
pub(super) async fn run(options: &Options, report: &mut Report) -> Result<f64, Error> {
    let n = options.n;
    let count = u32::try_from(n).map_err(failed("count Proxies"))?;
    let cluster = Cluster::start().await?;
    let mut fleet = Followed::begin(cluster.client(), PROXIES).await?;
    let mut operator = Operator::start(&cluster, options, PROVIDERS)?;
    let synced = "controller_runtime_max_concurrent_reconciles";
    operator
        .until(synced, Duration::from_secs(20), |workers| workers > 0.0)
        .await?;
    let (empty, _) = operator.memory()?;

    let spec = json!({
        "provider": "sim",
        "machine": { "size": "e2-micro", "zone": "zone-a" },
        "tags": { "pool": "scale" },
    });
    let stretch = Stretch::begin(&operator)?;
    let began = Instant::now();
    let limit = LIMIT_PER_1000 * count.div_ceil(1000);
    let applied = async {
        cluster.apply(n, &spec).await?;
        Ok::<_, Error>(began.elapsed())
    };
    let ready = fleet.until("every Proxy is Ready", limit, |board| {
        board.n_serving() == n
    });
    let (applied, ()) = tokio::try_join!(applied, ready)?;
    let spent = stretch.end(&operator)?;
    let (requests, _) = cluster.operator_requests();

    let per_second = n as f64 / spent.seconds;
    let goal = (n <= 10_000).then_some(Goal::AtLeast(500.0));
    match goal {
        Some(goal) => report.goal("create", n, "proxies_per_s", per_second, goal),
        None => report.figure("create", n, "proxies_per_s", per_second),
    }
    report.figure("create", n, "seconds", spent.seconds);
    report.figure("create", n, "apply_seconds", applied.as_secs_f64());
    spent.report(report, "create", n);
    report.figure(
        "create",
        n,
        "operator_requests_per_proxy",
        requests as f64 / n as f64,
    );
    report.figure(
        "create",
        n,
        "events_per_proxy",
        fleet.with(|board| board.n_events()) as f64 / n as f64,
    );

    sleep(SETTLE).await;
    let (requests, writes) = cluster.operator_requests();
    let rest = Stretch::begin(&operator)?;
    sleep(options.rest).await;
    let rest = rest.end(&operator)?;
    let used = rest.theirs / rest.seconds;
    let (requests_then, writes_then) = cluster.operator_requests();
    let (resident, peak) = operator.memory()?;
    let most = if n <= 10_000 { 150.0 } else { 1200.0 };
    if n <= 10_000 {
        report.goal(
            "create",
            n,
            "rest_cpu_percent",
            used * 100.0,
            Goal::AtMost(1.0),
        );
    } else {
        report.figure("create", n, "rest_cpu_percent", used * 100.0);
    }
    report.figure(
        "create",
        n,
        "rest_requests_per_s",
        (requests_then - requests) as f64 / rest.seconds,
    );
    let written = writes_then - writes;
    report.goal(
        "create",
        n,
        "rest_writes",
        written as f64,
        Goal::AtMost(0.0),
    );
    report.goal(
        "create",
        n,
        "resident_mib",
        resident / MIB,
        Goal::AtMost(most),
    );
    report.figure("create", n, "peak_resident_mib", peak / MIB);
    report.figure("create", n, "empty_resident_mib", empty / MIB);
    operator.stop().await?;
    cluster.shutdown().await;
    Ok(resident)
}

/// What one more Proxy costs, from two fleets.
pub(super) fn slope(
    small: &Options,
    of_small: f64,
    large: &Options,
    of_large: f64,
    report: &mut Report,
) {
    let more = large.n.saturating_sub(small.n).max(1) as f64;
    let per_proxy = (of_large - of_small) / more / 1024.0;
    report.figure(
        "create",
        large.n,
        "resident_kib_per_further_proxy",
        per_proxy,
    );
}
