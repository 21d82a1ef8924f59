//! OpenAPI v3: the index and one document for each group version.

use serde_json::Value;

/// What a document says about one resource.
#[derive(Clone, Debug)]
pub(crate) struct ResourceDocument<'a> {
    /// API group; empty for core.
    pub(crate) group: &'a str,
    /// API version.
    pub(crate) version: &'a str,
    /// Kind of the objects.
    pub(crate) kind: &'a str,
    /// Resource name in paths.
    pub(crate) plural: &'a str,
    /// Whether paths carry a namespace.
    pub(crate) namespaced: bool,
    /// Verbs of discovery (`get`, `list`, `watch`, `create`, `update`, `patch`, `delete`,
    /// `deletecollection`).
    pub(crate) verbs: &'a [&'a str],
    /// Subresources with GET, PUT and PATCH, e.g. `status`.
    pub(crate) subresources: &'a [&'a str],
    /// `openAPIV3Schema` of a custom resource; `None` takes the type table's schema.
    pub(crate) schema: Option<&'a Value>,
}

/// The answer of `/openapi/v3`: from each path (`api/v1`, `apis/apps/v1`) and the hash of its
/// document.
pub(crate) fn index<'a>(documents: impl IntoIterator<Item = (&'a str, &'a str)>) -> Value {
    let _ = documents.into_iter().count();
    unimplemented!()
}

/// The document of one group version; all `resources` have that group and version.
pub(crate) fn group_version_document(resources: &[ResourceDocument<'_>]) -> Value {
    unimplemented!("{resources:?}")
}

/// The hash by which the index names a serialized document: upper-case hex of its SHA-512.
pub(crate) fn hash(document: &[u8]) -> String {
    unimplemented!("{document:?}")
}
