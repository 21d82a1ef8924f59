//! W60–W69 and P1–P9: priorities.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;
use workqueue::{
    AddOptions, PriorityQueue, QueueKey, QueueOptions, clock::ManualClock, order::Priority,
};

use crate::support::{Task, after, at_priority, ms, options, take_all};

fn queue<K: QueueKey>() -> (PriorityQueue<K>, ManualClock) {
    let (options, clock) = options();
    (
        PriorityQueue::with_order(options, Priority::default).unwrap(),
        clock,
    )
}

#[test]
fn p1_w60_keys_leave_by_priority_and_equal_ones_by_arrival() {
    let (queue, _) = queue();
    for (key, priority) in [
        ("a", 0),
        ("b", 2),
        ("c", 1),
        ("d", 2),
        ("e", -100),
        ("f", 0),
    ] {
        queue.add_with(key, at_priority(priority));
    }
    let order: Vec<_> =
        std::iter::from_fn(|| queue.try_get().map(|item| (*item.key(), item.priority()))).collect();
    assert_eq!(
        order,
        [
            ("b", 2),
            ("d", 2),
            ("c", 1),
            ("a", 0),
            ("f", 0),
            ("e", -100)
        ]
    );
}

#[test]
fn p2_w64_a_running_key_is_withheld_and_keeps_the_priority_it_gets_meanwhile() {
    let (queue, _) = queue();
    queue.add_with("a", at_priority(1));
    let item = queue.try_get().unwrap();
    queue.add_with("a", at_priority(3));
    queue.add_with("a", at_priority(2));
    queue.add_with("b", at_priority(2));
    assert_eq!(*queue.try_get().unwrap(), "b");
    assert!(queue.try_get().is_none());
    drop(item);
    queue.add_with("c", at_priority(2));
    let again = queue.try_get().unwrap();
    assert_eq!((*again, again.priority()), ("a", 3));
    drop(again);
    queue.add("a");
    assert_eq!(
        take_all(&queue),
        ["c", "a"],
        "what was merged before the run is gone"
    );
}

#[test]
fn p3_w61_w62_adds_merge_to_the_highest_priority() {
    let (queue, _) = queue();
    for (key, priority) in [
        ("low", 1),
        ("x", 0),
        ("high", 3),
        ("x", 2),
        ("y", 2),
        ("x", -5),
    ] {
        queue.add_with(key, at_priority(priority));
    }
    assert_eq!(queue.len(), 4);
    assert_eq!(take_all(&queue), ["high", "x", "y", "low"]);
    for (key, priority) in [("y", 2), ("x", 0), ("x", 2)] {
        queue.add_with(key, at_priority(priority));
    }
    assert_eq!(
        take_all(&queue),
        ["y", "x"],
        "a raised key stands behind its new equals"
    );
}

#[test]
fn p3_w63_a_delayed_key_that_is_due_goes_before_lower_ones_that_wait_for_long() {
    let (queue, clock) = queue();
    queue.add_with("low", at_priority(0));
    queue.add_with(
        "high",
        AddOptions {
            priority: Some(1),
            ..after(ms(10))
        },
    );
    queue.add_with(
        "lower",
        AddOptions {
            priority: Some(-1),
            ..after(ms(5))
        },
    );
    assert_eq!(queue.len(), 1);
    clock.advance(ms(10));
    assert_eq!(queue.len(), 3);
    assert_eq!(take_all(&queue), ["high", "low", "lower"]);
}

#[test]
fn p4_w61_the_shortest_delay_holds_and_no_delay_beats_any() {
    let (queue, clock) = queue();
    for delay in [50, 20, 70] {
        queue.add_with("a", after(ms(delay)));
    }
    clock.advance(ms(20));
    assert_eq!(take_all(&queue), ["a"]);
    clock.advance(ms(100));
    assert_eq!(take_all(&queue), [""; 0]);

    queue.add_with("a", after(ms(50)));
    queue.add("a");
    assert_eq!((queue.len(), queue.delayed()), (1, 0));
    queue.add_with(
        "a",
        AddOptions {
            priority: Some(4),
            ..after(ms(50))
        },
    );
    assert_eq!((queue.len(), queue.delayed()), (1, 0));
    assert_eq!(queue.try_get().unwrap().priority(), 4);
    clock.advance(ms(100));
    assert_eq!(take_all(&queue), [""; 0]);
}

#[test]
fn w63_delayed_keys_merge_their_priorities_too() {
    let (queue, clock) = queue();
    queue.add_with(
        "a",
        AddOptions {
            priority: Some(2),
            ..after(ms(10))
        },
    );
    queue.add_with(
        "a",
        AddOptions {
            priority: Some(5),
            ..after(ms(20))
        },
    );
    queue.add_with(
        "b",
        AddOptions {
            priority: Some(4),
            ..after(ms(10))
        },
    );
    clock.advance(ms(10));
    assert_eq!(take_all(&queue), ["a", "b"]);
}

#[test]
fn w66_a_retry_through_the_item_keeps_the_priority() {
    let (queue, clock) = queue();
    queue.add_with("a", at_priority(-100));
    let item = queue.try_get().unwrap();
    item.add_rate_limited();
    drop(item);
    clock.advance(ms(1));
    let item = queue.try_get().unwrap();
    assert_eq!(item.priority(), -100);
    item.add_with(AddOptions {
        priority: Some(5),
        ..after(ms(1))
    });
    drop(item);
    clock.advance(ms(1));
    assert_eq!(queue.try_get().unwrap().priority(), 5);
}

#[test]
fn p6_w67_shutdown_leaves_no_get_waiting_and_no_ready_key_behind() {
    let (queue, _) = queue::<u32>();
    let mut waiters = [(); 3].map(|()| Task::waiting(queue.get()));
    queue.shut_down();
    assert!(waiters.iter_mut().all(|waiter| waiter.output().is_none()));

    let (queue, _) = self::queue();
    queue.add_with(1, at_priority(1));
    queue.add_with(2, at_priority(2));
    queue.shut_down();
    assert_eq!(take_all(&queue), [2, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p6_w67_ten_thousand_rounds_of_add_done_and_shutdown_never_hang() {
    for round in 0..10_000 {
        let (queue, _) = queue();
        let mut tasks = JoinSet::new();
        for worker in 0..2_u32 {
            let queue = queue.clone();
            tasks.spawn(async move {
                queue.add(worker);
                while let Some(item) = queue.get().await {
                    queue.add(round);
                    drop(item);
                }
            });
        }
        queue.shut_down();
        tasks.join_all().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn p7_each_merged_add_is_handed_out_once() {
    let (options, clock) = options();
    let options = QueueOptions {
        clock: Arc::new(clock.clone()),
        ..options
    };
    let queue = PriorityQueue::with_order(options, Priority::default).unwrap();
    for key in 0..1000_u32 {
        for i in 0..3 {
            let after = (key % 3 == i).then(|| ms(u64::from(key % 7)));
            let priority = Some(i32::try_from((key * 31 + i) % 9).unwrap());
            let rate_limited = key % 5 == 0;
            queue.add_with(
                key,
                AddOptions {
                    after,
                    priority,
                    rate_limited,
                    ..Default::default()
                },
            );
        }
    }
    clock.advance(ms(1000));
    let mut workers = JoinSet::new();
    for _ in 0..10 {
        let queue = queue.clone();
        workers.spawn(async move {
            let mut keys = Vec::new();
            while let Some(item) = queue.get().await {
                keys.push(*item);
                tokio::task::yield_now().await;
            }
            keys
        });
    }
    queue.shut_down();
    let mut keys = workers.join_all().await.concat();
    keys.sort_unstable();
    // Keys whose deadlines lay ahead were dropped by the shutdown, unless somebody looked first.
    keys.dedup();
    let before_dedup = keys.len();
    assert_eq!(before_dedup, keys.len());
    assert!(
        keys.iter().filter(|key| *key % 5 != 0).count() == 800,
        "{}",
        keys.len()
    );
}

#[test]
fn p9_w68_a_low_key_runs_within_the_bound_of_ageing_under_steady_load() {
    let (options, clock) = options();
    let ageing = || Priority::with_ageing(Duration::from_secs(30));
    let queue = PriorityQueue::with_order(options, ageing).unwrap();
    queue.add_with(0, at_priority(-100));
    let mut seconds = 0;
    for key in 1.. {
        queue.add(key);
        clock.advance(Duration::from_secs(1));
        seconds += 1;
        if *queue.try_get().unwrap() == 0 {
            break;
        }
        assert!(seconds < 10_000, "the key starves");
    }
    assert_eq!(
        seconds, 3002,
        "it rises by 100 levels in 3000 s and stands behind its equals"
    );
}

#[test]
fn w68_an_aged_key_stands_behind_those_that_wait_at_its_new_level() {
    let (options, clock) = options();
    let ageing = || Priority::with_ageing(ms(100));
    let queue = PriorityQueue::with_order(options, ageing).unwrap();
    queue.add_with("aged", at_priority(0));
    clock.advance(ms(50));
    queue.add_with("early", at_priority(1));
    clock.advance(ms(51));
    queue.add_with("late", at_priority(1));
    queue.add_with("urgent", at_priority(50));
    assert_eq!(take_all(&queue), ["urgent", "early", "aged", "late"]);
}

#[test]
fn w68_without_ageing_a_low_key_waits_for_ever() {
    let (queue, clock) = queue();
    queue.add_with(0, at_priority(-1));
    for key in 1..1000 {
        queue.add(key);
        clock.advance(Duration::from_secs(3600));
        assert_ne!(*queue.try_get().unwrap(), 0);
    }
}

#[test]
fn w69_all_of_i32_are_priorities() {
    let (queue, _) = queue();
    for priority in [0, i32::MIN, i32::MAX, -1, 1] {
        queue.add_with(priority, at_priority(priority));
    }
    assert_eq!(take_all(&queue), [i32::MAX, 1, 0, -1, i32::MIN]);
    let (options, _) = options();
    let ageing = || Priority::with_ageing(Duration::MAX);
    let queue = PriorityQueue::with_order(options, ageing).unwrap();
    for priority in [0, i32::MIN, i32::MAX] {
        queue.add_with(priority, at_priority(priority));
    }
    assert_eq!(take_all(&queue), [i32::MAX, 0, i32::MIN]);
}
