//! Counts the calls of any provider (O-05).

use std::collections::BTreeMap;
use std::sync::Arc;

use dashmap::DashMap;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Around, Error, Provider};

/// Calls of providers by provider, operation and class of the outcome; clones share the numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProviderCalls(Arc<DashMap<Call, u64>>);

/// Provider, operation, class of the outcome.
type Call = (Arc<str>, &'static str, &'static str);

impl ProviderCalls {
    /// Counts one call; `class` is that of its error, or `ok`.
    fn add(&self, provider: &Arc<str>, op: &'static str, class: &'static str) {
        *self.0.entry((Arc::clone(provider), op, class)).or_default() += 1;
    }

    /// The numbers now.
    pub(crate) fn all(&self) -> BTreeMap<Call, u64> {
        self.0
            .iter()
            .map(|entry| (entry.key().clone(), *entry.value()))
            .collect()
    }
}

/// A provider whose calls are counted by operation and class of the outcome.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) name: Arc<str>,
    pub(super) inner: Arc<dyn Provider>,
    pub(super) calls: ProviderCalls,
}

impl Around for Counted {
    fn inner(&self) -> &dyn Provider {
        &*self.inner
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        op: &'static str,
        call: BoxFuture<'a, Result<T, Error>>,
    ) -> BoxFuture<'a, Result<T, Error>> {
        call.inspect(move |outcome| {
            let class = outcome
                .as_ref()
                .err()
                .map_or("ok", |error| error.class().as_str());
            self.calls.add(&self.name, op, class);
        })
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::{FakeProvider, Fault, owner};
    use super::super::{Reason, Registry};
    use super::*;

    #[tokio::test]
    async fn o05_every_call_counts_once_under_the_class_of_its_outcome() {
        let fake = FakeProvider::default();
        let calls = ProviderCalls::default();
        let inner = Arc::new(fake.clone()) as Arc<dyn Provider>;
        let registry = Registry::new(BTreeMap::from([("a".to_owned(), inner)])).counted(&calls);
        let provider = registry.get("a").expect("configured");
        for _ in 0..2 {
            provider.find(&owner("u1")).await.expect("nothing there");
        }
        let refusal = Error::new(Reason::Quota, "none left");
        fake.fault("find", Fault::Before(refusal));
        provider.find(&owner("u1")).await.expect_err("refused");
        let name = Arc::from("a");
        let want = [
            ((Arc::clone(&name), "find", "ok"), 2),
            ((name, "find", "quota"), 1),
        ];
        assert_eq!(calls.all(), BTreeMap::from(want));
    }
}
