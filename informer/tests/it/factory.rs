//! Factories: reads that start informers, removal, and what all informers have in common.

use std::sync::Arc;

use informer::metrics::Registry;
use informer::{Error, Factory, FactoryOptions, MetadataOnly, OnMissingInformer};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube_core::discovery::ApiResource;

use crate::wire::{Answer, Wire, answer};

/// Refuses the streamed list, then answers the list with one object.
fn listed(kind: &str, name: &str) -> [Answer; 2] {
    let refused = r#"{"kind":"Status","status":"Failure","reason":"Invalid","code":422}"#;
    let list = format!(
        r#"{{"kind":"{kind}List","metadata":{{"resourceVersion":"5"}},"items":[{{"metadata":{{"name":"{name}","namespace":"n","uid":"{name}","resourceVersion":"3"}}}}]}}"#
    );
    [answer(422, refused), answer(200, &list)]
}

#[tokio::test(start_paused = true)]
async fn i105_a_read_starts_the_informer_and_waits_for_its_first_list() {
    let wire = Wire::with(listed("ConfigMap", "a"));
    let factory = Factory::new(wire.client(), FactoryOptions::default());
    let lister = factory.lister::<ConfigMap>().await.unwrap();
    assert_eq!(lister.list().len(), 1);
    let calls = wire.uris().len();
    let again = factory.lister::<ConfigMap>().await.unwrap();
    assert_eq!(again.list().len(), 1);
    assert!(wire.uris().len() <= calls + 1, "no second list");
    factory.shutdown().await.unwrap();
    assert!(matches!(
        factory.lister::<ConfigMap>().await,
        Err(Error::Stopped { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn i105_a_read_may_be_told_to_fail_where_nobody_asked_for_the_informer() {
    let wire = Wire::with(listed("ConfigMap", "a"));
    let options = FactoryOptions {
        on_missing_informer: OnMissingInformer::Fail,
        ..FactoryOptions::default()
    };
    let factory = Factory::new(wire.client(), options);
    let missing = factory.lister::<ConfigMap>().await.unwrap_err();
    assert!(
        matches!(&missing, Error::NoInformer { kind } if kind == "ConfigMap"),
        "{missing}"
    );
    let kind = ApiResource::erase::<ConfigMap>(&());
    let missing = factory.dynamic_lister(&kind).await.unwrap_err();
    assert!(matches!(missing, Error::NoInformer { .. }));
    assert!(wire.uris().is_empty());
    factory.informer::<ConfigMap>().unwrap();
    let lister = factory.lister::<ConfigMap>().await.unwrap();
    assert_eq!(lister.list().len(), 1);
    factory.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i105_a_read_does_not_wait_for_a_factory_that_stops() {
    let factory = Factory::new(Wire::default().client(), FactoryOptions::default());
    let (read, stopped) = tokio::join!(factory.lister::<ConfigMap>(), async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        factory.shutdown().await
    });
    assert!(matches!(read, Err(Error::Stopped { .. })));
    stopped.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i105_a_removed_informer_is_stopped_and_asked_for_anew() {
    let first = listed("ConfigMap", "a");
    let wire = Wire::with(first);
    let factory = Factory::new(wire.client(), FactoryOptions::default());
    let informer = factory.informer::<ConfigMap>().unwrap();
    factory.lister::<ConfigMap>().await.unwrap();
    assert!(factory.remove::<ConfigMap>().await);
    assert!(informer.is_stopped());
    assert!(!factory.remove::<ConfigMap>().await);
    wire.answers.lock().extend(listed("ConfigMap", "b"));
    let lister = factory.lister::<ConfigMap>().await.unwrap();
    assert_eq!(lister.list()[0].metadata.name.as_deref(), Some("b"));
    assert_eq!(
        informer.lister().list()[0].metadata.name.as_deref(),
        Some("a"),
        "the old handle keeps the old state"
    );
    // One that never ran is removed at once.
    factory.informer::<Secret>().unwrap();
    assert!(factory.remove::<Secret>().await);
    factory.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i101_i103_options_of_the_factory_and_of_the_informer_both_count() {
    let registry = Registry::new();
    let options = FactoryOptions {
        name: Some("main".to_owned()),
        registry: registry.clone(),
        namespace: Some("n".to_owned()),
        label_selector: Some("a=b".to_owned()),
        metadata_transform: Some(Arc::new(|metadata| {
            metadata.labels = Some([("seen".to_owned(), "once".to_owned())].into());
        })),
        ..FactoryOptions::default()
    };
    let wire = Wire::with(listed("ConfigMap", "a"));
    let factory = Factory::new(wire.client(), options);
    factory
        .informer_with::<ConfigMap>(|options| {
            options.field_selector = Some("metadata.name=a".to_owned());
            options.transform = Some(Arc::new(|object: &mut ConfigMap| {
                let labels = object.metadata.labels.get_or_insert_default();
                let count = labels.len().to_string();
                labels.insert("before".to_owned(), count);
                Ok(())
            }));
        })
        .unwrap();
    factory.informer::<MetadataOnly<ConfigMap>>().unwrap();
    let kind = ApiResource::erase::<ConfigMap>(&());
    factory.dynamic(&kind).unwrap();
    let names: Vec<_> = registry
        .snapshots()
        .into_iter()
        .map(|informer| format!("{} {}", informer.name, informer.resource))
        .collect();
    assert_eq!(
        names,
        [
            "main ConfigMap",
            "main-dynamic ConfigMap",
            "main-metadata ConfigMap"
        ]
    );
    assert!(factory.remove::<MetadataOnly<ConfigMap>>().await);
    assert!(factory.remove_dynamic(&kind).await);
    let lister = factory.lister::<ConfigMap>().await.unwrap();
    let labels = lister.list()[0].metadata.labels.clone().unwrap();
    assert_eq!(
        labels.into_iter().collect::<Vec<_>>(),
        [
            ("before".to_owned(), "1".to_owned()),
            ("seen".to_owned(), "once".to_owned())
        ]
    );
    let list = &wire.uris()[1];
    assert!(
        list.starts_with(
            "/api/v1/namespaces/n/configmaps?labelSelector=a%3Db&fieldSelector=metadata.name%3Da"
        ),
        "{list}"
    );
    factory.shutdown().await.unwrap();
}
