//! Properties of the store: linear history, no gap or duplicate, whole snapshots.

use std::{collections::BTreeMap, ops::ControlFlow};

use proptest::prelude::*;
use serde_json::json;

use super::{watcher::Lagged, *};

fn draft(name: &str, text: u32) -> Draft {
    let value = json!({"kind": "T", "apiVersion": "v1", "metadata": {"name": name}, "data": text});
    Draft {
        value,
        fields: vec![],
        shape: 0,
    }
}

fn listed(collection: &Collection, at: Option<u64>) -> Result<BTreeMap<String, u64>, Compacted> {
    let mut found = BTreeMap::new();
    collection.scan(Scope::All, None, at, |key, object| {
        found.insert(
            key.as_str().to_owned(),
            object.value()["data"].as_u64().unwrap_or_default(),
        );
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

#[derive(Clone, Debug)]
enum Op {
    Create(u8, u32),
    Replace(u8, u32),
    Remove(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..6u8, any::<u32>()).prop_map(|(key, text)| Op::Create(key, text)),
        (0..6u8, any::<u32>()).prop_map(|(key, text)| Op::Replace(key, text)),
        (0..6u8).prop_map(Op::Remove),
    ]
}

proptest! {
    /// Replaying the events over any earlier snapshot gives every later snapshot.
    #[test]
    fn events_replayed_over_a_snapshot_give_the_later_snapshots(ops in prop::collection::vec(op(), 1..80)) {
        let store = Store::new();
        let collection = store.collection("test/things");
        let mut model: BTreeMap<String, u64> = BTreeMap::new();
        let mut states = vec![(store.revision(), model.clone())];
        for op in ops {
            let before = store.revision();
            let committed = match op {
                Op::Create(key, text) => {
                    let name = format!("k{key}");
                    let result = collection.create(&Key::new(None, &name), draft(&name, text));
                    prop_assert_eq!(result.is_ok(), !model.contains_key(&name));
                    if result.is_ok() { model.insert(name, u64::from(text)); }
                    result.ok()
                }
                Op::Replace(key, text) => {
                    let name = format!("k{key}");
                    let key = Key::new(None, &name);
                    let expected = collection.get(&key).map_or(0, |object| object.revision);
                    let result = collection.replace(&key, expected, draft(&name, text));
                    prop_assert_eq!(result.is_ok(), model.contains_key(&name));
                    if result.is_ok() { model.insert(name, u64::from(text)); }
                    result.ok()
                }
                Op::Remove(key) => {
                    let name = format!("k{key}");
                    let key = Key::new(None, &name);
                    let expected = collection.get(&key).map_or(0, |object| object.revision);
                    let result = collection.remove(&key, expected, None);
                    prop_assert_eq!(result.is_ok(), model.remove(&name).is_some());
                    result.ok()
                }
            };
            prop_assert_eq!(store.revision(), before + u64::from(committed.is_some()));
            if let Some(object) = committed {
                prop_assert_eq!(object.revision, store.revision());
                states.push((store.revision(), model.clone()));
            }
        }
        for (start, (revision, state)) in states.iter().enumerate() {
            prop_assert_eq!(&listed(&collection, Some(*revision)).expect("it is kept"), state);
            let mut watcher = collection.watch_after(*revision).expect("nothing was trimmed");
            let mut replayed = state.clone();
            let events = watcher.read().expect("nothing was trimmed");
            prop_assert_eq!(events.len(), states.len() - start - 1);
            for (event, (revision, expected)) in events.iter().zip(&states[start + 1..]) {
                prop_assert_eq!(event.revision, *revision);
                match event.kind {
                    EventKind::Put => {
                        let data = event.object.value()["data"].as_u64().unwrap_or_default();
                        replayed.insert(event.key.as_str().to_owned(), data);
                    }
                    EventKind::Delete => { replayed.remove(event.key.as_str()); }
                }
                prop_assert_eq!(&replayed, expected);
            }
        }
        let (last, state) = states.last().expect("there is a first state");
        store.compact(*last);
        prop_assert_eq!(&listed(&collection, None).expect("the present is kept"), state);
        if states.len() > 1 {
            prop_assert!(listed(&collection, Some(states[0].0)).is_err());
        }
    }
}

#[test]
fn a_stale_expectation_changes_nothing() {
    let store = Store::new();
    let collection = store.collection("test/things");
    let key = Key::new(Some("ns"), "a");
    let first = collection.create(&key, draft("a", 1)).unwrap();
    collection
        .replace(&key, first.revision, draft("a", 2))
        .unwrap();
    let before = store.revision();
    assert!(matches!(
        collection.replace(&key, first.revision, draft("a", 3)),
        Err(CommitError::Changed)
    ));
    assert!(matches!(
        collection.remove(&key, first.revision, None),
        Err(CommitError::Changed)
    ));
    assert_eq!(store.revision(), before);
}

#[test]
fn keys_order_as_bytes_of_namespace_slash_name() {
    let store = Store::new();
    let collection = store.collection("test/things");
    for (namespace, name) in [("a", "x"), ("a-b", "x"), ("a", "b"), ("ab", "x")] {
        collection
            .create(&Key::new(Some(namespace), name), draft(name, 0))
            .unwrap();
    }
    let keys: Vec<String> = listed(&collection, None).unwrap().into_keys().collect();
    assert_eq!(keys, ["a-b/x", "a/b", "a/x", "ab/x"]);
    let mut inside = Vec::new();
    collection
        .scan(Scope::Namespace("a"), Some("a/c"), None, |key, _| {
            inside.push(key.name().to_owned());
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(inside, ["x"]);
}

#[tokio::test(start_paused = true)]
async fn a_watcher_behind_the_ring_is_told_so_and_old_snapshots_are_refused() {
    let store = Store::new();
    let collection = store.collection("test/things");
    let key = Key::new(None, "a");
    let mut object = collection.create(&key, draft("a", 0)).unwrap();
    let created = object.revision;
    let mut slow = collection.watch_after(created).unwrap();
    for text in 0..400 {
        object = collection
            .replace(&key, object.revision, draft("a", text))
            .unwrap();
    }
    assert_eq!(slow.read().unwrap().len(), 256);
    let mut late = collection.watch_after(created).unwrap();
    tokio::time::advance(history::MIN_AGE * 2).await;
    collection
        .replace(&key, object.revision, draft("a", 1000))
        .unwrap();
    assert_eq!(late.read().unwrap_err(), Lagged);
    assert!(collection.watch_after(created).is_err());
    assert!(
        collection
            .scan(Scope::All, None, Some(created), |_, _| ControlFlow::Break(
                ()
            ))
            .is_err()
    );
    assert_eq!(listed(&collection, None).unwrap()["a"], 1000);
}

#[tokio::test(start_paused = true)]
async fn large_objects_leave_the_history_before_their_time() {
    let store = Store::new();
    let collection = store.collection("test/things");
    let key = Key::new(None, "a");
    let large = |text: usize| Draft {
        value: json!({"kind": "T", "metadata": {"name": "a"}, "data": "x".repeat((1 << 20) + text)}),
        fields: vec![],
        shape: 0,
    };
    let mut object = collection.create(&key, large(0)).unwrap();
    let created = object.revision;
    let events = history::MAX_BYTES / (1 << 20) + 10;
    for text in 1..events {
        object = collection
            .replace(&key, object.revision, large(text))
            .unwrap();
    }
    assert!(collection.watch_after(created).is_err(), "beyond the bound");
    let kept = object.revision - history::MIN_EVENTS as u64;
    assert!(
        collection.watch_after(kept).is_ok(),
        "the last hundred stay"
    );
}

#[tokio::test(start_paused = true)]
async fn a_history_that_begins_anew_is_of_no_use_to_watches_from_before() {
    let store = Store::new();
    let idle = store.collection("test/idle");
    let before = store.revision();
    store
        .collection("test/things")
        .create(&Key::new(None, "a"), draft("a", 1))
        .unwrap();
    assert!(idle.watch_after(before).is_ok());
    store.forget_history();
    assert!(idle.watch_after(before).is_err());
    assert!(idle.watch_after(store.revision()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_watcher_sleeps_until_a_commit_and_its_progress_follows_other_collections() {
    let store = Store::new();
    let collection = store.collection("test/things");
    let mut watcher = collection.watch_after(store.revision()).unwrap();
    let waited = tokio::time::timeout(std::time::Duration::from_secs(5), watcher.ready()).await;
    assert!(waited.is_err(), "nothing was committed");
    store
        .collection("test/others")
        .create(&Key::new(None, "x"), draft("x", 1))
        .unwrap();
    assert!(watcher.read().unwrap().is_empty());
    assert_eq!(watcher.progress(), store.revision());
    collection
        .create(&Key::new(None, "a"), draft("a", 1))
        .unwrap();
    watcher.ready().await;
    assert_eq!(watcher.read().unwrap().len(), 1);
}
