//! W73: shards.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use workqueue::{Error, FairQueue, PriorityQueue, QueueOptions, WorkQueue, order};

use crate::support::{Task, at_priority, ms, options, take_all};

fn queue(shards: usize) -> (WorkQueue<u32>, workqueue::clock::ManualClock) {
    let (options, clock) = options();
    (
        WorkQueue::new(QueueOptions { shards, ..options }).unwrap(),
        clock,
    )
}

#[test]
fn w73_a_key_that_finds_p_keys_is_handed_out_within_p_plus_1_times_s() {
    for shards in [1, 2, 4, 16] {
        let (queue, _) = queue(shards);
        let (mut handed_out, mut added) = (0, 0);
        let mut bounds = HashMap::new();
        for round in 0..3000_u32 {
            // Bursts of adds between single hand-outs.
            for _ in 0..(if round % 100 == 0 { 70 } else { round % 2 }) {
                bounds.insert(added, handed_out + (queue.len() + 1) * shards);
                queue.add(added);
                added += 1;
            }
            if let Some(item) = queue.try_get() {
                handed_out += 1;
                assert!(
                    handed_out <= bounds[&*item],
                    "{shards} shards: key {} is late",
                    *item
                );
            }
        }
    }
}

#[test]
fn w73_one_shard_is_strictly_first_in_first_out() {
    let (queue, _) = queue(1);
    (0..1000).for_each(|key| queue.add(key));
    assert_eq!(take_all(&queue), (0..1000).collect::<Vec<_>>());
}

#[test]
fn w73_shards_lose_nothing_and_order_priorities_within_each() {
    let (options, _) = options();
    let options = QueueOptions {
        shards: 8,
        ..options
    };
    let queue = PriorityQueue::with_order(options, order::Priority::default).unwrap();
    for key in 0..1000 {
        queue.add_with(key, at_priority(key % 10));
    }
    assert_eq!(queue.len(), 1000);
    let mut keys = take_all(&queue);
    assert!(keys[..8].iter().all(|key| key % 10 == 9));
    keys.sort_unstable();
    assert_eq!(keys, (0..1000).collect::<Vec<_>>());
}

#[test]
fn w73_a_waiter_hears_of_every_shard_and_one_timer_serves_them_all() {
    let (queue, clock) = queue(16);
    for key in 0..200 {
        let mut waiter = Task::waiting(queue.get());
        queue.add(key);
        assert_eq!(waiter.wakes(), 1);
        assert_eq!(waiter.output().map(|item| *item), Some(key));
    }
    for key in 0..200 {
        queue.add_after(key, ms(u64::from(200 - key)));
    }
    for key in (0..200).rev() {
        let mut waiter = Task::waiting(queue.get());
        assert_eq!(clock.sleepers(), 1);
        clock.advance(ms(1));
        assert_eq!(waiter.wakes(), 1);
        assert_eq!(waiter.output().map(|item| *item), Some(key));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn w73_w05_no_key_runs_twice_at_once_on_many_shards() {
    let queue = WorkQueue::new(QueueOptions {
        shards: 4,
        ..QueueOptions::default()
    })
    .unwrap();
    let running = Arc::new(Mutex::new(HashMap::new()));
    let mut tasks = JoinSet::new();
    for producer in 0..4 {
        let queue = queue.clone();
        tasks.spawn(async move {
            for i in 0..2000_u32 {
                queue.add((i * 7 + producer) % 97);
                if i % 16 == 0 {
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    let mut workers = JoinSet::new();
    for _ in 0..4 {
        let (queue, running) = (queue.clone(), Arc::clone(&running));
        workers.spawn(async move {
            while let Some(item) = queue.get().await {
                assert_ne!(running.lock().insert(*item, true), Some(true));
                tokio::task::yield_now().await;
                running.lock().insert(*item, false);
            }
        });
    }
    tasks.join_all().await;
    queue.shut_down_with_drain().await;
    workers.join_all().await;
    assert_eq!(running.lock().len(), 97);
}

#[test]
fn a_wrong_number_of_shards_is_refused() {
    for shards in [0, 3, 512] {
        let options = QueueOptions::<u32> {
            shards,
            ..QueueOptions::default()
        };
        assert_eq!(
            WorkQueue::new(options).unwrap_err(),
            Error::Shards { shards }
        );
    }
    let options = QueueOptions {
        shards: 2,
        ..QueueOptions::default()
    };
    let capped = || order::Fair::new(|key: &u32| key % 3).max_running(1);
    let error = FairQueue::with_order(options, capped).unwrap_err();
    assert_eq!(error, Error::OrderNeedsOneShard { shards: 2 });
}
