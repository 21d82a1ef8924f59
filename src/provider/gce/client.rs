//! The way to the API: credentials, TLS and clients, made when they are first needed.

use std::path::Path;
use std::time::Duration;

use google_cloud_auth::credentials::{
    Credentials, anonymous, external_account, impersonated, service_account, user_account,
};
use google_cloud_compute_v1::client::{Instances, ZoneOperations};
use google_cloud_gax::retry_policy::NeverRetry;
use serde_json::Value;

use super::settings::{CredentialsSource, Settings};
use crate::provider::{CALL_TIMEOUT, Error, Reason};

/// Clients of the calls that a provider makes.
#[derive(Clone, Debug)]
pub(super) struct Clients {
    pub(super) instances: Instances,
    pub(super) operations: ZoneOperations,
}

impl Clients {
    /// Makes the clients.
    ///
    /// Nothing is repeated below: the reconciler has its own pace, and a repeated insert must not
    /// hide which try was answered.
    ///
    /// # Errors
    ///
    /// [`Reason::Credentials`] where there are none, or they cannot be used.
    pub(super) async fn connect(settings: &Settings) -> Result<Self, Error> {
        // The first provider of the process stays; whoever chose it before is right too.
        let _chosen_before = rustls::crypto::ring::default_provider().install_default();
        let credentials = credentials(&settings.credentials)?;
        let attempt: Duration = CALL_TIMEOUT;
        let mut instances = Instances::builder()
            .with_retry_policy(NeverRetry)
            .with_attempt_timeout(attempt);
        let mut operations = ZoneOperations::builder()
            .with_retry_policy(NeverRetry)
            .with_attempt_timeout(attempt);
        if let Some(endpoint) = &settings.endpoint {
            instances = instances.with_endpoint(endpoint);
            operations = operations.with_endpoint(endpoint);
        }
        if let Some(credentials) = credentials {
            instances = instances.with_credentials(credentials.clone());
            operations = operations.with_credentials(credentials);
        }
        let failed = |error: google_cloud_gax::client_builder::Error| {
            let why = crate::refused::chain(&error);
            Error::new(
                Reason::Credentials,
                format!("no access to Compute Engine: {why}"),
            )
        };
        Ok(Self {
            instances: instances.build().await.map_err(failed)?,
            operations: operations.build().await.map_err(failed)?,
        })
    }
}

/// The credentials; `None` for those that the surroundings give.
fn credentials(source: &CredentialsSource) -> Result<Option<Credentials>, Error> {
    match source {
        CredentialsSource::Default => Ok(None),
        CredentialsSource::Anonymous => Ok(Some(anonymous::Builder::new().build())),
        CredentialsSource::File(path) => from_file(path)
            .map(Some)
            .map_err(|why| Error::new(Reason::Credentials, why)),
    }
}

/// Reads a credentials file. The text of an error names the file, and nothing that stands in it.
///
/// # Errors
///
/// A text for a file that cannot be read, is no JSON, or is of a kind that is not known.
pub fn from_file(path: &Path) -> Result<Credentials, String> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("credentials file {shown}: {error}"))?;
    let json: Value = serde_json::from_str(&text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        format!("credentials file {shown}:{line}:{column} is no JSON")
    })?;
    let kind = json["type"].as_str().unwrap_or_default().to_owned();
    let built = match kind.as_str() {
        "service_account" => service_account::Builder::new(json).build(),
        "authorized_user" => user_account::Builder::new(json).build(),
        "external_account" => external_account::Builder::new(json).build(),
        "impersonated_service_account" => impersonated::Builder::new(json).build(),
        _ => {
            return Err(format!(
                "credentials file {shown} has no known `type`; want service_account, \
                 external_account, impersonated_service_account or authorized_user"
            ));
        }
    };
    // The cause may quote what stands in the file.
    built.map_err(|_| {
        format!("credentials file {shown} of type {kind} lacks fields or holds bad ones")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credentials_file_of_no_use_is_named_without_its_content() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("key.json");
        for (text, part) in [
            ("hunter2", "is no JSON"),
            (r#"{"type":"hunter2"}"#, "no known `type`"),
            (
                r#"{"type":"service_account","private_key":"hunter2"}"#,
                "lacks fields",
            ),
        ] {
            std::fs::write(&path, text).expect("written");
            let error = from_file(&path).expect_err(text);
            assert!(
                error.contains(part) && error.contains("key.json"),
                "{error}"
            );
            assert!(!error.contains("hunter2"), "{error}");
        }
        let missing = from_file(&dir.path().join("none.json")).expect_err("not there");
        assert!(missing.contains("none.json"), "{missing}");
    }
}
