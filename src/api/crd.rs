//! The CustomResourceDefinition as object and as text.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;
use serde_json::Value;

use super::v1alpha1::Proxy;

/// Why the definition could not be written as text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The types of apiextensions refused.
    #[error("turn the resource definition into JSON")]
    Json(#[source] serde_json::Error),
    /// The YAML writer refused.
    #[error("write the resource definition as YAML")]
    Yaml(#[source] serde_saphyr::SerializeError),
}

/// The definition of the Proxy resource, as the operator expects to find it in the cluster.
///
/// Computed anew on each call (about a millisecond).
pub fn crd() -> CustomResourceDefinition {
    Proxy::crd()
}

/// The definition as YAML, equal to `crds/proxies.crawl.proxyoperator.dev.yaml`.
///
/// # Errors
/// When a writer refuses, which a definition made of plain maps and texts gives no cause for.
pub fn crd_yaml() -> Result<String, Error> {
    let mut value = serde_json::to_value(crd()).map_err(Error::Json)?;
    plain_integers(&mut value);
    serde_saphyr::to_string(&value).map_err(Error::Yaml)
}

/// Writes bounds as `63` instead of `63.0`: the types of apiextensions hold them as floats.
fn plain_integers(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let whole = number.as_f64().filter(|float| float.fract() == 0.0);
            // Bounds are 32 bit at most, far inside what a float holds exactly.
            if let Some(whole) = whole.and_then(|float| format!("{float:.0}").parse::<i64>().ok()) {
                *value = Value::from(whole);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(plain_integers),
        Value::Object(fields) => fields.values_mut().for_each(plain_integers),
        _ => {}
    }
}
