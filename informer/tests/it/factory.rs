//! Factories: reads that start informers, removal, and what all informers have in common.

use std::borrow::Cow;
use std::sync::Arc;

use informer::metrics::Registry;
use informer::{Error, Factory, FactoryOptions, MetadataOnly, OnMissingInformer, OnMissingKind};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube_core::discovery::ApiResource;
use kube_core::{ObjectMeta, Resource};
use tokio_util::sync::CancellationToken;

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

#[tokio::test(start_paused = true)]
async fn i105_a_read_starts_its_own_informer_and_no_other() {
    let wire = Wire::with(listed("ConfigMap", "a"));
    let factory = Factory::new(wire.client(), FactoryOptions::default());
    let secrets = factory.informer::<Secret>().unwrap();
    factory.lister::<ConfigMap>().await.unwrap();
    // Whoever asked for it may still set it up.
    secrets.set_transform(Arc::new(|_| Ok(()))).unwrap();
    assert!(wire.uris().iter().all(|uri| uri.contains("/configmaps")));
    factory.start().unwrap();
    crate::support::settle().await;
    assert!(secrets.set_transform(Arc::new(|_| Ok(()))).is_err());
    factory.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i100_waiting_for_all_does_not_wait_for_one_that_has_ended_before() {
    let missing = r#"{"kind":"Status","status":"Failure","reason":"NotFound","code":404}"#;
    let wire = Wire::with([answer(404, missing), answer(404, missing)]);
    let factory = Factory::new(wire.client(), FactoryOptions::default());
    factory
        .informer_with::<Secret>(|options| options.on_missing_kind = OnMissingKind::Stop)
        .unwrap();
    factory.start().unwrap();
    let never = CancellationToken::new();
    let waiting = factory.wait_for_cache_sync(&never);
    let waiting = tokio::time::timeout(std::time::Duration::from_secs(60), waiting);
    let synced = waiting.await.expect("it does not wait for ever");
    assert_eq!(synced, [("Secret".to_owned(), false)].into());
    let failures = factory.shutdown().await.unwrap_err();
    assert!(
        matches!(&failures[..], [Error::KindMissing { .. }]),
        "{failures:?}"
    );
}

/// Another form of a config map, as programs have that read a few fields alone.
#[derive(Clone, Debug, serde::Deserialize)]
struct Slim {
    metadata: ObjectMeta,
}

impl Resource for Slim {
    type DynamicType = ();
    type Scope = kube_core::NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ConfigMap".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "configmaps".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[tokio::test(start_paused = true)]
async fn i93_a_named_factory_tells_versions_and_types_of_a_kind_apart_and_names_come_free() {
    let registry = Registry::new();
    let options = FactoryOptions {
        name: Some("main".to_owned()),
        registry: registry.clone(),
        ..FactoryOptions::default()
    };
    let wire = Wire::with(listed("ConfigMap", "a"));
    let factory = Factory::new(wire.client(), options);
    let old = factory.informer::<ConfigMap>().unwrap();
    factory.informer::<Slim>().unwrap();
    let mut kind = ApiResource::erase::<ConfigMap>(&());
    factory.dynamic(&kind).unwrap();
    factory.dynamic_metadata(&kind).unwrap();
    kind.version = "v2".to_owned();
    factory.dynamic(&kind).unwrap();
    let names = |registry: &Registry| -> Vec<_> {
        let all = registry.snapshots().into_iter();
        all.map(|one| format!("{} {} {}", one.name, one.resource, one.version))
            .collect()
    };
    let all = [
        "main ConfigMap v1",
        "main-Slim ConfigMap v1",
        "main-dynamic ConfigMap v1",
        "main-dynamic ConfigMap v2",
        "main-dynamic-metadata ConfigMap v1",
    ];
    assert_eq!(names(&registry), all);
    assert!(
        registry
            .render()
            .contains(r#"name="main-dynamic",resource="ConfigMap",version="v2""#)
    );
    // Started or not, the old handle holds no name.
    assert!(factory.remove::<ConfigMap>().await);
    assert!(matches!(
        old.run(CancellationToken::new()).await,
        Err(Error::Stopped { .. })
    ));
    let second = factory.informer::<ConfigMap>().unwrap();
    factory.lister::<ConfigMap>().await.unwrap();
    assert!(factory.remove::<ConfigMap>().await);
    factory.informer::<ConfigMap>().unwrap();
    assert_eq!(names(&registry), all);
    assert!(second.is_stopped() && old.is_stopped());
    factory.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i101_i102_h15_dynamic_informers_take_options_of_their_own_and_may_be_of_metadata_alone() {
    let wire = Wire::with(listed("ConfigMap", "a"));
    let factory = Factory::new(wire.client(), FactoryOptions::default());
    let kind = ApiResource::erase::<ConfigMap>(&());
    let metadata = factory
        .dynamic_metadata_with(&kind, |options| options.namespace = Some("m".to_owned()))
        .unwrap();
    factory.start().unwrap();
    metadata.synced().await;
    let object = metadata.lister().list().remove(0);
    assert_eq!(object.metadata().name.as_deref(), Some("a"));
    let uris = wire.uris();
    assert!(
        uris.iter()
            .all(|uri| uri.starts_with("/api/v1/namespaces/m/configmaps?")),
        "{uris:?}"
    );
    assert!(
        wire.header(1, "accept")
            .contains("as=PartialObjectMetadataList")
    );
    let untyped = factory
        .dynamic_with(&kind, |options| {
            options.label_selector = Some("a=b".to_owned())
        })
        .unwrap();
    assert_eq!(untyped.name(), "ConfigMap with labels a=b");
    let again = factory
        .dynamic_with(&kind, |_| panic!("made before"))
        .unwrap();
    assert_eq!(again.name(), untyped.name());
    assert!(factory.remove_dynamic_metadata(&kind).await);
    assert!(!factory.remove_dynamic_metadata(&kind).await);
    factory.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn i105_a_removed_informer_is_freed_with_the_last_handle_on_it() {
    let wire = Wire::with(listed("ConfigMap", "a"));
    let factory = Factory::new(wire.client(), FactoryOptions::default());
    let informer = factory.informer::<ConfigMap>().unwrap();
    let (lister, own) = (informer.lister(), informer.clone());
    let handler = move |_: &informer::Event<ConfigMap>| {
        let _: (usize, &str) = (lister.list().len(), own.name());
    };
    informer.add_handler("holds", handler).unwrap();
    let lister = factory.lister::<ConfigMap>().await.unwrap();
    let object = Arc::downgrade(&lister.list()[0]);
    assert!(factory.remove::<ConfigMap>().await);
    assert_eq!(object.strong_count(), 1);
    drop(lister);
    drop(informer);
    assert_eq!(object.strong_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn i100_i90_a_factory_that_ends_ends_what_never_started_and_makes_nothing_more() {
    let ends: [fn(Factory) -> Option<Factory>; 2] = [Some, |factory| {
        drop(factory);
        None
    }];
    for end in ends {
        let registry = Registry::new();
        let options = FactoryOptions {
            name: Some("main".to_owned()),
            registry: registry.clone(),
            ..FactoryOptions::default()
        };
        let factory = Factory::new(Wire::default().client(), options);
        let unstarted = factory.informer::<ConfigMap>().unwrap();
        let held = Arc::new(());
        let handler = {
            let held = Arc::clone(&held);
            move |_: &informer::Event<ConfigMap>| drop(Arc::clone(&held))
        };
        unstarted.add_handler("holds", handler).unwrap();
        assert!(!unstarted.is_stopped());
        if let Some(factory) = end(factory) {
            factory.shutdown().await.unwrap();
            let late = factory.informer::<Secret>();
            assert!(matches!(late, Err(Error::Stopped { .. })));
            assert!(factory.informer::<ConfigMap>().unwrap().is_stopped());
        }
        assert!(unstarted.is_stopped());
        assert_eq!(Arc::strong_count(&held), 1, "its handlers are dropped");
        assert_eq!(registry.render(), "", "its name is free");
        let late = unstarted.add_handler("late", |_: &informer::Event<ConfigMap>| {});
        assert!(matches!(late, Err(Error::Stopped { .. })));
        let run = unstarted.run(CancellationToken::new()).await;
        assert!(matches!(run, Err(Error::Stopped { .. })));
    }
}

#[tokio::test(start_paused = true)]
async fn i101_an_informer_may_be_asked_for_while_another_or_the_same_is_being_made() {
    let factory = Factory::new(Wire::default().client(), FactoryOptions::default());
    let mut inner = None;
    let outer = factory
        .informer_with::<ConfigMap>(|options| {
            let secrets = factory.informer::<Secret>();
            inner = Some((secrets.unwrap(), factory.informer::<ConfigMap>().unwrap()));
            options.namespace = Some("n".to_owned());
        })
        .unwrap();
    let (_, first) = inner.unwrap();
    assert_eq!(first.scope().namespace, None);
    assert_eq!(
        outer.scope().namespace,
        None,
        "it is the one that was there first"
    );
    factory.shutdown().await.unwrap();
    assert!(first.is_stopped() && outer.is_stopped());
}
