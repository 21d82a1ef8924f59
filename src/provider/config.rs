//! The providers file: which providers there are, by name.
//!
//! ```yaml
//! # name: what it is
//! kubernetes:
//!   kind: kubernetes
//!   callsPerSecond: 100   # calls in the long run, twice as many at once after a pause
//! sim:
//!   kind: sim
//!   boot: 2s          # longest time a machine takes to boot
//!   quota: 100        # most machines at a time
//! gce:
//!   kind: gce         # in builds with the feature `gce`
//!   project: my-project-1
//!   zone: europe-west1-b
//!   credentials: default   # or anonymous, or {file: /path/key.json}
//!   size: e2-small    # of Proxies that name none; so image
//!   endpoint: https://compute.googleapis.com
//! ```

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de};

#[cfg(feature = "gce")]
use super::gce::{
    self, GceProvider,
    settings::{CredentialsSource, Project, Zone},
};
use super::kubernetes::KubernetesProvider;
use super::sim::{self, SimProvider};
use super::{Pace, Paced, Provider, Registry};

/// The provider that is there without a file.
pub const DEFAULT_NAME: &str = "kubernetes";

const MAX_NAME: usize = 63;

/// What a provider is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pods of the cluster that the operator serves.
    Kubernetes,
    /// Simulated machines in the memory of this process.
    Sim,
    /// VMs of Google Compute Engine.
    #[cfg(feature = "gce")]
    Gce,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Sim => "sim",
            #[cfg(feature = "gce")]
            Self::Gce => "gce",
        }
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let kind = String::deserialize(deserializer)?;
        match kind.as_str() {
            "kubernetes" => Ok(Self::Kubernetes),
            "sim" => Ok(Self::Sim),
            #[cfg(feature = "gce")]
            "gce" => Ok(Self::Gce),
            #[cfg(not(feature = "gce"))]
            "gce" => Err(de::Error::custom(
                "kind gce is not part of this build; take the release image, or build with \
                 `cargo build --features gce`",
            )),
            _ => Err(de::Error::custom(format!(
                "unknown kind {kind:?}; there are kubernetes, sim and gce"
            ))),
        }
    }
}

/// One provider of the file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Fields")]
pub enum Entry {
    /// See [`Kind::Kubernetes`].
    Kubernetes {
        /// Calls per second in the long run; twice as many may come at once after a pause.
        calls_per_second: Option<NonZeroU32>,
    },
    /// See [`Kind::Sim`].
    Sim {
        /// Longest time a machine takes to boot; the shortest is half of it.
        boot: Option<Duration>,
        /// Most machines at a time.
        quota: Option<usize>,
    },
    /// See [`Kind::Sim`]: a world that is there already, which no file can name.
    World(sim::World),
    /// See `Kind::Gce`.
    #[cfg(feature = "gce")]
    Gce(Box<gce::Settings>),
}

/// The fields of all kinds; those of another kind than the entry's own are refused.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    kind: Kind,
    boot: Option<SignedDuration>,
    quota: Option<usize>,
    project: Option<Project>,
    zone: Option<Zone>,
    credentials: Option<CredentialsSource>,
    endpoint: Option<Text>,
    size: Option<Text>,
    image: Option<Text>,
    max_list_age: Option<SignedDuration>,
    calls_per_second: Option<NonZeroU32>,
}

/// In a build without it nobody asks what the fields of kind gce hold.
#[cfg(not(feature = "gce"))]
type Project = de::IgnoredAny;
#[cfg(not(feature = "gce"))]
type Zone = de::IgnoredAny;
#[cfg(not(feature = "gce"))]
type CredentialsSource = de::IgnoredAny;
#[cfg(not(feature = "gce"))]
type Text = de::IgnoredAny;
#[cfg(feature = "gce")]
type Text = String;

impl Fields {
    /// The kinds that each field belongs to, and whether it is there.
    fn given(&self) -> [(&'static str, &'static str, bool); 10] {
        [
            ("boot", "sim", self.boot.is_some()),
            ("quota", "sim", self.quota.is_some()),
            (
                "callsPerSecond",
                "kubernetes",
                self.calls_per_second.is_some(),
            ),
            ("project", "gce", self.project.is_some()),
            ("zone", "gce", self.zone.is_some()),
            ("credentials", "gce", self.credentials.is_some()),
            ("endpoint", "gce", self.endpoint.is_some()),
            ("size", "gce", self.size.is_some()),
            ("image", "gce", self.image.is_some()),
            ("maxListAge", "gce", self.max_list_age.is_some()),
        ]
    }
}

impl TryFrom<Fields> for Entry {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let kind = fields.kind.as_str();
        let stray = fields
            .given()
            .into_iter()
            .find(|(_, of, is_there)| *is_there && *of != kind);
        if let Some((name, _, _)) = stray {
            return Err(format!("unknown field `{name}` for kind {kind}; remove it"));
        }
        match fields.kind {
            Kind::Kubernetes => {
                let calls_per_second = fields.calls_per_second;
                Ok(Self::Kubernetes { calls_per_second })
            }
            Kind::Sim => {
                let boot = fields.boot.map(Duration::try_from).transpose();
                let boot = boot.map_err(|_| "boot is less than nothing; write for example 2s")?;
                let quota = fields.quota;
                Ok(Self::Sim { boot, quota })
            }
            #[cfg(feature = "gce")]
            Kind::Gce => gce_settings(fields).map(|settings| Self::Gce(Box::new(settings))),
        }
    }
}

#[cfg(feature = "gce")]
fn gce_settings(fields: Fields) -> Result<gce::Settings, String> {
    let needed = |name: &str, example: &str| {
        format!("kind gce needs `{name}`; write for example `{name}: {example}`")
    };
    let project = fields
        .project
        .ok_or_else(|| needed("project", "my-project-1"))?;
    let zone = fields
        .zone
        .ok_or_else(|| needed("zone", "europe-west1-b"))?;
    let age = fields.max_list_age.map(Duration::try_from).transpose();
    let age = age.map_err(|_| "maxListAge is less than nothing; write for example 30s")?;
    let defaults = gce::Settings::new(project, zone);
    let settings = gce::Settings {
        credentials: fields.credentials.unwrap_or_default(),
        endpoint: fields.endpoint,
        size: fields.size.unwrap_or(defaults.size),
        image: fields.image.unwrap_or(defaults.image),
        max_list_age: age.unwrap_or(defaults.max_list_age),
        ..defaults
    };
    settings.check()?;
    Ok(settings)
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
        let entry = Entry::Kubernetes {
            calls_per_second: None,
        };
        Self(BTreeMap::from([(name, entry)]))
    }
}

impl From<Entry> for sim::Settings {
    /// The behaviour that an entry of kind sim asks for.
    fn from(entry: Entry) -> Self {
        let mut settings = Self::default();
        if let Entry::Sim { boot, quota } = entry {
            settings.quota = quota;
            if let Some(boot) = boot {
                settings.boot = sim::up_to(boot);
            }
        }
        settings
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
    /// A file that a provider of the file names is of no use.
    #[error("{path}: provider {provider}: {message}")]
    Credentials {
        /// The providers file.
        path: Box<str>,
        /// The provider.
        provider: Box<str>,
        /// What is wrong with which file.
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
    /// field, a name that is no DNS label, no provider at all, a credentials file of no use.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let shown = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let providers = Self::parse(&text, &shown)?;
                providers.check_credentials(&shown)?;
                Ok(providers)
            }
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

    #[cfg(feature = "gce")]
    fn check_credentials(&self, path: &str) -> Result<(), Error> {
        for (name, entry) in &self.0 {
            if let Entry::Gce(settings) = entry
                && let Some(file) = settings.credentials.file()
                && let Err(message) = gce::credentials_from_file(file)
            {
                return Err(Error::Credentials {
                    path: path.into(),
                    provider: name.0.as_str().into(),
                    message: message.into(),
                });
            }
        }
        Ok(())
    }

    #[cfg(not(feature = "gce"))]
    fn check_credentials(&self, _path: &str) -> Result<(), Error> {
        Ok(())
    }

    /// One more provider, of a simulated cloud that the caller has in hand too. The name is to be a
    /// DNS label, or no Proxy can name it.
    #[cfg(feature = "dev")]
    pub(crate) fn with_world(mut self, name: &str, world: sim::World) -> Self {
        self.0.insert(Name(name.to_owned()), Entry::World(world));
        self
    }

    /// The simulated clouds by name, which are made by this and are the ones that
    /// [`Providers::build`] hands to the operator.
    #[must_use]
    pub fn worlds(&mut self) -> BTreeMap<String, sim::World> {
        for entry in self.0.values_mut() {
            if let Entry::Sim { .. } = entry {
                let settings = sim::Settings::from(entry.clone());
                *entry = Entry::World(sim::World::new(settings));
            }
        }
        let worlds = self.0.iter().filter_map(|(name, entry)| match entry {
            Entry::World(world) => Some((name.0.clone(), world.clone())),
            _ => None,
        });
        worlds.collect()
    }

    /// Makes the providers.
    #[must_use]
    pub fn build(
        &self,
        client: &kube_client::Client,
        default_image: Option<&str>,
        namespaces: &[String],
    ) -> Registry {
        let make = |(name, entry): (&Name, &Entry)| {
            let provider: Arc<dyn Provider> = match entry {
                Entry::Kubernetes { calls_per_second } => {
                    let pods =
                        KubernetesProvider::new(client.clone(), default_image.map(Arc::from))
                            .within(namespaces);
                    let pace = calls_per_second.map(Pace::of).unwrap_or_default();
                    Arc::new(Paced::new(name.0.as_str(), pods, pace))
                }
                // Nobody has to be spared.
                Entry::Sim { .. } => {
                    let settings = sim::Settings::from(entry.clone());
                    Arc::new(SimProvider::new(sim::World::new(settings)))
                }
                #[cfg(feature = "gce")]
                Entry::Gce(settings) => {
                    let vms = GceProvider::new((**settings).clone());
                    Arc::new(Paced::new(name.0.as_str(), vms, gce::PACE))
                }
                Entry::World(world) => Arc::new(SimProvider::new(world.clone())),
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
    fn the_pace_of_a_provider_of_pods_may_be_set() {
        let text = "pods:\n  kind: kubernetes\n  callsPerSecond: 500\n";
        let Providers(entries) = Providers::parse(text, "f").expect("valid");
        let calls_per_second = NonZeroU32::new(500);
        assert_eq!(
            entries[&Name("pods".to_owned())],
            Entry::Kubernetes { calls_per_second }
        );
        let pace = Pace::of(calls_per_second.expect("not zero"));
        assert_eq!((pace.per_second.get(), pace.burst.get()), (500, 1000));
    }

    #[test]
    fn p30_the_worlds_that_are_shown_are_the_ones_that_are_worked_in() {
        let text = "sim:\n  kind: sim\n  quota: 7\npods:\n  kind: kubernetes\n";
        let mut providers = Providers::parse(text, "f").expect("valid");
        let first = providers.worlds();
        assert_eq!(first.keys().collect::<Vec<_>>(), ["sim"]);
        assert_eq!(first["sim"].settings().quota, Some(7));
        assert_eq!(providers.worlds(), first, "made once");
        let entry = &providers.0[&Name("sim".to_owned())];
        assert_eq!(*entry, Entry::World(first["sim"].clone()));
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
            (
                "a:\n  kind: kubernetes\n  region: europe-west1\n",
                3,
                "region",
            ),
            (
                "a:\n  kind: kubernetes\n  zone: europe-west1-b\n",
                0,
                "zone",
            ),
            (
                "ok:\n  kind: kubernetes\nB_d:\n  kind: kubernetes\n",
                3,
                "DNS label",
            ),
            ("a:\n  kind: kubernetes\n  boot: 2s\n", 0, "boot"),
            ("a:\n  kind: sim\n  boot: soon\n", 3, "duration"),
            (
                "a:\n  kind: sim\n  callsPerSecond: 1\n",
                0,
                "callsPerSecond",
            ),
            ("a:\n  kind: kubernetes\n  callsPerSecond: 0\n", 3, "zero"),
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
        #[cfg(not(feature = "gce"))]
        {
            let text = "a:\n  project: my-project-1\n  kind: gce\n";
            let error = Providers::parse(text, "f")
                .expect_err("not built in")
                .to_string();
            assert!(
                error.starts_with("f:3:") && error.contains("--features gce"),
                "{error}"
            );
        }
        for empty in ["", "{}", "# nothing\n"] {
            let error = Providers::parse(empty, "f").expect_err("no provider");
            assert!(matches!(error, Error::Empty { .. }), "{empty:?}: {error}");
        }
    }

    #[cfg(feature = "gce")]
    #[test]
    fn p20_a_provider_of_kind_gce_names_project_zone_credentials_and_endpoint() {
        let text = "gce-eu:\n  kind: gce\n  project: my-project-1\n  zone: europe-west1-b\n  \
                    credentials: anonymous\n  endpoint: http://127.0.0.1:9\n  size: e2-small\n";
        let Providers(entries) = Providers::parse(text, "f").expect("valid");
        let Entry::Gce(settings) = &entries[&Name("gce-eu".to_owned())] else {
            panic!("{entries:?}");
        };
        assert_eq!(settings.zone.as_str(), "europe-west1-b");
        assert_eq!(settings.size, "e2-small");
        assert_eq!(settings.image, gce::settings::DEFAULT_IMAGE);
        assert_eq!(settings.credentials, CredentialsSource::Anonymous);
        let file = "a:\n  kind: gce\n  project: my-project-1\n  zone: europe-west1-b\n  \
                    credentials:\n    file: /etc/key.json\n";
        let Providers(entries) = Providers::parse(file, "f").expect("valid");
        let Entry::Gce(settings) = &entries[&Name("a".to_owned())] else {
            panic!("{entries:?}");
        };
        assert_eq!(
            settings.credentials.file(),
            Some(Path::new("/etc/key.json"))
        );
    }

    #[cfg(feature = "gce")]
    #[test]
    fn b17_a_bad_gce_entry_is_refused_with_what_to_write() {
        let whole = "a:\n  kind: gce\n  project: my-project-1\n  zone: europe-west1-b\n";
        for (text, line, part) in [
            (
                "a:\n  kind: gce\n  zone: europe-west1-b\n".to_owned(),
                0,
                "needs `project`",
            ),
            (
                "a:\n  kind: gce\n  project: my-project-1\n".to_owned(),
                0,
                "needs `zone`",
            ),
            (whole.replace("west1-b", "west1"), 4, "europe-west1-b"),
            (whole.replace("my-project-1", "P"), 3, "project id"),
            (format!("{whole}  credentials: admin\n"), 5, "admin"),
            (
                format!("{whole}  endpoint: http://gce.example\n"),
                0,
                "https://",
            ),
            (format!("{whole}  boot: 2s\n"), 0, "boot"),
            (format!("{whole}  maxListAge: 1m\n"), 0, "0s to 30s"),
        ] {
            let Err(error @ Error::Invalid { line: found, .. }) = Providers::parse(&text, "f")
            else {
                panic!("{text}");
            };
            assert!(error.to_string().contains(part), "{text}: {error}");
            assert!(line == 0 || found == line, "{text}: {error}");
        }
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("providers.yaml");
        std::fs::write(
            &path,
            format!("{whole}  credentials: {{file: /none.json}}\n"),
        )
        .expect("written");
        let error = Providers::read(&path)
            .expect_err("no such file")
            .to_string();
        assert!(
            error.contains("provider a") && error.contains("/none.json"),
            "{error}"
        );
    }
}
