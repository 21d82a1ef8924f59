//! The first look of a cycle: all instances of the cluster, at all providers.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::decide::Sighting;
use crate::provider::{Error, Listed, Provider, Registry};

/// What the providers told.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) sightings: Vec<Sighting>,
    /// Scopes that did not answer, by provider.
    pub(crate) unreachable: BTreeMap<Arc<str>, BTreeSet<String>>,
    /// Providers that did not tell all: what they told is left out.
    pub(crate) failed: BTreeMap<Arc<str>, Error>,
}

/// Lists by cluster tag. A provider that fails on any page is left out whole (G-04).
pub(crate) async fn survey(providers: &Registry, cluster_id: &str) -> Survey {
    let mut survey = Survey::default();
    // Two entries of the configuration may lead to one place, and both list what is there.
    let mut seen = HashSet::new();
    for (name, provider) in providers.iter() {
        let name: Arc<str> = Arc::from(name);
        match all(&**provider, cluster_id).await {
            Ok((listed, unreachable)) => {
                let sighting = |Listed { owner, instance }| Sighting {
                    provider: Arc::clone(&name),
                    owner,
                    instance,
                };
                let new = listed
                    .into_iter()
                    .filter(|listed| seen.insert(listed.instance.id.clone()));
                survey.sightings.extend(new.map(sighting));
                if !unreachable.is_empty() {
                    survey.unreachable.insert(name, unreachable);
                }
            }
            Err(error) => {
                survey.failed.insert(name, error);
            }
        }
    }
    survey
}

async fn all(
    provider: &dyn Provider,
    cluster_id: &str,
) -> Result<(Vec<Listed>, BTreeSet<String>), Error> {
    let (mut listed, mut unreachable) = (Vec::new(), BTreeSet::new());
    let mut token: Option<String> = None;
    loop {
        let page = provider.list_by_tag(cluster_id, token.as_deref()).await?;
        listed.extend(page.instances);
        unreachable.extend(page.unreachable);
        match page.next {
            Some(next) => token = Some(next),
            None => return Ok((listed, unreachable)),
        }
    }
}
