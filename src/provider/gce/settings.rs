//! Which project a provider works in, by whose rights, and what machines without wishes get.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// Machine type of a VM whose Proxy and provider name none.
pub const DEFAULT_SIZE: &str = "e2-micro";
/// Boot image of a VM whose Proxy and provider name none.
pub const DEFAULT_IMAGE: &str = "projects/debian-cloud/global/images/family/debian-12";

/// Oldest list that a look for drift may be answered from.
pub const MAX_LIST_AGE: Duration = Duration::from_secs(30);

/// Settings of one provider of kind gce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The project that VMs are made in.
    pub project: Project,
    /// The zone of the Proxies that name none.
    pub zone: Zone,
    /// By whose rights. Default [`CredentialsSource::Default`].
    pub credentials: CredentialsSource,
    /// Address of the API, where it is not Google's.
    pub endpoint: Option<String>,
    /// Machine type of the Proxies that name none. Default [`DEFAULT_SIZE`].
    pub size: String,
    /// Boot image of the Proxies that name none. Default [`DEFAULT_IMAGE`].
    pub image: String,
    /// How old a list of all VMs may be that looks for drift are answered from, at most
    /// [`MAX_LIST_AGE`], the default; with zero each VM is asked for by itself.
    pub max_list_age: Duration,
}

impl Settings {
    /// Settings with every default.
    #[must_use]
    pub fn new(project: Project, zone: Zone) -> Self {
        Self {
            project,
            zone,
            credentials: CredentialsSource::default(),
            endpoint: None,
            size: DEFAULT_SIZE.to_owned(),
            image: DEFAULT_IMAGE.to_owned(),
            max_list_age: MAX_LIST_AGE,
        }
    }

    /// Checks what no field shows alone.
    ///
    /// # Errors
    ///
    /// A text that says what is wrong and what to write: an endpoint that is no URL, or one over
    /// plain HTTP that a token would be sent to; a list that may be too old.
    pub fn check(&self) -> Result<(), String> {
        if self.max_list_age > MAX_LIST_AGE {
            let (age, most) = (self.max_list_age, MAX_LIST_AGE);
            return Err(format!("maxListAge is {age:?}; allowed is 0s to {most:?}"));
        }
        let Some(endpoint) = &self.endpoint else {
            return Ok(());
        };
        let uri: Option<http::Uri> = endpoint.parse().ok();
        let scheme = uri
            .as_ref()
            .filter(|uri| uri.host().is_some())
            .and_then(|uri| uri.scheme_str());
        match scheme {
            Some("https") => Ok(()),
            Some("http") if self.credentials == CredentialsSource::Anonymous => Ok(()),
            Some("http") => Err(format!(
                "endpoint {endpoint:?} is not encrypted, and a token would be sent to it; write \
                 https://, or `credentials: anonymous`"
            )),
            _ => Err(format!(
                "endpoint {endpoint:?} must be a URL, such as https://compute.googleapis.com"
            )),
        }
    }
}

/// Where the operator's own credentials come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CredentialsSource {
    /// What the surroundings give: `GOOGLE_APPLICATION_CREDENTIALS`, the file that `gcloud` left,
    /// or the metadata server of the VM or pod (workload identity).
    #[default]
    Default,
    /// A JSON file: key of a service account, workload identity federation, or what `gcloud` writes.
    File(PathBuf),
    /// None, for an endpoint that asks for none.
    Anonymous,
}

impl CredentialsSource {
    /// The file, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Default | Self::Anonymous => None,
        }
    }
}

/// Id of a project, such as `my-project-1`; of an older form with a domain, `example.com:my-project`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project(String);

impl Project {
    /// Checks an id.
    ///
    /// # Errors
    ///
    /// A text that says what an id is.
    pub fn new(text: impl Into<String>) -> Result<Self, String> {
        let text = text.into();
        let (domain, id) = text.split_once(':').unwrap_or(("", &text));
        let is_domain = domain
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.');
        let valid = is_domain
            && (6..=30).contains(&id.len())
            && id
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && id.starts_with(|c: char| c.is_ascii_lowercase())
            && !id.ends_with('-');
        if valid {
            Ok(Self(text))
        } else {
            Err(format!(
                "project {text:?} is no project id: 6 to 30 of a-z, 0-9 and -, such as \
                 my-project-1 (not its number or display name)"
            ))
        }
    }

    /// The id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A zone, such as `europe-west1-b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone(String);

impl Zone {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// A text that says what a zone is.
    pub fn new(text: impl Into<String>) -> Result<Self, String> {
        let text = text.into();
        let parts: Vec<&str> = text.split('-').collect();
        let is_part = |part: &&str| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        let numbered = |part: &str| part.ends_with(|c: char| c.is_ascii_digit());
        let valid = text.len() <= 63
            && parts.len() >= 3
            && parts.iter().all(is_part)
            && parts
                .get(parts.len() - 2)
                .is_some_and(|part| numbered(part));
        if valid {
            Ok(Self(text))
        } else {
            Err(format!(
                "zone {text:?} is no zone: write one such as europe-west1-b"
            ))
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The region that it lies in, such as `europe-west1`.
    #[must_use]
    pub fn region(&self) -> &str {
        self.0
            .rsplit_once('-')
            .map_or(&self.0, |(region, _)| region)
    }
}

macro_rules! checked_text {
    ($($name:ident),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::new(String::deserialize(deserializer)?).map_err(de::Error::custom)
            }
        }
    )*};
}
checked_text!(Project, Zone);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b17_a_project_or_zone_that_cannot_be_one_is_refused() {
        for good in ["my-project-1", "example.com:my-project"] {
            assert_eq!(Project::new(good).expect("a project").as_str(), good);
        }
        for bad in [
            "",
            "short",
            "My-Project",
            "123456",
            "my-project-",
            "a/b-project",
        ] {
            assert!(
                Project::new(bad)
                    .expect_err("none")
                    .contains("my-project-1"),
                "{bad}"
            );
        }
        for (good, region) in [
            ("europe-west1-b", "europe-west1"),
            ("us-central1-ai1a", "us-central1"),
        ] {
            assert_eq!(Zone::new(good).expect("a zone").region(), region);
        }
        for bad in [
            "",
            "europe",
            "europe-west1",
            "europe-west-b",
            "zones/europe-west1-b",
            "Europe-west1-b",
        ] {
            assert!(
                Zone::new(bad).expect_err("none").contains("europe-west1-b"),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_token_is_sent_over_tls_only() {
        let project = Project::new("my-project-1").expect("a project");
        let zone = Zone::new("europe-west1-b").expect("a zone");
        let with = |endpoint: &str, credentials| Settings {
            endpoint: Some(endpoint.to_owned()),
            credentials,
            ..Settings::new(project.clone(), zone.clone())
        };
        let anonymous = CredentialsSource::Anonymous;
        assert_eq!(
            with("http://127.0.0.1:1", anonymous.clone()).check(),
            Ok(())
        );
        assert_eq!(
            with("https://gce.example", CredentialsSource::Default).check(),
            Ok(())
        );
        let refused = with("http://gce.example", CredentialsSource::Default).check();
        assert!(refused.expect_err("plain").contains("https://"));
        for bad in ["gce.example", "ftp://gce.example", "//x", "http://"] {
            assert!(with(bad, anonymous.clone()).check().is_err(), "{bad}");
        }
    }
}
