//! The sample fleet: its manifests, and what the API server shows of it.

use std::net::SocketAddr;

use k8s_openapi::api::core::v1::Secret;
use kube_client::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube_client::{Api, Client};
use kube_core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use crate::api::conditions::{ConditionStatus, ConditionType, status};
use crate::api::{Mode, Phase, Proxy, SPEC_HASH_ANNOTATION};

use super::Error;
use super::machines::Machines;

/// Namespace of the sample fleet.
pub(super) const NAMESPACE: &str = "crawl";
/// The Proxy whose cloud-init Secret the script rotates.
pub(super) const WITH_CLOUD_INIT: &str = "edge-cloud-init";
/// The Secret of that Proxy.
pub(super) const CLOUD_INIT_SECRET: &str = "edge-cloud-init";
/// The Proxy whose machine the script takes away.
pub(super) const VICTIM: &str = "edge-1";

const FLEET: &str = include_str!("../../manifests/samples/fleet.yaml");
const OPERATOR_NAMESPACE: &str = include_str!("../../manifests/base/namespace.yaml");
const OPERATOR_ACCOUNT: &str = include_str!("../../manifests/base/serviceaccount.yaml");
const OPERATOR_ROLE: &str = include_str!("../../manifests/base/rbac.yaml");

/// What an administrator applies before the operator runs: CRD, namespace, account, role.
pub(super) fn prerequisites() -> Result<Vec<Value>, Error> {
    let crd = crate::api::crd_yaml().map_err(|error| Error::Crd(Box::new(error)))?;
    let mut objects = documents("crds/", &crd)?;
    objects.extend(documents(
        "manifests/base/namespace.yaml",
        OPERATOR_NAMESPACE,
    )?);
    objects.extend(documents(
        "manifests/base/serviceaccount.yaml",
        OPERATOR_ACCOUNT,
    )?);
    objects.extend(documents("manifests/base/rbac.yaml", OPERATOR_ROLE)?);
    Ok(objects)
}

/// The sample fleet, with its provider and the address of the External proxy put in.
pub(super) fn sample(external: SocketAddr, provider: &str) -> Result<Vec<Value>, Error> {
    let mut objects = documents("manifests/samples/fleet.yaml", FLEET)?;
    for object in &mut objects {
        if let Some(named) = object.pointer_mut("/spec/provider") {
            *named = json!(provider);
        }
        if let Some(endpoint) = object.pointer_mut("/spec/endpoint") {
            *endpoint = json!({ "host": external.ip(), "port": external.port() });
        }
    }
    Ok(objects)
}

fn documents(name: &'static str, text: &str) -> Result<Vec<Value>, Error> {
    serde_saphyr::from_multiple(text).map_err(|source| Error::Manifest {
        name,
        source: Box::new(source),
    })
}

/// Creates the object, or patches the one that is there to look like it.
pub(super) async fn apply(client: &Client, object: &Value) -> Result<(), Error> {
    let text = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let (kind, name) = (text("/kind"), text("/metadata/name"));
    let (group, version) = text("/apiVersion")
        .rsplit_once('/')
        .unwrap_or(("", text("/apiVersion")));
    let what = format!("apply {kind} {name}");
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = match text("/metadata/namespace") {
        "" => Api::all_with(client.clone(), &resource),
        namespace => Api::namespaced_with(client.clone(), namespace, &resource),
    };
    let typed: DynamicObject = serde_json::from_value(object.clone())
        .map_err(|error| Error::api(&what)(kube_client::Error::SerdeError(error)))?;
    match api.create(&PostParams::default(), &typed).await {
        Err(kube_client::Error::Api(answer)) if answer.code == 409 => {
            let patch = Patch::Merge(object);
            api.patch(name, &PatchParams::default(), &patch)
                .await
                .map_err(Error::api(what))?;
            Ok(())
        }
        outcome => outcome.map(drop).map_err(Error::api(what)),
    }
}

/// One Proxy with its machine.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// The Proxy as the API server shows it.
    pub(super) proxy: Proxy,
    /// Incarnations of its machines that are not being deleted.
    pub(super) machines: Vec<String>,
    /// What such a machine is called.
    word: &'static str,
}

impl Member {
    pub(super) fn name(&self) -> &str {
        self.proxy.metadata.name.as_deref().unwrap_or_default()
    }

    /// `namespace/name`.
    pub(super) fn key(&self) -> String {
        let namespace = self.proxy.metadata.namespace.as_deref().unwrap_or_default();
        format!("{namespace}/{}", self.name())
    }

    pub(super) fn is_managed(&self) -> bool {
        self.proxy.spec.mode == Mode::Managed
    }

    pub(super) fn ip(&self) -> &str {
        self.proxy
            .status
            .as_ref()
            .and_then(|status| status.ip.as_deref())
            .unwrap_or("-")
    }

    pub(super) fn phase(&self) -> &'static str {
        let phase = self.proxy.status.as_ref().and_then(|status| status.phase);
        phase.map_or("-", Phase::as_str)
    }

    /// The spec-hash annotation.
    pub(super) fn hash(&self) -> &str {
        let annotations = self.proxy.metadata.annotations.as_ref();
        annotations
            .and_then(|all| all.get(SPEC_HASH_ANNOTATION))
            .map_or("-", String::as_str)
    }

    /// What its machine is called.
    pub(super) fn word(&self) -> &'static str {
        self.word
    }

    /// The incarnation of its only machine: a pod's UID, a simulated machine's number.
    pub(super) fn machine(&self) -> Option<&str> {
        match self.machines.as_slice() {
            [only] => Some(only),
            _ => None,
        }
    }

    /// Whether it serves, said of the present generation, by exactly one machine where it has one.
    pub(super) fn is_ready(&self) -> bool {
        let Some(seen) = &self.proxy.status else {
            return false;
        };
        let one = if self.is_managed() {
            self.machine().is_some()
        } else {
            self.machines.is_empty()
        };
        one && self.proxy.metadata.deletion_timestamp.is_none()
            && seen.observed_generation == self.proxy.metadata.generation
            && seen.phase == Some(Phase::Ready)
            && status(&seen.conditions, ConditionType::Ready) == Some(ConditionStatus::True)
            && (!self.is_managed() || seen.instance_uid.as_deref() == self.machine())
    }

    /// One line that says it all.
    pub(super) fn line(&self) -> String {
        format!(
            "{:<16} {:<8} {:<12} {:<15} {} {}  hash {}",
            self.name(),
            self.proxy.spec.mode.as_str(),
            self.phase(),
            self.ip(),
            self.word,
            self.machines.first().map_or("-", String::as_str),
            short(self.hash())
        )
    }
}

/// Enough of a hash to tell two apart.
pub(super) fn short(hash: &str) -> &str {
    hash.get(..15).unwrap_or(hash)
}

/// Every Proxy of a namespace, or of all, with its machines.
pub(super) async fn members(
    client: &Client,
    machines: &Machines,
    namespace: Option<&str>,
) -> kube_client::Result<Vec<Member>> {
    let proxies: Api<Proxy> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let proxies = proxies.list(&ListParams::default()).await?;
    let mut by_proxy = machines.by_proxy(client, namespace).await?;
    let member = |proxy: Proxy| {
        let key = (
            proxy.metadata.namespace.clone().unwrap_or_default(),
            proxy.metadata.name.clone().unwrap_or_default(),
        );
        Member {
            proxy,
            machines: by_proxy.remove(&key).unwrap_or_default(),
            word: machines.word(),
        }
    };
    Ok(proxies.items.into_iter().map(member).collect())
}

/// One Proxy of the fleet with its machine.
pub(super) async fn member(
    client: &Client,
    machines: &Machines,
    name: &str,
) -> Result<Member, String> {
    let all = members(client, machines, Some(NAMESPACE))
        .await
        .map_err(|error| error.to_string())?;
    all.into_iter()
        .find(|member| member.name() == name)
        .ok_or_else(|| format!("no Proxy {name}"))
}

/// Gives the cloud-init Secret another content.
pub(super) async fn rotate_cloud_init(client: &Client) -> Result<(), Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let content = "#cloud-config\nwrite_files:\n  - path: /etc/edge/revision\n    content: \"2\"\n";
    let patch = Patch::Merge(json!({ "stringData": { "user-data": content } }));
    secrets
        .patch(CLOUD_INIT_SECRET, &PatchParams::default(), &patch)
        .await
        .map(drop)
        .map_err(Error::api(format!("rotate Secret {CLOUD_INIT_SECRET}")))
}

/// Asks for the deletion of every Proxy and Secret of the sample fleet.
pub(super) async fn delete(client: &Client, members: &[Member]) -> Result<(), Error> {
    let proxies: Api<Proxy> = Api::namespaced(client.clone(), NAMESPACE);
    for member in members {
        let what = format!("delete Proxy {}", member.name());
        let _deleted = proxies
            .delete(member.name(), &DeleteParams::default())
            .await
            .map_err(Error::api(what))?;
    }
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    for object in documents("manifests/samples/fleet.yaml", FLEET)? {
        if object["kind"] == "Secret" {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let _deleted = secrets
                .delete(name, &DeleteParams::default())
                .await
                .map_err(Error::api(format!("delete Secret {name}")))?;
        }
    }
    Ok(())
}

/// What is left of the fleet, counted by kind: Proxies, machines, Secrets.
pub(super) async fn leftovers(
    client: &Client,
    machines: &Machines,
) -> Result<[(String, usize); 3], String> {
    let list = ListParams::default();
    let failed = |error: kube_client::Error| error.to_string();
    let proxies: Api<Proxy> = Api::namespaced(client.clone(), NAMESPACE);
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    Ok([
        (
            "Proxies".to_owned(),
            proxies.list(&list).await.map_err(failed)?.items.len(),
        ),
        (
            format!("{}s", machines.word()),
            machines.n_left(client).await.map_err(failed)?,
        ),
        (
            "Secrets".to_owned(),
            secrets.list(&list).await.map_err(failed)?.items.len(),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_five_managed_one_of_them_with_cloud_init_and_one_external() {
        let address: SocketAddr = "127.0.0.2:4711".parse().expect("an address");
        let objects = sample(address, "sim").expect("the manifest is valid");
        let proxies: Vec<Proxy> = objects
            .into_iter()
            .filter(|object| object["kind"] == "Proxy")
            .map(|object| serde_json::from_value(object).expect("a Proxy"))
            .collect();
        let managed = proxies
            .iter()
            .filter(|proxy| proxy.spec.mode == Mode::Managed);
        let providers: Vec<_> = managed
            .map(|proxy| proxy.spec.provider.as_deref())
            .collect();
        assert_eq!((providers, proxies.len()), (vec![Some("sim"); 5], 6));
        let with = proxies
            .iter()
            .filter(|proxy| proxy.spec.cloud_init.is_some());
        let names: Vec<_> = with
            .filter_map(|proxy| proxy.metadata.name.as_deref())
            .collect();
        assert_eq!(names, [WITH_CLOUD_INIT]);
        let external = proxies
            .iter()
            .find_map(|proxy| proxy.spec.endpoint.as_ref());
        assert_eq!(
            external.map(|e| (e.host.as_str(), e.port)),
            Some(("127.0.0.2", 4711))
        );
        for proxy in &proxies {
            assert_eq!(crate::api::validation::validate(proxy), []);
        }
    }

    #[test]
    fn prerequisites_can_be_read() {
        let kinds: Vec<String> = prerequisites()
            .expect("valid manifests")
            .iter()
            .map(|object| object["kind"].as_str().unwrap_or_default().to_owned())
            .collect();
        for kind in [
            "CustomResourceDefinition",
            "Namespace",
            "ServiceAccount",
            "ClusterRole",
        ] {
            assert!(
                kinds.iter().any(|found| found == kind),
                "{kind} in {kinds:?}"
            );
        }
    }
}
