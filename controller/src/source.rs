//! Sources: informers whose events put keys into a controller's queue.

use std::fmt::{self, Debug};
use std::sync::{Arc, Weak};

use informer::{Event, Handler, Informer, ObjectKey, Registration};
use kube_core::Resource;
use workqueue::AddOptions;

use crate::enqueue::{OwnerKind, mapped_keys, priority_of};
use crate::intake::Intake;
use crate::predicate::Predicate;

/// The rule from an event to keys.
type Keys<K> = Box<dyn Fn(&Event<K>) -> Vec<ObjectKey> + Send + Sync>;

/// An informer together with the rule that turns its events into keys.
///
/// Objects of the initial list and updates without a new `resourceVersion` enqueue at
/// [`LOW_PRIORITY`](crate::LOW_PRIORITY), so that news go first.
///
/// ```no_run
/// # use controller::{Controller, Informer, Reconciler};
/// # use k8s_openapi::api::core::v1::{ConfigMap, Pod};
/// # fn example(reconciler: impl Reconciler, configs: &Informer<ConfigMap>, pods: &Informer<Pod>)
/// # -> Result<(), controller::Error> {
/// use controller::Source;
/// use controller::predicate::resource_version_changed;
///
/// let controller = Controller::builder("config", reconciler)
///     .source(Source::object(configs).filter(resource_version_changed()))
///     .source(Source::controlled_by::<ConfigMap>(pods))
///     .build()?;
/// # Ok(()) }
/// ```
pub struct Source<K> {
    informer: Informer<K>,
    keys: Keys<K>,
    filter: Option<Box<dyn Predicate<K>>>,
}

impl<K> Debug for Source<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("filtered", &self.filter.is_some())
            .finish_non_exhaustive()
    }
}

impl<K: Resource + Send + Sync + 'static> Source<K> {
    /// Enqueues the key of the object itself, for an update once.
    pub fn object(informer: &Informer<K>) -> Self {
        Self::new(informer, |event| vec![event.key()])
    }

    /// Enqueues every owner of kind `O`, by group and kind whatever the version.
    ///
    /// An update looks at the owners before and after. An owner of cluster scope has no namespace,
    /// any other has the one of the object. A reference with a malformed `apiVersion` is skipped.
    pub fn owned_by<O>(informer: &Informer<K>) -> Self
    where
        O: Resource<DynamicType = ()>,
        O::Scope: 'static,
    {
        Self::owned(informer, OwnerKind::of::<O>(), false)
    }

    /// As [`owned_by`](Self::owned_by), but only the owner that is the object's controller.
    pub fn controlled_by<O>(informer: &Informer<K>) -> Self
    where
        O: Resource<DynamicType = ()>,
        O::Scope: 'static,
    {
        Self::owned(informer, OwnerKind::of::<O>(), true)
    }

    /// Enqueues the keys that `map` gives, for an update those of the old and the new object;
    /// duplicates collapse.
    ///
    /// `map` runs on the informer's delivery task and must not block.
    pub fn mapped<F>(informer: &Informer<K>, map: F) -> Self
    where
        F: Fn(&K) -> Vec<ObjectKey> + Send + Sync + 'static,
    {
        Self::new(informer, move |event| mapped_keys(event, &map))
    }

    /// Lets only the events pass that `predicate` passes, and that earlier filters pass.
    #[must_use]
    pub fn filter(mut self, predicate: impl Predicate<K>) -> Self {
        self.filter = Some(match self.filter.take() {
            None => Box::new(predicate),
            Some(earlier) => {
                Box::new(move |event: &Event<K>| earlier.passes(event) && predicate.passes(event))
            }
        });
        self
    }

    fn owned(informer: &Informer<K>, owner: OwnerKind, only_controller: bool) -> Self {
        Self::mapped(informer, move |object| {
            owner.owners_of(object, only_controller)
        })
    }

    fn new<F>(informer: &Informer<K>, keys: F) -> Self
    where
        F: Fn(&Event<K>) -> Vec<ObjectKey> + Send + Sync + 'static,
    {
        Self {
            informer: informer.clone(),
            keys: Box::new(keys),
            filter: None,
        }
    }
}

/// A [`Source`] without its type parameter.
pub(crate) trait StartSource: Send {
    /// Kind and scope of the objects, for messages.
    fn name(&self) -> String;

    /// Registers with the informer; from here on events reach the queue of `intake`.
    fn start(self: Box<Self>, intake: &Arc<Intake>) -> Result<Registration, informer::Error>;
}

impl<K: Resource + Send + Sync + 'static> StartSource for Source<K> {
    fn name(&self) -> String {
        self.informer.name().to_owned()
    }

    fn start(self: Box<Self>, intake: &Arc<Intake>) -> Result<Registration, informer::Error> {
        let handler = Enqueue {
            keys: self.keys,
            filter: self.filter,
            intake: Arc::downgrade(intake),
        };
        self.informer.add_handler(&*intake.name.text, handler)
    }
}

/// The handler that a started source registers.
struct Enqueue<K> {
    keys: Keys<K>,
    filter: Option<Box<dyn Predicate<K>>>,
    intake: Weak<Intake>,
}

impl<K: Resource + Send + Sync + 'static> Handler<K> for Enqueue<K> {
    fn on_event(&self, event: &Event<K>) {
        if self
            .filter
            .as_ref()
            .is_some_and(|filter| !filter.passes(event))
        {
            return;
        }
        let Some(intake) = self.intake.upgrade() else {
            return;
        };
        let priority = priority_of(event);
        for key in (self.keys)(event) {
            intake.queue.add_with(
                key,
                AddOptions {
                    priority,
                    ..AddOptions::default()
                },
            );
        }
    }
}
