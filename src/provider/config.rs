//! The providers file: which providers there are, by name.
//!
//! ```yaml
//! # name: what it is
//! kubernetes:
//!   kind: kubernetes
//! sim:
//!   kind: sim
//!   boot: 2s          # longest time a machine takes to boot
//!   quota: 100        # most machines at a time
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de};

use super::kubernetes::KubernetesProvider;
use super::sim::{self, SimProvider};
use super::{Pace, Paced, Provider, Registry};

/// The provider that is there without a file.
pub const DEFAULT_NAME: &str = "kubernetes";

const MAX_NAME: usize = 63;

/// What a provider is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Pods of the cluster that the operator serves.
    Kubernetes,
    /// Simulated machines in the memory of this process.
    Sim,
}

/// One provider of the file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Fields")]
pub enum Entry {
    /// See [`Kind::Kubernetes`].
    Kubernetes,
    /// See [`Kind::Sim`].
    Sim {
        /// Longest time a machine takes to boot; the shortest is half of it.
        boot: Option<Duration>,
        /// Most machines at a time.
        quota: Option<usize>,
    },
}

/// The fields of all kinds.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    kind: Kind,
    boot: Option<SignedDuration>,
    quota: Option<usize>,
}

impl TryFrom<Fields> for Entry {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let Fields { kind, boot, quota } = fields;
        match kind {
            Kind::Sim => {
                let boot = boot.map(Duration::try_from).transpose();
                let boot = boot.map_err(|_| "boot is less than nothing; write for example 2s")?;
                Ok(Self::Sim { boot, quota })
            }
            Kind::Kubernetes => {
                let stray = [("boot", boot.is_some()), ("quota", quota.is_some())];
                match stray.into_iter().find(|(_, is_there)| *is_there) {
                    Some((name, _)) => Err(format!(
                        "unknown field `{name}` for kind kubernetes; remove it"
                    )),
                    None => Ok(Self::Kubernetes),
                }
            }
        }
    }
}

/// A provider's name: a DNS label, as `spec.provider` may hold it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let valid = !name.is_empty()
            && name.len() <= MAX_NAME
            && name.bytes().all(inner)
            && !name.starts_with('-')
            && !name.ends_with('-');
        if valid {
            Ok(Self(name))
        } else {
            Err(de::Error::custom(format!(
                "provider name {name:?} must be a DNS label: at most {MAX_NAME} of a-z, 0-9 and \
                 -, not beginning or ending with -"
            )))
        }
    }
}

/// The configured providers, before any of them is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Providers(BTreeMap<Name, Entry>);

impl Default for Providers {
    /// One provider, `kubernetes`, of kind kubernetes.
    fn default() -> Self {
        let name = Name(DEFAULT_NAME.to_owned());
        Self(BTreeMap::from([(name, Entry::Kubernetes)]))
    }
}

/// Why a providers file is no good.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: Box<str>,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{path}:{line}:{column}: {message}")]
    Invalid {
        /// The file.
        path: Box<str>,
        /// Line, from 1; 0 where unknown.
        line: u64,
        /// Column, from 1; 0 where unknown.
        column: u64,
        /// What is wrong.
        message: Box<str>,
    },
    /// The file names no provider.
    #[error("{path}: no provider; write for example `kubernetes: {{kind: kubernetes}}`")]
    Empty {
        /// The file.
        path: Box<str>,
    },
}

impl Providers {
    /// Reads and checks a providers file.
    ///
    /// # Errors
    ///
    /// [`Error`], with the line where it is known: no YAML, a name twice, an unknown kind or
    /// field, a name that is no DNS label, no provider at all.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text, &shown),
            Err(source) => Err(Error::Read {
                path: shown.into(),
                source,
            }),
        }
    }

    /// Checks the text of a providers file; `path` is for messages.
    ///
    /// # Errors
    ///
    /// As [`Providers::read`], without the reading.
    pub fn parse(text: &str, path: &str) -> Result<Self, Error> {
        let entries: Option<BTreeMap<Name, Entry>> =
            serde_saphyr::from_str(text).map_err(|error| {
                let at = error.location();
                Error::Invalid {
                    path: path.into(),
                    line: at.as_ref().map_or(0, serde_saphyr::Location::line),
                    column: at.as_ref().map_or(0, serde_saphyr::Location::column),
                    message: first_line(&error.without_snippet().to_string()).into(),
                }
            })?;
        match entries {
            Some(entries) if !entries.is_empty() => Ok(Self(entries)),
            _ => Err(Error::Empty { path: path.into() }),
        }
    }

    /// Makes the providers.
    #[must_use]
    pub fn build(&self, client: &kube_client::Client, default_image: Option<&str>) -> Registry {
        let make = |(name, entry): (&Name, &Entry)| {
            let provider: Arc<dyn Provider> = match entry {
                Entry::Kubernetes => {
                    let pods =
                        KubernetesProvider::new(client.clone(), default_image.map(Arc::from));
                    Arc::new(Paced::new(name.0.as_str(), pods, Pace::default()))
                }
                // Nobody has to be spared.
                Entry::Sim { boot, quota } => {
                    let mut settings = sim::Settings {
                        quota: *quota,
                        ..sim::Settings::default()
                    };
                    if let Some(boot) = boot {
                        settings.boot = *boot / 2..*boot;
                    }
                    Arc::new(SimProvider::new(sim::World::new(settings)))
                }
            };
            (name.0.clone(), provider)
        };
        Registry::new(self.0.iter().map(make).collect())
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o01_without_a_file_there_is_one_provider_named_kubernetes() {
        let parsed = Providers::parse("kubernetes:\n  kind: kubernetes\n", "f");
        assert_eq!(parsed.expect("valid"), Providers::default());
    }

    #[test]
    fn p30_a_simulated_cloud_has_a_boot_time_and_a_quota() {
        let text = "sim:\n  kind: sim\n  boot: 2s\n  quota: 7\nplain:\n  kind: sim\n";
        let Providers(entries) = Providers::parse(text, "f").expect("valid");
        let entry = |name: &str| &entries[&Name(name.to_owned())];
        let boot = Some(Duration::from_secs(2));
        assert_eq!(
            *entry("sim"),
            Entry::Sim {
                boot,
                quota: Some(7)
            }
        );
        assert_eq!(
            *entry("plain"),
            Entry::Sim {
                boot: None,
                quota: None
            }
        );
    }

    #[test]
    fn b17_a_bad_file_is_refused_with_file_and_line() {
        for (text, line, part) in [
            (
                "a:\n  kind: kubernetes\na:\n  kind: kubernetes\n",
                3,
                "duplicate",
            ),
            ("a:\n  kind: mainframe\n", 2, "mainframe"),
            ("a:\n  kind: kubernetes\n  zone: x\n", 3, "zone"),
            (
                "ok:\n  kind: kubernetes\nB_d:\n  kind: kubernetes\n",
                3,
                "DNS label",
            ),
            ("a:\n  kind: kubernetes\n  boot: 2s\n", 0, "boot"),
            ("a:\n  kind: sim\n  boot: soon\n", 3, "duration"),
            ("a: [", 1, ""),
            ("a:\n  {}\n", 2, "kind"),
        ] {
            match Providers::parse(text, "providers.yaml") {
                Err(error @ Error::Invalid { line: found, .. }) => {
                    let shown = error.to_string();
                    assert!(shown.starts_with("providers.yaml:"), "{shown}");
                    assert!(shown.contains(part), "{text:?}: {shown}");
                    assert!(line == 0 || found == line, "{text:?}: {shown}");
                }
                other => panic!("{text:?}: {other:?}"),
            }
        }
        for empty in ["", "{}", "# nothing\n"] {
            let error = Providers::parse(empty, "f").expect_err("no provider");
            assert!(matches!(error, Error::Empty { .. }), "{empty:?}: {error}");
        }
    }
}
