//! Reads from the cache, and the options that an informer refuses.

use std::sync::Arc;
use std::time::Duration;

use informer::source::scripted::ListAnswer;
use informer::{Error, InformerOptions, ObjectKey, ReflectorBackoff};
use k8s_openapi::api::core::v1::ConfigMap;

use crate::support::*;

#[tokio::test(start_paused = true)]
async fn s4_i70_listers_select_by_namespace_labels_and_index() {
    use kube_core::{Expression, Selector};
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
