//! Sources: informers whose events put keys into a controller's queue.

use std::fmt::{self, Debug};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use informer::{Delivery, Event, Handler, HandlerOptions, Informer, ObjectKey, Registration};
use kube_core::Resource;
use workqueue::AddOptions;

use crate::consistency::OwnWrites;
use crate::enqueue::{OwnerKind, each_once, mapped_keys, priority_of};
use crate::intake::Intake;
use crate::predicate::Predicate;

/// The rule from an object to keys.
enum Rule<K> {
    Itself,
    Owners {
        kind: OwnerKind,
        only_controller: bool,
    },
    Mapped(Map<K>),
    Awaited(AsyncMap<K>),
}

type Map<K> = Box<dyn Fn(&K) -> Vec<ObjectKey> + Send + Sync>;

type AsyncMap<K> = Arc<dyn Fn(Arc<K>) -> BoxFuture<'static, Vec<ObjectKey>> + Send + Sync>;

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
    rule: Rule<K>,
    filter: Option<Box<dyn Predicate<K>>>,
    window: Duration,
}

impl<K> Debug for Source<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("informer", &self.informer)
            .field("filtered", &self.filter.is_some())
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

impl<K: Resource + Send + Sync + 'static> Source<K> {
    /// Enqueues the key of the object itself, for an update once.
    pub fn object(informer: &Informer<K>) -> Self {
        Self::new(informer, Rule::Itself)
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
        Self::new(informer, Rule::Mapped(Box::new(map)))
    }

    /// As [`mapped`](Self::mapped), with a function that awaits, such as a look into an API.
    ///
    /// Events are mapped one after the other, an update's new object before its old one: while one
    /// is awaited, later ones of this source wait (and are merged by object, if they are many).
    /// A stop drops the future at its next await.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use controller::{Informer, ObjectKey, Source};
    /// # use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    /// # use kube_client::Api;
    /// # fn example(secrets: &Informer<Secret>, api: Api<ConfigMap>) -> Source<Secret> {
    /// // The users of a Secret stand in a ConfigMap of its name.
    /// Source::mapped_async(secrets, move |secret: Arc<Secret>| {
    ///     let api = api.clone();
    ///     async move {
    ///         let name = secret.metadata.name.as_deref().unwrap_or_default();
    ///         let users = api.get_opt(name).await.ok().flatten();
    ///         let users = users.and_then(|users| users.data).unwrap_or_default();
    ///         users.into_keys().map(ObjectKey::cluster).collect()
    ///     }
    /// })
    /// # }
    /// ```
    pub fn mapped_async<F, Fut>(informer: &Informer<K>, map: F) -> Self
    where
        F: Fn(Arc<K>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Vec<ObjectKey>> + Send + 'static,
    {
        let map: AsyncMap<K> = Arc::new(move |object| map(object).boxed());
        Self::new(informer, Rule::Awaited(map))
    }

    /// Lets only the events pass that `predicate` passes, and that earlier filters pass.
    #[must_use]
    pub fn filter(mut self, predicate: impl Predicate<K>) -> Self {
        self.filter = Some(match self.filter.take() {
            None => Box::new(predicate),
            Some(earlier) => Box::new(Both(earlier, predicate)),
        });
        self
    }

    /// Holds each key for `window` after its first trigger, so that the further ones until then
    /// lead to the same run. Zero, the default, holds nothing.
    ///
    /// Later triggers don't prolong the wait. A trigger of another source, without a window or with
    /// a shorter one, makes the key run earlier, and that run stands for this one too.
    #[must_use]
    pub fn batched(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    fn owned(informer: &Informer<K>, kind: OwnerKind, only_controller: bool) -> Self {
        let rule = Rule::Owners {
            kind,
            only_controller,
        };
        Self::new(informer, rule)
    }

    fn new(informer: &Informer<K>, rule: Rule<K>) -> Self {
        Self {
            informer: informer.clone(),
            rule,
            filter: None,
            window: Duration::ZERO,
        }
    }
}

/// A filter behind another; brief if both are.
struct Both<K, P>(Box<dyn Predicate<K>>, P);

impl<K: 'static, P: Predicate<K>> Predicate<K> for Both<K, P> {
    fn passes(&self, event: &Event<K>) -> bool {
        self.0.passes(event) && self.1.passes(event)
    }

    fn is_brief(&self) -> bool {
        self.0.is_brief() && self.1.is_brief()
    }
}

/// Reads all keys that a source knows of.
pub(crate) type AllKeys = Box<dyn Fn() -> Vec<ObjectKey> + Send + Sync>;

/// Lets own writes be compared with a cache.
pub(crate) type Track = Box<dyn FnOnce(&OwnWrites) + Send>;

/// A [`Source`] without its type parameter.
pub(crate) trait StartSource: Send {
    /// Kind and scope of the objects, for messages.
    fn name(&self) -> String;

    /// Reads the keys of all objects in the cache, where each stands for itself.
    fn all_keys(&self) -> Option<AllKeys>;

    /// Lets own writes be compared with the informer's cache.
    fn track(&self) -> Track;

    /// Registers with the informer; from here on events reach the queue of `intake`.
    fn start(self: Box<Self>, intake: &Arc<Intake>) -> Result<Registration, informer::Error>;
}

impl<K: Resource + Send + Sync + 'static> StartSource for Source<K> {
    fn name(&self) -> String {
        self.informer.name().to_owned()
    }

    fn all_keys(&self) -> Option<AllKeys> {
        let Rule::Itself = self.rule else { return None };
        let objects = self.informer.lister();
        Some(Box::new(move || {
            objects.snapshot().keys().cloned().collect()
        }))
    }

    fn track(&self) -> Track {
        let cache = self.informer.clone();
        match self.rule {
            Rule::Itself => Box::new(|own_writes| own_writes.track_owners(cache)),
            _ => Box::new(|own_writes| own_writes.track(cache)),
        }
    }

    fn start(self: Box<Self>, intake: &Arc<Intake>) -> Result<Registration, informer::Error> {
        let name = &*intake.name.text;
        let door = Door {
            filter: self.filter,
            intake: Arc::downgrade(intake),
            after: (!self.window.is_zero()).then_some(self.window),
        };
        let brief = door.filter.as_ref().is_none_or(|filter| filter.is_brief());
        // A rule and a filter of this crate's take no longer than the add to the queue itself.
        let in_place = HandlerOptions {
            delivery: if brief {
                Delivery::InPlace
            } else {
                Delivery::Task
            },
            ..HandlerOptions::default()
        };
        match self.rule {
            Rule::Itself => self
                .informer
                .add_handler_with(name, ObjectItself(door), in_place),
            Rule::Owners {
                kind,
                only_controller,
            } => {
                let map = move |object: &K| kind.owners_of(object, only_controller);
                self.informer
                    .add_handler_with(name, Mapped { door, map }, in_place)
            }
            Rule::Mapped(map) => self.informer.add_handler(name, Mapped { door, map }),
            Rule::Awaited(map) => {
                let awaited = Arc::new(Awaited { door, map });
                let handler = move |event| Arc::clone(&awaited).on_event(event);
                let options = HandlerOptions::default();
                self.informer.add_async_handler(name, handler, options)
            }
        }
    }
}

/// What an event of a started source has to pass, and how its keys are added.
struct Door<K> {
    filter: Option<Box<dyn Predicate<K>>>,
    intake: Weak<Intake>,
    after: Option<Duration>,
}

impl<K: Resource + 'static> Door<K> {
    fn passes(&self, event: &Event<K>) -> bool {
        let filter = self.filter.as_ref();
        filter.is_none_or(|filter| filter.passes(event))
    }

    fn add(&self, keys: impl IntoIterator<Item = ObjectKey>, priority: Option<i32>) {
        let Some(intake) = self.intake.upgrade() else {
            return;
        };
        for key in keys {
            let options = AddOptions {
                after: self.after,
                priority,
                ..AddOptions::default()
            };
            intake.queue.add_with(key, options);
        }
    }
}

struct ObjectItself<K>(Door<K>);

impl<K: Resource + Send + Sync + 'static> Handler<K> for ObjectItself<K> {
    fn on_event(&self, event: &Event<K>) {
        if self.0.passes(event) {
            self.0.add([event.key()], priority_of(event));
        }
    }
}

struct Mapped<K, F> {
    door: Door<K>,
    map: F,
}

impl<K, F> Handler<K> for Mapped<K, F>
where
    K: Resource + Send + Sync + 'static,
    F: Fn(&K) -> Vec<ObjectKey> + Send + Sync + 'static,
{
    fn on_event(&self, event: &Event<K>) {
        if self.door.passes(event) {
            let keys = mapped_keys(event, &self.map);
            self.door.add(keys, priority_of(event));
        }
    }
}

struct Awaited<K> {
    door: Door<K>,
    map: AsyncMap<K>,
}

impl<K: Resource + Send + Sync + 'static> Awaited<K> {
    async fn on_event(self: Arc<Self>, event: Event<K>) {
        if !self.door.passes(&event) {
            return;
        }
        let mut keys = (self.map)(Arc::clone(event.object())).await;
        if let Event::Updated { old, .. } = &event {
            keys.extend((self.map)(Arc::clone(old)).await);
        }
        self.door.add(each_once(keys), priority_of(&event));
    }
}
