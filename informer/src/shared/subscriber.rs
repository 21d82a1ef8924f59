//! One registered handler: its queue, its task and its registration.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube_core::Resource;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::crash::Crash;
use super::progress::Progress;
use super::queue::{Buffer, Queue, Step};
use crate::error::panic_text;
use crate::log_limit::LogLimit;
use crate::metrics::Latency;
use crate::synced::{Gate, Synced};
use crate::{AsyncHandler, Cause, Error, Event, Handler, ObjectKey, Origin};

/// What to do with an event whose handler panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPanic {
    /// Log and count it, pause, go on with the next event.
    Continue,
    /// The handler is told nothing more, the informer stops, and the panic goes on out of
    /// [`Informer::run`](crate::Informer::run) when all tasks have ended.
    Crash,
}

/// What becomes of waiting events when the informer stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// They are dropped; no call begins after the stop.
    Drop,
    /// They are delivered; `run` returns after the last of them.
    Deliver,
}

/// Where a handler is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// In a task of its own, out of a queue of its own: however long it takes, it holds up neither
    /// the cache nor another handler.
    #[default]
    Task,
    /// Where the change enters the cache. Costs no queue, no task switch and no copy of an event,
    /// and no event ever waits. For handlers that take no longer than an add to a work queue, since
    /// cache and other handlers wait meanwhile; they must not call the informer, though they may
    /// read its [`Lister`](crate::Lister).
    ///
    /// Changes that arrive together, up to 1000 of a watch and all of a list, enter the cache in
    /// one step, and the handler is told of them behind it, in order. So the cache shows the state
    /// of the event or a later one of the same step, in which the object may be gone again, and
    /// nothing of a later step.
    ///
    /// `buffer`, `panic_pause` and `on_stop` are without meaning here; panics are logged once a
    /// second. A handler that comes late has had its initial events when the call that adds it
    /// returns. Handlers that await have a task in any case.
    InPlace,
}

/// How a handler is served.
#[derive(Clone, Debug)]
pub struct HandlerOptions {
    /// Where it is called.
    pub delivery: Delivery,
    /// How often every object is sent again as an update to itself. `None` takes the informer's
    /// [`resync`](crate::InformerOptions::resync), `Some(ZERO)` never; at least 1 s otherwise.
    pub resync: Option<Duration>,
    /// Bound of the queue.
    pub buffer: Buffer,
    /// What a panic leads to.
    pub on_panic: OnPanic,
    /// Pause after a panic.
    pub panic_pause: Duration,
    /// What a stop does with waiting events.
    pub on_stop: OnStop,
}

impl Default for HandlerOptions {
    /// No resync of its own, merging above 100,000 events, going on 1 s after a panic, dropping
    /// what waits at a stop.
    fn default() -> Self {
        Self {
            delivery: Delivery::default(),
            resync: None,
            buffer: Buffer::default(),
            on_panic: OnPanic::Continue,
            panic_pause: Duration::from_secs(1),
            on_stop: OnStop::Drop,
        }
    }
}

/// How often the panics of one handler are logged.
const PANIC_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// A call of a handler.
#[derive(Clone, Copy, Debug)]
struct Running {
    handler: u64,
    /// Address of the progress of the informer that waits for the call, where one does.
    in_place_of: Option<usize>,
}

tokio::task_local! {
    /// The call that is running on this task.
    static CURRENT: Running;
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

pub(super) enum Callback<K> {
    Plain(Box<dyn Handler<K>>),
    Async(Box<dyn Fn(Event<K>, Origin) -> BoxFuture<'static, ()> + Send + Sync>),
}

impl<K> Callback<K> {
    /// Whether calls end without awaiting.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }
}

impl<K: Send + Sync + 'static> Callback<K> {
    pub(super) fn from_async(handler: impl AsyncHandler<K>) -> Self {
        let handler = Arc::new(handler);
        Self::Async(Box::new(move |event, origin| {
            let handler = Arc::clone(&handler);
            Box::pin(async move { handler.on_event_from(event, origin).await })
        }))
    }
}

impl<K> fmt::Debug for Callback<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::Async(_) => "Async",
        })
    }
}

/// Where a handler has its place.
pub(super) trait Home: Send + Sync {
    /// Drops the handlers that were removed, with what waits for them.
    fn let_go(&self);
}

/// The part of a handler that does not depend on the kind.
#[derive(Debug)]
pub(super) struct Shared {
    id: u64,
    name: String,
    informer: Arc<Progress>,
    home: Weak<dyn Home>,
    panics: LogLimit,
    /// `None` where calls are not timed.
    pub(super) latency: Option<Latency>,
    synced: Gate,
    /// The informer's last events have been delivered.
    told: Gate,
    /// It has a task, or had one.
    started: AtomicBool,
    ended: Gate,
    removed: CancellationToken,
    /// Held during a call in place.
    in_call: Mutex<()>,
}

#[derive(Debug)]
pub(super) struct Subscriber<K> {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: Queue<K>,
    pub(super) options: HandlerOptions,
    crash: Arc<Crash>,
    callback: Callback<K>,
}

impl<K: Resource + Send + Sync + 'static> Subscriber<K> {
    pub(super) fn new(
        name: String,
        informer: Arc<Progress>,
        home: Weak<dyn Home>,
        crash: Arc<Crash>,
        callback: Callback<K>,
        options: HandlerOptions,
        replay: Vec<Arc<K>>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                name,
                latency: informer.timed.then(Latency::default),
                informer,
                home,
                panics: LogLimit::new(PANIC_LOG_INTERVAL),
                synced: Gate::new(),
                told: Gate::new(),
                started: AtomicBool::new(false),
                ended: Gate::new(),
                removed: CancellationToken::new(),
                in_call: Mutex::new(()),
            }),
            queue: Queue::new(options.buffer, replay),
            options,
            crash,
            callback,
        }
    }

    pub(super) fn is_removed(&self) -> bool {
        self.shared.removed.is_cancelled()
    }

    /// Whether the handler is called by whoever has an event, instead of by a task.
    pub(super) fn is_in_place(&self) -> bool {
        self.options.delivery == Delivery::InPlace && self.callback.is_plain()
    }

    /// Hands events over that come together: to the handler itself where it is served in place,
    /// else to its queue, whose task is woken once.
    pub(super) fn tell_all(&self, events: impl IntoIterator<Item = Event<K>>, origin: Origin) {
        if self.is_in_place() {
            for event in events {
                self.call_in_place(&event, origin);
            }
        } else {
            self.queue.push_all(events, origin);
        }
    }

    /// Marks the end of the initial state behind everything handed over until now.
    pub(super) fn tell_synced(&self) {
        if self.is_in_place() {
            self.shared.synced.open();
        } else {
            self.queue.push_synced();
        }
    }

    /// Marks the end of everything that the informer has to tell.
    pub(super) fn tell_end(&self) {
        if self.is_in_place() {
            self.shared.told.open();
        } else {
            self.queue.push_told();
        }
    }

    fn call_in_place(&self, event: &Event<K>, origin: Origin) {
        let _in_call = self.shared.in_call.lock();
        if self.is_removed() {
            return;
        }
        let Callback::Plain(handler) = &self.callback else {
            unreachable!("handlers that await have a task")
        };
        if let Err(panic) = self.call(&**handler, event, origin) {
            self.report_panic(&*panic, event.object());
            if self.options.on_panic == OnPanic::Crash {
                self.shared.removed.cancel();
                self.crash.report(panic);
            }
        }
    }

    /// Gives the handler its task, unless it is served in place.
    pub(super) fn spawn(self: &Arc<Self>, tasks: &TaskTracker, stop: &CancellationToken) {
        if self.is_in_place() {
            return;
        }
        self.shared.started.store(true, Ordering::Release);
        let ended = OpenOnDrop(Arc::clone(&self.shared));
        tasks.spawn(Arc::clone(self).deliver(stop.clone(), ended));
    }

    /// Delivers until the handler is removed or `stop` is cancelled. That it has `ended` is told
    /// when nothing holds a removed handler any more.
    async fn deliver(self: Arc<Self>, stop: CancellationToken, ended: OpenOnDrop) {
        let result = tokio::select! {
            biased;
            () = self.shared.removed.cancelled() => Ok(()),
            result = self.deliver_until(&stop) => result,
        };
        if let Err(panic) = result {
            self.crash.report(panic);
        }
        if self.is_removed() {
            self.shared.leave();
        }
        drop(self);
        drop(ended);
    }

    async fn deliver_until(
        &self,
        stop: &CancellationToken,
    ) -> Result<(), Box<dyn std::any::Any + Send>> {
        loop {
            // The call before may have removed the handler.
            if self.is_removed() {
                return Ok(());
            }
            let step = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                step = self.queue.next() => step,
            };
            let work = self.step(step);
            if self.options.on_stop == OnStop::Deliver {
                work.await?;
            } else {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    done = work => done?,
                }
            }
            // A handler with a long queue must not keep its thread from others.
            tokio::task::coop::consume_budget().await;
        }
        if self.options.on_stop == OnStop::Deliver {
            while !self.is_removed()
                && let Some(step) = self.queue.try_next()
            {
                self.step(step).await?;
                tokio::task::coop::consume_budget().await;
            }
        }
        Ok(())
    }

    async fn step(&self, step: Step<K>) -> Result<(), Box<dyn std::any::Any + Send>> {
        let (event, origin) = match step {
            Step::Synced => {
                self.shared.synced.open();
                return Ok(());
            }
            Step::Told => {
                self.shared.told.open();
                return Ok(());
            }
            Step::Deliver(event, origin) => (event, origin),
        };
        let object = Arc::clone(event.object());
        let outcome = match &self.callback {
            Callback::Plain(handler) => self.call(&**handler, &event, origin),
            Callback::Async(handler) => {
                let span = self.span(&event, origin);
                let began = self.begin();
                let call = CURRENT.scope(self.running(), async { handler(event, origin).await });
                let call = AssertUnwindSafe(call).catch_unwind();
                let outcome = call.instrument(span).await;
                self.end(began);
                outcome
            }
        };
        let Err(panic) = outcome else { return Ok(()) };
        self.report_panic(&*panic, &object);
        match self.options.on_panic {
            OnPanic::Crash => Err(panic),
            OnPanic::Continue => {
                tokio::time::sleep(self.options.panic_pause).await;
                Ok(())
            }
        }
    }

    fn call(
        &self,
        handler: &dyn Handler<K>,
        event: &Event<K>,
        origin: Origin,
    ) -> std::thread::Result<()> {
        let span = self.span(event, origin);
        let began = self.begin();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            span.in_scope(|| {
                CURRENT.sync_scope(self.running(), || handler.on_event_from(event, origin));
            });
        }));
        self.end(began);
        outcome
    }

    fn running(&self) -> Running {
        Running {
            handler: self.shared.id,
            in_place_of: self
                .is_in_place()
                .then(|| self.shared.address_of_informer()),
        }
    }

    /// The moment a call begins, where calls are timed.
    fn begin(&self) -> Option<Instant> {
        self.shared.latency.as_ref().map(|_| Instant::now())
    }

    fn end(&self, began: Option<Instant>) {
        if let (Some(latency), Some(began)) = (&self.shared.latency, began) {
            latency.observe(began.elapsed());
        }
    }

    fn report_panic(&self, panic: &(dyn std::any::Any + Send), object: &K) {
        self.shared
            .informer
            .stats
            .handler_panics
            .fetch_add(1, Ordering::Relaxed);
        let Some(since) = self.shared.panics.admit() else {
            return;
        };
        tracing::error!(
            informer = self.shared.informer.name(),
            handler = self.shared.name,
            key = %ObjectKey::of(object),
            panic = panic_text(panic),
            since,
            "handler panicked"
        );
    }

    /// The span of one call: which object, in which version, and why its handler is told.
    fn span(&self, event: &Event<K>, origin: Origin) -> tracing::Span {
        let meta = event.object().meta();
        tracing::debug_span!(
            "informer.event",
            informer = self.shared.informer.name(),
            handler = self.shared.name,
            k8s.namespace.name = meta.namespace.as_deref(),
            k8s.resource.name = meta.name.as_deref(),
            k8s.resource.version = event.resource_version(),
            event.reason = origin.as_str(),
        )
    }
}

impl Shared {
    /// Resolves when the handler was told all, or is told nothing more. Cancel-safe.
    pub(super) async fn was_told(&self) {
        tokio::select! {
            () = self.told.wait() => {}
            () = self.ended.wait() => {}
            () = self.removed.cancelled() => {}
        }
    }

    /// Lets a removed handler be dropped.
    fn leave(&self) {
        if let Some(home) = self.home.upgrade() {
            home.let_go();
        }
    }

    fn address_of_informer(&self) -> usize {
        Arc::as_ptr(&self.informer).addr()
    }
}

/// Tells that a task ended, also when it is dropped in between.
struct OpenOnDrop(Arc<Shared>);

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        self.0.ended.open();
    }
}

/// A handler's place in an informer. Cheap to clone; dropping it leaves the handler in place.
#[derive(Clone, Debug)]
pub struct Registration(pub(super) Arc<Shared>);

impl Registration {
    /// The handler's name.
    pub fn handler_name(&self) -> &str {
        &self.0.name
    }

    /// Whether the informer has synced and this handler has been through its initial events.
    pub fn has_synced(&self) -> bool {
        self.0.synced.is_open()
    }

    /// Resolves when [`Registration::has_synced`] holds; never, if that does not come to be.
    /// Cancel-safe.
    pub async fn synced(&self) {
        self.0.synced.wait().await;
    }

    pub(super) fn is_removed(&self) -> bool {
        self.0.removed.is_cancelled()
    }

    pub(super) fn is_of(&self, informer: &Arc<Progress>) -> bool {
        Arc::ptr_eq(&self.0.informer, informer)
    }

    /// Removes the handler and waits until no call of it runs and none can begin.
    ///
    /// Events that wait are dropped, and so is a running async call at its next await; then the
    /// handler itself is dropped. Removing a handler again does nothing. May hold up its thread for
    /// as long as the informer takes for one step, or a handler in place for its call. Cancel-safe:
    /// the removal goes on.
    ///
    /// # Errors
    /// [`Error::OwnCallback`] inside the handler itself, which is removed nevertheless.
    pub async fn shutdown(&self) -> Result<(), Error> {
        self.0.removed.cancel();
        let running = CURRENT.try_with(|running| *running).ok();
        if running.is_some_and(|running| running.handler == self.0.id) {
            return Err(Error::OwnCallback {
                handler: self.0.name.clone(),
            });
        }
        // No longer than one call, which by contract is short.
        drop(self.0.in_call.lock());
        // An informer that waits for the call we are in lets go by itself.
        let waiting = running.and_then(|running| running.in_place_of);
        if waiting != Some(self.0.address_of_informer()) {
            self.0.leave();
        }
        if self.0.started.load(Ordering::Acquire) {
            self.0.ended.wait().await;
        }
        Ok(())
    }
}

impl Synced for Registration {
    fn name(&self) -> String {
        format!("handler {} of {}", self.0.name, self.0.informer.name())
    }

    fn has_synced(&self) -> bool {
        Registration::has_synced(self)
    }

    fn synced(&self) -> BoxFuture<'_, ()> {
        Box::pin(Registration::synced(self))
    }

    fn blocked_by(&self) -> Option<(Cause, String)> {
        if self.0.informer.synced.is_open() {
            None
        } else {
            self.0.informer.last_error()
        }
    }
}
