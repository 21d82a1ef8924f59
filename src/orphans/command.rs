//! The subcommand `gc`: shows orphans, or deletes those that somebody counted.
//!
//! It runs the same cycles as the operator does, against the same guards. Two of them judge by
//! numbers alone ([`Guard::yields_to_a_count`]); `--delete --count N` overrides these for exactly
//! the orphans of its first look, if there are N.

use std::collections::HashSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use controller::Signals;
use controller::events::{RecorderOptions, recorder};
use controller::informer::client::{self, ClientOptions, ConfigSource};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube_client::Client;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::collector::{Past, Report};
use super::decide::{Life, Orphan, Skip, Verdict};
use super::{Calm, Collector, Fleet, Guard, Metrics, Mode, Notices, Settings};
use crate::cli::{between, cluster_id, providers};
use crate::cluster::{self, Store};
use crate::events::Events;
use crate::provider::config::Providers;

/// How long the API server may take to tell the cluster's id.
const PATIENCE: Duration = Duration::from_secs(30);

/// Flags of `gc`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct Args {
    /// Show the orphans and delete nothing.
    #[arg(long, group = "what")]
    dry_run: bool,

    /// Delete the orphans of the first look, at most 5 in each cycle; needs --count.
    #[arg(long, group = "what", requires = "count")]
    delete: bool,

    /// How many orphans there are, as --dry-run tells; with any other number nothing is deleted.
    #[arg(long, value_name = "N", conflicts_with = "dry_run",
          value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,

    /// Time from one cycle of --delete to the next.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = between("100ms", "24h"))]
    interval: Duration,

    /// Age below which an instance without a Proxy is left alone.
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = between("0s", "24h"))]
    min_age: Duration,

    /// How the answer looks.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,

    /// Kubeconfig of the cluster; wins over the cluster that this process runs in.
    #[arg(long, value_name = "FILE", env = "PXO_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,

    /// Namespace of the operator, where the ConfigMap with the cluster's id lies.
    #[arg(long, value_name = "NAMESPACE", default_value = "proxy-operator")]
    namespace: String,

    /// Marks the instances of this cluster; default is the one that the operator has stored.
    #[arg(long, value_name = "ID", env = "PXO_CLUSTER_ID", value_parser = cluster_id)]
    cluster_id: Option<String>,

    /// YAML file of providers (name: {kind: …}), as the operator has it.
    #[arg(long, value_name = "FILE", env = "PXO_PROVIDERS", value_parser = providers)]
    providers: Option<Providers>,
}

/// How an answer looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// Lines for eyes.
    Table,
    /// One JSON object.
    Json,
}

/// Why `gc` did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Address or credentials of the API server are missing or of no use.
    #[error("no access to a cluster; name one by --kubeconfig or KUBECONFIG")]
    Client(#[from] client::Error),
    /// The cluster did not tell its id.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// Signals cannot be caught.
    #[error("catch SIGINT and SIGTERM")]
    Signals(#[from] controller::signals::Error),
    /// Nobody could hear of what is deleted.
    #[error("set up the recorder of events")]
    Events(#[from] controller::events::Error),
    /// Stdout does not take output.
    #[error("write to stdout")]
    Stdout(#[from] std::io::Error),
    /// What is live is not known for sure.
    #[error("nothing is deleted: {0}")]
    Guarded(Guard),
    /// The number given is not that of the orphans.
    #[error(
        "there are {found} orphans, not {asked}: nothing is deleted; look at them with `gc \
         --dry-run` and give the number that it tells"
    )]
    Count {
        /// How many there are.
        found: usize,
        /// The number given.
        asked: u32,
    },
    /// Some orphans were not deleted, and waiting does not help.
    #[error("{} of them are left: {}", .0.len(), .0.join("; "))]
    Left(Vec<String>),
    /// A signal came first.
    #[error("interrupted; what was deleted stays deleted")]
    Interrupted,
}

/// Runs the subcommand until it is done or SIGINT or SIGTERM arrives.
///
/// # Errors
///
/// [`Error`]; what was deleted before stays deleted, and was told.
pub async fn run(args: Args) -> Result<(), Error> {
    let signals = Signals::install()?;
    let stop = signals.stop();
    let source = ConfigSource {
        kubeconfig: args.kubeconfig.clone(),
        context: None,
    };
    let config = client::load_config(&source).await?;
    let mut options = ClientOptions::default();
    crate::USER_AGENT.clone_into(&mut options.user_agent);
    let client = client::connect(config, options)?;
    let Some((cluster_id, store)) = identity(&args, &client, &stop).await? else {
        return Err(Error::Interrupted);
    };
    let (recorder, writer) = recorder(
        client.clone(),
        RecorderOptions::new("crawl.proxyoperator.dev/gc"),
    )?;
    let collector = Collector {
        settings: Settings {
            mode: if args.delete {
                Mode::Delete
            } else {
                Mode::DryRun
            },
            interval: args.interval,
            min_age: args.min_age,
            // Each read that fails ends the command.
            calm: Duration::ZERO,
        },
        providers: args
            .providers
            .clone()
            .unwrap_or_default()
            .build(&client, None, &[]),
        cluster_id,
        fleet: Fleet::new(client, Vec::new()),
        calm: Calm::new(),
        synced: Box::new(|| true),
        leads: Arc::new(|| true),
        // The operator finds them itself.
        hand_over: Box::new(|_, _, _| {}),
        notices: Notices {
            // A look changes nothing, so it tells nobody.
            events: args.delete.then(|| Arc::new(Events::new(recorder))),
            about: store.reference(),
        },
        store,
        metrics: Metrics::default(),
        clock: Timestamp::now,
    };
    let done = CancellationToken::new();
    let work = async {
        let outcome = match args.count.filter(|_| args.delete) {
            Some(count) => delete(&collector, count, args.output, &stop).await,
            None => show(&collector, args.output, &stop).await,
        };
        done.cancel();
        outcome
    };
    let (outcome, written) = tokio::join!(work, writer.run(done.clone()));
    let Ok(()) = written;
    outcome
}

/// Whose instances are looked for, and where that is kept.
async fn identity(
    args: &Args,
    client: &Client,
    stop: &CancellationToken,
) -> Result<Option<(Arc<str>, Store)>, Error> {
    let store = Store::new(client.clone(), &args.namespace);
    let id = match &args.cluster_id {
        Some(id) => Some(Arc::from(id.as_str())),
        // What cannot be read now is a guard's business in each cycle.
        None => match store.read().await.ok().flatten() {
            Some(stored) => Some(Arc::from(stored)),
            None => cluster::id(client, PATIENCE, stop).await?,
        },
    };
    Ok(id.map(|id| (id, store)))
}

async fn show(
    collector: &Collector,
    output: Output,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let report = look(collector, None, &mut Past::default(), stop).await?;
    let text = match output {
        Output::Json => json_text(&as_json(collector, &report)),
        Output::Table => as_table(&report),
    };
    print(&text)?;
    match report.decision.guard {
        Some(guard) if !guard.yields_to_a_count() => Err(Error::Guarded(guard)),
        _ => Ok(()),
    }
}

async fn delete(
    collector: &Collector,
    count: u32,
    output: Output,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let mut past = Past::default();
    let first = look(collector, Some(&HashSet::new()), &mut past, stop).await?;
    if let Some(guard) = first.decision.guard {
        return Err(Error::Guarded(guard));
    }
    let candidates = || {
        first
            .decision
            .orphans
            .iter()
            .filter(|orphan| orphan.may_go())
    };
    let found = candidates().count();
    if found != usize::try_from(count).unwrap_or(usize::MAX) {
        return Err(Error::Count {
            found,
            asked: count,
        });
    }
    let approved: HashSet<Life> = candidates().map(|orphan| orphan.sighting.life()).collect();
    let mut deleted = Vec::new();
    let outcome = loop {
        let wait = tokio::time::sleep(collector.settings.interval);
        if stop.run_until_cancelled(wait).await.is_none() {
            break Err(Error::Interrupted);
        }
        let report = match look(collector, Some(&approved), &mut past, stop).await {
            Ok(report) => report,
            Err(error) => break Err(error),
        };
        for sighting in &report.outcome.deleted {
            let id = sighting.instance.id.to_string();
            deleted.push(id);
            if output == Output::Table {
                let line = format!(
                    "deleted {} ({} of {count})\n",
                    sighting.instance.id,
                    deleted.len()
                );
                print(&line)?;
            }
        }
        if let Some(guard) = report.decision.guard.clone() {
            break Err(Error::Guarded(guard));
        }
        match rest(&report, &approved) {
            Rest::None => break Ok(()),
            Rest::Waits => {}
            Rest::Stuck(left) => break Err(Error::Left(left)),
        }
    };
    if output == Output::Json {
        let error = outcome.as_ref().err().map(ToString::to_string);
        print(&json_text(&json!({ "deleted": deleted, "error": error })))?;
    }
    outcome
}

/// What is left of the orphans that somebody counted.
enum Rest {
    None,
    /// The next cycles see to it.
    Waits,
    /// Each with what keeps it.
    Stuck(Vec<String>),
}

fn rest(report: &Report, approved: &HashSet<Life>) -> Rest {
    let mut left = Vec::new();
    for orphan in &report.decision.orphans {
        match orphan.verdict {
            Verdict::Keep(skip) if approved.contains(&orphan.sighting.life()) => {
                left.push((orphan, skip));
            }
            _ => {}
        }
    }
    if left.is_empty() && report.unknown.is_empty() {
        return Rest::None;
    }
    if left.iter().any(|(_, skip)| skip.is_a_wait()) {
        return Rest::Waits;
    }
    let words = |(orphan, skip): &(&Orphan, Skip)| {
        format!("{} ({})", orphan.sighting.instance.id, skip.as_str())
    };
    let silent = report
        .unknown
        .iter()
        .map(|scope| format!("{scope} does not answer"));
    let refusals = report.outcome.refusals.iter().cloned();
    Rest::Stuck(
        left.iter()
            .map(words)
            .chain(refusals)
            .chain(silent)
            .collect(),
    )
}

async fn look(
    collector: &Collector,
    approved: Option<&HashSet<Life>>,
    past: &mut Past,
    stop: &CancellationToken,
) -> Result<Report, Error> {
    let report = collector.cycle(past, approved, stop).await;
    report.ok_or(Error::Interrupted)
}

/// What keeps an orphan, apart from this look being the first one and deleting nothing.
fn held(orphan: &Orphan) -> Option<&'static str> {
    match orphan.verdict {
        Verdict::Keep(skip @ (Skip::Paused | Skip::Young | Skip::Nameless)) => Some(skip.as_str()),
        _ => None,
    }
}

fn as_json(collector: &Collector, report: &Report) -> Value {
    let decision = &report.decision;
    let orphans: Vec<_> = decision
        .orphans
        .iter()
        .map(|orphan| {
            let sighting = &orphan.sighting;
            json!({
                "provider": &*sighting.provider,
                "instance": sighting.instance.id.as_str(),
                "incarnation": sighting.instance.incarnation.as_str(),
                "zone": sighting.instance.zone,
                "namespace": sighting.owner.namespace,
                "proxy": sighting.owner.proxy,
                "uid": sighting.owner.uid,
                "created": sighting.instance.created.map(|at| at.to_string()),
                "ageSeconds": orphan.age.map(|age| age.as_secs()),
                "why": orphan.why.as_str(),
                "held": held(orphan),
            })
        })
        .collect();
    json!({
        "clusterId": &*collector.cluster_id,
        "at": report.now.to_string(),
        "instances": decision.listed,
        "deleting": decision.deleting,
        "unknown": report.unknown,
        "unclaimed": decision.unclaimed.len(),
        "guard": decision.guard.as_ref().map(|guard| json!({
            "cause": guard.cause(), "message": guard.to_string(),
        })),
        "orphans": orphans,
    })
}

fn json_text(value: &Value) -> String {
    format!("{value:#}\n")
}

fn as_table(report: &Report) -> String {
    let decision = &report.decision;
    let mut rows = vec![["PROVIDER", "INSTANCE", "PROXY", "AGE", "WHY", "HELD"].map(str::to_owned)];
    for orphan in &decision.orphans {
        let sighting = &orphan.sighting;
        rows.push([
            sighting.provider.to_string(),
            sighting.instance.id.to_string(),
            format!("{}/{}", sighting.owner.namespace, sighting.owner.proxy),
            orphan.age.map_or_else(|| "?".to_owned(), shown_age),
            orphan.why.as_str().to_owned(),
            held(orphan).unwrap_or("-").to_owned(),
        ]);
    }
    let mut text = String::new();
    if !decision.orphans.is_empty() {
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<_> = (0..rows[0].len()).map(|n| width(n).unwrap_or(0)).collect();
        for row in &rows {
            let cells = row.iter().zip(&widths);
            let line: String = cells
                .map(|(cell, width)| format!("{cell:width$}  "))
                .collect();
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    let (orphans, listed) = (decision.orphans.len(), decision.listed);
    text.push_str(&format!(
        "orphans: {orphans} of {listed} instances; nothing was deleted\n"
    ));
    if let Some(guard) = &decision.guard {
        text.push_str(&format!("the operator would delete nothing: {guard}\n"));
    }
    for silent in &report.unknown {
        text.push_str(&format!("unknown: {silent}\n"));
    }
    text
}

fn shown_age(age: Duration) -> String {
    let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
    format!("{:#}", SignedDuration::from_secs(seconds))
}

fn print(text: &str) -> Result<(), Error> {
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}
