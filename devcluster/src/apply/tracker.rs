//! The ownership of fields as requests see it: names of managers, times, resets, `kubectl`'s annotation.

use std::sync::LazyLock;

use serde_json::Value;

use super::{
    compare::compare,
    conflict,
    fields::{self, mentioned},
    managers::{self, ManagerId, Managers, Operation, Owned},
    ownership::{self, Kind, Refused, Versions},
    set::FieldSet,
};
use crate::error::{ApiError, ApiResult};

/// Owner of what was there before the first apply.
const BEFORE_APPLY: &str = "before-first-apply";
/// The manager whose annotation is kept in step.
const KUBECTL: &str = "kubectl";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Fields that nobody owns: the type, and what the server decides about metadata.
static UNOWNED: LazyLock<FieldSet> = LazyLock::new(|| {
    FieldSet::of_fields(&[
        &["apiVersion"],
        &["kind"],
        &["metadata"],
        &["metadata", "name"],
        &["metadata", "namespace"],
        &["metadata", "creationTimestamp"],
        &["metadata", "selfLink"],
        &["metadata", "uid"],
        &["metadata", "clusterName"],
        &["metadata", "generation"],
        &["metadata", "managedFields"],
        &["metadata", "resourceVersion"],
    ])
});

/// Which objects have owners of their fields.
///
/// Tracking costs one walk over what a write changes and, in every object, the names of its fields once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldTracking {
    /// All, from their creation on, as in a real server.
    #[default]
    Full,
    /// Those that were applied to, from the first apply on: for loads that never apply.
    ApplyOnly,
    /// None. Server-side apply is not offered then.
    Off,
}

/// Fields that a write cannot touch, so that it gives nobody their ownership.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResetFields(FieldSet);

impl ResetFields {
    /// The subtrees at these paths.
    pub(crate) fn of(paths: &[&[&str]]) -> Self {
        Self(FieldSet::of_fields(paths))
    }
}

/// A write of one manager.
pub(crate) struct Tracker<'a> {
    pub(crate) versions: &'a dyn Versions,
    pub(crate) api_version: &'a str,
    pub(crate) reset: &'a ResetFields,
    /// Who writes; "" is `unknown`.
    pub(crate) manager: &'a str,
    /// "" for the main resource.
    pub(crate) subresource: &'a str,
    /// The time, RFC 3339 with whole seconds.
    pub(crate) now: &'a str,
    /// Whether new objects are tracked.
    pub(crate) tracks_new: bool,
}

/// An object that was applied to.
pub(crate) struct Applied {
    /// The object, without `metadata.managedFields`.
    pub(crate) object: Value,
    /// Its `metadata.managedFields`.
    pub(crate) entries: Option<Value>,
}

/// An object before a write, without its `metadata.managedFields`, and these.
#[derive(Clone, Copy)]
pub(crate) struct Live<'a> {
    pub(crate) object: &'a Value,
    pub(crate) entries: Option<&'a Value>,
    /// Whether the object exists; if not, `object` is an empty one.
    pub(crate) exists: bool,
}

impl Tracker<'_> {
    /// The `metadata.managedFields` of an object after a create, an update or a patch.
    ///
    /// `new` is the object as it was sent, with defaults; `sent` are the entries that were sent with it.
    /// Where the ownership cannot be told, it stays as it was.
    pub(crate) fn updated(
        &self,
        live: Live<'_>,
        new: &Value,
        sent: Option<&Value>,
    ) -> Option<Value> {
        let mut managers = self.base(live, sent);
        if managers.0.is_empty() && (live.exists || !self.tracks_new) {
            return None;
        }
        let updated = self.update(live.object, new, &mut managers, self.manager);
        if updated.is_err() {
            return live.entries.cloned();
        }
        managers.cap();
        managers.write()
    }

    /// The entries after an update of an object that is tracked, though nobody may own any of it yet.
    pub(crate) fn taken(&self, live: Live<'_>, new: &Value) -> Option<Value> {
        let mut managers = live.entries.and_then(Managers::read).unwrap_or_default();
        match self.update(live.object, new, &mut managers, self.manager) {
            Ok(()) => managers.write(),
            Err(_) => live.entries.cloned(),
        }
    }

    /// The owners that an update starts from.
    fn base(&self, live: Live<'_>, sent: Option<&Value>) -> Managers {
        let of_live = || live.entries.and_then(Managers::read).unwrap_or_default();
        // Only a write of the whole object may say who owns what.
        let Some(sent) = sent.filter(|_| self.subresource.is_empty()) else {
            return of_live();
        };
        if managers::is_reset(sent) {
            return Managers::default();
        }
        match Managers::read(sent) {
            Some(managers) if !managers.0.is_empty() => managers,
            _ => of_live(),
        }
    }

    fn update(
        &self,
        live: &Value,
        new: &Value,
        managers: &mut Managers,
        manager: &str,
    ) -> Result<(), super::walk::Misfit> {
        let set = ownership::update(self.kind(), live, new, managers)?;
        let set = set.difference(&UNOWNED);
        if set.is_empty() {
            return Ok(());
        }
        let id = self.id(manager, Operation::Update);
        let set = match managers.0.remove(&id) {
            Some(before) => before.set.union(&set),
            None => set,
        };
        managers.0.insert(
            id,
            Owned {
                set,
                api_version: self.api_version.to_owned(),
                time: Some(Value::from(self.now)),
            },
        );
        Ok(())
    }

    /// The object after an apply of `config`.
    ///
    /// # Errors
    /// 400 when the configuration names owners; 500, as in the real server, when it does not fit its type;
    /// 409 when others own fields that it would change, unless forced.
    pub(crate) fn applied(
        &self,
        live: Live<'_>,
        config: &Value,
        force: bool,
    ) -> ApiResult<Applied> {
        let applied = self.apply(live, config, force);
        let applied = match applied {
            Err(Refused::Conflicts(conflicts)) if self.manager == KUBECTL => {
                let theirs = self.last_applied(live.object).unwrap_or_default();
                let left: Vec<_> = conflicts
                    .into_iter()
                    .filter(|conflict| !theirs.has(&conflict.path))
                    .collect();
                if left.is_empty() {
                    self.apply(live, config, true)
                } else {
                    Err(Refused::Conflicts(left))
                }
            }
            other => other,
        };
        let mut applied = applied.map_err(|refused| match refused {
            Refused::Conflicts(conflicts) => conflict::refusal(&conflicts),
            Refused::Misfit(misfit) => ApiError::unknown(misfit.to_string()),
        })?;
        if self.manager == KUBECTL
            && annotation(&applied.object).is_some_and(|text| !text.is_empty())
        {
            set_last_applied(&mut applied.object, config);
        }
        Ok(applied)
    }

    fn apply(&self, live: Live<'_>, config: &Value, force: bool) -> Result<Applied, Refused> {
        let mut managers = live.entries.and_then(Managers::read).unwrap_or_default();
        if managers.0.is_empty() && live.exists {
            let before = Value::Object(serde_json::Map::new());
            self.update(&before, live.object, &mut managers, BEFORE_APPLY)?;
            managers.cap();
        }
        let id = self.id(self.manager, Operation::Apply);
        let merged = ownership::apply(self.kind(), live.object, config, managers, &id, force)?;
        let mut managers = merged.managers;
        if let Some(owned) = managers.0.get_mut(&id) {
            owned.set = owned.set.difference(&UNOWNED);
            if merged.object.is_some() {
                owned.time = Some(Value::from(self.now));
            }
            if owned.set.is_empty() {
                managers.0.remove(&id);
            }
        }
        Ok(Applied {
            object: merged.object.unwrap_or_else(|| live.object.clone()),
            entries: managers.write(),
        })
    }

    /// Checks a configuration before it is applied.
    ///
    /// # Errors
    /// 400 when it names owners; 500, as in the real server, when it does not fit its type.
    pub(crate) fn check_config(&self, config: &Value) -> ApiResult<()> {
        let metadata = config.get("metadata");
        if metadata
            .and_then(|metadata| metadata.get("managedFields"))
            .is_some_and(|entries| !entries.is_null())
        {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        let Some(ty) = self.versions.type_of(self.api_version) else {
            return Ok(());
        };
        fields::check(ty, config).map_err(|misfits| {
            let text = |key: &str| {
                let text = metadata.and_then(|metadata| metadata.get(key));
                text.and_then(Value::as_str).unwrap_or_default()
            };
            let (group, version) = self
                .api_version
                .split_once('/')
                .unwrap_or(("", self.api_version));
            ApiError::unknown(format!(
                "failed to create typed patch object ({}/{}; {group}/{version}, Kind={}): {misfits}",
                text("namespace"),
                text("name"),
                config["kind"].as_str().unwrap_or_default(),
            ))
        })
    }

    /// The fields of the annotation of a client-side apply that are as they were applied.
    fn last_applied(&self, live: &Value) -> Option<FieldSet> {
        let ty = self.versions.type_of(self.api_version)?;
        let last: Value = serde_json::from_str(annotation(live)?).ok()?;
        if last["apiVersion"] != self.api_version
            || fields::check(ty, &last).is_err()
            || fields::check(ty, live).is_err()
        {
            return None;
        }
        let comparison = compare(ty, &last, live).ok()?;
        Some(
            mentioned(ty, &last)
                .difference(&comparison.modified)
                .difference(&comparison.added)
                .difference(&comparison.removed),
        )
    }

    fn kind(&self) -> Kind<'_> {
        Kind {
            versions: self.versions,
            api_version: self.api_version,
            reset: &self.reset.0,
        }
    }

    fn id(&self, manager: &str, operation: Operation) -> ManagerId {
        let manager = if manager.is_empty() {
            "unknown"
        } else {
            manager
        };
        ManagerId {
            manager: manager.to_owned(),
            operation,
            api_version: match operation {
                Operation::Apply => String::new(),
                Operation::Update => self.api_version.to_owned(),
            },
            subresource: self.subresource.to_owned(),
        }
    }
}

fn annotation(object: &Value) -> Option<&str> {
    object
        .get("metadata")?
        .get("annotations")?
        .get(LAST_APPLIED)?
        .as_str()
}

/// Notes a configuration in the annotation of client-side applies.
fn set_last_applied(object: &mut Value, config: &Value) {
    let mut noted = config.clone();
    if let Some(annotations) = noted
        .get_mut("metadata")
        .and_then(|metadata| metadata.get_mut("annotations"))
        .and_then(Value::as_object_mut)
    {
        annotations.remove(LAST_APPLIED);
    }
    object["metadata"]["annotations"][LAST_APPLIED] = Value::from(format!("{noted}\n"));
}
