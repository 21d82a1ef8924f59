//! Secrets and ConfigMaps a pod needs before its containers can start.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Container, KeyToPath, Pod, Secret};
use kube_client::{Api, Client};

use super::lifecycle::Blocked;

/// The kinds that hold configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Secret,
    ConfigMap,
}

impl Kind {
    /// The word of the kubelet's messages.
    fn word(self) -> &'static str {
        match self {
            Self::Secret => "secret",
            Self::ConfigMap => "configmap",
        }
    }
}

/// One use of a Secret or ConfigMap that may not be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// Keys that must be there; none: the object is enough.
    pub(super) keys: Vec<String>,
    pub(super) usage: Usage,
}

/// Where the data goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Usage {
    Volume(String),
    Env,
}

/// Keys and values of a Secret or ConfigMap.
type Data = BTreeMap<String, Vec<u8>>;

/// The objects read for one pod, none where one is missing; never shown.
pub(super) struct Loaded(BTreeMap<(Kind, String), Option<Data>>);

/// The keys that a volume asks for; none of them means all.
fn keys_of(items: Option<&[KeyToPath]>) -> Vec<String> {
    let items = items.unwrap_or_default();
    items.iter().map(|item| item.key.clone()).collect()
}

/// Every reference that is not optional, volumes first as the kubelet mounts before it starts.
pub(super) fn required(pod: &Pod) -> Vec<Reference> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for volume in spec.volumes.iter().flatten() {
        let mut add = |kind, name: Option<&str>, optional: Option<bool>, keys: Vec<String>| {
            if optional != Some(true)
                && let Some(name) = name
            {
                let usage = Usage::Volume(volume.name.clone());
                found.push(Reference {
                    kind,
                    name: name.to_owned(),
                    keys,
                    usage,
                });
            }
        };
        if let Some(secret) = &volume.secret {
            let keys = keys_of(secret.items.as_deref());
            add(
                Kind::Secret,
                secret.secret_name.as_deref(),
                secret.optional,
                keys,
            );
        }
        if let Some(map) = &volume.config_map {
            let keys = keys_of(map.items.as_deref());
            add(Kind::ConfigMap, Some(&map.name), map.optional, keys);
        }
        for source in volume
            .projected
            .iter()
            .flat_map(|p| p.sources.iter().flatten())
        {
            if let Some(secret) = &source.secret {
                let keys = keys_of(secret.items.as_deref());
                add(Kind::Secret, Some(&secret.name), secret.optional, keys);
            }
            if let Some(map) = &source.config_map {
                let keys = keys_of(map.items.as_deref());
                add(Kind::ConfigMap, Some(&map.name), map.optional, keys);
            }
        }
    }
    let init = spec.init_containers.iter().flatten();
    for container in init.chain(&spec.containers) {
        for value in container
            .env
            .iter()
            .flatten()
            .filter_map(|env| env.value_from.as_ref())
        {
            if let Some(key) = &value.secret_key_ref
                && key.optional != Some(true)
            {
                found.push(env_reference(Kind::Secret, &key.name, Some(&key.key)));
            }
            if let Some(key) = &value.config_map_key_ref
                && key.optional != Some(true)
            {
                found.push(env_reference(Kind::ConfigMap, &key.name, Some(&key.key)));
            }
        }
        for source in container.env_from.iter().flatten() {
            if let Some(secret) = &source.secret_ref
                && secret.optional != Some(true)
            {
                found.push(env_reference(Kind::Secret, &secret.name, None));
            }
            if let Some(map) = &source.config_map_ref
                && map.optional != Some(true)
            {
                found.push(env_reference(Kind::ConfigMap, &map.name, None));
            }
        }
    }
    found
}

fn env_reference(kind: Kind, name: &str, key: Option<&str>) -> Reference {
    let keys = key.map(str::to_owned).into_iter().collect();
    Reference {
        kind,
        name: name.to_owned(),
        keys,
        usage: Usage::Env,
    }
}

/// Reads every object the pod names, optional ones too, each once.
///
/// # Errors
///
/// The API's, except that a missing object is no error here.
pub(super) async fn load(
    client: &Client,
    namespace: &str,
    names: impl IntoIterator<Item = (Kind, String)>,
) -> kube_client::Result<Loaded> {
    let mut loaded = BTreeMap::new();
    for (kind, name) in names {
        if loaded.contains_key(&(kind, name.clone())) {
            continue;
        }
        let data = match kind {
            Kind::Secret => Api::<Secret>::namespaced(client.clone(), namespace)
                .get_opt(&name)
                .await?
                .map(secret_data),
            Kind::ConfigMap => Api::<ConfigMap>::namespaced(client.clone(), namespace)
                .get_opt(&name)
                .await?
                .map(config_data),
        };
        loaded.insert((kind, name), data);
    }
    Ok(Loaded(loaded))
}

/// Every object the pod's volumes and environment name, required or optional.
pub(super) fn named(pod: &Pod, required: &[Reference]) -> Vec<(Kind, String)> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let optional = containers.flat_map(|container| {
        container.env.iter().flatten().filter_map(|env| {
            let from = env.value_from.as_ref()?;
            from.secret_key_ref
                .as_ref()
                .map(|key| (Kind::Secret, key.name.clone()))
                .or_else(|| {
                    from.config_map_key_ref
                        .as_ref()
                        .map(|key| (Kind::ConfigMap, key.name.clone()))
                })
        })
    });
    required
        .iter()
        .map(|r| (r.kind, r.name.clone()))
        .chain(optional)
        .collect()
}

impl Loaded {
    /// The first required reference that is missing, in the kubelet's words.
    pub(super) fn missing(&self, namespace: &str, required: &[Reference]) -> Option<Blocked> {
        required.iter().find_map(|reference| {
            let word = reference.kind.word();
            let Reference {
                kind,
                name,
                keys,
                usage,
            } = reference;
            let problem = match self.data(*kind, name) {
                None => format!("{word} \"{name}\" not found"),
                Some(data) => {
                    let key = keys.iter().find(|key| !data.contains_key(*key))?;
                    match usage {
                        Usage::Volume(_) => format!("references non-existent {word} key: {key}"),
                        Usage::Env => {
                            let word = if *kind == Kind::Secret {
                                "Secret"
                            } else {
                                "ConfigMap"
                            };
                            format!("couldn't find key {key} in {word} {namespace}/{name}")
                        }
                    }
                }
            };
            Some(match usage {
                Usage::Volume(volume) => Blocked {
                    reason: "ContainerCreating",
                    message: format!(
                        "MountVolume.SetUp failed for volume \"{volume}\" : {problem}"
                    ),
                    sandbox: false,
                },
                Usage::Env => Blocked {
                    reason: "CreateContainerConfigError",
                    message: problem,
                    sandbox: true,
                },
            })
        })
    }

    /// The value of an environment variable of a container, as the container would see it.
    ///
    /// `$(VAR)` is not expanded; field references have no value here.
    pub(super) fn env(&self, container: &Container, variable: &str) -> Option<Vec<u8>> {
        let from_list = container
            .env
            .iter()
            .flatten()
            .rfind(|env| env.name == variable);
        if let Some(env) = from_list {
            if let Some(value) = &env.value {
                return Some(value.clone().into_bytes());
            }
            let from = env.value_from.as_ref()?;
            if let Some(key) = &from.secret_key_ref {
                return self.data(Kind::Secret, &key.name)?.get(&key.key).cloned();
            }
            let key = from.config_map_key_ref.as_ref()?;
            return self
                .data(Kind::ConfigMap, &key.name)?
                .get(&key.key)
                .cloned();
        }
        container
            .env_from
            .iter()
            .flatten()
            .rev()
            .find_map(|source| {
                let key = variable.strip_prefix(source.prefix.as_deref().unwrap_or_default())?;
                let (kind, name) = match (&source.secret_ref, &source.config_map_ref) {
                    (Some(secret), _) => (Kind::Secret, &secret.name),
                    (None, Some(map)) => (Kind::ConfigMap, &map.name),
                    (None, None) => return None,
                };
                self.data(kind, name)?.get(key).cloned()
            })
    }

    fn data(&self, kind: Kind, name: &str) -> Option<&Data> {
        self.0.get(&(kind, name.to_owned()))?.as_ref()
    }
}

fn secret_data(secret: Secret) -> Data {
    secret
        .data
        .into_iter()
        .flatten()
        .map(|(key, value)| (key, value.0))
        .collect()
}

fn config_data(map: ConfigMap) -> Data {
    let text = map
        .data
        .into_iter()
        .flatten()
        .map(|(key, value)| (key, value.into_bytes()));
    let binary = map
        .binary_data
        .into_iter()
        .flatten()
        .map(|(key, value)| (key, value.0));
    text.chain(binary).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "a", "namespace": "n" },
            "spec": {
                "volumes": [
                    { "name": "ci", "secret": { "secretName": "cloud", "items":
                        [{ "key": "user-data", "path": "user-data" }] } },
                    { "name": "opt", "secret": { "secretName": "maybe", "optional": true } },
                    { "name": "all", "projected": { "sources": [{ "configMap": { "name": "cm" } }] } },
                ],
                "containers": [{
                    "name": "c",
                    "env": [
                        { "name": "PLAIN", "value": "1" },
                        { "name": "USER", "valueFrom":
                            { "secretKeyRef": { "name": "auth", "key": "username" } } },
                        { "name": "LATER", "valueFrom":
                            { "secretKeyRef": { "name": "soft", "key": "k", "optional": true } } },
                    ],
                    "envFrom": [{ "prefix": "P_", "secretRef": { "name": "bulk" } }],
                }],
            },
        }))
        .unwrap()
    }

    /// Kind, name and data of an object; none: it is missing.
    type Object<'a> = (Kind, &'a str, Option<&'a [(&'a str, &'a str)]>);

    fn loaded(objects: &[Object<'_>]) -> Loaded {
        Loaded(
            objects
                .iter()
                .map(|(kind, name, data)| {
                    let data = data.map(|data| {
                        let pairs = data.iter();
                        pairs
                            .map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec()))
                            .collect()
                    });
                    ((*kind, (*name).to_owned()), data)
                })
                .collect(),
        )
    }

    #[test]
    fn only_what_is_not_optional_is_required() {
        let names: Vec<String> = required(&pod()).into_iter().map(|r| r.name).collect();
        assert_eq!(names, ["cloud", "cm", "auth", "bulk"]);
        let named: Vec<String> = named(&pod(), &required(&pod()))
            .into_iter()
            .map(|(_, name)| name)
            .collect();
        assert_eq!(named, ["cloud", "cm", "auth", "bulk", "auth", "soft"]);
    }

    #[test]
    fn the_first_missing_reference_is_told_as_the_kubelet_does() {
        use Kind::{ConfigMap, Secret};
        let cloud: Object<'_> = (Secret, "cloud", Some(&[("user-data", "x")]));
        let cm: Object<'_> = (ConfigMap, "cm", Some(&[]));
        let auth: Object<'_> = (Secret, "auth", Some(&[("username", "u")]));
        type Told<'a> = Option<(&'a str, &'a str, bool)>;
        let cases: [(&[Object<'_>], Told<'_>); 6] = [
            (
                &[(Secret, "cloud", None)],
                Some((
                    "ContainerCreating",
                    "MountVolume.SetUp failed for volume \"ci\" : secret \"cloud\" not found",
                    false,
                )),
            ),
            (
                &[(Secret, "cloud", Some(&[("other", "x")]))],
                Some((
                    "ContainerCreating",
                    "MountVolume.SetUp failed for volume \"ci\" : references non-existent secret \
                     key: user-data",
                    false,
                )),
            ),
            (
                &[cloud],
                Some((
                    "ContainerCreating",
                    "MountVolume.SetUp failed for volume \"all\" : configmap \"cm\" not found",
                    false,
                )),
            ),
            (
                &[cloud, cm],
                Some((
                    "CreateContainerConfigError",
                    "secret \"auth\" not found",
                    true,
                )),
            ),
            (
                &[cloud, cm, (Secret, "auth", Some(&[]))],
                Some((
                    "CreateContainerConfigError",
                    "couldn't find key username in Secret n/auth",
                    true,
                )),
            ),
            (&[cloud, cm, auth, (Secret, "bulk", Some(&[]))], None),
        ];
        for (objects, expected) in cases {
            let missing = loaded(objects).missing("n", &required(&pod()));
            let got = missing
                .as_ref()
                .map(|b| (b.reason, b.message.as_str(), b.sandbox));
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn environment_values_come_from_the_list_first() {
        use Kind::Secret;
        let pod = pod();
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let loaded = loaded(&[
            (Secret, "auth", Some(&[("username", "u")])),
            (Secret, "bulk", Some(&[("X", "bulk"), ("PLAIN", "no")])),
            (Secret, "soft", None),
        ]);
        let cases = [
            ("PLAIN", Some("1")),
            ("USER", Some("u")),
            ("P_X", Some("bulk")),
            ("X", None),
            ("LATER", None),
            ("NONE", None),
        ];
        for (variable, value) in cases {
            assert_eq!(
                loaded.env(container, variable),
                value.map(|value| value.as_bytes().to_vec()),
                "{variable}"
            );
        }
    }
}
