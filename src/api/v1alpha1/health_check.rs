//! How a proxy is probed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::defaults;

/// How a proxy is probed and what happens when it fails.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct HealthCheck {
    /// Switches probing off; Ready then follows Provisioned alone.
    pub disabled: bool,
    /// URLs fetched through the proxy; without any, connection and handshake are probed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 3), inner(length(min = 1, max = 2048)))]
    pub urls: Vec<String>,
    /// Method of the request.
    pub method: Method,
    /// Statuses that count as success.
    #[schemars(
        length(min = 1, max = 20),
        inner(range(min = 100, max = 599)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub expected_status: Vec<u16>,
    /// Text that the answer's body must hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub body_contains: Option<String>,
    /// Seconds between two probes.
    #[schemars(range(min = 5, max = 3600))]
    pub interval_seconds: u32,
    /// Seconds that one probe may take; at most intervalSeconds.
    #[schemars(range(min = 1, max = 60))]
    pub timeout_seconds: u32,
    /// Successes in a row that make the proxy healthy.
    #[schemars(range(min = 1, max = 10))]
    pub success_threshold: u32,
    /// Failures in a row that make the proxy unhealthy.
    #[schemars(range(min = 1, max = 20))]
    pub failure_threshold: u32,
    /// Seconds after the start in which a failure does not count.
    #[schemars(range(min = 0, max = 86400))]
    pub startup_grace_seconds: u32,
    /// Latency in milliseconds above which a probe counts as failed; no limit unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 60000))]
    pub max_latency_milliseconds: Option<u32>,
    /// What is made of the address that targets see.
    #[serde(rename = "exitIP")]
    pub exit_ip: ExitIpPolicy,
    /// Whether a proxy that answers without credentials counts as open.
    pub require_auth: bool,
    /// What happens to an unhealthy machine.
    pub unhealthy_policy: UnhealthyPolicy,
}

impl Default for HealthCheck {
    fn default() -> Self {
        HealthCheck {
            disabled: false,
            urls: Vec::new(),
            method: Method::default(),
            expected_status: defaults::EXPECTED_STATUS.to_vec(),
            body_contains: None,
            interval_seconds: defaults::INTERVAL_SECONDS,
            timeout_seconds: defaults::TIMEOUT_SECONDS,
            success_threshold: defaults::SUCCESS_THRESHOLD,
            failure_threshold: defaults::FAILURE_THRESHOLD,
            startup_grace_seconds: defaults::STARTUP_GRACE_SECONDS,
            max_latency_milliseconds: None,
            exit_ip: ExitIpPolicy::default(),
            require_auth: false,
            unhealthy_policy: UnhealthyPolicy::default(),
        }
    }
}

/// Method of a check request.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    /// Fetches head and body.
    #[default]
    Get,
    /// Fetches the head alone.
    Head,
}

/// What is made of the address that targets see.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ExitIpPolicy {
    /// The address is not looked at.
    Ignore,
    /// The address is shown in the status.
    #[default]
    Record,
    /// The address must be the proxy's own.
    RequireOwn,
}

/// What happens to an unhealthy machine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct UnhealthyPolicy {
    /// Whether the machine is replaced.
    pub action: UnhealthyAction,
    /// Seconds of bad health before the action.
    #[schemars(range(min = 0, max = 86400))]
    pub after_seconds: u32,
    /// Replacements of one proxy within 24 hours.
    #[schemars(range(min = 0, max = 1000))]
    pub max_per_day: u32,
}

impl Default for UnhealthyPolicy {
    fn default() -> Self {
        UnhealthyPolicy {
            action: UnhealthyAction::default(),
            after_seconds: defaults::UNHEALTHY_AFTER_SECONDS,
            max_per_day: defaults::UNHEALTHY_MAX_PER_DAY,
        }
    }
}

/// Whether an unhealthy machine is replaced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnhealthyAction {
    /// It is left as it is.
    None,
    /// It is deleted and made anew.
    #[default]
    Replace,
}
