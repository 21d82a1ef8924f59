//! Connections that informers hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use informer::Informer;
use informer::client::{self, ClientOptions};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube_client::Config;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::follower::*;
use crate::world::World;

/// Hands connections on to a server, and counts them.
struct Door {
    accepted: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl Door {
    /// A door to the server of `config`, which leads to the door afterwards.
    async fn before(config: &mut Config) -> Self {
        let host = config.cluster_url.host().unwrap().to_owned();
        let port = config.cluster_url.port_u16().unwrap();
        let listener = TcpListener::bind((&*host, 0)).await.unwrap();
        let own = listener.local_addr().unwrap();
        config.cluster_url = format!("https://{own}").parse().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&accepted);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                let mut server = TcpStream::connect((&*host, port)).await.unwrap();
                open.spawn(async move {
                    // However it ends, both sides see it.
                    copy_bidirectional(&mut client, &mut server).await.ok();
                });
            }
        });
        Self {
            accepted,
            _task: task,
        }
    }
}

pub(crate) async fn informers_by_http2_share_one_connection_and_by_http1_have_one_each(
    world: &World,
) {
    let api = world.api::<ConfigMap>();
    create(&api, "a", "first").await;
    for http2 in [true, false] {
        let mut config = world.config();
        let door = Door::before(&mut config).await;
        let options = ClientOptions {
            http2,
            ..ClientOptions::default()
        };
        let client = client::connect(config, options).unwrap();
        let options = quick::<ConfigMap>(world);
        let maps: Informer<ConfigMap> = Informer::new(client.clone(), options).unwrap();
        let view = View::default();
        maps.add_handler("view", view.handler()).unwrap();
        let secrets: Informer<Secret> = Informer::new(client, quick(world)).unwrap();
        let _running = (
            Running::start(maps.clone()),
            Running::start(secrets.clone()),
        );
        maps.synced().await;
        secrets.synced().await;
        set(&api, "a", &http2.to_string()).await;
        eventually(LIMIT, "the update", async || {
            let maps = maps.lister().list();
            let mut values = maps.iter().filter_map(|map| map.data.as_ref()?.get("k"));
            holds(values.any(|value| *value == http2.to_string()))
        })
        .await;
        assert_eq!(view.problems(), Vec::<String>::new());
        let accepted = door.accepted.load(Ordering::Relaxed);
        match http2 {
            true => assert_eq!(accepted, 1, "for two watches and what came before them"),
            false => assert!(accepted >= 2, "{accepted} for two watches"),
        }
    }
}
