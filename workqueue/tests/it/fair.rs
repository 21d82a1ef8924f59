//! W70–W72: flows.

use workqueue::{FairQueue, clock::ManualClock, order::Fair};

use crate::support::{Task, at_priority, options, take_all};

type Key = (&'static str, u32);

fn queue(
    setup: impl Fn(Fair<Key, &'static str>) -> Fair<Key, &'static str>,
) -> (FairQueue<Key, &'static str>, ManualClock) {
    let (options, clock) = options();
    let order = || setup(Fair::new(|key: &Key| key.0));
    (FairQueue::with_order(options, order).unwrap(), clock)
}

#[test]
fn p9_w70_a_flow_with_one_key_waits_for_one_turn_of_a_long_one() {
    let (queue, _) = queue(|fair| fair);
    for n in 0..100_000 {
        queue.add(("long", n));
    }
    drop(queue.try_get());
    queue.add(("short", 0));
    let next: Vec<_> = (0..2).map(|_| queue.try_get().unwrap().0).collect();
    assert!(next.contains(&"short"), "{next:?}");
}

#[test]
fn w70_flows_take_turns_and_keep_the_order_of_arrival_within() {
    let (queue, _) = queue(|fair| fair);
    for key in [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("c", 1), ("c", 2)] {
        queue.add(key);
    }
    let expected = [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("c", 2), ("a", 3)];
    assert_eq!(take_all(&queue), expected);
}

#[test]
fn w70_a_weight_is_the_number_of_keys_in_a_turn() {
    let (queue, _) = queue(|fair| fair.weights(|flow| if *flow == "heavy" { 3 } else { 1 }));
    for n in 0..6 {
        queue.add(("heavy", n));
        queue.add(("light", n));
    }
    let flows: String = take_all(&queue).iter().map(|key| &key.0[..1]).collect();
    assert_eq!(flows, "hhhlhhhlllll");
}

#[test]
fn w70_priority_goes_before_fairness() {
    let (queue, _) = queue(|fair| fair);
    queue.add(("a", 1));
    queue.add(("b", 1));
    queue.add_with(("a", 2), at_priority(1));
    queue.add_with(("a", 3), at_priority(1));
    queue.add_with(("c", 1), at_priority(-1));
    queue.add_with(("c", 1), at_priority(1));
    let expected = [("a", 2), ("c", 1), ("a", 3), ("a", 1), ("b", 1)];
    assert_eq!(take_all(&queue), expected);
}

#[test]
fn w71_a_flow_at_its_limit_does_not_hold_up_others() {
    let (queue, _) = queue(|fair| fair.max_running(2));
    for key in [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1)] {
        queue.add(key);
    }
    let items: Vec<_> = std::iter::from_fn(|| queue.try_get()).collect();
    let taken: Vec<_> = items.iter().map(|item| **item).collect();
    assert_eq!(taken, [("a", 1), ("b", 1), ("a", 2)]);
    assert_eq!(
        (queue.len(), queue.running()),
        (2, 3),
        "capped keys are ready and wait"
    );
    let mut waiter = Task::waiting(queue.get());
    queue.add(("a", 5));
    assert!(waiter.poll().is_pending());
    let wakes = waiter.wakes();
    drop(items.into_iter().next());
    assert_eq!(
        waiter.wakes(),
        wakes + 1,
        "the end of a run lets the flow's next key go"
    );
    assert_eq!(waiter.output().map(|item| *item), Some(("a", 3)));
}

#[test]
fn w71_capped_keys_hold_up_the_end_of_the_queue_and_not_its_workers() {
    let (queue, _) = queue(|fair| fair.max_running(1));
    queue.add(("a", 1));
    queue.add(("a", 2));
    let first = queue.try_get().unwrap();
    queue.shut_down();
    let mut waiter = Task::waiting(queue.get());
    drop(first);
    assert_eq!(waiter.output().map(|item| *item), Some(("a", 2)));
    assert!(Task::new(queue.get()).output().is_none());
}

#[test]
fn w71_every_place_that_gets_free_calls_a_worker() {
    let (queue, _) = queue(|fair| fair.max_running(2));
    for n in 1..=4 {
        queue.add(("a", n));
    }
    let (first, second) = (queue.try_get().unwrap(), queue.try_get().unwrap());
    let mut waiters = [Task::waiting(queue.get()), Task::waiting(queue.get())];
    drop(first);
    drop(second);
    assert!(waiters.iter().all(|waiter| waiter.wakes() > 0));
    let items = waiters.each_mut().map(|waiter| waiter.output());
    assert!(items.iter().all(Option::is_some), "a key for each place");
}

#[test]
fn w67_whoever_takes_the_last_capped_key_ends_the_waits_of_the_others() {
    let (queue, _) = queue(|fair| fair.max_running(1));
    queue.add(("a", 1));
    queue.add(("a", 2));
    let first = queue.try_get().unwrap();
    queue.shut_down();
    let mut served = Task::waiting(queue.get());
    let mut other = Task::waiting(queue.get());
    drop(first);
    assert_eq!(served.output().map(|item| *item), Some(("a", 2)));
    assert!(other.wakes() > 0);
    assert!(other.output().is_none(), "shut down and empty");
}

#[test]
fn w71_a_key_added_during_its_run_counts_once_against_the_limit() {
    let (queue, _) = queue(|fair| fair.max_running(1));
    queue.add(("a", 1));
    let item = queue.try_get().unwrap();
    queue.add(("a", 1));
    queue.add(("a", 2));
    assert!(queue.try_get().is_none());
    drop(item);
    assert_eq!(take_all(&queue), [("a", 2), ("a", 1)]);
}
