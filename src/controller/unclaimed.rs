//! G-01: instances of live Proxies that have none on record, as the orphan collection found them.

use std::sync::Arc;

use controller::ObjectKey;
use dashmap::DashMap;

use super::error::Error;
use super::pass::Pass;
use super::reconcile::ProxyReconciler;
use super::timing::Next;
use crate::api::conditions::Reason;

/// Where an instance was found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Found {
    /// UID of the Proxy that its tags name.
    uid: String,
    /// Name of its provider.
    provider: String,
}

/// What was found and not yet looked at: one entry for each Proxy at most, gone with the next pass
/// over it. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unclaimed(Arc<DashMap<ObjectKey, Found>>);

impl Unclaimed {
    /// The provider of that name has an instance of the Proxy with that key and UID.
    pub(crate) fn note(&self, key: ObjectKey, uid: &str, provider: &str) {
        let found = Found {
            uid: uid.to_owned(),
            provider: provider.to_owned(),
        };
        self.0.insert(key, found);
    }

    /// Takes what was found of the Proxy: the name of the provider.
    pub(super) fn take(&self, key: &ObjectKey, uid: &str) -> Option<String> {
        let (_, found) = self.0.remove(key)?;
        (found.uid == uid).then_some(found.provider)
    }

    /// The Proxy is gone.
    pub(super) fn forget(&self, key: &ObjectKey) {
        self.0.remove(key);
    }
}

impl ProxyReconciler {
    /// Puts an instance on record that the orphan collection found, if it is there still; also of a
    /// Proxy that failed for good, for it need not be made any more.
    ///
    /// `None` if there is nothing to put on record, and the pass goes on as ever.
    pub(super) async fn claim(&self, pass: &mut Pass<'_>) -> Result<Option<Next>, Error> {
        if pass.recorded().is_some() {
            return Ok(None);
        }
        let Some(found) = self.unclaimed.take(pass.key(), pass.uid()) else {
            return Ok(None);
        };
        // Two entries of the configuration may lead to one place. Under the name that the Proxy asks for
        // the instance is as it should be, and under another one it would be replaced.
        let wanted = pass.proxy().spec.provider.clone();
        let mut names: Vec<_> = wanted.into_iter().chain([found]).collect();
        names.dedup();
        let owner = pass.owner(&self.cluster_id);
        let mut seen = None;
        for name in names {
            let Some(provider) = self.providers.get(&name) else {
                continue;
            };
            match provider.find(&owner).await {
                Ok(Some(instance)) => {
                    seen = Some((name, instance));
                    break;
                }
                Ok(None) => {}
                // It is found again in the next cycle.
                Err(source) => {
                    return Err(Error::Provider {
                        provider: name,
                        source,
                    });
                }
            }
        }
        let Some((name, instance)) = seen.filter(|(_, instance)| !instance.deleting) else {
            return Ok(None);
        };
        // S-01: what it was made from, so that a spec edited meanwhile is seen as drift.
        if let Some(hash) = &instance.spec_hash {
            pass.set_spec_hash(hash).await?;
        }
        tracing::warn!(instance = %instance.id, "instance without a record found; it is adopted");
        pass.draft.record(&name, &instance);
        let status = pass.draft.edit();
        status.latch = None;
        status.attempt_open = false;
        let message = format!("{} was found and is this Proxy's", instance.id);
        pass.draft.not_provisioned(Reason::Provisioning, message);
        Ok(Some(Next::Now))
    }
}

#[cfg(test)]
mod tests {
    use controller::Action;
    use serde_json::{Value, json};

    use super::super::testing::{INSTANCE, PATH, World};
    use crate::api::{ProxySpec, SPEC_HASH_ANNOTATION, SpecHash, spec_hash};
    use crate::provider::fake::{Fault, owner};
    use crate::provider::{Error, Reason};

    fn managed() -> Value {
        json!({ "provider": "fake" })
    }

    fn hash_of(spec: &Value) -> SpecHash {
        let spec: ProxySpec = serde_json::from_value(spec.clone()).expect("a spec");
        spec_hash(&spec, None, None)
    }

    /// A Proxy whose create was refused for good, and an instance that a provider shows all the
    /// same.
    async fn failed_with(hash: &SpecHash) -> World {
        let mut world = World::new(&managed());
        world.ok().await;
        let refusal = Error::new(Reason::InvalidInput, "no");
        world.provider.fault("create", Fault::Before(refusal));
        world.ok().await;
        world.provider.put(&owner("u1"), hash);
        world.provider.run(INSTANCE, "10.0.0.1");
        assert_eq!(world.ok().await, Action::Done, "latched, and silent");
        assert_eq!(world.phase(), "Failed");
        world.provider.take_calls();
        world
    }

    #[tokio::test(start_paused = true)]
    async fn g01_an_instance_found_under_two_names_is_recorded_under_the_wanted_one() {
        let mut world = failed_with(&hash_of(&managed())).await;
        world.find_unclaimed_by("u1", "fake-of-another-zone");
        assert!(world.run().await);
        assert_eq!(world.phase(), "Ready");
        assert_eq!(world.status("provider"), "fake");
        assert_eq!(world.provider.made(), 1, "it is not replaced");
    }

    #[tokio::test(start_paused = true)]
    async fn g01_an_instance_that_was_found_is_adopted_also_out_of_failed() {
        let mut world = failed_with(&hash_of(&managed())).await;
        world.find_unclaimed("u1");
        assert!(world.run().await);
        assert_eq!(world.phase(), "Ready");
        assert_eq!(world.status("providerID"), "fake://px-u1");
        assert_eq!(world.provider.made(), 1, "none was made beside it");
        let calls = world.provider.take_calls();
        assert!(
            !calls.iter().any(|call| call.starts_with("create")),
            "{calls:?}"
        );
        assert!(world.proxy().status.expect("written").latch.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn g01_an_instance_that_was_found_and_is_made_from_another_spec_is_replaced() {
        let other = hash_of(&json!({ "provider": "fake", "port": 9 }));
        let mut world = failed_with(&other).await;
        world.find_unclaimed("u1");
        world.ok().await;
        let annotations = world.proxy().metadata.annotations.expect("written");
        assert_eq!(annotations[SPEC_HASH_ANNOTATION], other.annotation());
        assert!(world.run().await);
        assert_eq!(world.phase(), "Ready");
        assert_eq!(world.provider.made(), 2, "the old one made way");
    }

    #[tokio::test(start_paused = true)]
    async fn g01_what_was_found_of_another_uid_or_is_gone_again_changes_nothing() {
        let mut world = failed_with(&hash_of(&managed())).await;
        world.find_unclaimed("u2");
        assert_eq!(world.ok().await, Action::Done);
        world.find_unclaimed("u1");
        world.provider.vanish(INSTANCE);
        world.server.take_writes();
        assert_eq!(world.ok().await, Action::Done);
        assert_eq!(world.phase(), "Failed");
        assert!(world.server.take_writes().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn g01_a_provider_that_does_not_answer_lifts_no_latch() {
        let mut world = failed_with(&hash_of(&managed())).await;
        let refusal = Error::new(Reason::Unavailable, "not now");
        world.provider.fault("find", Fault::Before(refusal));
        world.find_unclaimed("u1");
        world.pass().await.expect_err("it is tried again");
        assert_eq!(world.phase(), "Failed");
        world.find_unclaimed("u1");
        assert!(world.run().await);
        assert_eq!(world.phase(), "Ready");
    }

    #[tokio::test(start_paused = true)]
    async fn g01_what_was_found_of_an_external_proxy_is_released() {
        let external =
            json!({ "mode": "External", "endpoint": { "host": "h.example", "port": 1 } });
        let mut world = World::new(&external);
        world.ok().await;
        world.provider.put(&owner("u1"), &hash_of(&managed()));
        world.find_unclaimed("u1");
        world.ok().await;
        assert!(
            world
                .provider
                .see(INSTANCE)
                .is_some_and(|seen| seen.deleting)
        );
        assert_eq!(
            world.server.get(PATH).expect("it stays")["spec"]["mode"],
            "External"
        );
    }
}
