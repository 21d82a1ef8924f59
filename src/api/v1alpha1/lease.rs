//! How a proxy is lent to consumers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::defaults;

/// How a proxy is lent to consumers.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct LeasePolicy {
    /// Keeps the proxy out of lending.
    pub disabled: bool,
    /// Leases at one time.
    #[schemars(range(min = 1, max = 10000))]
    pub max_concurrent: u32,
    /// Share of the leases relative to other proxies.
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u32,
    /// Longest time to live of a lease in seconds.
    #[serde(rename = "maxTTLSeconds")]
    #[schemars(range(min = 1, max = 86400))]
    pub max_ttl_seconds: u32,
    /// Seconds between two leases.
    #[schemars(range(min = 0, max = 86400))]
    pub cooldown_seconds: u32,
    /// Limits for each target domain.
    pub per_target: PerTarget,
    /// Seconds that running leases get before the machine goes.
    #[schemars(range(min = 0, max = 86400))]
    pub drain_seconds: u32,
}

impl Default for LeasePolicy {
    fn default() -> Self {
        LeasePolicy {
            disabled: false,
            max_concurrent: defaults::LEASE_MAX_CONCURRENT,
            weight: defaults::LEASE_WEIGHT,
            max_ttl_seconds: defaults::LEASE_MAX_TTL_SECONDS,
            cooldown_seconds: defaults::LEASE_COOLDOWN_SECONDS,
            per_target: PerTarget::default(),
            drain_seconds: defaults::LEASE_DRAIN_SECONDS,
        }
    }
}

/// Limits for each target domain.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct PerTarget {
    /// Leases at one time for one target; lease.maxConcurrent unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub max_concurrent: Option<u32>,
    /// Seconds that a target is left alone after a ban.
    #[schemars(range(min = 0, max = 86400))]
    pub cooldown_seconds: u32,
}

impl Default for PerTarget {
    fn default() -> Self {
        PerTarget {
            max_concurrent: None,
            cooldown_seconds: defaults::PER_TARGET_COOLDOWN_SECONDS,
        }
    }
}
