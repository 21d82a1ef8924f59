//! What the control plane does by itself: it establishes definitions, empties namespaces, forgets old events.

mod definitions;
mod events;
mod namespaces;

pub(crate) use definitions::establish_definitions;
pub(crate) use events::expire_events;
pub(crate) use namespaces::{NamespaceOptions, tend_namespaces};

use futures::future::select_all;

use crate::store::Watcher;

/// Waits until any of the watchers has something to read, and reads it. A watcher that fell behind counts as
/// ready: whoever waits looks at the present state anyhow. Without watchers it waits for ever.
async fn any_change(watchers: &mut [Watcher]) {
    if watchers.is_empty() {
        return std::future::pending().await;
    }
    let ready = watchers.iter_mut().map(|watcher| Box::pin(watcher.ready()));
    select_all(ready).await;
}
