//! W80–W87 and Q24: metrics.

use std::{collections::BTreeMap, time::Duration};

use workqueue::{
    AddOptions, Error, PriorityQueue, QueueOptions, WorkQueue,
    clock::ManualClock,
    metrics::{BUCKETS, MAX_PRIORITIES, PriorityLabel, Registry},
    order::Priority,
};

use crate::support::{after, at_priority, ms, options, take_all};

fn named<K: workqueue::QueueKey>() -> (QueueOptions<K>, ManualClock) {
    let (options, clock) = options();
    let registry = Registry::new();
    (
        QueueOptions {
            name: "test".to_owned(),
            registry,
            ..options
        },
        clock,
    )
}

fn queue() -> (WorkQueue<&'static str>, ManualClock) {
    let (options, clock) = named();
    (WorkQueue::new(options).unwrap(), clock)
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

#[test]
fn q24_w82_each_step_shows_in_the_metrics() {
    let (queue, clock) = queue();
    queue.add("foo");
    let m = queue.metrics();
    assert_eq!(
        (m.adds, m.depth, m.ready, m.queue_duration.count),
        (1, 1, 1, 0)
    );

    clock.advance(us(50));
    let item = queue.try_get().unwrap();
    let m = queue.metrics();
    assert_eq!((m.depth, m.ready, m.running), (0, 0, 1));
    assert_eq!((m.queue_duration.count, m.queue_duration.sum), (1, us(50)));

    queue.add("foo");
    let m = queue.metrics();
    assert_eq!(
        (m.adds, m.depth, m.ready),
        (2, 1, 0),
        "an add during the run is counted"
    );
    queue.add("foo");
    assert_eq!(queue.metrics().adds, 2, "a repetition is not");

    clock.advance(us(25));
    drop(item);
    let m = queue.metrics();
    assert_eq!((m.work_duration.count, m.work_duration.sum), (1, us(25)));
    assert_eq!((m.depth, m.ready), (1, 1));

    clock.advance(us(10));
    let item = queue.try_get().unwrap();
    let m = queue.metrics();
    assert_eq!(
        m.queue_duration.sum,
        us(50 + 35),
        "measured from the add during the run"
    );
    assert_eq!(m.depth, 0);

    clock.advance(ms(1));
    let m = queue.metrics();
    assert_eq!((m.unfinished_work, m.longest_running), (ms(1), ms(1)));
    drop(item);
    let m = queue.metrics();
    assert_eq!(
        (m.unfinished_work, m.longest_running),
        (Duration::ZERO, Duration::ZERO)
    );
    assert_eq!(m.work_duration.sum, us(1025));
}

#[test]
fn q24_nothing_moves_after_shutdown() {
    let (queue, clock) = queue();
    queue.add("a");
    queue.shut_down();
    let before = queue.metrics();
    queue.add("b");
    queue.add_after("c", ms(1));
    queue.add_rate_limited("d");
    assert_eq!(queue.metrics(), before);
    clock.advance(ms(5));
    assert_eq!(take_all(&queue), ["a"]);
    assert_eq!(queue.metrics().depth, 0);
}

#[test]
fn w83_unfinished_work_is_the_sum_of_all_ages_and_longest_the_oldest() {
    let (queue, clock) = queue();
    queue.add("a");
    let a = queue.try_get().unwrap();
    clock.advance(ms(10));
    queue.add("b");
    let _b = queue.try_get().unwrap();
    clock.advance(ms(5));
    let m = queue.metrics();
    assert_eq!((m.unfinished_work, m.longest_running), (ms(20), ms(15)));
    drop(a);
    let m = queue.metrics();
    assert_eq!((m.unfinished_work, m.longest_running), (ms(5), ms(5)));
}

#[test]
fn w82_w84_a_delayed_key_counts_once_it_is_due() {
    let (queue, clock) = queue();
    queue.add_after("a", ms(10));
    queue.add_after("b", Duration::ZERO);
    queue.add_rate_limited("c");
    let m = queue.metrics();
    assert_eq!(
        (m.retries, m.adds, m.depth, m.delayed, m.failing),
        (2, 1, 1, 2, 1)
    );
    clock.advance(ms(13));
    let m = queue.metrics();
    assert_eq!((m.retries, m.adds, m.depth, m.delayed), (2, 3, 3, 0));
    assert_eq!(take_all(&queue), ["b", "c", "a"]);
    let waited = ms(13) + ms(12) + ms(3);
    assert_eq!(
        queue.metrics().queue_duration.sum,
        waited,
        "from the deadline, not from the add"
    );
}

#[test]
fn w87_the_oldest_ready_key_and_the_others_by_state() {
    let (queue, clock) = queue();
    queue.add("a");
    clock.advance(ms(5));
    queue.add("b");
    clock.advance(ms(5));
    assert_eq!(queue.metrics().oldest_ready_age, ms(10));
    drop(queue.try_get());
    assert_eq!(queue.metrics().oldest_ready_age, ms(5));
    drop(queue.try_get());
    assert_eq!(queue.metrics().oldest_ready_age, Duration::ZERO);
}

#[test]
fn w81_twelve_buckets_from_10_ns_by_powers_of_ten() {
    assert_eq!(BUCKETS[0], 10);
    assert!(BUCKETS.windows(2).all(|pair| pair[1] == pair[0] * 10));
    let (queue, clock) = queue();
    for nanos in [0, 10, 11, 1_000_000, 2_000_000_000_000] {
        queue.add("a");
        clock.advance(Duration::from_nanos(nanos));
        drop(queue.try_get());
    }
    let histogram = queue.metrics().queue_duration;
    assert_eq!(histogram.buckets, [2, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(histogram.count, 5);
}

#[test]
fn w85_a_name_belongs_to_one_queue_as_long_as_it_lives() {
    let registry = Registry::new();
    let make = || {
        let (options, _) = named::<u32>();
        WorkQueue::new(QueueOptions {
            registry: registry.clone(),
            ..options
        })
    };
    let queue = make().unwrap();
    let error = make().unwrap_err();
    assert_eq!(
        error,
        Error::NameTaken {
            name: "test".to_owned()
        }
    );
    assert!(error.to_string().contains("\"test\""));
    assert_eq!(registry.snapshots().len(), 1);
    let clone = queue.clone();
    drop(queue);
    assert_eq!(registry.snapshots().len(), 1);
    drop(clone);
    assert_eq!(registry.snapshots(), []);
    assert!(make().is_ok());
}

#[test]
fn w85_a_queue_without_a_name_registers_nowhere() {
    let (options, _) = options();
    let registry = Registry::new();
    let queue = WorkQueue::new(QueueOptions {
        registry: registry.clone(),
        ..options
    })
    .unwrap();
    queue.add("a");
    assert_eq!(registry.render(), "");
    let m = queue.metrics();
    assert_eq!((m.ready, m.adds), (1, 0));
}

#[test]
fn w84_a_wait_that_is_no_retry_is_not_counted_as_one() {
    let (options, clock) = named();
    let queue = WorkQueue::new(options).unwrap();
    queue.add_after("a", ms(10));
    queue.add_with(
        "b",
        AddOptions {
            uncounted: true,
            ..after(ms(10))
        },
    );
    assert_eq!((queue.metrics().retries, queue.delayed()), (1, 2));
    clock.advance(ms(10));
    assert_eq!(take_all(&queue), ["a", "b"]);
    assert_eq!(queue.metrics().adds, 2, "when it is ready it counts");
}

fn by_priority() -> (PriorityQueue<i32>, ManualClock) {
    let (options, clock) = named();
    (
        PriorityQueue::with_order(options, Priority::default).unwrap(),
        clock,
    )
}

#[test]
fn p4_a_raised_key_moves_to_the_depth_of_its_new_priority() {
    let (queue, clock) = by_priority();
    queue.add_with(
        1,
        AddOptions {
            priority: Some(-100),
            ..after(ms(10))
        },
    );
    queue.add_with(
        2,
        AddOptions {
            priority: Some(-100),
            ..after(ms(10))
        },
    );
    let depths = || queue.metrics().depth_by_priority;
    assert_eq!(depths(), BTreeMap::new());
    clock.advance(ms(10));
    assert_eq!(depths(), [(PriorityLabel::Value(-100), 2)].into());
    queue.add_with(1, at_priority(3));
    assert_eq!(
        depths(),
        [
            (PriorityLabel::Value(-100), 1),
            (PriorityLabel::Value(3), 1)
        ]
        .into()
    );
    assert_eq!(queue.metrics().adds, 2);
    take_all(&queue);
    assert!(depths().values().all(|depth| *depth == 0));
}

#[test]
fn p8_w86_the_26th_priority_and_later_ones_share_a_label_and_all_return_to_0() {
    let (queue, _) = by_priority();
    for priority in 0..40 {
        queue.add_with(priority, at_priority(priority));
    }
    let depths = queue.metrics().depth_by_priority;
    assert_eq!(depths.len(), MAX_PRIORITIES + 1);
    assert_eq!(depths[&PriorityLabel::Other], 15);
    assert_eq!(depths[&PriorityLabel::Value(24)], 1);
    for key in 0..40 {
        queue.add_with(key, at_priority(39 - key / 2));
    }
    take_all(&queue);
    let depths = queue.metrics().depth_by_priority;
    assert_eq!(depths.len(), MAX_PRIORITIES + 1);
    assert!(depths.values().all(|depth| *depth == 0), "{depths:?}");
}

#[test]
fn w80_the_text_has_upstreams_names_and_labels() {
    let (options, clock) = named();
    let registry = options.registry.clone();
    let labels = vec![("controller".to_owned(), "pro\"xy".to_owned())];
    let options = QueueOptions { labels, ..options };
    let queue = PriorityQueue::with_order(options, Priority::default).unwrap();
    queue.add_with("a", at_priority(-100));
    queue.add("b");
    clock.advance(ms(2));
    let _item = queue.try_get().unwrap();
    clock.advance(ms(3));
    let text = registry.render();
    let labels = r#"name="test",controller="pro\"xy""#;
    for line in [
        format!(r#"workqueue_depth{{{labels},priority="-100"}} 1"#),
        format!(r#"workqueue_depth{{{labels},priority="0"}} 0"#),
        format!("workqueue_adds_total{{{labels}}} 2"),
        format!("workqueue_retries_total{{{labels}}} 0"),
        format!(r#"workqueue_queue_duration_seconds_bucket{{{labels},le="0.001"}} 0"#),
        format!(r#"workqueue_queue_duration_seconds_bucket{{{labels},le="0.01"}} 1"#),
        format!(r#"workqueue_queue_duration_seconds_bucket{{{labels},le="+Inf"}} 1"#),
        format!("workqueue_queue_duration_seconds_sum{{{labels}}} 0.002"),
        format!("workqueue_queue_duration_seconds_count{{{labels}}} 1"),
        format!("workqueue_work_duration_seconds_count{{{labels}}} 0"),
        format!("workqueue_unfinished_work_seconds{{{labels}}} 0.003"),
        format!("workqueue_longest_running_processor_seconds{{{labels}}} 0.003"),
        format!("workqueue_delayed{{{labels}}} 0"),
        format!("workqueue_running{{{labels}}} 1"),
        format!("workqueue_failing_keys{{{labels}}} 0"),
        format!("workqueue_oldest_ready_age_seconds{{{labels}}} 0.005"),
        "# TYPE workqueue_depth gauge".to_owned(),
        "# TYPE workqueue_queue_duration_seconds histogram".to_owned(),
        "# TYPE workqueue_adds_total counter".to_owned(),
    ] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_drain_that_gives_up_leaves_no_depth_behind() {
    let (queue, clock) = by_priority();
    for key in 0..5 {
        queue.add_with(key, at_priority(key));
    }
    let options = workqueue::DrainOptions {
        deadline: Some(ms(1)),
        ..Default::default()
    };
    let mut drain = crate::support::Task::waiting(queue.drain(options));
    clock.advance(ms(1));
    assert_eq!(drain.output().len(), 5);
    let m = queue.metrics();
    assert_eq!(
        (m.depth, m.ready, m.oldest_ready_age),
        (0, 0, Duration::ZERO)
    );
    assert!(m.depth_by_priority.values().all(|depth| *depth == 0));
}
