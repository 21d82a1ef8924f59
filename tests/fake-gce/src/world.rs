//! All that the fake cloud holds, what its calls do to it, and how a test steers it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::answer::Refusal;
use crate::filter::Filter;
use crate::machine::{Machine, Status};
use crate::operation::{Failure, Operation};
use crate::rules::{self, Op, Rule};
use crate::settings::Settings;
use crate::validate;

/// Calls that are kept for tests to look at; older ones are forgotten.
const CALLS_KEPT: usize = 100_000;

/// All VMs of a fake cloud; clones show the same ones.
#[derive(Clone, Debug)]
pub struct World {
    settings: Arc<Settings>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// By zone and name.
    machines: BTreeMap<(String, String), Machine>,
    operations: HashMap<String, Operation>,
    /// Request ids, each with its operation and the end of the memory of it.
    requests: HashMap<String, (String, Instant)>,
    rules: Vec<Rule>,
    unreachable: BTreeSet<String>,
    partial: bool,
    quota: Option<usize>,
    calls: VecDeque<Call>,
    inserted: u64,
    numbers: u64,
}

/// A call that came in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Call {
    /// Which one.
    pub op: Op,
    /// Name of the VM or of the operation; the filter, for a list.
    pub what: String,
    /// Its request id, if it had one.
    pub request_id: Option<String>,
}

/// A VM, as a test sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// Its zone.
    pub zone: String,
    /// Its numeric id.
    pub id: u64,
    /// Its status.
    pub status: Status,
    /// A deletion was accepted and goes on.
    pub deleting: bool,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// A page of a list.
pub(crate) struct ListQuery {
    pub(crate) filter: String,
    pub(crate) max_results: Option<usize>,
    pub(crate) page_token: Option<String>,
}

impl World {
    /// An empty world.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let state = State {
            quota: settings.quota,
            partial: true,
            ..State::default()
        };
        Self {
            settings: Arc::new(settings),
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// How this world behaves.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The state, with all that time did to it.
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is complete before anything can panic.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        state.machines.retain(|_, machine| {
            let ends = [machine.gone, machine.fails];
            ends.into_iter().flatten().all(|end| now < end)
        });
        state.requests.retain(|_, (_, end)| now < *end);
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

    /// Lets at most that many VMs exist.
    pub fn set_quota(&self, quota: Option<usize>) {
        self.state().quota = quota;
    }

    /// Lets these zones answer nothing: calls to them are refused with 503, lists leave them out
    /// with a warning.
    pub fn set_unreachable<'a>(&self, zones: impl IntoIterator<Item = &'a str>) {
        self.state().unreachable = zones.into_iter().map(str::to_owned).collect();
    }

    /// Whether a list with an unreachable zone is answered in part (as at the start) or refused.
    pub fn set_partial_lists(&self, partial: bool) {
        self.state().partial = partial;
    }

    /// All VMs, also those that do not show yet.
    #[must_use]
    pub fn machines(&self) -> Vec<Seen> {
        let now = Instant::now();
        self.state()
            .machines
            .values()
            .map(|machine| seen(machine, now))
            .collect()
    }

    /// The VMs of that name, one in a zone at most.
    #[must_use]
    pub fn named(&self, name: &str) -> Vec<Seen> {
        let mut all = self.machines();
        all.retain(|machine| machine.name == name);
        all
    }

    /// A metadata value of the VM of that name.
    #[must_use]
    pub fn metadata(&self, name: &str, key: &str) -> Option<String> {
        let state = self.state();
        let machine = state
            .machines
            .values()
            .find(|machine| machine.name == name)?;
        machine.metadata(key).map(str::to_owned)
    }

    /// Number of VMs ever made.
    #[must_use]
    pub fn inserted(&self) -> u64 {
        self.state().inserted
    }

    /// The calls so far; forgets them.
    #[must_use]
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.state().calls).into()
    }

    /// Puts the VM of that name into a status for good; `false` if there is none.
    pub fn force(&self, name: &str, status: Status) -> bool {
        self.change(name, |machine| machine.forced = Some(status))
    }

    /// Stops the VM of that name, as its own `poweroff` would; `false` if there is none.
    pub fn stop(&self, name: &str) -> bool {
        self.force(name, Status::Terminated)
    }

    /// Takes the VM of that name for others: it is deleted or stopped, as it asked for; `false` if
    /// there is no spot VM of that name.
    pub fn preempt(&self, name: &str) -> bool {
        let deletion = self.settings.deletion;
        let mut taken = false;
        self.change(name, |machine| {
            taken = machine.is_spot();
            if machine.is_spot() && machine.goes_when_preempted() {
                machine.deleting = true;
                machine.gone.get_or_insert(Instant::now() + deletion);
            } else if machine.is_spot() {
                machine.forced = Some(Status::Terminated);
            }
        });
        taken
    }

    /// Lets the VM of that name be gone from one moment to the next; `false` if there is none.
    pub fn vanish(&self, name: &str) -> bool {
        self.change(name, |machine| machine.gone = Some(Instant::now()))
    }

    /// Changes a label of the VM of that name, as a user may; `false` if there is none.
    pub fn set_label(&self, name: &str, key: &str, value: &str) -> bool {
        self.change(name, |machine| machine.set_label(key, value))
    }

    /// Puts a VM with these labels under that name, as somebody else's insert would.
    ///
    /// # Panics
    ///
    /// Where the name is taken in that zone.
    pub fn put(&self, zone: &str, name: &str, labels: &[(&str, &str)]) {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        let resource = json!({
            "name": name, "labels": labels, "networkInterfaces": [{ "accessConfigs": [{}] }],
        });
        let mut state = self.state();
        let id = state.next_number();
        let machine = Machine::new(id, zone, resource, &self.settings);
        let before = state
            .machines
            .insert((zone.to_owned(), name.to_owned()), machine);
        assert!(before.is_none(), "{name} is taken in {zone}");
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Machine)) -> bool {
        match self
            .state()
            .machines
            .values_mut()
            .find(|machine| machine.name == name)
        {
            Some(machine) => {
                change(machine);
                true
            }
            None => false,
        }
    }

    /// Notes a call; answers with the rule that meets it, which is used up by that.
    pub(crate) fn meet(&self, op: Op, what: &str, request_id: Option<&str>) -> Option<Rule> {
        let mut state = self.state();
        if state.calls.len() == CALLS_KEPT {
            state.calls.pop_front();
        }
        state.calls.push_back(Call {
            op,
            what: what.to_owned(),
            request_id: request_id.map(str::to_owned),
        });
        let name = match state.operations.get(what) {
            Some(operation) => operation.machine().to_owned(),
            None => what.to_owned(),
        };
        rules::take(&mut state.rules, op, &name)
    }

    /// `instances.insert`; `fail` is how its operation ends.
    pub(crate) fn insert(
        &self,
        zone: &str,
        resource: Value,
        request_id: Option<&str>,
        fail: Option<Failure>,
    ) -> Result<Value, Box<Refusal>> {
        let project = &self.settings.project;
        let mut state = self.state();
        state.reach(zone, &self.settings)?;
        if let Some(operation) = state.remembered(request_id) {
            return Ok(operation.show(project, Instant::now()));
        }
        validate::check(&resource, project, zone)?;
        let name = resource["name"].as_str().unwrap_or_default().to_owned();
        let place = (zone.to_owned(), name);
        let path = format!("projects/{project}/zones/{zone}/instances/{}", place.1);
        if state.machines.contains_key(&place) {
            let message = format!("The resource '{path}' already exists");
            return Err(Refusal::boxed(409, "alreadyExists", message));
        }
        if let Some(quota) = state.quota.filter(|quota| state.machines.len() >= *quota) {
            let message = format!(
                "Quota 'INSTANCES' exceeded. Limit: {quota}.0 in region {}.",
                region(zone)
            );
            return Err(Box::new(
                Refusal::new(403, "quotaExceeded", message).with_error_info("QUOTA_EXCEEDED"),
            ));
        }
        let id = state.next_number();
        let mut machine = Machine::new(id, zone, resource, &self.settings);
        let done = Instant::now() + self.settings.insert;
        machine.fails = fail.is_some().then_some(done);
        state.inserted += u64::from(fail.is_none());
        state.machines.insert(place, machine);
        Ok(self.begin(
            &mut state,
            "insert",
            zone,
            (path, id),
            done,
            request_id,
            fail,
        ))
    }

    /// `instances.get`
    pub(crate) fn get(&self, zone: &str, name: &str) -> Result<Value, Box<Refusal>> {
        let project = &self.settings.project;
        let state = self.state();
        state.reach(zone, &self.settings)?;
        let now = Instant::now();
        let machine = state.machines.get(&(zone.to_owned(), name.to_owned()));
        match machine.filter(|machine| machine.shows <= now) {
            Some(machine) => Ok(machine.show(project, now)),
            None => Err(Refusal::not_found(&format!(
                "projects/{project}/zones/{zone}/instances/{name}"
            ))),
        }
    }

    /// `instances.delete`; `fail` is how its operation ends.
    pub(crate) fn delete(
        &self,
        zone: &str,
        name: &str,
        request_id: Option<&str>,
        fail: Option<Failure>,
    ) -> Result<Value, Box<Refusal>> {
        let project = &self.settings.project;
        let mut state = self.state();
        state.reach(zone, &self.settings)?;
        if let Some(operation) = state.remembered(request_id) {
            return Ok(operation.show(project, Instant::now()));
        }
        let path = format!("projects/{project}/zones/{zone}/instances/{name}");
        let done = Instant::now() + self.settings.deletion;
        let Some(machine) = state.machines.get_mut(&(zone.to_owned(), name.to_owned())) else {
            return Err(Refusal::not_found(&path));
        };
        if machine.deleting {
            // Deletions that overlap are refused as if there were too many calls.
            let message = "Operation rate exceeded for resource. Too frequent operations from the source resource.";
            return Err(Box::new(
                Refusal::new(403, "rateLimitExceeded", message)
                    .with_error_info("RESOURCE_OPERATION_RATE_EXCEEDED"),
            ));
        }
        if fail.is_none() {
            machine.deleting = true;
            machine.gone = Some(done);
        }
        let target = (path, machine.id);
        Ok(self.begin(&mut state, "delete", zone, target, done, request_id, fail))
    }

    /// `zoneOperations.get`
    pub(crate) fn operation(&self, zone: &str, name: &str) -> Result<Value, Box<Refusal>> {
        let project = &self.settings.project;
        let state = self.state();
        state.reach(zone, &self.settings)?;
        match state
            .operations
            .get(name)
            .filter(|operation| operation.zone == zone)
        {
            Some(operation) => Ok(operation.show(project, Instant::now())),
            None => Err(Refusal::not_found(&format!(
                "projects/{project}/zones/{zone}/operations/{name}"
            ))),
        }
    }

    /// `instances.aggregatedList`
    pub(crate) fn list(&self, query: &ListQuery) -> Result<Value, Box<Refusal>> {
        let filter = Filter::parse(&query.filter)
            .map_err(|why| Refusal::invalid("filter", &query.filter, &why))?;
        let project = &self.settings.project;
        let now = Instant::now();
        let state = self.state();
        if !state.unreachable.is_empty() && !state.partial {
            return Err(Refusal::unavailable());
        }
        let after = match &query.page_token {
            None => None,
            Some(token) => Some(token.split_once('|').ok_or_else(|| {
                Refusal::invalid("pageToken", token, "The page token is invalid.")
            })?),
        };
        let size = query
            .max_results
            .map_or(self.settings.page, |max| max.min(self.settings.page));
        let mut found = state
            .machines
            .iter()
            .filter(|((zone, name), machine)| {
                machine.shows <= now
                    && !state.unreachable.contains(zone)
                    && after.is_none_or(|after| (zone.as_str(), name.as_str()) > after)
            })
            .map(|((zone, name), machine)| (zone, name, machine.show(project, now)))
            .filter(|(_, _, shown)| filter.passes(shown));
        let page: Vec<_> = found.by_ref().take(size).collect();
        let last = page.last().map(|(zone, name, _)| format!("{zone}|{name}"));
        let next = found.next().and(last);
        let mut items: serde_json::Map<String, Value> = self
            .settings
            .zones
            .iter()
            .map(|zone| (format!("zones/{zone}"), state.warning(zone)))
            .collect();
        for (zone, _, shown) in page {
            let scope = &mut items[&format!("zones/{zone}")];
            match scope["instances"].as_array_mut() {
                Some(instances) => instances.push(shown),
                None => *scope = json!({ "instances": [shown] }),
            }
        }
        let unreachable: Vec<_> = state
            .unreachable
            .iter()
            .map(|zone| format!("projects/{project}/zones/{zone}"))
            .collect();
        let mut answer = json!({
            "kind": "compute#instanceAggregatedList",
            "id": format!("projects/{project}/aggregated/instances"),
            "items": items,
        });
        if let Some(next) = next {
            answer["nextPageToken"] = json!(next);
        }
        if !unreachable.is_empty() {
            answer["unreachables"] = json!(unreachable);
        }
        Ok(answer)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of an operation")]
    fn begin(
        &self,
        state: &mut State,
        kind: &'static str,
        zone: &str,
        target: (String, u64),
        done: Instant,
        request_id: Option<&str>,
        error: Option<Failure>,
    ) -> Value {
        let id = state.next_number();
        let inserted = Timestamp::now();
        let operation = Operation {
            id,
            name: format!("operation-{}-{id:x}", inserted.as_millisecond()),
            zone: zone.to_owned(),
            kind,
            target,
            inserted,
            done,
            error,
        };
        if let Some(request) = request_id {
            let end = Instant::now() + self.settings.request_memory;
            state
                .requests
                .insert(request.to_owned(), (operation.name.clone(), end));
        }
        let shown = operation.show(&self.settings.project, Instant::now());
        state.operations.insert(operation.name.clone(), operation);
        shown
    }
}

impl State {
    /// Numbers as the cloud has them: large, and only growing.
    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        4_000_000_000_000_000_000 + self.numbers
    }

    fn reach(&self, zone: &str, settings: &Settings) -> Result<(), Box<Refusal>> {
        if !settings.zones.iter().any(|known| known == zone) {
            let project = &settings.project;
            return Err(Refusal::not_found(&format!(
                "projects/{project}/zones/{zone}"
            )));
        }
        if self.unreachable.contains(zone) {
            return Err(Refusal::unavailable());
        }
        Ok(())
    }

    fn remembered(&self, request_id: Option<&str>) -> Option<&Operation> {
        let (operation, _) = self.requests.get(request_id?)?;
        self.operations.get(operation)
    }

    /// What a scope of a list has in place of VMs.
    fn warning(&self, zone: &str) -> Value {
        let (code, message) = if self.unreachable.contains(zone) {
            (
                "UNREACHABLE",
                format!("Scope 'zones/{zone}' is unreachable."),
            )
        } else {
            let none = format!("There are no results for scope 'zones/{zone}' on this page.");
            ("NO_RESULTS_ON_PAGE", none)
        };
        let data = json!([{ "key": "scope", "value": format!("zones/{zone}") }]);
        json!({ "warning": { "code": code, "message": message, "data": data } })
    }
}

fn seen(machine: &Machine, now: Instant) -> Seen {
    Seen {
        name: machine.name.clone(),
        zone: machine.zone.clone(),
        id: machine.id,
        status: machine.status(now),
        deleting: machine.deleting,
        labels: machine.labels(),
    }
}

fn region(zone: &str) -> &str {
    zone.rsplit_once('-').map_or(zone, |(region, _)| region)
}
