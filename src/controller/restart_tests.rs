//! An operator that dies at a crash point, comes back with another configuration, or is not alone, on the simulated
//! cloud in virtual time. `tests/common/scenarios/crash.rs` has the same deaths of a process, on pods and VMs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::json;
use tokio::time::Instant;

use super::fleet_tests::{Fleet, MINUTE, object, path, plain};
use crate::api::conditions::Reason as Word;
use crate::api::{Phase, Proxy, spec_hash};
use crate::crash::{self, Cp};
use crate::provider::sim::{Op, Rule, Settings, SimProvider};
use crate::provider::{
    Capabilities, CreateRequest, Creation, Error, Hint, Incarnation, Instance, Owner, Page,
    Provider, ProviderId, Registry, name_from_uid,
};

/// Proxies of a fleet that a process dies with.
const SIZE: usize = 2;

/// no Proxy has two machines.
fn one_each(fleet: &Fleet) {
    let mut owners = BTreeSet::new();
    for (owner, _) in fleet.cloud.all() {
        assert!(owners.insert(owner.uid), "two machines of one Proxy");
    }
}

/// Each Proxy is Ready, on the machine that its record names and that was made for its spec.
fn all_are_ready(fleet: &Fleet, case: &str) {
    assert_eq!(fleet.count(Phase::Ready), SIZE, "{case}");
    let machines = fleet.cloud.all().into_iter();
    let machines: BTreeMap<_, _> = machines.map(|(owner, one)| (owner.uid, one)).collect();
    for proxy in fleet.proxies() {
        let uid = proxy.metadata.uid.clone().expect("a UID");
        let machine = &machines[&uid];
        let recorded = proxy
            .status
            .as_ref()
            .and_then(|status| status.instance_uid.as_deref());
        assert_eq!(recorded, Some(machine.incarnation.as_str()), "{case}");
        let wanted = spec_hash(&proxy.spec, None, None).tag();
        let stamped = machine.spec_hash.as_ref().map(|hash| hash.tag());
        assert_eq!(stamped, Some(wanted), "{case}");
    }
}

/// A whole life of a small fleet whose operator dies once, at that point: where each step ends is
/// where it would have ended, with as many machines made.
async fn survives(point: Cp) {
    let cloud = Settings {
        hidden_for: Duration::from_secs(5),
        write_ahead: true,
        ..Settings::default()
    };
    for (kind, settings) in [("plain", Settings::default()), ("cloud", cloud)] {
        let case = |step: &str| format!("{point} of a {kind} provider, {step}");
        let mut fleet = Fleet::on(&settings, SIZE, &plain());
        crash::here::doom(point);
        fleet.watched(5 * MINUTE, one_each).await;
        all_are_ready(&fleet, &case("created"));
        assert_eq!(fleet.cloud.made(), 2, "{}", case("created"));

        for n in 0..SIZE {
            fleet
                .server
                .edit(&path(n), &json!({ "spec": { "port": 7 } }));
        }
        fleet.watched(20 * MINUTE, one_each).await;
        all_are_ready(&fleet, &case("replaced"));
        assert_eq!(fleet.cloud.made(), 4, "{}", case("replaced"));

        assert!(fleet.cloud.vanish(&name_from_uid("u-0")));
        assert!(fleet.cloud.stop(&name_from_uid("u-1")));
        fleet.watched(20 * MINUTE, one_each).await;
        all_are_ready(&fleet, &case("lost"));
        assert_eq!(fleet.cloud.made(), 6, "{}", case("lost"));

        for n in 0..SIZE {
            fleet.server.delete(&path(n));
        }
        fleet.watched(10 * MINUTE, one_each).await;
        assert!(fleet.proxies().is_empty(), "{}", case("deleted"));
        assert_eq!(fleet.cloud.count(), 0, "{}", case("deleted"));
        assert_eq!(fleet.deaths, 1, "{}", case("came by once"));
    }
}

macro_rules! crash_points {
    ($($name:ident: $point:ident,)+) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $name() {
                survives(Cp::$point).await;
            }
        )+
    };
}

crash_points! {
    t16_on_sim_before_the_create_call: Cp1,
    t17_on_sim_create_accepted_answer_lost: Cp2,
    t18_on_sim_create_answered_before_the_annotation: Cp3,
    t19_on_sim_annotation_written_before_the_status: Cp4,
    t20_on_sim_status_written: Cp5,
    t21_on_sim_replacement_gone_annotation_written_id_kept: Cp6,
    t22_on_sim_delete_accepted_status_not_written: Cp7,
    t23_on_sim_instance_gone_finalizer_still_there: Cp8,
    t24_on_sim_finalizer_removed_before_the_status: Cp9,
    t25_on_sim_finalizer_added: Cp10,
}

#[tokio::test(start_paused = true)]
async fn s04_a_provider_that_is_configured_later_serves_after_a_restart_without_any_edit() {
    let mut fleet = Fleet::new(3, &plain());
    fleet.reconciler.providers = Registry::new(BTreeMap::new());
    fleet.run(MINUTE).await;
    assert_eq!(fleet.with_reason(Word::ProviderNotConfigured), 3);
    assert_eq!(fleet.count(Phase::Failed), 3);
    let latched = |proxy: &Proxy| {
        proxy
            .status
            .as_ref()
            .is_some_and(|status| status.latch.is_some())
    };
    assert!(!fleet.proxies().iter().any(|proxy| latched(proxy)));
    assert!(
        fleet.queue.is_empty(),
        "nobody waits for what no time mends"
    );
    fleet.restart();
    fleet.run(5 * MINUTE).await;
    assert_eq!((fleet.count(Phase::Ready), fleet.cloud.made()), (3, 3));
}

/// A call that changes something: when it was made, the UID of its owner, and for a deletion that was accepted the
/// incarnation.
type Deed = (Instant, &'static str, String, Option<String>);

/// One leader's way to the cloud, which writes down what it changes.
#[derive(Clone, Debug)]
struct Noted {
    inner: SimProvider,
    deeds: Arc<Mutex<Vec<Deed>>>,
}

impl Noted {
    fn new(fleet: &mut Fleet) -> Self {
        let noted = Self {
            inner: SimProvider::new(fleet.cloud.clone()),
            deeds: Arc::default(),
        };
        fleet.reach_by(Arc::new(noted.clone()));
        noted
    }

    fn deeds(&self) -> Vec<Deed> {
        self.deeds.lock().expect("not poisoned").clone()
    }

    fn note(&self, began: Instant, op: &'static str, owner: &Owner, of: Option<&Incarnation>) {
        let deed = (began, op, owner.uid.clone(), of.map(ToString::to_string));
        self.deeds.lock().expect("not poisoned").push(deed);
    }

    /// Incarnations whose deletion was accepted, each as often as it was.
    fn deleted(&self) -> Vec<String> {
        let deeds = self.deeds().into_iter();
        deeds.filter_map(|(.., incarnation)| incarnation).collect()
    }
}

impl Provider for Noted {
    fn create<'a>(&'a self, request: &'a CreateRequest) -> BoxFuture<'a, Result<Creation, Error>> {
        self.note(Instant::now(), "create", &request.owner, None);
        self.inner.create(request)
    }

    fn get<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        hint: &'a Hint,
    ) -> BoxFuture<'a, Result<Instance, Error>> {
        self.inner.get(id, owner, hint)
    }

    fn delete<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        incarnation: &'a Incarnation,
    ) -> BoxFuture<'a, Result<(), Error>> {
        let began = Instant::now();
        async move {
            let deleted = self.inner.delete(id, owner, incarnation).await;
            if deleted.is_ok() {
                self.note(began, "delete", owner, Some(incarnation));
            }
            deleted
        }
        .boxed()
    }

    fn find<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<Option<Instance>, Error>> {
        self.inner.find(owner)
    }

    fn list_by_tag<'a>(
        &'a self,
        cluster_id: &'a str,
        page: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Page, Error>> {
        self.inner.list_by_tag(cluster_id, page)
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

/// T30 with calls of that length: two leaders for five seconds, of which the first loses its lead
/// after that time if one is given. Two Proxies are edited, one is deleted, one is new.
async fn two_leaders(seed: u64, loses_lead_after: Option<Duration>) {
    let case = format!("seed {seed}, the first leads for {loses_lead_after:?}");
    let mut first = Fleet::settled(4, &plain()).await;
    let machines = first.cloud.all();
    let old: BTreeMap<_, _> = machines
        .into_iter()
        .map(|(owner, machine)| (owner.uid, machine.incarnation.to_string()))
        .collect();
    // Calls take their time, so that passes of the two meet in the middle of each other.
    for (op, delay) in [(Op::Create, 70), (Op::Get, 30 + 7 * seed), (Op::Delete, 50)] {
        first.cloud.add_rule(Rule {
            op: Some(op),
            delay: Duration::from_millis(delay),
            ..Rule::default()
        });
    }
    for n in 0..2 {
        first
            .server
            .edit(&path(n), &json!({ "spec": { "port": 7 } }));
    }
    first.server.delete(&path(2));
    first.server.put(&path(4), object(4, &plain()));
    let mut second = first.rival();
    let (by_first, by_second) = (Noted::new(&mut first), Noted::new(&mut second));
    let began = Instant::now();
    if let Some(time) = loses_lead_after {
        first.reconciler.leads = Arc::new(move || began.elapsed() < time);
    }
    let made = first.cloud.made();
    let time = Duration::from_secs(5);
    tokio::join!(
        first.watched(time, one_each),
        second.watched(time, one_each)
    );
    if let Some(time) = loses_lead_after {
        let late = by_first.deeds();
        let late: Vec<_> = late.iter().filter(|(at, ..)| *at - began >= time).collect();
        assert!(late.is_empty(), "{case}: S-12: {late:?}");
    }
    drop(first);
    second.cloud.clear_rules();
    second.watched(10 * MINUTE, one_each).await;
    assert_eq!(
        (second.count(Phase::Ready), second.cloud.count()),
        (4, 4),
        "{case}"
    );
    assert_eq!(
        second.cloud.made() - made,
        3,
        "{case}: two replaced, one new"
    );

    // What went is the machine of each Proxy from before, once for each leader at most.
    let wanted: BTreeSet<_> = ["u-0", "u-1", "u-2"].map(|uid| old[uid].clone()).into();
    let mut deleted = BTreeSet::new();
    for noted in [&by_first, &by_second] {
        let own = noted.deleted();
        let different: BTreeSet<_> = own.iter().cloned().collect();
        assert_eq!(
            own.len(),
            different.len(),
            "{case}: a second delete: {own:?}"
        );
        deleted.extend(different);
    }
    assert_eq!(deleted, wanted, "{case}");
}

#[tokio::test(start_paused = true)]
async fn t30_two_leaders_for_five_seconds_make_one_instance_each_and_delete_none_twice() {
    for seed in 0..20_u64 {
        two_leaders(seed, None).await;
    }
}

#[tokio::test(start_paused = true)]
async fn t30_a_leader_that_cannot_be_sure_of_its_lead_changes_nothing_more() {
    for seed in 0..20_u64 {
        two_leaders(seed, Some(Duration::from_millis(40 + 23 * seed))).await;
    }
}
