//! The machines of a simulated cloud, and their lives.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;

use super::rules::{Op, Rule};
use crate::api::SpecHash;
use crate::provider::{
    CreateRequest, Creation, Error, Hint, Incarnation, Instance, InstanceState, Listed, MANAGED_BY,
    Owner, Page, ProviderId, Reason, name_from_uid,
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
            seed: 0,
        }
    }
}

/// All machines of a simulated cloud; clones show the same ones.
#[derive(Clone, Debug)]
pub struct World {
    settings: Arc<Settings>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    began: Instant,
    began_at: Timestamp,
    machines: BTreeMap<String, Machine>,
    rules: Vec<Rule>,
    /// Zones that do not answer.
    cut_off: BTreeSet<String>,
    made: u64,
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
        Self {
            settings: Arc::new(settings),
            state: Arc::new(Mutex::new(State {
                began: Instant::now(),
                began_at,
                machines: BTreeMap::new(),
                rules: Vec::new(),
                cut_off: BTreeSet::new(),
                made: 0,
            })),
        }
    }

    /// How this world behaves.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The state, with all that time did to it.
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one insert or remove: a panic in between leaves nothing half done.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        state
            .machines
            .retain(|_, machine| machine.gone.is_none_or(|gone| now < gone));
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

    /// The rule that meets a call, which is used up by that.
    pub(super) fn fault(&self, op: Op, owner: Option<&Owner>) -> Option<Rule> {
        let mut state = self.state();
        let at = state.rules.iter().position(|rule| rule.meets(op, owner))?;
        let rule = state.rules[at].clone();
        if let Some(times) = &mut state.rules[at].times {
            *times -= 1;
            if *times == 0 {
                state.rules.remove(at);
            }
        }
        Some(rule)
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
        self.change(name, |machine, _| {
            machine.halted = Some(InstanceState::Stopped)
        })
    }

    /// Takes the machine of that name away as a cloud takes spot machines; `false` if there is none.
    pub fn preempt(&self, name: &str) -> bool {
        let settings = Arc::clone(&self.settings);
        self.change(name, move |machine, now| {
            machine.halted = Some(InstanceState::Terminated);
            let gone = now
                + within(
                    &settings.deletion,
                    settings.seed,
                    machine.number,
                    Purpose::Deletion,
                );
            machine.gone.get_or_insert(gone);
        })
    }

    /// Lets the machine of that name be gone from one moment to the next; `false` if there is none.
    pub fn vanish(&self, name: &str) -> bool {
        self.state().machines.remove(name).is_some()
    }

    /// Lets a zone answer no more: listings name it as unreachable, and calls about a machine in it
    /// fail.
    pub fn cut_off(&self, zone: &str) {
        self.state().cut_off.insert(zone.to_owned());
    }

    /// Lets all zones answer again.
    pub fn reconnect(&self) {
        self.state().cut_off.clear();
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
        };
        state.machines.insert(name.to_owned(), stranger);
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Machine, Instant)) -> bool {
        match self.state().machines.get_mut(name) {
            Some(machine) => {
                change(machine, Instant::now());
                true
            }
            None => false,
        }
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
            return Ok(Creation::Adopted(self.show(&state, &name, machine)));
        }
        let used = state.machines.len();
        if self.settings.quota.is_some_and(|quota| used >= quota) {
            let used_up = format!("all {used} machines of the quota are in use");
            return Err(Error::new(Reason::Quota, used_up));
        }
        state.made += 1;
        let now = Instant::now();
        let boot = within(
            &self.settings.boot,
            self.settings.seed,
            state.made,
            Purpose::Boot,
        );
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
        };
        let shown = self.show(&state, &name, &machine);
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
        let shows = !self.is_hidden(machine) || operation == Some(&*machine.operation());
        (shows && machine.is_of(owner)).then(|| self.show(&state, name, machine))
    }

    fn is_hidden(&self, machine: &Machine) -> bool {
        machine.made.elapsed() < self.settings.hidden_for
    }

    fn show(&self, state: &State, name: &str, machine: &Machine) -> Instance {
        Instance {
            operation: self
                .is_hidden(machine)
                .then(|| Arc::from(machine.operation())),
            ..state.show(name, machine)
        }
    }

    pub(super) fn delete(&self, id: &ProviderId, owner: &Owner, incarnation: &Incarnation) {
        let settings = Arc::clone(&self.settings);
        let Some(name) = name_of(id) else { return };
        self.change(name, move |machine, now| {
            if machine.is_of(owner) && machine.incarnation() == *incarnation {
                let gone = now
                    + within(
                        &settings.deletion,
                        settings.seed,
                        machine.number,
                        Purpose::Deletion,
                    );
                machine.gone.get_or_insert(gone);
            }
        });
    }

    pub(super) fn list(&self, cluster_id: &str, page: Option<&str>) -> Page {
        let state = self.state();
        let after = page.unwrap_or_default();
        let mut ours = state.machines.iter().filter_map(|(name, machine)| {
            let owner = machine.owner.as_ref()?;
            let shows = name.as_str() > after
                && *owner.cluster_id == *cluster_id
                && !self.is_hidden(machine)
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
            unreachable: state.cut_off.iter().cloned().collect(),
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
        zone.is_some_and(|zone| self.cut_off.contains(zone))
    }

    fn show(&self, name: &str, machine: &Machine) -> Instance {
        let now = Instant::now();
        let state = machine.halted.unwrap_or(if now < machine.boots {
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
            ips: is_up.then(|| address(machine.number)).into_iter().collect(),
            zone: machine.zone.clone(),
            created: age.ok().and_then(|age| self.began_at.checked_add(age).ok()),
            tags: machine.tags.clone(),
            spec_hash: machine.hash.clone(),
            message: Cow::Borrowed(""),
            operation: None,
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

/// A loopback address of its own for each of the first four million machines.
fn address(number: u64) -> String {
    let [.., a, b, c] = number.to_be_bytes();
    format!("127.{}.{b}.{c}", 64 + (a & 63))
}

/// What a time out of a range is for.
#[derive(Clone, Copy)]
enum Purpose {
    Boot,
    Deletion,
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
