//! W90: the hand-over between producers, workers, timer, shutdown and drain, in every order of
//! steps that loom can tell apart.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p workqueue --test loom --release`
//!
//! A lost wake-up shows as a deadlock, a lost key or a double run as a failed assertion.
#![cfg(loom)]

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use loom::{
    future::block_on,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};
use tokio::time::Instant;
use workqueue::{
    AddOptions, Item, Origin, QueueOptions, WorkQueue,
    clock::{Clock, Sleep},
};

/// Explores with up to `preemptions` preempted threads; loom's own default has no bound.
fn model(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

/// A clock that a thread of the model moves.
#[derive(Debug, Clone)]
struct ModelClock {
    start: Instant,
    state: Arc<Mutex<(Duration, Vec<Waker>)>>,
}

impl ModelClock {
    fn new() -> Self {
        Self {
            start: Instant::now(),
            state: Arc::new(Mutex::new((Duration::ZERO, Vec::new()))),
        }
    }

    fn advance(&self, by: Duration) {
        let wakers = {
            let mut state = self.state.lock().unwrap();
            state.0 += by;
            std::mem::take(&mut state.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Clock for ModelClock {
    fn now(&self) -> Instant {
        self.start + self.state.lock().unwrap().0
    }

    fn sleep_until(&self, deadline: Instant) -> Sleep {
        Box::pin(ModelSleep {
            clock: self.clone(),
            deadline,
        })
    }
}

struct ModelSleep {
    clock: ModelClock,
    deadline: Instant,
}

impl Future for ModelSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut state = self.clock.state.lock().unwrap();
        if self.clock.start + state.0 >= self.deadline {
            return Poll::Ready(());
        }
        state.1.push(waker);
        Poll::Pending
    }
}

fn queue(shards: usize) -> (WorkQueue<usize>, ModelClock) {
    let clock = ModelClock::new();
    let options = QueueOptions {
        clock: Arc::new(clock.clone()),
        shards,
        ..QueueOptions::default()
    };
    (WorkQueue::new(options).unwrap(), clock)
}

/// Sees to it that no key runs twice at once, and counts runs.
struct Runs<const N: usize> {
    running: [AtomicUsize; N],
    ended: [AtomicUsize; N],
}

impl<const N: usize> Runs<N> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            running: std::array::from_fn(|_| AtomicUsize::new(0)),
            ended: std::array::from_fn(|_| AtomicUsize::new(0)),
        })
    }

    fn run(&self, item: Item<'_, usize>) {
        let key = *item;
        assert_eq!(
            self.running[key].swap(1, SeqCst),
            0,
            "key {key} runs twice at once"
        );
        self.running[key].store(0, SeqCst);
        self.ended[key].fetch_add(1, SeqCst);
        drop(item);
    }

    fn work(&self, queue: &WorkQueue<usize>) {
        while let Some(item) = block_on(queue.get()) {
            self.run(item);
        }
    }

    fn ended(&self) -> [usize; N] {
        std::array::from_fn(|key| self.ended[key].load(SeqCst))
    }
}

#[test]
fn w90_two_producers_and_two_workers_lose_no_key() {
    // The second shard adds places to look at, not ways to hand over.
    for (shards, preemptions) in [(1, 2), (2, 1)] {
        model(preemptions, move || {
            let (queue, _) = queue(shards);
            let runs = Runs::<2>::new();
            let workers = [(); 2].map(|()| {
                let (queue, runs) = (queue.clone(), Arc::clone(&runs));
                thread::spawn(move || runs.work(&queue))
            });
            let producer = {
                let queue = queue.clone();
                thread::spawn(move || {
                    queue.add(0);
                    queue.add(1);
                })
            };
            queue.add(0);
            producer.join().unwrap();
            queue.shut_down();
            workers
                .into_iter()
                .for_each(|worker| worker.join().unwrap());
            let [a, b] = runs.ended();
            assert!((1..=2).contains(&a) && b == 1, "{a} and {b} runs");
            assert_eq!((queue.len(), queue.running()), (0, 0));
        });
    }
}

#[test]
fn w90_every_add_reaches_a_waiting_worker() {
    model(3, || {
        let (queue, _) = queue(1);
        let workers = [(); 2].map(|()| {
            let queue = queue.clone();
            thread::spawn(move || *block_on(queue.get()).unwrap())
        });
        queue.add(0);
        queue.add(1);
        // Each worker takes one key and keeps it out of the other's way; without a wake-up one of
        // them would wait for ever.
        let mut keys = workers.map(|worker| worker.join().unwrap());
        keys.sort_unstable();
        assert_eq!(keys, [0, 1]);
    });
}

#[test]
fn w90_a_key_added_during_its_run_runs_again() {
    model(3, || {
        let (queue, _) = queue(1);
        let runs = Runs::<1>::new();
        queue.add(0);
        let worker = {
            let (queue, runs) = (queue.clone(), Arc::clone(&runs));
            thread::spawn(move || {
                runs.run(block_on(queue.get()).unwrap());
                queue.try_get().map(|item| runs.run(item)).is_some()
            })
        };
        let added_before = runs.ended()[0];
        queue.add(0);
        let ran_again = worker.join().unwrap();
        // The add came before the first run was taken (folded), or it calls for one more run.
        let left = queue.len();
        assert!(added_before == 0 || ran_again || left == 1);
        assert_eq!(
            runs.ended()[0] + left,
            if ran_again || left == 1 { 2 } else { 1 }
        );
    });
}

#[test]
fn w90_a_deadline_reaches_a_worker_that_waits_already_or_comes_later() {
    for shards in [1, 2] {
        model(3, move || {
            let (queue, clock) = queue(shards);
            let worker = {
                let queue = queue.clone();
                thread::spawn(move || *block_on(queue.get()).unwrap())
            };
            let time = thread::spawn(move || clock.advance(Duration::from_secs(1)));
            queue.add_after(0, Duration::from_millis(1));
            time.join().unwrap();
            // Time may have passed before the add: then it has to pass once more.
            let (queue, worker) = (queue, worker);
            if queue.delayed() == 1 {
                queue.add_after(0, Duration::ZERO);
            }
            assert_eq!(worker.join().unwrap(), 0);
        });
    }
}

#[test]
fn w90_a_reminder_behind_a_result_reaches_a_worker_too() {
    model(3, || {
        let (queue, clock) = queue(1);
        let step = Duration::from_millis(1);
        queue.add_with(
            0,
            AddOptions {
                after: Some(2 * step),
                origin: Origin::Reminder,
                ..AddOptions::default()
            },
        );
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || *block_on(queue.get()).unwrap())
        };
        queue.add_after(0, step);
        clock.advance(step);
        assert_eq!(worker.join().unwrap(), 0);
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || *block_on(queue.get()).unwrap())
        };
        clock.advance(step);
        assert_eq!(worker.join().unwrap(), 0);
        assert_eq!(queue.delayed(), 0);
    });
}

#[test]
fn w90_the_clock_is_watched_whoever_comes_and_goes() {
    model(2, || {
        let (queue, clock) = queue(1);
        // A first waiter that gives up at any moment, a second that relies on the deadline.
        let fickle = {
            let queue = queue.clone();
            thread::spawn(move || poll_once(queue.get()).flatten().map(Item::into_owned))
        };
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || block_on(queue.get()).is_some())
        };
        queue.add_after(0, Duration::from_millis(1));
        let taken = fickle.join().unwrap();
        clock.advance(Duration::from_millis(1));
        drop(taken);
        assert!(worker.join().unwrap());
    });
}

#[test]
fn w90_a_deadline_is_watched_after_its_watcher_took_another_key() {
    model(2, || {
        let (queue, clock) = queue(1);
        let soon = Duration::from_millis(1);
        queue.add_after(0, soon);
        let workers = [(); 2].map(|()| {
            let queue = queue.clone();
            thread::spawn(move || *block_on(queue.get()).unwrap())
        });
        queue.add(1);
        clock.advance(soon);
        let mut keys = workers.map(|worker| worker.join().unwrap());
        keys.sort_unstable();
        assert_eq!(keys, [0, 1]);
    });
}

/// Polls a future once and drops it if it is not ready.
fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[test]
fn w90_a_cancelled_get_passes_its_wake_up_on() {
    model(3, || {
        let (queue, _) = queue(1);
        let fickle = {
            let queue = queue.clone();
            thread::spawn(move || poll_once(queue.get()).flatten().map(|item| *item))
        };
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || *block_on(queue.get()).unwrap())
        };
        queue.add(0);
        if fickle.join().unwrap().is_some() {
            queue.add(0);
        }
        assert_eq!(worker.join().unwrap(), 0);
    });
}

// A panic ends a run by the same drop as a return does (`w07_…` in `it`); loom's own locks cannot be
// taken while a thread unwinds, so the model lets a worker give its item up in the middle of a run.
#[test]
fn w90_a_worker_that_gives_up_hands_the_key_to_the_next() {
    model(3, || {
        let (queue, _) = queue(1);
        queue.add(0);
        let item = block_on(queue.get()).unwrap().into_owned();
        let quitter = {
            let queue = queue.clone();
            thread::spawn(move || {
                queue.add(*item);
                drop(item);
            })
        };
        assert_eq!(*block_on(queue.get()).unwrap(), 0);
        quitter.join().unwrap();
        assert_eq!((queue.len(), queue.running()), (0, 0));
    });
}

#[test]
fn w90_a_drain_returns_when_all_work_is_done_and_not_before() {
    for shards in [1, 2] {
        model(2, move || {
            let (queue, _) = queue(shards);
            let runs = Runs::<2>::new();
            queue.add(0);
            let worker = {
                let (queue, runs) = (queue.clone(), Arc::clone(&runs));
                thread::spawn(move || runs.work(&queue))
            };
            let producer = {
                let queue = queue.clone();
                thread::spawn(move || queue.add(1))
            };
            block_on(queue.shut_down_with_drain());
            let [first, second] = runs.ended();
            assert_eq!((first, queue.len(), queue.running()), (1, 0, 0));
            producer.join().unwrap();
            worker.join().unwrap();
            assert_eq!(runs.ended()[1], second, "an add after shutdown is ignored");
        });
    }
}

#[test]
fn w90_shutdown_leaves_nobody_waiting() {
    model(2, || {
        let (queue, _) = queue(1);
        queue.add(0);
        let item = block_on(queue.get()).unwrap();
        let worker = {
            let queue = queue.clone();
            thread::spawn(move || block_on(queue.get()).is_none())
        };
        let drain = {
            let queue = queue.clone();
            thread::spawn(move || block_on(queue.shut_down_with_drain()))
        };
        queue.shut_down();
        // The worker sees the end, and so does a drain that began before; one that began later
        // waits for the run.
        assert!(worker.join().unwrap());
        drop(item);
        drain.join().unwrap();
    });
}
