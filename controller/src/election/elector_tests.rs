//! The elector over a fake server, on paused time.

use std::future::pending;
use std::sync::Mutex;

use super::super::fake::{Server, Wire};
use super::*;

type Shelf = Arc<Mutex<Server>>;

const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn elector(identity: &str, lock: Wire) -> Elector {
    elector_with(identity, lock, |_| {})
}

fn elector_with(identity: &str, lock: Wire, change: impl FnOnce(&mut Config)) -> Elector {
    let mut config = Config::for_tests(identity);
    change(&mut config);
    Elector::over(Box::new(lock), config, identity.into())
}

/// Notes what it is told; `work` is what it does in a term.
struct Noting<W> {
    notes: Arc<Mutex<Vec<String>>>,
    work: W,
}

impl<W> Noting<W> {
    fn new(work: W) -> (Self, Arc<Mutex<Vec<String>>>) {
        let notes = Arc::<Mutex<Vec<String>>>::default();
        let candidate = Self {
            notes: Arc::clone(&notes),
            work,
        };
        (candidate, notes)
    }

    fn note(&self, note: String) {
        self.notes.lock().unwrap().push(note);
    }
}

impl<W, F> Candidate for Noting<W>
where
    W: Fn(Term) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send,
{
    async fn lead(&self, term: Term) {
        self.note(format!("term {}", term.number()));
        (self.work)(term).await;
    }

    fn stopped(&self) {
        self.note("stopped".to_owned());
    }

    fn new_leader(&self, identity: &str) {
        self.note(format!("leader {identity}"));
    }
}

async fn until_cancelled(term: Term) {
    term.cancelled().await;
}

/// Runs an elector, stops it after `after`, gives its result and the time from the stop to the end.
async fn run_for<C: Candidate>(
    elector: Elector,
    candidate: C,
    after: Duration,
) -> (Result<(), Error>, Duration) {
    let stop = CancellationToken::new();
    let (result, stopped) = tokio::join!(elector.run(candidate, stop.clone()), async {
        tokio::time::sleep(after).await;
        stop.cancel();
        Instant::now()
    });
    (result, Instant::now() - stopped)
}

#[tokio::test(start_paused = true)]
async fn l3_a_release_looks_first_and_leaves_an_empty_holder_for_a_second() {
    let server = Shelf::default();
    server.lock().unwrap().put("", 6);
    let (held, acquired) = (Arc::clone(&server), Arc::new(Mutex::new(None)));
    let at = Arc::clone(&acquired);
    let work = move |term: Term| {
        *at.lock().unwrap() = held.lock().unwrap().record().acquire_time;
        async move { term.cancelled().await }
    };
    let (candidate, notes) = Noting::new(work);
    let (result, _) = run_for(elector("me", Wire::to(&server)), candidate, seconds(1)).await;
    result.unwrap();
    let server = server.lock().unwrap();
    assert_eq!(server.calls, ["get", "update", "get", "update"]);
    let record = server.record();
    assert_eq!(record.holder, "");
    assert_eq!(record.lease_duration, Some(seconds(1)));
    assert_eq!(record.transitions, 7);
    let acquired = *acquired.lock().unwrap();
    assert!(acquired.is_some());
    assert_eq!(record.acquire_time, acquired, "as it was");
    let notes = notes.lock().unwrap().clone();
    assert_eq!(notes, ["leader me", "term 7", "stopped"]);
}

#[tokio::test(start_paused = true)]
async fn l3_a_release_is_tried_again_after_a_conflict() {
    let server = Shelf::default();
    let shelf = Arc::clone(&server);
    let wire = Wire::with(&server, move |call| {
        let releases = matches!(call, Call::Update(lease) if lease.record().holder.is_empty());
        let mut server = shelf.lock().unwrap();
        let updates = server
            .calls
            .iter()
            .filter(|call| **call == "update")
            .count();
        if releases && updates == 0 {
            // A renewal that was under way arrives first.
            server.touch();
        }
        Some((Duration::ZERO, Duration::ZERO))
    });
    let (result, _) = run_for(elector("me", wire), until_cancelled, seconds(1)).await;
    result.unwrap();
    let server = server.lock().unwrap();
    let expected = ["get", "create", "get", "update", "get", "update"];
    assert_eq!(server.calls, expected);
    assert_eq!(server.record().holder, "");
}

#[tokio::test(start_paused = true)]
async fn l3_a_lease_of_somebody_else_is_left_untouched() {
    let server = Shelf::default();
    let taken = Arc::clone(&server);
    let work = move |term: Term| {
        let taken = Arc::clone(&taken);
        async move {
            term.cancelled().await;
            taken.lock().unwrap().put("other", 9);
        }
    };
    let (result, _) = run_for(elector("me", Wire::to(&server)), work, seconds(1)).await;
    result.unwrap();
    let server = server.lock().unwrap();
    assert_eq!(server.calls, ["get", "create", "get"]);
    assert_eq!(server.record().holder, "other");
}

#[tokio::test(start_paused = true)]
async fn c46_a_release_takes_no_longer_than_the_renew_deadline() {
    let server = Shelf::default();
    let dead = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let cut = Arc::clone(&dead);
    let wire = Wire::with(&server, move |_| {
        let open = !cut.load(std::sync::atomic::Ordering::Relaxed);
        open.then_some((Duration::ZERO, Duration::ZERO))
    });
    let work = move |term: Term| {
        let dead = Arc::clone(&dead);
        async move {
            term.cancelled().await;
            dead.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let (result, took) = run_for(elector("me", wire), work, seconds(1)).await;
    result.unwrap();
    assert!(took <= seconds(10), "{took:?}");
    assert_eq!(server.lock().unwrap().record().holder, "me");
}

#[tokio::test(start_paused = true)]
async fn c34_the_lease_is_renewed_until_the_work_has_ended_and_only_then_given_back() {
    let server = Shelf::default();
    let seen = Arc::clone(&server);
    let work = move |term: Term| {
        let seen = Arc::clone(&seen);
        async move {
            term.cancelled().await;
            // Longer than the lease: without renewals it would be lost.
            tokio::time::sleep(seconds(40)).await;
            assert!(term.is_valid());
            assert_eq!(seen.lock().unwrap().record().holder, "me");
        }
    };
    let (candidate, notes) = Noting::new(work);
    let (result, took) = run_for(elector("me", Wire::to(&server)), candidate, seconds(1)).await;
    result.unwrap();
    assert_eq!(took.as_secs(), 40);
    assert_eq!(server.lock().unwrap().record().holder, "");
    let notes = notes.lock().unwrap().clone();
    assert_eq!(notes, ["leader me", "term 0", "stopped"]);
}

#[tokio::test(start_paused = true)]
async fn c34_a_contender_that_is_stopped_never_leads_and_calls_nothing_back() {
    let server = Shelf::default();
    server.lock().unwrap().put("other", 1);
    let (candidate, notes) = Noting::new(until_cancelled);
    let (result, took) = run_for(elector("me", Wire::to(&server)), candidate, seconds(20)).await;
    // It has taken the Lease over after 15 s and is the leader.
    result.unwrap();
    assert!(took < seconds(1));
    let expected = ["leader other", "leader me", "term 2", "stopped"];
    assert_eq!(*notes.lock().unwrap(), expected);

    server.lock().unwrap().put("other", 3);
    server.lock().unwrap().calls.clear();
    let (candidate, notes) = Noting::new(until_cancelled);
    // Stopped while the call that would win is under way.
    let wire = Wire::with(&server, |call| match call {
        Call::Get => Some((Duration::ZERO, Duration::ZERO)),
        _ => Some((Duration::ZERO, seconds(4))),
    });
    let stop = CancellationToken::new();
    let elector = elector("me", wire);
    let (result, ()) = tokio::join!(elector.run(candidate, stop.clone()), async {
        tokio::time::sleep(Duration::from_millis(15_500)).await;
        assert_eq!(server.lock().unwrap().record().holder, "me");
        stop.cancel();
    });
    result.unwrap();
    assert_eq!(
        *notes.lock().unwrap(),
        ["leader other"],
        "no term, so no end of one"
    );
    // What it won without knowing is given back.
    assert_eq!(server.lock().unwrap().record().holder, "");
}

#[tokio::test(start_paused = true)]
async fn c34_what_a_stopped_contender_had_sent_does_not_arrive_after_the_release() {
    let server = Shelf::default();
    server.lock().unwrap().put("other", 1);
    let (candidate, notes) = Noting::new(until_cancelled);
    // Stopped while the call that would win is on its way.
    let wire = Wire::with(&server, |call| match call {
        Call::Get => Some((Duration::ZERO, Duration::ZERO)),
        _ => Some((seconds(4), Duration::ZERO)),
    });
    let stop = CancellationToken::new();
    let elector = elector("me", wire);
    let (result, ()) = tokio::join!(elector.run(candidate, stop.clone()), async {
        tokio::time::sleep(Duration::from_millis(15_500)).await;
        assert_eq!(server.lock().unwrap().record().holder, "other");
        stop.cancel();
    });
    result.unwrap();
    assert_eq!(*notes.lock().unwrap(), ["leader other"]);
    tokio::time::sleep(seconds(30)).await;
    assert_eq!(
        server.lock().unwrap().record().holder,
        "",
        "given back, for good"
    );
}

#[tokio::test(start_paused = true)]
async fn c46_what_a_leader_had_sent_when_its_work_ended_does_not_arrive_after_the_release() {
    let server = Shelf::default();
    let start = Instant::now();
    // The Lease is deleted, and the call that makes it anew is on its way for 4 s.
    let wire = Wire::with(&server, move |call| match call {
        Call::Create(_) if start.elapsed() > seconds(1) => Some((seconds(4), Duration::ZERO)),
        _ => Some((Duration::ZERO, Duration::ZERO)),
    });
    let stop = CancellationToken::new();
    let elector = elector("me", wire);
    let run = elector.run(until_cancelled, stop.clone());
    let (result, ()) = tokio::join!(run, async {
        tokio::time::sleep(seconds(1)).await;
        server.lock().unwrap().lease = None;
        tokio::time::sleep(seconds(2)).await;
        assert_eq!(server.lock().unwrap().lease, None, "it is on its way");
        stop.cancel();
    });
    result.unwrap();
    tokio::time::sleep(seconds(30)).await;
    assert_eq!(
        server.lock().unwrap().record().holder,
        "",
        "given back, for good"
    );
}

#[tokio::test(start_paused = true)]
async fn c45_a_lease_that_is_not_renewed_in_time_ends_the_work_and_then_the_election() {
    let server = Shelf::default();
    let start = Instant::now();
    let wire = Wire::with(&server, move |_| {
        (start.elapsed() < seconds(5)).then_some((Duration::ZERO, Duration::ZERO))
    });
    let ended = Arc::new(Mutex::new(None));
    let end = Arc::clone(&ended);
    struct Note(Arc<Mutex<Option<Instant>>>);
    impl Drop for Note {
        fn drop(&mut self) {
            *self.0.lock().unwrap() = Some(Instant::now());
        }
    }
    let work = move |_| {
        let note = Note(Arc::clone(&end));
        async move {
            let _note = note;
            pending().await
        }
    };
    let (candidate, notes) = Noting::new(work);
    let elector = elector("me", wire);
    let handle = elector.handle();
    let error = elector
        .run(candidate, CancellationToken::new())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::NotRenewed { .. }), "{error}");
    assert_eq!(error.to_string(), "lost lease name: not renewed within 10s");
    // Renewed at 0, 2 and 4 s.
    assert_eq!(start.elapsed().as_secs(), 14);
    assert_eq!((ended.lock().unwrap().unwrap() - start).as_secs(), 14);
    assert!(!handle.is_leader());
    assert_eq!(*notes.lock().unwrap(), ["leader me", "term 0", "stopped"]);
}

#[tokio::test(start_paused = true)]
async fn c49_a_contender_that_rejoins_works_anew_after_the_old_work_has_ended() {
    let server = Shelf::default();
    let start = Instant::now();
    let wire = Wire::with(&server, move |_| {
        let away = (5..30).contains(&start.elapsed().as_secs());
        (!away).then_some((Duration::ZERO, Duration::ZERO))
    });
    let running = Arc::new(Mutex::new(0));
    struct Running(Arc<Mutex<i32>>);
    impl Drop for Running {
        fn drop(&mut self) {
            *self.0.lock().unwrap() -= 1;
        }
    }
    let terms = Arc::<Mutex<Vec<Term>>>::default();
    let begun = Arc::clone(&terms);
    let work = move |term: Term| {
        let (running, terms) = (Arc::clone(&running), Arc::clone(&begun));
        async move {
            *running.lock().unwrap() += 1;
            assert_eq!(*running.lock().unwrap(), 1, "never two sets of work");
            terms.lock().unwrap().push(term.clone());
            let _running = Running(running);
            term.cancelled().await;
            pending::<()>().await;
        }
    };
    let (candidate, notes) = Noting::new(work);
    let elector = elector_with("me", wire, |config| config.rejoin = true);
    let stop = CancellationToken::new();
    let (result, ()) = tokio::join!(elector.run(candidate, stop.clone()), async {
        tokio::time::sleep(seconds(40)).await;
        // Its own Lease, so the number is the same; whoever kept the old term must not go on in it.
        let valid: Vec<_> = terms.lock().unwrap().iter().map(Term::is_valid).collect();
        assert_eq!(valid, [false, true]);
        server.lock().unwrap().put("other", 7);
        tokio::time::sleep(seconds(5)).await;
        stop.cancel();
    });
    result.unwrap();
    let expected = [
        "leader me",
        "term 0",
        "stopped",
        "term 0",
        "leader other",
        "stopped",
    ];
    assert_eq!(*notes.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_somebody_else_took_ends_the_term_and_names_them() {
    let server = Shelf::default();
    let elector = elector("me", Wire::to(&server));
    let run = elector.run(until_cancelled, CancellationToken::new());
    let (result, ()) = tokio::join!(run, async {
        tokio::time::sleep(seconds(3)).await;
        server.lock().unwrap().put("other", 7);
    });
    let error = result.unwrap_err();
    assert_eq!(error.to_string(), "lost lease name: it is held by other");
}

#[tokio::test(start_paused = true)]
async fn work_that_panics_gives_the_lease_back_and_is_an_error() {
    let server = Shelf::default();
    let work = |_| async { assert!(std::hint::black_box(false), "no luck") };
    let (candidate, notes) = Noting::new(work);
    let elector = elector("me", Wire::to(&server));
    let error = elector
        .run(candidate, CancellationToken::new())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("no luck"), "{error}");
    assert_eq!(server.lock().unwrap().record().holder, "");
    assert_eq!(notes.lock().unwrap().last().unwrap(), "stopped");
}

#[tokio::test(start_paused = true)]
async fn l4_health_is_bad_only_for_a_leader_whose_renewal_is_older_than_lease_and_tolerance() {
    let server = Shelf::default();
    let elector = elector("me", Wire::to(&server));
    let handle = elector.handle();
    let tolerance = ElectionHandle::DEFAULT_TOLERANCE;
    handle.check(tolerance).expect("never run");
    let mut run = std::pin::pin!(elector.run(|_| pending(), CancellationToken::new()));
    tokio::select! {
        result = run.as_mut() => panic!("{result:?}"),
        () = tokio::time::sleep(seconds(1)) => {}
    }
    assert!(handle.is_leader());
    assert_eq!(
        (handle.term(), handle.leader().as_deref()),
        (Some(0), Some("me"))
    );
    handle.check(tolerance).expect("fresh");
    // Nobody polls the elector any more.
    tokio::time::sleep(seconds(33)).await;
    assert!(!handle.is_leader(), "by the clock");
    handle.check(tolerance).expect("34 s old, 35 s allowed");
    tokio::time::sleep(seconds(2)).await;
    let error = handle.check(tolerance).unwrap_err();
    assert_eq!((error.limit, error.age > error.limit), (seconds(35), true));
    assert!(
        error.to_string().starts_with("lease name was renewed 35.9"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn c43_slow_paths_are_counted() {
    let server = Shelf::default();
    let elector = elector("me", Wire::to(&server));
    let handle = elector.handle();
    let stop = CancellationToken::new();
    let run = elector.run(until_cancelled, stop.clone());
    let (result, ()) = tokio::join!(run, async {
        tokio::time::sleep(seconds(1)).await;
        assert_eq!(
            (handle.metrics().is_leader, handle.metrics().slow_paths),
            (true, 0)
        );
        server.lock().unwrap().touch();
        tokio::time::sleep(seconds(2)).await;
        assert_eq!(
            (handle.metrics().is_leader, handle.metrics().slow_paths),
            (true, 1)
        );
        stop.cancel();
    });
    result.unwrap();
    assert!(!handle.metrics().is_leader);
}

#[tokio::test(start_paused = true)]
async fn a_standby_takes_over_at_once_when_the_lease_is_given_back() {
    let server = Shelf::default();
    let first = elector("first", Wire::to(&server));
    let second = elector("second", Wire::to(&server));
    let handle = second.handle();
    let (stop_first, stop_second) = (CancellationToken::new(), CancellationToken::new());
    let (one, two, ()) = tokio::join!(
        first.run(until_cancelled, stop_first.clone()),
        async {
            tokio::time::sleep(seconds(1)).await;
            second.run(until_cancelled, stop_second.clone()).await
        },
        async {
            tokio::time::sleep(seconds(60)).await;
            assert!(!handle.is_leader());
            stop_first.cancel();
            // One try of a contender: at most 2 s · 2.2 apart.
            tokio::time::sleep(seconds(5)).await;
            assert!(handle.is_leader());
            assert_eq!(handle.term(), Some(1));
            stop_second.cancel();
        }
    );
    one.unwrap();
    two.unwrap();
}
