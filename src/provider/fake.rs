//! A provider in memory, for unit tests: scripted faults before or after the effect, a call log.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::FutureExt;
use futures::future::BoxFuture;

use super::{
    Capabilities, CreateRequest, Creation, Error, Hint, Incarnation, Instance, InstanceState,
    Listed, Owner, Page, Provider, ProviderId, Reason,
};
use crate::api::SpecHash;

/// What happens to one call.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The call fails and does nothing.
    Before(Error),
    /// The call does its work, and its answer is lost.
    After(Error),
    /// The call never ends.
    Hang,
}

/// A shared world of instances; clones show the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeProvider {
    world: Arc<Mutex<World>>,
}

#[derive(Debug, Default)]
struct World {
    instances: BTreeMap<String, Record>,
    faults: BTreeMap<&'static str, VecDeque<Fault>>,
    calls: Vec<String>,
    made: u64,
    /// Reads may lag, and attempts are to be written down, as at a cloud.
    is_cloud: bool,
    /// What the next read shows instead of the instance.
    stale: Option<Instance>,
    /// By create: whether it was said to be sent once more.
    resent: Vec<bool>,
}

#[derive(Clone, Debug)]
struct Record {
    owner: Option<Owner>,
    instance: Instance,
}

/// The owner that tests use.
pub(crate) fn owner(uid: &str) -> Owner {
    Owner {
        cluster_id: Arc::from("cluster"),
        uid: uid.to_owned(),
        namespace: "crawl".to_owned(),
        proxy: "a".to_owned(),
    }
}

impl FakeProvider {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world
            .lock()
            .expect("no test panics while it holds the world")
    }

    /// Lets the next call of `op` without a fault yet meet this one.
    pub(crate) fn fault(&self, op: &'static str, fault: Fault) {
        self.world().faults.entry(op).or_default().push_back(fault);
    }

    /// The calls so far, such as `create px-u1`; forgets them.
    pub(crate) fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.world().calls)
    }

    /// Changes the instance of that name.
    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Instance)) {
        let mut world = self.world();
        change(
            &mut world
                .instances
                .get_mut(name)
                .expect("the instance is there")
                .instance,
        );
    }

    /// From now on reads may lag, attempts are to be written down, and what a create begins is an
    /// operation until the instance runs.
    pub(crate) fn be_a_cloud(&self) {
        self.world().is_cloud = true;
    }

    /// For each create so far, whether it was said to be sent once more; forgets them.
    pub(crate) fn take_resent(&self) -> Vec<bool> {
        std::mem::take(&mut self.world().resent)
    }

    /// Lets the instance of that name run at `ip`.
    pub(crate) fn run(&self, name: &str, ip: &str) {
        self.change(name, |instance| {
            instance.operation = None;
            instance.state = InstanceState::Running;
            instance.ready = true;
            instance.ips = vec![ip.to_owned()];
        });
    }

    /// Lets the next read show the instance as it is now, whatever becomes of it.
    pub(crate) fn show_once_as_it_is(&self, name: &str) {
        let seen = self.see(name);
        self.world().stale = seen;
    }

    /// Lets the instance of that name vanish.
    pub(crate) fn vanish(&self, name: &str) {
        self.world().instances.remove(name);
    }

    /// Lets every deletion that was accepted come to its end.
    pub(crate) fn finish_deletions(&self) {
        self.world()
            .instances
            .retain(|_, record| !record.instance.deleting);
    }

    /// Puts a stranger's instance under that name.
    pub(crate) fn put_stranger(&self, name: &str) {
        let instance = instance(name, "stranger", None);
        self.world().instances.insert(
            name.to_owned(),
            Record {
                owner: None,
                instance,
            },
        );
    }

    /// Puts an instance of that owner and hash in place, as an earlier process left it.
    pub(crate) fn put(&self, owner: &Owner, hash: &SpecHash) -> Instance {
        let mut world = self.world();
        world.made += 1;
        let name = owner.instance_name();
        let instance = instance(&name, &format!("inc-{}", world.made), Some(hash.clone()));
        let record = Record {
            owner: Some(owner.clone()),
            instance: instance.clone(),
        };
        world.instances.insert(name, record);
        instance
    }

    /// The instance of that name, as it is.
    pub(crate) fn see(&self, name: &str) -> Option<Instance> {
        self.world()
            .instances
            .get(name)
            .map(|record| record.instance.clone())
    }

    /// Number of instances ever made by a create.
    pub(crate) fn made(&self) -> u64 {
        self.world().made
    }

    async fn call<T>(
        &self,
        op: &'static str,
        what: &str,
        effect: impl FnOnce(&mut World) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let fault = {
            let mut world = self.world();
            world.calls.push(format!("{op} {what}"));
            world.faults.get_mut(op).and_then(VecDeque::pop_front)
        };
        match fault {
            None => effect(&mut self.world()),
            Some(Fault::Before(error)) => Err(error),
            Some(Fault::After(error)) => {
                let _lost = effect(&mut self.world());
                Err(error)
            }
            Some(Fault::Hang) => std::future::pending().await,
        }
    }
}

fn instance(name: &str, incarnation: &str, hash: Option<SpecHash>) -> Instance {
    Instance {
        id: ProviderId::new(format!("fake://{name}")),
        incarnation: Incarnation::new(incarnation),
        state: InstanceState::Provisioning,
        deleting: false,
        ready: false,
        ips: Vec::new(),
        zone: None,
        created: None,
        tags: BTreeMap::new(),
        spec_hash: hash,
        message: Cow::Borrowed(""),
        operation: None,
    }
}

fn name_of(id: &ProviderId) -> String {
    id.as_str().trim_start_matches("fake://").to_owned()
}

impl World {
    fn read(&self, name: &str, owner: &Owner) -> Result<Instance, Error> {
        self.instances
            .get(name)
            .filter(|record| record.owner.as_ref().is_some_and(|o| o.uid == owner.uid))
            .map(|record| record.instance.clone())
            .ok_or_else(|| Error::new(Reason::Gone, "no such instance"))
    }

    fn create(&mut self, request: &CreateRequest) -> Result<Creation, Error> {
        let name = request.owner.instance_name();
        if let Some(record) = self.instances.get(&name) {
            let ours = record
                .owner
                .as_ref()
                .is_some_and(|o| o.uid == request.owner.uid);
            return match (ours, record.instance.deleting) {
                (false, _) => Err(Error::new(
                    Reason::NameCollision,
                    "a stranger has this name",
                )),
                (true, true) => Err(Error::new(Reason::BeingDeleted, "still going")
                    .with_retry_after(std::time::Duration::from_secs(2))),
                (true, false) => Ok(Creation::Adopted(record.instance.clone())),
            };
        }
        self.made += 1;
        let hash = SpecHash::from_tag(&request.spec_hash.tag()).ok();
        let mut instance = instance(&name, &format!("inc-{}", self.made), hash);
        instance.operation = self
            .is_cloud
            .then(|| Arc::from(format!("operation-{}", self.made)));
        let record = Record {
            owner: Some(request.owner.clone()),
            instance: instance.clone(),
        };
        self.instances.insert(name, record);
        Ok(Creation::Created(instance))
    }
}

impl Provider for FakeProvider {
    fn create<'a>(&'a self, request: &'a CreateRequest) -> BoxFuture<'a, Result<Creation, Error>> {
        async move {
            let name = request.owner.instance_name();
            self.world().resent.push(request.resent);
            self.call("create", &name, |world| world.create(request))
                .await
        }
        .boxed()
    }

    fn get<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        _hint: &'a Hint,
    ) -> BoxFuture<'a, Result<Instance, Error>> {
        async move {
            let name = name_of(id);
            self.call("get", &name, |world| match world.stale.take() {
                Some(stale) => Ok(stale),
                None => world.read(&name, owner),
            })
            .await
        }
        .boxed()
    }

    fn delete<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        incarnation: &'a Incarnation,
    ) -> BoxFuture<'a, Result<(), Error>> {
        async move {
            let name = name_of(id);
            self.call("delete", &name, |world| {
                if world
                    .read(&name, owner)
                    .is_ok_and(|found| found.incarnation == *incarnation)
                {
                    let record = world.instances.get_mut(&name).expect("just read");
                    record.instance.deleting = true;
                }
                Ok(())
            })
            .await
        }
        .boxed()
    }

    fn find<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<Option<Instance>, Error>> {
        async move {
            let name = owner.instance_name();
            self.call("find", &name, |world| Ok(world.read(&name, owner).ok()))
                .await
        }
        .boxed()
    }

    fn list_by_tag<'a>(
        &'a self,
        cluster_id: &'a str,
        _page: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Page, Error>> {
        self.call("list", cluster_id, |world| {
            let instances = world
                .instances
                .values()
                .filter_map(|record| {
                    let owner = record.owner.clone()?;
                    let instance = record.instance.clone();
                    (*owner.cluster_id == *cluster_id).then_some(Listed { owner, instance })
                })
                .collect();
            Ok(Page {
                instances,
                ..Page::default()
            })
        })
        .boxed()
    }

    fn capabilities(&self) -> Capabilities {
        let is_cloud = self.world().is_cloud;
        Capabilities {
            max_cloud_init_bytes: 64,
            write_ahead: is_cloud,
            eventually_consistent: is_cloud,
            supports_spot: true,
        }
    }
}

mod tests {
    use super::*;
    use crate::provider::conformance::life_of_an_instance;

    #[tokio::test]
    async fn p07_the_fake_lives_as_every_instance_does() {
        let fake = FakeProvider::default();
        life_of_an_instance(&fake, async || fake.finish_deletions()).await;
    }
}
