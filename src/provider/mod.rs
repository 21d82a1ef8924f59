//! Where the machines of a fleet come from.
//!
//! A [`Provider`] makes, finds, watches and deletes the instance of one Proxy. The reconciler knows
//! this trait alone, so a further kind of provider is a module beside [`kubernetes`], [`sim`] and `gce` (in builds
//! with that feature) and one line
//! in [`config`].
//!
//! Invariants that every implementation keeps:
//!
//! - The instance of a Proxy has a name that follows from the Proxy's UID ([`name_from_uid`]), so
//!   a second create of the same Proxy meets the first instance instead of making another.
//! - Every instance carries the tags of its [`Owner`]: cluster id, UID and managed-by. One without
//!   all three is a stranger: it is never adopted, reported or deleted.
//! - An error says by its [`Class`] what to do about it, and never repeats a Secret's content.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;

use self::counted::Counted;
use crate::api::{Machine, Protocol, SpecHash};

mod around;
pub mod config;
#[cfg(test)]
pub(crate) mod conformance;
mod counted;
mod error;
#[cfg(test)]
pub(crate) mod fake;
#[cfg(feature = "gce")]
pub mod gce;
pub mod kubernetes;
mod paced;
pub mod sim;

pub use crate::secret::Redacted;
pub(crate) use around::Around;
pub(crate) use counted::ProviderCalls;
pub use error::{Class, Error, Reason};
pub use paced::{Pace, Paced};

/// What all providers write into the tag that says who made an instance.
pub const MANAGED_BY: &str = "proxy-operator";

/// Answers with the instance name of the Proxy with this UID: `px-` and the UID in lower case.
///
/// For a Kubernetes UID it has 39 characters and is valid as the name of a pod and of a cloud VM.
#[must_use]
pub fn name_from_uid(uid: &str) -> String {
    format!("px-{}", uid.to_ascii_lowercase())
}

/// A provider's address of an instance, for example `kubernetes://namespace/pod`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProviderId(Arc<str>);

/// The one life of an instance under its name: a pod's UID, a VM's numeric id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation(Arc<str>);

macro_rules! text {
    ($($name:ident),*) => {$(
        impl $name {
            /// Takes the text as it stands.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The text itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}
text!(ProviderId, Incarnation);

impl ProviderId {
    /// The name that the instance has at its provider: what stands behind the last slash.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }
}

/// The Proxy that an instance belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Keeps the instances of two clusters in one account apart.
    pub cluster_id: Arc<str>,
    /// UID of the Proxy.
    pub uid: String,
    /// Namespace of the Proxy.
    pub namespace: String,
    /// Name of the Proxy.
    pub proxy: String,
}

impl Owner {
    /// The name that the instance of this Proxy has.
    #[must_use]
    pub fn instance_name(&self) -> String {
        name_from_uid(&self.uid)
    }
}

/// Where a value lies in the Proxy's own namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretKey {
    /// Name of the Secret.
    pub name: String,
    /// Key in it.
    pub key: String,
}

/// User data for the first start of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudInit {
    /// The bytes, as read in this pass.
    pub bytes: Redacted,
    /// The Secret they came from; `None` if they stand in the Proxy itself.
    pub source: Option<SecretKey>,
}

/// User name and password that the proxy asks its clients for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The user name, as read in this pass.
    pub username: Redacted,
    /// The password, as read in this pass.
    pub password: Redacted,
    /// Where the user name lies.
    pub username_source: SecretKey,
    /// Where the password lies.
    pub password_source: SecretKey,
}

/// All that a provider needs to make the instance of a Proxy.
#[derive(Clone, Debug)]
pub struct CreateRequest {
    /// The Proxy it is for; gives the name and the tags.
    pub owner: Owner,
    /// Hash of the inputs below, stamped on the instance.
    pub spec_hash: SpecHash,
    /// Number of this attempt, from 1; a retry of an attempt without answer keeps its number.
    pub attempt: i64,
    /// This attempt may have been sent before, by this process or an earlier one, maybe with other
    /// inputs: its instance may exist. Told where the provider has attempts written down
    /// ([`Capabilities::write_ahead`]).
    pub resent: bool,
    /// What the instance is made of.
    pub machine: Machine,
    /// What the proxy speaks.
    pub protocol: Protocol,
    /// The port it listens on.
    pub port: u16,
    /// User data, if any.
    pub cloud_init: Option<CloudInit>,
    /// Credentials that the proxy asks for, if any.
    pub credentials: Option<Credentials>,
    /// The user's tags; the operator's own are written after them and win.
    pub tags: BTreeMap<String, String>,
}

/// State of an instance, as far as the operator cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceState {
    /// On its way up, or without an address yet.
    Provisioning,
    /// Serves, and has an address.
    Running,
    /// Will not serve again by itself, but still exists.
    Stopped,
    /// Ended for good, but still exists.
    Terminated,
}

/// An instance, as its provider showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Address of the instance at its provider.
    pub id: ProviderId,
    /// Which life under that address this is.
    pub incarnation: Incarnation,
    /// See [`InstanceState`].
    pub state: InstanceState,
    /// A deletion was accepted and goes on.
    pub deleting: bool,
    /// The provider's own readiness check passes.
    pub ready: bool,
    /// Addresses, the one to use first.
    pub ips: Vec<String>,
    /// Zone or node group it runs in, where the provider tells.
    pub zone: Option<String>,
    /// When it was made, by the provider's clock.
    pub created: Option<Timestamp>,
    /// All tags on it.
    pub tags: BTreeMap<String, String>,
    /// Hash stamped on it when it was made; `None` where the tag is absent or unreadable.
    pub spec_hash: Option<SpecHash>,
    /// Why it is in this state, in the provider's words; may be empty.
    pub message: Cow<'static, str>,
    /// The provider's operation that makes it, while it has not ended.
    pub operation: Option<Arc<str>>,
}

impl Instance {
    /// The address to use, if it has one.
    #[must_use]
    pub fn ip(&self) -> Option<&str> {
        self.ips.first().map(String::as_str)
    }
}

/// What the operator remembers of an instance; lets a provider tell a start from a relapse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// The incarnation on record.
    pub incarnation: Option<Incarnation>,
    /// It was seen [`Running`](InstanceState::Running) before.
    pub was_running: bool,
    /// The operation on record that makes it; tells why an instance is not there.
    pub operation: Option<Arc<str>>,
    /// It only has to be seen whether it still runs: a view of up to half a minute ago will do.
    pub drift: bool,
}

/// Answer to a create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Creation {
    /// The call made this instance.
    Created(Instance),
    /// It was there already and is this Proxy's.
    Adopted(Instance),
}

impl Creation {
    /// The instance, whichever way it came.
    #[must_use]
    pub fn instance(&self) -> &Instance {
        match self {
            Self::Created(instance) | Self::Adopted(instance) => instance,
        }
    }
}

/// An instance in a listing, and the Proxy that its tags name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Cluster id and UID by the tags; namespace and name of the Proxy as far as they were
    /// written down with the instance, else empty.
    pub owner: Owner,
    /// The instance, as [`Provider::get`] would show it without any hint.
    pub instance: Instance,
}

/// One page of a provider's instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Instances on this page.
    pub instances: Vec<Listed>,
    /// Hand this back for the next page; `None` on the last.
    pub next: Option<String>,
    /// Zones or regions that did not answer: what lies there is unknown, not gone.
    pub unreachable: Vec<String>,
}

/// What a provider can and wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Most bytes of user data it takes.
    pub max_cloud_init_bytes: usize,
    /// Wants an attempt written down before the create call (for request ids).
    pub write_ahead: bool,
    /// A read just after a create may not show the instance yet.
    pub eventually_consistent: bool,
    /// Knows preemptible machines.
    pub supports_spot: bool,
}

/// A source of instances.
///
/// All methods are safe to call again, also after the caller went away in mid-call. Callers put
/// the deadline; an implementation may be dropped at any await point.
pub trait Provider: Send + Sync + fmt::Debug {
    /// Makes the instance of a Proxy, or finds the one made before.
    ///
    /// # Errors
    ///
    /// [`Reason::NameCollision`] where the name belongs to a stranger; [`Class::Transient`] with
    /// a short `retry_after` while an older instance of this Proxy is still being deleted;
    /// otherwise by the provider's error table.
    fn create<'a>(&'a self, request: &'a CreateRequest) -> BoxFuture<'a, Result<Creation, Error>>;

    /// Reads one instance of this owner.
    ///
    /// # Errors
    ///
    /// [`Class::NotFound`] if it is gone or a stranger stands under the address.
    fn get<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        hint: &'a Hint,
    ) -> BoxFuture<'a, Result<Instance, Error>>;

    /// Asks for the deletion of that incarnation; another one under the address stays untouched.
    ///
    /// `Ok` means accepted, or nothing of that incarnation left to delete.
    ///
    /// # Errors
    ///
    /// By the provider's error table; never [`Class::NotFound`].
    fn delete<'a>(
        &'a self,
        id: &'a ProviderId,
        owner: &'a Owner,
        incarnation: &'a Incarnation,
    ) -> BoxFuture<'a, Result<(), Error>>;

    /// Looks for the instance of this owner by its name.
    ///
    /// # Errors
    ///
    /// By the provider's error table; never [`Class::NotFound`].
    fn find<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<Option<Instance>, Error>>;

    /// Deletes what belongs to this owner's instance and outlived it, or was made before it by a
    /// create that was cut short. Called once the instance is gone, before its Proxy is let go.
    ///
    /// The default is for providers whose instances take everything with them.
    ///
    /// # Errors
    ///
    /// By the provider's error table; never [`Class::NotFound`].
    fn delete_leftovers<'a>(&'a self, owner: &'a Owner) -> BoxFuture<'a, Result<(), Error>> {
        let _ = owner;
        std::future::ready(Ok(())).boxed()
    }

    /// Lists the instances that carry this cluster id, a UID and managed-by (P-05), a page at a
    /// time; those that are being deleted, too.
    ///
    /// # Errors
    ///
    /// By the provider's error table. A scope that does not answer is no error: see
    /// [`Page::unreachable`].
    fn list_by_tag<'a>(
        &'a self,
        cluster_id: &'a str,
        page: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Page, Error>>;

    /// What this provider can and wants; constant.
    fn capabilities(&self) -> Capabilities;
}

/// The configured providers by name.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    providers: Arc<BTreeMap<String, Arc<dyn Provider>>>,
}

impl Registry {
    /// Makes a registry of these providers.
    #[must_use]
    pub fn new(providers: BTreeMap<String, Arc<dyn Provider>>) -> Self {
        Self {
            providers: Arc::new(providers),
        }
    }

    /// The same providers, each of whose calls is counted.
    pub(crate) fn counted(&self, calls: &ProviderCalls) -> Self {
        let wrap = |(name, inner): (&String, &Arc<dyn Provider>)| {
            let counted = Counted {
                name: Arc::from(name.as_str()),
                inner: Arc::clone(inner),
                calls: calls.clone(),
            };
            (name.clone(), Arc::new(counted) as Arc<dyn Provider>)
        };
        Self::new(self.providers.iter().map(wrap).collect())
    }

    /// The provider of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Provider>> {
        self.providers.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<dyn Provider>)> {
        let all = self.providers.iter();
        all.map(|(name, provider)| (name.as_str(), provider))
    }

    /// All names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.providers.keys().map(String::as_str)
    }
}

/// The deadline of one provider call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p06_the_name_of_an_instance_follows_from_the_uid_alone() {
        let name = name_from_uid("6F9619FF-8B86-D011-B42D-00C04FC964FF");
        assert_eq!(name, "px-6f9619ff-8b86-d011-b42d-00c04fc964ff");
        assert_eq!(name.len(), 39);
    }

    #[test]
    fn p04_user_data_does_not_show_in_debug_output() {
        let data = CloudInit {
            bytes: Redacted::new(b"hunter2".to_vec()),
            source: None,
        };
        let shown = format!("{data:?}");
        assert!(
            !shown.contains("hunter2") && shown.contains("7 bytes redacted"),
            "{shown}"
        );
    }
}
