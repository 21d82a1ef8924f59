//! One contender's part in an election as a state machine: what to call or wait for next.
//!
//! It makes no call and reads no clock. The elector carries out what it says against a real
//! server, the simulation against a simulated one with clocks and networks of its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::record::Lease;
use super::{Config, Now, Observation, Record, Step, decide};

/// A try at an expired Lease comes this long after the moment at which it is not expired yet.
const TICK: Duration = Duration::from_millis(1);

/// A call of the API server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Call {
    /// Read the Lease.
    Get,
    /// Create it.
    Create(Lease),
    /// Replace it, if it still has the version it names.
    Update(Lease),
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    /// With the Lease as it now is.
    Lease(Lease),
    /// There is no Lease.
    NotFound,
    /// It exists already, or has another version.
    Conflict,
    /// Otherwise refused, or without an answer: it may have been carried out or not.
    Failed,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Next {
    /// Make this call, for no longer than until then, and tell [`Contender::answered`].
    Call(Call, Instant),
    /// Come back at this moment.
    Sleep(Instant),
    /// The term is over: [`Contender::term`] is none. Told once.
    Lost(Loss),
}

/// Why a term ended against the holder's will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Not renewed within the renew deadline.
    Deadline,
    /// The Lease is held by somebody else, or by nobody.
    Taken,
}

/// What the contender has become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Term {
    /// Count of transitions in the Lease.
    pub(crate) number: u32,
    /// Count of this contender's terms: one that regains the Lease it held last has the same number.
    pub(crate) serial: u64,
    /// Up to when it may act as the leader without another renewal.
    pub(crate) deadline: Instant,
}

/// The call whose answer is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Waiting {
    since: Instant,
    of: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An update from the remembered record, without a look before.
    FastRenewal,
    /// The look of the slow path.
    Look,
    /// The write that follows from it.
    Write,
}

/// A contender's knowledge and position.
#[derive(Debug)]
pub(crate) struct Contender {
    identity: Arc<str>,
    config: Config,
    /// The Lease as last seen, since when it has been so; none if it did not exist.
    seen: Option<(Lease, Instant)>,
    term: Option<Term>,
    /// Terms that have begun.
    terms: u64,
    lost: Option<Loss>,
    waiting: Option<Waiting>,
    /// What the attempt under way does next; none between attempts.
    planned: Option<(Call, Kind)>,
    /// When the next attempt begins.
    wake: Instant,
    /// A write that would make us holder was sent, and what became of it is not known.
    in_doubt: bool,
    slow_paths: u64,
}

impl Contender {
    pub(crate) fn new(identity: Arc<str>, config: Config, now: Instant) -> Self {
        Self {
            identity,
            config,
            seen: None,
            term: None,
            terms: 0,
            lost: None,
            waiting: None,
            planned: None,
            wake: now,
            in_doubt: false,
            slow_paths: 0,
        }
    }

    /// The present term, if this contender leads. Past its deadline it must not act any more,
    /// whether or not that was noticed.
    pub(crate) fn term(&self) -> Option<Term> {
        self.term
    }

    /// Who held the Lease when it was last seen; none if nobody did or it was never seen.
    pub(crate) fn leader(&self) -> Option<String> {
        let holder = self.seen.as_ref()?.0.record().holder;
        (!holder.is_empty()).then_some(holder)
    }

    /// Whether the server may have this contender as the holder.
    pub(crate) fn may_hold(&self) -> bool {
        self.term.is_some() || self.in_doubt
    }

    /// How often a holder had to look before it could renew.
    pub(crate) fn slow_paths(&self) -> u64 {
        self.slow_paths
    }

    /// The next thing to do. Not to be called while an answer is outstanding.
    pub(crate) fn next(&mut self, now: Now) -> Next {
        debug_assert!(self.waiting.is_none(), "an answer is outstanding");
        let monotonic = now.monotonic;
        if self.term.is_some_and(|term| monotonic >= term.deadline) {
            self.lose(Loss::Deadline, monotonic);
        }
        if let Some(loss) = self.lost.take() {
            return Next::Lost(loss);
        }
        if self.planned.is_none() {
            if monotonic < self.wake {
                return Next::Sleep(self.wake.min(self.deadline().unwrap_or(self.wake)));
            }
            self.planned = Some(self.begin(now));
        }
        let (call, of) = self.planned.take().expect("planned above");
        if of != Kind::Look {
            self.in_doubt = true;
        }
        self.waiting = Some(Waiting {
            since: monotonic,
            of,
        });
        let limit = monotonic + self.config.attempt_timeout();
        let limit = self
            .deadline()
            .map_or(limit, |deadline| limit.min(deadline));
        Next::Call(call, limit)
    }

    /// Takes in the answer to the call that [`next`](Self::next) asked for. `spread`, from 0 to 1,
    /// is drawn anew each time and keeps contenders from trying at the same moments.
    pub(crate) fn answered(&mut self, answer: Answer, now: Now, spread: f64) {
        let waiting = self.waiting.take().expect("a call was asked for");
        match (waiting.of, answer) {
            (Kind::FastRenewal | Kind::Write, Answer::Lease(lease)) => {
                self.hold(lease, waiting.since, now.monotonic);
            }
            (Kind::FastRenewal, _) => {
                self.slow_paths += 1;
                self.planned = Some((Call::Get, Kind::Look));
            }
            (Kind::Look, Answer::Lease(lease)) => {
                self.observe(lease, now.monotonic);
                self.act(now, spread);
            }
            (Kind::Look, Answer::NotFound) => {
                // While we lead, the record that was deleted is ours, and it is written again.
                if self.term.is_none() {
                    self.seen = None;
                }
                self.in_doubt = self.term.is_some();
                self.recreate(now);
            }
            (Kind::Write, Answer::Conflict | Answer::NotFound) => {
                self.in_doubt = self.term.is_some();
                self.pause(now.monotonic, spread);
            }
            (_, Answer::Conflict | Answer::Failed) => self.pause(now.monotonic, spread),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.term.map(|term| term.deadline)
    }

    fn begin(&self, now: Now) -> (Call, Kind) {
        match (&self.term, &self.seen) {
            (Some(_), Some((lease, _))) => {
                let renewed = lease.with(&self.renewed(&lease.record(), now), &self.config.labels);
                (Call::Update(renewed), Kind::FastRenewal)
            }
            _ => (Call::Get, Kind::Look),
        }
    }

    fn renewed(&self, record: &Record, now: Now) -> Record {
        Record {
            renew_time: Some(now.wall),
            lease_duration: Some(self.config.lease_duration),
            ..record.clone()
        }
    }

    /// Notes what was read. A record that is known already keeps the moment of its first sight,
    /// whatever else in the Lease has changed.
    fn observe(&mut self, lease: Lease, now: Instant) {
        let at = match &self.seen {
            Some((known, at)) if known.record() == lease.record() => *at,
            _ => now,
        };
        self.seen = Some((lease, at));
    }

    /// Does what follows from the Lease that was read just now.
    fn act(&mut self, now: Now, spread: f64) {
        let (lease, at) = self.seen.as_ref().expect("read just now");
        let record = lease.record();
        if record.holder != *self.identity {
            // What was in doubt did not come about, or has ended again.
            self.in_doubt = false;
            if self.term.is_some() {
                self.lose(Loss::Taken, now.monotonic);
                return;
            }
        }
        let seen = Observation { record, at: *at };
        let duration = self.config.lease_duration;
        match decide(Some(&seen), now, &self.identity, duration) {
            Step::Create(record) | Step::Take(record) | Step::Renew(record) => {
                let lease = lease.with(&record, &self.config.labels);
                self.planned = Some((Call::Update(lease), Kind::Write));
            }
            Step::Wait { until } => {
                self.pause(now.monotonic, spread);
                // An expiry is known to the moment, so nobody needs to sleep over it.
                if let Some(until) = until {
                    self.wake = self.wake.min(until + TICK).max(now.monotonic + TICK);
                }
            }
        }
    }

    /// Creates the Lease, which does not exist.
    fn recreate(&mut self, now: Now) {
        let duration = self.config.lease_duration;
        let record = match (&self.seen, decide(None, now, &self.identity, duration)) {
            // The number of a term stays the same as long as it lasts.
            (Some((lease, _)), _) => self.renewed(&lease.record(), now),
            (None, Step::Create(record)) => record,
            (None, step) => unreachable!("without a Lease one is created: {step:?}"),
        };
        let Config {
            namespace,
            name,
            labels,
            ..
        } = &self.config;
        let lease = Lease::new(namespace, name, labels, &record);
        self.planned = Some((Call::Create(lease), Kind::Write));
    }

    /// The Lease is ours, by a write that was sent at `since`.
    fn hold(&mut self, lease: Lease, since: Instant, now: Instant) {
        let number = lease.record().transitions;
        self.in_doubt = false;
        self.seen = Some((lease, now));
        self.waiting = None;
        // Counted from before the write was sent: others count from after they saw it, so they
        // count longer whatever the answer took.
        let deadline = since + self.config.renew_deadline;
        if now >= deadline {
            if self.term.is_some() {
                self.lose(Loss::Deadline, now);
            } else {
                self.in_doubt = true;
                self.wake = now;
            }
            return;
        }
        if self.term.is_none() {
            self.terms += 1;
        }
        self.term = Some(Term {
            number,
            serial: self.terms,
            deadline,
        });
        self.wake = now + self.config.retry_period;
    }

    fn lose(&mut self, loss: Loss, now: Instant) {
        self.in_doubt = loss == Loss::Deadline;
        self.term = None;
        self.lost = Some(loss);
        self.planned = None;
        self.wake = now;
    }

    /// Ends an attempt. A holder tries again at the same pace, the others at one that varies.
    fn pause(&mut self, now: Instant, spread: f64) {
        let retry = self.config.retry_period;
        let jitter = if self.term.is_some() {
            Duration::ZERO
        } else {
            retry.mul_f64(super::JITTER * spread.clamp(0.0, 1.0))
        };
        self.wake = now + retry + jitter;
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::super::fake::Server;
    use super::*;

    /// A contender, a clock, and a server of one Lease.
    struct Scene {
        contender: Contender,
        start: Instant,
        at: Duration,
        server: Server,
    }

    fn config() -> Config {
        Config::for_tests("me")
    }

    impl Scene {
        fn new() -> Self {
            let start = Instant::now();
            Self {
                contender: Contender::new("me".into(), config(), start),
                start,
                at: Duration::ZERO,
                server: Server::default(),
            }
        }

        fn now(&self) -> Now {
            Now {
                monotonic: self.start + self.at,
                wall: Timestamp::UNIX_EPOCH,
            }
        }

        /// Makes calls until the contender sleeps or loses; gives what it says then.
        fn round(&mut self) -> Next {
            self.round_with(|scene, call| scene.server.apply(call))
        }

        fn round_with(&mut self, mut serve: impl FnMut(&mut Self, &Call) -> Answer) -> Next {
            loop {
                let now = self.now();
                match self.contender.next(now) {
                    Next::Call(call, limit) => {
                        assert!(limit > now.monotonic);
                        let answer = serve(self, &call);
                        let now = self.now();
                        self.contender.answered(answer, now, 0.5);
                    }
                    other => return other,
                }
            }
        }

        fn pass(&mut self, seconds: f64) {
            self.at += Duration::from_secs_f64(seconds);
        }

        fn leads(&self) -> bool {
            self.contender.term().is_some()
        }
    }

    #[test]
    fn l2_calls_are_get_and_create_then_only_updates_and_a_conflict_costs_one_look() {
        let mut scene = Scene::new();
        for _ in 0..3 {
            scene.round();
            scene.pass(2.0);
        }
        assert_eq!(scene.server.calls, ["get", "create", "update", "update"]);
        assert_eq!(scene.contender.slow_paths(), 0);

        let mut scene = Scene::new();
        scene.round();
        scene.pass(2.0);
        scene.round();
        scene.pass(2.0);
        // Somebody sets a label: the version is another, the holder is the same.
        scene.server.touch();
        scene.round();
        scene.pass(2.0);
        scene.round();
        let expected = [
            "get", "create", "update", "update", "get", "update", "update",
        ];
        assert_eq!(scene.server.calls, expected);
        assert_eq!(scene.contender.slow_paths(), 1);
        assert!(scene.leads());
    }

    #[test]
    fn c42_a_renewal_keeps_acquire_time_and_transitions_and_a_take_over_counts() {
        let mut scene = Scene::new();
        scene.server.put("other", 4);
        scene.round();
        scene.pass(15.1);
        scene.round();
        assert_eq!(scene.contender.term().map(|term| term.number), Some(5));
        let taken = scene.server.record();
        scene.pass(2.0);
        scene.round();
        let renewed = scene.server.record();
        assert_eq!(renewed.acquire_time, taken.acquire_time);
        assert_eq!(renewed.transitions, 5);
    }

    #[test]
    fn a_contender_comes_back_in_time_for_an_expiry_and_else_after_retry_and_jitter() {
        let mut scene = Scene::new();
        scene.server.put("other", 0);
        // Half of the spread: 2 s · (1 + 1.2 / 2).
        for round in 1..=4 {
            let Next::Sleep(until) = scene.round() else {
                panic!("it is held")
            };
            let at = until - scene.start;
            assert_eq!(at, Duration::from_millis(3_200) * round);
            scene.at = at;
        }
        let Next::Sleep(until) = scene.round() else {
            panic!("it is held")
        };
        assert_eq!(until - scene.start, Duration::from_millis(15_001));
        scene.at = until - scene.start;
        scene.round();
        assert!(scene.leads());
    }

    #[test]
    fn c45_a_term_that_is_not_renewed_ends_at_the_deadline_counted_from_before_the_write() {
        let mut scene = Scene::new();
        scene.round_with(|scene, call| {
            // The answer to the write takes 3 s.
            if !matches!(call, Call::Get) {
                scene.pass(3.0);
            }
            scene.server.apply(call)
        });
        assert!(scene.leads());
        let mut end = None;
        while end.is_none() {
            match scene.round_with(|_, _| Answer::Failed) {
                Next::Sleep(until) => scene.at = until - scene.start,
                Next::Lost(loss) => end = Some((scene.at, loss)),
                Next::Call(..) => unreachable!("a round makes all calls"),
            }
        }
        assert_eq!(end, Some((Duration::from_secs(10), Loss::Deadline)));
        assert!(!scene.leads());
        assert!(scene.contender.may_hold(), "the record still names it");
    }

    #[test]
    fn a_write_whose_answer_came_after_the_deadline_makes_no_leader() {
        let mut scene = Scene::new();
        let mut slept = false;
        scene.round_with(|scene, call| {
            let answer = scene.server.apply(call);
            if !matches!(call, Call::Get) && !slept {
                slept = true;
                // The process stood still for a while.
                scene.pass(12.0);
            }
            answer
        });
        // It looked again, found itself as the holder, and renewed before it led.
        assert_eq!(scene.server.calls, ["get", "create", "get", "update"]);
        let term = scene.contender.term().unwrap();
        assert_eq!(term.deadline - scene.start, Duration::from_secs(22));
    }

    #[test]
    fn a_holder_that_finds_another_or_nobody_in_the_lease_is_none_any_more_at_once() {
        for holder in ["other", ""] {
            let mut scene = Scene::new();
            scene.round();
            scene.pass(2.0);
            scene.server.put(holder, 9);
            assert_eq!(scene.round(), Next::Lost(Loss::Taken), "{holder:?}");
            assert!(!scene.leads() && !scene.contender.may_hold());
        }
    }

    #[test]
    fn a_lease_deleted_under_its_holder_comes_back_with_the_same_term() {
        let mut scene = Scene::new();
        scene.server.put("", 6);
        scene.round();
        let before = scene.server.lease.take().unwrap().record();
        scene.pass(2.0);
        scene.round();
        let after = scene.server.record();
        assert_eq!(after.transitions, 7);
        assert_eq!(after.acquire_time, before.acquire_time);
        assert_eq!(scene.contender.term().map(|term| term.number), Some(7));
        assert_eq!(&scene.server.calls[2..], ["update", "get", "create"]);
    }

    #[test]
    fn c44_no_call_may_take_longer_than_its_own_timeout_or_than_the_term() {
        let mut scene = Scene::new();
        let limit = |scene: &mut Scene| {
            let now = scene.now();
            match scene.contender.next(now) {
                Next::Call(_, limit) => limit - scene.start,
                other => panic!("{other:?}"),
            }
        };
        // Half of the renew deadline of 10 s.
        assert_eq!(limit(&mut scene), Duration::from_secs(5));
        let now = scene.now();
        scene.contender.answered(Answer::NotFound, now, 0.0);
        scene.round();
        for _ in 0..4 {
            scene.pass(2.0);
            scene.round_with(|_, _| Answer::Failed);
        }
        assert_eq!(scene.at, Duration::from_secs(8));
        scene.pass(1.9);
        let Next::Sleep(_) = scene.round_with(|_, _| Answer::Failed) else {
            panic!("between two tries")
        };
        let mut late = Scene::new();
        late.round();
        late.pass(7.0);
        assert_eq!(limit(&mut late), Duration::from_secs(10));
    }

    #[test]
    fn a_write_without_an_answer_leaves_it_open_who_holds() {
        let mut scene = Scene::new();
        scene.round_with(|scene, call| match call {
            Call::Get => scene.server.apply(call),
            _ => Answer::Failed,
        });
        assert!(!scene.leads() && scene.contender.may_hold());
        scene.pass(5.0);
        scene.server.put("other", 1);
        scene.round();
        assert!(!scene.contender.may_hold());
    }
}
