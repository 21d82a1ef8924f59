//! What a running controller tells of its runs: history, age, span.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use controller::{Action, ControllerOptions, Outcome, ReconcileError, StuckRun, Trigger};
use tracing::field::{Field, Visit};
use tracing::span;
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt as _};

use crate::support::{Scripting, Stage, config, key, ms, pass};

#[tokio::test(start_paused = true)]
async fn c12_a_keys_history_tells_causes_attempts_outcomes_and_the_next_time() {
    let reconciler = Scripting::answering(|_, n| match n {
        0 => Err(ReconcileError::retry("no quota")),
        1 => Ok(Action::RequeueAfter(ms(1000))),
        2 => Ok(Action::RequeueAfter(ms(60_000))),
        3 => Err(ReconcileError::terminal("bad spec")),
        _ => Ok(Action::Done),
    });
    let start = tokio::time::Instant::now();
    let stage = Stage::open(&["a", "b"], reconciler, ControllerOptions::default());
    pass(ms(3000)).await;
    assert_eq!(
        stage.handle.history(&key("a")).unwrap().next_due,
        Some(start + ms(61_005))
    );
    stage.scene.modify(config("a", 1001));
    pass(ms(1)).await;
    let history = stage.handle.history(&key("a")).unwrap();
    let runs: Vec<_> = history
        .runs
        .iter()
        .map(|run| (run.trigger, run.attempt, run.priority, run.outcome.clone()))
        .collect();
    assert_eq!(
        runs,
        [
            (Trigger::OldNews, 1, -100, Outcome::Error("no quota".into())),
            (Trigger::Backoff, 2, -100, Outcome::RequeueAfter(ms(1000))),
            (
                Trigger::Requested,
                1,
                -100,
                Outcome::RequeueAfter(ms(60_000))
            ),
            (Trigger::Change, 1, 0, Outcome::Terminal("bad spec".into())),
        ]
    );
    assert_eq!(history.next_due, None, "it waits for an event alone");
    assert_eq!(stage.handle.histories().len(), 2);
    assert_eq!(stage.handle.history(&key("c")), None);
    stage.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn c11_a_run_older_than_its_limit_fails_the_check_of_liveness() {
    let reconciler = Scripting::new(|_, _, _| async {
        tokio::time::sleep(ms(10_000)).await;
        Ok(Action::Done)
    });
    let options = ControllerOptions {
        stuck_after: Some(Duration::from_secs(5)),
        ..ControllerOptions::default()
    };
    let stage = Stage::open(&["a"], reconciler, options);
    pass(ms(5000)).await;
    stage.handle.check_alive().unwrap();
    assert_eq!(stage.handle.running(), [(key("a"), ms(5000))]);
    pass(ms(1000)).await;
    let stuck = stage.handle.check_alive().unwrap_err();
    let StuckRun {
        key: stuck_key,
        age,
        limit,
        ..
    } = &*stuck;
    assert_eq!((stuck_key, *age, *limit), (&key("a"), ms(6000), ms(5000)));
    assert!(stuck.to_string().contains("ns/a"), "{stuck}");
    pass(ms(5000)).await;
    stage.handle.check_alive().unwrap();
    assert!(stage.handle.has_synced(), "ready since its handlers were");
    stage.close().await.unwrap();
}

/// Keeps the fields of every span named `reconcile`.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<BTreeMap<String, String>>>>);

struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}").trim_matches('"').to_owned();
        self.0.insert(field.name().to_owned(), text);
    }
}

impl<S: tracing::Subscriber> Layer<S> for Spans {
    fn on_new_span(&self, span: &span::Attributes<'_>, _: &span::Id, _: LayerContext<'_, S>) {
        if span.metadata().name() == "reconcile" {
            let mut fields = Fields(BTreeMap::new());
            span.record(&mut fields);
            self.0.lock().unwrap().push(fields.0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c10_a_runs_span_has_its_id_controller_key_attempt_and_priority() {
    let spans = Spans::default();
    let subscriber = tracing_subscriber::registry().with(spans.clone());
    // While a subscriber that wants everything is there, no span that another test meets first,
    // without one of its own, is switched off for good. Whoever is first sets it.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry());
    let _guard = tracing::subscriber::set_default(subscriber);
    let reconciler = Scripting::answering(|_, n| match n {
        0 => Err(ReconcileError::retry("once").at_priority(3)),
        _ => Ok(Action::Done),
    });
    let stage = Stage::open(&["a"], reconciler.clone(), ControllerOptions::default());
    pass(ms(100)).await;
    let expected: Vec<_> = reconciler
        .calls()
        .iter()
        .zip([("1", "-100"), ("2", "3")])
        .map(|(call, (attempt, priority))| {
            [
                ("controller", stage.handle.name().to_owned()),
                ("k8s.namespace.name", "ns".to_owned()),
                ("k8s.resource.name", "a".to_owned()),
                ("reconcile.id", call.ctx.id().to_string()),
                ("reconcile.attempt", attempt.to_owned()),
                ("reconcile.priority", priority.to_owned()),
            ]
            .map(|(field, value)| (field.to_owned(), value))
            .into()
        })
        .collect();
    assert_eq!(*spans.0.lock().unwrap(), expected);
    stage.close().await.unwrap();
}
