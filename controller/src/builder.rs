//! Putting a controller together.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use informer::{Informer, ObjectKey, Synced};
use kube_core::Resource;
use workqueue::limiter::{ItemExponential, Jitter, RateLimiter};
use workqueue::order::Priority;
use workqueue::{OnAdd, PriorityQueue, QueueOptions};

use crate::brake::Brake;
use crate::consistency::OwnWrites;
use crate::error::Error;
use crate::feed::Feed;
use crate::intake::Intake;
use crate::journal::Journal;
use crate::metrics::Recorder;
use crate::reconcile::Reconciler;
use crate::sharding::Sharding;
use crate::source::{Source, StartSource, Track};
use crate::worker::Workshop;
use crate::{Controller, ControllerOptions, Queue};

/// A cache that is read.
struct Read {
    track: Track,
    synced: Box<dyn Synced>,
}

/// State of a [`ControllerBuilder`] whose main kind is not known yet.
#[derive(Debug)]
pub struct NoObject(());

/// Collects the parts of a [`Controller`]; `P` is its main kind.
///
/// Nothing happens before [`Controller::run`]: an informer learns of the controller only there.
#[must_use = "a builder does nothing until it is built"]
pub struct ControllerBuilder<R, P = NoObject> {
    name: String,
    reconciler: R,
    sources: Vec<Box<dyn StartSource>>,
    feeds: Vec<Feed>,
    sharding: Option<Sharding>,
    /// Caches that are read and give no events.
    read: Vec<Read>,
    options: ControllerOptions,
    object: PhantomData<fn() -> P>,
}

impl<R, P> fmt::Debug for ControllerBuilder<R, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sources: Vec<_> = self.sources.iter().map(|source| source.name()).collect();
        let feeds: Vec<_> = self.feeds.iter().map(|feed| &feed.name).collect();
        f.debug_struct("ControllerBuilder")
            .field("name", &self.name)
            .field("sources", &sources)
            .field("feeds", &feeds)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<R: Reconciler> ControllerBuilder<R> {
    pub(crate) fn new(name: String, reconciler: R) -> Self {
        let options = ControllerOptions::default();
        Self {
            name,
            reconciler,
            sources: Vec::new(),
            feeds: Vec::new(),
            sharding: None,
            read: Vec::new(),
            options,
            object: PhantomData,
        }
    }

    /// Reconciles the objects of `informer`: the main kind of the controller.
    pub fn for_object<K>(self, informer: &Informer<K>) -> ControllerBuilder<R, K>
    where
        K: Resource + Send + Sync + 'static,
    {
        let built = self.source(Source::object(informer));
        ControllerBuilder {
            name: built.name,
            reconciler: built.reconciler,
            sources: built.sources,
            feeds: built.feeds,
            sharding: built.sharding,
            read: built.read,
            options: built.options,
            object: PhantomData,
        }
    }
}

impl<R: Reconciler, P> ControllerBuilder<R, P>
where
    P: Resource<DynamicType = ()>,
    P::Scope: 'static,
{
    /// Reconciles an object of the main kind when something it owns changes.
    ///
    /// All owners count; for the controlling one alone use [`Source::controlled_by`].
    pub fn owns<K>(self, informer: &Informer<K>) -> Self
    where
        K: Resource + Send + Sync + 'static,
    {
        self.source(Source::owned_by::<P>(informer))
    }
}

impl<R: Reconciler, P> ControllerBuilder<R, P> {
    /// Reconciles the keys that `map` gives for each object that changes; see [`Source::mapped`].
    pub fn watches<K, F>(self, informer: &Informer<K>, map: F) -> Self
    where
        K: Resource + Send + Sync + 'static,
        F: Fn(&K) -> Vec<ObjectKey> + Send + Sync + 'static,
    {
        self.source(Source::mapped(informer, map))
    }

    /// Adds a source of any form.
    pub fn source<K>(mut self, source: Source<K>) -> Self
    where
        K: Resource + Send + Sync + 'static,
    {
        self.sources.push(Box::new(source));
        self
    }

    /// Says that the reconciler reads the cache of `informer`, whose events it does not get: no key runs
    /// before that cache too has its initial list, and a key runs again only when it too shows what the
    /// last run wrote (see [`consistency`](crate::consistency)). Sources count as read without it.
    pub fn reads<K>(mut self, informer: &Informer<K>) -> Self
    where
        K: Resource + Send + Sync + 'static,
    {
        let cache = informer.clone();
        self.read.push(Read {
            track: Box::new(|own_writes| own_writes.track(cache)),
            synced: Box::new(informer.clone()),
        });
        self
    }

    /// Adds triggers that come from elsewhere than an informer.
    pub fn feed(mut self, feed: Feed) -> Self {
        self.feeds.push(feed);
        self
    }

    /// Shares the keys with other processes: this one reconciles those that it owns. Whenever it
    /// may run keys that it gains, all objects of the main kind are looked at again.
    pub fn sharded(mut self, sharding: Sharding) -> Self {
        self.sharding = Some(sharding);
        self
    }

    /// Replaces the options, which are the default ones until then.
    pub fn options(mut self, options: ControllerOptions) -> Self {
        self.options = options;
        self
    }

    /// The controller, ready to run.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::NameTaken`], [`Error::InvalidOption`], [`Error::NoSource`],
    /// [`Error::Queue`].
    pub fn build(self) -> Result<Controller, Error> {
        let options = self.options.validated()?;
        let name = Name::reserve(self.name, options.unique_name)?;
        if self.sources.is_empty() && self.feeds.is_empty() {
            return Err(Error::NoSource { name: name.boxed() });
        }
        let own_writes = options.read_your_writes.map(OwnWrites::new).map(Arc::new);
        let (tracks, read): (Vec<_>, Vec<_>) = self
            .read
            .into_iter()
            .map(|read| (read.track, read.synced))
            .unzip();
        if let Some(own_writes) = &own_writes {
            let sources = self.sources.iter().map(|source| source.track());
            sources.chain(tracks).for_each(|track| track(own_writes));
        }
        let limiter = limiter(&options);
        let queue = queue(&name, Arc::clone(&limiter))?;
        let workshop = Workshop {
            controller: Arc::clone(&name.text),
            reconciler: Box::new(self.reconciler),
            queue: queue.clone(),
            limiter,
            recorder: Arc::new(Recorder::new(Arc::clone(&name.text), options.workers)),
            own_writes,
            brake: Brake::default(),
            journal: Journal::new(options.workers, options.history_keys),
            gate: self
                .sharding
                .as_ref()
                .map(|sharding| Arc::clone(sharding.gate())),
            options,
        };
        let intake = Intake::new(name, queue);
        for feed in self.feeds {
            intake.feed(feed)?;
        }
        Ok(Controller::new(
            intake,
            self.sources,
            read,
            workshop,
            self.sharding,
        ))
    }
}

fn limiter(options: &ControllerOptions) -> Arc<dyn RateLimiter<ObjectKey>> {
    let exponential = ItemExponential::new(options.backoff_base, options.backoff_max);
    if options.backoff_jitter > 0.0 {
        Arc::new(Jitter::new(
            exponential,
            options.backoff_jitter,
            rand::random(),
        ))
    } else {
        Arc::new(exponential)
    }
}

fn queue(name: &Name, limiter: Arc<dyn RateLimiter<ObjectKey>>) -> Result<Queue, Error> {
    // A second controller of one name has no queue metrics: they would mix with the first one's.
    let metrics_name = if name.reserved {
        name.text.to_string()
    } else {
        String::new()
    };
    let options = QueueOptions {
        name: metrics_name,
        labels: vec![("controller".to_owned(), name.text.to_string())],
        limiter,
        // One cause, one run: the wait that a result asked for ends with an event.
        on_add: Some(OnAdd::Supersede),
        ..QueueOptions::default()
    };
    PriorityQueue::with_order(options, || Priority::with_ageing(Priority::DEFAULT_AGEING)).map_err(
        |source| Error::Queue {
            name: name.boxed(),
            source: Box::new(source),
        },
    )
}

/// Names of the controllers of this process.
static NAMES: Mutex<BTreeSet<Arc<str>>> = Mutex::new(BTreeSet::new());

/// A controller's name; free again when dropped.
#[derive(Debug)]
pub(crate) struct Name {
    pub(crate) text: Arc<str>,
    reserved: bool,
}

impl Name {
    fn reserve(text: String, unique: bool) -> Result<Self, Error> {
        if !is_label_value(&text) {
            return Err(Error::InvalidName { name: text.into() });
        }
        let text: Arc<str> = text.into();
        // The set is whole after each call, so a panic elsewhere leaves it usable.
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        let reserved = names.insert(Arc::clone(&text));
        if unique && !reserved {
            return Err(Error::NameTaken {
                name: (*text).into(),
            });
        }
        Ok(Self { text, reserved })
    }
}

impl Name {
    /// The name as errors carry it.
    pub(crate) fn boxed(&self) -> Box<str> {
        (*self.text).into()
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if self.reserved {
            NAMES
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(&self.text);
        }
    }
}

/// The rule of Kubernetes for label values, except that there must be one.
fn is_label_value(name: &str) -> bool {
    let bytes = name.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
        && [bytes.first(), bytes.last()]
            .into_iter()
            .flatten()
            .all(u8::is_ascii_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_label_value() {
        let long = "a".repeat(64);
        for (name, valid) in [
            ("proxy", true),
            ("Proxy.v1_a-b", true),
            ("7", true),
            ("", false),
            ("-a", false),
            ("a.", false),
            ("a b", false),
            ("ä", false),
            (&long[..63], true),
            (&long, false),
        ] {
            assert_eq!(
                Name::reserve(name.to_owned(), false).is_ok(),
                valid,
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_name_is_taken_until_its_controller_is_gone() {
        let reserve = |unique| Name::reserve("once".to_owned(), unique);
        let first = reserve(true).unwrap();
        assert!(matches!(reserve(true), Err(Error::NameTaken { name }) if &*name == "once"));
        drop(reserve(false).unwrap());
        assert!(
            reserve(true).is_err(),
            "the second one does not free the first one's name"
        );
        drop(first);
        assert!(reserve(true).is_ok());
    }
}
