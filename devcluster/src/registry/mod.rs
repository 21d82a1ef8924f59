//! Which resources exist: the strategy table of built-in kinds and what definitions add to it.

pub(crate) mod custom;
pub(crate) mod hooks;
pub(crate) mod metadata;
pub(crate) mod names;
pub(crate) mod resource;
mod table;
mod versions;

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use parking_lot::{Mutex, RwLock};

use crate::store::Store;
pub(crate) use resource::Resource;

/// The resources at one moment. Requests in flight keep the catalog they started with.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    /// Group → versions in order of preference → resources by plural.
    groups: BTreeMap<Arc<str>, Vec<GroupVersion>>,
}

/// One served group version.
#[derive(Debug)]
pub(crate) struct GroupVersion {
    pub(crate) version: Arc<str>,
    pub(crate) resources: BTreeMap<Arc<str>, Arc<Resource>>,
    /// Whether only definitions fill it: unknown paths below it answer in plain text.
    pub(crate) custom: bool,
}

impl Catalog {
    fn of(resources: impl IntoIterator<Item = Arc<Resource>>) -> Self {
        let mut groups: BTreeMap<Arc<str>, Vec<GroupVersion>> = BTreeMap::new();
        for resource in resources {
            let versions = groups.entry(Arc::clone(&resource.group)).or_default();
            let index = versions
                .iter()
                .position(|gv| gv.version == resource.version);
            let index = index.unwrap_or_else(|| {
                versions.push(GroupVersion {
                    version: Arc::clone(&resource.version),
                    resources: BTreeMap::new(),
                    custom: true,
                });
                versions.len() - 1
            });
            versions[index].custom &= resource.is_custom();
            versions[index]
                .resources
                .insert(Arc::clone(&resource.plural), resource);
        }
        for versions in groups.values_mut() {
            versions.sort_by(|a, b| preferred_first(&a.version, &b.version));
        }
        Self { groups }
    }

    /// All groups with their versions, the preferred one first; the core group is "".
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&str, &[GroupVersion])> {
        self.groups
            .iter()
            .map(|(group, versions)| (&**group, versions.as_slice()))
    }

    pub(crate) fn group(&self, group: &str) -> Option<&[GroupVersion]> {
        self.groups.get(group).map(Vec::as_slice)
    }

    pub(crate) fn group_version(&self, group: &str, version: &str) -> Option<&GroupVersion> {
        self.group(group)?.iter().find(|gv| &*gv.version == version)
    }

    /// Every stored resource once, whatever its versions.
    pub(crate) fn collections(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.groups.values().flat_map(|versions| {
            let mut seen: Vec<&str> = Vec::new();
            let all = versions.iter().flat_map(|gv| gv.resources.values());
            all.filter(move |resource| {
                let new = resource.review.is_none() && !seen.contains(&&*resource.plural);
                seen.push(&resource.plural);
                new
            })
        })
    }
}

/// The resources that are served now.
#[derive(Debug)]
pub(crate) struct Registry {
    built_in: Vec<Arc<Resource>>,
    custom: Mutex<BTreeMap<String, Vec<Arc<Resource>>>>,
    catalog: RwLock<Arc<Catalog>>,
}

impl Registry {
    /// The built-in kinds over a store.
    pub(crate) fn new(store: &Store) -> Self {
        let built_in = table::built_in(store);
        let catalog = RwLock::new(Arc::new(Catalog::of(built_in.iter().map(Arc::clone))));
        Self {
            built_in,
            custom: Mutex::default(),
            catalog,
        }
    }

    /// The current catalog.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        Arc::clone(&self.catalog.read())
    }

    /// A built-in resource of the table.
    pub(crate) fn built_in(&self, group: &str, plural: &str) -> Arc<Resource> {
        let found = self
            .built_in
            .iter()
            .find(|r| &*r.group == group && &*r.plural == plural);
        Arc::clone(found.expect("the table has a row of that name"))
    }

    /// Serves these resources for a definition, in place of those served for it so far, whose watches end.
    /// No resources: the definition is served no more.
    pub(crate) fn serve(&self, definition: &str, resources: Vec<Arc<Resource>>) {
        let mut custom = self.custom.lock();
        let replaced = if resources.is_empty() {
            custom.remove(definition)
        } else {
            custom.insert(definition.to_owned(), resources)
        };
        let all = self.built_in.iter().chain(custom.values().flatten());
        *self.catalog.write() = Arc::new(Catalog::of(all.map(Arc::clone)));
        for resource in replaced.into_iter().flatten() {
            resource.retired.cancel();
        }
    }
}

/// Orders versions as discovery shows them: GA, beta, alpha, the higher number first; others by name.
fn preferred_first(a: &str, b: &str) -> Ordering {
    match (rank(a), rank(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Stability (GA 2, beta 1, alpha 0), major and minor number of a version like `v2beta3`.
fn rank(version: &str) -> Option<(u8, u32, u32)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let major = rest[..digits].parse().ok()?;
    match &rest[digits..] {
        "" => Some((2, major, 0)),
        tail => {
            let (stability, minor) = match (tail.strip_prefix("beta"), tail.strip_prefix("alpha")) {
                (Some(minor), _) => (1, minor),
                (_, Some(minor)) => (0, minor),
                _ => return None,
            };
            Some((stability, major, minor.parse().ok()?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_order_by_stability_then_number_then_name() {
        let mut versions = [
            "foo10",
            "v1alpha1",
            "v2",
            "v10beta3",
            "v1",
            "v11alpha2",
            "v3beta1",
            "foo1",
            "v10",
        ];
        versions.sort_by(|a, b| preferred_first(a, b));
        assert_eq!(
            versions,
            [
                "v10",
                "v2",
                "v1",
                "v10beta3",
                "v3beta1",
                "v11alpha2",
                "v1alpha1",
                "foo1",
                "foo10"
            ]
        );
    }

    #[test]
    fn a_catalog_finds_resources_and_names_each_collection_once() {
        let store = Store::new();
        let registry = Registry::new(&store);
        let catalog = registry.catalog();
        let core = catalog.group_version("", "v1").expect("the core group");
        assert!(core.resources.contains_key("pods"));
        assert!(!core.resources.contains_key("nopes"));
        assert!(catalog.group("none.example.com").is_none());
        assert_eq!(
            catalog
                .collections()
                .filter(|r| &*r.plural == "pods")
                .count(),
            1
        );
    }
}
