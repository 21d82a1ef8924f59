//! Failures of credentials, told without anything that could be one.

use std::error::Error as StdError;

use kube_client::client::AuthError;
use kube_client::config::KubeconfigError;
use tower::BoxError;

/// Why credentials cannot be had, or a kubeconfig cannot be read.
///
/// What a credential plugin printed, and what stands in a file, may be a secret: it is left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CredentialsError(String);

impl CredentialsError {
    /// What `error` means; `plugin` is the command that the kubeconfig names, if it names one.
    fn of(error: &AuthError, plugin: Option<&str>) -> Self {
        let plugin = plugin.map_or_else(
            || "the credential plugin".to_owned(),
            |command| format!("the credential plugin `{command}`"),
        );
        Self(match error {
            AuthError::InvalidBasicAuth(_) => {
                "the user's name or password holds characters that no header may hold".to_owned()
            }
            AuthError::InvalidBearerToken(_) => {
                "the token holds characters that no header may hold".to_owned()
            }
            AuthError::AuthExecStart(error) => format!("{plugin} cannot be started: {error}"),
            AuthError::AuthExecRun { out, .. } => format!(
                "{plugin} failed with {}: run it by hand to see what it says",
                out.status
            ),
            AuthError::AuthExecParse(_) => {
                format!("{plugin} printed something else than an `ExecCredential`")
            }
            AuthError::ExecPluginFailed => {
                format!("{plugin} printed an `ExecCredential` without a status")
            }
            AuthError::MalformedTokenExpirationDate(_) => {
                format!("{plugin} printed a time of expiry that cannot be read")
            }
            AuthError::ReadTokenFile(error, path) => {
                format!("token file {} cannot be read: {error}", path.display())
            }
            AuthError::MissingCommand => {
                "the kubeconfig names a credential plugin without its `command`".to_owned()
            }
            AuthError::ExecMissingClusterInfo => {
                format!("{plugin} wants to be told of the cluster, of which nothing is known")
            }
            AuthError::NoValidNativeRootCA(error) => {
                format!("there are no certificates of authorities: {error}")
            }
            _ => "the way of authentication that the kubeconfig names failed".to_owned(),
        })
    }
}

/// The same failure, without secrets where it is one of credentials.
pub(super) fn without_secrets(error: BoxError, plugin: Option<&str>) -> BoxError {
    let mut next: Option<&(dyn StdError + 'static)> = Some(&*error);
    while let Some(link) = next {
        if let Some(failed) = link.downcast_ref::<AuthError>() {
            return CredentialsError::of(failed, plugin).into();
        }
        if let Some(kubeconfig) = link.downcast_ref::<KubeconfigError>()
            && let KubeconfigError::Parse(problem) = kubeconfig
        {
            let place = problem.location().map_or_else(String::new, |at| {
                format!(" at line {} column {}", at.line(), at.column())
            });
            return CredentialsError(format!("it is no kubeconfig{place}")).into();
        }
        next = link.source();
    }
    error
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::error::chain;

    const SECRET: &str = "s3cr3t-t0k3n";

    #[test]
    fn no_failure_of_credentials_repeats_what_was_printed_or_stands_in_a_file() {
        let print = format!("echo '{SECRET}'; echo '{SECRET}' >&2; exit 3");
        let out = Command::new("sh").args(["-c", &print]).output().unwrap();
        let parse = kube_client::config::Kubeconfig::from_yaml(&format!("users: {SECRET}"));
        let KubeconfigError::Parse(saphyr) = parse.unwrap_err() else {
            panic!("the text is no kubeconfig")
        };
        assert!(saphyr.to_string().contains(SECRET), "the test plants it");
        let run = AuthError::AuthExecRun {
            cmd: format!("TOKEN={SECRET} plugin --password {SECRET}"),
            out: Box::new(out),
        };
        let other = AuthError::AuthExec(format!("Target {SECRET} is not a string"));
        let json = serde_json::from_str::<u8>(&format!("\"{SECRET}\"")).unwrap_err();
        let kubeconfig = KubeconfigError::Parse(saphyr);
        let cases: [(BoxError, &str); 5] = [
            (
                run.into(),
                "the credential plugin `login` failed with exit status: 3",
            ),
            (
                Box::new(kube_client::Error::Auth(other)),
                "the way of authentication",
            ),
            (
                Box::new(kube_client::Error::Auth(AuthError::ParseTokenKey(json))),
                "the way of authentication",
            ),
            (
                Box::new(kube_client::Error::InferKubeconfig(kubeconfig)),
                "it is no kubeconfig at line 1",
            ),
            (
                Box::new(std::io::Error::other("the server is away")),
                "the server is away",
            ),
        ];
        for (error, want) in cases {
            let told = without_secrets(error, Some("login"));
            let text = format!("{} {told:?}", chain(&*told));
            assert!(text.starts_with(want), "{text}");
            assert!(!text.contains(SECRET), "{text}");
        }
    }
}
