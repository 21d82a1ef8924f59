//! Objects that cannot be read, on a scripted source, in paused time.

use std::sync::Arc;

use informer::source::scripted::{ListAnswer, Scripted};
use informer::source::{Malformed, WatchEvent};
use informer::{Cause, Informer, InformerOptions, OnMalformed};
use k8s_openapi::api::core::v1::ConfigMap;

use crate::support::*;

fn unreadable(informer: &informer::Informer<ConfigMap>) -> Vec<String> {
    informer
        .malformed()
        .iter()
        .filter_map(|one| Some(one.key.as_ref()?.to_string()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn i6_an_unreadable_state_is_told_once_and_forgotten_when_the_object_is_readable() {
    let (source, informer) = scripted(InformerOptions::default());
    let errors = Log::default();
    let told = errors.clone();
    informer
        .set_error_handler(Arc::new(move |error| told.push(error.to_string())))
        .unwrap();
    source.list(ListAnswer::all([], "10"));
    let feed = source.watch();
    let _run = Run::start(&informer);
    for version in ["11", "11", "12"] {
        feed.send(WatchEvent::Malformed(malformed("a", Some(version))));
    }
    settle().await;
    assert_eq!(errors.take().len(), 2);
    assert_eq!(unreadable(&informer), ["n/a"]);
    feed.send(WatchEvent::Modified(object("a", 13)));
    settle().await;
    assert_eq!(unreadable(&informer), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn i6_each_unreadable_state_is_logged_once_and_those_without_a_record_seldom() {
    let written = Written::default();
    let _guard = written.begin(tracing::Level::WARN);
    let (source, informer) = scripted(InformerOptions::default());
    let errors = Log::default();
    let told = errors.clone();
    informer
        .set_error_handler(Arc::new(move |error| told.push(error.to_string())))
        .unwrap();
    source.list(ListAnswer::all([], "10"));
    let feed = source.watch();
    let _run = Run::start(&informer);
    for (name, version) in [("a", "11"), ("b", "12"), ("a", "11"), ("a", "13")] {
        feed.send(WatchEvent::Malformed(malformed(name, Some(version))));
    }
    for _ in 0..5 {
        feed.send(WatchEvent::Malformed(malformed("c", None)));
    }
    settle().await;
    let text = written.text();
    let logged = |name: &str| text.matches(&format!("ConfigMap n/{name} cannot")).count();
    assert_eq!([logged("a"), logged("b"), logged("c")], [2, 1, 1], "{text}");
    assert_eq!(errors.take().len(), 3 + 5);
}

#[tokio::test(start_paused = true)]
async fn r18_an_unreadable_object_is_left_out_and_its_stored_copy_stays() {
    let (source, informer) = scripted(InformerOptions::default());
    let log = Log::default();
    informer.add_handler("log", log.handler()).unwrap();
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let feed = source.watch();
    let end = informer::source::ListEnd {
        resource_version: "20".into(),
        continue_token: None,
    };
    source.list(ListAnswer::Page(
        vec![Err(malformed("a", Some("15"))), Ok(object("c", 16))],
        end,
    ));
    let second = source.watch();
    let _run = Run::start(&informer);
    source.called(2).await;
    feed.send(WatchEvent::Malformed(malformed("b", Some("12"))));
    settle().await;
    assert_eq!(cached(&informer), ["a@1", "b@2"]);
    assert_eq!(
        informer.status().resource_version,
        "12",
        "the version moves on"
    );
    assert_eq!(unreadable(&informer), ["n/b"]);
    feed.send(WatchEvent::Error(Box::new(status(410, "Gone"))));
    source.called(4).await;
    settle().await;
    assert_eq!(
        cached(&informer),
        ["a@1", "c@16"],
        "a is unreadable, not gone"
    );
    assert_eq!(unreadable(&informer), ["n/a"]);
    second.send(WatchEvent::Malformed(Box::new(Malformed {
        deleted: true,
        ..*malformed("a", Some("21"))
    })));
    settle().await;
    assert_eq!(log.take(), ["+a@1!", "+b@2!", "-?b@2", "+c@16", "-?a@1"]);
    assert_eq!(unreadable(&informer), Vec::<String>::new());
    assert_eq!(informer.stats().malformed, 3);
}

#[tokio::test(start_paused = true)]
async fn i6_policy_fail_makes_an_unreadable_object_a_failure() {
    let options = InformerOptions {
        on_malformed: OnMalformed::Fail,
        ..InformerOptions::default()
    };
    let (source, informer) = scripted(options);
    let end = informer::source::ListEnd {
        resource_version: "20".into(),
        continue_token: None,
    };
    source.list(ListAnswer::Page(
        vec![Ok(object("c", 1)), Err(malformed("a", None))],
        end,
    ));
    let _run = Run::start(&informer);
    source.called(2).await;
    assert!(!informer.has_synced());
    let (cause, text) = informer.status().last_error.unwrap();
    assert_eq!(cause, Cause::Decode);
    assert_eq!(
        text,
        "ConfigMap n/a cannot be read at `data`: found a string"
    );
}

#[tokio::test(start_paused = true)]
async fn i8_a_panic_in_a_transform_is_a_failure_and_the_informer_goes_on() {
    let (source, informer) = scripted(InformerOptions::default());
    let first = std::sync::atomic::AtomicBool::new(true);
    informer
        .set_transform(Arc::new(move |object: &mut ConfigMap| {
            assert!(
                !first.swap(false, std::sync::atomic::Ordering::Relaxed),
                "not today"
            );
            match object.metadata.name.as_deref() {
                Some("bad") => Err("refused: hunter2".into()),
                _ => {
                    object.metadata.uid = None;
                    Ok(())
                }
            }
        }))
        .unwrap();
    source.list(ListAnswer::all([object("a", 1)], "10"));
    source.list(ListAnswer::all([object("a", 1), object("bad", 2)], "10"));
    let feed = source.watch();
    let _run = Run::start(&informer);
    settle().await;
    let (cause, text) = informer.status().last_error.unwrap();
    assert_eq!(cause, Cause::Panic);
    assert_eq!(text, "panic in transform");
    informer.synced().await;
    feed.send(WatchEvent::Added(object("b", 11)));
    settle().await;
    assert_eq!(cached(&informer), ["a@1", "b@11"]);
    assert!(
        informer
            .lister()
            .list()
            .iter()
            .all(|object| object.metadata.uid.is_none())
    );
    assert_eq!(informer.stats().malformed, 1);
    // What the transform says may be a value of the object.
    let told = &informer.malformed()[0].problem;
    assert_eq!(told, "the transform refuses it");
}

#[tokio::test(start_paused = true)]
async fn i88_a_deletion_counts_though_the_transform_refuses_the_last_state() {
    let (source, informer) = scripted(InformerOptions::default());
    informer
        .set_transform(Arc::new(|object: &mut ConfigMap| {
            match object.metadata.resource_version.as_deref() {
                Some("11") => Err("refused".into()),
                _ => Ok(()),
            }
        }))
        .unwrap();
    let log = Log::default();
    informer.add_handler("log", log.handler()).unwrap();
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let feed = source.watch();
    let _run = Run::start(&informer);
    feed.send(WatchEvent::Deleted(object("a", 11)));
    settle().await;
    assert_eq!(cached(&informer), [""; 0]);
    assert_eq!(log.take(), ["+a@1!", "-?a@1"]);
    assert_eq!(informer.status().resource_version, "11");
}

/// A frame that tells of a deletion, and not of which object.
fn deletion_of_nobody() -> WatchEvent<ConfigMap> {
    WatchEvent::Malformed(Box::new(Malformed {
        key: None,
        deleted: true,
        ..*malformed("a", Some("11"))
    }))
}

#[tokio::test(start_paused = true)]
async fn a_deletion_without_a_readable_name_is_followed_by_a_list() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let feed = source.watch();
    source.list(ListAnswer::all([object("b", 2)], "12"));
    let _run = Run::start(&informer);
    feed.send(deletion_of_nobody());
    source.called(4).await;
    settle().await;
    assert_eq!(source.summaries()[2], "list 10");
    assert_eq!(cached(&informer), ["b@2"]);
}

#[tokio::test(start_paused = true)]
async fn a_streamed_deletion_without_a_readable_name_is_followed_by_a_list() {
    let source = Scripted::new().streaming();
    let informer =
        Informer::from_source("ConfigMap", source.clone(), InformerOptions::default()).unwrap();
    let feed = source.watch();
    source.list(ListAnswer::all([object("b", 2)], "12"));
    let _run = Run::start(&informer);
    feed.send(WatchEvent::Added(object("a", 1)));
    feed.send(deletion_of_nobody());
    informer.synced().await;
    assert_eq!(cached(&informer), ["b@2"]);
}
