//! The shared informer: one reflector and store, any number of handlers.

mod core;
mod crash;
mod keyed;
mod progress;
mod queue;
mod subscriber;

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube_core::Resource;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use self::subscriber::Callback;
use crate::lister::Lister;
use crate::reflector::{
    self, ErrorHandler, KindMissing, OnMalformed, OnMissingKind, Reflector, ReflectorBackoff,
    Transform,
};
use crate::source::{Cut, KubeSource, ListWatch, Malformed, ReadOptions, Scope};
use crate::store::Version;
use crate::synced::Synced;
use crate::{AsyncHandler, BoxError, Cause, Error, Handler, metrics};

pub(crate) use self::core::Core;
pub use self::keyed::{Deltas, KeyedDelta, KeyedQueue, QueueClosed};
pub(crate) use self::progress::Progress;
pub use self::progress::{Stats, Status};
pub use self::queue::Buffer;
pub use self::subscriber::{Delivery, HandlerOptions, OnPanic, OnStop, Registration};

/// Longest value for times that grow at random.
const MAX_SPAN: Duration = Duration::from_secs(24 * 3600);
/// Two bookmarks of a server that is late, with some time to spare.
const MAX_SILENCE: Duration = Duration::from_secs(180);
/// Shortest value for the least watch timeout.
const MIN_WATCH_TIMEOUT: Duration = Duration::from_secs(300);

/// How an informer lists, watches and hands out.
#[derive(Clone)]
pub struct InformerOptions<K> {
    /// Name under which metrics are kept until the run has ended, one for each informer of a kind
    /// and its version in `registry`; `None` for no metrics, which costs nothing.
    pub name: Option<String>,
    /// Where metrics are read; the process-wide one unless said otherwise.
    pub registry: metrics::Registry,
    /// Namespace to look at; `None` for all, and for kinds of cluster scope.
    pub namespace: Option<String>,
    /// Label selector, as `kubectl -l` takes it.
    pub label_selector: Option<String>,
    /// Field selector, as `kubectl --field-selector` takes it.
    pub field_selector: Option<String>,
    /// Parts of objects that are left out while reading.
    pub cut: Cut,
    /// How often handlers get every object again, unless they say otherwise. Zero is never.
    pub resync: Duration,
    /// Changes each object before it is stored.
    pub transform: Option<Transform<K>>,
    /// Told of every failure of list and watch, after it was logged.
    pub error_handler: Option<ErrorHandler>,
    /// What happens with an object that cannot be read.
    pub on_malformed: OnMalformed,
    /// What happens while the server does not know the kind.
    pub on_missing_kind: OnMissingKind,
    /// Take the first list from the newest state instead of the server's cache, which may lag.
    pub consistent_first_list: bool,
    /// Objects per page of a list; `None` leaves the choice to the protocol's rules (500 where
    /// pages are of use).
    pub page_size: Option<u32>,
    /// Longest time for one list call.
    pub list_timeout: Duration,
    /// Longest time for a watch to be answered; the client's own limit counts as well.
    pub open_timeout: Duration,
    /// Take the initial state as the first events of the watch, where the server can.
    pub watch_list: bool,
    /// Compare every streamed initial state with a list of the same version, and let
    /// [`Informer::run`] panic with the differences. Costs a second list; made for tests of
    /// servers. Set by the environment `KUBE_WATCHLIST_INCONSISTENCY_DETECTOR=true`, unless said
    /// otherwise.
    pub check_streamed_lists: bool,
    /// A watch ends after a random time between this and twice this; at least 5 minutes, at most
    /// a day.
    pub min_watch_timeout: Duration,
    /// Longest time without any event or bookmark after which a watch is given up and a list made, at a server
    /// that has sent bookmarks: these come about once a minute.
    pub max_silence: Duration,
    /// Waits after failures.
    pub backoff: ReflectorBackoff,
    /// How long a server failure (500) inside a watch is met by watching again instead of
    /// listing. Zero is never.
    pub internal_error_window: Duration,
}

impl<K> Default for InformerOptions<K> {
    /// All namespaces, no selectors, `managedFields` cut, no resync, streamed lists.
    fn default() -> Self {
        Self {
            name: None,
            registry: metrics::Registry::global(),
            namespace: None,
            label_selector: None,
            field_selector: None,
            cut: Cut::default(),
            resync: Duration::ZERO,
            transform: None,
            error_handler: None,
            on_malformed: OnMalformed::default(),
            on_missing_kind: OnMissingKind::default(),
            consistent_first_list: false,
            page_size: None,
            list_timeout: Duration::from_secs(60),
            open_timeout: Duration::from_secs(15),
            watch_list: true,
            check_streamed_lists: reflector::consistency::is_wanted_by_environment(),
            min_watch_timeout: MIN_WATCH_TIMEOUT,
            max_silence: MAX_SILENCE,
            backoff: ReflectorBackoff::default(),
            internal_error_window: Duration::ZERO,
        }
    }
}

impl<K> fmt::Debug for InformerOptions<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InformerOptions")
            .field("name", &self.name)
            .field("namespace", &self.namespace)
            .field("label_selector", &self.label_selector)
            .field("field_selector", &self.field_selector)
            .field("resync", &self.resync)
            .finish_non_exhaustive()
    }
}

/// Keeps a cache of one kind equal to the server and tells handlers of each change.
///
/// Clones share one cache. Nothing happens before [`Informer::run`]; handlers and indexes may be
/// added before and after.
pub struct Informer<K> {
    inner: Arc<Inner<K>>,
}

struct Inner<K> {
    core: Arc<Core<K>>,
    source: Arc<dyn ListWatch<K>>,
    options: reflector::Options,
    scope: Scope,
    resync: Duration,
    hooks: Mutex<Hooks<K>>,
    /// Place in the registry of metrics, until the run has ended.
    series: Mutex<Option<metrics::Registration>>,
}

struct Hooks<K> {
    transform: Option<Transform<K>>,
    error_handler: Option<ErrorHandler>,
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<K> fmt::Debug for Informer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Informer")
            .field("of", &self.inner.core.progress.name())
            .finish_non_exhaustive()
    }
}

impl<K> Informer<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    /// An informer over the API server that `client` talks to. Makes no request yet.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] names an option that cannot work.
    pub fn new(client: kube_client::Client, options: InformerOptions<K>) -> Result<Self, Error> {
        Self::for_kind(client, &(), options)
    }
}

impl<K> Informer<K>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    /// An informer over a kind that is known at run time, such as for dynamic objects.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] names an option that cannot work.
    pub fn for_kind(
        client: kube_client::Client,
        kind: &K::DynamicType,
        options: InformerOptions<K>,
    ) -> Result<Self, Error> {
        let scope = Scope {
            namespace: options.namespace.clone(),
            label_selector: options.label_selector.clone(),
            field_selector: options.field_selector.clone(),
        };
        let name = kind_name::<K>(kind);
        let read = ReadOptions {
            cut: options.cut,
            list_timeout: options.list_timeout,
            keep_raw: options.on_malformed == OnMalformed::KeepRaw,
        };
        let source = KubeSource::<K>::new(client, kind, scope, read);
        Self::build(&name, &K::version(kind), source, options)
    }
}

/// The kind with its group where it has one, as [`Informer::kind`] names it.
pub fn kind_name<K: Resource>(kind: &K::DynamicType) -> String {
    let group = K::group(kind);
    if group.is_empty() {
        K::kind(kind).into_owned()
    } else {
        format!("{}.{group}", K::kind(kind))
    }
}

impl<K: Resource + Send + Sync + 'static> Informer<K> {
    /// An informer over any source of objects; `kind` names it in messages.
    ///
    /// Namespace and selectors are the source's; those in `options` stand in messages alone.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] names an option that cannot work, [`Error::NameTaken`] a name
    /// under which metrics are kept already.
    pub fn from_source(
        kind: &str,
        source: impl ListWatch<K>,
        options: InformerOptions<K>,
    ) -> Result<Self, Error> {
        Self::build(kind, "", source, options)
    }

    fn build(
        kind: &str,
        version: &str,
        source: impl ListWatch<K>,
        options: InformerOptions<K>,
    ) -> Result<Self, Error> {
        validate(&options)?;
        let mut name = kind.to_owned();
        if let Some(namespace) = &options.namespace {
            name = format!("{name} in namespace {namespace}");
        }
        for (what, selector) in [
            ("labels", &options.label_selector),
            ("fields", &options.field_selector),
        ] {
            if let Some(selector) = selector {
                name = format!("{name} with {what} {selector}");
            }
        }
        let timed = options.name.is_some();
        let progress = Arc::new(Progress::new(name, kind.to_owned(), timed));
        let core = Arc::new(Core::new(progress));
        let series = match &options.name {
            Some(name) => {
                let read: Weak<dyn metrics::Source> = Arc::downgrade(&core) as _;
                Some(options.registry.register(name, kind, version, read)?)
            }
            None => None,
        };
        Ok(Self {
            inner: Arc::new(Inner {
                core,
                series: Mutex::new(series),
                source: Arc::new(source),
                scope: Scope {
                    namespace: options.namespace,
                    label_selector: options.label_selector,
                    field_selector: options.field_selector,
                },
                resync: options.resync,
                options: reflector::Options {
                    consistent_first: options.consistent_first_list,
                    page_size: options.page_size,
                    list_timeout: options.list_timeout,
                    open_timeout: options.open_timeout,
                    watch_list: options.watch_list,
                    check_streams: options.check_streamed_lists,
                    min_watch_timeout: options.min_watch_timeout.max(MIN_WATCH_TIMEOUT),
                    max_silence: options.max_silence,
                    backoff: options.backoff,
                    internal_error_window: options.internal_error_window,
                    on_malformed: options.on_malformed,
                    on_missing_kind: options.on_missing_kind,
                },
                hooks: Mutex::new(Hooks {
                    transform: options.transform,
                    error_handler: options.error_handler,
                }),
            }),
        })
    }

    /// Kind and scope, as messages name this informer.
    pub fn name(&self) -> &str {
        self.inner.core.progress.name()
    }

    /// The kind with its group where it has one, such as `Proxy.crawl.proxyoperator.dev`.
    pub fn kind(&self) -> &str {
        &self.inner.core.progress.kind
    }

    /// Namespace and selectors, by which the objects are chosen that are cached.
    pub fn scope(&self) -> &Scope {
        &self.inner.scope
    }

    /// Adds an index from values to objects; a function may give none, one or many values.
    ///
    /// Objects in the cache are indexed at once. The function runs inside the write path: it
    /// should be short, and must not call this informer. One that panics leaves its object out of
    /// this index, is counted ([`Stats::index_failures`]) and logged, once in 5 minutes.
    ///
    /// # Errors
    /// [`Error::IndexExists`] if the name is taken.
    pub fn add_index(
        &self,
        name: &str,
        function: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        self.add_fallible_index(name, move |object| Ok(function(object)))
    }

    /// As [`Informer::add_index`], with a function that may fail: then the object is left out of
    /// this index, and the log says so with index, key and error, once in 5 minutes.
    ///
    /// # Errors
    /// [`Error::IndexExists`] if the name is taken.
    pub fn add_fallible_index(
        &self,
        name: &str,
        function: impl Fn(&K) -> Result<Vec<String>, BoxError> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        self.inner.core.store.add_index(name, function)
    }

    /// Adds a handler with the default options.
    ///
    /// If objects are stored already, the handler gets each of them first, marked as of the
    /// initial list, then every later event, without gap and without repetition.
    ///
    /// # Errors
    /// [`Error::Stopped`] after the informer has stopped.
    pub fn add_handler(
        &self,
        name: impl Into<String>,
        handler: impl Handler<K>,
    ) -> Result<Registration, Error> {
        self.add_handler_with(name, handler, HandlerOptions::default())
    }

    /// Adds a handler.
    ///
    /// # Errors
    /// [`Error::Stopped`] after the informer has stopped.
    pub fn add_handler_with(
        &self,
        name: impl Into<String>,
        handler: impl Handler<K>,
        options: HandlerOptions,
    ) -> Result<Registration, Error> {
        let callback = Callback::Plain(Box::new(handler));
        self.inner
            .core
            .subscribe(name.into(), callback, options, self.inner.resync)
    }

    /// Adds a handler that awaits.
    ///
    /// # Errors
    /// [`Error::Stopped`] after the informer has stopped.
    pub fn add_async_handler(
        &self,
        name: impl Into<String>,
        handler: impl AsyncHandler<K>,
        options: HandlerOptions,
    ) -> Result<Registration, Error> {
        let callback = Callback::from_async(handler);
        self.inner
            .core
            .subscribe(name.into(), callback, options, self.inner.resync)
    }

    /// Adds a queue from which changes are taken object by object, in place of a handler that is
    /// told them one by one. If objects are stored already, it begins with them. Above the limit
    /// of `buffer`, changes of one object are merged.
    ///
    /// # Errors
    /// [`Error::Stopped`] after the informer has stopped.
    pub fn keyed_queue(
        &self,
        name: impl Into<String>,
        buffer: Buffer,
    ) -> Result<KeyedQueue<K>, Error> {
        self.inner.core.subscribe_keyed(name.into(), buffer)
    }

    /// Removes a handler of this informer, as [`Registration::shutdown`] does. Returns whether it
    /// was there; one of another informer stays in place.
    ///
    /// # Errors
    /// [`Error::OwnCallback`] inside the handler itself, which is removed nevertheless.
    pub async fn remove_handler(&self, registration: &Registration) -> Result<bool, Error> {
        if !registration.is_of(&self.inner.core.progress) {
            return Ok(false);
        }
        let was_there = !registration.is_removed();
        registration.shutdown().await?;
        Ok(was_there)
    }

    /// Sets what changes each object before it is stored.
    ///
    /// # Errors
    /// [`Error::Started`] after the start.
    pub fn set_transform(&self, transform: Transform<K>) -> Result<(), Error> {
        self.settle("transform", |hooks| hooks.transform = Some(transform))
    }

    /// Sets who is told of failures.
    ///
    /// # Errors
    /// [`Error::Started`] after the start.
    pub fn set_error_handler(&self, handler: ErrorHandler) -> Result<(), Error> {
        self.settle("error handler", |hooks| hooks.error_handler = Some(handler))
    }

    fn settle(&self, what: &'static str, set: impl FnOnce(&mut Hooks<K>)) -> Result<(), Error> {
        let mut hooks = self.inner.hooks.lock();
        if !self.inner.core.is_idle() {
            return Err(Error::Started {
                what,
                informer: self.name().to_owned(),
            });
        }
        set(&mut hooks);
        Ok(())
    }

    /// Read access to the cache.
    pub fn lister(&self) -> Lister<K> {
        let core = &self.inner.core;
        Lister::new(Arc::clone(&core.store), Arc::clone(&core.progress))
    }

    /// Whether the first list is in the cache. Handlers may still be working through it; ask
    /// their [`Registration`].
    pub fn has_synced(&self) -> bool {
        self.inner.core.progress.synced.is_open()
    }

    /// Resolves when the first list is in the cache. Cancel-safe.
    pub async fn synced(&self) {
        self.inner.core.progress.synced.wait().await;
    }

    /// Whether the informer ran, or was given up by its factory before, and all of its tasks have
    /// ended. Stays false if the future of [`Informer::run`] was dropped, as nobody waits for the
    /// tasks then.
    pub fn is_stopped(&self) -> bool {
        self.inner.core.progress.stopped.is_open()
    }

    /// Resolves when [`Informer::is_stopped`] holds. Cancel-safe.
    pub async fn stopped(&self) {
        self.inner.core.progress.stopped.wait().await;
    }

    /// Ends the informer as if all of its objects were gone: handlers are told of each as deleted
    /// (origin [`Origin::Unfollowed`](crate::Origin::Unfollowed)), the cache is empty, and
    /// [`Informer::run`] returns when all handlers have been told. Without a run nothing happens
    /// until there is one.
    pub fn unfollow(&self) {
        self.inner.core.leaving.cancel();
    }

    /// State at this moment.
    pub fn status(&self) -> Status {
        let core = &self.inner.core;
        let version = core.store.version();
        Status {
            kind: core.progress.kind.clone(),
            synced: self.has_synced(),
            resource_version: version.resource_version().to_string(),
            objects: version.len(),
            last_error: core.progress.last_error(),
        }
    }

    /// Counters since the start.
    pub fn stats(&self) -> Stats {
        let core = &self.inner.core;
        let index_failures = core.store.look(Version::index_failures);
        core.progress.stats.read(index_failures)
    }

    /// The objects that the server has and that cannot be read, at most 1000 of them, by key.
    pub fn malformed(&self) -> Vec<Malformed> {
        self.inner.core.progress.unreadable.list()
    }

    /// Number of waiting events of each handler, by the handler's name.
    pub fn queue_lengths(&self) -> Vec<(String, usize)> {
        self.inner.core.queue_lengths()
    }

    /// Lists, watches and delivers until `stop` is cancelled. Runs once.
    ///
    /// After the stop nothing more is stored, handlers end by their
    /// [`OnStop`] and are dropped, the name of the metrics is free, and only then the call returns.
    /// A stop is no error. Dropping the future stops as well, without waiting for the handlers'
    /// tasks.
    ///
    /// # Errors
    /// [`Error::AlreadyRan`] for a second run, which leaves the first alone; [`Error::Stopped`] if
    /// a factory has let the informer go before it ran; [`Error::KindMissing`] under
    /// [`OnMissingKind::Stop`].
    ///
    /// # Panics
    /// With the panic of a handler whose options say [`OnPanic::Crash`], after everything has
    /// ended, and with the differences that [`InformerOptions::check_streamed_lists`] finds.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), Error> {
        let core = &self.inner.core;
        let running = core.start()?;
        let end = EndOnDrop(&self.inner);
        let mut reflector = {
            let mut hooks = self.inner.hooks.lock();
            Reflector::new(
                Arc::clone(&self.inner.source),
                Arc::clone(core),
                self.inner.options.clone(),
                hooks.transform.take(),
                hooks.error_handler.take(),
            )
        };
        let followed = async {
            tokio::select! {
                biased;
                () = stop.cancelled() => Ok(()),
                () = core.leaving.cancelled() => Ok(()),
                () = core.crash.happened() => Ok(()),
                KindMissing(message) = reflector.run() => {
                    Err(Error::KindMissing { informer: self.name().to_owned(), message })
                }
                never = core.resync() => match never {},
            }
        };
        let outcome = match AssertUnwindSafe(followed).catch_unwind().await {
            Ok(outcome) => outcome,
            // It ends the informer in the order of any other end.
            Err(panic) => {
                core.crash.report(panic);
                Ok(())
            }
        };
        // The reflector is gone before the handlers: what they drain does not grow.
        drop(reflector);
        if core.leaving.is_cancelled() && !stop.is_cancelled() {
            core.clear();
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = core.told() => {}
            }
        }
        core.stop();
        running.tasks.wait().await;
        drop(end);
        core.progress.stopped.open();
        // Handlers may panic up to the end of their tasks.
        match core.crash.take() {
            Some(panic) => std::panic::resume_unwind(panic),
            None => outcome,
        }
    }

    /// How far it has come, without keeping it.
    pub(crate) fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.inner.core.progress)
    }

    /// Makes an end of an informer that did not run and shall not: it takes no handlers, lets go
    /// of those it has, and gives its name back.
    pub(crate) fn give_up(&self) {
        if self.inner.core.is_idle() {
            drop(EndOnDrop(&self.inner));
            self.inner.core.progress.stopped.open();
        }
    }
}

/// Ends what an informer has begun, however its run ends.
struct EndOnDrop<'a, K: Resource + Send + Sync + 'static>(&'a Inner<K>);

impl<K: Resource + Send + Sync + 'static> Drop for EndOnDrop<'_, K> {
    fn drop(&mut self) {
        self.0.core.stop();
        self.0.core.disband();
        let series = self.0.series.lock().take();
        drop(series);
    }
}

impl<K: Resource + Send + Sync + 'static> Synced for Informer<K> {
    fn name(&self) -> String {
        Informer::name(self).to_owned()
    }

    fn has_synced(&self) -> bool {
        Informer::has_synced(self)
    }

    fn synced(&self) -> BoxFuture<'_, ()> {
        Box::pin(Informer::synced(self))
    }

    fn blocked_by(&self) -> Option<(Cause, String)> {
        self.inner.core.progress.last_error()
    }
}

fn validate<K>(options: &InformerOptions<K>) -> Result<(), Error> {
    let refuse = |option, problem: &str| {
        Err(Error::InvalidOption {
            option,
            problem: problem.to_owned(),
        })
    };
    if options.page_size == Some(0) {
        return refuse(
            "page_size",
            "0 objects a page; give at least 1, or None for the default",
        );
    }
    if options.name.as_deref() == Some("") {
        return refuse("name", "empty; write None for no metrics");
    }
    if options.namespace.as_deref() == Some("") {
        return refuse("namespace", "empty; write None for all namespaces");
    }
    if options.list_timeout.is_zero() || options.open_timeout.is_zero() {
        return refuse(
            "list_timeout/open_timeout",
            "zero leaves no time for any answer",
        );
    }
    let backoff = &options.backoff;
    if backoff.base.is_zero() || backoff.max < backoff.base || backoff.max > MAX_SPAN {
        return refuse(
            "backoff",
            "base must be above zero, max not below base and at most a day",
        );
    }
    if options.max_silence.is_zero() {
        return refuse(
            "max_silence",
            "zero, so that every watch would be given up at once",
        );
    }
    if options.min_watch_timeout > MAX_SPAN {
        return refuse("min_watch_timeout", "longer than a day");
    }
    if !(0.0..=10.0).contains(&backoff.jitter) {
        return refuse("backoff", "jitter must lie between 0 and 10");
    }
    Ok(())
}
