//! Informers of one factory.

use informer::{Error, Factory, FactoryOptions, MetadataOnly};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::api::{Api, PostParams};
use kube_core::discovery::ApiResource;
use tokio_util::sync::CancellationToken;

use crate::follower::*;
use crate::world::{Agent, World};

pub(crate) async fn h15_a_factory_shares_typed_dynamic_and_metadata_informers(world: &World) {
    let options = FactoryOptions {
        namespace: Some(world.namespace.clone()),
        ..FactoryOptions::default()
    };
    let factory = Factory::new(world.client(&Agent::new()), options);
    let kind = ApiResource::erase::<ConfigMap>(&());
    let typed = factory
        .informer_with::<ConfigMap>(|options| options.label_selector = Some("seen=yes".to_owned()))
        .unwrap();
    let again = factory.informer::<ConfigMap>().unwrap();
    let dynamic = factory.dynamic(&kind).unwrap();
    factory.start().unwrap();
    factory.start().unwrap();
    let synced = factory.wait_for_cache_sync(&CancellationToken::new()).await;
    assert_eq!(synced.len(), 2, "{synced:?}");
    assert!(synced.values().all(|synced| *synced));

    let late = factory.informer::<MetadataOnly<ConfigMap>>().unwrap();
    factory.start().unwrap();
    late.synced().await;
    let before = dynamic.status().objects;
    let api = world.api::<ConfigMap>();
    let mut seen = config_map("seen", "first");
    seen.metadata.labels = Some([("seen".to_owned(), "yes".to_owned())].into());
    api.create(&PostParams::default(), &seen).await.unwrap();
    create(&api, "other", "first").await;
    let elsewhere: Api<ConfigMap> = Api::namespaced(world.admin(), "kube-system");
    create(&elsewhere, &world.namespace, "first").await;
    let counts = || {
        let others = [dynamic.status().objects, late.status().objects];
        (typed.lister().list().len(), others.map(|all| all - before))
    };
    let count = |want| {
        eventually(LIMIT, "objects of the namespace", move || {
            let have = counts();
            async move {
                match have == want {
                    true => Ok(()),
                    false => Err(format!("{have:?}")),
                }
            }
        })
    };
    count((1, [2, 2])).await;
    assert_eq!(again.status().objects, 1, "one cache for one kind");
    let objects = dynamic.lister().list();
    assert!(
        objects
            .iter()
            .all(|object| object.types.as_ref().unwrap().kind == "ConfigMap")
    );
    set(&api, "seen", "second").await;
    eventually(LIMIT, "the update", async || {
        let objects = typed.lister().list();
        holds(
            objects
                .iter()
                .any(|object| object.data.as_ref().unwrap()["k"] == "second"),
        )
    })
    .await;
    delete(&api, "seen").await;
    count((0, [1, 1])).await;

    factory.shutdown().await.unwrap();
    assert!(typed.is_stopped() && dynamic.is_stopped() && late.is_stopped());
    assert!(matches!(factory.start(), Err(Error::Stopped { .. })));
}
