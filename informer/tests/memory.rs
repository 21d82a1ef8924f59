//! What informers hold on the heap, counted by the allocator: H5, H14, I53, I65 and S1.
//!
//! `INFORMER_FULL_LOAD=1` makes the million changes that H14 names; without it there are fewer.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use informer::source::WatchEvent;
use informer::source::scripted::{ListAnswer, Scripted, WatchFeed};
use informer::{Buffer, Event, HandlerOptions, Informer, InformerOptions};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_core::{ObjectMeta, Status};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Counts for each thread, so that tests do not disturb each other; each runs on one thread.
struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
    /// All that were ever asked for.
    static ASKED_BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    LIVE_BYTES.with(|live| live.set(live.get() + bytes));
    ASKED_BYTES.with(|asked| asked.set(asked.get() + bytes.max(0)));
}

fn size(layout: Layout) -> isize {
    isize::try_from(layout.size()).expect("an allocation fits into half the address space")
}

// SAFETY: everything is done by the system's allocator; the counter allocates nothing.
#[expect(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(size(layout));
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-size(layout));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live_bytes() -> isize {
    LIVE_BYTES.with(Cell::get)
}

/// Bytes that a read asks for while it runs.
fn asked_by<T>(read: impl FnOnce() -> T) -> isize {
    let before = ASKED_BYTES.with(Cell::get);
    let result = read();
    let asked = ASKED_BYTES.with(Cell::get) - before;
    drop(result);
    asked
}

fn object(name: u32, version: u64) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(format!("o{name}")),
            namespace: Some("n".to_owned()),
            uid: Some(name.to_string()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        },
        data: Some([("k".to_owned(), "x".repeat(200))].into()),
        ..ConfigMap::default()
    }
}

struct World {
    informer: Informer<ConfigMap>,
    source: Scripted<ConfigMap>,
    feed: WatchFeed<ConfigMap>,
    _task: JoinSet<Result<(), informer::Error>>,
}

/// A running informer over `objects`.
async fn world(objects: impl Iterator<Item = ConfigMap>) -> World {
    let source = Scripted::new();
    source.list(ListAnswer::all(objects, "1"));
    let feed = source.watch();
    let informer =
        Informer::from_source("ConfigMap", source.clone(), InformerOptions::default()).unwrap();
    let mut task = JoinSet::new();
    let running = informer.clone();
    task.spawn(async move { running.run(CancellationToken::new()).await });
    informer.synced().await;
    World {
        informer,
        source,
        feed,
        _task: task,
    }
}

async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn h14_a_stuck_handler_holds_bounded_memory_however_much_changes() {
    const KEYS: u32 = 1000;
    let full = std::env::var_os("INFORMER_FULL_LOAD").is_some();
    let rounds = if full { 1000 } else { 150 };
    let world = world((0..KEYS).map(|at| object(at, 1))).await;
    let handler = {
        let stuck = CancellationToken::new();
        move |_: Event<ConfigMap>| stuck.clone().cancelled_owned()
    };
    let options = HandlerOptions {
        buffer: Buffer::Coalesce(2 * KEYS as usize),
        ..HandlerOptions::default()
    };
    world
        .informer
        .add_async_handler("stuck", handler, options)
        .unwrap();
    let mut version = 1;
    let mut after_ten = 0;
    for round in 0..rounds {
        let mut batch = Vec::new();
        for at in 0..KEYS {
            version += 1;
            let object = object(at, version);
            batch.push(match (round + at) % 7 {
                0 => WatchEvent::Deleted(object),
                _ => WatchEvent::Modified(object),
            });
        }
        world.feed.send_batch(batch);
        settle().await;
        if round == 10 {
            after_ten = live_bytes();
        }
        assert!(
            round <= 10 || live_bytes() < after_ten + after_ten / 2,
            "{} bytes after {round} rounds, {after_ten} after ten",
            live_bytes()
        );
    }
    assert_eq!(world.informer.stats().events, u64::from(rounds * KEYS));
}

#[tokio::test(start_paused = true)]
async fn h5_handlers_that_come_and_go_during_traffic_leave_nothing_behind() {
    let world = world((0..100).map(|at| object(at, 1))).await;
    let mut version = 1;
    let mut before = 0;
    for round in 0..60 {
        let mut registrations = Vec::new();
        for _ in 0..20 {
            let handler = |_: &Event<ConfigMap>| {};
            registrations.push(world.informer.add_handler("guest", handler).unwrap());
            version += 1;
            let at = u32::try_from(version % 100).unwrap();
            world.feed.send(WatchEvent::Modified(object(at, version)));
        }
        settle().await;
        for registration in registrations {
            registration.synced().await;
            registration.shutdown().await.unwrap();
        }
        if round == 5 {
            before = live_bytes();
        }
    }
    let grown = live_bytes() - before;
    assert!(grown < before / 20, "{grown} bytes over {before}");
}

#[tokio::test(start_paused = true)]
async fn i53_a_list_that_repeats_the_cache_leaves_no_second_copy() {
    const KEYS: u32 = 2000;
    let world = world((0..KEYS).map(|at| object(at, 1))).await;
    let kept: Vec<Arc<ConfigMap>> = world.informer.lister().snapshot().list_sorted();
    let second = world.source.watch();
    let before = live_bytes();
    world
        .source
        .list(ListAnswer::all((0..KEYS).map(|at| object(at, 1)), "2"));
    let expired = Status::failure("", "Expired").with_code(410);
    world.feed.send(WatchEvent::Error(Box::new(expired)));
    world.source.called(4).await;
    settle().await;
    assert_eq!(world.informer.status().resource_version, "2");
    let grown = live_bytes() - before;
    assert!(grown < before / 20, "{grown} bytes over {before}");
    let after = world.informer.lister().snapshot().list_sorted();
    assert!(
        kept.iter()
            .zip(&after)
            .all(|(old, new)| Arc::ptr_eq(old, new))
    );
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn s1_a_cache_that_has_shrunk_holds_memory_for_what_is_left() {
    const KEYS: u32 = 40_000;
    const LEFT: u32 = 10;
    let world = world(std::iter::empty()).await;
    let by_name = |object: &ConfigMap| object.metadata.name.iter().cloned().collect();
    world.informer.add_index("name", by_name).unwrap();
    let before = live_bytes();
    let mut version = 1;
    let mut send = |wrap: fn(ConfigMap) -> WatchEvent<ConfigMap>, names: std::ops::Range<u32>| {
        let events = names.map(|at| {
            version += 1;
            wrap(object(at, version))
        });
        world.feed.send_batch(events.collect());
    };
    send(WatchEvent::Added, 0..KEYS);
    settle().await;
    let peak = live_bytes() - before;
    send(WatchEvent::Deleted, LEFT..KEYS);
    settle().await;
    let lister = world.informer.lister();
    assert_eq!(lister.list().len(), LEFT as usize);
    let left = live_bytes() - before;
    assert!(
        left < peak / 1000,
        "{left} bytes for {LEFT} objects, {peak} at the peak"
    );
    send(WatchEvent::Added, KEYS..KEYS + LEFT);
    settle().await;
    for name in [0, KEYS] {
        let found = lister.by_index("name", &format!("o{name}")).unwrap();
        assert_eq!(found.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn i65_reads_ask_for_memory_for_their_result_and_copy_no_object() {
    const KEYS: u32 = 20_000;
    let world = world(std::iter::empty()).await;
    let tens = |object: &ConfigMap| {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let number: u32 = name.trim_start_matches('o').parse().unwrap_or_default();
        vec![(number / 10).to_string()]
    };
    world.informer.add_index("tens", tens).unwrap();
    let added = (0..KEYS).map(|at| WatchEvent::Added(object(at, u64::from(at) + 2)));
    world.feed.send_batch(added.collect());
    settle().await;
    let lister = world.informer.lister();
    assert_eq!(lister.list().len(), KEYS as usize);
    let reference = size_of::<Arc<ConfigMap>>() as isize;
    // A few references that are looked at ahead, and a place or two for the keys of the reader.
    let some = 2048;
    let few = asked_by(|| lister.by_index("tens", "77").unwrap());
    assert!(
        (10 * reference..some).contains(&few),
        "{few} bytes for ten objects"
    );
    let keys = asked_by(|| lister.index_keys("tens", "77").unwrap());
    assert!(keys < 2 * some, "{keys} bytes for ten keys");
    let none = asked_by(|| lister.by_index("tens", "none").unwrap());
    assert!(none < some, "{none} bytes for nothing");
    let all = asked_by(|| lister.list());
    let of_all = KEYS as isize * reference;
    assert!(
        (of_all..of_all + some).contains(&all),
        "{all} bytes for all objects"
    );
}
