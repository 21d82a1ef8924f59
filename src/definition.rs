//! The resource definition of a cluster beside the one of this program (O-08).
//!
//! Within a version definitions only gain: fields, and values that a field may take. So the older
//! of two is the one that lacks something, and neither is replaced by an older one.

use std::fmt;
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_client::{Api, Client};
use kube_core::params::{Patch, PatchParams};
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Refused;
use crate::api;
use crate::cluster::{self, GaveUp};

/// Name of the definition.
pub const NAME: &str = "proxies.crawl.proxyoperator.dev";
/// Whom the API server notes as the owner of what [`apply`] writes.
const FIELD_MANAGER: &str = "proxy-operator-crd";
/// How long the API server may take to serve a definition that it has accepted.
const SERVED_WITHIN: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Places that an error names before it counts the rest.
const SHOWN: usize = 3;

/// Why the cluster's definition is not the one that is needed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The API server refused, or did not answer.
    #[error("{what} the definition {NAME}")]
    Call {
        /// What was tried.
        what: &'static str,
        /// The answer.
        source: Refused,
    },
    /// A version that is served would go while objects are stored in it.
    #[error(
        "the cluster serves version {version} of {NAME}, this program does not know it, and objects \
         are stored in it; convert them first (`kubectl get` and `kubectl replace` each one), then \
         take {version} out of the definition's status.storedVersions"
    )]
    StoredVersion {
        /// The version.
        version: String,
    },
    /// The cluster's definition has what this program's lacks.
    #[error(
        "the cluster's definition {NAME} is newer than this program: only it has {places}; use a \
         newer proxy-operator for `crd apply` (an older one runs with a newer definition)"
    )]
    Newer {
        /// Where it has more.
        places: Places,
    },
    /// The cluster's definition lacks what this program writes or reads.
    #[error(
        "the cluster's definition {NAME} is older than this program: it lacks {places}; run \
         `proxy-operator crd apply` with an administrator's kubeconfig, then start again"
    )]
    Older {
        /// What it lacks.
        places: Places,
    },
    /// The API server may not tell which definition it has.
    #[error(
        "the definition {NAME} cannot be read to see whether it is new enough; allow `get` on it (as \
         manifests/ does)"
    )]
    Hidden(#[source] Refused),
    /// The API server did not tell which definition it has.
    #[error(transparent)]
    Unreachable(Box<cluster::Error>),
    /// Accepted, but still not served.
    #[error("the definition {NAME} was accepted, but is not served after {}s", .0.as_secs())]
    NotServed(Duration),
}

/// Places of a definition, such as `v1alpha1 spec.port`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(Vec<String>);

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.iter().take(SHOWN).map(String::as_str);
        f.write_str(&shown.collect::<Vec<_>>().join(", "))?;
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// What [`apply`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// There was no definition.
    Created,
    /// There was another one.
    Updated,
    /// It was there already.
    Unchanged,
}

impl Applied {
    /// One word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Unchanged => "unchanged",
        }
    }
}

/// What `more` has and `less` lacks: served versions, fields, and values of fields.
#[must_use]
pub fn lacking(less: &CustomResourceDefinition, more: &CustomResourceDefinition) -> Places {
    let mut places = Places::default();
    for version in more.spec.versions.iter().filter(|version| version.served) {
        let same = less
            .spec
            .versions
            .iter()
            .find(|one| one.name == version.name);
        let Some(same) = same.filter(|one| one.served) else {
            places.0.push(format!("version {}", version.name));
            continue;
        };
        let schema = |version: &_| serde_json::to_value(version).unwrap_or_default();
        let (less, more) = (schema(&same.schema), schema(&version.schema));
        let at = "/openAPIV3Schema";
        if let (Some(less), Some(more)) = (less.pointer(at), more.pointer(at)) {
            compare(less, more, &format!("{} ", version.name), &mut places.0);
        }
    }
    places
}

fn compare(less: &Value, more: &Value, place: &str, found: &mut Vec<String>) {
    let below = |name: &str| {
        let dot = if place.ends_with(' ') { "" } else { "." };
        format!("{place}{dot}{name}")
    };
    for (name, field) in more["properties"].as_object().into_iter().flatten() {
        match less["properties"].get(name) {
            Some(same) => compare(same, field, &below(name), found),
            None => found.push(below(name)),
        }
    }
    for nested in ["items", "additionalProperties"] {
        if let (Some(less), Some(more)) = (less.get(nested), more.get(nested)) {
            compare(less, more, &format!("{place}[]"), found);
        }
    }
    let values = |schema: &Value| schema["enum"].as_array().cloned();
    if let (Some(less), Some(more)) = (values(less), values(more)) {
        let new = more.iter().filter(|value| !less.contains(value));
        found.extend(new.map(|value| format!("{place} {value}")));
    }
}

/// Whether `wanted` may take the place of `present`.
///
/// # Errors
///
/// [`Error::StoredVersion`] and [`Error::Newer`].
pub fn may_replace(
    present: &CustomResourceDefinition,
    wanted: &CustomResourceDefinition,
) -> Result<(), Error> {
    let keeps = |name: &str| {
        let mut versions = wanted.spec.versions.iter();
        versions.any(|version| version.name == name && version.served)
    };
    let status = present.status.as_ref();
    let stored = status.and_then(|status| status.stored_versions.as_deref());
    if let Some(version) = stored.unwrap_or_default().iter().find(|name| !keeps(name)) {
        let version = version.clone();
        return Err(Error::StoredVersion { version });
    }
    // A version that goes with nothing stored in it is a change that somebody made on purpose.
    let mut kept = present.clone();
    kept.spec.versions.retain(|version| keeps(&version.name));
    let places = lacking(wanted, &kept);
    if places == Places::default() {
        Ok(())
    } else {
        Err(Error::Newer { places })
    }
}

/// Writes this program's definition by server-side apply and waits until it is served.
///
/// Takes the fields over from whoever wrote them before, such as helm or kubectl. With `dry_run`
/// the API server checks everything and keeps nothing.
///
/// # Errors
///
/// [`Error::StoredVersion`], [`Error::Newer`], [`Error::Call`], [`Error::NotServed`].
pub async fn apply(client: &Client, dry_run: bool) -> Result<Applied, Error> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let call = |what| {
        move |error| Error::Call {
            what,
            source: Refused::from(error),
        }
    };
    let present = definitions.get_opt(NAME).await.map_err(call("read"))?;
    let wanted = api::crd();
    if let Some(present) = &present {
        may_replace(present, &wanted)?;
    }
    let mut params = PatchParams::apply(FIELD_MANAGER).force();
    params.dry_run = dry_run;
    let written = definitions
        .patch(NAME, &params, &Patch::Apply(&wanted))
        .await
        .map_err(call("apply"))?;
    let applied = match &present {
        None => Applied::Created,
        Some(present) if present.spec == written.spec => Applied::Unchanged,
        Some(_) => Applied::Updated,
    };
    let deadline = Instant::now() + SERVED_WITHIN;
    let mut newest = written;
    while !dry_run && !is_served(&newest) {
        if Instant::now() >= deadline {
            return Err(Error::NotServed(SERVED_WITHIN));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
        newest = definitions.get(NAME).await.map_err(call("read"))?;
    }
    Ok(applied)
}

fn is_served(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();
    conditions.any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// Whether the operator can work with the definition that the cluster has.
///
/// None at all passes: the informers say what they miss, and begin once it is there. So does a stop.
///
/// # Errors
///
/// [`Error::Older`], [`Error::Hidden`], and [`Error::Unreachable`] once `patience` is over.
pub(crate) async fn check(
    client: &Client,
    patience: Duration,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let what = "the definition of the Proxy resource";
    let definitions = &definitions;
    let asked = cluster::patiently(what, patience, stop, move || async move {
        definitions.get_opt(NAME).await.map_err(Refused::from)
    });
    let present = match asked.await {
        Ok(present) => present.flatten(),
        Err(GaveUp::Refused(refused)) => return Err(Error::Hidden(refused)),
        Err(GaveUp::Unreachable(error)) => return Err(Error::Unreachable(Box::new(error))),
    };
    let Some(present) = present else {
        return Ok(());
    };
    let places = lacking(&present, &api::crd());
    if places == Places::default() {
        Ok(())
    } else {
        Err(Error::Older { places })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinitionStatus;

    use super::*;

    /// The definition with something done to the fields of `spec`.
    fn changed(change: impl FnOnce(&mut Value)) -> CustomResourceDefinition {
        let mut value = serde_json::to_value(api::crd()).expect("plain texts");
        let at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
        change(value.pointer_mut(at).expect("the fields of spec"));
        serde_json::from_value(value).expect("still a definition")
    }

    fn without_port() -> CustomResourceDefinition {
        changed(|fields| drop(fields.as_object_mut().expect("fields").remove("port")))
    }

    fn named(versions: &[&str], stored: &[&str]) -> CustomResourceDefinition {
        let mut definition = api::crd();
        let first = definition.spec.versions.remove(0);
        definition.spec.versions = versions
            .iter()
            .map(|name| {
                let mut version = first.clone();
                (*name).clone_into(&mut version.name);
                version
            })
            .collect();
        definition.status = Some(CustomResourceDefinitionStatus {
            stored_versions: Some(stored.iter().map(|name| (*name).to_owned()).collect()),
            ..CustomResourceDefinitionStatus::default()
        });
        definition
    }

    #[test]
    fn o08_what_one_definition_lacks_is_named_by_its_place() {
        let ours = api::crd();
        assert_eq!(lacking(&ours, &ours), Places::default());
        assert_eq!(lacking(&without_port(), &ours).0, ["v1alpha1 spec.port"]);
        assert_eq!(lacking(&ours, &without_port()), Places::default());
        let fewer = changed(|fields| {
            let protocols = fields["protocol"]["enum"].as_array_mut();
            protocols.expect("values").retain(|one| one != "socks5");
        });
        let missing = lacking(&fewer, &ours).0;
        assert_eq!(missing, ["v1alpha1 spec.protocol \"socks5\""]);
    }

    #[test]
    fn o08_many_places_are_counted() {
        let bare = changed(|fields| *fields = serde_json::json!({}));
        let text = lacking(&bare, &api::crd()).to_string();
        assert!(
            text.contains(" more") && text.contains("v1alpha1 spec."),
            "{text}"
        );
    }

    #[test]
    fn o08_a_served_version_with_stored_objects_is_not_dropped() {
        let ours = api::crd();
        for (present, refused) in [
            (named(&["v1alpha1"], &["v1alpha1"]), None),
            (named(&["v1alpha1", "v1beta1"], &["v1alpha1"]), None),
            (
                named(&["v1alpha1", "v1beta1"], &["v1alpha1", "v1beta1"]),
                Some("v1beta1"),
            ),
        ] {
            match (may_replace(&present, &ours), refused) {
                (Ok(()), None) => {}
                (Err(Error::StoredVersion { version }), Some(name)) => assert_eq!(version, name),
                (answer, _) => panic!("{answer:?} instead of {refused:?}"),
            }
        }
    }

    #[test]
    fn o08_a_newer_definition_is_not_replaced_by_an_older_one() {
        let newer = changed(|fields| fields["brandNew"] = serde_json::json!({ "type": "string" }));
        let error = may_replace(&newer, &api::crd()).expect_err("it would lose a field");
        assert!(
            error.to_string().contains("v1alpha1 spec.brandNew"),
            "{error}"
        );
        assert!(may_replace(&api::crd(), &newer).is_ok());
        assert!(may_replace(&without_port(), &api::crd()).is_ok());
    }
}
