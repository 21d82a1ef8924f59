//! The pod of a proxy (P-10, P-11), built without any call.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, KeyToPath, Pod,
    PodSecurityContext, PodSpec, Probe, ResourceRequirements, SeccompProfile, Secret,
    SecretKeySelector, SecretVolumeSource, SecurityContext, TCPSocketAction, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube_core::Resource;

use crate::api::{KubernetesMachine, Proxy};
use crate::provider::{CreateRequest, Error, MANAGED_BY, Owner, ProviderId, Reason, SecretKey};

/// Label: the cluster id.
pub const LABEL_CLUSTER: &str = "crawl.proxyoperator.dev/cluster";
/// Label: UID of the Proxy.
pub const LABEL_UID: &str = "crawl.proxyoperator.dev/proxy-uid";
/// Label: name of the Proxy.
pub const LABEL_PROXY: &str = "crawl.proxyoperator.dev/proxy";
/// Label: hash of the inputs that the pod was made from.
pub const LABEL_HASH: &str = "crawl.proxyoperator.dev/spec-hash";
/// Label: who made it.
pub const LABEL_MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// What every provider id of a pod begins with.
pub const ID_SCHEME: &str = "kubernetes://";
/// Name of the port that the proxy listens on.
pub const PORT_NAME: &str = "proxy";
/// Name of the only container.
pub const CONTAINER: &str = "proxy";
/// Folder that the user data is mounted at.
pub const CLOUD_INIT_DIR: &str = "/etc/proxy-operator/cloud-init";
/// Name of the user data in that folder.
pub const CLOUD_INIT_FILE: &str = "user-data";
/// Environment variable: the port to listen on.
pub const ENV_PORT: &str = "PROXY_PORT";
/// Environment variable: the protocol to speak.
pub const ENV_PROTOCOL: &str = "PROXY_PROTOCOL";
/// Environment variable: user name that clients must give.
pub const ENV_USERNAME: &str = "PROXY_USERNAME";
/// Environment variable: password that clients must give.
pub const ENV_PASSWORD: &str = "PROXY_PASSWORD";

const VOLUME: &str = "cloud-init";
const USER: i64 = 65_532;
const READABLE: i32 = 0o444;

/// The address of a pod at this provider.
#[must_use]
pub fn provider_id(namespace: &str, name: &str) -> ProviderId {
    ProviderId::new(format!("{ID_SCHEME}{namespace}/{name}"))
}

/// The label selector of all pods of a cluster.
#[must_use]
pub fn selector(cluster_id: &str) -> String {
    format!("{LABEL_CLUSTER}={cluster_id},{LABEL_MANAGED_BY}={MANAGED_BY}")
}

/// Builds the pod of a proxy.
///
/// It passes the `restricted` Pod Security level, mounts no token, and has the operator's labels
/// over the user's tags. The container sees `PROXY_PORT` and `PROXY_PROTOCOL`, and with
/// credentials `PROXY_USERNAME` and `PROXY_PASSWORD`, so that its arguments may name them as
/// `$(PROXY_PORT)` and so on.
///
/// # Errors
///
/// [`Reason::NotConfigured`] if neither the Proxy nor the operator names an image.
pub fn build_pod(request: &CreateRequest, default_image: Option<&str>) -> Result<Pod, Error> {
    let image = request.machine.image.as_deref().or(default_image).ok_or_else(|| {
        Error::new(
            Reason::NotConfigured,
            "spec.machine.image is not set and the operator has no --default-proxy-image; set one",
        )
    })?;
    let settings = request.machine.kubernetes.clone().unwrap_or_default();
    let container = container(request, image, &settings);
    let spec = PodSpec {
        containers: vec![container],
        volumes: request.cloud_init.as_ref().map(|_| vec![volume(request)]),
        restart_policy: Some("Always".to_owned()),
        termination_grace_period_seconds: Some(30),
        node_selector: non_empty(settings.node_selector),
        tolerations: (!settings.tolerations.is_empty()).then_some(settings.tolerations),
        service_account_name: settings.service_account_name,
        priority_class_name: settings.priority_class_name,
        runtime_class_name: settings.runtime_class_name,
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            seccomp_profile: Some(runtime_default()),
            ..PodSecurityContext::default()
        }),
        ..PodSpec::default()
    };
    Ok(Pod {
        metadata: metadata(request, request.owner.instance_name()),
        spec: Some(spec),
        status: None,
    })
}

/// The Secret that carries inline user data, `<pod>-ci`; `None` where there is none to carry.
#[must_use]
pub fn build_inline_secret(request: &CreateRequest) -> Option<Secret> {
    let cloud_init = request
        .cloud_init
        .as_ref()
        .filter(|data| data.source.is_none())?;
    let bytes = ByteString(cloud_init.bytes.expose().to_vec());
    Some(Secret {
        metadata: metadata(request, inline_secret_name(&request.owner)),
        immutable: Some(true),
        data: Some(BTreeMap::from([(CLOUD_INIT_FILE.to_owned(), bytes)])),
        ..Secret::default()
    })
}

/// Name of the Secret of inline user data that this pod mounts, if it does.
#[must_use]
pub fn inline_secret_of(pod: &Pod) -> Option<&str> {
    let own = format!("{}-ci", pod.meta().name.as_deref()?);
    pod.spec
        .as_ref()?
        .volumes
        .as_ref()?
        .iter()
        .filter_map(|volume| volume.secret.as_ref()?.secret_name.as_deref())
        .find(|name| *name == own)
}

pub(super) fn inline_secret_name(owner: &Owner) -> String {
    format!("{}-ci", owner.instance_name())
}

fn metadata(request: &CreateRequest, name: String) -> ObjectMeta {
    let owner = &request.owner;
    let mut labels = request.tags.clone();
    // After the tags, so that no tag can pass for one of these.
    labels.extend([
        (LABEL_CLUSTER.to_owned(), owner.cluster_id.to_string()),
        (LABEL_UID.to_owned(), owner.uid.clone()),
        (LABEL_PROXY.to_owned(), owner.proxy.clone()),
        (LABEL_HASH.to_owned(), request.spec_hash.tag()),
        (LABEL_MANAGED_BY.to_owned(), MANAGED_BY.to_owned()),
    ]);
    ObjectMeta {
        name: Some(name),
        namespace: Some(owner.namespace.clone()),
        labels: Some(labels),
        owner_references: Some(vec![OwnerReference {
            api_version: Proxy::api_version(&()).into_owned(),
            kind: Proxy::kind(&()).into_owned(),
            name: owner.proxy.clone(),
            uid: owner.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..ObjectMeta::default()
    }
}

fn container(request: &CreateRequest, image: &str, settings: &KubernetesMachine) -> Container {
    let mut env = vec![
        plain(ENV_PORT, request.port.to_string()),
        plain(ENV_PROTOCOL, request.protocol.as_str().to_owned()),
    ];
    if let Some(credentials) = &request.credentials {
        env.push(from_secret(ENV_USERNAME, &credentials.username_source));
        env.push(from_secret(ENV_PASSWORD, &credentials.password_source));
    }
    Container {
        name: CONTAINER.to_owned(),
        image: Some(image.to_owned()),
        command: (!settings.command.is_empty()).then(|| settings.command.clone()),
        args: (!settings.args.is_empty()).then(|| settings.args.clone()),
        env: Some(env),
        ports: Some(vec![ContainerPort {
            name: Some(PORT_NAME.to_owned()),
            container_port: i32::from(request.port),
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        resources: Some(settings.resources.clone().unwrap_or_else(default_resources)),
        readiness_probe: Some(Probe {
            tcp_socket: Some(TCPSocketAction {
                port: IntOrString::String(PORT_NAME.to_owned()),
                host: None,
            }),
            period_seconds: Some(5),
            ..Probe::default()
        }),
        security_context: Some(SecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                add: None,
            }),
            seccomp_profile: Some(runtime_default()),
            ..SecurityContext::default()
        }),
        volume_mounts: request.cloud_init.as_ref().map(|_| {
            vec![VolumeMount {
                name: VOLUME.to_owned(),
                mount_path: CLOUD_INIT_DIR.to_owned(),
                read_only: Some(true),
                ..VolumeMount::default()
            }]
        }),
        ..Container::default()
    }
}

fn volume(request: &CreateRequest) -> Volume {
    let source = request
        .cloud_init
        .as_ref()
        .and_then(|data| data.source.as_ref());
    let (name, key) = match source {
        Some(SecretKey { name, key }) => (name.clone(), key.clone()),
        None => (
            inline_secret_name(&request.owner),
            CLOUD_INIT_FILE.to_owned(),
        ),
    };
    Volume {
        name: VOLUME.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(name),
            default_mode: Some(READABLE),
            items: Some(vec![KeyToPath {
                key,
                path: CLOUD_INIT_FILE.to_owned(),
                mode: None,
            }]),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn default_resources() -> ResourceRequirements {
    let of = |cpu: &str, memory: &str| {
        Some(BTreeMap::from([
            ("cpu".to_owned(), Quantity(cpu.to_owned())),
            ("memory".to_owned(), Quantity(memory.to_owned())),
        ]))
    };
    ResourceRequirements {
        requests: of("50m", "64Mi"),
        limits: of("500m", "128Mi"),
        ..ResourceRequirements::default()
    }
}

fn runtime_default() -> SeccompProfile {
    SeccompProfile {
        type_: "RuntimeDefault".to_owned(),
        localhost_profile: None,
    }
}

fn plain(name: &str, value: String) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value),
        value_from: None,
    }
}

fn from_secret(name: &str, source: &SecretKey) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: source.name.clone(),
                key: source.key.clone(),
                optional: Some(false),
            }),
            ..EnvVarSource::default()
        }),
    }
}

fn non_empty(map: BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    (!map.is_empty()).then_some(map)
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
