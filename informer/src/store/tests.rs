//! The store against a model, and its promises one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::ConfigMap;
use kube_core::ObjectMeta;
use proptest::prelude::*;

use super::*;

/// An object whose labels stand in the index `labels`.
fn object(name: &str, uid: u32, version: u64, labels: &[&str]) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(format!("n{}", name.len() % 2)),
            uid: Some(uid.to_string()),
            resource_version: Some(version.to_string()),
            labels: Some(
                labels
                    .iter()
                    .map(|l| ((*l).to_owned(), String::new()))
                    .collect(),
            ),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

fn labels(object: &ConfigMap) -> Vec<String> {
    object
        .metadata
        .labels
        .iter()
        .flat_map(|labels| labels.keys().cloned())
        .collect()
}

fn store() -> Store<ConfigMap> {
    let store = Store::new();
    store
        .add_index("labels", |object| Ok(labels(object)))
        .unwrap();
    store
}

fn show(change: &Change<ConfigMap>) -> String {
    let tag = |object: &ConfigMap| {
        let meta = &object.metadata;
        format!(
            "{}:{}@{}",
            meta.name.as_deref().unwrap_or(""),
            meta.uid.as_deref().unwrap_or(""),
            meta.resource_version.as_deref().unwrap_or("")
        )
    };
    match change {
        Change::Added(object) => format!("+{}", tag(object)),
        Change::Updated { old, new } => format!("{}~{}", tag(old), tag(new)),
        Change::Deleted {
            object,
            final_state_known: true,
            ..
        } => format!("-{}", tag(object)),
        Change::Deleted {
            object,
            final_state_known: false,
            ..
        } => format!("-?{}", tag(object)),
    }
}

fn shown(changes: &[Change<ConfigMap>]) -> Vec<String> {
    changes.iter().map(show).collect()
}

fn replace(store: &Store<ConfigMap>, objects: Vec<ConfigMap>, version: &str) -> Vec<String> {
    let mut built = store.build_up();
    for object in objects {
        assert!(built.put(object));
    }
    shown(&store.replace(&built, version))
}

fn apply(store: &Store<ConfigMap>, deltas: Vec<Delta<ConfigMap>>, version: &str) -> Vec<String> {
    shown(&store.apply(deltas, Some(version), false).changes)
}

fn by_label(store: &Store<ConfigMap>, label: &str) -> BTreeSet<String> {
    let version = store.version();
    version
        .by_index("labels", label)
        .unwrap()
        .map(|entry| entry.key.name().to_owned())
        .collect()
}

fn label_values(store: &Store<ConfigMap>) -> BTreeSet<String> {
    store
        .version()
        .index_values("labels")
        .unwrap()
        .map(ToString::to_string)
        .collect()
}

fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

#[test]
fn s1_objects_are_added_read_updated_deleted_replaced_and_listed() {
    let store = store();
    let key = ObjectKey::namespaced("n1", "a");
    assert!(store.version().get(&key).is_none());
    assert_eq!(
        apply(&store, vec![Delta::Added(object("a", 1, 1, &[]))], "1"),
        ["+a:1@1"]
    );
    assert!(store.version().get(&key).is_some());
    assert_eq!(
        apply(&store, vec![Delta::Modified(object("a", 1, 2, &[]))], "2"),
        ["a:1@1~a:1@2"]
    );
    assert_eq!(
        apply(&store, vec![Delta::Deleted(object("a", 1, 3, &[]))], "3"),
        ["-a:1@3"]
    );
    assert_eq!(store.version().len(), 0);
    let list = vec![object("a", 2, 4, &[]), object("b", 3, 4, &[])];
    assert_eq!(replace(&store, list, "4"), ["+a:2@4", "+b:3@4"]);
    assert_eq!(store.version().iter().count(), 2);
}

#[test]
fn s2_indexes_follow_their_objects_and_keep_no_empty_value() {
    let store = store();
    apply(
        &store,
        vec![
            Delta::Added(object("a", 1, 1, &["x", "y"])),
            Delta::Added(object("b", 2, 2, &["y"])),
            Delta::Added(object("c", 3, 3, &[])),
        ],
        "3",
    );
    assert_eq!(by_label(&store, "x"), names(["a"]));
    assert_eq!(by_label(&store, "y"), names(["a", "b"]));
    assert_eq!(by_label(&store, "z"), names([]));
    apply(
        &store,
        vec![Delta::Modified(object("a", 1, 4, &["z", "y"]))],
        "4",
    );
    assert_eq!(
        label_values(&store),
        names(["y", "z"]),
        "x has no object any more"
    );
    assert_eq!(by_label(&store, "z"), names(["a"]));
    apply(
        &store,
        vec![Delta::Deleted(object("a", 1, 5, &["other"]))],
        "5",
    );
    assert_eq!(label_values(&store), names(["y"]));
    assert_eq!(by_label(&store, "y"), names(["b"]));
    let version = store.version();
    let in_namespace = version.by_index(NAMESPACE_INDEX, "n1").unwrap().count();
    assert_eq!(in_namespace, 2);
    assert!(matches!(
        version.index("nodes"),
        Err(Error::UnknownIndex { .. })
    ));
}

#[test]
fn i64_an_index_may_come_late_and_a_name_is_taken_once() {
    let store = Store::new();
    apply(&store, vec![Delta::Added(object("a", 1, 1, &["x"]))], "1");
    store
        .add_index("labels", |object| Ok(labels(object)))
        .unwrap();
    assert_eq!(by_label(&store, "x"), names(["a"]));
    let again = store.add_index("labels", |_: &ConfigMap| Ok(Vec::new()));
    assert!(matches!(again, Err(Error::IndexExists { name }) if name == "labels"));
    apply(&store, vec![Delta::Deleted(object("a", 1, 2, &[]))], "2");
    assert_eq!(label_values(&store), names([]));
}

#[test]
fn i62_an_index_function_that_fails_or_panics_leaves_out_its_object_alone() {
    let store = store();
    store
        .add_index("moody", |object: &ConfigMap| {
            match object.metadata.name.as_deref() {
                Some("fails") => Err("no value".into()),
                Some("panics") => panic!("at the object"),
                _ => Ok(vec!["fine".to_owned()]),
            }
        })
        .unwrap();
    for (name, uid) in [("fails", 1), ("panics", 2), ("works", 3)] {
        apply(
            &store,
            vec![Delta::Added(object(name, uid, 1, &["l"]))],
            "1",
        );
    }
    assert_eq!(store.version().len(), 3);
    assert_eq!(
        store.version().by_index("moody", "fine").unwrap().count(),
        1
    );
    assert_eq!(by_label(&store, "l").len(), 3);
    assert_eq!(store.version().index_failures(), 2);
}

#[test]
fn i65_an_index_function_may_read_the_cache_and_its_indexes() {
    let store = Arc::new(store());
    let reader = Arc::downgrade(&store);
    let count = move |object: &ConfigMap| {
        let store = reader.upgrade().expect("the store runs this");
        let version = store.version();
        let same = labels(object).into_iter().map(|label| {
            let of_index = version.index_of("labels", object).unwrap();
            assert!(of_index.contains(&label));
            version.by_index("labels", &label).unwrap().count()
        });
        Ok(vec![same.sum::<usize>().to_string()])
    };
    store.add_index("before it", count).unwrap();
    let (done, outcome) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for uid in 1..=3 {
            let name = format!("o{uid}");
            apply(
                &store,
                vec![Delta::Added(object(&name, uid, 1, &["l"]))],
                "1",
            );
        }
        let version = store.version();
        let counts = version.index_values("before it").unwrap();
        done.send(counts.map(ToString::to_string).collect::<BTreeSet<_>>())
    });
    let counts = outcome.recv_timeout(Duration::from_secs(20));
    assert_eq!(
        counts,
        Ok(names(["0", "1", "2"])),
        "no write waits for itself"
    );
}

#[tokio::test(start_paused = true)]
async fn s3_the_version_moves_with_every_write_and_can_be_awaited() {
    let store = store();
    assert_eq!(&**store.version().resource_version(), "");
    replace(&store, vec![], "7");
    assert_eq!(&**store.version().resource_version(), "7");
    apply(&store, vec![], "9");
    assert_eq!(&**store.version().resource_version(), "9", "a bookmark");
    let second = Duration::from_secs(1);
    assert!(store.wait_for_version("8", second).await);
    assert!(!store.wait_for_version("10", second).await);
    let (arrived, ()) = tokio::join!(store.wait_for_version("10", second), async {
        tokio::time::sleep(second / 2).await;
        apply(&store, vec![Delta::Added(object("a", 1, 10, &[]))], "10");
    });
    assert!(arrived);
}

#[test]
fn d4_d9_a_list_replaces_in_one_step_deletions_first() {
    let store = store();
    let first = ["a", "b", "c", "d"]
        .iter()
        .zip(1..)
        .map(|(name, uid)| object(name, uid, 5, &["l"]));
    replace(&store, first.collect(), "5");
    let before = store.version();
    let unchanged = Arc::clone(
        &before
            .get(&ObjectKey::namespaced("n1", "b"))
            .unwrap()
            .object,
    );
    let list = vec![
        object("e", 9, 6, &["m"]),
        object("b", 2, 5, &["l"]),
        object("c", 7, 6, &["m"]),
        object("d", 4, 7, &["m"]),
    ];
    let changes = replace(&store, list, "8");
    assert_eq!(
        changes,
        ["-?a:1@5", "-?c:3@5", "+e:9@6", "+c:7@6", "d:4@5~d:4@7"]
    );
    let kept = Arc::clone(
        &store
            .version()
            .get(&ObjectKey::namespaced("n1", "b"))
            .unwrap()
            .object,
    );
    assert!(
        Arc::ptr_eq(&unchanged, &kept),
        "an unchanged object keeps its stored copy"
    );
    assert_eq!(before.len(), 4, "a version held does not change");
    assert_eq!(by_label(&store, "m"), names(["c", "d", "e"]));
    assert_eq!(by_label(&store, "l"), names(["b"]));
}

#[test]
fn of_two_objects_of_one_key_in_a_list_the_later_counts() {
    let store = store();
    let list = vec![
        object("a", 1, 1, &["x"]),
        object("b", 2, 1, &[]),
        object("a", 1, 2, &["y"]),
    ];
    assert_eq!(replace(&store, list, "2"), ["+b:2@1", "+a:1@2"]);
    assert_eq!(label_values(&store), names(["y"]));
}

#[test]
fn h13_another_uid_under_the_same_key_is_another_object() {
    let store = store();
    apply(&store, vec![Delta::Added(object("a", 1, 1, &[]))], "1");
    let changes = apply(&store, vec![Delta::Modified(object("a", 2, 2, &[]))], "2");
    assert_eq!(changes, ["-?a:1@1", "+a:2@2"]);
}

#[test]
fn i68_no_reader_waits_for_a_write_in_progress() {
    let store = Arc::new(store());
    apply(&store, vec![Delta::Added(object("a", 1, 1, &["l"]))], "1");
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    let blocking = parking_lot::Mutex::new(may_go_on);
    let index = move |object: &ConfigMap| {
        if object.metadata.name.as_deref() == Some("slow") {
            begun.send(()).unwrap();
            blocking.lock().recv().unwrap();
        }
        Ok(Vec::new())
    };
    store.add_index("slow", index).unwrap();
    let writer = {
        let store = Arc::clone(&store);
        let slow = object("slow", 2, 2, &["l"]);
        std::thread::spawn(move || apply(&store, vec![Delta::Added(slow)], "2"))
    };
    has_begun.recv().unwrap();
    let (read, outcome) = std::sync::mpsc::channel();
    let reader = Arc::clone(&store);
    std::thread::spawn(move || {
        let version = reader.version();
        let key = ObjectKey::namespaced("n1", "a");
        let of_key = reader.look(|version| version.get(&key).is_some());
        let values = version.index_of("labels", &object("a", 1, 1, &["l"]));
        let found = by_label(&reader, "l");
        read.send((of_key, version.len(), values.unwrap().len(), found.len()))
    });
    let seen = outcome.recv_timeout(Duration::from_secs(20));
    assert_eq!(
        seen,
        Ok((true, 1, 1, 1)),
        "the state before the write, at once"
    );
    go_on.send(()).unwrap();
    assert_eq!(writer.join().unwrap(), ["+slow:2@2"]);
    assert_eq!(by_label(&store, "l").len(), 2);
}

/// What a list gave of a key before the object that cannot be read, the UID that could be read of
/// that, and what is told.
type Case<'a> = (Option<(u32, u64)>, Option<&'a str>, &'a [&'a str]);

#[test]
fn i59_an_unreadable_object_keeps_its_own_copy_and_ends_the_one_whose_place_it_took() {
    let cases: [Case<'_>; 7] = [
        (None, None, &[]),
        (None, Some("1"), &[]),
        (None, Some("2"), &["-?a:1@5"]),
        (Some((1, 6)), None, &["a:1@5~a:1@6"]),
        (Some((1, 6)), Some("1"), &["a:1@5~a:1@6"]),
        (Some((1, 6)), Some("2"), &["-?a:1@5"]),
        (Some((2, 6)), Some("2"), &["-?a:1@5", "+a:2@6"]),
    ];
    let key = ObjectKey::namespaced("n1", "a");
    for (listed, uid, want) in cases {
        let store = store();
        apply(&store, vec![Delta::Added(object("a", 1, 5, &[]))], "5");
        let mut built = store.build_up();
        if let Some((uid, version)) = listed {
            assert!(built.put(object("a", uid, version, &[])));
        }
        built.keep(&key, uid);
        let told = shown(&store.replace(&built, "9"));
        assert_eq!(told, want, "{listed:?} then {uid:?}");
    }
    for (uid, want) in [("1", &[][..]), ("2", &["-?a:1@5"])] {
        let store = store();
        apply(&store, vec![Delta::Added(object("a", 1, 5, &[]))], "5");
        let (key, uid) = (key.clone(), uid.to_owned());
        assert_eq!(
            apply(&store, vec![Delta::Unreadable { key, uid }], "6"),
            want
        );
    }
}

#[test]
fn i31_an_object_announced_anew_below_its_stored_version_stops_the_batch() {
    let store = store();
    apply(&store, vec![Delta::Added(object("a", 1, 9, &[]))], "9");
    let batch = vec![
        Delta::Added(object("b", 2, 3, &[])),
        Delta::Added(object("a", 1, 4, &[])),
        Delta::Added(object("c", 3, 5, &[])),
    ];
    let applied = store.apply(batch, Some("5"), true);
    assert_eq!(applied.began_anew, Some(ObjectKey::namespaced("n1", "a")));
    assert_eq!(shown(&applied.changes), ["+b:2@3"]);
    assert_eq!(&**store.version().resource_version(), "9");
}

#[test]
fn d6_a_deletion_of_an_unknown_key_is_told_and_a_repeated_state_is_not() {
    let store = store();
    assert_eq!(
        apply(&store, vec![Delta::Deleted(object("a", 1, 1, &[]))], "1"),
        ["-a:1@1"]
    );
    let vanished = Delta::Vanished(ObjectKey::namespaced("n1", "a"));
    assert_eq!(apply(&store, vec![vanished], "1"), Vec::<String>::new());
    apply(&store, vec![Delta::Added(object("a", 1, 2, &[]))], "2");
    let repeated = vec![Delta::Modified(object("a", 1, 2, &[]))];
    assert_eq!(apply(&store, repeated, "2"), Vec::<String>::new());
}

#[test]
fn s6_readers_under_full_write_load_see_objects_and_indexes_agree() {
    let store = store();
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    check_agreement(&store.version());
                }
            });
        }
        let mut version = 0;
        for round in 0..300_u64 {
            for at in 0..20_u32 {
                version += 1;
                let label = format!("l{}", (round + u64::from(at)) % 5);
                let name = format!("o{at}");
                let new = object(&name, at, version, &[&label, "all"]);
                let delta = if (round + u64::from(at)) % 7 == 0 {
                    Delta::Deleted(new)
                } else {
                    Delta::Modified(new)
                };
                apply(&store, vec![delta], &version.to_string());
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    check_agreement(&store.version());
}

/// Every index entry has its object with that value, and the other way round.
fn check_agreement(version: &Version<ConfigMap>) {
    let mut from_objects: BTreeMap<String, BTreeSet<ObjectKey>> = BTreeMap::new();
    for entry in version.iter() {
        for label in labels(&entry.object) {
            from_objects
                .entry(label)
                .or_default()
                .insert(entry.key.clone());
        }
    }
    let from_index: BTreeMap<String, BTreeSet<ObjectKey>> = version
        .index_values("labels")
        .unwrap()
        .map(|value| {
            let keys = version
                .by_index("labels", value)
                .unwrap()
                .map(|entry| entry.key.clone())
                .collect();
            (value.to_string(), keys)
        })
        .collect();
    assert_eq!(from_index, from_objects);
    let versions = version
        .iter()
        .filter_map(|e| e.object.metadata.resource_version.as_deref());
    let newest = versions
        .filter_map(|version| version.parse::<u64>().ok())
        .max();
    let shown: u64 = version.resource_version().parse().unwrap_or(0);
    assert!(
        newest.unwrap_or(0) <= shown,
        "an object newer than the store's version"
    );
}

#[derive(Clone, Debug)]
enum Op {
    Apply(Vec<(u8, u8, u8, bool)>),
    Replace(Vec<(u8, u8, u8)>),
}

fn named(at: u8) -> String {
    "o".repeat(1 + usize::from(at))
}

fn labelled(at: u8, uid: u8, version: u64, labels: u8) -> ConfigMap {
    let all = ["x", "y", "z"];
    let chosen: Vec<_> = (0..3)
        .filter(|bit| labels & (1 << bit) != 0)
        .map(|bit| all[bit])
        .collect();
    object(&named(at), uid.into(), version, &chosen)
}

proptest! {
    /// Whatever happens, the store is the model, its indexes are those of the model, and a view
    /// that follows the changes is the store.
    #[test]
    fn d10_store_indexes_and_followed_changes_equal_a_model(
        ops in proptest::collection::vec(
            prop_oneof![
                4 => proptest::collection::vec((0..8u8, 0..3u8, 0..8u8, prop::bool::weighted(0.3)), 0..6)
                    .prop_map(Op::Apply),
                1 => proptest::collection::vec((0..8u8, 0..3u8, 0..8u8), 0..8).prop_map(Op::Replace),
            ],
            0..40,
        ),
    ) {
        let store = store();
        let mut model: BTreeMap<String, ConfigMap> = BTreeMap::new();
        let mut view: BTreeMap<String, Arc<ConfigMap>> = BTreeMap::new();
        let mut version = 0;
        for op in ops {
            let changes = match op {
                Op::Apply(events) => {
                    let mut deltas = Vec::new();
                    for (at, uid, labels, delete) in events {
                        version += 1;
                        let object = labelled(at, uid, version, labels);
                        if delete {
                            model.remove(&named(at));
                            deltas.push(Delta::Deleted(object));
                        } else {
                            model.insert(named(at), object.clone());
                            deltas.push(Delta::Modified(object));
                        }
                    }
                    store.apply(deltas, Some(&version.to_string()), true).changes
                }
                Op::Replace(objects) => {
                    version += 1;
                    let mut built = store.build_up();
                    let mut listed = BTreeMap::new();
                    for (at, uid, labels) in objects {
                        // Some objects of the list are those of the store, unchanged.
                        let object = match model.get(&named(at)) {
                            Some(known) if labels < 4 => known.clone(),
                            _ => labelled(at, uid, version, labels),
                        };
                        listed.insert(named(at), object.clone());
                        prop_assert!(built.put(object));
                    }
                    model = listed;
                    store.replace(&built, &version.to_string())
                }
            };
            for change in changes {
                match change {
                    Change::Added(new) => {
                        let name = new.metadata.name.clone().unwrap();
                        prop_assert!(view.insert(name, new).is_none(), "added what is there");
                    }
                    Change::Updated { old, new } => {
                        let name = new.metadata.name.clone().unwrap();
                        let before = view.insert(name, Arc::clone(&new));
                        prop_assert!(before.is_some_and(|before| Arc::ptr_eq(&before, &old)));
                        prop_assert_eq!(&old.metadata.uid, &new.metadata.uid);
                    }
                    Change::Deleted { object, .. } => {
                        view.remove(object.metadata.name.as_deref().unwrap());
                    }
                }
            }
            let current = store.version();
            check_agreement(&current);
            let stored: BTreeMap<_, _> = current
                .iter()
                .map(|entry| (entry.key.name().to_owned(), (*entry.object).clone()))
                .collect();
            prop_assert_eq!(&stored, &model);
            let viewed: BTreeMap<_, _> =
                view.iter().map(|(name, object)| (name.clone(), (**object).clone())).collect();
            prop_assert_eq!(&viewed, &model);
        }
    }
}
