//! A controller against the load server: `benches/peers/reconcile/SCENARIOS.md` says what it does.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use controller::informer::client;
use controller::{
    Action, Context, Controller, ControllerOptions, Informer, InformerOptions, Lister, Manager,
    ObjectKey, ReconcileError, Reconciler,
};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::measure::{Baseline, End, Series, number, quantiles};
use crate::proxy::Proxy;
use crate::replayd::{FIRST_VERSION, Replayd, SENT_AT, STRIDE, unix_nanos};
use crate::{Args, Error};

/// How long a phase may go without any reconcile before it counts as stuck.
const STUCK: Duration = Duration::from_secs(20);

/// Runs the scenario and prints its figures.
///
/// Options: `url` of the load server, `n`, `mode` (`list` or `watchlist`), `concurrency`, `events`,
/// `paced-events`, `rate`; `threads` of the runtime, by default as many as tokio takes.
///
/// # Errors
/// [`Error::Unsupported`] for a mode or a concurrency that there is no counterpart for,
/// [`Error::Usage`] if an option is not understood, [`Error::Failed`] if the server does not answer,
/// or if a change was lost: an object was not reconciled at its last version.
pub fn run(args: &Args) -> Result<(), Error> {
    let plan = Plan::of(args)?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    match args.get("threads", 0)? {
        0 => {}
        threads => drop(runtime.worker_threads(threads)),
    }
    let runtime = runtime.enable_all().build();
    let runtime = runtime.map_err(|error| Error::Failed(format!("tokio's runtime: {error}")))?;
    let result = runtime.block_on(measure(&plan));
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

struct Plan {
    server: Replayd,
    url: String,
    n: usize,
    watch_list: bool,
    workers: usize,
    events: i64,
    paced: i64,
    rate: f64,
    series: Series,
}

impl Plan {
    fn of(args: &Args) -> Result<Self, Error> {
        let url: String = args.get("url", String::new())?;
        let mode: String = args.get("mode", "list".to_owned())?;
        let n = args.get("n", 10_000)?;
        let workers = args.get("concurrency", 1)?;
        let watch_list = match mode.as_str() {
            "list" => false,
            "watchlist" => true,
            other => return Err(Error::Unsupported(format!("mode {other}"))),
        };
        if workers == 0 {
            return Err(Error::Unsupported(
                "run without a number of workers".to_owned(),
            ));
        }
        if n == 0 {
            return Err(Error::Usage("--n 0 leaves nothing to reconcile".to_owned()));
        }
        let Value::Object(params) =
            json!({"resource": "proxies", "n": n, "mode": mode, "concurrency": workers})
        else {
            unreachable!("written as an object")
        };
        Ok(Self {
            server: Replayd::at(&url)?,
            url,
            n,
            watch_list,
            workers,
            events: args.get("events", 200_000)?,
            paced: args.get("paced-events", 20_000)?,
            rate: args.get("rate", 2000.0)?,
            series: Series {
                peer: args.get("peer", "proxy-operator".to_owned())?,
                bench: "reconcile".to_owned(),
                params,
            },
        })
    }

    fn series(&self, name: &str, value: Value) -> Series {
        let mut params = self.series.params.clone();
        params.insert(name.to_owned(), value);
        Series {
            peer: self.series.peer.clone(),
            bench: self.series.bench.clone(),
            params,
        }
    }
}

async fn measure(plan: &Plan) -> Result<(), Error> {
    plan.server.reset()?;
    if plan.events > 0 {
        plan.server.start(plan.events, 0.0)?;
    }
    let first = Arc::new(Phase::new(plan.n, 0..plan.events, true));
    let phase = Arc::new(RwLock::new(Arc::clone(&first)));

    let server_before = plan.server.cpu()?;
    let baseline = Baseline::take();
    let config = plan
        .url
        .parse()
        .map_err(|error| Error::Usage(format!("--url {}: {error}", plan.url)))?;
    let client = client::connect(
        kube_client::Config::new(config),
        client::ClientOptions::default(),
    )
    .map_err(failed)?;
    let options = InformerOptions {
        watch_list: plan.watch_list,
        ..InformerOptions::default()
    };
    let proxies: Informer<Proxy> = Informer::new(client, options).map_err(failed)?;
    let look = Look {
        proxies: proxies.lister(),
        phase: Arc::clone(&phase),
    };
    let controller = Controller::builder("proxy", look)
        .for_object(&proxies)
        .options(ControllerOptions {
            workers: plan.workers,
            ..ControllerOptions::default()
        })
        .build()
        .map_err(failed)?;
    let manager = Manager::default()
        .add_informer(&proxies)
        .add_controller(controller);
    let stop = CancellationToken::new();
    let mut running = JoinSet::new();
    running.spawn(manager.run(stop.clone()));

    let end = first.end(&mut running, &baseline).await?;
    report_throughput(plan, &first, &end, plan.server.cpu()? - server_before);

    if plan.paced > 0 {
        let events = plan.events..plan.events + plan.paced;
        let second = Arc::new(Phase::new(plan.n, events, false));
        *phase.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&second);
        let baseline = Baseline::take();
        plan.server.start(plan.paced, plan.rate)?;
        let end = second.end(&mut running, &baseline).await?;
        report_latency(plan, &second, &end);
    }
    stop.cancel();
    while let Some(ended) = running.join_next().await {
        ended.map_err(failed)?.map_err(failed)?;
    }
    Ok(())
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(error.to_string())
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
fn report_throughput(plan: &Plan, phase: &Phase, end: &End, server_cpu: f64) {
    let series = plan.series("events", json!(plan.events));
    let reconciles = phase.reconciles.load(Ordering::Relaxed) as f64;
    let changes = plan.n as f64 + plan.events as f64;
    series.emit(end, "reconciles_per_s", reconciles / end.seconds);
    series.emit(end, "changes_per_s", changes / end.seconds);
    series.emit(end, "reconciles", reconciles);
    series.emit(end, "wall_s", end.seconds);
    series.emit(end, "cpu_us_per_change", end.cpu * 1e6 / changes);
    series.emit(end, "peak_rss_bytes", end.peak);
    series.emit(end, "server_cpu_s", server_cpu);
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
fn report_latency(plan: &Plan, phase: &Phase, end: &End) {
    let series = plan.series("rate", number(plan.rate));
    let [p50, p99, top, _] = quantiles(phase.take_latencies());
    series.emit(end, "latency_p50_us", p50 / 1e3);
    series.emit(end, "latency_p99_us", p99 / 1e3);
    series.emit(end, "latency_max_us", top / 1e3);
    series.emit(end, "paced_cpu_s", end.cpu);
    let reconciles = phase.reconciles.load(Ordering::Relaxed) as f64;
    series.emit(end, "paced_reconciles", reconciles);
}

/// Knows, from the definition of the event stream, which version of every object is its last one,
/// and notices when each has been reconciled at it: then every change is reflected in a reconcile
/// that started after it.
struct Phase {
    /// The version each object has yet to be seen at; 0 if there is none.
    last: Vec<AtomicI64>,
    /// The newest version each object was reconciled at.
    seen: Vec<AtomicI64>,
    left: AtomicI64,
    reconciles: AtomicU64,
    went_back: AtomicBool,
    reached: Notify,
    /// Versions above this one carry a time stamp, where latencies are asked for.
    stamped_above: Option<i64>,
    latencies: Mutex<Vec<i64>>,
}

impl Phase {
    /// Covers `events` of `n` objects; with `initial` their first state too, and then without
    /// latencies.
    fn new(n: usize, events: std::ops::Range<i64>, initial: bool) -> Self {
        let objects = i64::try_from(n).expect("far fewer objects");
        let stamped = if initial {
            0
        } else {
            events.end - events.start
        };
        let stamped_above = (!initial).then_some(FIRST_VERSION + objects + events.start);
        let mut last = vec![0; n];
        if initial {
            for (last, version) in last.iter_mut().zip(FIRST_VERSION + 1..) {
                *last = version;
            }
        }
        for event in events {
            let object = usize::try_from(event * STRIDE % objects).expect("below n");
            last[object] = FIRST_VERSION + objects + event + 1;
        }
        let left = last.iter().filter(|version| **version != 0).count();
        Self {
            last: last.into_iter().map(AtomicI64::new).collect(),
            seen: (0..n).map(|_| AtomicI64::new(0)).collect(),
            left: AtomicI64::new(i64::try_from(left).expect("no more than n")),
            reconciles: AtomicU64::new(0),
            went_back: AtomicBool::new(false),
            reached: Notify::new(),
            stamped_above,
            latencies: Mutex::new(Vec::with_capacity(usize::try_from(stamped).unwrap_or(0))),
        }
    }

    fn saw(&self, now: i64, proxy: &Proxy) -> Result<(), ReconcileError> {
        self.reconciles.fetch_add(1, Ordering::Relaxed);
        let meta = &proxy.metadata;
        let name = meta.name.as_deref().unwrap_or_default();
        let object: usize = name[name.len().saturating_sub(7)..].parse()?;
        let version: i64 = meta
            .resource_version
            .as_deref()
            .unwrap_or_default()
            .parse()?;
        if self.stamped_above.is_some_and(|above| version > above) {
            let sent_at = meta.annotations.as_ref().and_then(|all| all.get(SENT_AT));
            let sent_at: i64 = sent_at.map_or("", String::as_str).parse()?;
            let mut latencies = self
                .latencies
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            latencies.push(now - sent_at);
        }
        if self.seen[object].fetch_max(version, Ordering::Relaxed) > version {
            self.went_back.store(true, Ordering::Relaxed);
        }
        let exchanged =
            self.last[object].compare_exchange(version, 0, Ordering::Relaxed, Ordering::Relaxed);
        if exchanged.is_ok() && self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.reached.notify_one();
        }
        Ok(())
    }

    /// Waits for the end of the phase: every object was reconciled at its last version.
    async fn end(
        &self,
        running: &mut JoinSet<Result<(), controller::manager::Error>>,
        baseline: &Baseline,
    ) -> Result<End, Error> {
        let mut before = 0;
        loop {
            tokio::select! {
                () = self.reached.notified() => break,
                ended = running.join_next() => {
                    return Err(Error::Failed(format!("the manager ended early: {ended:?}")));
                }
                () = tokio::time::sleep(STUCK) => {}
            }
            let now = self.reconciles.load(Ordering::Relaxed);
            if now == before {
                let left = self.left.load(Ordering::Relaxed);
                return Err(Error::Failed(format!(
                    "lost: {left} objects were never reconciled at their last version"
                )));
            }
            before = now;
        }
        let end = baseline.end();
        if self.went_back.load(Ordering::Relaxed) {
            return Err(Error::Failed(
                "a reconcile saw an older version than one before it".to_owned(),
            ));
        }
        Ok(end)
    }

    fn take_latencies(&self) -> Vec<i64> {
        std::mem::take(
            &mut *self
                .latencies
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }
}

/// A reconciler that only looks at its object.
struct Look {
    proxies: Lister<Proxy>,
    phase: Arc<RwLock<Arc<Phase>>>,
}

impl Reconciler for Look {
    async fn reconcile(&self, key: &ObjectKey, _: &Context) -> Result<Action, ReconcileError> {
        let now = unix_nanos();
        let Some(proxy) = self.proxies.get(key) else {
            return Ok(Action::Done);
        };
        let phase = Arc::clone(&self.phase.read().unwrap_or_else(PoisonError::into_inner));
        phase.saw(now, &proxy)?;
        Ok(Action::Done)
    }
}
