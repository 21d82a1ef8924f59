//! M4: the inputs that lie in Secrets, read live and never kept.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube_client::Api;

use crate::api::conditions::Reason;
use crate::api::{ProxySpec, hash};
use crate::provider::{CloudInit, Credentials, Redacted, SecretKey};
use crate::refused::describe;
use crate::secret::Held;

/// What a machine is made from besides the spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inputs {
    pub(crate) cloud_init: Option<CloudInit>,
    pub(crate) credentials: Option<Credentials>,
}

impl Inputs {
    /// M5: the hash of all that the machine is made from.
    pub(crate) fn spec_hash(&self, spec: &ProxySpec) -> hash::SpecHash {
        hash::spec_hash(
            spec,
            self.cloud_init.as_ref().map(|data| data.bytes.expose()),
            self.credentials
                .as_ref()
                .map(|credentials| hash::Credentials {
                    username: credentials.username.expose(),
                    password: credentials.password.expose(),
                }),
        )
    }
}

/// An input that is missing or unusable. Names Secret and key, never content.
#[derive(Debug, thiserror::Error)]
#[error("{of}: {fault}")]
pub struct Error {
    of: Of,
    fault: Box<Fault>,
}

impl Error {
    fn new(of: Of, fault: Fault) -> Self {
        Self {
            of,
            fault: Box::new(fault),
        }
    }

    /// The API server did not answer properly, which says nothing about the input.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(*self.fault, Fault::NoAnswer(..))
    }

    /// The reason that the condition gets.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self.of {
            Of::CloudInit => Reason::CloudInitError,
            Of::Auth => Reason::AuthSecretError,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    CloudInit,
    Auth,
}

impl std::fmt::Display for Of {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::CloudInit => "spec.cloudInit",
            Self::Auth => "spec.auth",
        })
    }
}

#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("set exactly one of inline and secretRef")]
    NoSource,
    #[error("Secret {0} does not exist; create it in the Proxy's namespace")]
    NoSecret(String),
    #[error("Secret {0} is being deleted; create it anew once it is gone")]
    BeingDeleted(String),
    #[error("Secret {0} cannot be read: {1}; allow the operator to get it")]
    Forbidden(String, String),
    #[error("Secret {0} cannot be read: {1}")]
    NoAnswer(String, String),
    #[error("Secret {} has no key {}; add it, or name another key", .0.name, .0.key)]
    NoKey(SecretKey),
    #[error("key {} of Secret {} is empty; give it a value", .0.key, .0.name)]
    Empty(SecretKey),
    #[error("key {} of Secret {} is not UTF-8; store it as plain text", .0.key, .0.name)]
    NotUtf8(SecretKey),
    #[error("{len} bytes, and provider {provider} takes at most {limit}")]
    TooLarge {
        len: usize,
        limit: usize,
        provider: String,
    },
}

/// What the provider of a Proxy takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit<'a> {
    pub(crate) provider: &'a str,
    pub(crate) cloud_init_bytes: usize,
}

/// Reads all that the spec refers to; a Secret that serves twice is read once.
pub(crate) async fn resolve(
    secrets: &Api<Secret>,
    spec: &ProxySpec,
    limit: Limit<'_>,
) -> Result<Inputs, Error> {
    let mut read = BTreeMap::new();
    if let Some(reference) = spec
        .cloud_init
        .as_ref()
        .and_then(|data| data.secret_ref.as_ref())
    {
        fetch(secrets, &reference.name, &mut read)
            .await
            .map_err(|fault| Error::new(Of::CloudInit, fault))?;
    }
    if let Some(auth) = &spec.auth {
        fetch(secrets, &auth.secret_ref.name, &mut read)
            .await
            .map_err(|fault| Error::new(Of::Auth, fault))?;
    }
    pick(spec, &read, limit)
}

async fn fetch(
    secrets: &Api<Secret>,
    name: &str,
    read: &mut BTreeMap<String, Held>,
) -> Result<(), Fault> {
    if read.contains_key(name) {
        return Ok(());
    }
    let secret = secrets.get(name).await.map_err(|error| match error {
        kube_client::Error::Api(status) if status.is_not_found() => {
            Fault::NoSecret(name.to_owned())
        }
        kube_client::Error::Api(status) if status.is_forbidden() => {
            Fault::Forbidden(name.to_owned(), describe(&kube_client::Error::Api(status)))
        }
        other => Fault::NoAnswer(name.to_owned(), describe(&other)),
    })?;
    let secret = Held::new(secret);
    if secret.metadata.deletion_timestamp.is_some() {
        return Err(Fault::BeingDeleted(name.to_owned()));
    }
    read.insert(name.to_owned(), secret);
    Ok(())
}

/// The inputs out of the Secrets that were read; pure.
fn pick(
    spec: &ProxySpec,
    secrets: &BTreeMap<String, Held>,
    limit: Limit<'_>,
) -> Result<Inputs, Error> {
    let cloud_init =
        pick_cloud_init(spec, secrets, limit).map_err(|fault| Error::new(Of::CloudInit, fault))?;
    let credentials =
        pick_credentials(spec, secrets).map_err(|fault| Error::new(Of::Auth, fault))?;
    Ok(Inputs {
        cloud_init,
        credentials,
    })
}

fn pick_cloud_init(
    spec: &ProxySpec,
    secrets: &BTreeMap<String, Held>,
    limit: Limit<'_>,
) -> Result<Option<CloudInit>, Fault> {
    let Some(wanted) = &spec.cloud_init else {
        return Ok(None);
    };
    let (bytes, source) = match (&wanted.inline, &wanted.secret_ref) {
        (Some(inline), None) => (inline.clone().into_bytes(), None),
        (None, Some(reference)) => {
            let source = SecretKey {
                name: reference.name.clone(),
                key: reference.key.clone(),
            };
            (value(secrets, &source)?.to_vec(), Some(source))
        }
        (Some(_), Some(_)) | (None, None) => return Err(Fault::NoSource),
    };
    if bytes.len() > limit.cloud_init_bytes {
        return Err(Fault::TooLarge {
            len: bytes.len(),
            limit: limit.cloud_init_bytes,
            provider: limit.provider.to_owned(),
        });
    }
    Ok(Some(CloudInit {
        bytes: Redacted::new(bytes),
        source,
    }))
}

fn pick_credentials(
    spec: &ProxySpec,
    secrets: &BTreeMap<String, Held>,
) -> Result<Option<Credentials>, Fault> {
    let Some(auth) = &spec.auth else {
        return Ok(None);
    };
    let of = |key: &str| SecretKey {
        name: auth.secret_ref.name.clone(),
        key: key.to_owned(),
    };
    let username_source = of(&auth.secret_ref.username_key);
    let password_source = of(&auth.secret_ref.password_key);
    Ok(Some(Credentials {
        username: Redacted::new(value(secrets, &username_source)?.to_vec()),
        password: Redacted::new(value(secrets, &password_source)?.to_vec()),
        username_source,
        password_source,
    }))
}

fn value<'a>(secrets: &'a BTreeMap<String, Held>, source: &SecretKey) -> Result<&'a [u8], Fault> {
    let secret = secrets
        .get(&source.name)
        .ok_or_else(|| Fault::NoSecret(source.name.clone()))?;
    let value = secret
        .data
        .as_ref()
        .and_then(|data| data.get(&source.key))
        .ok_or_else(|| Fault::NoKey(source.clone()))?;
    if value.0.is_empty() {
        Err(Fault::Empty(source.clone()))
    } else if std::str::from_utf8(&value.0).is_err() {
        Err(Fault::NotUtf8(source.clone()))
    } else {
        Ok(&value.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LIMIT: Limit<'_> = Limit {
        provider: "kubernetes",
        cloud_init_bytes: 8,
    };

    fn spec(value: serde_json::Value) -> ProxySpec {
        serde_json::from_value(value).expect("a spec")
    }

    fn secrets() -> BTreeMap<String, Held> {
        let secret = serde_json::from_value(json!({ "data": {
            "user-data": "aGVsbG8=", "empty": "", "binary": "//8=", "long": "MTIzNDU2Nzg5",
            "username": "bWU=", "password": "c2VjcmV0",
        }}));
        BTreeMap::from([("s".to_owned(), Held::new(secret.expect("a Secret")))])
    }

    #[test]
    fn b09_every_fault_names_secret_and_key_and_never_content() {
        let cloud_init = |name: &str, key: &str| json!({ "cloudInit": { "secretRef": { "name": name, "key": key } } });
        for (spec_json, want, reason) in [
            (
                cloud_init("t", "user-data"),
                "Secret t does not exist",
                Reason::CloudInitError,
            ),
            (
                cloud_init("s", "other"),
                "Secret s has no key other",
                Reason::CloudInitError,
            ),
            (
                cloud_init("s", "empty"),
                "key empty of Secret s is empty",
                Reason::CloudInitError,
            ),
            (
                cloud_init("s", "binary"),
                "key binary of Secret s is not UTF-8",
                Reason::CloudInitError,
            ),
            (
                cloud_init("s", "long"),
                "9 bytes, and provider kubernetes takes at most 8",
                Reason::CloudInitError,
            ),
            (
                json!({ "cloudInit": {} }),
                "exactly one of inline and secretRef",
                Reason::CloudInitError,
            ),
            (
                json!({ "auth": { "secretRef": { "name": "s", "usernameKey": "who" } } }),
                "spec.auth: Secret s has no key who",
                Reason::AuthSecretError,
            ),
            (
                json!({ "auth": { "secretRef": { "name": "s", "passwordKey": "binary" } } }),
                "spec.auth: key binary of Secret s is not UTF-8",
                Reason::AuthSecretError,
            ),
        ] {
            let error = pick(&spec(spec_json.clone()), &secrets(), LIMIT).expect_err("unusable");
            assert_eq!(error.reason(), reason, "{spec_json}");
            let text = error.to_string();
            assert!(text.contains(want), "{text}");
            assert!(!text.contains("hello") && !text.contains("1234"), "{text}");
        }
    }

    #[test]
    fn inputs_keep_their_source() {
        let spec = spec(json!({
            "cloudInit": { "secretRef": { "name": "s" } }, "auth": { "secretRef": { "name": "s" } },
        }));
        let inputs = pick(&spec, &secrets(), LIMIT).expect("all there");
        let cloud_init = inputs.cloud_init.expect("asked for");
        assert_eq!(cloud_init.bytes.expose(), b"hello");
        assert_eq!(cloud_init.source.expect("a Secret").key, "user-data");
        let credentials = inputs.credentials.expect("asked for");
        assert_eq!(credentials.password.expose(), b"secret");
        assert_eq!(credentials.username_source.key, "username");
    }

    #[test]
    fn r11_equal_bytes_give_the_equal_hash_wherever_they_lie() {
        let from_secret = spec(json!({ "cloudInit": { "secretRef": { "name": "s" } } }));
        let inline = spec(json!({ "cloudInit": { "inline": "hello" } }));
        let hash = |spec: &ProxySpec| {
            pick(spec, &secrets(), LIMIT)
                .expect("all there")
                .spec_hash(spec)
        };
        assert_eq!(hash(&from_secret), hash(&inline));
    }
}
