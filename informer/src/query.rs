//! Questions that several indexes answer together.

use std::fmt;
use std::ptr;
use std::sync::Arc;

use kube_core::{Resource, Selector, SelectorExt as _};

use crate::store::index::{NAMESPACE_INDEX, Position};
use crate::store::{Entry, Version};
use crate::{Error, ObjectKey};

/// A condition on the objects of a cache, made of index values, labels, and, or, not.
///
/// It is answered from the smallest set of objects that can hold all answers: of conditions joined
/// by `and` the one that the fewest objects meet, of those joined by `or` all of them. What no
/// index narrows down goes through the whole cache.
///
/// ```
/// use informer::Query;
///
/// let ready_here = Query::index("node", "worker-1").and(!Query::index("phase", "Failed"));
/// let either = Query::namespace("team-a").or(Query::namespace("team-b"));
/// let both = ready_here.and(either);
/// # let _ = both;
/// ```
#[derive(Clone, Debug)]
pub struct Query(Condition);

#[derive(Clone)]
enum Condition {
    Index { index: Arc<str>, value: Arc<str> },
    Labels(Selector),
    And(Vec<Condition>),
    Or(Vec<Condition>),
    Not(Box<Condition>),
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let joined = |f: &mut fmt::Formatter<'_>, all: &[Self], by: &str| {
            for (at, one) in all.iter().enumerate() {
                write!(f, "{}{one:?}", if at == 0 { "(" } else { by })?;
            }
            f.write_str(")")
        };
        match self {
            Self::Index { index, value } => write!(f, "{index}={value}"),
            Self::Labels(selector) => write!(f, "labels[{selector}]"),
            Self::And(all) => joined(f, all, " and "),
            Self::Or(all) => joined(f, all, " or "),
            Self::Not(one) => write!(f, "not {one:?}"),
        }
    }
}

impl Query {
    /// Objects for which an index gives `value`.
    pub fn index(index: impl Into<Arc<str>>, value: impl Into<Arc<str>>) -> Self {
        Self(Condition::Index {
            index: index.into(),
            value: value.into(),
        })
    }

    /// Objects of one namespace.
    pub fn namespace(namespace: impl Into<Arc<str>>) -> Self {
        Self::index(NAMESPACE_INDEX, namespace)
    }

    /// Objects whose labels match. No index helps; it costs a look at each object that the other
    /// conditions leave.
    pub fn labels(selector: Selector) -> Self {
        Self(Condition::Labels(selector))
    }

    /// Objects that meet both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(match self.0 {
            Condition::And(mut all) => {
                all.push(other.0);
                Condition::And(all)
            }
            one => Condition::And(vec![one, other.0]),
        })
    }

    /// Objects that meet at least one.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(match self.0 {
            Condition::Or(mut all) => {
                all.push(other.0);
                Condition::Or(all)
            }
            one => Condition::Or(vec![one, other.0]),
        })
    }
}

impl std::ops::Not for Query {
    type Output = Self;

    /// Objects that do not meet it.
    fn not(self) -> Self {
        Self(Condition::Not(Box::new(self.0)))
    }
}

/// Some of the answers, in the order of their keys.
#[derive(Debug)]
pub struct Page<K> {
    /// The answers.
    pub objects: Vec<Arc<K>>,
    /// Key of the last one, if there are more behind it: where the next page begins.
    pub next: Option<ObjectKey>,
}

/// A condition with its indexes found.
enum Resolved<'q> {
    Index(&'q str, Position, &'q str),
    Labels(&'q Selector),
    And(Vec<Resolved<'q>>),
    Or(Vec<Resolved<'q>>),
    Not(Box<Resolved<'q>>),
}

impl<'q> Resolved<'q> {
    fn new<K>(condition: &'q Condition, version: &Version<K>) -> Result<Self, Error> {
        let every = |all: &'q [Condition]| -> Result<Vec<_>, Error> {
            all.iter().map(|one| Self::new(one, version)).collect()
        };
        Ok(match condition {
            Condition::Index { index, value } => {
                Self::Index(index, version.position(index)?, value)
            }
            Condition::Labels(selector) => Self::Labels(selector),
            Condition::And(all) => Self::And(every(all)?),
            Condition::Or(all) => Self::Or(every(all)?),
            Condition::Not(one) => Self::Not(Box::new(Self::new(one, version)?)),
        })
    }

    fn matches<K: Resource>(&self, entry: &Entry<K>) -> bool {
        match self {
            Self::Index(_, position, value) => entry.has(*position, value),
            Self::Labels(selector) => match &entry.object.meta().labels {
                Some(labels) => selector.matches(labels),
                None => selector.matches(&Default::default()),
            },
            Self::And(all) => all.iter().all(|one| one.matches(entry)),
            Self::Or(all) => all.iter().any(|one| one.matches(entry)),
            Self::Not(one) => !one.matches(entry),
        }
    }

    /// Objects that have to be looked at.
    fn cost<K>(&self, version: &Version<K>) -> usize {
        let costs =
            |all: &[Self]| -> Vec<usize> { all.iter().map(|one| one.cost(version)).collect() };
        let whole = version.len();
        match self {
            Self::Index(index, _, value) => version.count_by_index(index, value).unwrap_or(whole),
            Self::Labels(_) | Self::Not(_) => whole,
            Self::And(all) => costs(all).into_iter().min().unwrap_or(whole),
            Self::Or(all) => costs(all).into_iter().sum::<usize>().min(whole),
        }
    }

    /// Adds entries among which all answers are; some may come twice.
    fn candidates<'v, K>(&self, version: &'v Version<K>, into: &mut Vec<&'v Entry<K>>) {
        match self {
            Self::Index(index, _, value) => {
                into.extend(version.by_index(index, value).into_iter().flatten());
            }
            Self::And(all) if !all.is_empty() => {
                let smallest = all.iter().min_by_key(|one| one.cost(version));
                if let Some(smallest) = smallest {
                    smallest.candidates(version, into);
                }
            }
            Self::Or(all) if self.cost(version) < version.len() => {
                for one in all {
                    one.candidates(version, into);
                }
            }
            _ => into.extend(version.iter()),
        }
    }
}

/// The entries that have to be looked at for the answers, each once.
fn candidates<'v, K: Resource>(
    query: &Query,
    resolved: &Resolved<'_>,
    version: &'v Version<K>,
) -> Vec<&'v Entry<K>> {
    let mut entries = Vec::with_capacity(resolved.cost(version));
    resolved.candidates(version, &mut entries);
    if matches!(query.0, Condition::Or(_) | Condition::And(_)) {
        entries.sort_unstable_by_key(|entry| ptr::from_ref(*entry));
        entries.dedup_by_key(|entry| ptr::from_ref(*entry));
    }
    entries
}

fn answers<'v, K: Resource>(
    query: &Query,
    version: &'v Version<K>,
) -> Result<Vec<&'v Entry<K>>, Error> {
    let resolved = Resolved::new(&query.0, version)?;
    let mut entries = candidates(query, &resolved, version);
    entries.retain(|entry| resolved.matches(entry));
    Ok(entries)
}

/// All objects that meet `query`, in no particular order.
pub(crate) fn all<K: Resource>(query: &Query, version: &Version<K>) -> Result<Vec<Arc<K>>, Error> {
    let found = answers(query, version)?.into_iter();
    Ok(found.map(|entry| Arc::clone(&entry.object)).collect())
}

/// Up to `limit` objects that meet `query`, in the order of their keys, beginning behind `after`.
pub(crate) fn page<K: Resource>(
    query: &Query,
    version: &Version<K>,
    after: Option<&ObjectKey>,
    limit: usize,
) -> Result<Page<K>, Error> {
    let mut entries = answers(query, version)?;
    entries.retain(|entry| after.is_none_or(|after| entry.key > *after));
    let more = entries.len() > limit;
    if more {
        // What stands behind the page need not be put in order.
        entries.select_nth_unstable_by(limit, |left, right| left.key.cmp(&right.key));
        entries.truncate(limit);
    }
    entries.sort_unstable_by(|left, right| left.key.cmp(&right.key));
    let next = entries.last().map(|entry| entry.key.clone());
    Ok(Page {
        next: next.filter(|_| more),
        objects: entries
            .into_iter()
            .map(|entry| Arc::clone(&entry.object))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube_core::{Expression, ObjectMeta};
    use proptest::prelude::*;

    use super::*;
    use crate::store::{Delta, Store};

    /// Index `letter` has one value for each letter of the name; label `size` its length.
    fn store(names: &[String]) -> Store<ConfigMap> {
        let store = Store::new();
        store
            .add_index("letter", |object: &ConfigMap| {
                let name = object.metadata.name.iter();
                Ok(name
                    .flat_map(|name| name.chars().map(String::from))
                    .collect())
            })
            .unwrap();
        let objects = names.iter().map(|name| ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(format!("n{}", name.len())),
                labels: Some([("size".to_owned(), name.len().to_string())].into()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        });
        store.apply(objects.map(Delta::Added), Some("1"), false);
        store
    }

    fn names(objects: &[Arc<ConfigMap>]) -> Vec<String> {
        let mut names: Vec<_> = objects
            .iter()
            .filter_map(|object| object.metadata.name.clone())
            .collect();
        names.sort();
        names
    }

    fn letter(letter: char) -> Query {
        Query::index("letter", letter.to_string())
    }

    fn size(size: usize) -> Query {
        Query::labels(Expression::Equal("size".to_owned(), size.to_string()).into())
    }

    /// What `query` says of a name, by itself.
    fn holds(condition: &Condition, name: &str) -> bool {
        match condition {
            Condition::Index { index, value } if **index == *NAMESPACE_INDEX => {
                **value == format!("n{}", name.len())
            }
            Condition::Index { value, .. } => name.contains(&**value),
            Condition::Labels(selector) => {
                selector.matches(&[("size".to_owned(), name.len().to_string())].into())
            }
            Condition::And(all) => all.iter().all(|one| holds(one, name)),
            Condition::Or(all) => all.iter().any(|one| holds(one, name)),
            Condition::Not(one) => !holds(one, name),
        }
    }

    fn queries() -> impl Strategy<Value = Query> {
        let leaf = prop_oneof![
            prop::char::range('a', 'f').prop_map(letter),
            (1..4_usize).prop_map(size),
            (1..4_usize).prop_map(|size| Query::namespace(format!("n{size}"))),
        ];
        leaf.prop_recursive(4, 16, 2, |inner| {
            prop_oneof![
                (inner.clone(), inner.clone()).prop_map(|(a, b)| a.and(b)),
                (inner.clone(), inner.clone()).prop_map(|(a, b)| a.or(b)),
                inner.prop_map(|a| !a),
            ]
        })
    }

    proptest! {
        #[test]
        fn i67_a_query_gives_what_a_look_at_each_object_gives_whole_and_in_pages(
            all_names in proptest::collection::btree_set("[a-f]{1,3}", 0..40),
            query in queries(),
            limit in 1..6_usize,
        ) {
            let all_names: Vec<String> = all_names.into_iter().collect();
            let store = store(&all_names);
            let version = store.version();
            let want: Vec<_> = all_names
                .iter()
                .filter(|name| holds(&query.0, name))
                .cloned()
                .collect();
            prop_assert_eq!(names(&all(&query, &version).unwrap()), want.clone(), "{:?}", query);
            let (mut paged, mut after) = (Vec::new(), None);
            loop {
                let found = page(&query, &version, after.as_ref(), limit).unwrap();
                prop_assert!(found.objects.len() == limit || found.next.is_none());
                paged.extend(found.objects.iter().map(|object| ObjectKey::of(&**object)));
                match found.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
            prop_assert!(paged.is_sorted());
            let mut paged: Vec<_> = paged.iter().map(|key| key.name().to_owned()).collect();
            paged.sort();
            prop_assert_eq!(paged, want);
        }
    }

    #[test]
    fn i67_the_smallest_set_is_looked_at() {
        let mut many: Vec<_> = (0..100).map(|at| format!("a{at}")).collect();
        many.extend(["ab".to_owned(), "bc".to_owned(), "c".to_owned()]);
        let store = store(&many);
        let version = store.version();
        for (query, looked_at) in [
            (letter('a').and(letter('b')), 2),
            (letter('a').and(letter('b').or(letter('c'))), 3),
            (letter('a').and(!letter('b')), 101),
            (letter('b').and(size(2)).and(letter('a')), 2),
            (letter('b').or(letter('c')), 3),
            (letter('a').or(letter('b')), 103),
            (size(1), 103),
            (letter('z'), 0),
        ] {
            let resolved = Resolved::new(&query.0, &version).unwrap();
            let found = candidates(&query, &resolved, &version).len();
            assert_eq!(found, looked_at, "{query:?}");
        }
    }

    #[test]
    fn i67_an_index_that_is_not_there_is_an_error_that_names_it() {
        let store = store(&[]);
        let query = !Query::index("node", "a").or(letter('a'));
        let error = all(&query, &store.version()).unwrap_err();
        assert!(matches!(error, Error::UnknownIndex { name } if name == "node"));
    }
}
