//! Events from the recorder to a sink on paused time, and to both API servers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use controller::events::{
    EventForm, EventMetrics, EventRecorder, EventSink, EventWriter, Notice, RecorderOptions,
    all_metrics, recorder, recorder_to,
};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Event as CoreEvent, Node};
use k8s_openapi::api::events::v1::Event as SeriesEvent;
use kube_client::api::{DeleteParams, ListParams, PostParams};
use kube_client::{Api, Client};
use kube_core::Status;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::{config, pass};

type Answer = Result<(), kube_client::Error>;

/// One call of a sink.
#[derive(Debug, Clone)]
struct Call {
    /// `create NAMESPACE` or `patch NAMESPACE/NAME`.
    what: String,
    body: Value,
    /// Since the sink was made.
    at: Duration,
}

/// Records its calls and answers by script; yes after its end.
#[derive(Clone)]
struct Script {
    start: Instant,
    calls: Arc<Mutex<Vec<Call>>>,
    replies: Arc<Mutex<VecDeque<Reply>>>,
}

/// What a sink is told to answer.
#[derive(Debug, Clone, Copy)]
enum Reply {
    Yes,
    Unreachable,
    /// The server's reason and code.
    No(&'static str, u16),
}

impl Reply {
    async fn answer(self) -> Answer {
        tokio::task::yield_now().await;
        match self {
            Self::Yes => Ok(()),
            Self::Unreachable => Err(kube_client::Error::Service("connection refused".into())),
            Self::No(reason, code) => {
                let status = Status::failure("the server's words", reason).with_code(code);
                Err(kube_client::Error::Api(Box::new(status)))
            }
        }
    }
}

impl Script {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            calls: Arc::default(),
            replies: Arc::default(),
        }
    }

    fn answering(replies: impl IntoIterator<Item = Reply>) -> Self {
        let script = Self::new();
        script.replies.lock().unwrap().extend(replies);
        script
    }

    fn call(&self, what: String, body: &Value) -> BoxFuture<'static, Answer> {
        let call = Call {
            what,
            body: body.clone(),
            at: self.start.elapsed(),
        };
        self.calls.lock().unwrap().push(call);
        let reply = self
            .replies
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or(Reply::Yes);
        Box::pin(reply.answer())
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// The calls by verb and count.
    fn counts(&self) -> Vec<String> {
        let count = |body: &Value| body["series"]["count"].as_u64().or(body["count"].as_u64());
        self.calls()
            .iter()
            .map(|call| format!("{} {}", &call.what[..1], count(&call.body).unwrap_or(1)))
            .collect()
    }

    /// Seconds between the calls.
    fn gaps(&self) -> Vec<f64> {
        let calls = self.calls();
        calls
            .windows(2)
            .map(|pair| (pair[1].at - pair[0].at).as_secs_f64())
            .collect()
    }
}

impl EventSink for Script {
    fn create<'a>(&'a self, namespace: &'a str, event: &'a Value) -> BoxFuture<'a, Answer> {
        self.call(format!("create {namespace}"), event)
    }

    fn patch<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: &'a Value,
    ) -> BoxFuture<'a, Answer> {
        self.call(format!("patch {namespace}/{name}"), patch)
    }
}

fn options(form: EventForm) -> RecorderOptions {
    RecorderOptions {
        form,
        ..RecorderOptions::new("example.dev/test")
    }
}

fn notice() -> Notice {
    Notice::normal("Reason", "Act", "note")
}

/// A recorder whose writer runs.
struct Desk {
    events: EventRecorder,
    stop: CancellationToken,
    writer: JoinSet<()>,
}

impl Desk {
    fn open(made: (EventRecorder, EventWriter)) -> Self {
        let (events, writer) = made;
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        let token = stop.clone();
        running.spawn(async move {
            let Ok(()) = writer.run(token).await;
        });
        Self {
            events,
            stop,
            writer: running,
        }
    }

    fn over(script: &Script, form: EventForm) -> Self {
        Self::open(recorder_to(script.clone(), options(form)).unwrap())
    }

    /// Waits until nothing is left to write.
    async fn quiet(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let EventMetrics {
                observed,
                counted,
                filtered,
                dropped,
                written,
                rejected,
                queued,
                ..
            } = self.events.metrics();
            // Each notice that is not folded is written, or was written with the one before it.
            let folded = counted + filtered + dropped;
            if queued == 0 && (written + rejected > 0 || observed == folded) {
                tokio::time::sleep(Duration::from_millis(50)).await;
                if self.events.metrics().queued == 0 {
                    return;
                }
            }
            assert!(Instant::now() < deadline, "{:?}", self.events.metrics());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn close(mut self) -> EventMetrics {
        self.stop.cancel();
        while let Some(ended) = self.writer.join_next().await {
            ended.unwrap();
        }
        self.events.metrics()
    }
}

const FORMS: [EventForm; 2] = [EventForm::Series, EventForm::Count];

#[tokio::test(start_paused = true)]
async fn e1_the_same_event_thrice_is_one_event_with_a_count() {
    for (form, expected) in [
        (EventForm::Count, ["c 1", "p 2", "p 3"].as_slice()),
        // A third occurrence waits for the refresh, or for the end.
        (EventForm::Series, &["c 1", "p 2"]),
    ] {
        let script = Script::new();
        let desk = Desk::over(&script, form);
        for _ in 0..3 {
            desk.events.record(&config("a", 1), notice());
            pass(Duration::from_secs(1)).await;
        }
        assert_eq!(script.counts(), expected, "{form:?}");
        desk.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn e1_a_patch_of_an_event_that_is_gone_creates_it_with_its_count() {
    for form in FORMS {
        let script = Script::answering([Reply::Yes, Reply::No("NotFound", 404)]);
        let desk = Desk::over(&script, form);
        for _ in 0..2 {
            desk.events.record(&config("a", 1), notice());
            pass(Duration::from_secs(1)).await;
        }
        assert_eq!(script.counts(), ["c 1", "p 2", "c 2"], "{form:?}");
        let created = &script.calls()[2].body;
        assert_eq!(created["metadata"].get("resourceVersion"), None);
        assert_eq!(
            created["metadata"]["name"],
            script.calls()[0].body["metadata"]["name"]
        );
        let metrics = desk.close().await;
        assert_eq!((metrics.written, metrics.rejected), (2, 0), "{form:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn e4_an_unreachable_server_is_tried_12_times_10_s_apart() {
    for form in FORMS {
        let script = Script::answering([Reply::Unreachable; 20]);
        let desk = Desk::over(&script, form);
        desk.events.record(&config("a", 1), notice());
        pass(Duration::from_secs(300)).await;
        assert_eq!(script.calls().len(), 12, "{form:?}");
        let gaps = script.gaps();
        match form {
            EventForm::Count => {
                assert!((0.0..=10.001).contains(&gaps[0]), "{gaps:?}");
                assert!(
                    gaps[1..].iter().all(|gap| (10.0..10.01).contains(gap)),
                    "{gaps:?}"
                );
            }
            _ => assert!(
                gaps.iter().all(|gap| (10.0..=12.502).contains(gap)),
                "{gaps:?}"
            ),
        }
        assert_eq!(desk.events.metrics().undelivered, 1, "{form:?}");
        desk.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn e4_the_third_try_succeeds_and_what_came_meanwhile_is_counted() {
    let script = Script::answering([Reply::Unreachable; 2]);
    let desk = Desk::over(&script, EventForm::Series);
    for _ in 0..10 {
        desk.events.record(&config("a", 1), notice());
        pass(Duration::from_secs(1)).await;
    }
    pass(Duration::from_secs(60)).await;
    assert_eq!(script.counts(), ["c 1", "c 1", "c 1", "p 10"]);
    desk.close().await;
}

#[tokio::test(start_paused = true)]
async fn e4_what_the_server_rejects_is_not_tried_again() {
    for (reason, code) in [
        ("Forbidden", 403),
        ("Invalid", 422),
        ("AlreadyExists", 409),
        ("NotFound", 404),
    ] {
        for form in FORMS {
            let script = Script::answering([Reply::No(reason, code)]);
            let desk = Desk::over(&script, form);
            desk.events.record(&config("a", 1), notice());
            pass(Duration::from_secs(300)).await;
            let metrics = desk.events.metrics();
            assert_eq!(
                (script.calls().len(), metrics.rejected),
                (1, 1),
                "{reason} {form:?}"
            );
            desk.close().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn e4_two_recorders_have_counts_of_their_own() {
    let scripts = [Script::new(), Script::new()];
    let desks = scripts
        .each_ref()
        .map(|script| Desk::over(script, EventForm::Count));
    for desk in &desks {
        for _ in 0..2 {
            desk.events.record(&config("a", 1), notice());
            pass(Duration::from_secs(1)).await;
        }
    }
    for (desk, script) in desks.into_iter().zip(scripts) {
        assert_eq!(script.counts(), ["c 1", "p 2"]);
        desk.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn e4_a_stop_writes_what_is_left_and_leaves_no_task() {
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    let script = Script::new();
    let desk = Desk::over(&script, EventForm::Series);
    for _ in 0..5 {
        desk.events.record(&config("a", 1), notice());
        pass(Duration::from_secs(1)).await;
    }
    desk.events.record(&config("b", 1), notice());
    let events = desk.events.clone();
    assert_eq!(tasks(), before + 1, "the writer, and no task for an event");
    let metrics = desk.close().await;
    assert_eq!(script.counts(), ["c 1", "p 2", "c 1", "p 5"]);
    assert_eq!((metrics.queued, metrics.dropped), (0, 0));
    assert_eq!(tasks(), before);
    events.record(&config("a", 1), notice());
    assert_eq!(
        events.metrics().dropped,
        1,
        "after the end everything is dropped"
    );
}

#[tokio::test(start_paused = true)]
async fn c64_a_stop_during_a_pause_leaves_one_last_try() {
    let script = Script::answering([Reply::Unreachable; 20]);
    let desk = Desk::over(&script, EventForm::Series);
    desk.events.record(&config("a", 1), notice());
    pass(Duration::from_secs(5)).await;
    desk.events.record(&config("b", 1), notice());
    let before = Instant::now();
    let metrics = desk.close().await;
    assert!(
        before.elapsed() < Duration::from_secs(1),
        "it does not wait for the pause"
    );
    // One more for the write that waited, then one for what the end flushes: the server is gone.
    assert_eq!(script.counts(), ["c 1", "c 1", "c 1"]);
    assert!(metrics.undelivered >= 2, "{metrics:?}");
}

#[tokio::test(start_paused = true)]
async fn c64_a_sink_that_never_answers_holds_up_neither_deadline_nor_stop() {
    struct Silent;
    impl EventSink for Silent {
        fn create<'a>(&'a self, _: &'a str, _: &'a Value) -> BoxFuture<'a, Answer> {
            Box::pin(std::future::pending())
        }
        fn patch<'a>(&'a self, _: &'a str, _: &'a str, _: &'a Value) -> BoxFuture<'a, Answer> {
            Box::pin(std::future::pending())
        }
    }
    let desk = Desk::open(recorder_to(Silent, options(EventForm::Series)).unwrap());
    desk.events.record(&config("a", 1), notice());
    pass(Duration::from_secs(12 * 45)).await;
    assert_eq!(
        desk.events.metrics().undelivered,
        1,
        "each try ends after 30 s"
    );
    desk.events.record(&config("b", 1), notice());
    let before = Instant::now();
    desk.close().await;
    assert!(
        before.elapsed() < Duration::from_secs(6),
        "{:?}",
        before.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn c60_recording_never_waits_and_a_full_queue_drops_and_counts() {
    let script = Script::new();
    let (events, writer) = recorder_to(script.clone(), options(EventForm::Series)).unwrap();
    // No writer runs, and nothing here awaits.
    for n in 0..3000 {
        events.record(&config(&format!("o{n}"), 1), notice());
    }
    for _ in 0..50 {
        events.record(&config("o0", 1), notice());
    }
    events.record(&config("a", 1), Notice::normal("", "Act", "note"));
    let metrics = events.metrics();
    assert_eq!((metrics.observed, metrics.queued), (3051, 1000));
    assert_eq!(
        (metrics.dropped, metrics.counted, metrics.invalid),
        (2000, 50, 1)
    );
    let desk = Desk::open((events, writer));
    pass(Duration::from_secs(1)).await;
    assert_eq!(script.calls().len(), 1000);
    assert_eq!(script.counts()[0], "c 51");
    desk.close().await;
}

#[tokio::test(start_paused = true)]
async fn c66_ten_thousand_identical_events_are_two_writes() {
    let script = Script::new();
    let desk = Desk::over(&script, EventForm::Series);
    for n in 0..10_000 {
        desk.events.record(&config("a", n), notice());
        if n % 16 == 0 {
            tokio::task::yield_now().await;
        }
    }
    pass(Duration::from_secs(1)).await;
    assert_eq!(script.counts().len(), 2, "{:?}", script.counts());
    pass(Duration::from_secs(6 * 60)).await;
    assert_eq!(script.counts().last().map(String::as_str), Some("p 10000"));
    assert_eq!(script.counts().len(), 3, "the end of the series");
    desk.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn c66_counts_are_exact_under_many_recorders_at_once() {
    let script = Script::new();
    let desk = Desk::over(&script, EventForm::Series);
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let events = desk.events.clone();
        tasks.spawn(async move {
            for n in 0..2500 {
                events.record(&config("a", 1), notice());
                if n % 100 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    tasks.join_all().await;
    let metrics = desk.close().await;
    assert_eq!(metrics.observed, 20_000);
    assert_eq!(script.counts().last().map(String::as_str), Some("p 20000"));
}

#[test]
fn c60_a_recorder_is_among_the_metrics_of_the_process_until_it_is_gone() {
    let observed = || {
        let all = all_metrics();
        let ours = all.iter().find(|one| one.controller == "example.dev/gone");
        ours.map(|metrics| metrics.observed)
    };
    assert_eq!(observed(), None);
    let options = RecorderOptions::new("example.dev/gone");
    let (events, writer) = recorder_to(Script::new(), options).unwrap();
    events.record(&config("a", 1), notice());
    assert_eq!(observed(), Some(1));
    drop(events);
    assert_eq!(observed(), Some(1), "the writer still has it");
    drop(writer);
    assert_eq!(observed(), None);
}

#[test]
fn a_recorders_options_are_refused_by_name() {
    let good = || options(EventForm::Series);
    for (options, expected) in [
        (
            RecorderOptions::new("a b"),
            r#"reporting controller "a b" must be"#,
        ),
        (
            RecorderOptions {
                instance: Some("i".repeat(129)),
                ..good()
            },
            "reporting instance",
        ),
        (
            RecorderOptions { queue: 0, ..good() },
            "recorder option queue is 0",
        ),
        (
            RecorderOptions { cache: 0, ..good() },
            "recorder option cache is 0",
        ),
    ] {
        let error = recorder_to(Script::new(), options).err().unwrap();
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}

/// What both API servers do with events.
struct Scenes(Client);

impl Scenes {
    async fn play(&self) {
        Box::pin(self.c66_a_flood_of_one_event_is_a_few_writes_and_an_exact_count()).await;
        Box::pin(self.c61_a_flood_of_counts_is_rationed()).await;
        Box::pin(self.e2_similar_events_are_combined_and_rationed()).await;
        Box::pin(self.e1_an_event_that_is_deleted_comes_back_with_its_count()).await;
        Box::pin(self.c67_an_event_lies_with_its_object()).await;
    }

    fn open(&self, form: EventForm) -> Desk {
        Desk::open(recorder(self.0.clone(), options(form)).unwrap())
    }

    async fn object(&self, name: &str) -> ConfigMap {
        let mut object = config(name, 1);
        object.metadata.namespace = None;
        object.metadata.uid = None;
        object.metadata.resource_version = None;
        let api: Api<ConfigMap> = Api::namespaced(self.0.clone(), "default");
        api.create(&PostParams::default(), &object).await.unwrap()
    }

    async fn series_of(&self, object: &str) -> Vec<SeriesEvent> {
        let api: Api<SeriesEvent> = Api::namespaced(self.0.clone(), "default");
        let about = ListParams::default().fields(&format!("regarding.name={object}"));
        api.list(&about).await.unwrap().items
    }

    async fn counts_of(&self, object: &str) -> Vec<CoreEvent> {
        let api: Api<CoreEvent> = Api::namespaced(self.0.clone(), "default");
        let about = ListParams::default().fields(&format!("involvedObject.name={object}"));
        api.list(&about).await.unwrap().items
    }

    async fn c66_a_flood_of_one_event_is_a_few_writes_and_an_exact_count(&self) {
        let object = self.object("flood").await;
        let desk = self.open(EventForm::Series);
        for n in 0..10_000 {
            desk.events.record(
                &object,
                Notice::warning("Flooded", "Flood", format!("message {n}")),
            );
            if n % 100 == 0 {
                tokio::task::yield_now().await;
            }
        }
        let metrics = desk.close().await;
        assert_eq!(
            (metrics.observed, metrics.dropped, metrics.rejected),
            (10_000, 0, 0)
        );
        assert!((1..=4).contains(&metrics.written), "{metrics:?}");
        let events = self.series_of("flood").await;
        let [event] = events.as_slice() else {
            panic!("one series: {events:?}")
        };
        let series = event.series.as_ref().expect("it happened more than once");
        assert_eq!(series.count, 10_000);
        assert_eq!(
            event.note.as_deref(),
            Some("message 0"),
            "the first note stays"
        );
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(
            event.reporting_controller.as_deref(),
            Some("example.dev/test")
        );
        assert!(Some(&series.last_observed_time) >= event.event_time.as_ref());
        assert_eq!(event.regarding.as_ref().unwrap().uid, object.metadata.uid);
    }

    async fn c61_a_flood_of_counts_is_rationed(&self) {
        let object = self.object("rationed").await;
        let desk = self.open(EventForm::Count);
        for n in 0..10_000 {
            desk.events.record(&object, notice());
            if n % 100 == 0 {
                tokio::task::yield_now().await;
            }
        }
        let metrics = desk.close().await;
        assert_eq!((metrics.filtered, metrics.rejected), (9_975, 0));
        assert!((1..=25).contains(&metrics.written), "{metrics:?}");
        let events = self.counts_of("rationed").await;
        assert_eq!(events.len(), 1);
        assert!(events[0].count >= Some(25), "{:?}", events[0].count);
    }

    async fn e2_similar_events_are_combined_and_rationed(&self) {
        let object = self.object("similar").await;
        let desk = self.open(EventForm::Count);
        for n in 0..100 {
            desk.events.record(
                &object,
                Notice::normal("Similar", "Act", format!("message {n}")),
            );
        }
        desk.quiet().await;
        let metrics = desk.close().await;
        assert_eq!((metrics.rejected, metrics.filtered), (0, 75));
        assert!(metrics.written <= 25, "{metrics:?}");
        let events = self.counts_of("similar").await;
        let combined: Vec<_> = events
            .iter()
            .filter(|event| {
                event
                    .message
                    .as_ref()
                    .unwrap()
                    .starts_with("(combined from similar events): ")
            })
            .collect();
        assert_eq!((events.len(), combined.len()), (10, 1));
        assert!(combined[0].count >= Some(16), "{:?}", combined[0].count);
        assert!(combined[0].last_timestamp >= combined[0].first_timestamp);
        let source = combined[0].source.as_ref().unwrap();
        assert_eq!(source.component.as_deref(), Some("example.dev/test"));
    }

    async fn e1_an_event_that_is_deleted_comes_back_with_its_count(&self) {
        let object = self.object("again").await;
        let desk = self.open(EventForm::Count);
        desk.events.record(&object, notice());
        desk.quiet().await;
        let first = self.counts_of("again").await;
        let name = first[0].metadata.name.clone().unwrap();
        let api: Api<CoreEvent> = Api::namespaced(self.0.clone(), "default");
        api.delete(&name, &DeleteParams::default()).await.unwrap();
        desk.events.record(&object, notice());
        let metrics = desk.close().await;
        assert_eq!((metrics.written, metrics.rejected), (2, 0));
        let events = self.counts_of("again").await;
        assert_eq!(events.len(), 1);
        assert_eq!(
            (events[0].count, events[0].metadata.name.as_deref()),
            (Some(2), Some(&*name))
        );
    }

    async fn c67_an_event_lies_with_its_object(&self) {
        let mut node = Node::default();
        node.metadata.name = Some("a-node".to_owned());
        let mut role = k8s_openapi::api::rbac::v1::ClusterRole::default();
        role.metadata.name = Some("system:a-role".to_owned());
        let object = self.object("lies").await;
        for form in FORMS {
            let desk = self.open(form);
            desk.events.record(&node, notice().related(&object));
            desk.events.record(&role, notice());
            desk.events
                .record(&object, notice().annotated("example.dev/a", "b"));
            let metrics = desk.close().await;
            assert_eq!((metrics.written, metrics.rejected), (3, 0), "{form:?}");
        }
        let events = self.series_of("a-node").await;
        assert_eq!(events.len(), 2, "one of each form, both in `default`");
        assert!(
            events
                .iter()
                .all(|event| event.related.as_ref().unwrap().name.as_deref() == Some("lies"))
        );
        assert!(
            events
                .iter()
                .all(|event| event.metadata.name.as_ref().unwrap().starts_with("a-node."))
        );
        assert_eq!(
            self.series_of("system:a-role").await.len(),
            2,
            "under random names"
        );
        let events = self.counts_of("lies").await;
        let annotated = |event: &CoreEvent| {
            event.metadata.annotations.as_ref().unwrap()["example.dev/a"] == "b"
        };
        assert!(events.len() == 2 && events.iter().all(annotated));
    }
}

mod embedded {
    use devcluster::DevCluster;

    use super::Scenes;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn e1_e2_c66_c67_events_arrive_with_their_counts() {
        let cluster = DevCluster::builder().start().await.unwrap();
        Box::pin(Scenes(cluster.client()).play()).await;
        cluster.shutdown().await;
    }
}

mod real {
    use super::Scenes;
    use crate::servers;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn e1_e2_c66_c67_events_arrive_with_their_counts() {
        let Some((_cluster, client)) = servers::real().await else {
            return;
        };
        Box::pin(Scenes(client).play()).await;
    }
}
