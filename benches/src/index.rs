//! Look-ups in an informer's cache: `benches/peers/informer/SCENARIOS.md` says which.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use informer::source::{
    Error as SourceError, ListEnd, ListPart, ListRequest, ListWatch, WatchEvent, WatchRequest,
    WatchStream,
};
use informer::{Informer, InformerOptions, Lister, ObjectKey};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use kube_core::ObjectMeta;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::measure::{Baseline, Series, settle};
use crate::{Args, Error};

/// Look-up k asks for pod `k * STRIDE mod n`.
const STRIDE: usize = 7919;
/// Events that arrive together under write load.
const BATCH: usize = 32;

fn pod(i: usize, version: usize) -> Pod {
    Pod {
        metadata: ObjectMeta {
            namespace: Some(format!("ns-{:04}", i % 1000)),
            name: Some(format!("pod-{i:07}")),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            node_name: Some(node(i)),
            ..PodSpec::default()
        }),
        status: Some(PodStatus {
            pod_ip: Some(ip(i)),
            ..PodStatus::default()
        }),
    }
}

fn node(i: usize) -> String {
    format!("node-{:04}", i % 1000)
}

fn ip(i: usize) -> String {
    format!("10.{}.{}.{}", i >> 16 & 255, i >> 8 & 255, i & 255)
}

/// A source whose list is given, and whose watch changes object after object while it is told to.
struct Given {
    pods: parking_lot::Mutex<Vec<Pod>>,
    n: usize,
    writing: Arc<AtomicBool>,
    written: Arc<AtomicUsize>,
}

impl ListWatch<Pod> for Given {
    fn list(&self, _: ListRequest) -> BoxStream<'static, Result<ListPart<Pod>, SourceError>> {
        let pods = std::mem::take(&mut *self.pods.lock());
        let end = ListEnd {
            resource_version: "1".to_owned(),
            continue_token: None,
        };
        let items = ListPart::Items(pods.into_iter().map(Ok).collect());
        stream::iter([Ok(items), Ok(ListPart::End(end))]).boxed()
    }

    fn watch(&self, _: WatchRequest) -> BoxFuture<'static, Result<WatchStream<Pod>, SourceError>> {
        let (n, writing) = (self.n, Arc::clone(&self.writing));
        let written = Arc::clone(&self.written);
        Box::pin(async move {
            let events = stream::unfold(2, move |version| {
                let (writing, written) = (Arc::clone(&writing), Arc::clone(&written));
                async move {
                    while !writing.load(Ordering::Acquire) {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    written.fetch_add(BATCH, Ordering::Relaxed);
                    let modified = |at| WatchEvent::Modified(pod(at * STRIDE % n, at));
                    let batch = (version..version + BATCH).map(modified).collect();
                    Some((Ok(batch), version + BATCH))
                }
            });
            Ok(events.boxed())
        })
    }

    fn supports_watch_list(&self) -> bool {
        false
    }
}

/// Runs the scenario and prints its figures; option `n`, by default 100,000.
///
/// # Errors
/// If an option is not understood, or objects are missing in the cache.
pub fn run(args: &Args) -> Result<(), Error> {
    let n: usize = args.get("n", 100_000)?;
    let Value::Object(params) = json!({ "n": n }) else {
        unreachable!("written as an object")
    };
    let series = Series {
        peer: args.get("series", "informer".to_owned())?,
        bench: "index".to_owned(),
        params,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(failed)?;
    let (writing, written) = (Arc::default(), Arc::default());
    let source = Given {
        pods: parking_lot::Mutex::new((0..n).map(|i| pod(i, 1)).collect()),
        n,
        writing: Arc::clone(&writing),
        written: Arc::clone(&written),
    };
    let informer =
        Informer::from_source("Pod", source, InformerOptions::default()).map_err(failed)?;
    let values = |value: Option<&String>| value.cloned().into_iter().collect();
    let by_node = move |pod: &Pod| values(pod.spec.as_ref().and_then(|s| s.node_name.as_ref()));
    let by_ip = move |pod: &Pod| values(pod.status.as_ref().and_then(|s| s.pod_ip.as_ref()));
    informer.add_index("node", by_node).map_err(failed)?;
    informer.add_index("ip", by_ip).map_err(failed)?;

    let stop = CancellationToken::new();
    let baseline = Baseline::take();
    let (runner, stopped) = (informer.clone(), stop.clone());
    let running = runtime.spawn(async move { runner.run(stopped).await });
    runtime.block_on(informer.synced());
    let end = baseline.end();
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    series.emit(&end, "store_add_ns", end.seconds * 1e9 / n as f64);
    settle();

    let bench = Lookups {
        n,
        series,
        lister: informer.lister(),
    };
    bench.measure("")?;
    // The same while one writer changes object after object as fast as it can.
    writing.store(true, Ordering::Release);
    let before = written.load(Ordering::Relaxed);
    let baseline = Baseline::take();
    bench.measure("_under_writes")?;
    let end = baseline.end();
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    let writes = (written.load(Ordering::Relaxed) - before) as f64;
    bench
        .series
        .emit(&end, "writes_per_s", writes / end.seconds);
    stop.cancel();
    runtime.block_on(running).map_err(failed)?.map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(error.to_string())
}

/// Counts an object whose reference was at hand.
fn met(pod: &Arc<Pod>) -> usize {
    usize::from(!black_box(Arc::as_ptr(pod)).is_null())
}

struct Lookups {
    n: usize,
    series: Series,
    lister: Lister<Pod>,
}

impl Lookups {
    fn measure(&self, suffix: &str) -> Result<(), Error> {
        let (n, lister) = (self.n, &self.lister);
        let at = |k: usize| k * STRIDE % n;
        let keys: Vec<_> = (0..n).map(|k| ObjectKey::of(&pod(at(k), 0))).collect();
        let nodes: Vec<_> = (0..n).map(|k| node(at(k))).collect();
        let ips: Vec<_> = (0..n).map(|k| ip(at(k))).collect();
        let found = |index, value: &str| lister.by_index(index, value).map_or(0, |all| all.len());
        let time = |metric: &str, rounds: usize, look: &dyn Fn(usize) -> usize| {
            self.time(&format!("{metric}{suffix}"), rounds, look)
        };
        time("get_by_key_ns", 2_000_000, &|k| {
            usize::from(lister.get(&keys[k]).is_some())
        })?;
        time("by_index_1_of_n_ns", 1_000_000, &|k| found("ip", &ips[k]))?;
        time("by_index_100_of_n_ns", 100_000, &|k| {
            found("node", &nodes[k])
        })?;
        // The same without holding on to what is found: the objects themselves are not touched.
        time("borrow_by_key_ns", 2_000_000, &|k| {
            lister.read(|now| usize::from(black_box(now.get(&keys[k])).is_some()))
        })?;
        let borrowed = |index, value: &str| {
            lister.read(|now| {
                now.by_index(index, value)
                    .map_or(0, |all| all.map(met).sum())
            })
        };
        time("borrow_by_index_1_of_n_ns", 1_000_000, &|k| {
            borrowed("ip", &ips[k])
        })?;
        time("borrow_by_index_100_of_n_ns", 100_000, &|k| {
            borrowed("node", &nodes[k])
        })?;
        time("list_all_ns", 50, &|_| black_box(lister.list()).len())?;
        time("borrow_all_ns", 50, &|_| {
            lister.read(|now| now.iter().map(met).sum())
        })?;
        // The same with a look into each object.
        time("walk_all_ns", 50, &|_| {
            let snapshot = lister.snapshot();
            snapshot
                .iter()
                .map(|pod| usize::from(black_box(pod).metadata.name.is_some()))
                .sum()
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
    fn time(
        &self,
        metric: &str,
        rounds: usize,
        look: &dyn Fn(usize) -> usize,
    ) -> Result<(), Error> {
        let baseline = Baseline::take();
        let found: usize = (0..rounds).map(|round| look(round % self.n)).sum();
        let end = baseline.end();
        if found < rounds {
            return Err(Error::Failed(format!(
                "{metric}: {found} found in {rounds}"
            )));
        }
        self.series
            .emit(&end, metric, end.seconds * 1e9 / rounds as f64);
        Ok(())
    }
}
