//! A new operator over a fleet that runs on pods.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::board::Followed;
use super::cluster::{Cluster, PROXIES};
use super::operator::Operator;
use super::report::{Goal, Report};
use super::spent::Stretch;
use super::{MIB, Options, failed};
use crate::Error;

/// The pace is for the embedded server, which is the bound then.
const PROVIDERS: &str = "kubernetes:\n  kind: kubernetes\n  callsPerSecond: 2000\n";
const LIMIT_PER_1000: Duration = Duration::from_secs(30);
const RECONCILES: &str = "controller_runtime_reconcile_total";
/// What a pass that went wrong would still write afterwards.
const SETTLE: Duration = Duration::from_secs(3);

pub(super) async fn run(options: &Options, report: &mut Report) -> Result<(), Error> {
    let n = options.n;
    let count = u32::try_from(n).map_err(failed("count Proxies"))?;
    let limit = LIMIT_PER_1000 * count.div_ceil(1000);
    let mut cluster = Cluster::start().await?;
    cluster.add_nodes(n).await?;
    let mut fleet = Followed::begin(cluster.client(), PROXIES).await?;
    let first = Operator::start(&cluster, options, PROVIDERS)?;
    cluster
        .apply(n, &json!({ "provider": "kubernetes" }))
        .await?;
    fleet
        .until("every Proxy is Ready", limit, |board| {
            board.n_serving() == n
        })
        .await?;
    report.figure(
        "restart",
        n,
        "first_life_seconds",
        first.age().as_secs_f64(),
    );
    first.stop().await?;

    let (requests, writes) = cluster.operator_requests();
    let stretch = Stretch::before_operator();
    let mut second = Operator::start(&cluster, options, PROVIDERS)?;
    second
        .until(RECONCILES, limit, |total| total >= 1.0)
        .await?;
    let first_reconcile = second.age().as_secs_f64();
    second
        .until(RECONCILES, limit, |total| total >= n as f64)
        .await?;
    let all = second.age().as_secs_f64();
    let spent = stretch.end(&second)?;
    let (resident, peak) = second.memory()?;
    sleep(SETTLE).await;
    let (requests_then, writes_then) = cluster.operator_requests();
    report.goal(
        "restart",
        n,
        "first_reconcile_seconds",
        first_reconcile,
        Goal::AtMost(2.0),
    );
    report.figure("restart", n, "all_reconciled_seconds", all);
    spent.report(report, "restart", n);
    report.figure("restart", n, "resident_mib", resident / MIB);
    report.figure("restart", n, "peak_resident_mib", peak / MIB);
    let written = writes_then - writes;
    report.goal("restart", n, "writes", written as f64, Goal::AtMost(0.0));
    let asked = (requests_then - requests) as f64;
    report.figure("restart", n, "requests_per_proxy", asked / n as f64);
    second.stop().await?;
    cluster.shutdown().await;
    Ok(())
}
