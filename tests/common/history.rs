//! What a Proxy went through: every status that it had, and every Event that was told of it.

use std::sync::{Arc, Mutex};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::events::v1::Event;
use kube_client::core::WatchEvent;
use kube_client::core::params::{ListParams, WatchParams};
use kube_client::{Api, ResourceExt};
use proxy_operator::api::Proxy;
use tokio::task::JoinSet;

use super::world::World;

/// Follows one Proxy from the moment it starts; one line for each status that differs from the one before.
pub(crate) struct History {
    lines: Arc<Mutex<Vec<String>>>,
    /// Dropping it ends the watch.
    _watch: JoinSet<()>,
}

impl History {
    /// Begins before the Proxy is there.
    pub(crate) async fn start(world: &World, name: &str) -> Self {
        let proxies: Api<Proxy> = world.api();
        let list = proxies.list(&ListParams::default()).await.expect("a list");
        let from = list.metadata.resource_version.unwrap_or_default();
        let params = WatchParams::default().fields(&format!("metadata.name={name}"));
        let mut changes = proxies
            .watch(&params, &from)
            .await
            .expect("a watch")
            .boxed();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let mut watch = JoinSet::new();
        watch.spawn({
            let lines = Arc::clone(&lines);
            async move {
                while let Ok(Some(change)) = changes.try_next().await {
                    if let WatchEvent::Added(proxy) | WatchEvent::Modified(proxy) = change {
                        let line = describe(&proxy);
                        let mut lines = lines.lock().expect("not poisoned");
                        if !line.is_empty() && lines.last() != Some(&line) {
                            lines.push(line);
                        }
                    }
                }
            }
        });
        Self {
            lines,
            _watch: watch,
        }
    }

    /// The lines so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("not poisoned").clone()
    }
}

/// Phase and conditions, without messages and times; empty without a status.
fn describe(proxy: &Proxy) -> String {
    let Some(status) = &proxy.status else {
        return String::new();
    };
    let mut parts: Vec<_> = status
        .conditions
        .iter()
        .map(|one| format!("{}={}/{}", one.type_, one.status, one.reason))
        .collect();
    parts.sort();
    let phase = status.phase.map_or("-", |phase| phase.as_str());
    format!("{phase}: {}", parts.join(" "))
}

/// The Events about a Proxy in the order of their times, as `type reason: note`.
pub(crate) async fn told(world: &World, proxy: &Proxy) -> Vec<String> {
    let events: Api<Event> = world.api();
    let uid = proxy.uid().expect("a stored Proxy has a UID");
    let mut all = events
        .list(&ListParams::default())
        .await
        .expect("Events can be listed")
        .items;
    all.retain(|event| {
        let about = event.regarding.as_ref();
        about.and_then(|about| about.uid.as_deref()) == Some(uid.as_str())
    });
    all.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
    all.iter()
        .map(|event| {
            let text = |part: &Option<String>| part.clone().unwrap_or_default();
            assert_eq!(
                event.reporting_controller.as_deref(),
                Some("crawl.proxyoperator.dev/proxy-operator")
            );
            let (kind, reason) = (text(&event.type_), text(&event.reason));
            format!("{kind} {reason}: {}", text(&event.note))
        })
        .collect()
}
