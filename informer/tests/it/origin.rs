//! Why a handler is told, on a scripted source, in paused time.

use std::time::Duration;

use informer::source::WatchEvent;
use informer::source::scripted::ListAnswer;
use informer::{AsyncHandler, Event, Filtered, Handler, HandlerOptions, InformerOptions, Origin};
use k8s_openapi::api::core::v1::ConfigMap;

use crate::support::*;

/// Notes each event with its origin.
#[derive(Clone, Default)]
struct Origins(Log);

impl Handler<ConfigMap> for Origins {
    fn on_event(&self, _: &Event<ConfigMap>) {
        unreachable!("the other form is implemented");
    }

    fn on_event_from(&self, event: &Event<ConfigMap>, origin: Origin) {
        let version = event.resource_version();
        let line = format!("{} {version} {}", show(event), origin.as_str());
        self.0.push(line);
    }
}

impl AsyncHandler<ConfigMap> for Origins {
    async fn on_event(&self, _: Event<ConfigMap>) {
        unreachable!("the other form is implemented");
    }

    async fn on_event_from(&self, event: Event<ConfigMap>, origin: Origin) {
        Handler::on_event_from(self, &event, origin);
    }
}

#[tokio::test(start_paused = true)]
async fn i94_each_event_tells_its_cause_and_version() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let feed = source.watch();
    source.list(ListAnswer::all([object("a", 13), object("c", 14)], "15"));
    let resynced = options(|o| o.resync = Some(Duration::from_secs(60)));
    let all = |_: &ConfigMap| true;
    let (plain, filtered, async_, late) = (
        Origins::default(),
        Origins::default(),
        Origins::default(),
        Origins::default(),
    );
    informer
        .add_handler_with("plain", plain.clone(), resynced.clone())
        .unwrap();
    informer
        .add_handler_with(
            "filtered",
            Filtered::new(all, filtered.clone()),
            resynced.clone(),
        )
        .unwrap();
    informer
        .add_async_handler("async", async_.clone(), resynced)
        .unwrap();
    let _run = Run::start(&informer);
    informer.synced().await;
    feed.send(WatchEvent::Modified(object("a", 11)));
    feed.send(WatchEvent::Deleted(object("b", 12)));
    settle().await;
    feed.send(WatchEvent::Error(Box::new(status(410, "Expired"))));
    source.called(4).await;
    settle().await;
    informer
        .add_handler_with("late", late.clone(), HandlerOptions::default())
        .unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let mut told = plain.0.take();
    // A resync goes through the cache in no particular order.
    told[6..].sort();
    assert_eq!(
        told,
        [
            "+a@1! 1 initial",
            "+b@2! 2 initial",
            "a@1~a@11 11 watch",
            "-b@12 12 watch",
            "a@11~a@13 13 relist",
            "+c@14 14 relist",
            "a@13~a@13 13 resync",
            "c@14~c@14 14 resync",
        ]
    );
    for other in [&filtered, &async_] {
        let mut other = other.0.take();
        other[6..].sort();
        assert_eq!(other, told);
    }
    let mut replayed = late.0.take();
    replayed.sort();
    assert_eq!(replayed, ["+a@13! 13 initial", "+c@14! 14 initial"]);
}

#[tokio::test(start_paused = true)]
async fn i94_handlers_run_in_a_span_with_cause_and_version() {
    let written = Written::default();
    let _guard = written.begin(tracing::Level::DEBUG);
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let feed = source.watch();
    informer
        .add_handler("plain", |_: &Event<ConfigMap>| tracing::info!("plain call"))
        .unwrap();
    let awaiting = |_: Event<ConfigMap>| async {
        tokio::task::yield_now().await;
        tracing::info!("async call");
    };
    informer
        .add_async_handler("async", awaiting, HandlerOptions::default())
        .unwrap();
    let _run = Run::start(&informer);
    informer.synced().await;
    feed.send(WatchEvent::Modified(object("a", 11)));
    settle().await;
    let text = written.text();
    for (handler, call) in [("plain", "plain call"), ("async", "async call")] {
        let lines: Vec<_> = text.lines().filter(|line| line.ends_with(call)).collect();
        assert_eq!(lines.len(), 2, "{text}");
        for (line, version, reason) in [(lines[0], "1", "initial"), (lines[1], "11", "watch")] {
            for field in [
                format!("handler=\"{handler}\""),
                "k8s.namespace.name=\"n\"".to_owned(),
                "k8s.resource.name=\"a\"".to_owned(),
                format!("k8s.resource.version=\"{version}\""),
                format!("event.reason=\"{reason}\""),
            ] {
                assert!(line.contains(&field), "{field} in {line}");
            }
        }
    }
}
