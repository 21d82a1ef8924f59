//! Kinds that come, go and come back, and objects that do not fit them.

use informer::{Cause, Informer, OnMalformed};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_client::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube_core::discovery::ApiResource;
use kube_core::object::{NotUsed, Object};
use kube_core::{DynamicObject, Resource as _};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::follower::*;
use crate::world::{Agent, World};

/// A kind of this scenario's own group.
fn kind(world: &World) -> ApiResource {
    let group = format!("{}.example.dev", world.namespace);
    ApiResource {
        version: "v1".to_owned(),
        api_version: format!("{group}/v1"),
        group,
        kind: "Thing".to_owned(),
        plural: "things".to_owned(),
    }
}

async fn define(world: &World) {
    let kind = kind(world);
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": format!("{}.{}", kind.plural, kind.group)},
        "spec": {
            "group": kind.group, "scope": "Namespaced",
            "names": {"kind": "Thing", "plural": "things", "singular": "thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {
                    "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}
                }
            }}}]
        }
    }))
    .unwrap();
    let api: Api<CustomResourceDefinition> = Api::all(world.admin());
    eventually(LIMIT, "the old definition is gone", async || {
        let created = api.create(&PostParams::default(), &definition).await;
        created.map_err(|error| error.to_string())
    })
    .await;
}

fn things(world: &World) -> Api<DynamicObject> {
    Api::namespaced_with(world.admin(), &world.namespace, &kind(world))
}

async fn make(world: &World, name: &str, n: serde_json::Value) {
    let mut thing = DynamicObject::new(name, &kind(world));
    thing.data = json!({"spec": {"n": n}});
    let api = things(world);
    eventually(LIMIT, "the kind is served", async || {
        let created = api.create(&PostParams::default(), &thing).await;
        created.map_err(|error| error.to_string())
    })
    .await;
}

async fn change(world: &World, name: &str, n: serde_json::Value) {
    let patch = Patch::Merge(json!({"spec": {"n": n}}));
    things(world)
        .patch(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

pub(crate) async fn i42_a_kind_that_comes_late_goes_and_comes_back_is_followed(world: &World) {
    let options = quick::<DynamicObject>(world);
    let informer = Informer::for_kind(world.client(&Agent::new()), &kind(world), options).unwrap();
    let view = View::default();
    informer.add_handler("view", view.handler()).unwrap();
    let running = Running::start(informer);
    let informer = &running.informer;
    let is_missing = async || {
        let status = informer.status();
        holds(matches!(status.last_error, Some((Cause::NotFound, _))))
    };
    let cached = || versions(informer.lister().list().iter().map(|object| &**object));
    eventually(LIMIT, "the absence shows", is_missing).await;
    assert!(!informer.has_synced());

    for life in 0..2 {
        define(world).await;
        let name = format!("thing-of-life-{life}");
        make(world, &name, json!(life)).await;
        eventually(LIMIT, "the kind is followed", async || {
            let listed = things(world).list(&Default::default()).await;
            let want = versions(&listed.map_err(|error| error.to_string())?.items);
            let have = cached();
            let told = view.versions();
            if have == want && told == want && have.len() == 1 {
                Ok(())
            } else {
                Err(format!(
                    "{have:?}, told {told:?}, not {want:?}: {:?}",
                    informer.status()
                ))
            }
        })
        .await;
        let object = &informer.lister().list()[0];
        assert_eq!(object.meta().name.as_deref(), Some(&*name));
        assert_eq!(object.data["spec"]["n"], life);

        let definitions: Api<CustomResourceDefinition> = Api::all(world.admin());
        let name = format!("things.{}", kind(world).group);
        definitions
            .delete(&name, &DeleteParams::default())
            .await
            .unwrap();
        eventually(LIMIT, "the kind's end shows", is_missing).await;
    }
    assert_eq!(view.problems(), Vec::<String>::new());
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Numbered {
    n: i64,
}

type Thing = Object<Numbered, NotUsed>;

pub(crate) async fn r18_objects_of_a_foreign_schema_are_left_out_and_named(world: &World) {
    define(world).await;
    for at in 0..40 {
        make(world, &format!("t{at:02}"), json!(at)).await;
    }
    make(world, "foreign", json!("hidden words")).await;
    for watch_list in [false, true] {
        let mut options = quick::<Thing>(world);
        options.watch_list = watch_list;
        options.on_malformed = OnMalformed::Skip;
        let informer =
            Informer::for_kind(world.client(&Agent::new()), &kind(world), options).unwrap();
        let running = Running::start(informer);
        let informer = &running.informer;
        informer.synced().await;
        let unreadable = || -> Vec<String> {
            let all = informer.malformed();
            all.iter().map(|one| format!("{one}")).collect()
        };
        let state = |objects: usize, unreadable_names: &'static [&'static str]| {
            let unreadable = unreadable();
            async move {
                let named = unreadable_names.len() == unreadable.len()
                    && unreadable_names
                        .iter()
                        .zip(&unreadable)
                        .all(|(name, text)| {
                            text.contains(name)
                                && text.contains("spec.n")
                                && !text.contains("hidden")
                        });
                let have = informer.lister().list().len();
                match named && have == objects {
                    true => Ok(()),
                    false => Err(format!("{have} objects, {unreadable:?}")),
                }
            }
        };
        eventually(LIMIT, "all but one", || state(40, &["foreign"])).await;
        change(world, "foreign", json!(1000)).await;
        eventually(LIMIT, "it fits", || state(41, &[])).await;
        change(world, "t07", json!({"hidden": "words"})).await;
        eventually(LIMIT, "another one does not", || state(41, &["t07"])).await;
        let key = informer::ObjectKey::namespaced(world.namespace.as_str(), "t07");
        let kept = informer.lister().get(&key).unwrap();
        assert_eq!(kept.spec.n, 7, "its last readable state stays");
        change(world, "t07", json!(7)).await;
        change(world, "foreign", json!("hidden words")).await;
        eventually(LIMIT, "back to the first state", || state(41, &["foreign"])).await;
    }
}
