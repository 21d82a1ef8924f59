//! The subcommand `gc`: shows orphans, or deletes those that somebody counted.
//!
//! It runs the same cycles as the operator does, against the same guards. Two of them judge by
//! numbers alone ([`Guard::yields_to_a_count`]); `--delete --count N` overrides these for exactly
//! the orphans of its first look, if N of them may go.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::Write;
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
use crate::cli::{between, cluster_id, namespace, providers};
use crate::cluster::{self, Store};
use crate::events::Events;
use crate::provider::config::Providers;

/// How long the API server may take to tell the cluster's id.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where an answer goes.
type Out<'a> = dyn Write + Send + 'a;

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

    /// How many orphans may go, as --dry-run tells; with any other number nothing is deleted.
    #[arg(long, value_name = "N", conflicts_with = "dry_run",
          value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,

    /// Time from one cycle of --delete to the next.
    #[arg(long, value_name = "TIME", env = "PXO_GC_INTERVAL", default_value = "10m",
          value_parser = between("100ms", "24h"))]
    interval: Duration,

    /// Age below which an instance without a Proxy is left alone.
    #[arg(long, value_name = "TIME", env = "PXO_GC_MIN_AGE", default_value = "15m",
          value_parser = between("0s", "24h"))]
    min_age: Duration,

    /// How the answer looks.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,

    /// Kubeconfig of the cluster; wins over the cluster that this process runs in.
    #[arg(long, value_name = "FILE", env = "PXO_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,

    /// Namespace of the operator, where the ConfigMap with the cluster's id lies.
    #[arg(
        long,
        value_name = "NAMESPACE",
        env = "PXO_LEADER_ELECT_NAMESPACE",
        default_value = "proxy-operator"
    )]
    namespace: String,

    /// Look at the instances of Proxies of these namespaces alone, divided by commas, as an operator
    /// of chosen namespaces does; default is all namespaces.
    #[arg(long, value_name = "NAMESPACES", env = "PXO_NAMESPACES", value_delimiter = ',',
          value_parser = namespace)]
    namespaces: Vec<String>,

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
    #[error("nothing is deleted: {}", told(.0))]
    Guarded(Guard),
    /// The number given is not that of the orphans.
    #[error("{}", miscounted(*found, *held, *asked))]
    Count {
        /// How many may go.
        found: usize,
        /// How many stay whatever the number: paused, or of no Proxy by name.
        held: usize,
        /// The number given.
        asked: u32,
    },
    /// Some orphans were not deleted, and waiting does not help.
    #[error("{0}")]
    Left(Left),
    /// A signal came first.
    #[error("interrupted; what was deleted stays deleted")]
    Interrupted,
}

/// What is wrong with a number, and how to come by the right one: none means that nothing is to do.
fn miscounted(found: usize, held: usize, asked: u32) -> String {
    let orphans = if found == 1 { "orphan" } else { "orphans" };
    let held = match held {
        0 => String::new(),
        1 => " (and 1 is held)".to_owned(),
        held => format!(" (and {held} are held)"),
    };
    let advice = match found {
        0 => "`gc --dry-run` shows what there is".to_owned(),
        1 => "look at it with `gc --dry-run`, and if it is to go give --count 1".to_owned(),
        found => {
            format!("look at them with `gc --dry-run`, and if they are to go give --count {found}")
        }
    };
    format!("{found} {orphans} may go, not {asked}{held}: nothing is deleted; {advice}")
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
        providers: args.providers.clone().unwrap_or_default().build(
            &client,
            None,
            &args.namespaces,
        ),
        cluster_id,
        fleet: Fleet::new(client, args.namespaces.clone()),
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
        let mut out = std::io::stdout();
        let outcome = match args.count.filter(|_| args.delete) {
            Some(count) => delete(&collector, count, args.output, &mut out, &stop).await,
            None => show(&collector, args.output, &mut out, &stop).await,
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
    out: &mut Out<'_>,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let report = look(collector, None, &mut Past::default(), stop).await?;
    let text = match output {
        Output::Json => json_text(&as_json(collector, &report)),
        Output::Table => as_table(&report),
    };
    out.write_all(text.as_bytes())?;
    match report.decision.guard {
        Some(guard) if !guard.yields_to_a_count() => Err(Error::Guarded(guard)),
        _ => Ok(()),
    }
}

/// Deletes the orphans of its first look, if there are `count`. In JSON it says at its end, and only
/// then, what was deleted and what went wrong.
pub(super) async fn delete(
    collector: &Collector,
    count: u32,
    output: Output,
    out: &mut Out<'_>,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let mut deletion = Deletion {
        collector,
        count,
        output,
        out,
        deleted: Vec::new(),
    };
    let outcome = deletion.run(stop).await;
    if output == Output::Json {
        let error = outcome.as_ref().err().map(ToString::to_string);
        let text = json_text(&json!({ "deleted": deletion.deleted, "error": error }));
        deletion.out.write_all(text.as_bytes())?;
    }
    outcome
}

struct Deletion<'a, 'b> {
    collector: &'a Collector,
    /// How many orphans somebody counted.
    count: u32,
    output: Output,
    out: &'a mut Out<'b>,
    /// Ids of instances, in the order in which they were deleted.
    deleted: Vec<String>,
}

impl Deletion<'_, '_> {
    async fn run(&mut self, stop: &CancellationToken) -> Result<(), Error> {
        let mut past = Past::default();
        let mut counted = Counted::new(self.approve(&mut past, stop).await?);
        loop {
            let wait = tokio::time::sleep(self.collector.settings.interval);
            if stop.run_until_cancelled(wait).await.is_none() {
                return Err(Error::Interrupted);
            }
            let report = look(self.collector, Some(&counted.all), &mut past, stop).await?;
            self.tell(&report)?;
            if let Some(guard) = report.decision.guard {
                return Err(Error::Guarded(guard));
            }
            match counted.rest(&report) {
                Rest::None => return Ok(()),
                Rest::Waits => {}
                Rest::Stuck(left) => return Err(Error::Left(left)),
            }
        }
    }

    /// The orphans that were counted, if the number is that of the first look.
    async fn approve(
        &self,
        past: &mut Past,
        stop: &CancellationToken,
    ) -> Result<HashSet<Life>, Error> {
        let first = look(self.collector, Some(&HashSet::new()), past, stop).await?;
        if let Some(guard) = first.decision.guard {
            return Err(Error::Guarded(guard));
        }
        let orphans = &first.decision.orphans;
        let found = going(orphans).count();
        if found != usize::try_from(self.count).unwrap_or(usize::MAX) {
            return Err(Error::Count {
                found,
                held: orphans.len() - found,
                asked: self.count,
            });
        }
        Ok(going(orphans).map(|one| one.sighting.life()).collect())
    }

    fn tell(&mut self, report: &Report) -> Result<(), Error> {
        for sighting in &report.outcome.deleted {
            let id = &sighting.instance.id;
            self.deleted.push(id.to_string());
            if self.output == Output::Table {
                let (number, count) = (self.deleted.len(), self.count);
                writeln!(self.out, "deleted {id} ({number} of {count})")?;
            }
        }
        Ok(())
    }
}

/// The orphans that a deletion takes: those that --count counts.
fn going(orphans: &[Orphan]) -> impl Iterator<Item = &Orphan> {
    orphans.iter().filter(|orphan| orphan.may_go())
}

/// What is left of the orphans that somebody counted.
#[derive(Debug, PartialEq, Eq)]
enum Rest {
    None,
    /// The next cycles see to it.
    Waits,
    Stuck(Left),
}

/// Orphans that were to go and did not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Those that are there, each with what keeps it.
    kept: Vec<String>,
    /// How many were not seen again while not everything answered.
    unseen: usize,
    /// Where not everything answered.
    silent: Vec<String>,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = if self.kept.len() == 1 { "is" } else { "are" };
        if !self.kept.is_empty() {
            let (number, kept) = (self.kept.len(), self.kept.join("; "));
            write!(f, "{number} of them {verb} left: {kept}")?;
        }
        if self.unseen > 0 {
            let before = if self.kept.is_empty() { "" } else { "; " };
            let (unseen, silent) = (self.unseen, self.silent.join(", "));
            write!(
                f,
                "{before}what became of {unseen} of them is not known, as not all answer: {silent}"
            )?;
        }
        Ok(())
    }
}

/// The orphans that somebody counted, and what became of them.
struct Counted {
    all: HashSet<Life>,
    /// Those that nobody has seen go.
    open: HashSet<Life>,
    /// What providers said of them in their latest turns.
    refusals: HashMap<Life, String>,
}

impl Counted {
    fn new(all: HashSet<Life>) -> Self {
        Self {
            open: all.clone(),
            all,
            refusals: HashMap::new(),
        }
    }

    /// Judges a cycle. Each of them gets its turn, and no cycle is waited for only to ask again
    /// for what a provider refused.
    fn rest(&mut self, report: &Report) -> Rest {
        let refusals = report.outcome.refusals.iter();
        self.refusals
            .extend(refusals.map(|(life, why)| (life.clone(), why.clone())));
        let mut kept = Vec::new();
        let mut waits = false;
        let mut unseen = self.open.clone();
        for orphan in &report.decision.orphans {
            let life = orphan.sighting.life();
            if !self.all.contains(&life) {
                continue;
            }
            unseen.remove(&life);
            match orphan.verdict {
                // By this hand or by another.
                Verdict::Delete | Verdict::Keep(Skip::Going) => drop(self.open.remove(&life)),
                Verdict::Keep(skip) => {
                    waits |= orphan.waits();
                    let why = self.refusals.get(&life).filter(|_| skip == Skip::Refused);
                    let why = why.map_or_else(String::new, |why| format!(": {why}"));
                    let id = &orphan.sighting.instance.id;
                    kept.push(format!("{id} ({}{why})", skip.as_str()));
                }
            }
        }
        if report.unknown.is_empty() {
            // Where all is told, what is not there is gone.
            self.open.retain(|life| !unseen.contains(life));
            unseen.clear();
        }
        if waits {
            Rest::Waits
        } else if kept.is_empty() && unseen.is_empty() {
            Rest::None
        } else {
            Rest::Stuck(Left {
                kept,
                unseen: unseen.len(),
                silent: report.unknown.clone(),
            })
        }
    }
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
            "cause": guard.cause(), "message": told(guard),
        })),
        "orphans": orphans,
        "count": going(&decision.orphans).count(),
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
    let may_go = match (orphans, going(&decision.orphans).count()) {
        (0, _) => String::new(),
        (_, 0) => ", none of which may go".to_owned(),
        (_, number) => format!(", {number} may go: --count {number}"),
    };
    text.push_str(&format!(
        "orphans: {orphans} of {listed} instances{may_go}; nothing was deleted\n"
    ));
    if let Some(guard) = &decision.guard {
        let guard = told(guard);
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

/// The words of a guard, with what this command can do about it.
fn told(guard: &Guard) -> String {
    match guard {
        Guard::ClusterId { stored: None, .. } => format!(
            "{guard}; if the operator is installed in another namespace, name it by --namespace"
        ),
        _ => guard.to_string(),
    }
}

#[cfg(test)]
#[path = "command_tests.rs"]
mod tests;
