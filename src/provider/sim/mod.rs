//! P-30: a simulated cloud, for trying things out without paying for machines.
//!
//! Its [`World`] lives in memory, and dies with the process that holds it. Machines boot after a
//! time from a range, go away after another, and can be stopped, preempted or made to vanish;
//! [`Rule`]s let calls fail, before or after their effect. All times follow the runtime's clock,
//! so that under a paused clock the world is a virtual one. [`admin`] lets all of that be done from
//! outside by HTTP.

use futures::FutureExt;
use futures::future::BoxFuture;

use super::{
    Capabilities, CreateRequest, Creation, Error, Hint, Incarnation, Instance, Owner, Page,
    Provider, ProviderId,
};
use crate::crash::{self, Cp};

pub mod admin;
mod rules;
mod world;

pub use rules::{Op, Rule, When};
pub(super) use world::up_to;
pub use world::{Service, Settings, World};

/// Most bytes of user data that a simulated machine takes; the same as a GCE VM.
pub const MAX_CLOUD_INIT_BYTES: usize = 256 * 1024;

/// A provider of simulated machines; clones share the world.
#[derive(Clone, Debug)]
pub struct SimProvider {
    world: World,
}

impl SimProvider {
    /// A provider of the machines of this world.
    #[must_use]
    pub fn new(world: World) -> Self {
        Self { world }
    }

    /// The world behind the provider.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// One call: what the rules say, around the effect.
    async fn call<T>(
        &self,
        op: Op,
        owner: Option<&Owner>,
        effect: impl FnOnce(&World) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(error) = owner.and_then(|owner| self.world.outage(&owner.instance_name())) {
            return Err(error);
        }
        let Some(rule) = self.world.fault(op, owner)? else {
            return effect(&self.world);
        };
        match (rule.error(op), rule.when) {
            (Some(error), When::Before) => {
                tokio::time::sleep(rule.delay).await;
                Err(error)
            }
            // The answer is lost, not the effect.
            (Some(error), When::After) => {
                let _lost = effect(&self.world);
                tokio::time::sleep(rule.delay).await;
                Err(error)
            }
            (None, _) => {
                tokio::time::sleep(rule.delay).await;
                effect(&self.world)
            }
        }
    }
}

impl Provider for SimProvider {
    fn create<'a>(&'a self, request: &'a CreateRequest) -> BoxFuture<'a, Result<Creation, Error>> {
        async move {
            let owner = Some(&request.owner);
            let created = self.call(Op::Create, owner, |world| world.create(request));
            let created = created.await;
            if matches!(created, Ok(Creation::Created(_))) {
                crash::point(Cp::Cp2);
            }
            created
        }
        .boxed()
    }

    fn get<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        hint: &'a Hint,
    ) -> BoxFuture<'a, Result<Instance, Error>> {
        self.call(Op::Get, Some(owner), |world| world.get(id, owner, hint))
            .boxed()
    }

    fn delete<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        incarnation: &'a Incarnation,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.call(Op::Delete, Some(owner), |world| {
            world.delete(id, owner, incarnation);
            Ok(())
        })
        .boxed()
    }

    fn find<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<Option<Instance>, Error>> {
        self.call(Op::Find, Some(owner), |world| Ok(world.find(owner)))
            .boxed()
    }

    fn list_by_tag<'a>(
        &'a self,
        cluster_id: &'a str,
        page: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Page, Error>> {
        self.call(
            Op::List,
            None,
            move |world| Ok(world.list(cluster_id, page)),
        )
        .boxed()
    }

    fn capabilities(&self) -> Capabilities {
        let settings = self.world.settings();
        Capabilities {
            max_cloud_init_bytes: MAX_CLOUD_INIT_BYTES,
            write_ahead: settings.write_ahead,
            eventually_consistent: !settings.hidden_for.is_zero(),
            supports_spot: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::conformance::{
        FORGED_LABELS, life_of_an_instance, owner, request, tags_of_users_forge_no_owner,
    };
    use super::super::{InstanceState, Reason};
    use super::*;

    fn provider(settings: Settings) -> SimProvider {
        SimProvider::new(World::new(settings))
    }

    async fn pass(time: Duration) {
        tokio::time::advance(time).await;
    }

    #[tokio::test(start_paused = true)]
    async fn p07_a_simulated_machine_lives_as_every_instance_does() {
        let sim = provider(Settings::default());
        let gone = sim.world().settings().deletion.end;
        life_of_an_instance(&sim, async || pass(gone).await).await;
    }

    #[tokio::test(start_paused = true)]
    async fn t84_tags_of_users_do_not_change_whose_a_simulated_machine_is() {
        tags_of_users_forge_no_owner(&provider(Settings::default()), &FORGED_LABELS).await;
    }

    #[tokio::test(start_paused = true)]
    async fn t85_a_zone_that_does_not_answer_is_named_and_its_machines_are_not_gone() {
        let sim = provider(Settings::default());
        for (uid, zone) in [("u-1", "zone-a"), ("u-2", "zone-b")] {
            let mut wanted = request(uid);
            wanted.machine.zone = Some(zone.to_owned());
            sim.create(&wanted).await.expect("made");
        }
        sim.world().cut_off("zone-a");
        let page = sim.list_by_tag("cluster-1", None).await.expect("lists");
        assert_eq!(page.unreachable, ["zone-a"]);
        let uids: Vec<_> = page.instances.iter().map(|one| &one.owner.uid).collect();
        assert_eq!(uids, ["u-2"]);
        let refused = sim.find(&owner("u-1")).await.expect_err("no answer");
        assert_eq!(refused.reason(), Reason::Unavailable);
        sim.world().reconnect();
        assert!(sim.find(&owner("u-1")).await.expect("answers").is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_boots_within_its_range_and_runs_with_an_address_of_its_own() {
        let boot = Duration::from_secs(20)..Duration::from_secs(40);
        let sim = provider(Settings {
            boot: boot.clone(),
            ..Settings::default()
        });
        let mut addresses = std::collections::BTreeSet::new();
        for n in 0..50 {
            sim.create(&request(&format!("u-{n}"))).await.expect("made");
        }
        let states = || {
            (0..50).map(|n| {
                let seen = sim.world().find(&owner(&format!("u-{n}"))).expect("there");
                (seen.state, seen.ip().map(str::to_owned))
            })
        };
        pass(boot.start - Duration::from_millis(1)).await;
        assert!(states().all(|(state, ip)| state == InstanceState::Provisioning && ip.is_none()));
        pass(Duration::from_secs(10)).await;
        let early = states()
            .filter(|(state, _)| *state == InstanceState::Running)
            .count();
        assert!((10..40).contains(&early), "spread over the range: {early}");
        pass(Duration::from_secs(10)).await;
        for (state, ip) in states() {
            assert_eq!(state, InstanceState::Running);
            assert!(
                addresses.insert(ip.expect("an address")),
                "no address twice"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_can_be_stopped_preempted_and_made_to_vanish() {
        let sim = provider(Settings::default());
        for uid in ["u-1", "u-2", "u-3"] {
            sim.create(&request(uid)).await.expect("made");
        }
        pass(Duration::from_secs(3600)).await;
        let (stopped, preempted, lost) = (owner("u-1"), owner("u-2"), owner("u-3"));
        assert!(sim.world().stop(&stopped.instance_name()));
        assert!(sim.world().preempt(&preempted.instance_name()));
        assert!(sim.world().vanish(&lost.instance_name()));
        assert!(
            !sim.world().vanish(&lost.instance_name()),
            "it is gone already"
        );
        let state = |owner: &Owner| {
            sim.world()
                .find(owner)
                .map(|seen| (seen.state, seen.deleting))
        };
        assert_eq!(state(&stopped), Some((InstanceState::Stopped, false)));
        assert_eq!(state(&preempted), Some((InstanceState::Terminated, true)));
        assert_eq!(state(&lost), None);
        pass(Duration::from_secs(3600)).await;
        assert_eq!(state(&preempted), None, "its deletion came to its end");
        assert_eq!(state(&stopped), Some((InstanceState::Stopped, false)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_eventually_consistent_world_hides_what_was_just_made() {
        let hidden_for = Duration::from_secs(3);
        let sim = provider(Settings {
            hidden_for,
            ..Settings::default()
        });
        let made = sim.create(&request("u-1")).await.expect("made");
        let owner = owner("u-1");
        let id = &made.instance().id;
        let hint = Hint::default();
        assert!(
            sim.get(id, &owner, &hint)
                .await
                .expect_err("hidden")
                .is_not_found()
        );
        assert_eq!(sim.find(&owner).await, Ok(None));
        let operation = made.instance().operation.clone();
        let with_operation = Hint {
            operation,
            ..Hint::default()
        };
        let seen = sim
            .get(id, &owner, &with_operation)
            .await
            .expect("its operation tells");
        assert_eq!(seen.state, InstanceState::Provisioning);
        assert!(
            matches!(sim.create(&request("u-1")).await, Ok(Creation::Adopted(_))),
            "a name is taken at once"
        );
        pass(hidden_for).await;
        assert!(sim.get(id, &owner, &hint).await.is_ok());
        assert!(sim.capabilities().eventually_consistent);
    }

    #[tokio::test(start_paused = true)]
    async fn rules_fail_the_calls_that_they_name_as_often_as_they_say() {
        let sim = provider(Settings::default());
        let rule = |when, times| Rule {
            op: Some(Op::Create),
            matching: Some("proxy-u-1".to_owned()),
            error: Some(Reason::Timeout),
            times: Some(times),
            delay: Duration::from_secs(5),
            when,
            ..Rule::default()
        };
        sim.world().add_rule(rule(When::Before, 2));
        sim.world().add_rule(rule(When::After, 1));
        let began = tokio::time::Instant::now();
        for round in 0..3 {
            assert_eq!(sim.world().count(), round / 3, "no effect in round {round}");
            let refused = sim.create(&request("u-1")).await.expect_err("refused");
            assert_eq!(refused.reason(), Reason::Timeout);
        }
        assert_eq!(began.elapsed(), Duration::from_secs(15));
        assert!(matches!(
            sim.create(&request("u-1")).await,
            Ok(Creation::Adopted(_))
        ));
        assert!(
            matches!(sim.create(&request("u-2")).await, Ok(Creation::Created(_))),
            "nobody else is met"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_rule_without_an_error_only_slows_down() {
        let sim = provider(Settings::default());
        sim.world().add_rule(Rule {
            op: Some(Op::Find),
            delay: Duration::from_secs(7),
            ..Rule::default()
        });
        let began = tokio::time::Instant::now();
        assert_eq!(sim.find(&owner("u-1")).await, Ok(None));
        assert_eq!(began.elapsed(), Duration::from_secs(7));
        sim.world().clear_rules();
        sim.find(&owner("u-1")).await.expect("answers");
        assert_eq!(began.elapsed(), Duration::from_secs(7), "at once again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_rule_may_meet_each_third_call_only() {
        let sim = provider(Settings::default());
        let made = sim.create(&request("u-1")).await.expect("made");
        sim.world().add_rule(Rule {
            op: Some(Op::Get),
            error: Some(Reason::Gone),
            every: std::num::NonZeroU32::new(3),
            ..Rule::default()
        });
        let (owner, hint) = (owner("u-1"), Hint::default());
        let mut lost = Vec::new();
        for _ in 0..6 {
            let got = sim.get(&made.instance().id, &owner, &hint).await;
            lost.push(got.is_err_and(|error| error.is_not_found()));
        }
        assert_eq!(lost, [false, false, true, false, false, true]);
        assert_eq!(sim.world().calls(Op::Get), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn more_calls_than_a_second_may_have_are_throttled_until_it_is_over() {
        let sim = provider(Settings {
            calls_per_second: std::num::NonZeroU32::new(2),
            ..Settings::default()
        });
        let owner = owner("u-1");
        for _ in 0..2 {
            sim.find(&owner).await.expect("within the limit");
        }
        pass(Duration::from_millis(400)).await;
        let refused = sim.find(&owner).await.expect_err("one too many");
        assert_eq!(refused.reason(), Reason::Throttled);
        assert_eq!(refused.retry_after(), Some(Duration::from_millis(600)));
        pass(Duration::from_millis(600)).await;
        sim.find(&owner).await.expect("a new second");
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_is_to_serve_runs_once_it_does() {
        let sim = provider(Settings {
            serve: true,
            ..Settings::default()
        });
        sim.create(&request("u-1")).await.expect("made");
        pass(Duration::from_secs(60)).await;
        let state = || sim.world().find(&owner("u-1")).map(|seen| seen.state);
        assert_eq!(state(), Some(InstanceState::Provisioning));
        let services = sim.world().services();
        let [service] = services.as_slice() else {
            panic!("one machine, one service: {services:?}")
        };
        sim.world().listening(service.number);
        assert_eq!(state(), Some(InstanceState::Running));
        let shown = sim.world().find(&owner("u-1")).expect("there");
        assert_eq!(shown.ip(), Some(&*service.address.to_string()));
        sim.world().stop(&owner("u-1").instance_name());
        assert_eq!(
            sim.world().services(),
            [],
            "a stopped machine serves nothing"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_vanished_while_it_went_takes_no_later_one_with_it() {
        let sim = provider(Settings::default());
        let owner = owner("u-1");
        let made = sim.create(&request("u-1")).await.expect("made");
        let first = made.instance();
        sim.delete(&first.id, &owner, &first.incarnation)
            .await
            .expect("accepted");
        assert!(sim.world().vanish(&owner.instance_name()));
        sim.create(&request("u-1")).await.expect("the name is free");
        pass(Duration::from_secs(3600)).await;
        assert!(
            sim.world().find(&owner).is_some(),
            "nobody deleted this one"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn p05_a_stranger_keeps_its_name_and_is_never_touched() {
        let sim = provider(Settings::default());
        let owner = owner("u-1");
        sim.world().put_stranger(&owner.instance_name());
        let refused = sim.create(&request("u-1")).await.expect_err("taken");
        assert_eq!(refused.reason(), Reason::NameCollision);
        assert_eq!(sim.find(&owner).await, Ok(None));
        assert!(
            sim.list_by_tag("cluster-1", None)
                .await
                .expect("lists")
                .instances
                .is_empty()
        );
    }
}
