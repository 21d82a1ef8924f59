//! Any sequence of changes, cuts, compactions and failures ends with store, index and every
//! handler's view equal to the server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _};
use informer::source::{
    Error as SourceError, ListEnd, ListPart, ListRequest, ListVersion, ListWatch, WatchEvent,
    WatchRequest, WatchStream,
};
use informer::{Event, Informer, InformerOptions, compare_versions};
use k8s_openapi::api::core::v1::ConfigMap;
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::sync::mpsc;

use crate::support::*;

type Sender = mpsc::Sender<Result<Vec<WatchEvent<ConfigMap>>, SourceError>>;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Added,
    Modified,
    Deleted,
}

fn event(kind: Kind, object: ConfigMap) -> WatchEvent<ConfigMap> {
    match kind {
        Kind::Added => WatchEvent::Added(object),
        Kind::Modified => WatchEvent::Modified(object),
        Kind::Deleted => WatchEvent::Deleted(object),
    }
}

/// A server with a history that can be cut and forgotten.
#[derive(Default)]
struct World {
    version: u64,
    lives: u64,
    objects: BTreeMap<String, ConfigMap>,
    history: Vec<(u64, Kind, ConfigMap)>,
    /// Versions below this are forgotten.
    compacted: u64,
    watchers: Vec<Sender>,
    failing_calls: u32,
}

impl World {
    fn change(&mut self, name: &str, delete: bool) {
        self.version += 1;
        let version = self.version;
        let (kind, object) = match (self.objects.get(name), delete) {
            (None, true) => return,
            (Some(known), true) => {
                let mut last = known.clone();
                last.metadata.resource_version = Some(version.to_string());
                self.objects.remove(name);
                (Kind::Deleted, last)
            }
            (known, false) => {
                let uid = known
                    .and_then(|known| known.metadata.uid.clone())
                    .unwrap_or_else(|| {
                        self.lives += 1;
                        self.lives.to_string()
                    });
                let kind = if known.is_some() {
                    Kind::Modified
                } else {
                    Kind::Added
                };
                let object = object_of(name, &uid, version);
                self.objects.insert(name.to_owned(), object.clone());
                (kind, object)
            }
        };
        self.history.push((version, kind, object.clone()));
        for watcher in &self.watchers {
            drop(watcher.try_send(Ok(vec![event(kind, object.clone())])));
        }
    }

    fn fails(&mut self) -> bool {
        let fails = self.failing_calls > 0;
        self.failing_calls = self.failing_calls.saturating_sub(1);
        fails
    }
}

#[derive(Clone, Default)]
struct Server {
    world: Arc<Mutex<World>>,
    streams: bool,
}

impl ListWatch<ConfigMap> for Server {
    fn list(
        &self,
        request: ListRequest,
    ) -> BoxStream<'static, Result<ListPart<ConfigMap>, SourceError>> {
        let mut world = self.world.lock();
        if world.fails() {
            return stream::iter([Err(refusal(503, "ServiceUnavailable"))]).boxed();
        }
        if let ListVersion::NotOlderThan(version) = &request.version {
            let shown = world.version.to_string();
            let known = compare_versions(version, &shown).is_none_or(|order| order.is_le());
            assert!(known, "a version from the future: {version}");
        }
        let items = world.objects.values().cloned().map(Ok).collect();
        let end = ListEnd {
            resource_version: world.version.to_string(),
            continue_token: None,
        };
        stream::iter([Ok(ListPart::Items(items)), Ok(ListPart::End(end))]).boxed()
    }

    fn watch(
        &self,
        request: WatchRequest,
    ) -> BoxFuture<'static, Result<WatchStream<ConfigMap>, SourceError>> {
        let mut world = self.world.lock();
        let from: u64 = request.resource_version.parse().unwrap_or(0);
        if world.fails() {
            return Box::pin(async { Err(refusal(500, "InternalError")) });
        }
        if request.initial_events {
            let initial = world.objects.values().cloned().map(WatchEvent::Added);
            let end = WatchEvent::Bookmark {
                resource_version: world.version.to_string(),
                initial_events_end: true,
            };
            let initial = initial.chain([end]).collect();
            let (sender, receiver) = mpsc::channel(10_000);
            drop(sender.try_send(Ok(initial)));
            world.watchers.push(sender);
            return Box::pin(async move { Ok(received(receiver)) });
        }
        if from < world.compacted {
            return Box::pin(async { Err(refusal(410, "Expired")) });
        }
        let (sender, receiver) = mpsc::channel(10_000);
        let missed = world.history.iter().filter(|(version, ..)| *version > from);
        let missed: Vec<_> = missed
            .map(|(_, kind, object)| event(*kind, object.clone()))
            .collect();
        if !missed.is_empty() {
            drop(sender.try_send(Ok(missed)));
        }
        world.watchers.push(sender);
        Box::pin(async move { Ok(received(receiver)) })
    }

    fn supports_watch_list(&self) -> bool {
        self.streams
    }
}

fn received(
    receiver: mpsc::Receiver<Result<Vec<WatchEvent<ConfigMap>>, SourceError>>,
) -> WatchStream<ConfigMap> {
    stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|sent| (sent, receiver))
    })
    .boxed()
}

#[derive(Clone, Debug)]
enum Op {
    Change(u8, bool),
    /// All watches end.
    Cut,
    /// The history so far is forgotten.
    Compact,
    /// All watches end with "too old".
    Expire,
    Bookmark,
    FailCalls(u32),
    AddHandler,
    /// A handler that gets every object again each second.
    AddResynced,
    /// The handler of this number, of those that may go, is removed.
    Remove(u8),
    Pass(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        12 => (0..6u8, prop::bool::weighted(0.35)).prop_map(|(at, delete)| Op::Change(at, delete)),
        2 => Just(Op::Cut),
        1 => Just(Op::Compact),
        1 => Just(Op::Expire),
        1 => Just(Op::Bookmark),
        1 => (1..4u32).prop_map(Op::FailCalls),
        1 => Just(Op::AddHandler),
        1 => Just(Op::AddResynced),
        1 => any::<u8>().prop_map(Op::Remove),
        3 => prop_oneof![Just(1), Just(50), Just(5000)].prop_map(Op::Pass),
    ];
    proptest::collection::vec(op, 0..60)
}

/// Objects as told, and events that did not fit.
type Seen = (BTreeMap<String, Arc<ConfigMap>>, Vec<String>);

/// A handler's own picture, and what did not fit into it.
#[derive(Clone, Default)]
struct View(Arc<Mutex<Seen>>);

impl View {
    fn handler(&self) -> impl Fn(&Event<ConfigMap>) + Send + Sync + 'static {
        let view = self.clone();
        move |event| {
            let (objects, problems) = &mut *view.0.lock();
            let name = event.key().name().to_owned();
            let fits = match event {
                Event::Added { object, .. } => objects.insert(name, Arc::clone(object)).is_none(),
                Event::Updated { old, new } => {
                    objects.insert(name, Arc::clone(new)).is_some_and(|before| {
                        Arc::ptr_eq(&before, old) && old.metadata.uid == new.metadata.uid
                    })
                }
                Event::Deleted { object, .. } => objects
                    .remove(&name)
                    .is_some_and(|before| before.metadata.uid == object.metadata.uid),
            };
            if !fits {
                problems.push(show(event));
            }
        }
    }
}

async fn play(ops: Vec<Op>, streams: bool) {
    let server = Server {
        streams,
        ..Server::default()
    };
    let informer = Informer::from_source("ConfigMap", server.clone(), InformerOptions::default())
        .expect("default options are valid");
    informer
        .add_index("uid", |object: &ConfigMap| {
            object.metadata.uid.iter().cloned().collect()
        })
        .expect("the first index of its name");
    let mut views = vec![View::default()];
    informer
        .add_handler("first", views[0].handler())
        .expect("not stopped");
    let queue = informer
        .keyed_queue("keyed", informer::Buffer::Coalesce(4))
        .expect("not stopped");
    let mut guests = Vec::new();
    let run = Run::start(&informer);
    for op in ops {
        match op {
            Op::Change(at, delete) => server.world.lock().change(&format!("o{at}"), delete),
            Op::Cut => server.world.lock().watchers.clear(),
            Op::Compact => {
                let mut world = server.world.lock();
                world.compacted = world.version;
                world.history.clear();
            }
            Op::Expire => {
                let mut world = server.world.lock();
                world.compacted = world.version;
                world.history.clear();
                for watcher in std::mem::take(&mut world.watchers) {
                    let error = WatchEvent::Error(Box::new(status(410, "Expired")));
                    drop(watcher.try_send(Ok(vec![error])));
                }
            }
            Op::Bookmark => {
                let world = server.world.lock();
                for watcher in &world.watchers {
                    drop(watcher.try_send(Ok(vec![bookmark(&world.version.to_string())])));
                }
            }
            Op::FailCalls(n) => server.world.lock().failing_calls = n,
            Op::AddHandler => {
                let view = View::default();
                informer
                    .add_handler("late", view.handler())
                    .expect("not stopped");
                views.push(view);
            }
            Op::AddResynced => {
                let view = View::default();
                let every_second = options(|o| o.resync = Some(Duration::from_secs(1)));
                let guest = informer
                    .add_handler_with("resynced", view.handler(), every_second)
                    .expect("not stopped");
                guests.push((guest, view));
            }
            Op::Remove(at) if !guests.is_empty() => {
                let (guest, view) = guests.remove(usize::from(at) % guests.len());
                guest.shutdown().await.expect("not inside its own call");
                assert_eq!(view.0.lock().1, Vec::<String>::new());
            }
            Op::Remove(_) => {}
            Op::Pass(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
        }
    }
    server.world.lock().failing_calls = 0;
    tokio::time::sleep(Duration::from_secs(300)).await;

    let want: Vec<_> = server
        .world
        .lock()
        .objects
        .values()
        .map(|object| object.metadata.clone())
        .collect();
    let snapshot = informer.lister().snapshot();
    let stored: Vec<_> = snapshot
        .list_sorted()
        .iter()
        .map(|object| object.metadata.clone())
        .collect();
    assert_eq!(stored, want, "store");
    for meta in &want {
        let uid = meta.uid.as_deref().expect("all objects have one");
        let found = snapshot.by_index("uid", uid).expect("added above");
        assert_eq!(found.len(), 1, "index");
    }
    assert_eq!(
        snapshot.index_values("uid").expect("added above").len(),
        want.len()
    );
    let keyed = View::default();
    let tell = keyed.handler();
    while let Some(deltas) = queue.try_pop() {
        deltas.iter().for_each(|delta| tell(&delta.event));
    }
    assert!(queue.has_synced());
    views.push(keyed);
    views.extend(guests.into_iter().map(|(_, view)| view));
    for view in views {
        let (objects, problems) = &*view.0.lock();
        let seen: Vec<_> = objects
            .values()
            .map(|object| object.metadata.clone())
            .collect();
        assert_eq!(seen, want, "a handler's view");
        assert_eq!(problems, &Vec::<String>::new());
    }
    run.end().await.expect("a stop is no error");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn i65_d10_store_index_and_views_equal_the_server_after_any_disruption(
        ops in ops(),
        streams in any::<bool>(),
    ) {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without sockets")
            .block_on(play(ops, streams));
    }
}
