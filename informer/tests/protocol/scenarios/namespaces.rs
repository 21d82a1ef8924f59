//! Sets of namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;

use informer::{Event, HandlerOptions, InformerOptions, Namespaces, ObjectKey, Synced as _};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube_client::api::{Api, PostParams};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::follower::*;
use crate::world::{Agent, World};

/// The objects named `map` that a handler knows, by namespace, and what did not follow from before.
#[derive(Default)]
struct Known {
    values: BTreeMap<String, String>,
    problems: Vec<String>,
}

fn value(object: &ConfigMap) -> String {
    let data = object.data.as_ref().and_then(|data| data.get("k"));
    data.cloned().unwrap_or_default()
}

impl Known {
    fn take(&mut self, event: &Event<ConfigMap>) {
        let key = event.key();
        if key.name() != "map" {
            return;
        }
        let namespace = key.namespace().unwrap_or_default().to_owned();
        let fits = match event {
            Event::Added { object, .. } => {
                let before = self.values.insert(namespace, value(object));
                before.is_none()
            }
            Event::Updated { old, new } => {
                let before = self.values.insert(namespace, value(new));
                before == Some(value(old))
            }
            Event::Deleted { .. } => self.values.remove(&namespace).is_some(),
        };
        if !fits {
            self.problems.push(key.to_string());
        }
    }
}

pub(crate) async fn i103_all_other_namespaces_are_followed_beside_the_named_one(world: &World) {
    let named = world.namespace.clone();
    let other = format!("{named}-other");
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(other.clone());
    let namespaces: Api<Namespace> = Api::all(world.admin());
    let params = PostParams::default();
    namespaces.create(&params, &namespace).await.unwrap();
    let in_named = world.api::<ConfigMap>();
    let in_other: Api<ConfigMap> = Api::namespaced(world.admin(), &other);
    create(&in_named, "map", "first").await;
    create(&in_other, "map", "first").await;

    let backoff = quick::<ConfigMap>(world).backoff;
    let maps =
        Namespaces::<ConfigMap>::over(world.client(&Agent::new()), move |_| InformerOptions {
            backoff,
            ..InformerOptions::default()
        });
    let known: Arc<Mutex<Known>> = Arc::default();
    let told = Arc::clone(&known);
    let note = move |event: &Event<ConfigMap>| told.lock().take(event);
    maps.add_handler("note", note, HandlerOptions::default())
        .unwrap();
    assert!(maps.add(&named).unwrap() && maps.add_others().unwrap());
    let stop = CancellationToken::new();
    let mut task = JoinSet::new();
    let (running, token) = (maps.clone(), stop.clone());
    task.spawn(async move { running.run(token).await });
    maps.synced().await;

    let lister = maps.lister();
    let ours = |namespace: &str| {
        let all = lister.list().into_iter();
        let of = |map: &Arc<ConfigMap>| map.metadata.namespace.as_deref() == Some(namespace);
        let named = |map: &Arc<ConfigMap>| map.metadata.name.as_deref() == Some("map");
        all.filter(of).filter(named).count()
    };
    let shows = async |want: [Option<&str>; 2]| {
        eventually(LIMIT, "both namespaces", async || {
            let values = known.lock().values.clone();
            let spaces = [&named, &other];
            let told = spaces.map(|space| values.get(space).cloned());
            let key = |space: &String| ObjectKey::namespaced(space, "map");
            let read = spaces.map(|space| lister.get(&key(space)).map(|map| value(&map)));
            let want = want.map(|value| value.map(str::to_owned));
            match told == want && read == want {
                true => Ok(()),
                false => Err(format!("told {told:?}, read {read:?}")),
            }
        })
        .await;
    };
    shows([Some("first"), Some("first")]).await;
    assert_eq!(
        [ours(&named), ours(&other)],
        [1, 1],
        "each in one cache alone"
    );
    set(&in_named, "map", "second").await;
    set(&in_other, "map", "third").await;
    shows([Some("second"), Some("third")]).await;
    delete(&in_named, "map").await;
    shows([None, Some("third")]).await;
    delete(&in_other, "map").await;
    create(&in_named, "map", "fourth").await;
    shows([Some("fourth"), None]).await;
    assert_eq!(known.lock().problems, Vec::<String>::new());
    stop.cancel();
    task.join_next().await.unwrap().unwrap().unwrap();
}
