//! Proxies as VMs of Google Compute Engine (P-20 to P-29).
//!
//! [`request`] builds the VM, [`state`] reads one, [`mod@classify`] tells what a refusal means, [`id`]
//! spells names and request ids; all of them are pure. This file carries the calls out.
//!
//! ```text
//!  create ─▶ list by name ─▶ insert(request id) ─▶ operation, for 5 s at most ─▶ get
//!            (in any zone)     │ 409                   failed?                   whose hash?
//!                              └─▶ get: ours → adopt, going → later, else collision
//! ```
//!
//! - An attempt has one request id, so that a retry after a lost answer or a crash meets the operation
//!   that was begun, and never makes a second VM.
//! - Nobody waits for an operation: what it ends with shows in the next look at a VM that is missing.
//! - A name is taken once in a *zone*. A Proxy whose zone was edited between a crash and the retry
//!   would get a second VM, so a create first asks all zones for the name. Where that list fails, an
//!   attempt that may have been sent before waits. One that goes out for the first time does not: a
//!   zone that is down somewhere must not keep a whole project from new VMs.
//! - Metadata holds user data and credentials. It is wiped where a VM is read or not sent, and cut out
//!   of the texts of refusals.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use google_cloud_compute_v1::model;
use google_cloud_compute_v1::model::operation::Status as OperationStatus;
use lru::LruCache;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::{
    Capabilities, Class, CreateRequest, Creation, Error, Hint, Incarnation, Instance,
    InstanceState, Listed, Owner, Pace, Page, Provider, ProviderId, Reason,
};
use crate::crash::{self, Cp};

pub mod classify;
mod client;
pub mod id;
pub mod request;
pub mod settings;
pub mod snapshot;
pub mod state;
pub mod wiping;

pub use client::from_file as credentials_from_file;
pub use settings::Settings;

use classify::{Op, Refusal, UNKNOWN_TRIES};
use client::Clients;
use google_cloud_gax::error::Error as ApiError;
use id::Place;
use snapshot::Snapshot;
use wiping::Wiping;

/// How long a create waits for an older VM of the same name to go.
const BEING_DELETED_RETRY: Duration = Duration::from_secs(2);
/// How long a create watches its operation for an early failure.
const EARLY: Duration = Duration::from_secs(5);
/// Waits between two looks at an operation, the last one over and over.
const EARLY_STEPS: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(400),
    Duration::from_millis(1000),
];
/// VMs asked for in one list call; the most that the API gives.
const PAGE_SIZE: u32 = 500;
/// Proxies whose unknown answers are counted; a forgotten one only has its tries again.
const COUNTED: NonZeroUsize = NonZeroUsize::new(4096).expect("not zero");

/// How fast a project may be called: less than what it allows by default, which is 25 reads and 25
/// changes a second, for others work in it too.
pub const PACE: Pace = Pace {
    per_second: NonZeroU32::new(15).expect("not zero"),
    burst: NonZeroU32::new(30).expect("not zero"),
};

/// Runs each proxy as one VM of a project.
pub struct GceProvider {
    settings: Settings,
    clients: OnceCell<Clients>,
    snapshot: Snapshot,
    /// By UID: how many creates in a row were answered with what nobody knows.
    unknown: Mutex<LruCache<String, u32>>,
}

impl fmt::Debug for GceProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GceProvider")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// What an operation has come to.
enum Progress {
    Running,
    Done,
    Failed(Error),
}

impl GceProvider {
    /// Makes a provider; connects with the first call.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            snapshot: Snapshot::new(settings.max_list_age),
            settings,
            clients: OnceCell::new(),
            unknown: Mutex::new(LruCache::new(COUNTED)),
        }
    }

    async fn clients(&self) -> Result<&Clients, Error> {
        self.clients
            .get_or_try_init(|| Clients::connect(&self.settings))
            .await
    }

    async fn create_vm(&self, request: &CreateRequest) -> Result<Creation, Error> {
        let owner = &request.owner;
        let name = owner.instance_name();
        // Before the inputs are looked at: they may be no good any more, and the VM of older ones there.
        if request.resent
            && let Some(found) = self.find_vm(owner).await?
        {
            return adopted(found, &name);
        }
        let insert = request::build(request, &self.settings)?;
        let place = Place {
            project: self.settings.project.as_str(),
            zone: insert.zone.as_str(),
            name: &name,
        };
        if !request.resent
            && let Some(found) = self.look_around(owner).await?
        {
            return adopted(found, &name);
        }
        let subject = format!("{name} in {} with machine type {}", place.zone, insert.size);
        let sent = self
            .clients()
            .await?
            .instances
            .insert()
            .set_project(place.project)
            .set_zone(place.zone)
            .set_request_id(id::insert_request(&owner.uid, request.attempt))
            .set_body(insert.vm.into_inner())
            .send()
            .await;
        let operation = match sent {
            Ok(operation) => operation,
            Err(error) => {
                let refusal = classify::read(&error);
                if classify::is_already_exists(&refusal) {
                    return self.adopt(place, owner).await;
                }
                return Err(self.insert_refused(owner, &subject, &refusal));
            }
        };
        crash::point(Cp::Cp2);
        let (operation, life) = named(
            &subject,
            &operation,
            self.progress(owner, &subject, &operation),
        )?;
        tracing::info!(
            vm = name,
            zone = place.zone,
            operation = &*operation,
            "insert accepted"
        );
        self.watch_early(place, owner, &operation).await?;
        let unseen = Instance {
            tags: request.tags.clone(),
            spec_hash: Some(request.spec_hash.clone()),
            ..state::unseen(place, life.clone(), Arc::clone(&operation))
        };
        // An operation that is replayed made its VM from what the spec said then, so the VM itself
        // is asked for its hash (S-01).
        let hint = Hint {
            operation: Some(operation),
            ..Hint::default()
        };
        match self.read(place, owner, &hint).await {
            Ok(seen) if seen.incarnation == life && is_made_from(&seen, request) => {
                Ok(Creation::Created(seen))
            }
            Ok(seen) if seen.deleting => Err(being_deleted(&name)),
            Ok(seen) => Ok(Creation::Adopted(seen)),
            Err(_) => Ok(Creation::Created(unseen)),
        }
    }

    /// Asks all zones for a VM of an attempt that nobody has sent before: one of another attempt, whose
    /// end was told. A list that fails says nothing then.
    async fn look_around(&self, owner: &Owner) -> Result<Option<Instance>, Error> {
        match self.find_vm(owner).await {
            Err(error) if !matches!(error.reason(), Reason::Credentials | Reason::Throttled) => {
                tracing::warn!(%error, vm = owner.instance_name(), "other zones were not asked for the name; created all the same");
                Ok(None)
            }
            answer => answer,
        }
    }

    /// S-01: a VM of this name was there; finds out whether it is this Proxy's.
    async fn adopt(&self, place: Place<'_>, owner: &Owner) -> Result<Creation, Error> {
        match self.vm(place).await {
            Ok(vm) if !state::is_owned_by(&vm, owner) => Err(Error::new(
                Reason::NameCollision,
                format!(
                    "VM {} in {} exists and does not carry this Proxy's labels; delete or rename it",
                    place.name, place.zone
                ),
            )),
            Ok(vm) => match state::instance(place.project, &vm, &Hint::default()) {
                Some(found) => adopted(found, place.name),
                None => Err(being_deleted(place.name)),
            },
            Err(error) if error.is_not_found() => Err(being_deleted(place.name)),
            Err(error) => Err(error),
        }
    }

    /// P-25: looks at an operation for a few seconds, so that what fails early is told at once.
    ///
    /// # Errors
    ///
    /// What the operation failed with. A look that fails says nothing about the operation.
    async fn watch_early(
        &self,
        place: Place<'_>,
        owner: &Owner,
        operation: &str,
    ) -> Result<(), Error> {
        let end = Instant::now() + EARLY;
        let last = EARLY_STEPS[EARLY_STEPS.len() - 1];
        for step in EARLY_STEPS.into_iter().chain(std::iter::repeat(last)) {
            if Instant::now() + step > end {
                return Ok(());
            }
            tokio::time::sleep(step).await;
            match self.operation(place, owner, operation).await {
                Ok(Progress::Failed(error)) => return Err(error),
                Ok(Progress::Done) => return Ok(()),
                Ok(Progress::Running) => {}
                Err(error) => tracing::debug!(%error, operation, "not told how it goes on"),
            }
        }
        Ok(())
    }

    async fn operation(
        &self,
        place: Place<'_>,
        owner: &Owner,
        name: &str,
    ) -> Result<Progress, Error> {
        let sent = self
            .clients()
            .await?
            .operations
            .get()
            .set_project(place.project)
            .set_zone(place.zone)
            .set_operation(name)
            .send()
            .await;
        match sent {
            Ok(operation) => Ok(self.progress(owner, place.name, &operation)),
            Err(error) => Err(refused(Op::Operation, name, &error)),
        }
    }

    fn progress(&self, owner: &Owner, subject: &str, operation: &model::Operation) -> Progress {
        if operation.status != Some(OperationStatus::Done) {
            return Progress::Running;
        }
        let Some((code, message)) = classify::failure(operation) else {
            return Progress::Done;
        };
        let mut verdict = classify::operation_verdict(&code);
        if verdict.reason.is_none() && self.one_more_unknown(&owner.uid) {
            verdict.reason = Some(Reason::InvalidInput);
        }
        Progress::Failed(classify::operation_error(
            subject, &code, &message, &verdict,
        ))
    }

    fn insert_refused(&self, owner: &Owner, subject: &str, refusal: &Refusal) -> Error {
        let mut verdict = classify::verdict(Op::Insert, refusal);
        if verdict.reason.is_none() && self.one_more_unknown(&owner.uid) {
            verdict.reason = Some(Reason::InvalidInput);
        }
        classify::error(Op::Insert, subject, refusal, &verdict)
    }

    /// Counts an answer that nobody knows; `true` once there were too many to hope on.
    fn one_more_unknown(&self, uid: &str) -> bool {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        let tries = unknown.get_or_insert_mut(uid.to_owned(), || 0);
        *tries += 1;
        let is_over = *tries > UNKNOWN_TRIES;
        if is_over {
            unknown.pop(uid);
        }
        is_over
    }

    fn answered(&self, uid: &str) {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        unknown.pop(uid);
    }

    async fn get_vm(&self, id: &ProviderId, owner: &Owner, hint: &Hint) -> Result<Instance, Error> {
        let place = Place::parse(id)?;
        if hint.drift
            && !self.settings.max_list_age.is_zero()
            && let Some(seen) = self.glance(id, owner, hint).await
        {
            return Ok(seen);
        }
        match self.read(place, owner, hint).await {
            Err(error) if error.is_not_found() => self.missing(place, owner, hint, error).await,
            Ok(seen) => {
                // Not before: an insert that was accepted may still end with an answer nobody knows.
                if seen.state == InstanceState::Running {
                    self.answered(&owner.uid);
                }
                Ok(seen)
            }
            refused => refused,
        }
    }

    /// P-28: a VM that ran and runs on, as of the latest list; anything else is for a look of its own.
    async fn glance(&self, id: &ProviderId, owner: &Owner, hint: &Hint) -> Option<Instance> {
        let list = self.list_all(&owner.cluster_id);
        let seen = self.snapshot.look(&owner.cluster_id, id, list).await?;
        let is_unchanged = seen.state == InstanceState::Running
            && !seen.deleting
            && hint.incarnation.as_ref() == Some(&seen.incarnation)
            && seen.tags.get(request::LABEL_UID) == Some(&owner.uid.to_ascii_lowercase());
        is_unchanged.then_some(seen)
    }

    async fn list_all(&self, cluster_id: &str) -> Result<Vec<Instance>, Error> {
        let (mut all, mut page) = (Vec::new(), None);
        loop {
            let listed = self.list(cluster_id, page.as_deref()).await?;
            all.extend(listed.instances.into_iter().map(|listed| listed.instance));
            page = listed.next;
            if page.is_none() {
                return Ok(all);
            }
        }
    }

    /// P-25: no VM where one was asked for; its operation says whether there will be one.
    async fn missing(
        &self,
        place: Place<'_>,
        owner: &Owner,
        hint: &Hint,
        gone: Error,
    ) -> Result<Instance, Error> {
        let (Some(operation), Some(life)) = (&hint.operation, &hint.incarnation) else {
            return Err(gone);
        };
        match self.operation(place, owner, operation).await {
            Ok(Progress::Running) => Ok(state::unseen(place, life.clone(), Arc::clone(operation))),
            Ok(Progress::Failed(error)) => Err(error),
            Ok(Progress::Done) => Err(gone),
            // Operations are forgotten after some days.
            Err(error) if error.is_not_found() => Err(gone),
            Err(error) => Err(error),
        }
    }

    /// Reads this owner's VM, live.
    async fn read(&self, place: Place<'_>, owner: &Owner, hint: &Hint) -> Result<Instance, Error> {
        let vm = self.vm(place).await?;
        let gone = || {
            let text = format!(
                "VM {} in {} is not this Proxy's instance",
                place.name, place.zone
            );
            Error::new(Reason::Gone, text)
        };
        if !state::is_owned_by(&vm, owner) {
            return Err(gone());
        }
        state::instance(place.project, &vm, hint).ok_or_else(gone)
    }

    async fn vm(&self, place: Place<'_>) -> Result<Wiping<model::Instance>, Error> {
        let sent = self
            .clients()
            .await?
            .instances
            .get()
            .set_project(place.project)
            .set_zone(place.zone)
            .set_instance(place.name)
            .send()
            .await;
        sent.map(Wiping::new)
            .map_err(|error| refused(Op::Get, place.name, &error))
    }

    /// P-26
    async fn delete_vm(
        &self,
        id: &ProviderId,
        owner: &Owner,
        incarnation: &Incarnation,
    ) -> Result<(), Error> {
        let place = Place::parse(id)?;
        self.snapshot.forget();
        match self.read(place, owner, &Hint::default()).await {
            Ok(seen) if seen.incarnation == *incarnation && !seen.deleting => {}
            // Gone, another life, or going already: deletions that overlap are refused.
            Ok(_) => return Ok(()),
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        }
        let mut failed: Option<String> = None;
        // A deletion that failed is remembered under its request id; one more try has another.
        for _ in 0..2 {
            let request = id::delete_request(&owner.uid, incarnation, failed.as_deref());
            let Some(operation) = self.send_delete(place, request).await? else {
                return Ok(());
            };
            match self.progress(owner, place.name, &operation) {
                Progress::Running | Progress::Done => {
                    tracing::info!(vm = place.name, zone = place.zone, id = %incarnation, "deletion accepted");
                    return Ok(());
                }
                Progress::Failed(error) if failed.is_some() => return Err(as_passing(error)),
                Progress::Failed(_) => failed = Some(operation.name.unwrap_or_default()),
            }
        }
        Ok(())
    }

    /// The operation that deletes, or `None` where there is nothing left to delete.
    async fn send_delete(
        &self,
        place: Place<'_>,
        request: String,
    ) -> Result<Option<model::Operation>, Error> {
        let sent = self
            .clients()
            .await?
            .instances
            .delete()
            .set_project(place.project)
            .set_zone(place.zone)
            .set_instance(place.name)
            .set_request_id(request)
            .send()
            .await;
        match sent {
            Ok(operation) => Ok(Some(operation)),
            Err(error) => {
                let error = refused(Op::Delete, place.name, &error);
                if error.is_not_found() {
                    Ok(None)
                } else {
                    Err(error)
                }
            }
        }
    }

    /// S-02: this owner's VM, in whatever zone; one that stays before one that goes.
    async fn find_vm(&self, owner: &Owner) -> Result<Option<Instance>, Error> {
        let filter = request::name_filter(&owner.instance_name());
        let (mut found, mut silent): (Option<Instance>, Vec<String>) = (None, Vec::new());
        let mut page: Option<String> = None;
        loop {
            let answer = self.list_page(&filter, page.as_deref()).await?;
            for vm in vms(&answer).filter(|vm| state::is_owned_by(vm, owner)) {
                let seen = state::instance(self.settings.project.as_str(), vm, &Hint::default());
                if found.as_ref().is_none_or(|found| found.deleting) {
                    found = seen.or(found);
                }
            }
            silent.extend(unreachable(&answer));
            page = next_page(&answer);
            if page.is_none() {
                break;
            }
        }
        if found.is_none() && !silent.is_empty() {
            let zones = silent.join(", ");
            let text = format!("{zones} did not answer, so nobody knows whether a VM lies there");
            return Err(Error::new(Reason::Unavailable, text));
        }
        Ok(found)
    }

    async fn list(&self, cluster_id: &str, page: Option<&str>) -> Result<Page, Error> {
        let filter = request::cluster_filter(cluster_id);
        let answer = self.list_page(&filter, page).await?;
        let project = self.settings.project.as_str();
        let instances = vms(&answer)
            .filter_map(|vm| {
                let owner = state::owner_of(vm).filter(|owner| *owner.cluster_id == *cluster_id)?;
                let instance = state::instance(project, vm, &Hint::default())?;
                Some(Listed { owner, instance })
            })
            .collect();
        Ok(Page {
            instances,
            unreachable: unreachable(&answer),
            next: next_page(&answer),
        })
    }

    async fn list_page(
        &self,
        filter: &str,
        page: Option<&str>,
    ) -> Result<Wiping<model::InstanceAggregatedList>, Error> {
        let mut call = self
            .clients()
            .await?
            .instances
            .aggregated_list()
            .set_project(self.settings.project.as_str())
            .set_filter(filter)
            .set_max_results(PAGE_SIZE);
        if let Some(token) = page {
            call = call.set_page_token(token);
        }
        call.send()
            .await
            .map(Wiping::new)
            .map_err(|error| refused(Op::List, "of all zones", &error))
    }
}

/// Name of the operation and id of its VM; or what a replayed operation failed with.
fn named(
    subject: &str,
    operation: &model::Operation,
    progress: Progress,
) -> Result<(Arc<str>, Incarnation), Error> {
    if let Progress::Failed(error) = progress {
        return Err(error);
    }
    match (&operation.name, operation.target_id) {
        (Some(name), Some(id)) => Ok((Arc::from(name.as_str()), Incarnation::new(id.to_string()))),
        _ => Err(Error::new(
            Reason::Unavailable,
            format!("insert {subject}: the answer names no operation or no VM"),
        )),
    }
}

/// What a create says of a VM that was there before.
fn adopted(found: Instance, name: &str) -> Result<Creation, Error> {
    if found.deleting {
        Err(being_deleted(name))
    } else {
        Ok(Creation::Adopted(found))
    }
}

fn being_deleted(name: &str) -> Error {
    let text = format!("an older VM {name} is still being deleted");
    Error::new(Reason::BeingDeleted, text).with_retry_after(BEING_DELETED_RETRY)
}

fn is_made_from(seen: &Instance, request: &CreateRequest) -> bool {
    seen.spec_hash
        .as_ref()
        .is_some_and(|hash| hash.tag() == request.spec_hash.tag())
}

/// A deletion asks for no machine, and has no inputs that a Proxy could set right.
fn as_passing(error: Error) -> Error {
    match error.class() {
        Class::QuotaExceeded | Class::Permanent => {
            Error::new(Reason::Unavailable, error.message().to_owned())
        }
        Class::NotFound | Class::Transient => error,
    }
}

fn refused(op: Op, subject: &str, error: &ApiError) -> Error {
    let refusal = classify::read(error);
    classify::error(op, subject, &refusal, &classify::verdict(op, &refusal))
}

fn next_page(answer: &model::InstanceAggregatedList) -> Option<String> {
    let token = answer.next_page_token.as_ref();
    token.filter(|token| !token.is_empty()).cloned()
}

fn vms(answer: &model::InstanceAggregatedList) -> impl Iterator<Item = &model::Instance> {
    answer.items.values().flat_map(|scope| &scope.instances)
}

/// Zones that did not answer, by either way in which a list says so.
fn unreachable(answer: &model::InstanceAggregatedList) -> Vec<String> {
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let warned = answer.items.iter().filter(|(_, scope)| {
        let code = scope
            .warning
            .as_ref()
            .and_then(|warning| warning.code.as_ref());
        code.and_then(|code| code.name()) == Some("UNREACHABLE")
    });
    let mut zones: Vec<String> = answer
        .unreachables
        .iter()
        .map(|path| last(path))
        .chain(warned.map(|(scope, _)| last(scope)))
        .collect();
    zones.sort_unstable();
    zones.dedup();
    zones
}

impl Provider for GceProvider {
    fn create<'a>(&'a self, request: &'a CreateRequest) -> BoxFuture<'a, Result<Creation, Error>> {
        self.create_vm(request).boxed()
    }

    fn get<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        hint: &'a Hint,
    ) -> BoxFuture<'a, Result<Instance, Error>> {
        self.get_vm(id, owner, hint).boxed()
    }

    fn delete<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        incarnation: &'a Incarnation,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.delete_vm(id, owner, incarnation).boxed()
    }

    fn find<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<Option<Instance>, Error>> {
        self.find_vm(owner).boxed()
    }

    fn list_by_tag<'a>(
        &'a self,
        cluster_id: &'a str,
        page: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Page, Error>> {
        self.list(cluster_id, page).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            max_cloud_init_bytes: request::MAX_METADATA_VALUE,
            write_ahead: true,
            eventually_consistent: true,
            supports_spot: true,
        }
    }
}

#[cfg(test)]
mod tests;
