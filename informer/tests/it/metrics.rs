//! Metrics of whole informers, in paused time.

use std::time::Duration;

use informer::metrics::Registry;
use informer::source::WatchEvent;
use informer::source::scripted::{ListAnswer, Scripted};
use informer::{
    Buffer, Cause, Error, Event, HandlerOptions, Informer, InformerOptions, ReflectorBackoff,
};
use k8s_openapi::api::core::v1::ConfigMap;

use crate::support::*;

fn named(registry: &Registry, name: &str) -> InformerOptions<ConfigMap> {
    InformerOptions {
        name: Some(name.to_owned()),
        registry: registry.clone(),
        ..InformerOptions::default()
    }
}

#[tokio::test(start_paused = true)]
async fn i45_i93_an_informer_counts_its_lists_watches_and_handlers() {
    let registry = Registry::new();
    // The wait after the failure is to end before the slow handler's third call does.
    let backoff = ReflectorBackoff {
        jitter: 0.0,
        ..ReflectorBackoff::default()
    };
    let (source, informer) = scripted(InformerOptions {
        backoff,
        ..named(&registry, "main")
    });
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let feed = source.watch();
    source.list(ListAnswer::all([object("a", 1)], "12345678901234567"));
    let second = |_: Event<ConfigMap>| tokio::time::sleep(Duration::from_secs(1));
    let slow = informer
        .add_async_handler("slow", second, HandlerOptions::default())
        .unwrap();
    let _queue = informer
        .keyed_queue("by object", Buffer::Unbounded)
        .unwrap();
    let _run = Run::start(&informer);
    settle().await;
    let queued = |name: &str| registry.snapshots()[0].handlers[name].queued;
    assert_eq!((queued("slow"), queued("by object")), (1, 2));
    slow.synced().await;
    for version in 11..14 {
        feed.send(WatchEvent::Modified(object("a", version)));
    }
    settle().await;
    feed.send(WatchEvent::Error(Box::new(status(410, "Expired"))));
    source.called(4).await;
    settle().await;
    let snapshot = registry.snapshots().remove(0);
    assert_eq!((snapshot.stats.lists, snapshot.stats.watches), (2, 1));
    let list = snapshot.items_per_list;
    assert_eq!((list.count, list.sum), (2, 3));
    assert_eq!(snapshot.list_duration.count, 2);
    let watch = snapshot.items_per_watch;
    assert_eq!((watch.count, watch.sum), (1, 3));
    let open_for = Duration::from_nanos(snapshot.watch_duration.sum);
    assert!((2..3).contains(&open_for.as_secs()), "{open_for:?}");
    assert_eq!(snapshot.relists, [(Cause::Expired, 1)].into());
    let latency = snapshot.handlers["slow"].latency;
    assert_eq!((latency.count, latency.sum.as_secs()), (2, 2));
    let text = registry.render();
    let labels = "{name=\"main\",resource=\"ConfigMap\"}";
    for line in [
        format!("reflector_lists_total{labels} 2"),
        format!("informer_store_objects{labels} 1"),
        format!("informer_store_resource_version{labels} 345678901234567"),
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn i93_names_are_unique_and_series_go_with_their_informer() {
    let registry = Registry::new();
    let make = |kind: &str, name: &str| {
        Informer::from_source(kind, Scripted::<ConfigMap>::new(), named(&registry, name))
    };
    let first = make("ConfigMap", "main").unwrap();
    let other_kind = make("Secret", "main").unwrap();
    let taken = make("ConfigMap", "main").unwrap_err();
    assert!(matches!(taken, Error::NameTaken { .. }), "{taken}");
    assert!(matches!(
        make("ConfigMap", "").unwrap_err(),
        Error::InvalidOption { option: "name", .. }
    ));
    assert_eq!(registry.snapshots().len(), 2);
    let lister = first.lister();
    drop(first);
    assert_eq!(registry.snapshots().len(), 1, "a lister keeps no series");
    drop(lister);
    let again = make("ConfigMap", "main").unwrap();
    assert_eq!(registry.snapshots().len(), 2);
    drop((other_kind, again));
    assert_eq!(registry.render(), "");
}

#[tokio::test(start_paused = true)]
async fn i93_an_informer_without_a_name_has_no_metrics() {
    let registry = Registry::new();
    let options = InformerOptions {
        registry: registry.clone(),
        ..InformerOptions::default()
    };
    let (_, informer) = scripted(options);
    informer
        .add_handler("h", |_: &Event<ConfigMap>| {})
        .unwrap();
    assert_eq!(registry.render(), "");
}
