//! Where address and credentials of the API server come from.

use std::path::PathBuf;

use kube_client::Config;
use kube_client::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

use super::Error;
use super::credentials::without_secrets;

/// Names an in-cluster API server; set in every pod.
const SERVICE_HOST: &str = "KUBERNETES_SERVICE_HOST";

/// Which configuration to take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigSource {
    /// A kubeconfig file; it comes before everything else.
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; `None` takes its current one.
    pub context: Option<String>,
}

/// Loads the configuration: the named kubeconfig; else the pod's service account, where this
/// process runs in a pod and no context is named; else the files of `KUBECONFIG`; else
/// `~/.kube/config`.
///
/// In a pod a stray `KUBECONFIG` cannot redirect the program. A service account's token and
/// certificates are read again about once a minute, as they rotate.
///
/// # Errors
/// A file that cannot be read or names no usable cluster, with its path.
///
/// Of the configuration's own `connect_timeout`, `read_timeout` and `write_timeout` none counts:
/// [`ClientOptions`](super::ClientOptions) gives every call its time.
pub async fn load_config(source: &ConfigSource) -> Result<Config, Error> {
    let options = KubeConfigOptions {
        context: source.context.clone(),
        ..Default::default()
    };
    if let Some(path) = &source.kubeconfig {
        let place = path.display().to_string();
        let refused = |error| unusable(place.clone(), error);
        let kubeconfig = Kubeconfig::read_from(path).map_err(refused)?;
        return Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(refused);
    }
    if std::env::var_os(SERVICE_HOST).is_some() && source.context.is_none() {
        return Config::incluster().map_err(|error| Error::InCluster(Box::new(error)));
    }
    Config::from_kubeconfig(&options)
        .await
        .map_err(|error| unusable("of KUBECONFIG or ~/.kube/config".to_owned(), error))
}

fn unusable(place: String, error: KubeconfigError) -> Error {
    let source = without_secrets(error.into(), None);
    Error::Kubeconfig { place, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_named_kubeconfig_that_is_missing_is_an_error_with_its_path() {
        let source = ConfigSource {
            kubeconfig: Some("/nonexistent/kubeconfig".into()),
            context: None,
        };
        let error = load_config(&source).await.unwrap_err();
        assert!(
            error.to_string().contains("/nonexistent/kubeconfig"),
            "{error}"
        );
    }
}
