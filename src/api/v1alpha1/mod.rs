//! Version `v1alpha1` of the Proxy resource, field by field.
//!
//! Every field is bounded, so that the API server's static cost estimate of the CEL rules stays
//! under its limit. Absent optional fields are left out when an object is written; fields with a
//! static default are always written, because the schema fills them in anyway.

mod health_check;
mod lease;
mod machine;
mod status;

pub use health_check::{ExitIpPolicy, HealthCheck, Method, UnhealthyAction, UnhealthyPolicy};
pub use lease::{LeasePolicy, PerTarget};
pub use machine::{GceMachine, KubernetesMachine, Machine, NetworkTier};
pub use status::{
    HealthError, HealthState, HealthStatus, Latch, Phase, ProxyStatus, Replacements, StatusEndpoint,
};

use std::collections::BTreeMap;
use std::fmt;

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::defaults;
use super::schema;

/// What a user asks for: one forward proxy, made by the operator or brought along.
#[expect(
    clippy::duplicated_attributes,
    reason = "each printcolumn has a type and a path of its own"
)]
#[derive(CustomResource, Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "crawl.proxyoperator.dev",
    version = "v1alpha1",
    kind = "Proxy",
    plural = "proxies",
    singular = "proxy",
    shortname = "px",
    shortname = "prx",
    category = "crawl",
    namespaced,
    status = "ProxyStatus",
    derive = "PartialEq",
    doc = "A forward proxy for crawlers: a machine the operator runs, or an endpoint of somebody else.",
    schema = "manual",
    crates(kube_core = "::kube_core"),
    selectable = ".spec.mode",
    selectable = ".spec.provider",
    selectable = ".spec.protocol",
    selectable = ".spec.machine.zone",
    selectable = ".status.phase",
    selectable = ".status.ip",
    selectable = ".status.providerID",
    printcolumn(name = "Mode", type_ = "string", json_path = ".spec.mode"),
    printcolumn(name = "Provider", type_ = "string", json_path = ".spec.provider"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "IP", type_ = "string", json_path = ".status.ip"),
    printcolumn(
        name = "Healthy",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Healthy")].status"#
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Provisioned")].reason"#
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Zone",
        type_ = "string",
        json_path = ".spec.machine.zone",
        priority = 1
    ),
    printcolumn(
        name = "ExitIP",
        type_ = "string",
        json_path = ".status.health.exitIP",
        priority = 1
    ),
    printcolumn(
        name = "ProviderID",
        type_ = "string",
        json_path = ".status.providerID",
        priority = 1
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Provisioned")].message"#,
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", default)]
pub struct ProxySpec {
    /// Whether the operator runs the machine (Managed) or only watches an endpoint (External).
    pub mode: Mode,
    /// Name of a configured provider instance, such as kubernetes or gce-eu. Managed only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub provider: Option<String>,
    /// Protocol that clients speak to the proxy; https is HTTP inside TLS to the proxy.
    pub protocol: Protocol,
    /// Port the proxy listens on: 3128 unless set, 1080 for socks5. Managed only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// Where an External proxy is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// How the certificate of an https proxy is verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
    /// Credentials that the proxy asks of its clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<Auth>,
    /// User data handed to the machine when it starts. Managed only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cloud_init: Option<CloudInit>,
    /// The machine that the operator makes. Managed only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Tags put on the machine, valid as pod labels and as cloud labels alike.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::tags")]
    pub tags: BTreeMap<String, String>,
    /// Where the proxy stands, as consumers see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<Location>,
    /// When the machine is replaced although nothing is wrong with it. Managed only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
    /// How the proxy is probed and what happens when it fails.
    pub health_check: HealthCheck,
    /// How the proxy is lent to consumers.
    pub lease: LeasePolicy,
    /// Stops every change at the provider; probing goes on.
    pub paused: bool,
}

/// Who runs the proxy.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The operator makes, watches and deletes the machine.
    #[default]
    Managed,
    /// Somebody else runs it; the operator never calls a provider.
    External,
}

/// Protocol between client and proxy.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP proxy: absolute-form requests and CONNECT.
    #[default]
    Http,
    /// The same inside TLS to the proxy.
    Https,
    /// SOCKS version 5.
    Socks5,
}

impl Protocol {
    /// The name as it stands in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Http => "http",
            Protocol::Https => "https",
            Protocol::Socks5 => "socks5",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Mode {
    /// The name as it stands in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Managed => "Managed",
            Mode::External => "External",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Address of an External proxy.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// DNS name, IPv4 address or bare IPv6 address.
    #[schemars(length(min = 1, max = 253))]
    pub host: String,
    /// Port the proxy listens on.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
}

/// Verification of an https proxy's certificate.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Tls {
    /// Name expected in the certificate; the endpoint's host unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub server_name: Option<String>,
    /// Secret of the same namespace with the certificate authority in PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_secret_ref: Option<CaSecretRef>,
    /// Takes any certificate.
    pub insecure_skip_verify: bool,
}

/// A key of a Secret that holds a certificate authority.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CaSecretRef {
    /// Name of the Secret.
    #[schemars(schema_with = "schema::object_name")]
    pub name: String,
    /// Key in the Secret.
    #[serde(default = "defaults::ca_key")]
    #[schemars(schema_with = "schema::secret_key_ca")]
    pub key: String,
}

/// Credentials that the proxy asks of its clients.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Auth {
    /// Secret of the same namespace that holds user name and password.
    pub secret_ref: AuthSecretRef,
}

/// The two keys of a Secret that hold user name and password.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AuthSecretRef {
    /// Name of the Secret.
    #[schemars(schema_with = "schema::object_name")]
    pub name: String,
    /// Key of the user name.
    #[serde(default = "defaults::username_key")]
    #[schemars(schema_with = "schema::secret_key_username")]
    pub username_key: String,
    /// Key of the password.
    #[serde(default = "defaults::password_key")]
    #[schemars(schema_with = "schema::secret_key_password")]
    pub password_key: String,
}

/// User data of the machine: exactly one source.
///
/// `Debug` shows the length of `inline`, never its text, since user data often holds credentials.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct CloudInit {
    /// The user data itself, at most 64 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub inline: Option<String>,
    /// Secret of the same namespace that holds the user data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<CloudInitSecretRef>,
}

impl fmt::Debug for CloudInit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudInit")
            .field(
                "inline",
                &self
                    .inline
                    .as_ref()
                    .map(|text| format!("{} bytes", text.len())),
            )
            .field("secret_ref", &self.secret_ref)
            .finish()
    }
}

/// A key of a Secret that holds user data.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CloudInitSecretRef {
    /// Name of the Secret.
    #[schemars(schema_with = "schema::object_name")]
    pub name: String,
    /// Key in the Secret.
    #[serde(default = "defaults::cloud_init_key")]
    #[schemars(schema_with = "schema::secret_key_cloud_init")]
    pub key: String,
}

/// Where a proxy stands.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Location {
    /// Country as two capital letters (ISO 3166-1).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 2), regex(pattern = "^[A-Z]{2}$"))]
    pub country: Option<String>,
    /// Region; that of the machine unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub region: Option<String>,
    /// City.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub city: Option<String>,
}

/// Planned replacement.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Rotation {
    /// Age in seconds at which the machine is replaced; never unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 600, max = 2147483647))]
    pub max_age_seconds: Option<u32>,
    /// Any text; changing it replaces the machine once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub nonce: Option<String>,
}

impl ProxySpec {
    /// Names of the Secrets of the same namespace that decide what runs: cloud-init and auth.
    ///
    /// The answer is what `proxies_for_secret` is indexed by; a name may come twice.
    pub fn secret_names(&self) -> impl Iterator<Item = &str> {
        let cloud_init = self
            .cloud_init
            .as_ref()
            .and_then(|cloud_init| cloud_init.secret_ref.as_ref())
            .map(|reference| reference.name.as_str());
        let auth = self.auth.as_ref().map(|auth| auth.secret_ref.name.as_str());
        cloud_init.into_iter().chain(auth)
    }
}
