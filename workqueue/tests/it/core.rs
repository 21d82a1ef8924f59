//! W1–W9: adding, taking, ending runs, shutting down.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use workqueue::{
    Item, KeyId, QueueOptions, WorkQueue,
    order::{Keys, Order},
};

use crate::support::{self, Task, ms, queue, take_all};

#[test]
fn w01_an_add_appends_the_key_and_wakes_one_waiter() {
    let (queue, _) = queue();
    let mut waiters = [Task::waiting(queue.get()), Task::waiting(queue.get())];
    queue.add("a");
    assert_eq!(waiters.each_ref().map(Task::wakes).iter().sum::<usize>(), 1);
    queue.add("b");
    assert_eq!(waiters.each_ref().map(Task::wakes), [1, 1]);
    let items = waiters.each_mut().map(|waiter| waiter.output().unwrap());
    let mut keys = items.each_ref().map(|item| *item.key());
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b"]);
}

#[test]
fn w01_keys_leave_in_the_order_of_arrival() {
    let (queue, _) = queue();
    for key in ["c", "a", "b"] {
        queue.add(key);
    }
    assert_eq!(take_all(&queue), ["c", "a", "b"]);
}

#[test]
fn w02_q03_adding_a_waiting_key_changes_nothing() {
    let (queue, _) = queue();
    for key in ["a", "b", "a"] {
        queue.add(key);
    }
    assert_eq!(queue.len(), 2);
    assert_eq!(take_all(&queue), ["a", "b"]);
}

#[test]
fn q03_a_key_added_during_its_run_comes_again_and_only_once() {
    let (queue, _) = queue();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add("a");
    assert_eq!(queue.len(), 0);
    drop(item);
    assert_eq!(queue.len(), 1);
    let again = queue.try_get().unwrap();
    assert_eq!(*again, "a");
    drop(again);
    assert_eq!(queue.len(), 0);
}

#[test]
fn q04_w03_any_number_of_adds_is_one_hand_out() {
    let (queue, _) = queue();
    queue.add("a");
    queue.add("a");
    let item = queue.try_get().unwrap();
    assert!(queue.try_get().is_none());
    for _ in 0..5 {
        queue.add("a");
    }
    queue.add("b");
    drop(item);
    assert_eq!(
        take_all(&queue),
        ["b", "a"],
        "the re-run stands at the tail"
    );
}

#[test]
fn w03_the_end_of_a_run_calls_a_waiter_for_the_key_that_was_added_meanwhile() {
    let (queue, _) = queue();
    queue.add("a");
    let item = queue.try_get().unwrap();
    let mut waiter = Task::waiting(queue.get());
    queue.add("a");
    assert_eq!(waiter.wakes(), 0);
    drop(item);
    assert_eq!(waiter.wakes(), 1);
    assert_eq!(waiter.output().map(|item| *item), Some("a"));
}

/// Notes which keys are running and complains about one that runs twice.
#[derive(Default)]
struct Runs {
    running: Mutex<HashMap<u32, bool>>,
    ended: Mutex<HashMap<u32, usize>>,
}

impl Runs {
    async fn run(&self, item: &Item<'_, u32>) {
        let before = self.running.lock().insert(**item, true);
        assert_ne!(before, Some(true), "key {} runs twice at once", **item);
        tokio::task::yield_now().await;
        self.running.lock().insert(**item, false);
        *self.ended.lock().entry(**item).or_default() += 1;
    }
}

async fn work(queue: WorkQueue<u32>, runs: Arc<Runs>) {
    while let Some(item) = queue.get().await {
        runs.run(&item).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn q01_many_producers_and_workers_hand_out_every_key_and_none_twice_at_once() {
    for with_drain in [false, true] {
        let queue = WorkQueue::new(QueueOptions::default()).unwrap();
        let runs = Arc::new(Runs::default());
        let mut workers = JoinSet::new();
        for _ in 0..10 {
            workers.spawn(work(queue.clone(), Arc::clone(&runs)));
        }
        let mut producers = JoinSet::new();
        for producer in 0..50 {
            let queue = queue.clone();
            producers.spawn(async move {
                for key in 0..50 {
                    queue.add(producer * 50 + key);
                    queue.add(key);
                    tokio::task::yield_now().await;
                }
            });
        }
        producers.join_all().await;
        if with_drain {
            queue.shut_down_with_drain().await;
            assert_eq!(queue.running(), 0);
        } else {
            queue.shut_down();
        }
        queue.add(99_999);
        workers.join_all().await;
        assert_eq!(queue.len(), 0);
        let ended = runs.ended.lock();
        assert_eq!(ended.len(), 2500);
        assert!(!ended.contains_key(&99_999));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn q02_a_key_added_while_it_runs_comes_again_only_after_its_end() {
    let queue = WorkQueue::new(QueueOptions::default()).unwrap();
    let runs = Arc::new(Runs::default());
    let mut producers = JoinSet::new();
    for _ in 0..25 {
        let queue = queue.clone();
        producers.spawn(async move {
            for _ in 0..200 {
                queue.add(7);
                tokio::task::yield_now().await;
            }
        });
    }
    let mut workers = JoinSet::new();
    for _ in 0..10 {
        workers.spawn(work(queue.clone(), Arc::clone(&runs)));
    }
    producers.join_all().await;
    let before_the_last = runs.ended.lock().get(&7).copied().unwrap_or(0);
    queue.add(7);
    queue.shut_down_with_drain().await;
    workers.join_all().await;
    assert!(runs.ended.lock()[&7] > before_the_last);
}

#[test]
fn q07_w14_a_finished_key_is_dropped() {
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Key(u32, Arc<()>);

    let (queue, _) = queue();
    let alive = Arc::new(());
    for n in 0..1000 {
        queue.add(Key(n, Arc::clone(&alive)));
    }
    assert_eq!(Arc::strong_count(&alive), 1001);
    while let Some(item) = queue.try_get() {
        drop(item);
    }
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn q09_w06_an_item_ends_one_run_and_nothing_else() {
    // There is no call that ends the run of a key which is not running: an item ends its own run,
    // once. So a dirty key cannot be put in line twice.
    let (queue, _) = queue();
    queue.add("a");
    let first = queue.try_get().unwrap();
    queue.add("a");
    drop(first);
    let second = queue.try_get().unwrap();
    queue.add("a");
    assert_eq!((queue.len(), queue.running()), (0, 1));
    drop(second);
    assert_eq!(take_all(&queue), ["a"]);
    assert_eq!((queue.len(), queue.running()), (0, 0));
}

#[test]
fn q09_w09_adds_after_shutdown_leave_no_trace() {
    let (queue, clock) = queue();
    queue.shut_down();
    queue.add("a");
    queue.add_after("b", ms(5));
    queue.add_rate_limited("c");
    clock.advance(ms(10_000));
    assert_eq!((queue.len(), queue.delayed(), queue.failing()), (0, 0, 0));
    assert_eq!(queue.num_requeues(&"c"), 0);
    assert!(Task::new(queue.get()).output().is_none());
}

#[test]
fn w09_shutdown_wakes_all_waiters_and_ready_keys_still_go_out() {
    let (queue, _) = queue::<&str>();
    let mut waiters = [Task::waiting(queue.get()), Task::waiting(queue.get())];
    queue.shut_down();
    queue.shut_down();
    assert_eq!(waiters.each_ref().map(Task::wakes), [1, 1]);
    assert!(waiters.iter_mut().all(|waiter| waiter.output().is_none()));

    let (queue, _) = support::queue();
    queue.add("a");
    queue.add_after("b", ms(1));
    queue.shut_down();
    assert_eq!(queue.delayed(), 0);
    assert_eq!(Task::new(queue.get()).output().map(|item| *item), Some("a"));
    assert!(Task::new(queue.get()).output().is_none());
}

#[test]
fn w09_a_key_added_during_its_run_survives_shutdown() {
    let (queue, _) = queue();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add("a");
    queue.shut_down();
    assert!(
        Task::new(queue.get()).output().is_none(),
        "nothing is ready now"
    );
    drop(item);
    assert_eq!(Task::new(queue.get()).output().map(|item| *item), Some("a"));
}

#[test]
fn q10_w04_a_get_dropped_after_its_wake_up_passes_it_on() {
    let (queue, _) = queue();
    let mut first = Task::waiting(queue.get());
    let second = Task::waiting(queue.get());
    queue.add("a");
    // The first one leads, so the second is called.
    assert_eq!((first.wakes(), second.wakes()), (0, 1));
    drop(second);
    assert_eq!(first.wakes(), 1);
    assert_eq!(first.output().map(|item| *item), Some("a"));
}

#[test]
fn w04_a_get_dropped_while_it_waits_takes_no_wake_up_with_it() {
    let (queue, _) = queue();
    let gone = Task::waiting(queue.get());
    let mut waiter = Task::waiting(queue.get());
    drop(gone);
    queue.add("a");
    assert_eq!(waiter.wakes(), 1);
    assert_eq!(waiter.output().map(|item| *item), Some("a"));
}

#[test]
fn w04_a_get_that_finds_its_key_taken_waits_on_and_keeps_its_place() {
    let (queue, _) = queue();
    let mut first = Task::waiting(queue.get());
    queue.add("a");
    assert!(queue.try_get().is_some());
    assert!(first.poll().is_pending());
    let mut second = Task::waiting(queue.get());
    queue.add("b");
    queue.add("c");
    assert_eq!((first.wakes(), second.wakes()), (2, 1));
    assert!(first.output().is_some() && second.output().is_some());
}

#[tokio::test]
async fn q10_w07_a_worker_aborted_with_an_item_ends_its_run() {
    let queue = WorkQueue::<u32>::new(QueueOptions::default()).unwrap();
    queue.add(1);
    let holds = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    let worker = tasks.spawn({
        let (queue, holds) = (queue.clone(), Arc::clone(&holds));
        async move {
            let _item = queue.get().await;
            holds.store(true, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
    });
    while !holds.load(Ordering::SeqCst) {
        tokio::task::yield_now().await;
    }
    assert_eq!(queue.running(), 1);
    queue.add(1);
    worker.abort();
    assert!(tasks.join_next().await.unwrap().unwrap_err().is_cancelled());
    assert_eq!((queue.running(), queue.len()), (0, 1));
    assert_eq!(take_all(&queue), [1]);
}

#[test]
fn w07_a_panic_ends_the_run_and_the_key_can_be_retried() {
    let (queue, clock) = queue();
    queue.add("a");
    let item = queue.try_get().unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let item = item;
        item.add_rate_limited();
        panic!("handler of {}", *item);
    }));
    assert!(panic.is_err());
    assert_eq!((queue.running(), queue.len(), queue.delayed()), (0, 0, 1));
    clock.advance(ms(1));
    assert_eq!(take_all(&queue), ["a"]);
}

#[test]
fn w08_each_count_counts_its_own_keys() {
    let (queue, clock) = queue();
    queue.add("running");
    let item = queue.try_get().unwrap();
    queue.add("running");
    queue.add("ready");
    queue.add_after("delayed", ms(10));
    queue.add_rate_limited("failing");
    let counts = || {
        (
            queue.len(),
            queue.running(),
            queue.delayed(),
            queue.failing(),
        )
    };
    assert_eq!(counts(), (1, 1, 2, 1));
    clock.advance(ms(10));
    assert_eq!(counts(), (3, 1, 0, 1));
    drop(item);
    assert_eq!(counts(), (4, 0, 0, 1));
    queue.forget(&"failing");
    assert_eq!(counts(), (4, 0, 0, 0));
}

#[test]
fn w15_a_key_needs_no_more_than_clone_eq_and_hash_and_is_hashed_once_an_operation() {
    static HASHED: AtomicUsize = AtomicUsize::new(0);

    #[derive(Clone, PartialEq, Eq)]
    struct Key(u8);

    impl std::hash::Hash for Key {
        fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
            HASHED.fetch_add(1, Ordering::SeqCst);
            self.0.hash(state);
        }
    }

    let (queue, _) = queue();
    let hashed = |operation: &str, expected: usize, f: &dyn Fn()| {
        let before = HASHED.load(Ordering::SeqCst);
        f();
        assert_eq!(
            HASHED.load(Ordering::SeqCst) - before,
            expected,
            "{operation}"
        );
    };
    hashed("add", 1, &|| queue.add(Key(1)));
    let key = Key(1);
    hashed("add again", 1, &|| queue.add(&key));
    hashed("take, retry, end", 0, &|| {
        let item = queue.try_get().unwrap();
        item.add_rate_limited();
        assert_eq!(item.num_requeues(), 1);
        item.forget();
    });
    hashed("add rate limited", 1, &|| queue.add_rate_limited(&key));
    hashed("forget", 1, &|| queue.forget(&Key(1)));
}

#[test]
fn a_borrowed_key_is_cloned_only_when_it_is_new() {
    #[derive(PartialEq, Eq, Hash)]
    struct Key(u8);

    static CLONES: AtomicUsize = AtomicUsize::new(0);

    impl Clone for Key {
        fn clone(&self) -> Self {
            CLONES.fetch_add(1, Ordering::SeqCst);
            Self(self.0)
        }
    }

    let (queue, _) = queue::<Key>();
    let key = Key(1);
    for _ in 0..10 {
        queue.add(&key);
        queue.add_after(&key, ms(5));
    }
    drop(queue.try_get());
    assert_eq!(CLONES.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_worker_that_always_finds_a_key_lets_other_tasks_run() {
    let queue = WorkQueue::new(QueueOptions::default()).unwrap();
    let other_ran = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let (queue, other_ran) = (queue.clone(), Arc::clone(&other_ran));
        async move {
            while let Some(item) = queue.get().await {
                if !other_ran.load(Ordering::SeqCst) {
                    queue.add(*item);
                }
            }
        }
    });
    queue.add(1);
    tokio::task::yield_now().await;
    other_ran.store(true, Ordering::SeqCst);
    queue.shut_down();
    tasks.join_all().await;
}

#[test]
fn handles_are_one_queue_and_tell_about_it() {
    let (queue, _) = queue();
    let other = queue.clone();
    other.add("a");
    assert!(!queue.is_empty());
    let item = queue.try_get().unwrap();
    assert_eq!(format!("{item:?}"), r#"Item { key: "a", priority: 0, .. }"#);
    assert!(format!("{queue:?}").contains("running: 1"));
    assert!(!queue.is_shut_down());
    other.shut_down();
    assert!(queue.is_shut_down());
}

/// The latest goes first: a policy that a user writes.
#[derive(Default)]
struct Latest {
    stack: Vec<KeyId>,
    touched: Arc<AtomicUsize>,
}

impl<K: 'static> Order<K> for Latest {
    type Slot = ();

    fn push(&mut self, _: &mut Keys<'_, K, ()>, id: KeyId, _: u64) {
        self.stack.push(id);
    }

    fn touch(&mut self, _: &mut Keys<'_, K, ()>, _: KeyId, _: u64) {
        self.touched.fetch_add(1, Ordering::Relaxed);
    }

    fn pop(&mut self, _: &mut Keys<'_, K, ()>) -> Option<KeyId> {
        self.stack.pop()
    }

    fn clear(&mut self, _: &mut Keys<'_, K, ()>) {
        self.stack.clear();
    }

    fn len(&self) -> usize {
        self.stack.len()
    }
}

#[test]
fn w13_the_order_is_a_policy_that_users_can_write() {
    let touched = Arc::new(AtomicUsize::new(0));
    let latest = || Latest {
        touched: Arc::clone(&touched),
        ..Latest::default()
    };
    let queue = WorkQueue::with_order(QueueOptions::default(), latest).unwrap();
    for key in ["a", "b", "c"] {
        queue.add(key);
    }
    queue.add("a");
    assert_eq!(
        touched.load(Ordering::Relaxed),
        1,
        "added again while ready"
    );
    let running = queue.try_get().unwrap();
    assert_eq!(*running, "c");
    queue.add("c");
    assert_eq!(touched.load(Ordering::Relaxed), 1, "not while it runs");
    assert_eq!(queue.try_get().map(|item| *item), Some("b"));
    drop(running);
    let order: Vec<_> = std::iter::from_fn(|| queue.try_get().map(|item| *item)).collect();
    assert_eq!(order, ["c", "a"]);
}
