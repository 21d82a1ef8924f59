//! The custom resource that the load server serves, as an operator declares it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;
use kube_derive::CustomResource;
use serde::{Deserialize, Serialize};

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug)]
#[kube(
    group = "crawl.proxyoperator.dev",
    version = "v1alpha1",
    kind = "Proxy",
    plural = "proxies",
    namespaced,
    status = "ProxyStatus",
    schema = "disabled",
    crates(kube_core = "::kube_core", k8s_openapi = "::k8s_openapi")
)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProxySpec {
    pool: String,
    endpoint: Endpoint,
    credentials_ref: CredentialsRef,
    #[serde(default)]
    regions: Vec<String>,
    max_connections: i32,
    weight: i32,
    rotate_after: String,
    health_check: HealthCheck,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct Endpoint {
    host: String,
    port: i32,
    protocol: String,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
pub(crate) struct CredentialsRef {
    name: String,
    key: String,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HealthCheck {
    url: String,
    interval_seconds: i32,
    timeout_seconds: i32,
    failure_threshold: i32,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ProxyStatus {
    phase: String,
    observed_generation: i64,
    active_connections: i32,
    last_probe_time: Option<Timestamp>,
    conditions: Vec<Condition>,
}
