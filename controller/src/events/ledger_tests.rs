//! The ledger through its life, on a hand-turned clock.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A ledger, its clock, and a server that takes what it is told to.
struct World {
    ledger: Ledger,
    now: Now,
    /// Count of each event by name, as written last.
    server: BTreeMap<String, u32>,
    /// Occurrences of forgotten events whose last write did not arrive.
    lost: u32,
}

impl World {
    fn new(repeats: Repeats) -> Self {
        Self::sized(repeats, 1000, 4096)
    }

    fn sized(repeats: Repeats, capacity: usize, cache: usize) -> Self {
        let cache = NonZeroUsize::new(cache).unwrap();
        Self {
            ledger: Ledger::new(repeats, capacity, cache),
            now: Now {
                at: Instant::now(),
                wall: Timestamp::UNIX_EPOCH,
            },
            server: BTreeMap::new(),
            lost: 0,
        }
    }

    fn pass(&mut self, seconds: u64) {
        let time = Duration::from_secs(seconds);
        self.now.at += time;
        self.now.wall += time;
        self.ledger.tick(self.now);
    }

    fn see(&mut self, object: &str) -> Observed {
        self.see_if(object, true)
    }

    fn see_if(&mut self, object: &str, permitted: bool) -> Observed {
        let regarding = about(object);
        let notice = Notice::normal("Reason", "Act", "note");
        self.ledger
            .observe(Key::of(&[object]), &regarding, notice, permitted, self.now)
    }

    /// Takes one write and ends it; gives object, create or patch, and count.
    fn write(&mut self, outcome: Outcome) -> Option<(String, char, u32)> {
        let write = self.ledger.take()?;
        self.ledger.settle(&write, outcome, self.now);
        if outcome == Outcome::Written {
            self.server
                .insert(write.tally.name.clone(), write.tally.count);
        } else if write.key.is_none() {
            let arrived = self.server.get(&write.tally.name).unwrap_or(&0);
            self.lost += write.tally.count - arrived;
        }
        let verb = if write.known { 'p' } else { 'c' };
        Some((write.tally.regarding.name.unwrap(), verb, write.tally.count))
    }

    /// Everything that is written now, as `object c1`, `object p2`.
    fn written(&mut self) -> Vec<String> {
        let mut all = Vec::new();
        while let Some((object, verb, count)) = self.write(Outcome::Written) {
            all.push(format!("{object} {verb}{count}"));
        }
        all
    }
}

fn about(object: &str) -> ObjectReference {
    ObjectReference {
        name: Some(object.to_owned()),
        namespace: Some("ns".to_owned()),
        ..ObjectReference::default()
    }
}

#[test]
fn e1_the_same_event_thrice_is_a_create_and_patches_of_its_count() {
    let mut world = World::new(Repeats::Each);
    let mut writes = Vec::new();
    for _ in 0..3 {
        world.see("a");
        writes.extend(world.written());
    }
    assert_eq!(writes, ["a c1", "a p2", "a p3"]);
    for _ in 0..1000 {
        world.see("a");
    }
    assert_eq!(
        world.written(),
        ["a p1003"],
        "what came in between is one write"
    );
}

#[test]
fn e3_an_occurrence_over_the_ration_is_counted_and_not_written() {
    let mut world = World::new(Repeats::Each);
    assert_eq!(world.see_if("a", false), Observed::Filtered);
    assert_eq!(world.written(), [] as [&str; 0]);
    world.see("a");
    assert_eq!(world.written(), ["a c2"]);
    world.see_if("a", false);
    assert_eq!(world.written(), [] as [&str; 0]);
    world.see("a");
    assert_eq!(world.written(), ["a p4"], "the filtered one counts");
}

#[test]
fn e5_a_series_counts_from_the_second_and_ends_after_6_minutes_of_quiet() {
    let mut world = World::new(Repeats::Series);
    world.see("a");
    assert_eq!(world.written(), ["a c1"]);
    world.see("a");
    assert_eq!(world.written(), ["a p2"]);
    for _ in 0..5 {
        assert_eq!(world.see("a"), Observed::Counted);
    }
    assert_eq!(world.written(), [] as [&str; 0]);
    world.pass(359);
    assert_eq!(world.written(), [] as [&str; 0], "not yet over");
    world.pass(1);
    assert_eq!(world.written(), ["a p7"], "the final count");
    assert_eq!(world.ledger.remembered(), 0);
    assert_eq!(world.ledger.due(), None, "nothing left to wait for");
    world.see("a");
    assert_eq!(world.written(), ["a c1"], "a new event begins");
    assert_eq!(world.server.len(), 2, "under a new name");
}

#[test]
fn e5_a_series_that_was_written_whole_ends_without_a_write() {
    let mut world = World::new(Repeats::Series);
    for _ in 0..2 {
        world.see("a");
        world.written();
    }
    world.see("b");
    world.written();
    world.pass(360);
    assert_eq!(world.written(), [] as [&str; 0]);
    assert_eq!(
        world.ledger.remembered(),
        0,
        "a single event is forgotten as well"
    );
}

#[test]
fn e5_a_series_that_goes_on_is_refreshed_at_30_minutes() {
    let mut world = World::new(Repeats::Series);
    let mut writes = Vec::new();
    for minute in 0..=65 {
        world.see("a");
        writes.extend(
            world
                .written()
                .into_iter()
                .map(|write| format!("{minute}: {write}")),
        );
        world.pass(60);
        writes.extend(
            world
                .written()
                .into_iter()
                .map(|write| format!("{minute}+: {write}")),
        );
    }
    // Minute n has seen n + 1 occurrences.
    assert_eq!(writes, ["0: a c1", "1: a p2", "30+: a p31", "60+: a p61"]);
}

#[test]
fn c65_an_evicted_series_leaves_its_count_and_the_oldest_goes_first() {
    let mut world = World::sized(Repeats::Series, 1000, 2);
    for object in ["a", "b"] {
        world.see(object);
        world.see(object);
    }
    assert_eq!(
        world.written(),
        ["a c2", "b c2"],
        "both occurrences before the first write"
    );
    world.see("a");
    world.see("b");
    world.see("a");
    world.see("c");
    assert_eq!(world.ledger.remembered(), 2);
    assert_eq!(world.written(), ["b p3", "c c1"], "b was the least recent");
    world.see("b");
    assert_eq!(world.written(), ["a p4", "b c1"], "b begins anew");
}

#[test]
fn c65_the_event_under_way_is_not_evicted() {
    let mut world = World::sized(Repeats::Series, 1000, 1);
    world.see("a");
    let write = world.ledger.take().unwrap();
    // With room for one it must go all the same; its outcome then meets nothing.
    world.see("b");
    world.ledger.settle(&write, Outcome::Written, world.now);
    assert_eq!(world.written(), ["b c1"]);

    let mut world = World::sized(Repeats::Series, 1000, 2);
    world.see("a");
    let write = world.ledger.take().unwrap();
    world.see("b");
    world.see("c");
    world.see("a");
    world.ledger.settle(&write, Outcome::Written, world.now);
    assert_eq!(world.written(), ["b c1", "c c1", "a p2"]);
}

#[test]
fn c60_a_full_queue_drops_new_events_and_keeps_counting_known_ones() {
    let mut world = World::sized(Repeats::Series, 2, 4096);
    for (object, expected) in [
        ("a", Observed::Queued),
        ("b", Observed::Queued),
        ("c", Observed::Dropped),
        ("a", Observed::Counted),
    ] {
        assert_eq!(world.see(object), expected, "{object}");
    }
    assert_eq!(world.written(), ["a c2", "b c1"]);
    assert_eq!(
        world.see("c"),
        Observed::Queued,
        "a dropped event leaves no trace"
    );
    assert_eq!(world.written(), ["c c1"]);
}

#[test]
fn an_event_that_was_refused_is_not_tried_again_until_it_ends_or_is_refreshed() {
    let mut world = World::new(Repeats::Series);
    world.see("a");
    assert!(world.write(Outcome::Rejected).is_some());
    world.see("a");
    assert!(
        world.write(Outcome::Rejected).is_some(),
        "the beginning of the series"
    );
    for _ in 0..100 {
        world.see("a");
    }
    assert_eq!(world.written(), [] as [&str; 0]);
    world.pass(360);
    assert_eq!(
        world.written(),
        [] as [&str; 0],
        "the end of what the server refuses is silent"
    );
}

#[test]
fn what_could_not_be_delivered_is_made_up_for_at_the_end() {
    for repeats in [Repeats::Series, Repeats::Each] {
        let mut world = World::new(repeats);
        world.see("a");
        assert!(world.write(Outcome::Undelivered).is_some());
        world.ledger.flush();
        assert_eq!(world.written(), ["a c1"], "{repeats:?}");
        world.ledger.flush();
        assert_eq!(world.written(), [] as [&str; 0], "{repeats:?}");
    }
}

#[test]
fn c67_an_event_lies_with_its_object_and_bears_its_name_and_the_time() {
    let long = "a".repeat(250);
    for (namespace, name, expected) in [
        (Some("ns"), "a", ("ns", Some("a.1"))),
        (None, "a.b", ("default", Some("a.b.1"))),
        (Some(""), "a", ("default", Some("a.1"))),
        // No names for events: random ones take their place.
        (Some("ns"), "system:node", ("ns", None)),
        (Some("ns"), "", ("ns", None)),
        (Some("ns"), &*long, ("ns", Some(&*format!("{long}.1")))),
        (Some("ns"), &*format!("{long}aa"), ("ns", None)),
    ] {
        let regarding = ObjectReference {
            namespace: namespace.map(str::to_owned),
            ..about(name)
        };
        assert_eq!(namespace_of(&regarding), expected.0);
        let given = name_of(&regarding, 1);
        match expected.1 {
            Some(expected) => assert_eq!(given, expected),
            None => assert_eq!(given.len(), 36, "{given}"),
        }
    }
    let mut world = World::new(Repeats::Series);
    let names: std::collections::BTreeSet<_> = (0..100)
        .map(|_| {
            world.see("a");
            let name = world.ledger.take().unwrap().tally.name;
            world.ledger = Ledger {
                last_name: world.ledger.last_name,
                ..Ledger::new(Repeats::Series, 10, NonZeroUsize::MIN)
            };
            name
        })
        .collect();
    assert_eq!(
        names.len(),
        100,
        "at one moment of the clock no name comes twice"
    );
}

#[derive(Debug, Clone)]
enum Step {
    See(u8),
    Write(bool),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..6).prop_map(Step::See),
        4 => any::<bool>().prop_map(Step::Write),
        1 => (1u64..2000).prop_map(Step::Pass),
    ]
}

proptest! {
    /// Whatever happens, the counts on the server add up to what was seen, once everything could
    /// be written.
    #[test]
    fn no_occurrence_is_lost_or_counted_twice(
        steps in vec(step(), 0..200),
        each in any::<bool>(),
        cache in 1usize..8,
    ) {
        let repeats = if each { Repeats::Each } else { Repeats::Series };
        let mut world = World::sized(repeats, 1000, cache);
        let mut seen = 0;
        for step in steps {
            match step {
                Step::See(object) => {
                    world.see(&object.to_string());
                    seen += 1;
                }
                Step::Write(reached) => {
                    let outcome = if reached { Outcome::Written } else { Outcome::Undelivered };
                    drop(world.write(outcome));
                }
                Step::Pass(seconds) => world.pass(seconds),
            }
            prop_assert!(world.ledger.remembered() <= cache);
        }
        world.ledger.flush();
        world.written();
        prop_assert_eq!(world.server.values().sum::<u32>() + world.lost, seen);
    }
}
