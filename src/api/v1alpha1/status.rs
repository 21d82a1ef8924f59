//! What the operator reports about a proxy.
//!
//! No field changes merely because time passed or a probe ran.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Protocol;
use crate::api::schema;

/// What the operator reports about a proxy.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxyStatus {
    /// One word for the whole state, computed from conditions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Generation of the spec that this status speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Provider that has the machine of providerID, or may have one that is not on record yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub provider: Option<String>,
    /// The machine in the provider's terms, such as kubernetes://crawl/px-1.
    #[serde(rename = "providerID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub provider_id: Option<String>,
    /// Incarnation of the machine: UID of the pod, numeric id of the machine.
    #[serde(rename = "instanceUID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub instance_uid: Option<String>,
    /// Operation at the provider that has not ended yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub operation: Option<String>,
    /// Number of the latest attempt to create a machine; only grows.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(range(min = 0))]
    pub create_attempts: i64,
    /// Whether the latest attempt has no definite answer yet.
    #[serde(skip_serializing_if = "is_default")]
    pub attempt_open: bool,
    /// Machines lost in a row.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(range(min = 0))]
    pub failure_streak: i32,
    /// Address of the proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub ip: Option<String>,
    /// Where clients reach the proxy, with every default filled in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<StatusEndpoint>,
    /// Provisioned, Synced, Healthy, Ready, and ReplacementBlocked while it holds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Why the operator does not try again on its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latch: Option<Latch>,
    /// Result of probing, written with a transition or a slow heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthStatus>,
    /// Replacements of late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replacements: Option<Replacements>,
}

/// One word for the state of a proxy.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// No machine yet, and what is missing lies outside.
    Pending,
    /// A machine is being made.
    Provisioning,
    /// The machine runs; the first probe has not succeeded yet.
    Verifying,
    /// The proxy serves.
    Ready,
    /// The machine runs, the proxy does not serve.
    Unhealthy,
    /// The machine is on its way out, another will follow.
    Replacing,
    /// The Proxy is being deleted.
    Deleting,
    /// The Proxy's own inputs are wrong; the operator waits for a change.
    Failed,
}

impl Phase {
    /// The name as it stands in the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Provisioning => "Provisioning",
            Phase::Verifying => "Verifying",
            Phase::Ready => "Ready",
            Phase::Unhealthy => "Unhealthy",
            Phase::Replacing => "Replacing",
            Phase::Deleting => "Deleting",
            Phase::Failed => "Failed",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where clients reach a proxy.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct StatusEndpoint {
    /// DNS name or address.
    #[schemars(length(max = 253))]
    pub host: String,
    /// Port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// Protocol that clients speak.
    pub protocol: Protocol,
}

/// Inputs at which the operator gave up.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Latch {
    /// Generation of the spec.
    #[schemars(range(min = 0))]
    pub generation: i64,
    /// Hash of spec and Secret contents.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub input_hash: Option<String>,
    /// Value of the retry annotation.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub retry_nonce: Option<String>,
}

/// Result of probing.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct HealthStatus {
    /// State after damping.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<HealthState>,
    /// Address that targets see.
    #[serde(rename = "exitIP", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 45))]
    pub exit_ip: Option<String>,
    /// Median latency of a probe in milliseconds.
    #[serde(rename = "latencyMsP50", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub latency_ms_p50: Option<i64>,
    /// Share of successful probes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub success_ratio_percent: Option<i32>,
    /// When the state last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// The latest failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<HealthError>,
}

/// State of a proxy as probing sees it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HealthState {
    /// No result yet.
    Unknown,
    /// Probes succeed.
    Healthy,
    /// Probes fail.
    Unhealthy,
}

/// A failed probe.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct HealthError {
    /// Kind of failure in one word.
    #[schemars(length(max = 64))]
    pub class: String,
    /// The failure in words.
    #[schemars(length(max = 256))]
    pub message: String,
}

/// Replacements of late.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Replacements {
    /// Replacements from windowStart to lastTime, which are less than 24 hours apart.
    #[serde(rename = "count24h")]
    #[schemars(range(min = 0))]
    pub count_24h: i32,
    /// When the first of those began that count24h counts; a later one starts anew after 24 hours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_start: Option<Time>,
    /// When the latest one began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_time: Option<Time>,
    /// Why the latest one began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub last_reason: Option<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
