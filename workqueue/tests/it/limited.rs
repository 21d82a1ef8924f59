//! W40–W51 as far as they concern the queue; the limiters' own cases stand beside them.

use std::{
    sync::{Arc, Barrier},
    time::Duration,
};

use tokio::time::Instant;
use workqueue::{
    AddOptions, KeyRef, QueueOptions, WorkQueue,
    limiter::{self, ItemExponential, RateLimiter},
};

use crate::support::{after, ms, options, queue, take_all};

#[test]
fn q23_w40_rate_limited_adds_wait_as_the_limiter_says_and_forget_leaves_the_wait() {
    let (queue, clock) = queue();
    queue.add_rate_limited("one");
    queue.add_rate_limited("two");
    queue.add_rate_limited("two");
    assert_eq!(
        (queue.num_requeues(&"one"), queue.num_requeues(&"two")),
        (1, 2)
    );
    assert_eq!((queue.len(), queue.delayed()), (0, 2));
    queue.forget(&"two");
    assert_eq!(queue.num_requeues(&"two"), 0);
    assert_eq!(queue.delayed(), 2);
    clock.advance(ms(1));
    assert_eq!(take_all(&queue), ["one", "two"]);
}

#[test]
fn w40_forget_does_not_end_a_run() {
    let (queue, _) = queue();
    queue.add("a");
    let item = queue.try_get().unwrap();
    item.add_rate_limited();
    item.forget();
    queue.forget(&"a");
    assert_eq!((queue.running(), queue.delayed()), (1, 1));
}

#[test]
fn w41_each_failed_run_waits_twice_as_long() {
    let (queue, clock) = queue();
    queue.add("a");
    for wait in [1, 2, 4, 8] {
        queue.try_get().unwrap().add_rate_limited();
        clock.advance(ms(wait) - Duration::from_nanos(1));
        assert_eq!(queue.len(), 0);
        clock.advance(Duration::from_nanos(1));
        assert_eq!(queue.len(), 1, "after {wait} ms");
    }
}

#[test]
fn p5_w61_of_a_delay_and_a_limit_the_shorter_holds() {
    for (delay, expected) in [(5, 1), (0, 0)] {
        let (queue, clock) = queue();
        queue.add_with(
            "a",
            AddOptions {
                rate_limited: true,
                ..after(ms(delay))
            },
        );
        assert_eq!(queue.num_requeues(&"a"), 1);
        clock.advance(ms(expected));
        assert_eq!(take_all(&queue), ["a"], "{delay} ms");
    }
    let (queue, clock) = queue();
    for _ in 0..6 {
        queue.add_with(
            "a",
            AddOptions {
                rate_limited: true,
                ..after(ms(5))
            },
        );
        queue.cancel_after(&"a");
    }
    queue.add_with(
        "a",
        AddOptions {
            rate_limited: true,
            ..after(ms(5))
        },
    );
    clock.advance(ms(5));
    assert_eq!(take_all(&queue), ["a"], "the limiter says 64 ms");
}

#[test]
fn w47_the_defaults_are_the_three_of_upstream() {
    let now = Instant::now();
    let first = |limiter: &dyn RateLimiter<u32>| limiter.when(KeyRef::from(&1), now);
    assert_eq!(first(&limiter::controller_default()), ms(5));
    assert_eq!(first(&limiter::item_default()), ms(1));
    assert_eq!(first(&limiter::client_go_default()), ms(5));
    let max = |limiter: &dyn RateLimiter<u32>| limiter.max_delay();
    assert_eq!(
        max(&limiter::controller_default()),
        Some(Duration::from_secs(1000))
    );
    assert_eq!(
        max(&limiter::item_default()),
        Some(Duration::from_secs(1000))
    );
    assert_eq!(max(&limiter::client_go_default()), None);
}

fn counting_attempts() -> (WorkQueue<&'static str>, workqueue::clock::ManualClock) {
    let (options, clock) = options();
    (
        WorkQueue::new(QueueOptions {
            count_attempts: true,
            ..options
        })
        .unwrap(),
        clock,
    )
}

#[test]
fn w49_a_burst_of_triggers_during_one_wait_counts_as_one_failure() {
    let (queue, clock) = counting_attempts();
    queue.add("a");
    for (run, wait) in (1..).zip([1, 2, 4]) {
        let item = queue.try_get().unwrap();
        for _ in 0..10 {
            item.add_rate_limited();
            queue.add_rate_limited("a");
        }
        assert_eq!(item.num_requeues(), run);
        drop(item);
        for _ in 0..10 {
            queue.add_rate_limited("a");
        }
        assert_eq!(queue.num_requeues(&"a"), run);
        clock.advance(ms(wait));
        assert_eq!(queue.len(), 1, "after {wait} ms");
    }
}

#[test]
fn w49_a_counted_failure_still_allows_for_an_earlier_deadline_and_a_higher_priority() {
    let (queue, clock) = counting_attempts();
    for _ in 0..5 {
        queue.add_rate_limited("a");
        clock.advance(ms(1000));
        assert_eq!(take_all(&queue), ["a"]);
    }
    queue.add_rate_limited("a");
    queue.add_with(
        "a",
        AddOptions {
            rate_limited: true,
            priority: Some(7),
            ..after(ms(3))
        },
    );
    assert_eq!(queue.num_requeues(&"a"), 6);
    clock.advance(ms(3));
    assert_eq!(queue.try_get().unwrap().priority(), 7);
}

#[test]
fn w49_a_cancelled_wait_does_not_swallow_the_next_failure() {
    let (queue, clock) = counting_attempts();
    queue.add("a");
    let item = queue.try_get().unwrap();
    item.add_rate_limited();
    assert!(queue.cancel_after(&"a"));
    item.add_rate_limited();
    assert_eq!(queue.delayed(), 1);
    drop(item);
    clock.advance(ms(2));
    assert_eq!(take_all(&queue), ["a"]);
}

#[test]
fn w51_limiters_are_asked_without_a_lock_of_the_queue() {
    /// Meets another thread in the middle of `when`: with a lock around it they never would.
    struct Meeting(Barrier);

    impl RateLimiter<u32> for Meeting {
        fn when(&self, _: KeyRef<'_, u32>, _: Instant) -> Duration {
            self.0.wait();
            ms(1)
        }

        fn forget(&self, _: KeyRef<'_, u32>) {}

        fn num_requeues(&self, _: KeyRef<'_, u32>) -> u32 {
            0
        }
    }

    let (options, _) = options();
    let limiter = Arc::new(Meeting(Barrier::new(2)));
    let queue = WorkQueue::new(QueueOptions { limiter, ..options }).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| queue.add_rate_limited(1));
        scope.spawn(|| queue.add_rate_limited(2));
    });
    assert_eq!(queue.delayed(), 2);
}

#[test]
fn two_queues_can_share_a_limiter() {
    let limiter = Arc::new(ItemExponential::new(ms(1), ms(1000)));
    let queue = || {
        let (options, _) = options();
        WorkQueue::new(QueueOptions {
            limiter: Arc::<ItemExponential<&str>>::clone(&limiter),
            ..options
        })
        .unwrap()
    };
    let (one, two) = (queue(), queue());
    one.add_rate_limited("a");
    two.add_rate_limited("a");
    assert_eq!(one.num_requeues(&"a"), 2);
}
