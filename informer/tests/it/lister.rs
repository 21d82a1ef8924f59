//! Reads from the cache, and the options that an informer refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use informer::source::scripted::ListAnswer;
use informer::{Error, InformerOptions, ObjectKey, ReflectorBackoff};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_core::{Expression, Selector};
use proptest::prelude::*;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn s4_i70_listers_select_by_namespace_labels_and_index() {
    let (source, informer) = scripted(InformerOptions::default());
    informer
        .add_index("first", |object: &ConfigMap| {
            object
                .metadata
                .name
                .iter()
                .map(|name| name[..1].to_owned())
                .collect()
        })
        .unwrap();
    let mut objects = vec![object("ab", 1), object("ac", 2), object("b", 3)];
    objects[0].metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
    objects[2].metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
    objects[2].metadata.namespace = Some("m".to_owned());
    source.list(ListAnswer::all(objects, "10"));
    let _run = Run::start(&informer);
    informer.synced().await;
    let lister = informer.lister();
    let web: Selector = Expression::Equal("app".to_owned(), "web".to_owned()).into();
    let named = |mut objects: Vec<Arc<ConfigMap>>| {
        objects.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        objects
            .iter()
            .map(|object| object.metadata.name.clone().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(named(lister.list()), ["ab", "ac", "b"]);
    assert_eq!(named(lister.namespace("n")), ["ab", "ac"]);
    assert_eq!(named(lister.namespace("none")), Vec::<String>::new());
    assert_eq!(named(lister.select(None, &web)), ["ab", "b"]);
    assert_eq!(named(lister.select(Some("m"), &web)), ["b"]);
    assert_eq!(named(lister.by_index("first", "a").unwrap()), ["ab", "ac"]);
    assert_eq!(
        lister.index_keys("first", "b").unwrap(),
        [ObjectKey::namespaced("m", "b")]
    );
    let mut values = lister.index_values("first").unwrap();
    values.sort();
    assert_eq!(
        values.iter().map(|value| &**value).collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert!(matches!(
        lister.by_index("last", "a"),
        Err(Error::UnknownIndex { .. })
    ));
    let missing = lister
        .require(&ObjectKey::namespaced("n", "x"))
        .unwrap_err();
    assert_eq!(missing.to_string(), "ConfigMap n/x is not in the cache");
}

#[tokio::test(start_paused = true)]
async fn what_is_borrowed_is_what_a_snapshot_of_the_moment_shares() {
    let (source, informer) = scripted(InformerOptions::default());
    let name = |object: &ConfigMap| object.metadata.name.clone().unwrap();
    informer
        .add_index("first", move |object: &ConfigMap| {
            vec![name(object)[..1].to_owned()]
        })
        .unwrap();
    let objects = vec![object("ab", 1), object("ac", 2), object("b", 3)];
    source.list(ListAnswer::all(objects, "10"));
    let _run = Run::start(&informer);
    informer.synced().await;
    let lister = informer.lister();
    let snapshot = lister.snapshot();
    let key = ObjectKey::namespaced("n", "ac");
    lister.read(|now| {
        assert_eq!((now.len(), now.is_empty()), (3, false));
        assert_eq!(now.resource_version(), "10");
        let found = now.get(&key).unwrap();
        assert!(Arc::ptr_eq(found, &snapshot.get(&key).unwrap()));
        assert!(now.get(&ObjectKey::cluster("ac")).is_none());
        assert!(now.iter().eq(snapshot.iter()) && now.keys().eq(snapshot.keys()));
        let of_index = now.by_index("first", "a").unwrap();
        assert!(of_index.eq(&snapshot.by_index("first", "a").unwrap()));
        assert_eq!(now.by_index("first", "c").unwrap().count(), 0);
        assert_eq!(now.count_by_index("first", "a").unwrap(), 2);
        let keys = now.index_keys("first", "a").unwrap();
        assert!(keys.eq(&snapshot.index_keys("first", "a").unwrap()));
        let unknown = now.by_index("last", "a").map(Iterator::count);
        assert!(matches!(unknown, Err(Error::UnknownIndex { .. })));
    });
    let kept = snapshot.view().get(&key).unwrap();
    assert_eq!(kept.metadata.name.as_deref(), Some("ac"));
}

#[tokio::test(start_paused = true)]
async fn bad_options_are_refused_by_name() {
    let source = informer::source::scripted::Scripted::<ConfigMap>::new();
    let refuse = |options: InformerOptions<ConfigMap>| match informer::Informer::from_source(
        "ConfigMap",
        source.clone(),
        options,
    ) {
        Err(Error::InvalidOption { option, .. }) => option,
        other => panic!("accepted: {other:?}"),
    };
    let default = InformerOptions::default;
    assert_eq!(
        refuse(InformerOptions {
            page_size: Some(0),
            ..default()
        }),
        "page_size"
    );
    assert_eq!(
        refuse(InformerOptions {
            namespace: Some(String::new()),
            ..default()
        }),
        "namespace"
    );
    let zero = Duration::ZERO;
    assert_eq!(
        refuse(InformerOptions {
            list_timeout: zero,
            ..default()
        }),
        "list_timeout/open_timeout"
    );
    assert_eq!(
        refuse(InformerOptions {
            min_watch_timeout: Duration::MAX,
            ..default()
        }),
        "min_watch_timeout"
    );
    assert_eq!(
        refuse(InformerOptions {
            backoff: ReflectorBackoff {
                max: Duration::MAX,
                ..ReflectorBackoff::default()
            },
            ..default()
        }),
        "backoff"
    );
}

#[tokio::test(start_paused = true)]
async fn i62_what_an_index_leaves_out_is_counted_each_and_logged_once_with_index_and_key() {
    let written = Written::default();
    let _guard = written.begin(tracing::Level::ERROR);
    let (source, informer) = scripted(InformerOptions::default());
    informer
        .add_fallible_index("moody", |_: &ConfigMap| Err("no value".into()))
        .unwrap();
    let objects = (0..200).map(|at| object(&format!("o{at}"), 1));
    source.list(ListAnswer::all(objects, "10"));
    let run = Run::start(&informer);
    informer.synced().await;
    assert_eq!(informer.lister().list().len(), 200);
    assert_eq!(informer.stats().index_failures, 200);
    let text = written.text();
    assert_eq!(
        text.matches("object left out of an index").count(),
        1,
        "{text}"
    );
    for part in ["index=moody", "key=n/o0", "no value"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    run.end().await.unwrap();
}

/// A label of few names and values, so that many are met.
fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
    proptest::collection::btree_map("[ab]", "[xy]", 0..3)
}

/// One requirement, as text and as what it demands of the value of its label.
fn requirement() -> impl Strategy<Value = Expression> {
    let values = || proptest::collection::btree_set("[xyz]".prop_map(String::from), 1..3);
    prop_oneof![
        ("[abc]", values()).prop_map(|(key, values)| Expression::In(key, values)),
        ("[abc]", values()).prop_map(|(key, values)| Expression::NotIn(key, values)),
        ("[abc]", "[xyz]").prop_map(|(key, value)| Expression::Equal(key, value)),
        ("[abc]", "[xyz]").prop_map(|(key, value)| Expression::NotEqual(key, value)),
        "[abc]".prop_map(Expression::Exists),
        "[abc]".prop_map(Expression::DoesNotExist),
    ]
}

/// What the documentation of Kubernetes says that a requirement means.
fn meets(labels: &BTreeMap<String, String>, requirement: &Expression) -> bool {
    let is = |key: &String, values: &BTreeSet<String>| {
        labels.get(key).is_some_and(|value| values.contains(value))
    };
    match requirement {
        Expression::In(key, values) => is(key, values),
        Expression::NotIn(key, values) => !is(key, values),
        Expression::Equal(key, value) => labels.get(key) == Some(value),
        Expression::NotEqual(key, value) => labels.get(key) != Some(value),
        Expression::Exists(key) => labels.contains_key(key),
        Expression::DoesNotExist(key) => !labels.contains_key(key),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn s4_any_selector_in_any_namespace_gives_what_a_look_at_each_object_gives(
        all in proptest::collection::vec((0..3_u8, labels()), 0..20),
        selectors in proptest::collection::vec(
            proptest::collection::vec(requirement(), 0..4), 1..6,
        ),
    ) {
        let objects = all.iter().enumerate().map(|(at, (namespace, labels))| {
            let mut object = object(&format!("o{at}"), 1);
            object.metadata.namespace = Some(format!("n{namespace}"));
            object.metadata.labels = (!labels.is_empty()).then(|| labels.clone());
            object
        });
        let objects: Vec<_> = objects.collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()?;
        let lister = runtime.block_on(async {
            let (source, informer) = scripted(InformerOptions::default());
            source.list(ListAnswer::all(objects.clone(), "10"));
            let _run = Run::start(&informer);
            informer.synced().await;
            informer.lister()
        });
        for requirements in selectors {
            let selector: Selector = requirements.iter().cloned().collect();
            for namespace in [None, Some("n0"), Some("n1"), Some("n9")] {
                let named = |object: &ConfigMap| object.metadata.name.clone();
                let want: BTreeSet<_> = objects
                    .iter()
                    .zip(&all)
                    .filter(|(object, (_, labels))| {
                        let own = object.metadata.namespace.as_deref();
                        namespace.is_none_or(|namespace| own == Some(namespace))
                            && requirements.iter().all(|one| meets(labels, one))
                    })
                    .map(|(object, _)| named(object))
                    .collect();
                let found = lister.select(namespace, &selector);
                prop_assert_eq!(found.len(), want.len(), "{:?}", &requirements);
                let found: BTreeSet<_> = found.iter().map(|object| named(object)).collect();
                prop_assert_eq!(found, want, "{:?} {:?}", namespace, &requirements);
            }
        }
    }
}
