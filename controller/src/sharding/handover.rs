//! From what a member sees of the others to what it may run: the decision, without effects.
//!
//! Every member publishes the view it has *drained to*: from then on it runs nothing that another
//! member owns in that view. A member runs a key if it owns it in every view since the last one that
//! all members had drained to. So a key is never run by its new owner before the old one has let go
//! of it, and keys that stay where they are run on meanwhile. Members that are gone without a word
//! are fenced by their own clock before the others may take them for gone (see `lease`).

use std::collections::BTreeMap;

use super::ring::View;

/// Views between two that all have drained to; beyond it nothing is run until all agree again.
const MAX_CHANGES: usize = 16;

/// What the live members have published; none for one that has drained to nothing yet.
pub(crate) type Published = BTreeMap<String, Option<View>>;

/// What an observation led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Observed {
    /// What may run is what it was.
    Same,
    /// The ring is another one: less may run than before.
    Changed,
    /// All have drained: everything owned may run.
    Agreed,
}

/// One member's part in the handover.
#[derive(Debug, Clone)]
pub(crate) struct Handover {
    me: String,
    /// The last view all had drained to, and every one since; the last is the present one.
    views: Vec<View>,
    /// Whether nothing runs here that another member owns in the present view.
    drained: bool,
}

impl Handover {
    pub(crate) fn new(me: String) -> Self {
        Self {
            me,
            views: vec![View::default()],
            drained: true,
        }
    }

    /// The present view.
    pub(crate) fn view(&self) -> &View {
        self.views.last().expect("never empty")
    }

    /// Whether everything that is owned may run.
    pub(crate) fn is_agreed(&self) -> bool {
        self.views.len() == 1 && !self.view().members.is_empty()
    }

    /// What to publish: the present view once nothing else runs here.
    pub(crate) fn drained_to(&self) -> Option<&View> {
        Some(self.view()).filter(|view| self.drained && !view.members.is_empty())
    }

    /// Whether this member owns `token` in the present view, be it runnable yet or not.
    pub(crate) fn owns(&self, token: u64) -> bool {
        self.view().owner(token) == Some(&*self.me)
    }

    /// Whether this member may run what `token` stands for.
    pub(crate) fn may_run(&self, token: u64) -> bool {
        self.views
            .iter()
            .all(|view| view.owner(token) == Some(&*self.me))
    }

    /// Nothing runs here any more that another member owns.
    pub(crate) fn drained(&mut self) {
        self.drained = true;
    }

    /// Lets go of everything until all agree again: this member may have been taken for gone.
    pub(crate) fn fence(&mut self) {
        let epoch = self.view().epoch;
        let members = [].into();
        self.views = vec![View { epoch, members }];
        self.drained = false;
    }

    /// Takes in what the live members, this one among them, have published.
    pub(crate) fn observe(&mut self, live: &Published) -> Observed {
        let published = || live.values().flatten();
        let newest = published().map(|view| view.epoch).max().unwrap_or(0);
        let present = self.views.last_mut().expect("never empty");
        let mut observed = Observed::Same;
        if present.members.iter().ne(live.keys()) {
            let epoch = present.epoch.max(newest) + 1;
            let members = live.keys().cloned().collect();
            if self.views.len() > MAX_CHANGES {
                self.views = vec![View::default()];
            }
            self.views.push(View { epoch, members });
            self.drained = false;
            observed = Observed::Changed;
        } else {
            // Who saw the same change later counts from a higher epoch: the highest one holds.
            let same = published().filter(|view| view.members == present.members);
            let newest = same.map(|view| view.epoch).max().unwrap_or(0);
            present.epoch = present.epoch.max(newest);
        }
        let present = self.view();
        let all_drained = self.drained
            && live
                .iter()
                .all(|(member, view)| *member == self.me || view.as_ref() == Some(present));
        if all_drained && self.views.len() > 1 {
            self.views.drain(..self.views.len() - 1);
            observed = Observed::Agreed;
        }
        observed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// How long a member may run after its last renewal, and how long others take it for live
    /// after they saw that, in steps.
    const FENCED_AFTER: u64 = 10;
    const GONE_AFTER: u64 = 15;
    const TOKENS: u64 = 16;
    const NAMES: [&str; 3] = ["a", "b", "c"];

    /// What a member does at a step.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// Renew and publish.
        Renew,
        /// Renew, but the answer is lost: the member does not know.
        RenewUnheard,
        /// Read what all have published, and take it in.
        Look,
        /// Start a run of this token, if allowed.
        Start(u64),
        /// End the oldest run.
        End,
        /// Nothing: slow, paused, cut off.
        Idle,
        /// Leave in order, if nothing runs; or come again as a new member.
        LeaveOrJoin,
    }

    fn step() -> impl Strategy<Value = (usize, Step)> {
        let step = prop_oneof![
            6 => Just(Step::Renew),
            1 => Just(Step::RenewUnheard),
            6 => Just(Step::Look),
            6 => (0..TOKENS).prop_map(Step::Start),
            4 => Just(Step::End),
            3 => Just(Step::Idle),
            1 => Just(Step::LeaveOrJoin),
        ];
        (0..NAMES.len(), step)
    }

    /// A record in the store: a number that grows with each renewal, and what was published.
    type Store = BTreeMap<String, (u64, Option<View>)>;

    struct Process {
        life: u64,
        handover: Handover,
        here: bool,
        renewed: Option<u64>,
        /// The last renewal seen of each other record, and when.
        seen: BTreeMap<String, (u64, u64)>,
        runs: Vec<u64>,
    }

    impl Process {
        fn new(name: &str, life: u64) -> Self {
            Self {
                life,
                handover: Handover::new(format!("{name}{life}")),
                here: true,
                renewed: None,
                seen: BTreeMap::new(),
                runs: Vec::new(),
            }
        }

        fn is_fenced(&self, now: u64) -> bool {
            self.renewed.is_none_or(|at| now >= at + FENCED_AFTER)
        }

        /// What a worker does by itself: a fenced one drops its runs, a drained one says so.
        fn settle(&mut self, now: u64) {
            if self.is_fenced(now) && self.renewed.is_some() {
                self.runs.clear();
                self.renewed = None;
                self.handover.fence();
            }
            if self.runs.iter().all(|token| self.handover.may_run(*token)) {
                self.handover.drained();
            }
        }

        fn step(&mut self, step: Step, store: &mut Store, now: u64) {
            let me = self.handover.me.clone();
            match step {
                Step::Renew | Step::RenewUnheard => {
                    let view = self.handover.drained_to().cloned();
                    let record = store.entry(me).or_insert((0, None));
                    record.0 += 1;
                    // What was published holds until something else is.
                    record.1 = view.or_else(|| record.1.take());
                    if matches!(step, Step::Renew) {
                        self.renewed = Some(now);
                    }
                }
                // A member looks only after its own record is in the store.
                Step::Look if self.renewed.is_some() => {
                    let mut live = Published::new();
                    for (name, (renewal, view)) in store.iter() {
                        let seen = self.seen.entry(name.clone()).or_insert((*renewal, now));
                        if seen.0 != *renewal {
                            *seen = (*renewal, now);
                        }
                        if *name == me || now < seen.1 + GONE_AFTER {
                            live.insert(name.clone(), view.clone());
                        }
                    }
                    self.handover.observe(&live);
                }
                Step::Start(token) => {
                    let fresh = !self.runs.contains(&token);
                    if fresh && !self.is_fenced(now) && self.handover.may_run(token) {
                        self.runs.push(token);
                    }
                }
                Step::End if !self.runs.is_empty() => {
                    self.runs.remove(0);
                }
                _ => {}
            }
        }
    }

    /// Plays the steps; gives the processes and the store after them.
    fn play(steps: &[(usize, Step)]) -> Result<(Vec<Process>, Store, u64), TestCaseError> {
        let mut store = Store::new();
        let mut processes: Vec<_> = NAMES.iter().map(|name| Process::new(name, 0)).collect();
        let mut now = 0;
        for (at, step) in steps {
            now += 1;
            for process in &mut processes {
                process.settle(now);
            }
            let process = &mut processes[*at];
            match step {
                Step::LeaveOrJoin if !process.here => {
                    *process = Process::new(NAMES[*at], process.life + 1);
                }
                Step::LeaveOrJoin if process.runs.is_empty() => {
                    store.remove(&process.handover.me);
                    process.here = false;
                    process.renewed = None;
                }
                step if process.here => process.step(*step, &mut store, now),
                _ => {}
            }
            for process in &mut processes {
                process.settle(now);
            }
            let mut running = BTreeSet::new();
            for token in processes.iter().flat_map(|process| &process.runs) {
                prop_assert!(running.insert(token), "{token} runs twice at step {now}");
            }
        }
        Ok((processes, store, now))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn w74_no_key_runs_in_two_members_whatever_is_slow_lost_or_paused(
            steps in vec(step(), 0..400),
        ) {
            play(&steps)?;
        }

        #[test]
        fn w74_members_that_hear_of_each_other_come_to_run_everything(
            steps in vec(step(), 0..200),
        ) {
            let (mut processes, mut store, mut now) = play(&steps)?;
            processes.retain(|process| process.here);
            for _ in 0..40 {
                for process in &mut processes {
                    now += 1;
                    process.runs.clear();
                    process.settle(now);
                    process.step(Step::Renew, &mut store, now);
                    process.step(Step::Look, &mut store, now);
                }
            }
            for token in 0..TOKENS {
                let owners = processes.iter().filter(|p| p.handover.may_run(token)).count();
                prop_assert_eq!(owners, usize::from(!processes.is_empty()), "{}", token);
            }
        }
    }

    #[test]
    fn w74_keys_that_stay_run_on_while_others_are_handed_over() {
        let mut old = Handover::new("a".to_owned());
        let alone = Published::from([("a".to_owned(), None)]);
        assert_eq!(old.observe(&alone), Observed::Changed);
        old.drained();
        assert_eq!(old.observe(&alone), Observed::Agreed);
        assert!(
            (0..100).all(|token| old.may_run(token)),
            "alone it owns all"
        );

        let mut new = Handover::new("b".to_owned());
        let both = |a: &Handover, b: &Handover| {
            Published::from([
                ("a".to_owned(), a.drained_to().cloned()),
                ("b".to_owned(), b.drained_to().cloned()),
            ])
        };
        let published = both(&old, &new);
        assert_eq!(new.observe(&published), Observed::Changed);
        new.drained();
        assert!(
            (0..100).all(|token| !new.may_run(token)),
            "a has not let go"
        );
        assert_eq!(old.observe(&published), Observed::Changed);
        let (kept, lost): (Vec<u64>, Vec<u64>) = (0..100).partition(|token| old.owns(*token));
        assert!(!kept.is_empty() && !lost.is_empty());
        assert!(kept.iter().all(|token| old.may_run(*token)));
        assert!(lost.iter().all(|token| !old.may_run(*token)));
        assert_eq!(old.drained_to(), None, "what it lost may still run");
        new.observe(&both(&old, &new));
        assert!(lost.iter().all(|token| !new.may_run(*token)));
        old.drained();
        // Each takes the other's word, and the higher epoch.
        for _ in 0..3 {
            let published = both(&old, &new);
            old.observe(&published);
            new.observe(&published);
        }
        assert!(old.is_agreed() && new.is_agreed());
        assert!(lost.iter().all(|token| new.may_run(*token)));
        assert!(kept.iter().all(|token| !new.may_run(*token)));
    }
}
