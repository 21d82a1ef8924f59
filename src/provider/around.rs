//! A provider around another one.

use futures::future::BoxFuture;

use super::{
    Capabilities, CreateRequest, Creation, Error, Hint, Incarnation, Instance, Owner, Page,
    Provider, ProviderId,
};

/// Does something about each call of another provider, which itself stays as it is.
pub(crate) trait Around: Send + Sync + std::fmt::Debug {
    /// The provider that is called.
    fn inner(&self) -> &dyn Provider;

    /// Stands around `call`, the operation `op` of [`inner`](Self::inner).
    fn call<'a, T: Send + 'a>(
        &'a self,
        op: &'static str,
        call: BoxFuture<'a, Result<T, Error>>,
    ) -> BoxFuture<'a, Result<T, Error>>;
}

impl<A: Around> Provider for A {
    fn create<'a>(&'a self, request: &'a CreateRequest) -> BoxFuture<'a, Result<Creation, Error>> {
        self.call("create", self.inner().create(request))
    }

    fn get<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        hint: &'a Hint,
    ) -> BoxFuture<'a, Result<Instance, Error>> {
        self.call("get", self.inner().get(id, owner, hint))
    }

    fn delete<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        incarnation: &'a Incarnation,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.call("delete", self.inner().delete(id, owner, incarnation))
    }

    fn find<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<Option<Instance>, Error>> {
        self.call("find", self.inner().find(owner))
    }

    fn delete_leftovers<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<(), Error>> {
        self.call("delete_leftovers", self.inner().delete_leftovers(owner))
    }

    fn list_by_tag<'a>(
        &'a self,
        cluster_id: &'a str,
        page: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Page, Error>> {
        self.call("list", self.inner().list_by_tag(cluster_id, page))
    }

    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }
}
