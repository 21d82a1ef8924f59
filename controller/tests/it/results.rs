//! What a result leads to: when the key comes again, and what is counted.

use std::time::Duration;

use controller::{Action, ControllerOptions, ReconcileError};

use crate::support::{Answer, Scripting, Stage, config, key, ms, pass};

fn retry() -> Answer {
    Err(ReconcileError::retry("broken"))
}

/// Plays the answers for one key (`Done` afterwards) and checks times and attempts of its calls.
async fn check(row: &str, answers: Vec<fn() -> Answer>, expected: &[(u128, u32)]) {
    let reconciler = Scripting::answering(move |_, n| {
        answers.get(n).map_or(Ok(Action::Done), |answer| answer())
    });
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(Duration::from_secs(3600)).await;
    let calls: Vec<_> = reconciler
        .calls()
        .iter()
        .map(|call| (call.at.as_millis(), call.ctx.attempt()))
        .collect();
    // A timer tick is 1 ms, and each wait may be a tick late.
    let near = |(at, attempt): &(u128, u32), (due, due_attempt): &(u128, u32), n: usize| {
        (*due..=due + n as u128).contains(at) && attempt == due_attempt
    };
    assert!(
        calls.len() == expected.len()
            && calls
                .iter()
                .zip(expected)
                .enumerate()
                .all(|(n, (a, b))| near(a, b, n)),
        "{row}: {calls:?}, expected {expected:?}"
    );
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn k1_each_result_brings_the_key_again_at_its_time() {
    check("done: not again", vec![], &[(0, 1)]).await;
    check(
        "requeue: after the backoff, which grows",
        vec![|| Ok(Action::Requeue); 3],
        &[(0, 1), (5, 2), (15, 3), (35, 4)],
    )
    .await;
    check(
        "error: after the backoff, which grows",
        vec![retry; 3],
        &[(0, 1), (5, 2), (15, 3), (35, 4)],
    )
    .await;
    check(
        "requeue_after: at its time, no failure counted",
        vec![|| Ok(Action::RequeueAfter(ms(700))); 2],
        &[(0, 1), (700, 1), (1400, 1)],
    )
    .await;
    check(
        "requeue_after of 0: at once, no failure counted",
        vec![|| Ok(Action::RequeueAfter(ms(0))); 2],
        &[(0, 1), (0, 1), (0, 1)],
    )
    .await;
    check(
        "error with a wait: the wait if the backoff is shorter, and the failure counts",
        vec![|| Err(ReconcileError::retry_after("busy", ms(700))), retry],
        &[(0, 1), (700, 2), (710, 3)],
    )
    .await;
    check(
        "error with a wait: the backoff if that is longer",
        vec![retry, retry, || {
            Err(ReconcileError::retry_after("busy", ms(7)))
        }],
        &[(0, 1), (5, 2), (15, 3), (35, 4)],
    )
    .await;
    check(
        "terminal: not again",
        vec![|| Err(ReconcileError::terminal("no"))],
        &[(0, 1)],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn k2_the_backoff_starts_over_after_success_or_requeue_after() {
    check(
        "requeue_after in between",
        vec![retry, retry, || Ok(Action::RequeueAfter(ms(100))), retry],
        &[(0, 1), (5, 2), (15, 3), (115, 1), (120, 2)],
    )
    .await;
    let reconciler = Scripting::answering(|_, n| {
        if n < 2 || n == 3 {
            retry()
        } else {
            Ok(Action::Done)
        }
    });
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(1000)).await;
    stage.scene.modify(config("a", 1001));
    pass(ms(1000)).await;
    let attempts: Vec<_> = reconciler
        .calls()
        .iter()
        .map(|call| call.ctx.attempt())
        .collect();
    assert_eq!(
        attempts,
        [1, 2, 3, 1, 2],
        "success in the third run forgets the failures"
    );
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn k2_a_requeue_counts_with_the_errors_and_does_not_forget_them() {
    check(
        "requeue in between",
        vec![retry, || Ok(Action::Requeue), retry],
        &[(0, 1), (5, 2), (15, 3), (35, 4)],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn k2_a_terminal_error_forgets_the_failures_before_it() {
    let reconciler = Scripting::answering(|_, n| match n {
        0 | 1 => retry(),
        2 => Err(ReconcileError::terminal("no")),
        _ => Ok(Action::Done),
    });
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(1000)).await;
    stage.scene.modify(config("a", 1001));
    pass(ms(1000)).await;
    let attempts: Vec<_> = reconciler
        .calls()
        .iter()
        .map(|call| call.ctx.attempt())
        .collect();
    assert_eq!(attempts, [1, 2, 3, 1]);
    assert_eq!(stage.handle.queue().failing, 0);
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn k2_a_failing_key_does_not_slow_another() {
    let reconciler = Scripting::answering(|key, _| match key.name() {
        "bad" => retry(),
        _ => Ok(Action::RequeueAfter(ms(100))),
    });
    let stage = Stage::open(
        &["bad", "good"],
        reconciler.clone(),
        ControllerOptions::default(),
    );
    pass(ms(1050)).await;
    assert!(
        reconciler.times("bad").len() >= 7,
        "{:?}",
        reconciler.times("bad")
    );
    let good = reconciler.times("good");
    assert!((10..=11).contains(&good.len()), "{good:?}");
    assert_eq!(stage.handle.queue().failing, 1);
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn k1_a_key_keeps_its_priority_unless_the_result_names_another() {
    let reconciler = Scripting::answering(|_, n| match n {
        0 => retry(),
        1 => Ok(Action::RequeueAfter(ms(1))),
        2 => Ok(Action::Requeue.at_priority(7)),
        3 => Err(ReconcileError::retry("broken").at_priority(-3)),
        _ => Ok(Action::Done),
    });
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(1000)).await;
    let priorities: Vec<_> = reconciler
        .calls()
        .iter()
        .map(|call| call.ctx.priority())
        .collect();
    assert_eq!(priorities, [-100, -100, -100, 7, -3]);
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_event_supersedes_the_wait_that_a_result_asked_for() {
    let reconciler = Scripting::answering(|_, n| match n {
        0 => Ok(Action::RequeueAfter(Duration::from_secs(10))),
        _ => Ok(Action::Done),
    });
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(4000)).await;
    stage.scene.modify(config("a", 1001));
    pass(Duration::from_secs(60)).await;
    assert_eq!(
        reconciler.times("a").len(),
        2,
        "{:?}",
        reconciler.times("a")
    );
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reminder_survives_events_in_between() {
    let reconciler = Scripting::answering(|_, _| Ok(Action::Done));
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(1000)).await;
    stage
        .handle
        .trigger_after(key("a"), Duration::from_secs(10));
    pass(ms(4000)).await;
    stage.handle.trigger(key("a"));
    pass(Duration::from_secs(60)).await;
    let times = reconciler.times("a");
    assert_eq!(times.len(), 3, "{times:?}");
    assert!((11_000..11_010).contains(&times[2]), "{times:?}");
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn w24_a_reminder_keeps_its_time_beside_retries_and_waits_that_are_due_before_it() {
    let reconciler = Scripting::answering(|_, n| match n {
        1 => retry(),
        2 => Ok(Action::RequeueAfter(Duration::from_secs(5))),
        _ => Ok(Action::Done),
    });
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(1000)).await;
    stage
        .handle
        .trigger_after(key("a"), Duration::from_secs(20));
    stage.handle.trigger(key("a"));
    pass(ms(2000)).await;
    assert_eq!(reconciler.times("a").len(), 3, "a failure and its retry");
    stage.scene.modify(config("a", 1001));
    pass(ms(17_000)).await;
    let times = reconciler.times("a");
    assert_eq!(times.len(), 4, "the event stands for the wait: {times:?}");
    pass(ms(60_000)).await;
    let times = reconciler.times("a");
    assert_eq!(times.len(), 5, "{times:?}");
    assert!((21_000..21_010).contains(&times[4]), "{times:?}");
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c06_each_result_has_its_counter() {
    let reconciler = Scripting::answering(|_, n| match n {
        0 => Ok(Action::Requeue),
        1 => Ok(Action::RequeueAfter(ms(1))),
        2 | 3 => retry(),
        4 => Err(ReconcileError::terminal("no")),
        _ => Ok(Action::Done),
    });
    let options = ControllerOptions {
        workers: 3,
        ..ControllerOptions::default()
    };
    let stage = Stage::open(&["a"], reconciler, options);
    let before = stage.handle.metrics();
    assert_eq!((before.success, before.reconcile_time.count()), (0, 0));
    pass(ms(1000)).await;
    stage.scene.modify(config("a", 1001));
    pass(ms(1000)).await;
    let after = stage.handle.metrics();
    assert_eq!(
        (after.success, after.requeue, after.requeue_after),
        (1, 1, 1)
    );
    assert_eq!(
        (after.error, after.errors, after.terminal_errors),
        (3, 3, 1)
    );
    assert_eq!((after.panics, after.timeouts), (0, 0));
    assert_eq!(after.reconcile_time.count(), 6);
    assert_eq!(
        (after.max_concurrent_reconciles, after.active_workers),
        (3, 0)
    );
    assert_eq!(&*after.controller, stage.handle.name());
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn k2_w49_a_burst_of_triggers_during_a_wait_is_one_run_and_one_failure() {
    let reconciler = Scripting::answering(|_, _| Err(ReconcileError::retry("broken")));
    let options = ControllerOptions {
        backoff_base: ms(1000),
        ..ControllerOptions::default()
    };
    let stage = Stage::open(&["a"], reconciler.clone(), options);
    pass(ms(500)).await;
    for _ in 0..5 {
        stage.handle.trigger(key("a"));
    }
    pass(ms(7000)).await;
    let calls = reconciler.calls();
    let runs: Vec<_> = calls
        .iter()
        .map(|call| (call.at.as_millis(), call.ctx.attempt()))
        .collect();
    assert_eq!(runs, [(0, 1), (500, 2), (2500, 3), (6500, 4)]);
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c03_a_key_that_comes_at_once_over_and_over_is_slowed_down_until_it_answers_otherwise() {
    let at_once = || Ok(Action::RequeueAfter(Duration::ZERO));
    let reconciler = Scripting::answering(move |key, n| match key.name() {
        "steps" if n < 16 => at_once(),
        "circle" if n < 30 => at_once(),
        _ => Ok(Action::Done),
    });
    let stage = Stage::open(
        &["circle", "steps"],
        reconciler.clone(),
        ControllerOptions::default(),
    );
    pass(ms(1)).await;
    assert_eq!(
        reconciler.times("steps").len(),
        17,
        "sixteen steps without a wait"
    );
    assert_eq!(reconciler.times("circle").len(), 17);
    pass(ms(400)).await;
    let times = reconciler.times("circle");
    // 5, 10, 20, 40, 80, 160 ms after one another.
    assert_eq!(times.len(), 23, "{times:?}");
    let attempts: Vec<_> = reconciler
        .calls()
        .iter()
        .map(|call| call.ctx.attempt())
        .collect();
    assert_eq!(attempts.iter().max(), Some(&7));
    // It comes to an end, and may go by steps again.
    pass(Duration::from_secs(200)).await;
    assert_eq!(reconciler.times("circle").len(), 31);
    stage.scene.modify(config("circle", 2));
    pass(ms(1)).await;
    let last = reconciler.calls().pop().unwrap();
    assert_eq!((last.key.name(), last.ctx.attempt()), ("circle", 1));
    stage.close().await.unwrap();
}
