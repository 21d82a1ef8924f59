//! An informer against the load server: `benches/peers/informer/SCENARIOS.md` says what it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use informer::client::{self, ClientOptions};
use informer::source::{
    KubeSource, ListPart, ListRequest, ListVersion, ListWatch as _, ReadOptions, Scope,
};
use informer::{Cut, Event, Informer, InformerOptions, MetadataOnly};
use k8s_openapi::api::core::v1::Pod;
use kube_core::discovery::ApiResource;
use kube_core::{DynamicObject, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::measure::{Baseline, End, Series, number, quantiles, resident, settle};
use crate::memory;
use crate::replayd::{Replayd, SENT_AT, unix_nanos};
use crate::{Args, Error};

/// How long a phase may go without any event before it counts as stuck.
const STUCK: Duration = Duration::from_secs(20);

struct Plan {
    server: Replayd,
    url: String,
    n: usize,
    watch_list: bool,
    cut: Cut,
    handlers: usize,
    events: i64,
    paced: i64,
    rate: f64,
    series: Series,
}

/// Runs the scenario `informer`, or with `handlers` the scenario `handlers`, and prints its figures.
///
/// Options: `url` of the load server, `n`, `mode` (`list` or `watchlist`), `decode` (`typed-json`,
/// `metadata` or `dynamic`), `events`, `paced-events`, `rate`, `handlers`, and `series`:
/// `informer`, `informer-whole` (with `managedFields` kept), or their limits `limit` and
/// `limit-whole`.
///
/// # Errors
/// [`Error::Unsupported`] for what there is no counterpart for, [`Error::Usage`] if an option is
/// not understood, [`Error::Failed`] if the server does not answer or objects or events are lost.
pub fn run(bench: &str, args: &Args) -> Result<(), Error> {
    let series: String = args.get("series", "informer".to_owned())?;
    let (limit, whole) = match series.as_str() {
        "informer" => (false, false),
        "informer-whole" => (false, true),
        "limit" => (true, false),
        "limit-whole" => (true, true),
        _ => return Err(Error::Unsupported(format!("series {series}"))),
    };
    let decode: String = args.get("decode", "typed-json".to_owned())?;
    let plan = Plan::of(bench, args, &decode, whole, series)?;
    let pods = ApiResource::erase::<Pod>(&());
    match (decode.as_str(), limit) {
        ("typed-json", false) => measure::<Pod>(&plan, &()),
        ("metadata", false) => measure::<MetadataOnly<Pod>>(&plan, &()),
        ("dynamic", false) => measure::<DynamicObject>(&plan, &pods),
        ("typed-json", true) => measure_limit::<Pod>(&plan, &()),
        ("metadata", true) => measure_limit::<MetadataOnly<Pod>>(&plan, &()),
        ("dynamic", true) => measure_limit::<DynamicObject>(&plan, &pods),
        _ => Err(Error::Unsupported(format!("decoding {decode}"))),
    }
}

impl Plan {
    fn of(
        bench: &str,
        args: &Args,
        decode: &str,
        whole: bool,
        peer: String,
    ) -> Result<Self, Error> {
        let url: String = args.get("url", String::new())?;
        let resource: String = args.get("resource", "pods".to_owned())?;
        if resource != "pods" {
            return Err(Error::Unsupported(format!("resource {resource}")));
        }
        let mode: String = args.get("mode", "list".to_owned())?;
        let watch_list = match mode.as_str() {
            "list" => false,
            "watchlist" => true,
            other => return Err(Error::Unsupported(format!("mode {other}"))),
        };
        let n = args.get("n", 10_000)?;
        let handlers = args.get("handlers", 1)?;
        let mut params = json!({"resource": resource, "n": n, "decode": decode});
        if bench == "handlers" {
            params["handlers"] = json!(handlers);
        } else {
            params["mode"] = json!(mode);
        }
        let Value::Object(params) = params else {
            unreachable!("written as an object")
        };
        Ok(Self {
            server: Replayd::at(&url)?,
            url,
            n,
            watch_list,
            cut: Cut {
                managed_fields: !whole,
                ..Cut::default()
            },
            handlers,
            events: args.get("events", 200_000)?,
            paced: args.get("paced-events", 10_000)?,
            rate: args.get("rate", 2000.0)?,
            series: Series {
                peer: args.get("peer", peer)?,
                bench: bench.to_owned(),
                params,
            },
        })
    }

    fn client(&self) -> Result<kube_client::Client, Error> {
        let uri = self
            .url
            .parse()
            .map_err(|error| Error::Usage(format!("--url {}: {error}", self.url)))?;
        client::connect(kube_client::Config::new(uri), ClientOptions::default()).map_err(failed)
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(error.to_string())
}

/// What the handlers count.
#[derive(Default)]
struct Tally {
    updates: AtomicI64,
    want: AtomicI64,
    handlers_left: AtomicUsize,
    reached: Notify,
    /// Latencies, while they are asked for.
    latencies: Mutex<Option<Vec<i64>>>,
}

/// The part of the tally that belongs to one handler.
struct Count(AtomicI64, Arc<Tally>);

impl Tally {
    fn expect(&self, events: i64, handlers: usize, timed: bool) {
        let room = usize::try_from(events).unwrap_or(0);
        *self.latencies.lock() = timed.then(|| Vec::with_capacity(room));
        self.handlers_left.store(handlers, Ordering::Relaxed);
        self.updates.store(0, Ordering::Relaxed);
        self.want.fetch_add(events, Ordering::Release);
    }

    async fn wait(&self, running: &mut Running) -> Result<(), Error> {
        let mut before = -1;
        loop {
            tokio::select! {
                () = self.reached.notified() => return Ok(()),
                ended = running.join_next() => {
                    return Err(Error::Failed(format!("the informer ended early: {ended:?}")));
                }
                () = tokio::time::sleep(STUCK) => {}
            }
            let now = self.updates.load(Ordering::Relaxed);
            if now == before {
                return Err(Error::Failed(format!("stuck after {now} events")));
            }
            before = now;
        }
    }
}

impl Count {
    fn on_event<K: Resource>(&self, event: &Event<K>) {
        let Event::Updated { new, .. } = event else {
            return;
        };
        let tally = &self.1;
        if let Some(latencies) = &mut *tally.latencies.lock() {
            let now = unix_nanos();
            let sent = new.meta().annotations.as_ref().and_then(|a| a.get(SENT_AT));
            let sent: i64 = sent.and_then(|text| text.parse().ok()).unwrap_or(0);
            latencies.push(now - sent);
        }
        let seen = self.0.load(Ordering::Relaxed) + 1;
        self.0.store(seen, Ordering::Relaxed);
        tally.updates.store(seen, Ordering::Relaxed);
        if seen == tally.want.load(Ordering::Acquire)
            && tally.handlers_left.fetch_sub(1, Ordering::AcqRel) == 1
        {
            tally.reached.notify_one();
        }
    }
}

type Running = JoinSet<Result<(), informer::Error>>;

fn measure<K>(plan: &Plan, kind: &K::DynamicType) -> Result<(), Error>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    let result = runtime.block_on(measure_informer::<K>(plan, kind));
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn measure_informer<K>(plan: &Plan, kind: &K::DynamicType) -> Result<(), Error>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    plan.server.reset()?;
    let options = InformerOptions {
        watch_list: plan.watch_list,
        cut: plan.cut,
        ..InformerOptions::default()
    };
    let informer: Informer<K> =
        Informer::for_kind(plan.client()?, kind, options).map_err(failed)?;
    let tally = Arc::new(Tally::default());
    let mut registrations = Vec::new();
    for number in 0..plan.handlers {
        let count = Count(AtomicI64::new(0), Arc::clone(&tally));
        let handler = move |event: &Event<K>| count.on_event(event);
        let registration = informer.add_handler(format!("count-{number}"), handler);
        registrations.push(registration.map_err(failed)?);
    }

    let server_before = plan.server.cpu()?;
    let baseline = Baseline::take();
    let stop = CancellationToken::new();
    let mut running = Running::new();
    let runner = informer.clone();
    let stopped = stop.clone();
    running.spawn(async move { runner.run(stopped).await });
    for registration in &registrations {
        tokio::select! {
            () = registration.synced() => {}
            ended = running.join_next() => {
                return Err(Error::Failed(format!("the informer ended early: {ended:?}")));
            }
        }
    }
    let end = baseline.end();
    let synced = resident();
    let objects = informer.status().objects;
    if objects != plan.n {
        return Err(Error::Failed(format!("synced with {objects} objects")));
    }
    settle();
    if plan.series.bench == "informer" {
        let server = plan.server.cpu()? - server_before;
        emit_sync(plan, &end, server, synced, resident());
    }
    if plan.events > 0 {
        tally.expect(plan.events, plan.handlers, false);
        let server_before = plan.server.cpu()?;
        let baseline = Baseline::take();
        plan.server.start(plan.events, 0.0)?;
        tally.wait(&mut running).await?;
        let end = baseline.end();
        emit_events(plan, &end, plan.server.cpu()? - server_before);
    }
    if plan.paced > 0 {
        tally.expect(plan.paced, plan.handlers, true);
        let baseline = Baseline::take();
        plan.server.start(plan.paced, plan.rate)?;
        tally.wait(&mut running).await?;
        let end = baseline.end();
        let latencies = tally.latencies.lock().take().unwrap_or_default();
        emit_latency(plan, &end, latencies);
    }
    stop.cancel();
    while let Some(ended) = running.join_next().await {
        ended.map_err(failed)?.map_err(failed)?;
    }
    Ok(())
}

fn emit_sync(plan: &Plan, end: &End, server_cpu: f64, synced: f64, settled: f64) {
    let series = &plan.series;
    series.emit(end, "sync_s", end.seconds);
    series.emit(end, "sync_cpu_s", end.cpu);
    series.emit(end, "sync_server_cpu_s", server_cpu);
    series.emit(end, "sync_peak_rss_bytes", end.peak);
    series.emit(end, "synced_rss_bytes", synced);
    series.emit(end, "settled_rss_bytes", settled);
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
fn emit_events(plan: &Plan, end: &End, server_cpu: f64) {
    let series = &plan.series;
    let events = plan.events as f64;
    series.emit(end, "events_per_s", events / end.seconds);
    series.emit(end, "event_cpu_us", end.cpu * 1e6 / events);
    series.emit(end, "event_server_cpu_us", server_cpu * 1e6 / events);
    series.emit(end, "event_peak_rss_bytes", end.peak);
}

fn emit_latency(plan: &Plan, end: &End, latencies: Vec<i64>) {
    let mut params = plan.series.params.clone();
    params.insert("rate".to_owned(), number(plan.rate));
    let series = Series {
        peer: plan.series.peer.clone(),
        bench: plan.series.bench.clone(),
        params,
    };
    let [p50, p99, top, _] = quantiles(latencies);
    series.emit(end, "latency_p50_us", p50 / 1e3);
    series.emit(end, "latency_p99_us", p99 / 1e3);
    series.emit(end, "latency_max_us", top / 1e3);
    series.emit(end, "paced_cpu_s", end.cpu);
}

/// The limits: reading the same list from memory with the same decoder on one core, and the memory
/// of the objects alone.
fn measure_limit<K>(plan: &Plan, kind: &K::DynamicType) -> Result<(), Error>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    if plan.watch_list || plan.series.bench != "informer" {
        return Err(Error::Unsupported("limit of this".to_owned()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        let answer = memory::fetch(plan.client()?, &K::url_path(kind, None), K::metadata_api())
            .await
            .map_err(failed)?;
        let source = KubeSource::<K>::new(
            memory::client(answer),
            kind,
            Scope::default(),
            ReadOptions {
                cut: plan.cut,
                ..ReadOptions::default()
            },
        );
        let baseline = Baseline::take();
        let mut list = source.list(ListRequest {
            version: ListVersion::Any,
            limit: None,
            continue_token: None,
        });
        let mut objects: Vec<Box<K>> = Vec::new();
        while let Some(part) = list.next().await {
            if let ListPart::Items(items) = part.map_err(failed)? {
                for item in items {
                    objects.push(Box::new(item.map_err(failed)?));
                }
            }
        }
        let end = baseline.end();
        if objects.len() != plan.n {
            return Err(Error::Failed(format!("read {} objects", objects.len())));
        }
        drop((list, source));
        settle();
        let settled = resident();
        plan.series.emit(&end, "sync_s", end.seconds);
        plan.series.emit(&end, "sync_cpu_s", end.cpu);
        plan.series.emit(&end, "settled_rss_bytes", settled);
        drop(objects);
        Ok(())
    })
}
