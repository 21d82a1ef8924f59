//! W20–W30: delayed adds.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;
use workqueue::{
    AddOptions, DrainOptions, OnAdd, Origin, QueueOptions, WorkQueue,
    clock::{Clock, ManualClock, Sleep},
};

use crate::support::{Task, after, ms, options, queue, take_all};

#[test]
fn q11_w20_a_delayed_key_is_absent_before_its_deadline_and_comes_once() {
    let (queue, clock) = queue();
    queue.add_after("a", ms(50));
    clock.advance(ms(49));
    assert_eq!(take_all(&queue), [""; 0]);
    clock.advance(ms(1));
    assert_eq!(queue.len(), 1);
    assert_eq!(take_all(&queue), ["a"]);
    clock.advance(ms(10_000));
    assert_eq!(take_all(&queue), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn q11_w20_a_waiting_worker_gets_the_key_at_its_deadline() {
    let queue = WorkQueue::new(QueueOptions::default()).unwrap();
    let start = Instant::now();
    for (key, delay) in [("c", 250), ("a", 1), ("b", 50)] {
        queue.add_after(key, ms(delay));
    }
    for (key, delay) in [("a", 1), ("b", 50), ("c", 250)] {
        assert_eq!(*queue.get().await.unwrap(), key);
        assert_eq!(start.elapsed(), ms(delay));
    }
}

#[test]
fn q12_w21_of_two_deadlines_the_earlier_holds() {
    for (first, second, due) in [(50, 70, 50), (50, 30, 30)] {
        let (queue, clock) = queue();
        queue.add_after("a", ms(first));
        queue.add_after("a", ms(second));
        assert_eq!(queue.delayed(), 1);
        clock.advance(ms(due - 1));
        assert_eq!(queue.len(), 0);
        clock.advance(ms(1));
        assert_eq!(take_all(&queue), ["a"]);
        clock.advance(ms(100));
        assert_eq!(queue.len(), 0);
    }
}

#[test]
fn q13_keys_come_at_their_own_times() {
    let (queue, clock) = queue();
    queue.add_after("first", ms(1000));
    queue.add_after("second", ms(50));
    clock.advance(ms(50));
    assert_eq!(take_all(&queue), ["second"]);
    queue.add_after("third", ms(100));
    clock.advance(ms(100));
    assert_eq!(take_all(&queue), ["third"]);
    clock.advance(ms(849));
    assert_eq!(take_all(&queue), [""; 0]);
    clock.advance(ms(1));
    assert_eq!(take_all(&queue), ["first"]);
}

#[test]
fn q14_w22_keys_due_at_one_look_leave_in_the_order_of_deadlines() {
    let (queue, clock) = queue();
    for (key, delay) in [("c", 1000), ("b", 500), ("a", 250)] {
        queue.add_after(key, ms(delay));
    }
    clock.advance(ms(2000));
    assert_eq!(take_all(&queue), ["a", "b", "c"]);
}

#[test]
fn w22_equal_deadlines_keep_the_order_of_insertion() {
    let (queue, clock) = queue();
    for key in 0..5000_u32 {
        queue.add_after(key.reverse_bits(), ms(777));
    }
    clock.advance(ms(700));
    assert_eq!(queue.len(), 0);
    for key in 5000..6000_u32 {
        queue.add_after(key.reverse_bits(), ms(77));
    }
    clock.advance(ms(300));
    let expected: Vec<_> = (0..6000).map(u32::reverse_bits).collect();
    assert_eq!(take_all(&queue), expected);
}

#[test]
fn w22_deadlines_a_nanosecond_apart_keep_their_order() {
    let (queue, clock) = queue();
    let keys: Vec<u64> = (0..2000).map(|i| (i * 7919) % 2000).collect();
    for key in &keys {
        queue.add_after(*key, ms(500) + Duration::from_nanos(*key));
    }
    clock.advance(ms(500) + Duration::from_nanos(999));
    assert_eq!(take_all(&queue), (0..1000).collect::<Vec<_>>());
    clock.advance(ms(1));
    assert_eq!(take_all(&queue), (1000..2000).collect::<Vec<_>>());
}

#[test]
fn q15_w20_no_delay_means_at_once() {
    let (queue, _) = queue();
    queue.add_after("a", Duration::ZERO);
    assert_eq!((queue.len(), queue.delayed()), (1, 0));
}

#[test]
fn q15_w27_a_million_delayed_adds_of_one_key_are_one_entry() {
    let (queue, clock) = queue();
    for i in 0..1_000_000_u64 {
        queue.add_after("a", Duration::from_nanos(2_000_000_000 - i % 1000));
    }
    assert_eq!(queue.delayed(), 1);
    clock.advance(ms(2000));
    assert_eq!(take_all(&queue), ["a"]);
    assert_eq!(queue.delayed(), 0);
}

#[test]
fn q15_w28_shutdown_drops_deadlines_and_leaves_no_timer() {
    let (queue, clock) = queue();
    let mut waiters = [Task::waiting(queue.get()), Task::waiting(queue.get())];
    for key in 0..100 {
        queue.add_after(key, ms(10));
    }
    for waiter in &mut waiters {
        assert!(waiter.poll().is_pending());
    }
    assert_eq!(
        clock.sleepers(),
        1,
        "one timer serves all keys and all waiters"
    );
    queue.shut_down();
    assert!(waiters.iter_mut().all(|waiter| waiter.output().is_none()));
    assert_eq!(clock.sleepers(), 0);
    clock.advance(ms(100));
    assert_eq!((queue.len(), queue.delayed()), (0, 0));
}

#[test]
fn q16_w24_an_add_supersedes_a_result_and_never_a_reminder() {
    for (on_add, origin, runs) in [
        (OnAdd::Keep, Origin::Result, 2),
        (OnAdd::Keep, Origin::Reminder, 2),
        (OnAdd::Supersede, Origin::Result, 1),
        (OnAdd::Supersede, Origin::Reminder, 2),
    ] {
        let (options, clock) = options();
        let queue = WorkQueue::new(QueueOptions {
            on_add: Some(on_add),
            ..options
        })
        .unwrap();
        queue.add_with(
            "a",
            AddOptions {
                origin,
                ..after(ms(10_000))
            },
        );
        queue.add("a");
        assert_eq!(take_all(&queue), ["a"]);
        clock.advance(ms(10_000));
        let later = take_all(&queue).len();
        assert_eq!(1 + later, runs, "{on_add:?}, {origin:?}");
    }
}

#[test]
fn w24_a_result_for_a_key_that_is_wanted_already_is_superseded_too() {
    let (options, clock) = options();
    let options = QueueOptions {
        on_add: Some(OnAdd::Supersede),
        ..options
    };
    let queue = WorkQueue::new(options).unwrap();
    queue.add("a");
    let item = queue.try_get().unwrap();
    queue.add("a");
    item.add_after(ms(10));
    assert_eq!(queue.delayed(), 0);
    queue.add_with(
        "a",
        AddOptions {
            origin: Origin::Reminder,
            ..after(ms(20))
        },
    );
    assert_eq!(queue.delayed(), 1);
    drop(item);
    assert_eq!(take_all(&queue), ["a"]);
    clock.advance(ms(20));
    assert_eq!(take_all(&queue), ["a"]);
}

fn superseding() -> (WorkQueue<&'static str>, ManualClock) {
    let (options, clock) = options();
    let options = QueueOptions {
        on_add: Some(OnAdd::Supersede),
        ..options
    };
    (WorkQueue::new(options).unwrap(), clock)
}

fn remind_after(delay: u64) -> AddOptions {
    AddOptions {
        origin: Origin::Reminder,
        ..after(ms(delay))
    }
}

/// A reminder at 20 ms and a result at 10 ms, of one key, in either order.
fn a_reminder_behind_a_result(queue: &WorkQueue<&'static str>, key: &'static str, first: bool) {
    if first {
        queue.add_with(key, remind_after(20));
    }
    queue.add_after(key, ms(10));
    if !first {
        queue.add_with(key, remind_after(20));
    }
}

#[test]
fn w24_a_reminder_keeps_its_time_beside_a_result_that_is_due_before_it() {
    for first in [true, false] {
        for (queue, clock) in [queue(), superseding()] {
            a_reminder_behind_a_result(&queue, "a", first);
            assert_eq!(queue.delayed(), 1, "one key");
            clock.advance(ms(10));
            assert_eq!(take_all(&queue), ["a"], "the result");
            assert_eq!(queue.delayed(), 1);
            clock.advance(ms(9));
            assert_eq!(take_all(&queue), [""; 0]);
            clock.advance(ms(1));
            assert_eq!(take_all(&queue), ["a"], "the reminder");
            assert_eq!(queue.delayed(), 0);
        }
    }
}

#[test]
fn w24_a_result_before_a_reminder_is_superseded_and_runs_once() {
    for first in [true, false] {
        let (queue, clock) = superseding();
        a_reminder_behind_a_result(&queue, "a", first);
        queue.add("a");
        assert_eq!(take_all(&queue), ["a"]);
        clock.advance(ms(19));
        assert_eq!(take_all(&queue), [""; 0], "one cause, one run");
        clock.advance(ms(1));
        assert_eq!(take_all(&queue), ["a"]);
    }
}

#[test]
fn w24_a_run_that_begins_after_both_deadlines_stands_for_both() {
    let (queue, clock) = superseding();
    a_reminder_behind_a_result(&queue, "a", true);
    queue.add_after("b", ms(15));
    clock.advance(ms(20));
    assert_eq!(take_all(&queue), ["a", "b"]);
    clock.advance(ms(1000));
    assert_eq!(take_all(&queue), [""; 0]);
}

#[test]
fn w24_a_key_put_back_from_its_run_keeps_its_reminder() {
    let (queue, clock) = superseding();
    queue.add_with("a", remind_after(60_000));
    for _ in 0..3 {
        queue.add("a");
        let item = queue.try_get().unwrap();
        item.add_after(ms(5));
        drop(item);
        clock.advance(ms(5));
        assert_eq!(take_all(&queue), ["a"]);
    }
    clock.advance(ms(60_000 - 16));
    assert_eq!(take_all(&queue), [""; 0]);
    clock.advance(ms(1));
    assert_eq!(take_all(&queue), ["a"]);
}

#[test]
fn w24_w25_cancel_and_shutdown_drop_a_reminder_behind_a_result_too() {
    let (queue, clock) = superseding();
    a_reminder_behind_a_result(&queue, "a", true);
    assert!(queue.cancel_after(&"a"));
    assert_eq!(queue.delayed(), 0);
    clock.advance(ms(20));
    assert_eq!(take_all(&queue), [""; 0]);
    // The next key has the id of the one that was forgotten.
    queue.add_after("b", ms(10));
    clock.advance(ms(10));
    assert_eq!(take_all(&queue), ["b"]);
    assert_eq!(queue.delayed(), 0);
    a_reminder_behind_a_result(&queue, "c", true);
    queue.shut_down();
    clock.advance(ms(20));
    assert!(queue.try_get().is_none() && queue.delayed() == 0);
}

#[test]
fn w12_w24_a_drain_runs_the_reminders_that_are_due_in_its_time() {
    for (within, runs) in [(9, 0), (19, 1), (20, 2)] {
        let (queue, clock) = superseding();
        a_reminder_behind_a_result(&queue, "a", true);
        let options = DrainOptions {
            deadline: Some(ms(within)),
            include_delayed: true,
        };
        let mut drain = Task::new(queue.drain(options));
        let ends_at_once = drain.poll().is_ready();
        assert_eq!(ends_at_once, runs == 0);
        let mut ran = 0;
        for _ in 0..20 {
            clock.advance(ms(1));
            ran += take_all(&queue).len();
        }
        assert_eq!(ran, runs, "within {within} ms");
        if !ends_at_once {
            assert_eq!(drain.output(), [""; 0]);
        }
    }
}

#[test]
fn w25_a_deadline_moved_on_purpose_is_the_one_of_its_origin() {
    let (queue, clock) = superseding();
    a_reminder_behind_a_result(&queue, "a", true);
    let replace = |options| AddOptions {
        replace: true,
        ..options
    };
    queue.add_with("a", replace(after(ms(15))));
    queue.add_with("a", replace(remind_after(30)));
    for (advance, expected) in [(14, 0), (1, 1), (14, 0), (1, 1), (100, 0)] {
        clock.advance(ms(advance));
        assert_eq!(take_all(&queue).len(), expected);
    }
}

#[test]
fn w20_a_worker_that_waits_is_woken_for_the_result_and_for_the_reminder() {
    let (queue, clock) = superseding();
    let mut worker = Task::waiting(queue.get());
    a_reminder_behind_a_result(&queue, "a", true);
    for _ in 0..2 {
        assert!(worker.poll().is_pending());
        let before = worker.wakes();
        clock.advance(ms(10));
        assert!(worker.wakes() > before);
        assert_eq!(worker.output().map(|item| *item), Some("a"));
        worker = Task::new(queue.get());
    }
    assert!(worker.poll().is_pending());
}

#[test]
fn w23_a_fired_key_that_waits_already_changes_nothing() {
    let (queue, clock) = queue();
    queue.add_after("a", ms(10));
    queue.add("a");
    clock.advance(ms(10));
    assert_eq!(take_all(&queue), ["a"]);
}

#[test]
fn w23_a_fired_key_that_is_running_comes_after_its_run() {
    let (queue, clock) = queue();
    queue.add("a");
    let item = queue.try_get().unwrap();
    item.add_after(ms(10));
    clock.advance(ms(10));
    assert_eq!((queue.len(), queue.delayed(), queue.running()), (0, 0, 1));
    drop(item);
    assert_eq!(take_all(&queue), ["a"]);
}

#[test]
fn w25_a_deadline_can_be_cancelled() {
    let (queue, clock) = queue();
    queue.add_after("a", ms(10));
    assert!(queue.cancel_after(&"a"));
    assert!(!queue.cancel_after(&"a"));
    assert!(!queue.cancel_after(&"unknown"));
    clock.advance(ms(10));
    assert_eq!(queue.len(), 0);
}

#[test]
fn w25_a_deadline_can_be_moved_later_on_purpose() {
    let (queue, clock) = queue();
    queue.add_after("a", ms(10));
    queue.add_with(
        "a",
        AddOptions {
            replace: true,
            ..after(ms(30))
        },
    );
    clock.advance(ms(29));
    assert_eq!(queue.len(), 0);
    clock.advance(ms(1));
    assert_eq!(take_all(&queue), ["a"]);
}

#[test]
fn w26_an_add_may_join_the_wait_for_backoff_and_no_other_wait() {
    let (options, clock) = options();
    let options = QueueOptions {
        drop_if_waiting: true,
        ..options
    };
    let queue = WorkQueue::new(options).unwrap();
    queue.add_rate_limited("failed");
    queue.add_after("planned", ms(1));
    queue.add("failed");
    queue.add("planned");
    assert_eq!(take_all(&queue), ["planned"]);
    clock.advance(ms(1));
    assert_eq!(take_all(&queue), ["failed", "planned"]);
}

#[test]
fn w28_the_timer_is_set_to_the_earliest_deadline_and_follows_it() {
    let (queue, clock) = queue();
    let mut first = Task::waiting(queue.get());
    let mut second = Task::waiting(queue.get());
    queue.add_after("late", ms(100));
    assert_eq!(
        (first.wakes(), second.wakes()),
        (1, 0),
        "the leader sets its timer"
    );
    assert!(first.poll().is_pending());
    queue.add_after("later", ms(200));
    assert_eq!(first.wakes(), 1, "the timer is early enough");
    queue.add_after("early", ms(50));
    assert!(first.poll().is_pending());
    clock.advance(ms(50));
    assert_eq!((first.wakes(), second.wakes()), (3, 0));
    assert_eq!(first.output().map(|item| *item), Some("early"));
    assert_eq!(second.wakes(), 1, "somebody has to watch the clock");
    assert!(second.poll().is_pending());
    assert_eq!(clock.sleepers(), 1);
    clock.advance(ms(50));
    assert_eq!(second.output().map(|item| *item), Some("late"));
}

#[test]
fn w28_the_leader_dropped_hands_its_duty_on() {
    let (queue, clock) = queue();
    let leader = Task::waiting(queue.get());
    let mut other = Task::waiting(queue.get());
    queue.add_after("a", ms(10));
    drop(leader);
    assert_eq!(other.wakes(), 1);
    assert!(other.poll().is_pending());
    clock.advance(ms(10));
    assert_eq!(other.wakes(), 2);
    assert_eq!(other.output().map(|item| *item), Some("a"));
}

#[test]
fn w20_keys_due_together_wake_as_many_waiters() {
    let (queue, clock) = queue();
    for key in 0..3 {
        queue.add_after(key, ms(10));
    }
    let mut waiters = [(); 4].map(|()| Task::waiting(queue.get()));
    let wakes = |waiters: &[Task<_>; 4]| waiters.each_ref().map(Task::wakes);
    clock.advance(ms(10));
    assert_eq!(wakes(&waiters), [1, 0, 0, 0]);
    let mut held = vec![waiters[0].output().unwrap()];
    assert!(wakes(&waiters)[1..].iter().filter(|n| **n > 0).count() >= 2);
    for waiter in &mut waiters[1..] {
        if let std::task::Poll::Ready(item) = waiter.poll() {
            held.push(item.unwrap());
        }
    }
    assert_eq!(held.len(), 3);
}

#[test]
fn w20_a_key_due_and_a_key_added_before_it_both_find_a_worker() {
    let (queue, clock) = queue();
    queue.add_after("due", ms(10));
    let mut first = Task::waiting(queue.get());
    let mut second = Task::waiting(queue.get());
    queue.add("added");
    assert_eq!(
        (first.wakes(), second.wakes()),
        (0, 1),
        "the leader goes on watching the clock"
    );
    clock.advance(ms(10));
    assert_eq!(first.wakes(), 1);
    // The second was called for "added" and is the first to look after the deadline.
    assert_eq!(second.output().map(|item| *item), Some("added"));
    assert_eq!(first.wakes(), 2);
    assert_eq!(first.output().map(|item| *item), Some("due"));
}

/// A clock that counts how often it is read.
#[derive(Debug)]
struct Counting(ManualClock, AtomicUsize);

impl Clock for Counting {
    fn now(&self) -> Instant {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.now()
    }

    fn sleep_until(&self, deadline: Instant) -> Sleep {
        self.0.sleep_until(deadline)
    }
}

#[test]
fn w30_time_comes_from_the_clock_that_was_handed_in_and_only_when_it_matters() {
    let clock = Arc::new(Counting(ManualClock::new(), AtomicUsize::new(0)));
    let options = QueueOptions {
        clock: Arc::<Counting>::clone(&clock),
        ..QueueOptions::default()
    };
    let queue = WorkQueue::new(options).unwrap();
    let after_start = clock.1.load(Ordering::SeqCst);
    queue.add("a");
    drop(queue.try_get());
    assert_eq!(clock.1.load(Ordering::SeqCst), after_start);
    queue.add_after("b", ms(10));
    assert!(queue.try_get().is_none());
    clock.0.advance(ms(10));
    assert_eq!(take_all(&queue), ["b"]);
}

#[test]
fn w20_delays_of_any_length_are_kept() {
    let (queue, clock) = queue();
    queue.add_after("never", Duration::MAX);
    queue.add_after("year", Duration::from_secs(365 * 86_400));
    let mut waiter = Task::waiting(queue.get());
    clock.advance(Duration::from_secs(365 * 86_400) - ms(1));
    assert!(waiter.poll().is_pending());
    clock.advance(ms(1));
    assert_eq!(waiter.output().map(|item| *item), Some("year"));
    assert_eq!(queue.delayed(), 1);
}

#[tokio::test(start_paused = true)]
async fn w27_adding_needs_no_runtime_and_reaches_a_worker_in_one() {
    let queue = WorkQueue::new(QueueOptions::default()).unwrap();
    let producer = std::thread::spawn({
        let queue = queue.clone();
        move || queue.add_after("a", ms(5))
    });
    producer.join().unwrap();
    let get = queue.get();
    fn is_send<T: Future + Send>(future: T) -> T {
        future
    }
    assert_eq!(*is_send(get).await.unwrap(), "a");
}
