use std::borrow::Cow;

use k8s_openapi::jiff::SignedDuration;

use super::*;
use crate::provider::InstanceState;

const HOUR: Duration = Duration::from_secs(3600);
const MIN_AGE: Duration = Duration::from_secs(15 * 60);

fn now() -> Timestamp {
    Timestamp::from_second(1_767_225_600).expect("in range")
}

fn seen(uid: &str) -> Sighting {
    aged(uid, HOUR)
}

fn aged(uid: &str, age: Duration) -> Sighting {
    let created = now() - SignedDuration::try_from(age).expect("fits");
    Sighting {
        provider: Arc::from("sim"),
        owner: Owner {
            cluster_id: Arc::from("cluster"),
            uid: uid.to_owned(),
            namespace: "crawl".to_owned(),
            proxy: format!("proxy-{uid}"),
        },
        instance: Instance {
            id: ProviderId::new(format!("sim://px-{uid}")),
            incarnation: Incarnation::new("1"),
            state: InstanceState::Running,
            deleting: false,
            ready: true,
            ips: Vec::new(),
            zone: Some("zone-a".to_owned()),
            created: Some(created),
            tags: BTreeMap::new(),
            spec_hash: None,
            message: Cow::Borrowed(""),
            operation: None,
        },
    }
}

fn claim(uid: &str) -> Claim {
    Claim {
        uid: uid.to_owned(),
        provider_id: Some(format!("sim://px-{uid}")),
        instance_uid: Some("1".to_owned()),
        paused: false,
    }
}

/// A look at these instances; besides, `live` Proxies that claim what they have.
fn look(sightings: Vec<Sighting>, live: &[&str]) -> Look {
    let claims = live.iter().map(|uid| ((*uid).to_owned(), claim(uid)));
    Look {
        sightings,
        unreachable: BTreeMap::new(),
        failed: BTreeSet::new(),
        claims: Ok(claims.collect()),
        trouble: None,
        now: now(),
    }
}

fn rules() -> Rules<'static> {
    Rules {
        deletes: true,
        min_age: MIN_AGE,
        approved: None,
    }
}

/// What becomes of the orphans in the second cycle in a row that sees the same.
fn twice(look: &Look) -> Decision {
    let first = decide(look.clone(), &Memory::default(), rules());
    decide(look.clone(), &first.memory, rules())
}

fn verdicts(decision: &Decision) -> Vec<Verdict> {
    decision
        .orphans
        .iter()
        .map(|orphan| orphan.verdict)
        .collect()
}

#[test]
fn g01_where_an_instance_stands_follows_from_what_its_live_proxy_claims() {
    let with = |change: fn(&mut Claim)| {
        let mut claim = claim("a");
        change(&mut claim);
        Some(claim)
    };
    for (name, claim, want) in [
        ("the one on record", with(|_| {}), Standing::Claimed),
        ("no Proxy of that UID", None, Standing::Orphan(Why::NoProxy)),
        (
            "a Proxy of the name with another UID",
            with(|claim| "b".clone_into(&mut claim.uid)),
            Standing::Orphan(Why::NoProxy),
        ),
        (
            "nothing on record",
            with(|claim| claim.provider_id = None),
            Standing::Unclaimed,
        ),
        (
            "another instance on record",
            with(|claim| claim.provider_id = Some("sim://zone-b/px-a".to_owned())),
            Standing::Orphan(Why::NotTheOne),
        ),
        (
            "another life of the same instance on record",
            with(|claim| claim.instance_uid = Some("2".to_owned())),
            Standing::Unclaimed,
        ),
        (
            "no life on record",
            with(|claim| claim.instance_uid = None),
            Standing::Claimed,
        ),
    ] {
        assert_eq!(standing(&seen("a"), claim.as_ref()), want, "{name}");
    }
}

#[test]
fn g02_an_orphan_goes_in_its_second_cycle_if_it_is_old_enough() {
    let unaged = Sighting {
        instance: Instance {
            created: None,
            ..seen("a").instance
        },
        ..seen("a")
    };
    let nameless = Sighting {
        owner: Owner {
            proxy: String::new(),
            ..seen("a").owner
        },
        ..seen("a")
    };
    let second = Duration::from_secs(1);
    for (name, sighting, first, then) in [
        (
            "old",
            seen("a"),
            Verdict::Keep(Skip::FirstSeen),
            Verdict::Delete,
        ),
        (
            "just old enough",
            aged("a", MIN_AGE),
            Verdict::Keep(Skip::FirstSeen),
            Verdict::Delete,
        ),
        (
            "a second too young",
            aged("a", MIN_AGE - second),
            Verdict::Keep(Skip::Young),
            Verdict::Keep(Skip::Young),
        ),
        (
            "of unknown age",
            unaged,
            Verdict::Keep(Skip::Young),
            Verdict::Keep(Skip::Young),
        ),
        (
            "without the name of its Proxy",
            nameless,
            Verdict::Keep(Skip::Nameless),
            Verdict::Keep(Skip::Nameless),
        ),
    ] {
        let look = look(vec![sighting], &["b"]);
        let one = decide(look.clone(), &Memory::default(), rules());
        assert_eq!(verdicts(&one), [first], "{name}");
        let two = decide(look, &one.memory, rules());
        assert_eq!(verdicts(&two), [then], "{name}");
    }
}

#[test]
fn g02_a_cycle_that_does_not_see_the_orphan_or_sees_another_life_begins_the_count_anew() {
    let orphan = look(vec![seen("a")], &["b"]);
    let none = look(vec![], &["b"]);
    let mut next_life = orphan.clone();
    next_life.sightings[0].instance.incarnation = Incarnation::new("2");
    let mut unread = orphan.clone();
    unread.claims = Err(Guard::Unread("500".into()));
    let mut silent = orphan.clone();
    silent.unreachable =
        BTreeMap::from([(Arc::from("sim"), BTreeSet::from(["zone-a".to_owned()]))]);
    for (name, between) in [
        ("not listed", none),
        ("another life", next_life),
        ("Proxies unread", unread),
        ("its zone silent", silent),
    ] {
        let first = decide(orphan.clone(), &Memory::default(), rules());
        let second = decide(between, &first.memory, rules());
        let third = decide(orphan.clone(), &second.memory, rules());
        assert_eq!(verdicts(&third), [Verdict::Keep(Skip::FirstSeen)], "{name}");
    }
}

#[test]
fn g03_each_guard_keeps_every_orphan() {
    let orphans = |number: usize, live: &[&str]| {
        let uids = (0..number).map(|n| format!("o{n}"));
        let all = live.iter().map(|uid| (*uid).to_owned()).chain(uids);
        look(all.map(|uid| seen(&uid)).collect(), live)
    };
    let twenty: Vec<String> = (0..20).map(|n| format!("p{n}")).collect();
    let twenty: Vec<&str> = twenty.iter().map(String::as_str).collect();
    let troubled = |trouble: Guard| Look {
        trouble: Some(trouble),
        ..orphans(1, &["a"])
    };
    let unread = |guard: Guard| Look {
        claims: Err(guard),
        ..orphans(1, &["a"])
    };
    let other = Guard::ClusterId {
        store: "ns/proxy-operator".into(),
        stored: Some("other".into()),
        own: "cluster".into(),
    };
    let calm = Guard::ServerUnreachable {
        calm: Duration::ZERO,
        wanted: HOUR,
    };
    let beside_those_that_stay = {
        let mut sightings: Vec<_> = (0..5).map(|n| seen(&format!("o{n}"))).collect();
        for nameless in &mut sightings[1..] {
            nameless.owner.proxy.clear();
        }
        look([vec![seen("a")], sightings].concat(), &["a"])
    };
    for (look, cause) in [
        (beside_those_that_stay, None),
        (orphans(3, &["a"]), None),
        (orphans(4, &["a"]), Some("too-many")),
        // A fifth of 25.
        (orphans(5, &twenty), None),
        (orphans(6, &twenty), Some("too-many")),
        (orphans(1, &[]), Some("no-proxies")),
        (look(vec![], &[]), None),
        (troubled(Guard::NotSynced), Some("not-synced")),
        (troubled(calm), Some("server-unreachable")),
        (troubled(other.clone()), Some("cluster-id")),
        (unread(Guard::DefinitionMissing), Some("definition-missing")),
        (unread(Guard::Unread("500".into())), Some("unread")),
    ] {
        let decision = twice(&look);
        assert_eq!(decision.guard.as_ref().map(Guard::cause), cause, "{look:?}");
        let goes = decision
            .orphans
            .iter()
            .any(|orphan| orphan.verdict == Verdict::Delete);
        assert_eq!(
            goes,
            cause.is_none() && !look.sightings.is_empty(),
            "{cause:?}"
        );
        if cause.is_some() {
            let kept = |verdict| verdict == Verdict::Keep(Skip::Guarded);
            assert!(verdicts(&decision).into_iter().all(kept), "{cause:?}");
        }
    }
    // The first of several is told.
    let both = Look {
        trouble: Some(other),
        ..unread(Guard::DefinitionMissing)
    };
    assert_eq!(
        twice(&both).guard.map(|guard| guard.cause()),
        Some("cluster-id")
    );
}

#[test]
fn g04_what_lies_in_a_silent_zone_is_neither_orphan_nor_counted_as_gone() {
    let mut look = look(vec![seen("a"), seen("b")], &["c"]);
    look.sightings[1].instance.zone = Some("zone-b".to_owned());
    look.unreachable = BTreeMap::from([(Arc::from("sim"), BTreeSet::from(["zone-b".to_owned()]))]);
    let decision = twice(&look);
    assert_eq!((decision.listed, decision.unknown), (2, 1));
    let uids: Vec<_> = decision
        .orphans
        .iter()
        .map(|one| &one.sighting.owner.uid)
        .collect();
    assert_eq!(uids, ["a"]);
    // The same zone of another provider answers.
    look.unreachable =
        BTreeMap::from([(Arc::from("other"), BTreeSet::from(["zone-b".to_owned()]))]);
    assert_eq!(twice(&look).orphans.len(), 2);
}

#[test]
fn g05_the_five_oldest_go_first_and_what_goes_already_is_left_alone() {
    let live: Vec<String> = (0..40).map(|n| format!("p{n}")).collect();
    let live: Vec<&str> = live.iter().map(String::as_str).collect();
    let mut sightings: Vec<_> = live.iter().map(|uid| seen(uid)).collect();
    let hours = |n: u64| Duration::from_secs(3600 * (n + 1));
    sightings.extend((0..7).map(|n| aged(&format!("o{n}"), hours(n))));
    let mut going = seen("going");
    going.instance.deleting = true;
    sightings.push(going);
    let decision = twice(&look(sightings, &live));
    assert_eq!((decision.guard, decision.deleting), (None, 1));
    let went: Vec<_> = decision
        .orphans
        .iter()
        .filter(|orphan| orphan.verdict == Verdict::Delete)
        .map(|orphan| orphan.sighting.owner.uid.as_str())
        .collect();
    assert_eq!(went, ["o6", "o5", "o4", "o3", "o2"]);
    let rest = decision.orphans.iter().skip(5).map(|orphan| orphan.verdict);
    assert!(rest.eq([Verdict::Keep(Skip::Limit); 2]));
}

#[test]
fn g05_what_had_its_turn_and_stayed_comes_behind_all_others_in_the_order_of_turns() {
    let live: Vec<String> = (0..60).map(|n| format!("p{n}")).collect();
    let live: Vec<&str> = live.iter().map(String::as_str).collect();
    let mut sightings: Vec<_> = live.iter().map(|uid| seen(uid)).collect();
    let hours = |n: u64| Duration::from_secs(3600 * (20 - n));
    sightings.extend((0..12).map(|n| aged(&format!("o{n:02}"), hours(n))));
    let look = look(sightings, &live);
    let mut memory = decide(look.clone(), &Memory::default(), rules()).memory;
    let mut turns = Vec::new();
    for cycle in 0..5 {
        let mut decision = decide(look.clone(), &memory, rules());
        for orphan in &decision.orphans {
            match orphan.verdict {
                Verdict::Delete => {
                    decision
                        .memory
                        .had_its_turn(&orphan.sighting.life(), Skip::Refused);
                    turns.push(orphan.sighting.owner.uid[1..].parse::<u32>().expect("n"));
                }
                // It waits if it has had no turn, and is refused still if it had one.
                Verdict::Keep(skip) => {
                    let want = if orphan.stay.is_some() {
                        Skip::Refused
                    } else {
                        Skip::Limit
                    };
                    assert_eq!(skip, want, "cycle {cycle}");
                    assert_eq!(orphan.waits(), skip == Skip::Limit);
                }
            }
        }
        memory = decision.memory;
    }
    // Of those of one cycle, as 10, 11, 0, 1 and 2 are, the oldest come first again.
    let want = (0..12).chain(0..10).chain(0..3);
    assert!(turns.iter().copied().eq(want), "{turns:?}");
}

#[test]
fn g05_without_the_mode_delete_all_stay() {
    let look = look(vec![seen("a")], &["b"]);
    let dry = Rules {
        deletes: false,
        ..rules()
    };
    let first = decide(look.clone(), &Memory::default(), dry);
    let second = decide(look, &first.memory, dry);
    assert_eq!(verdicts(&second), [Verdict::Keep(Skip::DryRun)]);
}

#[test]
fn g03_a_count_lifts_the_guards_that_count_for_the_orphans_that_were_counted_alone() {
    let sightings: Vec<_> = (0..8).map(|n| seen(&format!("o{n}"))).collect();
    let counted: HashSet<Life> = sightings.iter().take(4).map(Sighting::life).collect();
    let approved = Rules {
        approved: Some(&counted),
        ..rules()
    };
    let run = |look: &Look| {
        let first = decide(look.clone(), &Memory::default(), approved);
        decide(look.clone(), &first.memory, approved)
    };
    for live in [&["b"][..], &[]] {
        let decision = run(&look(sightings.clone(), live));
        assert_eq!(decision.guard, None);
        for orphan in &decision.orphans {
            let want = if counted.contains(&orphan.sighting.life()) {
                Verdict::Delete
            } else {
                Verdict::Keep(Skip::NotApproved)
            };
            assert_eq!(orphan.verdict, want);
        }
    }
    let mut troubled = look(sightings, &["b"]);
    troubled.trouble = Some(Guard::NotSynced);
    assert_eq!(run(&troubled).guard, Some(Guard::NotSynced));
}

#[test]
fn c01_a_paused_proxy_keeps_even_an_instance_that_is_not_its_own() {
    let mut look = look(vec![seen("a")], &["a"]);
    let own = Claim {
        provider_id: Some("other://px-a".to_owned()),
        paused: true,
        ..claim("a")
    };
    look.claims = Ok(HashMap::from([("a".to_owned(), own)]));
    assert_eq!(verdicts(&twice(&look)), [Verdict::Keep(Skip::Paused)]);
}

#[test]
fn the_message_of_each_guard_says_what_to_do_and_its_cause_is_a_label() {
    for (guard, parts) in [
        (
            Guard::ClusterId {
                store: "ns/proxy-operator".into(),
                stored: Some("old".into()),
                own: "new".into(),
            },
            &["ns/proxy-operator", "old", "new"][..],
        ),
        (
            Guard::TooMany {
                orphans: 9,
                limit: 3,
            },
            &["gc --delete --count 9", "--dry-run"],
        ),
        (
            Guard::NoProxies { instances: 4 },
            &["instances: 4", "gc --delete"],
        ),
        (Guard::DefinitionMissing, &["definition"]),
    ] {
        let text = guard.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        let is_label = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
        assert!(guard.cause().bytes().all(is_label));
    }
}
