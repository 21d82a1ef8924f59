//! Watches that bring nothing any more, on a scripted source, in paused time.

use std::time::Duration;

use informer::source::scripted::ListAnswer;
use informer::{Cause, InformerOptions};

use crate::support::*;

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn i31_silence_of_a_server_that_sends_bookmarks_leads_to_a_list() {
    let (source, informer) = scripted(InformerOptions::default());
    source.list(ListAnswer::all([object("a", 1), object("b", 2)], "10"));
    let feed = source.watch();
    // The server began anew, and holds back its events up to the version that the watch began at.
    source.list(ListAnswer::Fail(
        vec![],
        refusal(504, "Timeout: Too large resource version"),
    ));
    source.list(ListAnswer::all([object_of("a", "another", 3)], "5"));
    let _second = source.watch();
    let _run = Run::start(&informer);
    feed.send(bookmark("11"));
    // A watch lives for at least five minutes.
    tokio::time::sleep(MINUTE).await;
    feed.send(bookmark("12"));
    tokio::time::sleep(MINUTE * 3 - Duration::from_secs(1)).await;
    assert_eq!(source.summaries().len(), 2, "it is heard of in time");
    assert_eq!(informer.status().last_error, None);
    source.called(3).await;
    let error = informer.status().last_error.expect("a failure");
    assert_eq!(error.0, Cause::Deadline);
    assert!(
        error.1.contains("an open watch within 180 s"),
        "{}",
        error.1
    );
    source.called(5).await;
    assert_eq!(source.summaries()[2], "list 12");
    let last = &source.summaries()[source.summaries().len() - 1];
    assert_eq!(last, "watch 5");
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
