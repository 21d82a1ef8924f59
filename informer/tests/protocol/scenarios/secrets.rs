//! What an informer on metadata is never sent.

use std::sync::Arc;

use informer::{Event, Informer, MetadataOnly};
use k8s_openapi::api::core::v1::Secret;
use kube_client::api::{Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::json;

use crate::follower::*;
use crate::world::{Agent, World};

/// Values planted in secrets' data and in the copy that `kubectl apply` leaves reach neither cache nor handlers,
/// failures nor status, by list and by watch; what else stands in the metadata does.
pub(crate) async fn a_metadata_informer_is_never_sent_secret_data(world: &World) {
    let api = world.api::<Secret>();
    let secret = |name: &str| -> Secret {
        serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{\"stringData\":\"planted\"}",
                "kept": "this one",
            }},
            "stringData": {"password": "planted"}
        }))
        .unwrap()
    };
    api.create(&PostParams::default(), &secret("first-false"))
        .await
        .unwrap();
    for watch_list in [false, true] {
        let mut options = quick::<MetadataOnly<Secret>>(world);
        options.watch_list = watch_list;
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let failures = Arc::clone(&told);
        options.error_handler = Some(Arc::new(move |error| {
            failures.lock().push(format!("{error:?}"))
        }));
        let informer: Informer<MetadataOnly<Secret>> =
            Informer::new(world.client(&Agent::new()), options).unwrap();
        let texts = Arc::clone(&told);
        informer
            .add_handler("texts", move |event: &Event<MetadataOnly<Secret>>| {
                texts.lock().push(format!("{} {event:?}", event.key()));
            })
            .unwrap();
        let running = Running::start(informer);
        running.informer.synced().await;
        let name = format!("second-{watch_list}");
        api.create(&PostParams::default(), &secret(&name))
            .await
            .unwrap();
        let patch = Patch::Merge(
            json!({"stringData": {"more": "planted"}, "metadata": {"labels": {"l": "v"}}}),
        );
        api.patch(&name, &PatchParams::default(), &patch)
            .await
            .unwrap();
        eventually(LIMIT, "the label", async || {
            let told = told.lock();
            holds(
                told.iter()
                    .any(|text| text.contains(&name) && text.contains("\"l\": \"v\"")),
            )
        })
        .await;
        let informer = &running.informer;
        let dump = format!(
            "{:?} {:?} {:?}",
            told.lock(),
            informer.lister().list(),
            informer.status()
        );
        for there in ["first-false", &*name, "kept", "this one"] {
            assert!(dump.contains(there), "{there} in {dump}");
        }
        for planted in ["planted", "cGxhbnRlZA", "last-applied"] {
            assert!(!dump.contains(planted), "{planted} in {dump}");
        }
        let objects = informer.lister().list();
        assert!(objects.iter().all(|object| object.metadata().uid.is_some()));
    }
}
