//! The machines of a simulated cloud, and their lives.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;

use super::rules::{Op, Rule};
use crate::api::{Protocol, SpecHash};
use crate::provider::{
    CreateRequest, Creation, Credentials, Error, Hint, Incarnation, Instance, InstanceState,
    Listed, MANAGED_BY, Owner, Page, ProviderId, Reason, name_from_uid,
};

/// Machines of one page of a listing.
const PAGE: usize = 500;

/// How a simulated cloud behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long machines take to boot: each its own time out of this range. Default 2 s to 5 s.
    pub boot: Range<Duration>,
    /// How long a deletion takes. Default 1 s to 3 s.
    pub deletion: Range<Duration>,
    /// How long a machine that was made does not show in reads. Default none.
    pub hidden_for: Duration,
    /// Wants attempts written down first. Default no.
    pub write_ahead: bool,
    /// Most machines at a time; more are refused for quota. Default without limit.
    pub quota: Option<usize>,
    /// Most calls in a second; more are throttled. Default without limit.
    pub calls_per_second: Option<NonZeroU32>,
    /// Zones that do not answer: listings name them as unreachable, and calls about a machine in
    /// them fail. Default none.
    pub unreachable: BTreeSet<String>,
    /// The address before that of the first machine; each machine takes the next one. Default
    /// 127.64.0.0, of which four million are on loopback.
    pub network: Ipv4Addr,
    /// Machines of protocol http and socks5 run only once [`World::listening`] said that they
    /// serve. Default no: machines serve nothing.
    pub serve: bool,
    /// Decides the times out of the ranges.
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        let secs = Duration::from_secs;
        Self {
            boot: secs(2)..secs(5),
            deletion: secs(1)..secs(3),
            hidden_for: Duration::ZERO,
            write_ahead: false,
            quota: None,
            calls_per_second: None,
            unreachable: BTreeSet::new(),
            network: Ipv4Addr::new(127, 64, 0, 0),
            serve: false,
            seed: 0,
        }
    }
}

/// What a machine serves, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Number of the machine, never used twice.
    pub number: u64,
    /// Its loopback address.
    pub address: Ipv4Addr,
    /// Port of the proxy.
    pub port: u16,
    /// What clients of the proxy speak.
    pub protocol: Protocol,
    /// What clients must send, if anything.
    pub credentials: Option<Credentials>,
}

/// All machines of a simulated cloud; clones show the same ones, and two are equal if they do.
#[derive(Clone, Debug)]
pub struct World {
    state: Arc<Mutex<State>>,
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }
}

impl Eq for World {}

#[derive(Debug)]
struct State {
    settings: Settings,
    began: Instant,
    began_at: Timestamp,
    machines: BTreeMap<String, Machine>,
    /// Machines that go, by the time when they are gone; one that vanished before stays in it.
    going: BTreeSet<(Instant, String)>,
    rules: Vec<Rule>,
    calls: [u64; Op::ALL.len()],
    second: Second,
    made: u64,
}

/// Calls of the second that began last.
#[derive(Debug)]
struct Second {
    began: Instant,
    calls: u32,
}

#[derive(Clone, Debug)]
struct Machine {
    /// `None` for a stranger's.
    owner: Option<Owner>,
    number: u64,
    hash: Option<SpecHash>,
    tags: BTreeMap<String, String>,
    zone: Option<String>,
    made: Instant,
    boots: Instant,
    halted: Option<InstanceState>,
    gone: Option<Instant>,
    /// What it is to serve, and whether it does.
    service: Option<(Service, bool)>,
}

impl World {
    /// An empty world that begins now.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self::beginning_at(settings, Timestamp::now())
    }

    /// An empty world whose wall clock begins with that time.
    #[must_use]
    pub fn beginning_at(settings: Settings, began_at: Timestamp) -> Self {
        let began = Instant::now();
        Self {
            state: Arc::new(Mutex::new(State {
                settings,
                began,
                began_at,
                machines: BTreeMap::new(),
                going: BTreeSet::new(),
                rules: Vec::new(),
                calls: [0; Op::ALL.len()],
                second: Second { began, calls: 0 },
                made: 0,
            })),
        }
    }

    /// How this world behaves.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.state().settings.clone()
    }

    /// Lets it behave otherwise from now on; what was decided of a machine stays.
    pub fn change_settings(&self, change: impl FnOnce(&mut Settings)) {
        change(&mut self.state().settings);
    }

    /// The state, with all that time did to it.
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one insert or remove: a panic in between leaves nothing half done.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.pass_time(Instant::now());
        state
    }

    /// Adds a rule; of several that meet a call the oldest is taken.
    pub fn add_rule(&self, rule: Rule) {
        self.state().rules.push(rule);
    }

    /// Drops all rules.
    pub fn clear_rules(&self) {
        self.state().rules.clear();
    }

    /// The rules, oldest first, with what is left of their times.
    #[must_use]
    pub fn rules(&self) -> Vec<Rule> {
        self.state().rules.clone()
    }

    /// Number of calls so far, those that failed included.
    #[must_use]
    pub fn calls(&self, op: Op) -> u64 {
        self.state().calls[op as usize]
    }

    /// Counts a call, and answers with the rule that meets it, which is used up by that.
    ///
    /// # Errors
    ///
    /// [`Reason::Throttled`] if there were too many calls in this second.
    pub(super) fn fault(&self, op: Op, owner: Option<&Owner>) -> Result<Option<Rule>, Error> {
        let mut state = self.state();
        state.calls[op as usize] += 1;
        state.throttle(Instant::now())?;
        let mut found = state.rules.iter_mut().enumerate();
        let Some((at, rule)) = found.find_map(|(at, rule)| Some((at, rule.take(op, owner)?)))
        else {
            return Ok(None);
        };
        if state.rules[at].times == Some(0) {
            state.rules.remove(at);
        }
        Ok(Some(rule))
    }

    /// What the machines that have not halted are to serve; empty without [`Settings::serve`].
    #[must_use]
    pub fn services(&self) -> Vec<Service> {
        let state = self.state();
        let machines = state.machines.values();
        let alive = machines.filter(|machine| machine.halted.is_none());
        alive
            .filter_map(|machine| Some(machine.service.as_ref()?.0.clone()))
            .collect()
    }

    /// Says that the machine of that number serves now.
    pub fn listening(&self, number: u64) {
        let mut state = self.state();
        let machines = state.machines.values_mut();
        for machine in machines.filter(|machine| machine.number == number) {
            if let Some((_, listens)) = &mut machine.service {
                *listens = true;
            }
        }
    }

    /// Number of machines, strangers' included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.state().machines.len()
    }

    /// Number of machines ever made.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.state().made
    }

    /// All machines that belong to a Proxy, with their owners, by name.
    #[must_use]
    pub fn all(&self) -> Vec<(Owner, Instance)> {
        let state = self.state();
        let machines = state.machines.iter();
        machines
            .filter_map(|(name, machine)| Some((machine.owner.clone()?, state.show(name, machine))))
            .collect()
    }

    /// Stops the machine of that name; `false` if there is none.
    pub fn stop(&self, name: &str) -> bool {
        let mut state = self.state();
        let machine = state.machines.get_mut(name);
        machine
            .map(|machine| machine.halted = Some(InstanceState::Stopped))
            .is_some()
    }

    /// Takes the machine of that name away as a cloud takes spot machines; `false` if there is none.
    pub fn preempt(&self, name: &str) -> bool {
        let mut state = self.state();
        let Some(machine) = state.machines.get_mut(name) else {
            return false;
        };
        machine.halted = Some(InstanceState::Terminated);
        state.let_go(name);
        true
    }

    /// Lets the machine of that name be gone from one moment to the next; `false` if there is none.
    pub fn vanish(&self, name: &str) -> bool {
        self.state().machines.remove(name).is_some()
    }

    /// Lets a zone answer no more: listings name it as unreachable, and calls about a machine in it
    /// fail.
    pub fn cut_off(&self, zone: &str) {
        let mut state = self.state();
        state.settings.unreachable.insert(zone.to_owned());
    }

    /// Lets all zones answer again.
    pub fn reconnect(&self) {
        self.state().settings.unreachable.clear();
    }

    /// Puts a machine under that name that belongs to nobody the operator knows.
    pub fn put_stranger(&self, name: &str) {
        let now = Instant::now();
        let mut state = self.state();
        state.made += 1;
        let stranger = Machine {
            owner: None,
            number: state.made,
            hash: None,
            tags: BTreeMap::new(),
            zone: None,
            made: now,
            boots: now,
            halted: None,
            gone: None,
            service: None,
        };
        state.machines.insert(name.to_owned(), stranger);
    }

    pub(super) fn create(&self, request: &CreateRequest) -> Result<Creation, Error> {
        let name = request.owner.instance_name();
        let mut state = self.state();
        if let Some(machine) = state.machines.get(&name) {
            if !machine.is_of(&request.owner) {
                let taken = format!("{name} is the name of a machine of somebody else");
                return Err(Error::new(Reason::NameCollision, taken));
            }
            if machine.gone.is_some() {
                let going = format!("{name} is still being deleted");
                return Err(Error::new(Reason::BeingDeleted, going)
                    .with_retry_after(Duration::from_secs(2)));
            }
            return Ok(Creation::Adopted(state.show(&name, machine)));
        }
        let used = state.machines.len();
        if state.settings.quota.is_some_and(|quota| used >= quota) {
            let used_up = format!("all {used} machines of the quota are in use");
            return Err(Error::new(Reason::Quota, used_up));
        }
        state.made += 1;
        let now = Instant::now();
        let settings = &state.settings;
        let boot = within(&settings.boot, settings.seed, state.made, Purpose::Boot);
        // Nobody here speaks TLS to its clients; such a machine runs and serves nothing.
        let is_served = settings.serve && request.protocol != Protocol::Https;
        let service = is_served.then(|| Service {
            number: state.made,
            address: address(settings.network, state.made),
            port: request.port,
            protocol: request.protocol,
            credentials: request.credentials.clone(),
        });
        let machine = Machine {
            owner: Some(request.owner.clone()),
            number: state.made,
            hash: SpecHash::from_tag(&request.spec_hash.tag()).ok(),
            tags: tags(request),
            zone: request.machine.zone.clone(),
            made: now,
            boots: now + boot,
            halted: None,
            gone: None,
            service: service.map(|service| (service, false)),
        };
        let shown = state.show(&name, &machine);
        state.machines.insert(name, machine);
        Ok(Creation::Created(shown))
    }

    /// The error of a call about the machine of that name, if it lies in a zone that does not answer.
    pub(super) fn outage(&self, name: &str) -> Option<Error> {
        let state = self.state();
        let machine = state.machines.get(name)?;
        let zone = machine
            .zone
            .as_deref()
            .filter(|_| state.is_cut_off(machine))?;
        let silent = format!("zone {zone} does not answer");
        Some(Error::new(Reason::Unavailable, silent))
    }

    pub(super) fn get(
        &self,
        id: &ProviderId,
        owner: &Owner,
        hint: &Hint,
    ) -> Result<Instance, Error> {
        let gone = || Error::new(Reason::Gone, format!("there is no {id}"));
        let name = name_of(id).ok_or_else(gone)?;
        // Whoever knows the operation that makes it sees a machine before it shows.
        let operation = hint.operation.as_deref();
        self.read(name, owner, operation).ok_or_else(gone)
    }

    /// The machine of that owner, if it shows.
    #[must_use]
    pub fn find(&self, owner: &Owner) -> Option<Instance> {
        self.read(&owner.instance_name(), owner, None)
    }

    fn read(&self, name: &str, owner: &Owner, operation: Option<&str>) -> Option<Instance> {
        let state = self.state();
        let machine = state.machines.get(name)?;
        let shows = !state.is_hidden(machine) || operation == Some(&*machine.operation());
        (shows && machine.is_of(owner)).then(|| state.show(name, machine))
    }

    pub(super) fn delete(&self, id: &ProviderId, owner: &Owner, incarnation: &Incarnation) {
        let Some(name) = name_of(id) else { return };
        let mut state = self.state();
        let found = state
            .machines
            .get(name)
            .is_some_and(|machine| machine.is_of(owner) && machine.incarnation() == *incarnation);
        if found {
            state.let_go(name);
        }
    }

    pub(super) fn list(&self, cluster_id: &str, page: Option<&str>) -> Page {
        let state = self.state();
        let after = page.unwrap_or_default();
        let mut ours = state.machines.iter().filter_map(|(name, machine)| {
            let owner = machine.owner.as_ref()?;
            let shows = name.as_str() > after
                && *owner.cluster_id == *cluster_id
                && !state.is_hidden(machine)
                && !state.is_cut_off(machine);
            shows.then(|| Listed {
                owner: owner.clone(),
                instance: state.show(name, machine),
            })
        });
        let instances: Vec<_> = ours.by_ref().take(PAGE).collect();
        let next = ours
            .next()
            .and(instances.last())
            .map(|last| last.instance.id.name().to_owned());
        Page {
            instances,
            next,
            unreachable: state.settings.unreachable.iter().cloned().collect(),
        }
    }
}

impl Machine {
    /// P-05: of this cluster and this Proxy.
    fn is_of(&self, owner: &Owner) -> bool {
        self.owner
            .as_ref()
            .is_some_and(|own| own.uid == owner.uid && own.cluster_id == owner.cluster_id)
    }

    fn operation(&self) -> String {
        format!("operation-{}", self.number)
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation::new(self.number.to_string())
    }
}

impl State {
    fn is_cut_off(&self, machine: &Machine) -> bool {
        let zone = machine.zone.as_deref();
        zone.is_some_and(|zone| self.settings.unreachable.contains(zone))
    }

    /// Takes away the machines whose deletion has come to its end.
    fn pass_time(&mut self, now: Instant) {
        while let Some((gone, _)) = self.going.first()
            && *gone <= now
        {
            let Some((gone, name)) = self.going.pop_first() else {
                return;
            };
            // One of that name that was made since, after it vanished, is another machine.
            if self.machines.get(&name).and_then(|machine| machine.gone) == Some(gone) {
                self.machines.remove(&name);
            }
        }
    }

    /// Begins the deletion of the machine of that name, unless it goes already.
    fn let_go(&mut self, name: &str) {
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        if machine.gone.is_some() {
            return;
        }
        let Settings { deletion, seed, .. } = &self.settings;
        let gone = Instant::now() + within(deletion, *seed, machine.number, Purpose::Deletion);
        machine.gone = Some(gone);
        self.going.insert((gone, name.to_owned()));
    }

    /// Counts a call of this second.
    fn throttle(&mut self, now: Instant) -> Result<(), Error> {
        let Some(limit) = self.settings.calls_per_second else {
            return Ok(());
        };
        let length = Duration::from_secs(1);
        if now.duration_since(self.second.began) >= length {
            self.second = Second {
                began: now,
                calls: 0,
            };
        }
        if self.second.calls >= limit.get() {
            let left = length.saturating_sub(now.duration_since(self.second.began));
            let text = format!("simulated: more than {limit} calls in a second");
            return Err(Error::new(Reason::Throttled, text)
                .with_code(429)
                .with_retry_after(left));
        }
        self.second.calls += 1;
        Ok(())
    }

    fn is_hidden(&self, machine: &Machine) -> bool {
        machine.made.elapsed() < self.settings.hidden_for
    }

    fn show(&self, name: &str, machine: &Machine) -> Instance {
        let now = Instant::now();
        let listens = machine.service.as_ref().is_none_or(|(_, listens)| *listens);
        let state = machine
            .halted
            .unwrap_or(if now < machine.boots || !listens {
                InstanceState::Provisioning
            } else {
                InstanceState::Running
            });
        let is_up = state == InstanceState::Running;
        let age = SignedDuration::try_from(machine.made.duration_since(self.began));
        Instance {
            id: ProviderId::new(format!("sim://{name}")),
            incarnation: machine.incarnation(),
            state,
            deleting: machine.gone.is_some(),
            ready: is_up,
            ips: is_up
                .then(|| address(self.settings.network, machine.number).to_string())
                .into_iter()
                .collect(),
            zone: machine.zone.clone(),
            created: age.ok().and_then(|age| self.began_at.checked_add(age).ok()),
            tags: machine.tags.clone(),
            spec_hash: machine.hash.clone(),
            message: Cow::Borrowed(""),
            operation: self
                .is_hidden(machine)
                .then(|| Arc::from(machine.operation())),
        }
    }
}

/// P-05: the user's tags, and over them those that say whose machine it is.
fn tags(request: &CreateRequest) -> BTreeMap<String, String> {
    let owner = &request.owner;
    let mut tags = request.tags.clone();
    tags.extend([
        ("pxo-managed".to_owned(), MANAGED_BY.to_owned()),
        ("pxo-cluster".to_owned(), owner.cluster_id.to_string()),
        ("pxo-uid".to_owned(), owner.uid.clone()),
        ("pxo-hash".to_owned(), request.spec_hash.tag()),
    ]);
    tags
}

fn name_of(id: &ProviderId) -> Option<&str> {
    let name = id.as_str().strip_prefix("sim://")?;
    name.starts_with(&name_from_uid("")).then_some(name)
}

/// An address of its own for each of the first four million machines.
fn address(network: Ipv4Addr, number: u64) -> Ipv4Addr {
    let [.., a, b, c] = number.to_be_bytes();
    Ipv4Addr::from(u32::from(network) + u32::from_be_bytes([0, a & 63, b, c]))
}

/// What a time out of a range is for.
#[derive(Clone, Copy)]
enum Purpose {
    Boot,
    Deletion,
}

/// From half of it to all of it, as files and requests give times.
pub(crate) fn up_to(longest: Duration) -> Range<Duration> {
    longest / 2..longest
}

/// A time within the range that follows from seed, machine and purpose alone.
fn within(range: &Range<Duration>, seed: u64, number: u64, purpose: Purpose) -> Duration {
    if range.is_empty() {
        return range.start;
    }
    let mut mix = [0; 32];
    mix[..8].copy_from_slice(&seed.to_le_bytes());
    mix[8..16].copy_from_slice(&number.to_le_bytes());
    mix[16] = purpose as u8;
    StdRng::from_seed(mix).random_range(range.clone())
}
