//! Finalizers by name, create-or-update, patches and server-side apply on both API servers.

use std::sync::{Arc, Mutex};

use controller::apply::{self, Apply};
use controller::finalizer::{self, CleanUp, Finalized, Finalizers};
use controller::retry::MaybeConflict;
use controller::upsert::{Written, create_or_patch, create_or_update, named};
use controller::{BoxError, patch};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube_client::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube_client::{Api, Client};
use serde_json::{Value, json};

fn data(object: &ConfigMap) -> Value {
    json!(object.data)
}

/// Writes its name down, and fails at its first call if it is told to.
struct Logged {
    name: &'static str,
    fails_first: bool,
    log: Arc<Mutex<Vec<&'static str>>>,
}

impl CleanUp<ConfigMap> for Logged {
    async fn clean_up(&self, _: &ConfigMap) -> Result<(), BoxError> {
        let mut log = self.log.lock().unwrap();
        let first = !log.contains(&self.name);
        log.push(self.name);
        if first && self.fails_first {
            return Err("disk busy".into());
        }
        Ok(())
    }
}

#[test]
fn c71_a_finalizer_has_one_clean_up() {
    let clean_up = || Logged {
        name: "n",
        fails_first: false,
        log: Arc::default(),
    };
    let one = Finalizers::new()
        .register("example.dev/a", clean_up())
        .unwrap();
    let error = one.register("example.dev/a", clean_up()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "finalizer example.dev/a is registered already"
    );
}

/// What both API servers do with writes.
struct Scenes(Client);

impl Scenes {
    async fn play(&self) {
        Box::pin(self.c71_clean_ups_run_by_name_and_let_the_object_go()).await;
        Box::pin(self.c73_nothing_is_written_when_nothing_differs()).await;
        Box::pin(self.c73_status_and_the_rest_are_patched_apart()).await;
        Box::pin(self.c74_a_locked_patch_is_refused_after_another_write()).await;
        Box::pin(self.c74_an_applied_object_is_shared_by_its_managers()).await;
        Box::pin(self.c74_a_status_is_applied_apart()).await;
    }

    fn configs(&self) -> Api<ConfigMap> {
        Api::namespaced(self.0.clone(), "default")
    }

    async fn created(&self, name: &str) -> ConfigMap {
        let mut object: ConfigMap = named("default", name);
        object.data = Some([("a".to_owned(), "1".to_owned())].into());
        self.configs()
            .create(&PostParams::default(), &object)
            .await
            .unwrap()
    }

    async fn c71_clean_ups_run_by_name_and_let_the_object_go(&self) {
        let api = self.configs();
        let log: Arc<Mutex<Vec<&str>>> = Arc::default();
        let clean_up = |name, fails_first| Logged {
            name,
            fails_first,
            log: Arc::clone(&log),
        };
        let finalizers = Finalizers::new()
            .register("example.dev/first", clean_up("first", true))
            .unwrap()
            .register("example.dev/second", clean_up("second", false))
            .unwrap();
        let object = self.created("cleaned").await;
        let step = finalizers.run(&api, &object).await.unwrap();
        assert_eq!(step, Finalized::Live { changed: true });
        assert!(
            finalizers
                .run(&api, &object)
                .await
                .unwrap_err()
                .is_conflict(),
            "it is stale now"
        );
        let object = api.get("cleaned").await.unwrap();
        assert_eq!(
            object.metadata.finalizers.as_deref().unwrap(),
            ["example.dev/first", "example.dev/second"]
        );
        let step = finalizers.run(&api, &object).await.unwrap();
        assert_eq!(step, Finalized::Live { changed: false });
        assert!(
            log.lock().unwrap().is_empty(),
            "nothing is cleaned up while it lives"
        );

        api.delete("cleaned", &DeleteParams::default())
            .await
            .unwrap();
        let object = api.get("cleaned").await.unwrap();
        let error = finalizers.run(&api, &object).await.unwrap_err();
        let text = error.to_string();
        assert_eq!(
            text,
            "clean up after cleaned: clean-up of finalizer example.dev/first: disk busy"
        );
        assert!(matches!(error, finalizer::Error::CleanUp { failures, .. } if failures.len() == 1));
        let object = api.get("cleaned").await.unwrap();
        assert_eq!(
            object.metadata.finalizers.as_deref().unwrap(),
            ["example.dev/first"]
        );
        let step = finalizers.run(&api, &object).await.unwrap();
        assert_eq!(step, Finalized::Deleting { changed: true });
        assert_eq!(*log.lock().unwrap(), ["first", "second", "first"]);
        assert!(api.get_opt("cleaned").await.unwrap().is_none());
        let step = finalizers.run(&api, &object).await.unwrap();
        assert_eq!(
            step,
            Finalized::Deleting { changed: true },
            "gone is cleaned up"
        );
    }

    async fn c73_nothing_is_written_when_nothing_differs(&self) {
        let api = self.configs();
        let write = |present: Option<ConfigMap>, value: &'static str| {
            let api = api.clone();
            async move {
                create_or_update(
                    &api,
                    present.as_ref(),
                    || named("default", "wanted"),
                    |object| {
                        object
                            .data
                            .get_or_insert_default()
                            .insert("a".into(), value.into());
                        Ok::<_, BoxError>(())
                    },
                )
                .await
            }
        };
        let (created, written) = write(None, "1").await.unwrap();
        assert_eq!(written, Written::Created);
        let (same, written) = write(Some(created.clone()), "1").await.unwrap();
        assert_eq!((written, &same), (Written::Unchanged, &created));
        let (updated, written) = write(Some(created.clone()), "2").await.unwrap();
        assert_eq!(
            (written, data(&updated)),
            (Written::Updated, json!({"a": "2"}))
        );
        let stale = write(Some(created), "3").await.unwrap_err();
        assert!(stale.is_conflict(), "{stale}");
        let exists = write(None, "3").await.unwrap_err();
        assert_eq!(exists.to_string(), "create wanted");
        assert!(
            !exists.is_conflict(),
            "a repetition with the same view would fail alike"
        );
        assert_eq!(api.get("wanted").await.unwrap(), updated);
    }

    async fn c73_status_and_the_rest_are_patched_apart(&self) {
        let api: Api<Namespace> = Api::all(self.0.clone());
        let write = |present: Option<Namespace>,
                     label: &'static str,
                     status: Option<&'static str>| {
            let api = api.clone();
            async move {
                create_or_patch(&api, present.as_ref(), || named("", "patched"), |object| {
                    object.metadata.labels.get_or_insert_default().insert("l".into(), label.into());
                    if let Some(message) = status {
                        let condition = json!([{"type": "Test", "status": "True", "message": message, "lastTransitionTime": "2030-01-01T00:00:00Z"}]);
                        object.status.get_or_insert_default().conditions = Some(serde_json::from_value(condition).unwrap());
                    }
                    Ok::<_, BoxError>(())
                })
                .await
                .unwrap()
            }
        };
        let version = |object: &Namespace| object.metadata.resource_version.clone();
        let (created, written) = write(None, "1", None).await;
        assert_eq!(written, Written::Created);
        let (same, written) = write(Some(created.clone()), "1", None).await;
        assert_eq!(
            (written, version(&same)),
            (Written::Unchanged, version(&created))
        );
        let (labelled, written) = write(Some(created.clone()), "2", None).await;
        assert_eq!(written, Written::Updated);
        let (both, written) = write(Some(labelled), "3", Some("one")).await;
        assert_eq!(written, Written::UpdatedStatus);
        assert_eq!(both.metadata.labels.as_ref().unwrap()["l"], "3");
        let (status, written) = write(Some(both), "3", Some("two")).await;
        assert_eq!(written, Written::UpdatedStatusOnly);
        let live = api.get("patched").await.unwrap();
        assert_eq!(version(&live), version(&status));
        let conditions = live.status.unwrap().conditions.unwrap();
        assert_eq!(
            (conditions.len(), conditions[0].message.as_deref()),
            (1, Some("two"))
        );
    }

    async fn c74_a_locked_patch_is_refused_after_another_write(&self) {
        let api = self.configs();
        let params = PatchParams::default();
        let read = self.created("locked").await;
        let mut wanted = read.clone();
        wanted
            .data
            .get_or_insert_default()
            .insert("b".into(), "2".into());
        let merge = patch::merge(&read, &wanted).unwrap().unwrap();
        let json_patch = patch::json(&read, &wanted).unwrap();
        let strategic = json!({"data": {"b": "2"}});
        let locked: [Patch<Value>; 3] = [
            Patch::Merge(patch::locked(merge.clone(), &read).unwrap()),
            Patch::Strategic(patch::locked(strategic.clone(), &read).unwrap()),
            Patch::Json(patch::json_locked(json_patch.clone(), &read).unwrap()),
        ];
        let free: [Patch<Value>; 3] = [
            Patch::Merge(merge),
            Patch::Strategic(strategic),
            Patch::Json(json_patch),
        ];
        let other = json!({"data": {"other": "writer"}});
        let after = api
            .patch("locked", &params, &Patch::Merge(other))
            .await
            .unwrap();
        for patch in &locked {
            let error = api.patch("locked", &params, patch).await.unwrap_err();
            assert!(error.is_conflict(), "{patch:?}: {error}");
        }
        assert_eq!(
            api.get("locked").await.unwrap(),
            after,
            "nothing was written"
        );
        for patch in &free {
            let undo = json!({"data": {"b": null}});
            api.patch("locked", &params, &Patch::Merge(undo))
                .await
                .unwrap();
            let patched = api.patch("locked", &params, patch).await.unwrap();
            assert_eq!(
                data(&patched),
                json!({"a": "1", "b": "2", "other": "writer"}),
                "{patch:?}"
            );
        }
        let read = api.get("locked").await.unwrap();
        let mut wanted = read.clone();
        wanted.data = None;
        let json_patch = patch::json(&read, &wanted).unwrap();
        let fresh = Patch::<Value>::Json(patch::json_locked(json_patch, &read).unwrap());
        let patched = api.patch("locked", &params, &fresh).await.unwrap();
        assert_eq!(patched.data, None, "the version is the one that was read");
    }

    async fn c74_an_applied_object_is_shared_by_its_managers(&self) {
        let api = self.configs();
        let ours = Apply::as_manager("ours").unwrap();
        let theirs = Apply::as_manager("theirs").unwrap();
        let object = |data: Value| {
            let metadata = json!({"name": "applied"});
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
        };
        let made: ConfigMap = ours
            .object(&api, &object(json!({"a": "1", "b": "1"})))
            .await
            .unwrap();
        assert_eq!(data(&made), json!({"a": "1", "b": "1"}));
        let again: ConfigMap = ours
            .object(&api, &object(json!({"a": "1", "b": "1"})))
            .await
            .unwrap();
        assert_eq!(
            again.metadata.resource_version, made.metadata.resource_version,
            "no write"
        );
        let shared: ConfigMap = theirs
            .object(&api, &object(json!({"c": "2"})))
            .await
            .unwrap();
        assert_eq!(data(&shared), json!({"a": "1", "b": "1", "c": "2"}));
        let less: ConfigMap = ours.object(&api, &object(json!({"a": "1"}))).await.unwrap();
        assert_eq!(
            data(&less),
            json!({"a": "1", "c": "2"}),
            "what is left out is removed"
        );

        let error = theirs
            .object::<ConfigMap>(&api, &object(json!({"a": "2", "c": "2"})))
            .await
            .unwrap_err();
        assert!(!error.is_conflict(), "a repetition would conflict alike");
        let apply::Error::Conflict {
            object: name,
            fields,
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!((name.as_str(), fields.len()), ("applied", 1));
        assert_eq!(fields[0].field, ".data.a");
        assert!(fields[0].holder.contains("ours"), "{error}");
        let forced: ConfigMap = theirs
            .clone()
            .force()
            .object(&api, &object(json!({"a": "2", "c": "2"})))
            .await
            .unwrap();
        assert_eq!(data(&forced), json!({"a": "2", "c": "2"}));

        let mut stale = object(json!({"c": "3"}));
        stale["metadata"]["resourceVersion"] = json!(made.metadata.resource_version);
        let error = theirs.object::<ConfigMap>(&api, &stale).await.unwrap_err();
        assert!(error.is_conflict(), "{error}");
    }

    async fn c74_a_status_is_applied_apart(&self) {
        let api: Api<Namespace> = Api::all(self.0.clone());
        let apply = Apply::as_manager("ours").unwrap();
        let namespace = |rest: Value| {
            let mut object =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "applied"}});
            object
                .as_object_mut()
                .unwrap()
                .extend(rest.as_object().unwrap().clone());
            object
        };
        let made: Namespace = apply.object(&api, &namespace(json!({}))).await.unwrap();
        assert!(made.metadata.uid.is_some());
        let condition =
            json!({"type": "Test", "status": "True", "lastTransitionTime": "2030-01-01T00:00:00Z"});
        let status = namespace(json!({"status": {"conditions": [condition.clone()]}}));
        let applied: Namespace = apply.status(&api, &status).await.unwrap();
        let conditions = applied.status.unwrap().conditions.unwrap();
        assert_eq!((conditions.len(), &*conditions[0].type_), (1, "Test"));
        let mut two = condition.clone();
        two["type"] = json!("Other");
        let whole = json!({"conditions": [condition, two]});
        let applied = apply.status_of(&api, &made, &whole).await.unwrap();
        assert_eq!(applied.status.unwrap().conditions.unwrap().len(), 2);
        let none: Namespace = apply
            .status(&api, &namespace(json!({"status": {}})))
            .await
            .unwrap();
        assert_eq!(
            none.status
                .and_then(|status| status.conditions)
                .unwrap_or_default()
                .len(),
            0
        );
    }
}

mod embedded {
    use devcluster::DevCluster;

    use super::Scenes;

    #[tokio::test]
    async fn c71_c73_c74_writes_take_effect_once_and_never_over_others() {
        let cluster = DevCluster::builder().start().await.unwrap();
        Box::pin(Scenes(cluster.client()).play()).await;
        cluster.shutdown().await;
    }
}

mod real {
    use super::Scenes;
    use crate::servers;

    #[tokio::test]
    async fn c71_c73_c74_writes_take_effect_once_and_never_over_others() {
        let Some((_cluster, client)) = servers::real().await else {
            return;
        };
        Box::pin(Scenes(client).play()).await;
    }
}
