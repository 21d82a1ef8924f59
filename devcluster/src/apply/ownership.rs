//! How a write moves the ownership of fields.

use std::{borrow::Cow, collections::BTreeMap};

use serde_json::Value;

use super::{
    compare::{Comparison, compare},
    conflict::Conflict,
    fields::{mentioned, with_declared_parents, without},
    managers::{ManagerId, Managers, Owned},
    merge::merge,
    reconcile::reconciled,
    schema::Type,
    set::FieldSet,
    walk::Misfit,
};

/// The versions that an object's fields may be named in.
pub(crate) trait Versions {
    /// The type of objects in a version; `None` when it is not known (any more).
    fn type_of(&self, api_version: &str) -> Option<Type<'_>>;

    /// An object in one of the versions that [`type_of`](Self::type_of) knows.
    fn convert<'v>(&self, object: &'v Value, api_version: &str) -> Cow<'v, Value>;
}

/// The kind of object that a write is about.
#[derive(Clone, Copy)]
pub(super) struct Kind<'a> {
    pub(super) versions: &'a dyn Versions,
    pub(super) api_version: &'a str,
    /// Fields that writes of this part of the object cannot touch: nobody comes to own them by one.
    pub(super) reset: &'a FieldSet,
}

/// Why an apply fails.
#[derive(Debug)]
pub(super) enum Refused {
    Conflicts(Vec<Conflict>),
    Misfit(Misfit),
}

impl From<Misfit> for Refused {
    fn from(misfit: Misfit) -> Self {
        Self::Misfit(misfit)
    }
}

/// What an apply leads to.
pub(super) struct Merged {
    /// The new object; `None` when it is the live one.
    pub(super) object: Option<Value>,
    pub(super) managers: Managers,
}

/// Takes what an update changed from all who owned it. Gives the fields that the writer owns now.
pub(super) fn update(
    kind: Kind<'_>,
    live: &Value,
    new: &Value,
    managers: &mut Managers,
) -> Result<FieldSet, Misfit> {
    reconcile(kind, managers);
    let mut changes = Changes::new(kind, live, new);
    match take_over(&mut changes, managers, None, true) {
        Ok(()) => {}
        Err(Refused::Misfit(misfit)) => return Err(misfit),
        Err(Refused::Conflicts(_)) => {}
    }
    let Some(comparison) = changes.in_version(kind.api_version)? else {
        return Ok(FieldSet::default());
    };
    Ok(comparison.modified.union(&comparison.added))
}

/// Lays a configuration over the live object, takes away what the applier no longer applies, and moves
/// ownership.
pub(super) fn apply(
    kind: Kind<'_>,
    live: &Value,
    config: &Value,
    mut managers: Managers,
    applier: &ManagerId,
    force: bool,
) -> Result<Merged, Refused> {
    reconcile(kind, &mut managers);
    let Some(ty) = kind.versions.type_of(kind.api_version) else {
        let gone = format!("there is no type for version {}", kind.api_version);
        return Err(Misfit::new(gone).into());
    };
    let merged = merge(ty, live, config)?;
    let last = managers.0.remove(applier);
    let owned = Owned {
        set: mentioned(ty, config).without_subtrees(kind.reset),
        api_version: kind.api_version.to_owned(),
        time: last.as_ref().and_then(|last| last.time.clone()),
    };
    managers.0.insert(applier.clone(), owned);
    let new = match last {
        Some(last) if !last.set.is_empty() => prune(kind, merged, &managers, &last),
        _ => merged,
    };
    let mut changes = Changes::new(kind, live, &new);
    take_over(&mut changes, &mut managers, Some(applier), force)?;
    let object = (*live != new).then_some(new);
    Ok(Merged { object, managers })
}

/// The comparison of two objects in every version that it is asked for.
struct Changes<'a> {
    kind: Kind<'a>,
    live: &'a Value,
    new: &'a Value,
    known: BTreeMap<String, Option<Comparison>>,
}

impl<'a> Changes<'a> {
    fn new(kind: Kind<'a>, live: &'a Value, new: &'a Value) -> Self {
        Self {
            kind,
            live,
            new,
            known: BTreeMap::new(),
        }
    }

    /// `None`: there is no such version any more.
    fn in_version(&mut self, api_version: &str) -> Result<Option<&Comparison>, Misfit> {
        if !self.known.contains_key(api_version) {
            let versions = self.kind.versions;
            let comparison = match versions.type_of(api_version) {
                Some(ty) => {
                    let live = versions.convert(self.live, api_version);
                    let new = versions.convert(self.new, api_version);
                    Some(compare(ty, &live, &new)?.without(self.kind.reset))
                }
                None => None,
            };
            self.known.insert(api_version.to_owned(), comparison);
        }
        Ok(self.known.get(api_version).and_then(Option::as_ref))
    }
}

/// Takes changed and removed fields from all owners but one.
fn take_over(
    changes: &mut Changes<'_>,
    managers: &mut Managers,
    except: Option<&ManagerId>,
    force: bool,
) -> Result<(), Refused> {
    let mut conflicts = Vec::new();
    let mut left: BTreeMap<ManagerId, Option<FieldSet>> = BTreeMap::new();
    for (id, owned) in &managers.0 {
        if Some(id) == except {
            continue;
        }
        let Some(comparison) = changes.in_version(&owned.api_version)? else {
            left.insert(id.clone(), None);
            continue;
        };
        // No field is both, so the order of the two does not matter.
        let taken = owned.set.intersection(&comparison.modified);
        let taken = taken.union(&owned.set.intersection(&comparison.added));
        conflicts.extend(taken.paths().into_iter().map(|path| Conflict {
            owner: id.clone(),
            path,
        }));
        if !taken.is_empty() || !comparison.removed.is_empty() {
            let kept = owned.set.difference(&taken).difference(&comparison.removed);
            left.insert(id.clone(), Some(kept));
        }
    }
    if !force && !conflicts.is_empty() {
        return Err(Refused::Conflicts(conflicts));
    }
    for (id, kept) in left {
        match (kept, managers.0.get_mut(&id)) {
            (Some(kept), Some(owned)) => owned.set = kept,
            _ => {
                managers.0.remove(&id);
            }
        }
    }
    managers.0.retain(|_, owned| !owned.set.is_empty());
    Ok(())
}

/// Takes away what the applier applied the last time and does not now, unless others own it.
fn prune(kind: Kind<'_>, merged: Value, managers: &Managers, last: &Owned) -> Value {
    let versions = kind.versions;
    let Some(ty) = versions.type_of(&last.api_version) else {
        return merged;
    };
    let merged = versions.convert(&merged, &last.api_version).into_owned();
    let named = |set: &FieldSet| with_declared_parents(Some(ty), set);
    let pruned = without(ty, &merged, &named(&last.set));
    let pruned = add_back_owned(kind, &last.api_version, &merged, pruned, managers);
    let kept = named(&mentioned(ty, &pruned));
    let gone = named(&mentioned(ty, &merged))
        .difference(&kept)
        .intersection(&named(&last.set));
    let pruned = without(ty, &merged, &gone);
    versions.convert(&pruned, kind.api_version).into_owned()
}

/// Puts back what somebody owns, the applier's new configuration included.
fn add_back_owned(
    kind: Kind<'_>,
    api_version: &str,
    merged: &Value,
    pruned: Value,
    managers: &Managers,
) -> Value {
    let mut by_version: BTreeMap<&str, FieldSet> = BTreeMap::new();
    for owned in managers.0.values() {
        let all = by_version.entry(&owned.api_version).or_default();
        *all = all.union(&owned.set);
    }
    // The pruned version first: what it lost may be needed to convert to another.
    let mut order: Vec<&str> = by_version.keys().copied().collect();
    order.sort_by_key(|version| *version != api_version);
    let mut pruned = pruned;
    for version in order {
        let (Some(ty), Some(owned)) = (kind.versions.type_of(version), by_version.get(version))
        else {
            continue;
        };
        let named = |set: &FieldSet| with_declared_parents(Some(ty), set);
        let whole = kind.versions.convert(merged, version);
        let left = kind.versions.convert(&pruned, version).into_owned();
        let kept = named(&mentioned(ty, &left)).union(&named(owned));
        let gone = named(&mentioned(ty, &whole)).difference(&kept);
        pruned = without(ty, &whole, &gone);
    }
    kind.versions.convert(&pruned, api_version).into_owned()
}

fn reconcile(kind: Kind<'_>, managers: &mut Managers) {
    for owned in managers.0.values_mut() {
        if let Some(ty) = kind.versions.type_of(&owned.api_version)
            && let Some(set) = reconciled(ty, &owned.set)
        {
            owned.set = set;
        }
    }
    managers
        .0
        .retain(|_, owned| kind.versions.type_of(&owned.api_version).is_some());
}
