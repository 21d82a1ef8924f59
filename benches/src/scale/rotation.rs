//! A Secret that all Proxies share changes.

use std::time::Duration;

use serde_json::json;

use super::board::Followed;
use super::cluster::{Cluster, PROXIES};
use super::operator::Operator;
use super::report::{Goal, Report};
use super::spent::Stretch;
use super::{Options, failed};
use crate::Error;

const PROVIDERS: &str = "sim:\n  kind: sim\n  boot: 400ms\n";
const SECRET: &str = "shared";
/// Longest time for a tenth of the fleet, which is what may be replaced at once: the wait of one
/// that was turned away is 30 s.
const LIMIT_PER_TENTH: Duration = Duration::from_secs(60);

pub(super) async fn run(options: &Options, report: &mut Report) -> Result<(), Error> {
    let n = options.n;
    let count = u32::try_from(n).map_err(failed("count Proxies"))?;
    let cluster = Cluster::start().await?;
    cluster.put_secret(SECRET, "#!/bin/sh\necho 1\n").await?;
    let mut fleet = Followed::begin(cluster.client(), PROXIES).await?;
    let operator = Operator::start(&cluster, options, PROVIDERS)?;
    let spec = json!({ "provider": "sim", "cloudInit": { "secretRef": { "name": SECRET } } });
    cluster.apply(n, &spec).await?;
    let limit = Duration::from_secs(60) + Duration::from_millis(10) * count;
    fleet
        .until("every Proxy is Ready", limit, |board| {
            board.n_serving() == n
        })
        .await?;

    fleet.with(|board| board.expect_replacement());
    let stretch = Stretch::begin(&operator)?;
    cluster.put_secret(SECRET, "#!/bin/sh\necho 2\n").await?;
    fleet
        .until("every Proxy is replaced", 10 * LIMIT_PER_TENTH, |board| {
            board.n_replaced() == n && board.n_serving() == n
        })
        .await?;
    let spent = stretch.end(&operator)?;
    report.figure("rotation", n, "seconds", spent.seconds);
    spent.report(report, "rotation", n);
    // H-18: a tenth of the group, rounded down, and one at least.
    let budget = (n / 10).max(1) as f64;
    let peak = fleet.with(|board| board.peak_out()) as f64;
    report.goal(
        "rotation",
        n,
        "most_out_of_service",
        peak,
        Goal::AtMost(budget),
    );
    operator.stop().await?;
    cluster.shutdown().await;
    Ok(())
}
