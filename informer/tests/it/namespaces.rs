//! Sets of namespaces over scripted sources, in paused time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures::FutureExt as _;
use informer::source::WatchEvent;
use informer::source::scripted::{ListAnswer, Scripted, WatchFeed};
use informer::{
    Error, Event, HandlerOptions, Informer, InformerOptions, Namespaces, ObjectKey, OnMissingKind,
    Part, Synced,
};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube_core::{Expression, Selector};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::*;

/// An object in a namespace; its version is its number.
fn at(namespace: &str, name: &str, version: u64) -> ConfigMap {
    let mut object = object(name, version);
    object.metadata.namespace = Some(namespace.to_owned());
    object
}

/// Sources by what they look at.
#[derive(Clone, Default)]
struct Sources(Arc<Mutex<BTreeMap<String, Vec<Scripted<ConfigMap>>>>>);

impl Sources {
    fn set(&self) -> Namespaces<ConfigMap> {
        let sources = self.clone();
        Namespaces::new(move |part| {
            let mut options = InformerOptions::default();
            part.apply(&mut options);
            let name = match part {
                Part::Namespace(namespace) => namespace.clone(),
                Part::Others(_) => options.field_selector.clone().unwrap_or_default(),
            };
            let source = Scripted::new();
            sources
                .0
                .lock()
                .entry(name)
                .or_default()
                .push(source.clone());
            Informer::from_source("ConfigMap", source, options)
        })
    }

    /// The newest source of a namespace.
    fn of(&self, namespace: &str) -> Scripted<ConfigMap> {
        self.0.lock()[namespace]
            .last()
            .expect("made before")
            .clone()
    }

    fn number(&self, namespace: &str) -> usize {
        self.0.lock().get(namespace).map_or(0, Vec::len)
    }

    fn list(&self, namespace: &str, names: &[&str]) -> WatchFeed<ConfigMap> {
        let source = self.of(namespace);
        let objects = names.iter().map(|name| at(namespace, name, 1));
        source.list(ListAnswer::all(objects, "10"));
        source.watch()
    }
}

struct Running {
    stop: CancellationToken,
    task: JoinSet<Result<(), Error>>,
}

fn start(set: &Namespaces<ConfigMap>) -> Running {
    let stop = CancellationToken::new();
    let (set, token) = (set.clone(), stop.clone());
    let mut task = JoinSet::new();
    task.spawn(async move { set.run(token).await });
    Running { stop, task }
}

/// Notes events with their namespaces.
fn noting(log: &Log) -> impl Fn(&Event<ConfigMap>) + Send + Sync + 'static {
    let log = log.clone();
    move |event| {
        let key = event.key();
        log.push(format!(
            "{} {}",
            key.namespace().unwrap_or_default(),
            show(event)
        ));
    }
}

fn sorted(log: &Log) -> Vec<String> {
    let mut told = log.take();
    told.sort();
    told
}

#[tokio::test(start_paused = true)]
async fn i104_namespaces_come_and_go_while_the_set_runs() {
    let sources = Sources::default();
    let set = sources.set();
    let log = Log::default();
    set.add_index("name", |object: &ConfigMap| {
        object.metadata.name.iter().cloned().collect()
    })
    .unwrap();
    assert!(set.add("one").unwrap() && !set.add("one").unwrap());
    let one = sources.list("one", &["a"]);
    set.add_handler("log", noting(&log), HandlerOptions::default())
        .unwrap();
    let mut running = start(&set);
    set.synced().await;
    assert!(set.has_synced());
    assert_eq!(sorted(&log), ["one +a@1!"]);

    assert!(set.add("two").unwrap());
    assert!(!set.has_synced(), "a namespace has come");
    assert!(Synced::name(&set).contains("namespace two"));
    sources.list("two", &["a", "b"]);
    set.synced().await;
    settle().await;
    assert_eq!(sorted(&log), ["two +a@1!", "two +b@1!"]);
    one.send(WatchEvent::Modified(at("one", "a", 11)));
    settle().await;
    assert_eq!(log.take(), ["one a@1~a@11"]);
    let lister = set.lister();
    assert_eq!(lister.list().len(), 3);
    assert_eq!(lister.by_index("name", "a").unwrap().len(), 2);
    assert_eq!(lister.namespace("two").len(), 2);
    assert!(lister.get(&ObjectKey::namespaced("one", "a")).is_some());
    assert_eq!(lister.select(&Selector::default()).len(), 3);

    assert!(set.remove("one").await);
    assert!(!set.remove("one").await);
    assert_eq!(log.take(), ["one -?a@11"], "told before the removal ends");
    settle().await;
    assert_eq!(lister.list().len(), 2);
    assert_eq!(lister.namespace("one"), Vec::new());
    assert!(one.is_abandoned());
    assert_eq!(set.names(), ["two".to_owned()].into());

    running.stop.cancel();
    running.task.join_next().await.unwrap().unwrap().unwrap();
    assert!(matches!(set.add("three"), Err(Error::Stopped { .. })));
    assert!(matches!(
        set.run(CancellationToken::new()).await,
        Err(Error::AlreadyRan { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn i104_a_namespace_that_comes_back_waits_for_the_end_of_the_one_before() {
    let sources = Sources::default();
    let set = sources.set();
    let log = Log::default();
    let told = log.clone();
    set.add("one").unwrap();
    sources.list("one", &["a"]);
    let _running = start(&set);
    set.synced().await;
    set.add_handler("log", noting(&told), HandlerOptions::default())
        .unwrap();
    settle().await;
    let removal = set.remove("one");
    let back = async {
        assert!(set.add("one").unwrap());
        assert_eq!(sources.number("one"), 1, "not before the end");
    };
    let (removed, ()) = tokio::join!(removal, back);
    assert!(removed);
    settle().await;
    assert_eq!(sources.number("one"), 2);
    sources.list("one", &["a"]);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(log.take(), ["one +a@1!", "one -?a@1", "one +a@1!"]);
}

#[tokio::test(start_paused = true)]
async fn i103_an_entry_for_all_others_leaves_out_the_named_ones() {
    let sources = Sources::default();
    let set = sources.set();
    set.add("one").unwrap();
    set.add("two").unwrap();
    assert!(set.add_others().unwrap() && !set.add_others().unwrap());
    let late = set.add("three").unwrap_err();
    assert!(
        late.to_string().contains("add it before `add_others`"),
        "{late}"
    );
    sources.list("one", &["a"]);
    sources.list("two", &[]);
    let others = "metadata.namespace!=one,metadata.namespace!=two";
    sources
        .of(others)
        .list(ListAnswer::all([at("three", "c", 1)], "10"));
    let _running = start(&set);
    set.synced().await;
    let lister = set.lister();
    assert_eq!(lister.list().len(), 2);
    assert!(lister.get(&ObjectKey::namespaced("three", "c")).is_some());
    assert_eq!(lister.namespace("three").len(), 1);
    assert!(lister.namespace("two").is_empty());
}

fn namespace(name: &str, team: &str, version: u64) -> Namespace {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    namespace.metadata.uid = Some(name.to_owned());
    namespace.metadata.resource_version = Some(version.to_string());
    namespace.metadata.labels = Some([("team".to_owned(), team.to_owned())].into());
    namespace
}

fn team(name: &str) -> Selector {
    Expression::Equal("team".to_owned(), name.to_owned()).into()
}

#[tokio::test(start_paused = true)]
async fn i104_labels_of_namespaces_choose_them() {
    let source = Scripted::<Namespace>::new();
    let namespaces =
        Informer::from_source("Namespace", source.clone(), InformerOptions::default()).unwrap();
    source.list(ListAnswer::all(
        [namespace("one", "a", 1), namespace("two", "b", 2)],
        "10",
    ));
    let feed = source.watch();
    let sources = Sources::default();
    let set = sources.set();
    set.choose(&namespaces, team("a")).unwrap();
    let _running = start(&set);
    let mut task = JoinSet::new();
    let informer = namespaces.clone();
    task.spawn(async move { informer.run(CancellationToken::new()).await });
    let names = || set.names().into_iter().collect::<Vec<_>>();
    settle().await;
    assert_eq!(names(), ["one"]);
    feed.send(WatchEvent::Modified(namespace("two", "a", 11)));
    feed.send(WatchEvent::Added(namespace("three", "a", 12)));
    settle().await;
    assert_eq!(names(), ["one", "three", "two"]);
    feed.send(WatchEvent::Modified(namespace("one", "b", 13)));
    feed.send(WatchEvent::Deleted(namespace("three", "a", 14)));
    settle().await;
    assert_eq!(names(), ["two"]);
}

#[tokio::test(start_paused = true)]
async fn i103_a_removed_handler_is_called_for_no_namespace() {
    let sources = Sources::default();
    let set = sources.set();
    set.add("one").unwrap();
    let one = sources.list("one", &[]);
    let log = Log::default();
    let handler = set
        .add_handler("log", noting(&log), HandlerOptions::default())
        .unwrap();
    let _running = start(&set);
    set.synced().await;
    assert!(matches!(set.remove_handler(handler).await, Ok(true)));
    assert!(matches!(set.remove_handler(handler).await, Ok(false)));
    set.add("two").unwrap();
    sources.list("two", &["a"]);
    one.send(WatchEvent::Added(at("one", "b", 11)));
    set.synced().await;
    settle().await;
    assert_eq!(log.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_a_set_at_once_and_a_taken_index_is_refused() {
    let sources = Sources::default();
    let set = sources.set();
    set.add("one").unwrap();
    sources.list("one", &["a"]);
    set.add_index("name", |_: &ConfigMap| Vec::new()).unwrap();
    assert!(matches!(
        set.add_index("name", |_: &ConfigMap| Vec::new()),
        Err(Error::IndexExists { .. })
    ));
    let mut running = start(&set);
    set.synced().await;
    let began = Instant::now();
    running.stop.cancel();
    running.task.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn h4_i103_a_registration_of_another_set_removes_no_handler() {
    let (one, other) = (Sources::default().set(), Sources::default().set());
    let log = Log::default();
    let options = HandlerOptions::default();
    let of_one = one
        .add_handler("a", log.handler(), options.clone())
        .unwrap();
    let of_other = other.add_handler("b", log.handler(), options).unwrap();
    assert!(!other.remove_handler(of_one).await.unwrap());
    assert!(other.remove_handler(of_other).await.unwrap());
    assert!(one.remove_handler(of_one).await.unwrap());
    assert!(
        !one.remove_handler(of_one).await.unwrap(),
        "again: harmless"
    );
}

/// Counts how often a task is woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(start_paused = true)]
async fn i91_waiting_for_a_set_that_has_ended_or_lost_a_member_goes_on_quietly() {
    for how in ["stop", "a kind that is missing"] {
        let sources = Sources::default();
        let set = Namespaces::new({
            let sources = sources.clone();
            move |part| {
                let Part::Namespace(namespace) = part else {
                    unreachable!("only named ones are added")
                };
                let source = Scripted::new();
                let mut all = sources.0.lock();
                all.entry(namespace.clone())
                    .or_default()
                    .push(source.clone());
                let options = InformerOptions {
                    on_missing_kind: OnMissingKind::Stop,
                    ..InformerOptions::default()
                };
                Informer::from_source("ConfigMap", source, options)
            }
        });
        set.add("a").unwrap();
        set.add("b").unwrap();
        let _b = sources.list("b", &["x"]);
        let mut running = start(&set);
        settle().await;
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut synced = set.synced();
        let mut context = Context::from_waker(&waker);
        assert!(synced.as_mut().poll(&mut context).is_pending());
        let missing = how != "stop";
        if missing {
            sources
                .of("a")
                .list(ListAnswer::Fail(Vec::new(), refusal(404, "NotFound")));
        } else {
            running.stop.cancel();
        }
        let outcome = running.task.join_next().await.unwrap().unwrap();
        assert_eq!(matches!(outcome, Err(Error::KindMissing { .. })), missing);
        // It may be woken to see that; from then on nothing wakes it any more.
        for _ in 0..3 {
            assert!(synced.as_mut().poll(&mut context).is_pending(), "{how}");
        }
        let before = wakes.0.load(Ordering::Relaxed);
        settle().await;
        assert!(synced.as_mut().poll(&mut context).is_pending(), "{how}");
        settle().await;
        assert_eq!(wakes.0.load(Ordering::Relaxed), before, "{how}");
        assert!(!Synced::has_synced(&set), "{how}");
    }
}

#[tokio::test(start_paused = true)]
async fn i93_i104_a_named_namespace_may_come_back_while_its_end_is_waited_for() {
    let registry = informer::metrics::Registry::new();
    let sources = Sources::default();
    let feeds: Arc<Mutex<Vec<WatchFeed<ConfigMap>>>> = Arc::default();
    let set = Namespaces::new({
        let (sources, registry) = (sources.clone(), registry.clone());
        let feeds = Arc::clone(&feeds);
        move |part| {
            let mut options = InformerOptions {
                name: Some(format!("{part:?}")),
                registry: registry.clone(),
                ..InformerOptions::default()
            };
            part.apply(&mut options);
            let source = Scripted::new();
            source.list(ListAnswer::all([at("a", "x", 1)], "10"));
            feeds.lock().push(source.watch());
            let mut all = sources.0.lock();
            all.entry("a".to_owned()).or_default().push(source.clone());
            Informer::from_source("ConfigMap", source, options)
        }
    });
    set.add("a").unwrap();
    let log = Log::default();
    set.add_handler("log", log.handler(), HandlerOptions::default())
        .unwrap();
    let mut running = start(&set);
    settle().await;
    assert_eq!(registry.snapshots().len(), 1);
    let mut removal = Box::pin(set.remove("a"));
    assert!(
        (&mut removal).now_or_never().is_none(),
        "its end takes a while"
    );
    let waits = set.clone();
    let mut waiting = JoinSet::new();
    waiting.spawn(async move { waits.synced().await });
    assert!(set.add("a").unwrap());
    assert!(removal.await);
    settle().await;
    assert_eq!(sources.number("a"), 2);
    assert_eq!(log.take(), ["+x@1!", "-?x@1", "+x@1!"]);
    assert_eq!(registry.snapshots().len(), 1);
    running.stop.cancel();
    running.task.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(registry.render(), "", "the names are free");
}

#[tokio::test(start_paused = true)]
async fn i104_a_choice_by_labels_leaves_alone_what_was_added_by_name() {
    let source = Scripted::new();
    let all: Informer<Namespace> =
        Informer::from_source("Namespace", source.clone(), InformerOptions::default()).unwrap();
    let set = Sources::default().set();
    set.add("by-hand").unwrap();
    set.add("both").unwrap();
    set.choose(&all, team("a")).unwrap();
    let list = [
        namespace("by-hand", "b", 1),
        namespace("both", "a", 2),
        namespace("chosen", "a", 3),
    ];
    source.list(ListAnswer::all(list, "10"));
    let feed = source.watch();
    let mut task = JoinSet::new();
    let running = all.clone();
    task.spawn(async move { running.run(CancellationToken::new()).await });
    settle().await;
    let names = |set: &Namespaces<ConfigMap>| set.names().into_iter().collect::<Vec<_>>();
    assert_eq!(names(&set), ["both", "by-hand", "chosen"]);
    for (name, version) in [("by-hand", 11), ("both", 12), ("chosen", 13)] {
        feed.send(WatchEvent::Modified(namespace(name, "c", version)));
    }
    settle().await;
    assert_eq!(names(&set), ["both", "by-hand"]);
}

#[tokio::test(start_paused = true)]
async fn i104_a_namespace_stays_until_nobody_asks_for_it_whoever_asked_first() {
    let source = Scripted::new();
    let all: Informer<Namespace> =
        Informer::from_source("Namespace", source.clone(), InformerOptions::default()).unwrap();
    let set = Sources::default().set();
    let names = || set.names().into_iter().collect::<Vec<_>>().join(" ");
    let of_a = set.choose(&all, team("a")).unwrap();
    let not_b = Expression::NotEqual("team".to_owned(), "b".to_owned());
    set.choose(&all, not_b.into()).unwrap();
    source.list(ListAnswer::all([namespace("one", "a", 1)], "10"));
    let feed = source.watch();
    let mut task = JoinSet::new();
    let running = all.clone();
    task.spawn(async move { running.run(CancellationToken::new()).await });
    settle().await;
    assert!(!set.add("one").unwrap(), "it is there by its labels");
    let mut version = 10;
    let mut labelled = async |team: &str| {
        version += 1;
        feed.send(WatchEvent::Modified(namespace("one", team, version)));
        settle().await;
    };
    labelled("b").await;
    assert_eq!(names(), "one", "it was asked for by name since");
    assert!(set.remove("one").await);
    assert_eq!(names(), "");
    assert!(set.add("one").unwrap());
    labelled("a").await;
    assert!(set.remove("one").await, "it was asked for by name");
    assert_eq!(names(), "one", "two choices have it");
    assert!(!set.remove("one").await, "and nobody by name");
    labelled("c").await;
    assert_eq!(names(), "one", "one choice has it");
    labelled("b").await;
    assert_eq!(names(), "");
    labelled("a").await;
    of_a.shutdown().await.unwrap();
    settle().await;
    labelled("b").await;
    assert_eq!(names(), "one", "what an ended choice had stays");
    assert!(set.remove("one").await, "as if it had been added by name");
    assert_eq!(names(), "");
}

#[tokio::test(start_paused = true)]
async fn i103_i104_a_chosen_namespace_may_be_asked_for_by_name_beside_all_others() {
    let source = Scripted::new();
    let all: Informer<Namespace> =
        Informer::from_source("Namespace", source.clone(), InformerOptions::default()).unwrap();
    let set = Sources::default().set();
    set.choose(&all, team("a")).unwrap();
    source.list(ListAnswer::all([namespace("one", "a", 1)], "10"));
    let mut task = JoinSet::new();
    task.spawn(async move { all.run(CancellationToken::new()).await });
    settle().await;
    set.add_others().unwrap();
    assert!(!set.add("one").unwrap());
    assert!(matches!(set.add("two"), Err(Error::InvalidOption { .. })));
}

#[tokio::test(start_paused = true)]
async fn i104_a_set_that_has_ended_is_freed_though_its_handler_reads_it() {
    let sources = Sources::default();
    let set = sources.set();
    set.add("a").unwrap();
    let (reads, own) = (set.lister(), set.clone());
    let handler = move |_: &Event<ConfigMap>| {
        let _: (usize, usize) = (reads.list().len(), own.names().len());
    };
    set.add_handler("reads", handler, HandlerOptions::default())
        .unwrap();
    let feed = sources.list("a", &["x"]);
    let mut running = start(&set);
    settle().await;
    let object = Arc::downgrade(&set.lister().list()[0]);
    running.stop.cancel();
    running.task.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(object.strong_count(), 1);
    drop((set, sources, feed));
    assert_eq!(object.strong_count(), 0);
}
