//! The work queue's scenarios: `benches/peers/workqueue/SCENARIOS.md` says what they are.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::{Map, Value, json};
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
    task::JoinSet,
};
use workqueue::{
    QueueOptions, WorkQueue,
    limiter::ItemExponential,
    order::{Fifo, Order, Priority},
};

use crate::{
    Args, Error,
    key::{Key, NamespacedName, SplitMix64, keys},
    limit::Limit,
    measure::{Baseline, Series, now, quantiles},
};

/// All scenarios, in the order in which they are run.
pub const SCENARIOS: [&str; 10] = [
    "fill_drain",
    "dedup",
    "pipeline_1x1",
    "pipeline_2x2",
    "pipeline_4x4",
    "pipeline_4x16",
    "retry",
    "delayed",
    "wakeup",
    "wakeup_xthread",
];

/// Runs one scenario and prints its figures.
///
/// Options: `scenario`; `key`, `string` (the default) or `struct`; `scale`, 1 by default; `series`:
/// `workqueue` (the default: one shard, first in first out, no metrics), `workqueue-metrics`,
/// `workqueue-priority`, `workqueue-4-shards`, or `limit`.
///
/// # Errors
/// [`Error::Unsupported`] if there is no such scenario or series, [`Error::Usage`] if an option is
/// not understood.
pub fn run(args: &Args) -> Result<(), Error> {
    match args.get("key", "string".to_owned())?.as_str() {
        "string" => run_with_keys::<Arc<str>>(args),
        "struct" => run_with_keys::<NamespacedName>(args),
        other => Err(Error::Unsupported(format!("key form {other}"))),
    }
}

fn run_with_keys<K: Key>(args: &Args) -> Result<(), Error> {
    let series = args.get("series", "workqueue".to_owned())?;
    let options = || QueueOptions::<K> {
        limiter: Arc::new(ItemExponential::new(
            Duration::from_millis(1),
            Duration::from_secs(1),
        )),
        shared_keys: true,
        ..QueueOptions::default()
    };
    let fifo = |options| WorkQueue::with_order(options, Fifo::default).map_err(|e| refused(&e));
    match series.as_str() {
        "limit" => limit::<K>(&Bench::new::<K>(args, series)?),
        "workqueue" => scenario(&Bench::new::<K>(args, series)?, || fifo(options())),
        "workqueue-metrics" => scenario(&Bench::new::<K>(args, series)?, || {
            fifo(QueueOptions {
                name: "bench".to_owned(),
                ..options()
            })
        }),
        "workqueue-4-shards" => scenario(&Bench::new::<K>(args, series)?, || {
            fifo(QueueOptions {
                shards: 4,
                ..options()
            })
        }),
        "workqueue-priority" => scenario(&Bench::new::<K>(args, series)?, || {
            WorkQueue::with_order(options(), Priority::default).map_err(|e| refused(&e))
        }),
        _ => Err(Error::Unsupported(format!("series {series}"))),
    }
}

fn refused(error: &workqueue::Error) -> Error {
    Error::Usage(error.to_string())
}

struct Bench {
    series: String,
    scenario: String,
    key: &'static str,
    scale: f64,
}

impl Bench {
    fn new<K: Key>(args: &Args, series: String) -> Result<Self, Error> {
        Ok(Self {
            series,
            scenario: args.get("scenario", String::new())?,
            key: K::NAME,
            scale: args.get("scale", 1.0)?,
        })
    }

    /// A size of the scenarios, scaled.
    fn n(&self, full: u32) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a scaled u32 is a whole number"
        )]
        #[expect(clippy::cast_sign_loss, reason = "scales are positive")]
        let n = (f64::from(full) * self.scale) as usize;
        n.max(1)
    }

    fn series(&self, params: Value) -> Series {
        let mut params = match params {
            Value::Object(params) => params,
            _ => Map::new(),
        };
        params.insert("key".to_owned(), self.key.into());
        Series {
            peer: self.series.clone(),
            bench: self.scenario.clone(),
            params,
        }
    }

    /// Producers and workers of a pipeline.
    fn pipeline(&self) -> Option<(usize, usize)> {
        let (producers, workers) = self.scenario.strip_prefix("pipeline_")?.split_once('x')?;
        Some((producers.parse().ok()?, workers.parse().ok()?))
    }

    fn unsupported(&self) -> Error {
        Error::Unsupported(format!(
            "scenario {:?} in series {}",
            self.scenario, self.series
        ))
    }
}

type Make<'a, K, O> = &'a dyn Fn() -> Result<WorkQueue<K, O>, Error>;

fn scenario<K: Key, O: Order<K>>(
    bench: &Bench,
    make: impl Fn() -> Result<WorkQueue<K, O>, Error>,
) -> Result<(), Error> {
    let runtime = Builder::new_multi_thread()
        .enable_time()
        .build()
        .map_err(|error| Error::Usage(format!("no tokio runtime: {error}")))?;
    match bench.scenario.as_str() {
        "fill_drain" => runtime.block_on(fill_drain(bench, &make)),
        "dedup" => dedup(bench, &make),
        "retry" => runtime.block_on(retry(bench, &make)),
        "delayed" => runtime.block_on(delayed(bench, &make)),
        "wakeup" => runtime.block_on(wakeup(bench, &make)),
        "wakeup_xthread" => wakeup_xthread(bench, &runtime, &make),
        _ => match bench.pipeline() {
            Some((producers, workers)) => {
                runtime.block_on(pipeline(bench, producers, workers, &make))
            }
            None => Err(bench.unsupported()),
        },
    }
}

fn emit_fill_drain(bench: &Bench, n: usize, base: &Baseline, added_at: u64) {
    let end = base.end();
    let per_key = |seconds: f64| seconds * 1e9 / n as f64;
    let add = added_at as f64 / 1e9;
    let series = bench.series(json!({ "n": n }));
    series.emit(&end, "ns_per_key", per_key(end.seconds));
    series.emit(&end, "add_ns_per_key", per_key(add));
    series.emit(&end, "drain_ns_per_key", per_key(end.seconds - add));
    series.emit(&end, "rss_bytes_per_key", end.grown / n as f64);
}

async fn fill_drain<K: Key, O: Order<K>>(bench: &Bench, make: Make<'_, K, O>) -> Result<(), Error> {
    let n = bench.n(1_000_000);
    let keys = keys::<K>(n);
    let base = Baseline::take();
    let queue = make()?;
    for key in &keys {
        queue.add(key);
    }
    let added_at = base.nanos();
    for _ in 0..n {
        drop(queue.get().await);
    }
    emit_fill_drain(bench, n, &base, added_at);
    assert!(queue.is_empty(), "the queue is drained");
    Ok(())
}

fn dedup<K: Key, O: Order<K>>(bench: &Bench, make: Make<'_, K, O>) -> Result<(), Error> {
    let (adds, distinct) = (bench.n(10_000_000), 1000);
    let keys = keys::<K>(distinct);
    let base = Baseline::take();
    let queue = make()?;
    for key in keys.iter().cycle().take(adds) {
        queue.add(key);
    }
    assert_eq!(queue.len(), adds.min(distinct), "all duplicates are folded");
    emit_dedup(bench, adds, distinct, &base);
    Ok(())
}

fn emit_dedup(bench: &Bench, adds: usize, distinct: usize, base: &Baseline) {
    let end = base.end();
    let series = bench.series(json!({ "adds": adds, "distinct": distinct }));
    series.emit(&end, "ns_per_add", end.seconds * 1e9 / adds as f64);
}

/// Counts of one worker, on a cache line of their own.
#[derive(Default)]
#[repr(align(128))]
struct Counts {
    got: AtomicU64,
    done: AtomicU64,
}

async fn pipeline<K: Key, O: Order<K>>(
    bench: &Bench,
    producers: usize,
    workers: usize,
    make: Make<'_, K, O>,
) -> Result<(), Error> {
    let (total, distinct) = (bench.n(2_000_000), bench.n(100_000));
    let keys = Arc::new(keys::<K>(distinct));
    let share = total / producers;
    let base = Baseline::take();
    let queue = make()?;
    let counts: Arc<[Counts]> = (0..workers).map(|_| Counts::default()).collect();
    let mut worker_tasks = JoinSet::new();
    for worker in 0..workers {
        let (queue, counts) = (queue.clone(), Arc::clone(&counts));
        worker_tasks.spawn(async move {
            let counts = &counts[worker];
            while let Some(item) = queue.get().await {
                counts.got.fetch_add(1, Ordering::Relaxed);
                item.forget();
                drop(item);
                counts.done.fetch_add(1, Ordering::Release);
            }
        });
    }
    let begun = base.nanos();
    let mut producer_tasks = JoinSet::new();
    for producer in 0..producers {
        let (queue, keys) = (queue.clone(), Arc::clone(&keys));
        producer_tasks.spawn(async move {
            let mut random = SplitMix64(producer as u64 + 1);
            for _ in 0..share {
                queue.add(&keys[random.below(keys.len())]);
                // An add never waits. A loop of nothing else has to give way by itself: tokio runs
                // what a task wakes on the same thread next, and others cannot take it over.
                tokio::task::consume_budget().await;
            }
        });
    }
    producer_tasks.join_all().await;
    let produced = base.nanos() - begun;
    let sum = |count: fn(&Counts) -> &AtomicU64| {
        counts
            .iter()
            .map(|counts| count(counts).load(Ordering::Acquire))
            .sum::<u64>()
    };
    let is_idle = || {
        let done = sum(|counts| &counts.done);
        let got = sum(|counts| &counts.got);
        got == done && queue.is_empty() && queue.running() == 0
    };
    while !is_idle() {
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    let seconds = (base.nanos() - begun) as f64 / 1e9;
    let end = base.end();
    queue.shut_down();
    worker_tasks.join_all().await;
    let adds = share * producers;
    let handed_out = sum(|counts| &counts.got) as f64;
    let series = bench.series(json!({
        "adds": adds, "distinct": distinct, "producers": producers, "workers": workers,
    }));
    series.emit(&end, "keys_per_s", adds as f64 / seconds);
    series.emit(&end, "handed_out", handed_out);
    series.emit(&end, "handed_out_per_s", handed_out / seconds);
    series.emit(&end, "produce_s", produced as f64 / 1e9);
    Ok(())
}

async fn retry<K: Key, O: Order<K>>(bench: &Bench, make: Make<'_, K, O>) -> Result<(), Error> {
    let (n, workers, fails) = (bench.n(100_000), 4, 3);
    let keys = keys::<K>(n);
    let base = Baseline::take();
    let queue = make()?;
    let left = Arc::new(AtomicUsize::new(n));
    let finished = Arc::new(Notify::new());
    let begun = base.nanos();
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        let (queue, left) = (queue.clone(), Arc::clone(&left));
        let finished = Arc::clone(&finished);
        tasks.spawn(async move {
            while let Some(item) = queue.get().await {
                if item.num_requeues() < fails {
                    item.add_rate_limited();
                } else {
                    item.forget();
                    if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                        finished.notify_one();
                    }
                }
            }
        });
    }
    for key in &keys {
        queue.add(key);
    }
    finished.notified().await;
    let seconds = (base.nanos() - begun) as f64 / 1e9;
    let end = base.end();
    queue.shut_down();
    tasks.join_all().await;
    let ideal = 0.001 + 0.002 + 0.004;
    let attempts = (n * (fails as usize + 1)) as f64;
    let series =
        bench.series(json!({ "n": n, "fails": fails, "workers": workers, "ideal_s": ideal }));
    series.emit(&end, "wall_s", seconds);
    series.emit(
        &end,
        "overhead_us_per_attempt",
        (seconds - ideal) * 1e6 / attempts,
    );
    series.emit(&end, "cpu_us_per_attempt", end.cpu * 1e6 / attempts);
    Ok(())
}

async fn delayed<K: Key, O: Order<K>>(bench: &Bench, make: Make<'_, K, O>) -> Result<(), Error> {
    let (n, span) = (bench.n(1_000_000), 2_000_000_000);
    let keys = keys::<K>(n);
    // Not zero, so that the pages count in the baseline.
    let deadlines: Arc<[AtomicI64]> = (0..n).map(|_| AtomicI64::new(1)).collect();
    let mut lags = vec![1_i64; n];
    let base = Baseline::take();
    let queue = make()?;
    let begun = now();
    let nanos = move || i64::try_from(begun.elapsed().as_nanos()).expect("less than 292 years");
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let (queue, deadlines) = (queue.clone(), Arc::clone(&deadlines));
        async move {
            for lag in &mut lags {
                let Some(item) = queue.get().await else { break };
                *lag = nanos() - deadlines[item.index()].load(Ordering::Relaxed);
            }
            lags
        }
    });
    let mut producer = JoinSet::new();
    producer.spawn({
        let queue = queue.clone();
        async move {
            let mut random = SplitMix64(1);
            for (key, deadline) in keys.iter().zip(&*deadlines) {
                let delay = random.below(span);
                let delay = i64::try_from(delay).expect("two seconds");
                deadline.store(nanos() + delay, Ordering::Relaxed);
                queue.add_after(key, Duration::from_nanos(delay.unsigned_abs()));
            }
            (keys, nanos())
        }
    });
    let produced = producer.join_all().await;
    let mut lags = tasks.join_all().await;
    let wall = begun.elapsed().as_secs_f64();
    let end = base.end();
    let added_at = produced.first().map_or(0, |(_, at)| *at) as f64;
    let [p50, p99, max, min] = quantiles(lags.pop().unwrap_or_default());
    let series = bench.series(json!({ "n": n, "span_s": span / 1_000_000_000 }));
    series.emit(&end, "lag_p50_us", p50 / 1e3);
    series.emit(&end, "lag_p99_us", p99 / 1e3);
    series.emit(&end, "lag_max_us", max / 1e3);
    series.emit(&end, "lag_min_us", min / 1e3);
    series.emit(&end, "add_ns_per_key", added_at / n as f64);
    series.emit(&end, "wall_s", wall);
    series.emit(&end, "cpu_s", end.cpu);
    series.emit(&end, "rss_bytes_per_key", end.grown / n as f64);
    Ok(())
}

/// What producer and worker of the wake-up scenarios share.
struct Rounds {
    rounds: u64,
    base: Baseline,
    added_at: AtomicU64,
    acknowledged: AtomicU64,
}

const PAUSE_US: u64 = 200;
const PAUSE: Duration = Duration::from_micros(PAUSE_US);

impl Rounds {
    fn new(bench: &Bench) -> Arc<Self> {
        Arc::new(Self {
            rounds: bench.n(20_000) as u64,
            base: Baseline::take(),
            added_at: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
        })
    }

    async fn work<K: Key, O: Order<K>>(self: Arc<Self>, queue: WorkQueue<K, O>) -> Vec<i64> {
        let mut latencies = Vec::new();
        for round in 1..=self.rounds {
            let Some(item) = queue.get().await else { break };
            let latency = self.base.nanos() - self.added_at.load(Ordering::Relaxed);
            latencies.push(i64::try_from(latency).expect("less than 292 years"));
            drop(item);
            self.acknowledged.store(round, Ordering::Relaxed);
        }
        latencies
    }

    fn add<K: Key, O: Order<K>>(&self, queue: &WorkQueue<K, O>, key: &K) {
        self.added_at.store(self.base.nanos(), Ordering::Relaxed);
        queue.add(key);
    }

    fn is_acknowledged(&self, round: u64) -> bool {
        self.acknowledged.load(Ordering::Relaxed) >= round
    }

    fn emit(&self, bench: &Bench, latencies: Vec<i64>) {
        let end = self.base.end();
        let [p50, p99, max, _] = quantiles(latencies);
        let series = bench.series(json!({ "rounds": self.rounds, "pause_us": PAUSE_US }));
        series.emit(&end, "latency_p50_us", p50 / 1e3);
        series.emit(&end, "latency_p99_us", p99 / 1e3);
        series.emit(&end, "latency_max_us", max / 1e3);
        series.emit(&end, "round_us", end.seconds * 1e6 / self.rounds as f64);
    }
}

async fn wakeup<K: Key, O: Order<K>>(bench: &Bench, make: Make<'_, K, O>) -> Result<(), Error> {
    let rounds = Rounds::new(bench);
    let queue = make()?;
    let mut worker = JoinSet::new();
    worker.spawn(Arc::clone(&rounds).work(queue.clone()));
    let mut producer = JoinSet::new();
    producer.spawn({
        let rounds = Arc::clone(&rounds);
        async move {
            let key = K::make(1);
            tokio::time::sleep(PAUSE).await;
            for round in 1..=rounds.rounds {
                rounds.add(&queue, &key);
                tokio::time::sleep(PAUSE).await;
                while !rounds.is_acknowledged(round) {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    });
    producer.join_all().await;
    rounds.emit(bench, worker.join_all().await.concat());
    Ok(())
}

fn wakeup_xthread<K: Key, O: Order<K>>(
    bench: &Bench,
    runtime: &Runtime,
    make: Make<'_, K, O>,
) -> Result<(), Error> {
    let rounds = Rounds::new(bench);
    let queue = make()?;
    let worker = runtime.spawn(Arc::clone(&rounds).work(queue.clone()));
    #[expect(
        clippy::disallowed_methods,
        reason = "the scenario's producer sleeps in the kernel"
    )]
    let pause = || thread::sleep(PAUSE);
    thread::scope(|scope| {
        scope.spawn(|| {
            let key = K::make(1);
            pause();
            for round in 1..=rounds.rounds {
                rounds.add(&queue, &key);
                pause();
                while !rounds.is_acknowledged(round) {
                    pause();
                }
            }
        });
    });
    let latencies = runtime
        .block_on(worker)
        .map_err(|error| Error::Usage(error.to_string()))?;
    rounds.emit(bench, latencies);
    Ok(())
}

/// The scenarios that a bare map and ring in one thread can do.
fn limit<K: Key>(bench: &Bench) -> Result<(), Error> {
    match bench.scenario.as_str() {
        "fill_drain" => {
            let n = bench.n(1_000_000);
            let keys = keys::<K>(n);
            let base = Baseline::take();
            let mut queue = Limit::new();
            keys.iter().for_each(|key| queue.add(key));
            let added_at = base.nanos();
            while let Some(key) = queue.get() {
                queue.done(key);
            }
            emit_fill_drain(bench, n, &base, added_at);
        }
        "dedup" => {
            let (adds, distinct) = (bench.n(10_000_000), 1000);
            let keys = keys::<K>(distinct);
            let base = Baseline::take();
            let mut queue = Limit::new();
            keys.iter()
                .cycle()
                .take(adds)
                .for_each(|key| queue.add(key));
            assert_eq!(queue.len(), adds.min(distinct), "all duplicates are folded");
            emit_dedup(bench, adds, distinct, &base);
        }
        _ => limit_pipeline::<K>(bench)?,
    }
    Ok(())
}

/// One producer and one worker that take turns, key by key, as far as there are keys.
fn limit_pipeline<K: Key>(bench: &Bench) -> Result<(), Error> {
    let Some((producers, workers)) = bench.pipeline() else {
        return Err(bench.unsupported());
    };
    let (total, distinct) = (bench.n(2_000_000), bench.n(100_000));
    let keys = keys::<K>(distinct);
    let adds = total / producers * producers;
    let base = Baseline::take();
    let mut queue = Limit::new();
    let mut handed_out = 0_u32;
    let mut random = SplitMix64(1);
    for _ in 0..adds {
        queue.add(&keys[random.below(distinct)]);
        if let Some(key) = queue.get() {
            queue.done(key);
            handed_out += 1;
        }
    }
    let end = base.end();
    let series = bench.series(json!({
        "adds": adds, "distinct": distinct, "producers": producers, "workers": workers,
    }));
    series.emit(&end, "keys_per_s", adds as f64 / end.seconds);
    series.emit(&end, "handed_out", f64::from(handed_out));
    series.emit(
        &end,
        "handed_out_per_s",
        f64::from(handed_out) / end.seconds,
    );
    Ok(())
}
