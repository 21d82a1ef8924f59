//! Which informers there are.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use super::{InformerSnapshot, render};
use crate::Error;

/// Something that metrics can be read from.
pub(crate) trait Source: Send + Sync {
    fn snapshot(&self, of: Identity) -> InformerSnapshot;
}

/// What tells the series of one informer from those of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) resource: String,
    /// Version of the resource's form; empty where that is not known.
    pub(crate) version: String,
}

/// A set of named informers whose metrics are read together.
///
/// A handle: clones are the same set.
///
/// ```
/// use informer::metrics::Registry;
///
/// assert_eq!(Registry::new().render(), "", "nothing without informers");
/// ```
#[derive(Clone, Default)]
pub struct Registry {
    informers: Arc<Mutex<BTreeMap<Identity, Weak<dyn Source>>>>,
}

impl Registry {
    /// A set without informers.
    pub fn new() -> Self {
        Self::default()
    }

    /// The set that informers join unless their options say otherwise.
    pub fn global() -> Self {
        static GLOBAL: OnceLock<Registry> = OnceLock::new();
        GLOBAL.get_or_init(Self::new).clone()
    }

    /// The metrics of all informers now, in the order of names.
    pub fn snapshots(&self) -> Vec<InformerSnapshot> {
        // Read without the lock: the last handle of an informer may be dropped here.
        let informers: Vec<_> = self
            .informers
            .lock()
            .iter()
            .filter_map(|(identity, informer)| Some((identity.clone(), informer.upgrade()?)))
            .collect();
        informers
            .into_iter()
            .map(|(identity, informer)| informer.snapshot(identity))
            .collect()
    }

    /// The metrics of all informers now, in the Prometheus text format; empty without informers.
    pub fn render(&self) -> String {
        render::render(&self.snapshots())
    }

    pub(crate) fn register(
        &self,
        name: &str,
        resource: &str,
        version: &str,
        informer: Weak<dyn Source>,
    ) -> Result<Registration, Error> {
        let identity = Identity {
            name: name.to_owned(),
            resource: resource.to_owned(),
            version: version.to_owned(),
        };
        let mut informers = self.informers.lock();
        if informers
            .get(&identity)
            .is_some_and(|informer| informer.strong_count() > 0)
        {
            return Err(Error::NameTaken {
                name: identity.name,
                resource: identity.resource,
            });
        }
        informers.insert(identity.clone(), Weak::clone(&informer));
        Ok(Registration {
            registry: self.clone(),
            identity,
            informer,
        })
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.informers.lock().keys()).finish()
    }
}

/// An informer's place in a registry.
#[derive(Debug)]
pub(crate) struct Registration {
    registry: Registry,
    identity: Identity,
    informer: Weak<dyn Source>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut informers = self.registry.informers.lock();
        // A new informer may have taken the name between the end of ours and this moment.
        if informers
            .get(&self.identity)
            .is_some_and(|present| present.ptr_eq(&self.informer))
        {
            informers.remove(&self.identity);
        }
    }
}
