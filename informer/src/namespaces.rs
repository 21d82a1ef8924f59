//! Caches of chosen namespaces that look like one, and the choice may change while they run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube_core::{Resource, Selector, SelectorExt as _};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::shared::Progress;
use crate::synced::{Gate, Synced};
use crate::{
    Cause, Error, Event, Handler, HandlerOptions, Informer, InformerOptions, Lister, ObjectKey,
    Origin, Registration,
};

/// What one of the informers looks at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// One namespace.
    Namespace(String),
    /// All namespaces but these.
    Others(Vec<String>),
}

impl Part {
    /// Sets the scope of `options` to this part: the namespace, or a field selector that leaves
    /// out the others, beside one that is there already.
    pub fn apply<K>(&self, options: &mut InformerOptions<K>) {
        match self {
            Self::Namespace(namespace) => options.namespace = Some(namespace.clone()),
            Self::Others(except) => {
                options.namespace = None;
                let left_out = except
                    .iter()
                    .map(|namespace| format!("metadata.namespace!={namespace}"));
                let terms: Vec<_> = options
                    .field_selector
                    .take()
                    .into_iter()
                    .chain(left_out)
                    .collect();
                options.field_selector = (!terms.is_empty()).then(|| terms.join(","));
            }
        }
    }
}

/// Keeps caches of chosen namespaces, by one informer each, and tells handlers of all of them.
///
/// Namespaces come and go before and during [`Namespaces::run`]. One that goes is told as deletions
/// of its objects (origin [`Origin::Unfollowed`](crate::Origin::Unfollowed)); one that comes back
/// before that is done waits for it, so a handler never hears of a new object before the end of
/// the old. Each namespace may have options of its own, and an entry for all others leaves out the
/// named ones. A handler is called for several namespaces at the same time, for one object in
/// order. Mirrors controller-runtime's `multiNamespaceCache`.
///
/// ```no_run
/// use informer::{InformerOptions, Namespaces};
/// use k8s_openapi::api::core::v1::Pod;
///
/// # async fn example(client: kube_client::Client) -> Result<(), informer::Error> {
/// let pods: Namespaces<Pod> = Namespaces::over(client, |_| InformerOptions::default());
/// pods.add("team-a")?;
/// # Ok(()) }
/// ```
///
/// Clones are one set.
pub struct Namespaces<K> {
    inner: Arc<Inner<K>>,
}

type Make<K> = Box<dyn Fn(&Part) -> Result<Informer<K>, Error> + Send + Sync>;
type IndexFunction<K> = Arc<dyn Fn(&K) -> Vec<String> + Send + Sync>;
/// Readers by namespace; `None` for the others.
type Listers<K> = BTreeMap<Option<String>, Lister<K>>;

struct Inner<K> {
    make: Make<K>,
    state: Mutex<State<K>>,
    listers: Arc<ArcSwap<Listers<K>>>,
    changed: Notify,
    /// The set has ended, in whatever way.
    closed: CancellationToken,
}

struct State<K> {
    /// The namespaces that shall be there; `None` for the others.
    wanted: BTreeMap<Option<String>, Wanted>,
    members: BTreeMap<Option<String>, Member<K>>,
    handlers: Vec<Subscription<K>>,
    indexes: Vec<(String, IndexFunction<K>)>,
    ran: bool,
    stopped: bool,
}

struct Wanted {
    part: Part,
    /// Who asked for it, and has not taken that back; never empty.
    owners: BTreeSet<Owner>,
}

/// Who asks for a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// A call by name.
    Name,
    /// A choice by labels.
    Choice(u64),
}

struct Member<K> {
    informer: Informer<K>,
    registrations: BTreeMap<u64, Registration>,
    started: bool,
    /// It is no longer among the members.
    left: Arc<Gate>,
}

/// What shows how far a member has come, and does not keep it.
struct Joining {
    progress: Arc<Progress>,
    left: Arc<Gate>,
}

struct Subscription<K> {
    id: u64,
    name: String,
    handler: Arc<dyn Handler<K>>,
    options: HandlerOptions,
}

struct SharedHandler<K>(Arc<dyn Handler<K>>);

impl<K: 'static> Handler<K> for SharedHandler<K> {
    fn on_event(&self, event: &Event<K>) {
        self.0.on_event(event);
    }

    fn on_event_from(&self, event: &Event<K>, origin: Origin) {
        self.0.on_event_from(event, origin);
    }
}

/// Number of the next handler, of whatever set: those of another set shall not be mistaken for it.
static NEXT_HANDLER: AtomicU64 = AtomicU64::new(0);

/// Number of the next choice by labels.
static NEXT_CHOICE: AtomicU64 = AtomicU64::new(0);

/// A handler's place in a set of namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceRegistration(u64);

impl<K> Clone for Namespaces<K> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
        }
    }
}

impl<K> fmt::Debug for Namespaces<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespaces")
            .field("parts", &self.inner.listers.load().keys())
            .finish_non_exhaustive()
    }
}

impl<K> Namespaces<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + Sync + 'static,
{
    /// A set without namespaces over the API server that `client` talks to. `options` gives those
    /// of each part; its scope is set here.
    pub fn over(
        client: kube_client::Client,
        options: impl Fn(&Part) -> InformerOptions<K> + Send + Sync + 'static,
    ) -> Self {
        Self::new(move |part| {
            let mut options = options(part);
            part.apply(&mut options);
            Informer::new(client.clone(), options)
        })
    }
}

impl<K: Resource + Send + Sync + 'static> Namespaces<K> {
    /// A set without namespaces, whose informers are made by `make`.
    pub fn new(make: impl Fn(&Part) -> Result<Informer<K>, Error> + Send + Sync + 'static) -> Self {
        Self {
            inner: Arc::new(Inner {
                make: Box::new(make),
                state: Mutex::new(State {
                    wanted: BTreeMap::new(),
                    members: BTreeMap::new(),
                    handlers: Vec::new(),
                    indexes: Vec::new(),
                    ran: false,
                    stopped: false,
                }),
                listers: Arc::default(),
                changed: Notify::new(),
                closed: CancellationToken::new(),
            }),
        }
    }

    /// Adds a namespace. Returns whether it is new; one that a choice by labels has brought is not,
    /// and stays from now on whatever becomes of its labels.
    ///
    /// # Errors
    /// Those of making its informer; [`Error::Stopped`] after the stop; [`Error::InvalidOption`]
    /// for a new one once there is an entry for all others, which left out the names of its time.
    pub fn add(&self, namespace: &str) -> Result<bool, Error> {
        self.add_for(Owner::Name, namespace)
    }

    fn add_for(&self, owner: Owner, namespace: &str) -> Result<bool, Error> {
        let key = Some(namespace.to_owned());
        let mut state = self.inner.state.lock();
        if state.wanted.contains_key(&None) && !state.wanted.contains_key(&key) {
            return Err(Error::InvalidOption {
                option: "namespace",
                problem: format!(
                    "`{namespace}` is among all others already: add it before `add_others`"
                ),
            });
        }
        let part = Part::Namespace(namespace.to_owned());
        self.want(&mut state, key, part, owner)
    }

    /// Adds all namespaces that were not added by name. Returns whether that is new.
    ///
    /// # Errors
    /// Those of making its informer; [`Error::Stopped`] after the stop.
    pub fn add_others(&self) -> Result<bool, Error> {
        let mut state = self.inner.state.lock();
        let except = state.wanted.keys().flatten().cloned().collect();
        self.want(&mut state, None, Part::Others(except), Owner::Name)
    }

    fn want(
        &self,
        state: &mut State<K>,
        key: Option<String>,
        part: Part,
        owner: Owner,
    ) -> Result<bool, Error> {
        if state.stopped {
            return Err(stopped());
        }
        if let Some(wanted) = state.wanted.get_mut(&key) {
            wanted.owners.insert(owner);
            return Ok(false);
        }
        // A member of this name that is still there is on its way out; its successor waits.
        if !state.members.contains_key(&key) {
            self.join(state, key.clone(), &part)?;
        }
        let owners = BTreeSet::from([owner]);
        state.wanted.insert(key, Wanted { part, owners });
        self.inner.changed.notify_one();
        Ok(true)
    }

    /// Makes the informer of a part.
    fn join(&self, state: &mut State<K>, key: Option<String>, part: &Part) -> Result<(), Error> {
        let informer = (self.inner.make)(part)?;
        for (name, function) in &state.indexes {
            let function = Arc::clone(function);
            informer.add_index(name, move |object| function(object))?;
        }
        let mut registrations = BTreeMap::new();
        for subscription in &state.handlers {
            registrations.insert(subscription.id, subscription.add_to(&informer)?);
        }
        let member = Member {
            informer,
            registrations,
            started: false,
            left: Arc::new(Gate::new()),
        };
        state.members.insert(key, member);
        self.show(state);
        Ok(())
    }

    fn show(&self, state: &State<K>) {
        let listers = state.members.iter();
        let listers = listers.map(|(key, member)| (key.clone(), member.informer.lister()));
        self.inner.listers.store(Arc::new(listers.collect()));
    }

    /// Takes back that a namespace was added by name. Returns whether it was.
    ///
    /// One that a choice by labels has as well stays. Else it is removed, and the call waits until
    /// every handler was told of the end of its objects, or the set has ended. Cancel-safe: the
    /// removal goes on.
    ///
    /// An entry for all others goes on to leave out the name, so nobody follows the namespace then.
    pub async fn remove(&self, namespace: &str) -> bool {
        let Some(left) = self.leave(Owner::Name, namespace) else {
            return false;
        };
        tokio::select! {
            () = left.wait() => {}
            () = self.inner.closed.cancelled() => {}
        }
        true
    }

    /// An owner no longer asks for a namespace, whose removal begins if it was the last one: `None`
    /// if it did not ask, else what opens at the end.
    fn leave(&self, owner: Owner, namespace: &str) -> Option<Arc<Gate>> {
        let key = Some(namespace.to_owned());
        let mut state = self.inner.state.lock();
        let owners = &mut state.wanted.get_mut(&key)?.owners;
        if !owners.remove(&owner) {
            return None;
        }
        if !owners.is_empty() {
            let stays = Gate::new();
            stays.open();
            return Some(Arc::new(stays));
        }
        state.wanted.remove(&key);
        let member = state.members.get(&key)?;
        let left = Arc::clone(&member.left);
        if member.started {
            member.informer.unfollow();
        } else if let Some(member) = self.take_out(&mut state, &key) {
            drop(state);
            member.informer.give_up();
        }
        Some(left)
    }

    /// Takes a member out, whose end waiters are told of.
    fn take_out(&self, state: &mut State<K>, key: &Option<String>) -> Option<Member<K>> {
        let member = state.members.remove(key)?;
        self.show(state);
        member.left.open();
        Some(member)
    }

    /// Lets labels choose the namespaces: those of `namespaces` that match `labels` are added,
    /// and removed when they cease to match or are deleted, unless they were added by name as well,
    /// before or since, or another choice has them. When the registration is shut down the choice
    /// ends, and its namespaces stay as if they had been added by name.
    ///
    /// `namespaces` may be an informer of whole `Namespace`s or of their metadata.
    ///
    /// # Errors
    /// [`Error::Stopped`] if that informer has stopped.
    pub fn choose<N>(
        &self,
        namespaces: &Informer<N>,
        labels: Selector,
    ) -> Result<Registration, Error>
    where
        N: Resource + Send + Sync + 'static,
    {
        let choice = Choice {
            set: self.clone(),
            owner: Owner::Choice(NEXT_CHOICE.fetch_add(1, Ordering::Relaxed)),
        };
        namespaces.add_handler("namespaces by label", move |event: &Event<N>| {
            let meta = event.object().meta();
            let Some(name) = meta.name.as_deref() else {
                return;
            };
            let none = BTreeMap::new();
            let present = !matches!(event, Event::Deleted { .. });
            if present && labels.matches(meta.labels.as_ref().unwrap_or(&none)) {
                choice.take(name);
            } else {
                choice.leave(name);
            }
        })
    }

    /// Names of the namespaces that shall be there.
    pub fn names(&self) -> BTreeSet<String> {
        let state = self.inner.state.lock();
        state.wanted.keys().flatten().cloned().collect()
    }

    /// Adds a handler of the objects of all namespaces, present and to come.
    ///
    /// # Errors
    /// [`Error::Stopped`] after the stop.
    pub fn add_handler(
        &self,
        name: impl Into<String>,
        handler: impl Handler<K>,
        options: HandlerOptions,
    ) -> Result<NamespaceRegistration, Error> {
        let mut state = self.inner.state.lock();
        if state.stopped {
            return Err(stopped());
        }
        let id = NEXT_HANDLER.fetch_add(1, Ordering::Relaxed);
        let subscription = Subscription {
            id,
            name: name.into(),
            handler: Arc::new(handler),
            options,
        };
        for member in state.members.values_mut() {
            match subscription.add_to(&member.informer) {
                Ok(registration) => {
                    member.registrations.insert(id, registration);
                }
                // It is on its way out, and has nothing more to tell.
                Err(Error::Stopped { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        state.handlers.push(subscription);
        Ok(NamespaceRegistration(id))
    }

    /// Removes a handler and waits until no call of it runs and none can begin. Returns whether
    /// it was there; one of another set stays in place.
    ///
    /// # Errors
    /// [`Error::OwnCallback`] inside the handler itself, which is removed nevertheless.
    pub async fn remove_handler(&self, handler: NamespaceRegistration) -> Result<bool, Error> {
        let registrations: Vec<_> = {
            let mut state = self.inner.state.lock();
            let before = state.handlers.len();
            state.handlers.retain(|known| known.id != handler.0);
            if state.handlers.len() == before {
                return Ok(false);
            }
            let members = state.members.values_mut();
            members
                .filter_map(|member| member.registrations.remove(&handler.0))
                .collect()
        };
        let removals = registrations.iter().map(Registration::shutdown);
        for outcome in futures::future::join_all(removals).await {
            outcome?;
        }
        Ok(true)
    }

    /// Adds an index to the caches of all namespaces, present and to come.
    ///
    /// # Errors
    /// [`Error::IndexExists`] if the name is taken.
    pub fn add_index(
        &self,
        name: &str,
        function: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) -> Result<(), Error> {
        let function: IndexFunction<K> = Arc::new(function);
        let mut state = self.inner.state.lock();
        if state.indexes.iter().any(|(known, _)| known == name) {
            return Err(Error::IndexExists {
                name: name.to_owned(),
            });
        }
        for member in state.members.values() {
            let function = Arc::clone(&function);
            member
                .informer
                .add_index(name, move |object| function(object))?;
        }
        state.indexes.push((name.to_owned(), function));
        Ok(())
    }

    /// Read access to all caches.
    pub fn lister(&self) -> NamespaceLister<K> {
        NamespaceLister {
            listers: Arc::clone(&self.inner.listers),
        }
    }

    /// Lists, watches and delivers until `stop` is cancelled. Runs once; dropping the future ends
    /// it without waiting for the handlers' tasks.
    ///
    /// # Errors
    /// [`Error::AlreadyRan`] for a second run; else the first with which an informer ended by
    /// itself, which ends the set.
    ///
    /// # Panics
    /// With the panic of an informer.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), Error> {
        if std::mem::replace(&mut self.inner.state.lock().ran, true) {
            return Err(Error::AlreadyRan {
                informer: "a set of namespaces".to_owned(),
            });
        }
        let _stopped = StopOnDrop(self);
        let child = stop.child_token();
        let mut running = JoinSet::new();
        let mut outcome = Ok(());
        while outcome.is_ok() {
            self.start_members(&mut running, &child);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.inner.changed.notified() => {}
                Some(ended) = running.join_next() => {
                    outcome = ended_member(ended).and_then(|key| self.ended(key));
                }
            }
        }
        child.cancel();
        while let Some(ended) = running.join_next().await {
            outcome = outcome.and(ended_member(ended).map(|_| ()));
        }
        outcome
    }

    fn start_members(
        &self,
        running: &mut JoinSet<(Option<String>, Result<(), Error>)>,
        stop: &CancellationToken,
    ) {
        let mut state = self.inner.state.lock();
        for (key, member) in &mut state.members {
            if !std::mem::replace(&mut member.started, true) {
                let (key, informer) = (key.clone(), member.informer.clone());
                let stop = stop.clone();
                running.spawn(async move { (key, informer.run(stop).await) });
            }
        }
    }

    /// An informer has left; one that is wanted again takes its place.
    fn ended(&self, key: Option<String>) -> Result<(), Error> {
        let mut state = self.inner.state.lock();
        let member = self.take_out(&mut state, &key);
        let joined = match state.wanted.get(&key).map(|wanted| wanted.part.clone()) {
            Some(part) => self.join(&mut state, key, &part),
            None => Ok(()),
        };
        drop(state);
        drop(member);
        joined
    }

    /// A member that has not synced yet.
    fn unsynced(&self) -> Option<Joining> {
        let state = self.inner.state.lock();
        let mut members = state.members.values();
        members
            .find(|member| !member.informer.has_synced())
            .map(|member| Joining {
                progress: member.informer.progress(),
                left: Arc::clone(&member.left),
            })
    }
}

/// A choice of namespaces by labels; at its end they are the set's own.
struct Choice<K: Resource + Send + Sync + 'static> {
    set: Namespaces<K>,
    owner: Owner,
}

impl<K: Resource + Send + Sync + 'static> Choice<K> {
    fn take(&self, namespace: &str) {
        if let Err(error) = self.set.add_for(self.owner, namespace) {
            tracing::error!(namespace, %error, "namespace not followed");
        }
    }

    fn leave(&self, namespace: &str) {
        self.set.leave(self.owner, namespace);
    }
}

impl<K: Resource + Send + Sync + 'static> Drop for Choice<K> {
    fn drop(&mut self) {
        let mut state = self.set.inner.state.lock();
        for wanted in state.wanted.values_mut() {
            if wanted.owners.remove(&self.owner) {
                wanted.owners.insert(Owner::Name);
            }
        }
    }
}

fn stopped() -> Error {
    Error::Stopped {
        informer: "a set of namespaces".to_owned(),
    }
}

fn ended_member(
    ended: Result<(Option<String>, Result<(), Error>), tokio::task::JoinError>,
) -> Result<Option<String>, Error> {
    match ended {
        Ok((key, outcome)) => outcome.map(|()| key),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => unreachable!("tasks are aborted only when their set is dropped"),
        },
    }
}

struct StopOnDrop<'a, K>(&'a Namespaces<K>);

impl<K> Drop for StopOnDrop<'_, K> {
    fn drop(&mut self) {
        let mut state = self.0.inner.state.lock();
        state.stopped = true;
        // They may hold this set.
        let told = std::mem::take(&mut state.handlers);
        drop(state);
        drop(told);
        self.0.inner.closed.cancel();
    }
}

impl<K: Resource + Send + Sync + 'static> Subscription<K> {
    fn add_to(&self, informer: &Informer<K>) -> Result<Registration, Error> {
        let handler = SharedHandler(Arc::clone(&self.handler));
        informer.add_handler_with(self.name.clone(), handler, self.options.clone())
    }
}

impl<K: Resource + Send + Sync + 'static> Synced for Namespaces<K> {
    fn name(&self) -> String {
        match self.unsynced() {
            Some(member) => member.progress.name().to_owned(),
            None => "a set of namespaces".to_owned(),
        }
    }

    fn has_synced(&self) -> bool {
        self.unsynced().is_none()
    }

    /// Of the namespaces that are there at the time. Never after the end of the set, if one had not
    /// synced then.
    fn synced(&self) -> BoxFuture<'_, ()> {
        async {
            while let Some(member) = self.unsynced() {
                tokio::select! {
                    () = member.progress.synced.wait() => {}
                    // One that left is not waited for.
                    () = member.left.wait() => {}
                    () = self.inner.closed.cancelled() => std::future::pending().await,
                }
            }
        }
        .boxed()
    }

    fn blocked_by(&self) -> Option<(Cause, String)> {
        self.unsynced()?.progress.last_error()
    }
}

/// Reads over the caches of a set of namespaces. Each cache is read in its newest state; two of
/// them may stand at different versions.
pub struct NamespaceLister<K> {
    // The readers alone: a handler that holds this must not hold itself.
    listers: Arc<ArcSwap<Listers<K>>>,
}

impl<K> Clone for NamespaceLister<K> {
    fn clone(&self) -> Self {
        Self {
            listers: Arc::clone(&self.listers),
        }
    }
}

impl<K> fmt::Debug for NamespaceLister<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamespaceLister")
            .field("parts", &self.listers.load().keys())
            .finish()
    }
}

impl<K: Resource + Send + Sync + 'static> NamespaceLister<K> {
    /// The cache that a namespace's objects are in.
    fn of(&self, namespace: Option<&str>) -> Option<Lister<K>> {
        let listers = self.listers.load();
        let named = listers.get(&namespace.map(str::to_owned));
        named.or_else(|| listers.get(&None)).cloned()
    }

    /// The object of `key`.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.of(key.namespace())?.get(key)
    }

    /// The objects of one namespace.
    pub fn namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let lister = self.of(Some(namespace));
        lister.map_or_else(Vec::new, |lister| lister.namespace(namespace))
    }

    /// All objects.
    pub fn list(&self) -> Vec<Arc<K>> {
        let listers = self.listers.load_full();
        listers.values().flat_map(Lister::list).collect()
    }

    /// The objects whose labels match.
    pub fn select(&self, labels: &Selector) -> Vec<Arc<K>> {
        let listers = self.listers.load_full();
        let selected = listers.values().map(|lister| lister.select(None, labels));
        selected.flatten().collect()
    }

    /// The objects for which the index gives `value`.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn by_index(&self, index: &str, value: &str) -> Result<Vec<Arc<K>>, Error> {
        let listers = self.listers.load_full();
        let mut found = Vec::new();
        for lister in listers.values() {
            found.extend(lister.by_index(index, value)?);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn i103_a_part_sets_the_scope_beside_the_selectors_that_are_there() {
        let mut options = InformerOptions::<ConfigMap> {
            namespace: Some("overwritten".to_owned()),
            field_selector: Some("metadata.name!=x".to_owned()),
            ..InformerOptions::default()
        };
        Part::Others(vec!["a".to_owned(), "b".to_owned()]).apply(&mut options);
        assert_eq!(options.namespace, None);
        assert_eq!(
            options.field_selector.as_deref(),
            Some("metadata.name!=x,metadata.namespace!=a,metadata.namespace!=b")
        );
        let mut options = InformerOptions::<ConfigMap>::default();
        Part::Others(Vec::new()).apply(&mut options);
        assert_eq!(options.field_selector, None);
        Part::Namespace("a".to_owned()).apply(&mut options);
        assert_eq!(options.namespace.as_deref(), Some("a"));
    }
}
