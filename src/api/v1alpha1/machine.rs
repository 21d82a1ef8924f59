//! The machine of a Managed proxy.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ResourceRequirements, Toleration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{defaults, schema};

/// The machine of a Managed proxy; whatever is unset is the provider's default.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct Machine {
    /// Size in the provider's terms, such as e2-micro.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub size: Option<String>,
    /// Image in the provider's terms: a container image, or a boot image.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub image: Option<String>,
    /// Zone in the provider's terms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub zone: Option<String>,
    /// Region in the provider's terms.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub region: Option<String>,
    /// Size of the boot disk in GiB.
    #[serde(rename = "diskSizeGiB")]
    #[schemars(range(min = 10, max = 1024))]
    pub disk_size_gib: u32,
    /// Whether the machine may be preempted.
    pub spot: bool,
    /// Whether the machine has an address of its own on the internet.
    #[serde(rename = "publicIP")]
    pub public_ip: bool,
    /// What only pods have; excludes gce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesMachine>,
    /// What only Compute Engine machines have; excludes kubernetes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gce: Option<GceMachine>,
}

impl Default for Machine {
    fn default() -> Self {
        Machine {
            size: None,
            image: None,
            zone: None,
            region: None,
            disk_size_gib: defaults::DISK_SIZE_GIB,
            spot: false,
            public_ip: true,
            kubernetes: None,
            gce: None,
        }
    }
}

/// Settings of a proxy that runs as a pod, typed as in core/v1.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct KubernetesMachine {
    /// Entry point of the container; that of the image unless set.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 1024)))]
    pub command: Vec<String>,
    /// Arguments of the entry point.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 4096)))]
    pub args: Vec<String>,
    /// Requests and limits of the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::resources")]
    pub resources: Option<ResourceRequirements>,
    /// Labels that a node must have to run the pod.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::node_selector")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pod puts up with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::tolerations")]
    pub tolerations: Vec<Toleration>,
    /// Service account of the pod; its token is never mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object_name")]
    pub service_account_name: Option<String>,
    /// Priority class of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object_name")]
    pub priority_class_name: Option<String>,
    /// Runtime class of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::object_name")]
    pub runtime_class_name: Option<String>,
}

/// Settings of a proxy that runs on Compute Engine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct GceMachine {
    /// Network of the first interface.
    #[schemars(length(min = 1, max = 253))]
    pub network: String,
    /// Subnetwork of the first interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub subnetwork: Option<String>,
    /// Network tags, which firewall rules match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(min = 1, max = 63), regex(pattern = r"^[a-z]([-a-z0-9]*[a-z0-9])?$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub network_tags: Vec<String>,
    /// Tier of the public address.
    pub network_tier: NetworkTier,
    /// Type of the boot disk, such as pd-balanced.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub disk_type: Option<String>,
    /// Service account of the machine; none unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 253), regex(pattern = "^[^@ ]+@[^@ ]+$"))]
    pub service_account_email: Option<String>,
    /// Access scopes of the service account.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(length(min = 1, max = 253)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub scopes: Vec<String>,
    /// Oldest processor generation allowed, such as Intel Ice Lake.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub min_cpu_platform: Option<String>,
}

impl Default for GceMachine {
    fn default() -> Self {
        GceMachine {
            network: defaults::GCE_NETWORK.to_owned(),
            subnetwork: None,
            network_tags: Vec::new(),
            network_tier: NetworkTier::default(),
            disk_type: None,
            service_account_email: None,
            scopes: Vec::new(),
            min_cpu_platform: None,
        }
    }
}

/// Tier of a public address on Compute Engine.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "UPPERCASE")]
pub enum NetworkTier {
    /// Traffic stays on the provider's backbone.
    #[default]
    Premium,
    /// Traffic leaves at the nearest edge.
    Standard,
}
