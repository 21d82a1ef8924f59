//! What holds for any timing of events, any length and any result of the reconciles.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use controller::{Action, ControllerOptions, ReconcileError};
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::time::Instant;

use crate::support::{Answer, Scene, Scripting, Stage, config, ms, pass};

/// A change of one object, some time after the change before.
#[derive(Debug, Clone)]
struct Change {
    pause: u64,
    object: usize,
}

/// How one run goes.
#[derive(Debug, Clone, Copy)]
struct Run {
    takes: u64,
    outcome: Outcome,
}

#[derive(Debug, Clone, Copy)]
enum Outcome {
    Done,
    Requeue,
    RequeueAfter(u64),
    Fail,
    Panic,
}

impl Outcome {
    fn answer(self) -> Answer {
        match self {
            Self::Done => Ok(Action::Done),
            Self::Requeue => Ok(Action::Requeue),
            Self::RequeueAfter(after) => Ok(Action::RequeueAfter(ms(after))),
            Self::Fail => Err(ReconcileError::retry("broken")),
            Self::Panic => std::panic::resume_unwind(Box::new("shaky")),
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    (0..30_u64, 0..3_usize).prop_map(|(pause, object)| Change { pause, object })
}

fn run() -> impl Strategy<Value = Run> {
    let outcome = prop_oneof![
        3 => Just(Outcome::Done),
        1 => Just(Outcome::Requeue),
        1 => (0..40_u64).prop_map(Outcome::RequeueAfter),
        1 => Just(Outcome::Fail),
        1 => Just(Outcome::Panic),
    ];
    (0..25_u64, outcome).prop_map(|(takes, outcome)| Run { takes, outcome })
}

const NAMES: [&str; 3] = ["a", "b", "c"];

/// What one run saw, and when it ran.
#[derive(Debug)]
struct Seen {
    name: String,
    version: u32,
    from: Instant,
    to: Instant,
}

/// Plays changes against runs (`Done` when they are used up); gives all runs in order of their end.
async fn play(workers: usize, changes: &[Change], runs: Vec<Run>) -> Vec<Seen> {
    let scene = Scene::listing(NAMES.map(|name| config(name, 1)).to_vec());
    let lister = scene.informer.lister();
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let runs = Arc::new(Mutex::new(runs));
    let reconciler = {
        let seen = Arc::clone(&seen);
        Scripting::new(move |key, _, _| {
            let (seen, lister) = (Arc::clone(&seen), lister.clone());
            let run = runs.lock().unwrap().pop();
            async move {
                let from = Instant::now();
                let object = lister.get(&key).expect("nothing is deleted");
                let version = object
                    .metadata
                    .resource_version
                    .as_deref()
                    .unwrap_or_default();
                let version = version.parse().expect("versions are numbers");
                let run = run.unwrap_or(Run {
                    takes: 0,
                    outcome: Outcome::Done,
                });
                tokio::time::sleep(ms(run.takes)).await;
                let (name, to) = (key.name().to_owned(), Instant::now());
                seen.lock().unwrap().push(Seen {
                    name,
                    version,
                    from,
                    to,
                });
                run.outcome.answer()
            }
        })
    };
    let options = ControllerOptions {
        workers,
        ..ControllerOptions::default()
    };
    let stage = Stage::over(scene, reconciler, options);
    for (change, version) in changes.iter().zip(1001..) {
        if change.pause > 0 {
            tokio::time::sleep(ms(change.pause)).await;
        }
        stage.scene.modify(config(NAMES[change.object], version));
    }
    pass(Duration::from_secs(3600)).await;
    let queue = stage.handle.queue();
    assert_eq!(
        (queue.ready, queue.running, queue.delayed, queue.failing),
        (0, 0, 0, 0)
    );
    stage.close().await.unwrap();
    std::mem::take(&mut seen.lock().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn c01_every_key_is_reconciled_after_its_last_change_and_never_twice_at_once(
        workers in 1..4_usize,
        changes in vec(change(), 0..40),
        runs in vec(run(), 0..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let seen = runtime.block_on(play(workers, &changes, runs));
        let mut last: HashMap<&str, &Seen> = HashMap::new();
        for run in &seen {
            if let Some(before) = last.insert(&run.name, run) {
                prop_assert!(before.to <= run.from, "{:?} overlaps {:?}", before, run);
                prop_assert!(before.version <= run.version, "{:?} after {:?}", run, before);
            }
        }
        for (object, name) in NAMES.iter().enumerate() {
            let newest = changes
                .iter()
                .zip(1001..)
                .filter(|(change, _)| change.object == object)
                .map(|(_, version)| version)
                .max()
                .unwrap_or(1);
            prop_assert_eq!(last[name].version, newest, "{}", name);
        }
    }
}
