//! Objects of another kind among those that were asked for, on a scripted source, in paused time.

use std::sync::Arc;

use informer::source::scripted::{ListAnswer, Scripted};
use informer::source::{ListEnd, Malformed, WatchEvent};
use informer::{Informer, InformerOptions, OnMalformed};
use k8s_openapi::api::core::v1::ConfigMap;

use crate::support::*;

/// A secret that has the name of the config map `n/a`, and a UID and version of its own.
fn foreign(deleted: bool) -> Box<Malformed> {
    Box::new(Malformed {
        uid: Some("of the secret".to_owned()),
        path: "kind".to_owned(),
        problem: "object of another kind: kind is not ConfigMap".to_owned(),
        deleted,
        foreign: true,
        ..*malformed("a", Some("50"))
    })
}

fn told_errors(informer: &Informer<ConfigMap>) -> Log {
    let errors = Log::default();
    let told = errors.clone();
    informer
        .set_error_handler(Arc::new(move |error| told.push(error.to_string())))
        .expect("it was not started");
    errors
}

#[tokio::test(start_paused = true)]
async fn r5_an_event_of_another_kind_is_told_and_touches_no_object_of_its_name() {
    for on_malformed in [OnMalformed::Skip, OnMalformed::KeepRaw, OnMalformed::Fail] {
        let (source, informer) = scripted(InformerOptions {
            on_malformed,
            ..InformerOptions::default()
        });
        let (log, errors) = (Log::default(), told_errors(&informer));
        informer.add_handler("log", log.handler()).unwrap();
        source.list(ListAnswer::all([object("a", 1)], "10"));
        let feed = source.watch();
        let _run = Run::start(&informer);
        feed.send(WatchEvent::Malformed(foreign(true)));
        feed.send(WatchEvent::Malformed(foreign(false)));
        feed.send(WatchEvent::Modified(object("b", 11)));
        settle().await;
        assert_eq!(cached(&informer), ["a@1", "b@11"]);
        assert_eq!(log.take(), ["+a@1!", "+b@11"]);
        assert_eq!(informer.malformed(), [], "no object of ours is unreadable");
        assert_eq!(informer.stats().malformed, 2);
        let told =
            "ConfigMap n/a cannot be read at `kind`: object of another kind: kind is not ConfigMap";
        assert_eq!(errors.take(), [told, told]);
        feed.send(WatchEvent::Malformed(foreign(false)));
        settle().await;
        drop(feed);
        source.called(3).await;
        let calls = source.summaries();
        assert_eq!(
            calls[2], "watch 11",
            "its version is no point to resume from"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn r5_an_item_of_another_kind_takes_nothing_out_of_a_list() {
    let items = || vec![Ok(object("a", 2)), Err(foreign(false))];
    for on_malformed in [OnMalformed::Skip, OnMalformed::Fail] {
        let (source, informer) = scripted(InformerOptions {
            on_malformed,
            ..InformerOptions::default()
        });
        let end = ListEnd {
            resource_version: "20".to_owned(),
            continue_token: None,
        };
        source.list(ListAnswer::Page(items(), end));
        let _run = Run::start(&informer);
        informer.synced().await;
        assert_eq!(cached(&informer), ["a@2"]);
        assert_eq!(informer.malformed(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn r5_an_event_of_another_kind_takes_nothing_out_of_a_streamed_list() {
    let source = Scripted::new().streaming();
    let informer =
        Informer::from_source("ConfigMap", source.clone(), InformerOptions::default()).unwrap();
    let feed = source.watch();
    let _run = Run::start(&informer);
    feed.send(WatchEvent::Added(object("a", 1)));
    for deleted in [true, false] {
        feed.send(WatchEvent::Malformed(foreign(deleted)));
    }
    feed.send(WatchEvent::Bookmark {
        resource_version: "10".to_owned(),
        initial_events_end: true,
    });
    informer.synced().await;
    assert_eq!(cached(&informer), ["a@1"]);
    assert_eq!(informer.malformed(), []);
}

#[tokio::test(start_paused = true)]
async fn r5_a_list_of_another_kind_empties_no_cache() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let feed = source.watch();
    let _run = Run::start(&informer);
    informer.synced().await;
    let end = ListEnd {
        resource_version: "20".to_owned(),
        continue_token: None,
    };
    source.list(ListAnswer::Page(vec![Err(foreign(false))], end));
    let _next = source.watch();
    feed.send(WatchEvent::Error(Box::new(status(410, "Expired"))));
    source.called(4).await;
    assert_eq!(
        cached(&informer),
        ["a@1"],
        "b is gone, and of a nothing was told"
    );
}
