//! Watches that bring nothing any more, on a scripted source, in paused time.

use std::sync::Arc;
use std::time::Duration;

use informer::source::scripted::{ListAnswer, Scripted};
use informer::source::{self, WatchEvent};
use informer::{Informer, InformerOptions};
use kube_core::Status;

use crate::support::*;

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn i31_silence_of_a_server_that_sends_bookmarks_leads_to_a_list() {
    let (source, informer) = scripted(InformerOptions::default());
    let causes = Log::default();
    let told = causes.clone();
    informer
        .set_error_handler(Arc::new(move |error| told.push(error.cause().to_string())))
        .unwrap();
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let feed = source.watch();
    // The server began anew, and holds back its events up to the version that the watch began at.
    let behind = Status::failure("Too large resource version: 12, current: 5", "Timeout");
    let behind = source::Error::status(behind.with_code(504));
    source.list(ListAnswer::Fail(vec![], behind));
    source.list(ListAnswer::all([object_of("a", "another", 3)], "5"));
    let _second = source.watch();
    let _run = Run::start(&informer);
    feed.send(bookmark("11"));
    // A watch lives for at least five minutes.
    tokio::time::sleep(MINUTE).await;
    feed.send(bookmark("12"));
    tokio::time::sleep(MINUTE * 3 - Duration::from_secs(1)).await;
    assert_eq!(source.summaries().len(), 2, "it is heard of in time");
    source.called(5).await;
    settle().await;
    assert_eq!(causes.take(), ["deadline", "version_too_large"]);
    let calls = source.summaries();
    assert_eq!([&*calls[2], &*calls[4]], ["list 12", "watch 5"]);
    assert_eq!(cached(&informer), ["a@3"], "back to what the server has");
}

#[tokio::test(start_paused = true)]
async fn i31_silence_of_a_server_without_bookmarks_says_nothing() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1)], "10"));
    let _feed = source.watch();
    let _run = Run::start(&informer);
    tokio::time::sleep(MINUTE * 5).await;
    assert_eq!(source.summaries(), ["list 0 limit=500", "watch 10"]);
}

#[tokio::test(start_paused = true)]
async fn i31_i39_the_end_of_a_streamed_list_is_no_sign_that_a_server_sends_bookmarks() {
    let source = Scripted::new().streaming();
    let options = InformerOptions {
        min_watch_timeout: MINUTE * 60,
        ..InformerOptions::default()
    };
    let informer = Informer::from_source("ConfigMap", source.clone(), options).unwrap();
    let feed = source.watch();
    let _second = source.watch();
    let _run = Run::start(&informer);
    feed.send(WatchEvent::Added(object("a", 1)));
    feed.send(WatchEvent::Bookmark {
        resource_version: "10".to_owned(),
        initial_events_end: true,
    });
    tokio::time::sleep(MINUTE * 30).await;
    assert_eq!(source.summaries(), ["watch \"\" initial-events"]);
    // One that it sends of its own accord is.
    feed.send(bookmark("11"));
    tokio::time::sleep(MINUTE * 3 + Duration::from_secs(30)).await;
    assert_eq!(source.summaries()[1], "watch 11 initial-events");
}
