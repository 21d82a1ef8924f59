//! W10–W12: waiting for the end of all work.

use workqueue::{DrainOptions, WorkQueue};

use crate::support::{Task, ms, queue, take_all};

#[test]
fn q05_a_drain_waits_for_all_runs() {
    let (queue, _) = queue();
    queue.add("a");
    queue.add("b");
    let (a, b) = (queue.try_get().unwrap(), queue.try_get().unwrap());
    let mut drain = Task::waiting(queue.shut_down_with_drain());
    drop(a);
    assert!(drain.poll().is_pending());
    drop(b);
    assert!(drain.wakes() > 0);
    drain.output();
}

#[test]
fn q05_a_drain_waits_for_the_second_run_of_a_key_added_during_its_first() {
    let (queue, _) = queue();
    queue.add("a");
    let first = queue.try_get().unwrap();
    queue.add("a");
    let mut drain = Task::waiting(queue.shut_down_with_drain());
    drop(first);
    assert!(drain.poll().is_pending());
    let second = queue.try_get().unwrap();
    assert!(drain.poll().is_pending());
    drop(second);
    drain.output();
}

#[test]
fn q06_w11_a_plain_shutdown_does_not_wait_and_ends_all_drains() {
    let (queue, _) = queue();
    queue.add("a");
    let _item = queue.try_get().unwrap();
    let mut drains = [(); 3].map(|()| Task::waiting(queue.shut_down_with_drain()));
    queue.shut_down();
    for drain in &mut drains {
        assert_eq!(drain.wakes(), 1);
        drain.output();
    }
    let mut later = Task::waiting(queue.shut_down_with_drain());
    queue.shut_down();
    later.output();
}

#[test]
fn q08_w10_a_drain_waits_for_ready_keys_that_nobody_has_taken() {
    let (queue, _) = queue();
    for key in 0..100 {
        queue.add(key);
    }
    let mut drain = Task::waiting(queue.shut_down_with_drain());
    for key in 0..100 {
        assert!(drain.poll().is_pending());
        assert_eq!(*queue.try_get().unwrap(), key);
    }
    drain.output();
}

#[test]
fn w11_concurrent_drains_all_return_and_an_empty_queue_is_drained_at_once() {
    let (queue, _) = queue::<u32>();
    Task::new(queue.shut_down_with_drain()).output();
    Task::new(queue.shut_down_with_drain()).output();

    let (queue, _) = crate::support::queue();
    queue.add(1);
    let item = queue.try_get().unwrap();
    let mut drains = [(); 3].map(|()| Task::waiting(queue.shut_down_with_drain()));
    drop(item);
    for drain in &mut drains {
        drain.output();
    }
}

#[test]
fn w10_a_dropped_drain_is_a_plain_end() {
    let (queue, _) = queue();
    queue.add("a");
    drop(Task::waiting(queue.shut_down_with_drain()));
    queue.add("b");
    assert_eq!(take_all(&queue), ["a"]);
    assert!(Task::new(queue.get()).output().is_none());
}

fn within(deadline: u64) -> DrainOptions {
    DrainOptions {
        deadline: Some(ms(deadline)),
        ..DrainOptions::default()
    }
}

#[test]
fn w12_a_drain_ends_at_its_deadline_and_returns_what_was_left() {
    let (queue, clock) = queue();
    for key in ["running", "again", "ready", "ready too"] {
        queue.add(key);
    }
    let (running, again) = (queue.try_get().unwrap(), queue.try_get().unwrap());
    queue.add("again");
    queue.add_after("delayed", ms(1));
    let mut waiter = None;
    {
        let mut drain = Task::waiting(queue.drain(within(100)));
        clock.advance(ms(99));
        assert!(drain.poll().is_pending());
        clock.advance(ms(1));
        let mut left = drain.output();
        left.sort_unstable();
        assert_eq!(left, ["again", "ready", "ready too", "running"]);
        waiter.replace(Task::new(queue.get()).output());
    }
    assert!(
        waiter.unwrap().is_none(),
        "what was returned is not handed out as well"
    );
    drop((running, again));
    assert_eq!((queue.len(), queue.running(), queue.delayed()), (0, 0, 0));
}

#[test]
fn w12_a_drain_in_time_leaves_nothing() {
    let (queue, clock) = queue();
    queue.add("a");
    let item = queue.try_get().unwrap();
    let mut drain = Task::waiting(queue.drain(within(100)));
    clock.advance(ms(50));
    assert_eq!(clock.sleepers(), 1, "the deadline is watched");
    drop(item);
    assert_eq!(drain.output(), [""; 0]);
    assert_eq!(clock.sleepers(), 0);
}

#[test]
fn w12_a_drain_may_include_the_keys_due_before_its_deadline() {
    let (queue, clock) = queue();
    queue.add_after("due", ms(50));
    queue.add_after("due, not taken", ms(60));
    queue.add_after("too late", ms(150));
    let mut worker = Task::waiting(queue.get());
    let options = DrainOptions {
        include_delayed: true,
        ..within(100)
    };
    let mut drain = Task::waiting(queue.drain(options));
    assert_eq!(queue.delayed(), 2);
    assert!(worker.poll().is_pending(), "there is work to come");
    clock.advance(ms(50));
    let item = worker.output().unwrap();
    assert_eq!(*item, "due");
    drop(item);
    clock.advance(ms(50));
    assert_eq!(drain.output(), ["due, not taken"]);
    assert!(Task::new(queue.get()).output().is_none());
}

#[test]
fn w12_an_inclusive_drain_without_deadline_ends_with_the_last_delayed_key() {
    let (queue, clock) = queue();
    queue.add_after("a", ms(50));
    let options = DrainOptions {
        include_delayed: true,
        ..DrainOptions::default()
    };
    let mut drain = Task::waiting(queue.drain(options));
    clock.advance(ms(50));
    assert_eq!(take_all(&queue), ["a"]);
    assert_eq!(drain.output(), [""; 0]);
}

#[test]
fn w12_a_drain_ended_by_shutdown_tells_what_is_still_under_way() {
    let (queue, _) = queue();
    queue.add("a");
    queue.add("b");
    let item = queue.try_get().unwrap();
    let mut drain = Task::waiting(queue.drain(within(100)));
    queue.shut_down();
    let mut left = drain.output();
    left.sort_unstable();
    assert_eq!(left, ["a", "b"]);
    drop(item);
    assert_eq!(
        take_all(&queue),
        ["b"],
        "ready keys follow the rules of shutdown"
    );
}

#[tokio::test(start_paused = true)]
async fn w12_the_deadline_runs_on_tokios_clock() {
    let queue = WorkQueue::new(workqueue::QueueOptions::default()).unwrap();
    queue.add("a");
    assert_eq!(queue.drain(within(5_000)).await, ["a"]);
}

#[test]
fn w12_a_key_that_is_ready_and_delayed_is_left_once() {
    let (queue, _) = queue();
    queue.add("a");
    queue.add_after("a", ms(50));
    let mut drain = Task::new(queue.drain(DrainOptions {
        deadline: Some(ms(0)),
        include_delayed: true,
    }));
    assert_eq!(drain.output(), ["a"]);
}
