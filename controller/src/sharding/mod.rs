//! Sharding: several processes share the keys of one controller.
//!
//! Each member keeps a Lease of its own; the members whose Leases are live form a ring, and a hash
//! says which of them owns a key. When the ring changes, a member runs a key that it gains only
//! after every member has let go of what it lost and has said so in its Lease; keys that stay where
//! they are run on meanwhile. A member that cannot renew its Lease drops its runs before the others
//! may take it for gone.
//!
//! Guaranteed, if processes' clocks run at the same pace (not: show the same time), and no reconcile
//! blocks its thread: a key runs in no two members at the same time. A change of the ring costs no
//! more than two retry periods once what was lost has ended, and the lease duration more where a
//! member is gone without a word.
//!
//! Not guaranteed: that a key whose object is deleted while no member has run it yet gets a run
//! (with [`ShardBy::uid`] and [`ShardBy::label`], which need the object to place it); use a
//! finalizer for what must be cleaned up.
//!
//! ```no_run
//! # use controller::{Controller, Informer, Reconciler};
//! # use controller::sharding::{ShardBy, Sharding, ShardingOptions};
//! # use k8s_openapi::api::core::v1::ConfigMap;
//! # fn example(client: kube_client::Client, configs: &Informer<ConfigMap>, mine: impl Reconciler)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let options = ShardingOptions::new("infra", "config-controller");
//! let sharding = Sharding::over(client, options, ShardBy::uid(configs.lister()))?;
//! let controller = Controller::builder("config", mine)
//!     .for_object(configs)
//!     .sharded(sharding)
//!     .build()?;
//! # Ok(()) }
//! ```

mod gate;
mod handover;
mod lease;
mod ring;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use informer::{Lister, ObjectKey};
use kube_client::Client;
use kube_core::{Resource, ResourceExt};
use uuid::Uuid;

use crate::names;

pub(crate) use self::gate::{Entry, Gate};
pub(crate) use self::lease::{Keys, keep};

type Text = dyn Fn(&ObjectKey) -> Option<String> + Send + Sync;

/// By what keys are spread over the members.
#[derive(Clone)]
pub struct ShardBy(By);

#[derive(Clone)]
enum By {
    Key,
    Namespace,
    Object(Arc<Text>),
}

impl fmt::Debug for ShardBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            By::Key => "Key",
            By::Namespace => "Namespace",
            By::Object(_) => "Object",
        })
    }
}

impl ShardBy {
    /// By namespace and name.
    #[must_use]
    pub fn key() -> Self {
        Self(By::Key)
    }

    /// By namespace, so that one member has all objects of one; cluster-scoped ones by name.
    #[must_use]
    pub fn namespace() -> Self {
        Self(By::Namespace)
    }

    /// By the UID of the object in the cache. An object of the same name made anew may move.
    pub fn uid<K: Resource + Send + Sync + 'static>(objects: Lister<K>) -> Self {
        Self::object(objects, |object: &K| object.uid().unwrap_or_default())
    }

    /// By the value of a label of the object in the cache; all objects without it go together. See
    /// [`object`](Self::object) for what a change of the label means.
    pub fn label<K>(objects: Lister<K>, label: impl Into<String>) -> Self
    where
        K: Resource + Send + Sync + 'static,
    {
        let label = label.into();
        Self::object(objects, move |object: &K| {
            object.labels().get(&label).cloned().unwrap_or_default()
        })
    }

    /// By whatever text `of` gives for the object in the cache. While a run is under way the text
    /// should not change: a run of an object that moves by its own change is not waited for.
    pub fn object<K, F>(objects: Lister<K>, of: F) -> Self
    where
        K: Resource + Send + Sync + 'static,
        F: Fn(&K) -> String + Send + Sync + 'static,
    {
        Self(By::Object(Arc::new(move |key| {
            objects.get(key).map(|object| of(&object))
        })))
    }

    fn reads_objects(&self) -> bool {
        matches!(self.0, By::Object(_))
    }

    fn text(&self, key: &ObjectKey) -> Option<String> {
        match &self.0 {
            By::Key => Some(key.to_string()),
            By::Namespace => Some(key.namespace().unwrap_or(key.name()).to_owned()),
            By::Object(of) => of(key),
        }
    }
}

/// How the members find each other, and how long they wait for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardingOptions {
    /// Namespace of the Leases.
    pub namespace: String,
    /// Name of the ring: the same in all members, and a label value.
    pub group: String,
    /// Name of this member: another one in each process, also after a restart. Default: a random
    /// UUID.
    pub identity: String,
    /// How long a member counts as live after its last renewal was seen, in whole seconds.
    /// Default 15 s.
    pub lease_duration: Duration,
    /// How long after its last renewal a member drops its runs; less than the lease duration.
    /// Default 10 s.
    pub renew_deadline: Duration,
    /// How often a member renews and looks. Default 2 s.
    pub retry_period: Duration,
}

impl ShardingOptions {
    /// The default times.
    pub fn new(namespace: impl Into<String>, group: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            group: group.into(),
            identity: Uuid::new_v4().to_string(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// Why sharding can't work like this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("sharding option {option} is {value}, expected {expected}")]
pub struct InvalidOption {
    /// Field of [`ShardingOptions`].
    pub option: &'static str,
    /// Its value.
    pub value: Box<str>,
    /// What is allowed.
    pub expected: &'static str,
}

/// This process's part in a ring; see the [module documentation](self). For one controller.
pub struct Sharding {
    client: Client,
    options: ShardingOptions,
    gate: Arc<Gate>,
}

impl fmt::Debug for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharding")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Sharding {
    /// A member that keeps its Lease through `client`. Makes no request before the controller runs.
    ///
    /// # Errors
    /// [`InvalidOption`].
    pub fn over(
        client: Client,
        options: ShardingOptions,
        by: ShardBy,
    ) -> Result<Self, InvalidOption> {
        validate(&options)?;
        let gate = Gate::new(options.identity.clone(), by);
        Ok(Self {
            client,
            options,
            gate,
        })
    }

    /// Watches this member from outside.
    #[must_use]
    pub fn handle(&self) -> ShardingHandle {
        ShardingHandle(Arc::clone(&self.gate))
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }
}

/// Watches a member of a ring; cheap to clone.
#[derive(Clone)]
pub struct ShardingHandle(Arc<Gate>);

impl fmt::Debug for ShardingHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardingHandle")
            .field("members", &self.members())
            .finish_non_exhaustive()
    }
}

impl ShardingHandle {
    /// The members of the ring as this one sees them, in order.
    #[must_use]
    pub fn members(&self) -> Vec<String> {
        self.0.members()
    }

    /// Whether all members agree, so that this one runs everything it owns.
    #[must_use]
    pub fn is_agreed(&self) -> bool {
        self.0.is_agreed()
    }
}

const GROUP: &str = "at most 63 of a-z, 0-9, '-' and '.', with a letter or digit at both ends of each \
                     part between dots";
const IDENTITY: &str = "at most 120 of a-z, 0-9, '-' and '.', with a letter or digit at both ends of \
                        each part between dots";

fn validate(options: &ShardingOptions) -> Result<(), InvalidOption> {
    let refuse = |option, value: &dyn fmt::Debug, expected| {
        Err(InvalidOption {
            option,
            value: format!("{value:?}").into(),
            expected,
        })
    };
    let ShardingOptions {
        lease_duration,
        renew_deadline,
        retry_period,
        ..
    } = options;
    if !names::is_label(&options.namespace) {
        return refuse("namespace", &options.namespace, names::LABEL);
    }
    // The Lease of a member bears both, with a hyphen between.
    for (option, text, most, expected) in [
        ("group", &options.group, 63, GROUP),
        ("identity", &options.identity, 120, IDENTITY),
    ] {
        if !names::is_subdomain(text) || text.len() > most {
            return refuse(option, text, expected);
        }
    }
    // The Lease tells it to the other members in whole seconds.
    let whole = lease_duration.subsec_nanos() == 0
        && (1..=i32::MAX as u64).contains(&lease_duration.as_secs());
    if !whole {
        return refuse(
            "lease_duration",
            lease_duration,
            "whole seconds, at least 1",
        );
    }
    if renew_deadline >= lease_duration {
        return refuse("renew_deadline", renew_deadline, "less than lease_duration");
    }
    if retry_period.is_zero() || *retry_period > *renew_deadline / 2 {
        return refuse(
            "retry_period",
            retry_period,
            "more than 0, at most half of renew_deadline",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn w74_each_fault_of_the_options_is_named() {
        let good = || ShardingOptions::new("ns", "ring");
        let seconds = Duration::from_secs;
        let cases = [
            (good(), None),
            (
                ShardingOptions {
                    group: "Ring".to_owned(),
                    ..good()
                },
                Some("group"),
            ),
            (
                ShardingOptions {
                    group: "r".repeat(64),
                    ..good()
                },
                Some("group"),
            ),
            (
                ShardingOptions {
                    namespace: "a.b".to_owned(),
                    ..good()
                },
                Some("namespace"),
            ),
            (
                ShardingOptions {
                    group: "a..b".to_owned(),
                    ..good()
                },
                Some("group"),
            ),
            (
                ShardingOptions {
                    identity: "a.".to_owned(),
                    ..good()
                },
                Some("identity"),
            ),
            (
                ShardingOptions {
                    identity: "a".repeat(121),
                    ..good()
                },
                Some("identity"),
            ),
            (
                ShardingOptions {
                    identity: String::new(),
                    ..good()
                },
                Some("identity"),
            ),
            (
                ShardingOptions {
                    lease_duration: Duration::from_millis(999),
                    ..good()
                },
                Some("lease_duration"),
            ),
            (
                ShardingOptions {
                    lease_duration: Duration::from_millis(15_500),
                    ..good()
                },
                Some("lease_duration"),
            ),
            (
                ShardingOptions {
                    lease_duration: Duration::MAX,
                    ..good()
                },
                Some("lease_duration"),
            ),
            (
                ShardingOptions {
                    renew_deadline: seconds(15),
                    ..good()
                },
                Some("renew_deadline"),
            ),
            (
                ShardingOptions {
                    retry_period: Duration::ZERO,
                    ..good()
                },
                Some("retry_period"),
            ),
            (
                ShardingOptions {
                    retry_period: seconds(6),
                    ..good()
                },
                Some("retry_period"),
            ),
        ];
        for (options, fault) in cases {
            let found = validate(&options).err().map(|error| error.option);
            assert_eq!(found, fault, "{options:?}");
        }
    }
}
