//! Filters on events: which changes of an object are worth a reconcile.
//!
//! Mirrors controller-runtime's predicates. Those that compare (generation, labels, …) look at
//! updates alone and let every creation and deletion pass.
//!
//! ```
//! use controller::predicate::{self, PredicateExt};
//! # fn takes<K>(_: impl predicate::Predicate<K>) {}
//! # fn example() {
//! // The spec changed, or an annotation (such as a "retry now" nonce).
//! let worthwhile = predicate::generation_changed().or(predicate::annotations_changed());
//! # takes::<k8s_openapi::api::core::v1::Pod>(worthwhile);
//! # }
//! ```

use informer::Event;
use kube_core::labels::{Selector, SelectorExt};
use kube_core::metadata::ObjectMeta;
use kube_core::{Resource, ResourceExt};

/// Decides whether an event leads to a reconcile.
///
/// Closures `Fn(&Event<K>) -> bool` are predicates. Called on the informer's delivery task, so it
/// must not block.
pub trait Predicate<K>: Send + Sync + 'static {
    /// Reports whether the event passes.
    fn passes(&self, event: &Event<K>) -> bool;

    /// Reports whether `passes` takes no longer than some comparisons, whatever the event. Then
    /// it may be called where the change enters the cache, which spares a queue and a task switch.
    /// Holds for the predicates of this module and their combinations; false unless said otherwise.
    fn is_brief(&self) -> bool {
        false
    }
}

impl<K, F> Predicate<K> for F
where
    F: Fn(&Event<K>) -> bool + Send + Sync + 'static,
{
    fn passes(&self, event: &Event<K>) -> bool {
        self(event)
    }
}

/// Combines predicates.
pub trait PredicateExt: Sized {
    /// Passes what both pass; `other` is not asked if `self` refuses.
    fn and<P>(self, other: P) -> And<Self, P> {
        And(self, other)
    }

    /// Passes what at least one passes; `other` is not asked if `self` passes.
    fn or<P>(self, other: P) -> Or<Self, P> {
        Or(self, other)
    }

    /// Passes what `self` refuses; of the comparing predicates that is no creation or deletion.
    fn negate(self) -> Not<Self> {
        Not(self)
    }
}

impl<P> PredicateExt for P {}

/// See [`PredicateExt::and`].
#[derive(Debug, Clone, Copy)]
pub struct And<A, B>(A, B);

/// See [`PredicateExt::or`].
#[derive(Debug, Clone, Copy)]
pub struct Or<A, B>(A, B);

/// See [`PredicateExt::negate`].
#[derive(Debug, Clone, Copy)]
pub struct Not<A>(A);

impl<K, A: Predicate<K>, B: Predicate<K>> Predicate<K> for And<A, B> {
    fn passes(&self, event: &Event<K>) -> bool {
        self.0.passes(event) && self.1.passes(event)
    }

    fn is_brief(&self) -> bool {
        self.0.is_brief() && self.1.is_brief()
    }
}

impl<K, A: Predicate<K>, B: Predicate<K>> Predicate<K> for Or<A, B> {
    fn passes(&self, event: &Event<K>) -> bool {
        self.0.passes(event) || self.1.passes(event)
    }

    fn is_brief(&self) -> bool {
        self.0.is_brief() && self.1.is_brief()
    }
}

impl<K, A: Predicate<K>> Predicate<K> for Not<A> {
    fn passes(&self, event: &Event<K>) -> bool {
        !self.0.passes(event)
    }

    fn is_brief(&self) -> bool {
        self.0.is_brief()
    }
}

/// Passes an update if some part of the metadata differs; passes everything else.
#[derive(Debug, Clone, Copy)]
pub struct Changed(fn(&ObjectMeta, &ObjectMeta) -> bool);

impl<K: Resource> Predicate<K> for Changed {
    fn passes(&self, event: &Event<K>) -> bool {
        match event {
            Event::Updated { old, new } => (self.0)(old.meta(), new.meta()),
            Event::Added { .. } | Event::Deleted { .. } => true,
        }
    }

    fn is_brief(&self) -> bool {
        true
    }
}

/// Passes updates to another `resourceVersion`, so neither resyncs nor repeats of a relist.
#[must_use]
pub fn resource_version_changed() -> Changed {
    Changed(|old, new| old.resource_version != new.resource_version)
}

/// Passes updates to another `metadata.generation`: of custom resources with a status subresource
/// that is each change of the spec, and the start of a deletion, but no status write.
#[must_use]
pub fn generation_changed() -> Changed {
    Changed(|old, new| old.generation != new.generation)
}

/// Passes updates that change annotations.
#[must_use]
pub fn annotations_changed() -> Changed {
    Changed(|old, new| differ(old.annotations.as_ref(), new.annotations.as_ref()))
}

/// Passes updates that change labels.
#[must_use]
pub fn labels_changed() -> Changed {
    Changed(|old, new| differ(old.labels.as_ref(), new.labels.as_ref()))
}

/// An absent map and an empty one are the same.
fn differ<M: Default + PartialEq>(old: Option<&M>, new: Option<&M>) -> bool {
    let empty = M::default();
    old.unwrap_or(&empty) != new.unwrap_or(&empty)
}

/// Passes events of objects whose labels match, of an update the new ones.
#[must_use]
pub fn labels_match(selector: Selector) -> LabelsMatch {
    LabelsMatch(selector)
}

/// See [`labels_match`].
#[derive(Debug, Clone)]
pub struct LabelsMatch(Selector);

impl<K: Resource> Predicate<K> for LabelsMatch {
    fn passes(&self, event: &Event<K>) -> bool {
        self.0.matches(event.object().labels())
    }

    fn is_brief(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube_core::labels::Expression;

    use super::*;

    fn object(change: impl FnOnce(&mut ObjectMeta)) -> Arc<ConfigMap> {
        let mut object = ConfigMap::default();
        object.metadata.resource_version = Some("1".to_owned());
        object.metadata.generation = Some(1);
        change(&mut object.metadata);
        Arc::new(object)
    }

    fn update(change: impl FnOnce(&mut ObjectMeta)) -> Event<ConfigMap> {
        Event::Updated {
            old: object(|_| ()),
            new: object(change),
        }
    }

    fn map(key: &str) -> Option<std::collections::BTreeMap<String, String>> {
        Some([(key.to_owned(), "x".to_owned())].into())
    }

    #[test]
    fn each_comparing_predicate_passes_updates_of_its_own_field() {
        let events = [
            update(|_| ()),
            update(|meta| meta.resource_version = Some("2".to_owned())),
            update(|meta| meta.generation = Some(2)),
            update(|meta| meta.annotations = map("a")),
            update(|meta| meta.labels = map("a")),
            update(|meta| (meta.labels, meta.annotations) = (Some([].into()), Some([].into()))),
        ];
        let cases = [
            (
                resource_version_changed(),
                [false, true, false, false, false, false],
            ),
            (
                generation_changed(),
                [false, false, true, false, false, false],
            ),
            (
                annotations_changed(),
                [false, false, false, true, false, false],
            ),
            (labels_changed(), [false, false, false, false, true, false]),
        ];
        for (n, (predicate, expected)) in cases.into_iter().enumerate() {
            assert_eq!(
                events.each_ref().map(|event| predicate.passes(event)),
                expected,
                "{n}"
            );
            let object = object(|_| ());
            let added = Event::Added {
                object: Arc::clone(&object),
                is_in_initial_list: false,
            };
            let deleted = Event::Deleted {
                object,
                last_cached: None,
                final_state_known: true,
            };
            assert!(
                predicate.passes(&added) && predicate.passes(&deleted),
                "{n}"
            );
        }
    }

    #[test]
    fn labels_match_looks_at_the_new_object() {
        let selector: Selector = [Expression::Exists("a".to_owned())].into_iter().collect();
        let predicate = labels_match(selector);
        let event = update(|meta| meta.labels = map("a"));
        assert!(predicate.passes(&event));
        let Event::Updated { old, new } = event else {
            unreachable!("built as an update")
        };
        assert!(!predicate.passes(&Event::Updated { old: new, new: old }));
    }

    #[test]
    fn combined_predicates_follow_the_truth_table() {
        fn constant(value: bool) -> impl Predicate<ConfigMap> + Copy {
            move |_: &Event<ConfigMap>| value
        }
        let event = update(|_| ());
        for (a, b) in [(false, false), (false, true), (true, false), (true, true)] {
            assert_eq!(constant(a).and(constant(b)).passes(&event), a && b);
            assert_eq!(constant(a).or(constant(b)).passes(&event), a || b);
            assert_eq!(constant(a).negate().passes(&event), !a);
        }
    }
}
