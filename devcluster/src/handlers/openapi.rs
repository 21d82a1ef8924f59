//! `/openapi/v3`: the index and one document for each group version.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use serde_json::{Value, json};

use super::Api;
use crate::{
    http::{
        body,
        query::Query,
        response::{self, ApiResponse},
    },
    openapi::{self, ResourceDocument},
    registry::{Catalog, Resource},
    store::object_bytes,
};

/// The OpenAPI documents of a catalog; each is made when it is first asked for.
#[derive(Debug)]
pub(crate) struct OpenApi {
    documents: Vec<GroupDocument>,
}

#[derive(Debug)]
struct GroupDocument {
    /// `api/v1`, `apis/GROUP/VERSION`.
    path: String,
    hash: String,
    resources: Vec<Arc<Resource>>,
    bytes: OnceLock<Bytes>,
}

impl OpenApi {
    pub(super) fn of(catalog: &Catalog) -> Self {
        let mut documents = Vec::new();
        for (group, versions) in catalog.groups() {
            for served in versions {
                let path = if group.is_empty() {
                    format!("api/{}", served.version)
                } else {
                    format!("apis/{group}/{}", served.version)
                };
                let resources: Vec<_> = served.resources.values().map(Arc::clone).collect();
                let hash = openapi::hash(fingerprint(&resources).as_bytes());
                documents.push(GroupDocument {
                    path,
                    hash,
                    resources,
                    bytes: OnceLock::new(),
                });
            }
        }
        Self { documents }
    }

    fn index(&self) -> Value {
        openapi::index(
            self.documents
                .iter()
                .map(|document| (&*document.path, &*document.hash)),
        )
    }

    fn find(&self, path: &str) -> Option<&GroupDocument> {
        self.documents.iter().find(|document| document.path == path)
    }
}

/// Everything that a document depends on.
fn fingerprint(resources: &[Arc<Resource>]) -> String {
    let parts: Vec<Value> = resources
        .iter()
        .map(|resource| {
            json!([
                &*resource.group,
                &*resource.version,
                &*resource.plural,
                &*resource.kind,
                resource.namespaced,
                subresources(resource),
                resource.custom().map(|custom| &custom.schema_source),
            ])
        })
        .collect();
    Value::Array(parts).to_string()
}

fn subresources(resource: &Resource) -> Vec<&'static str> {
    let mut names = Vec::new();
    if resource.status {
        names.push("status");
    }
    if resource.scale.is_some() {
        names.push("scale");
    }
    names
}

impl GroupDocument {
    fn bytes(&self) -> &Bytes {
        self.bytes.get_or_init(|| {
            let lists: Vec<Vec<&'static str>> = self
                .resources
                .iter()
                .map(|resource| subresources(resource))
                .collect();
            let resources: Vec<ResourceDocument<'_>> = self
                .resources
                .iter()
                .zip(&lists)
                .map(|(resource, subresources)| ResourceDocument {
                    group: &resource.group,
                    version: &resource.version,
                    kind: &resource.kind,
                    plural: &resource.plural,
                    namespaced: resource.namespaced,
                    verbs: resource.verbs(),
                    subresources,
                    schema: resource.custom().map(|custom| &custom.schema_source),
                })
                .collect();
            object_bytes(&openapi::group_version_document(&resources))
        })
    }
}

impl Api {
    /// Answers `/openapi/v3` and the documents below it.
    pub(super) fn openapi_v3(
        &self,
        path: &[&str],
        query: &Query,
        headers: &HeaderMap,
    ) -> ApiResponse {
        let catalog = self.registry.catalog();
        let documents = self.documents.of(&catalog);
        let openapi = &documents.openapi;
        if path.is_empty() {
            return response::json(200, &openapi.index());
        }
        let Some(document) = openapi.find(&path.join("/")) else {
            return response::page_not_found();
        };
        if query.text("hash").is_some_and(|hash| hash != document.hash) {
            let mut response = response::text(301, "Moved Permanently\n");
            let location = format!("/openapi/v3/{}?hash={}", document.path, document.hash);
            if let Ok(location) = HeaderValue::from_str(&location) {
                response.headers_mut().insert(header::LOCATION, location);
            }
            return response;
        }
        let etag = HeaderValue::from_str(&format!("\"{}\"", document.hash)).ok();
        let known = etag.as_ref().is_some_and(|etag| {
            headers
                .get_all(header::IF_NONE_MATCH)
                .iter()
                .any(|tag| tag == etag)
        });
        let mut response = if known {
            response::with_type(304, "application/json", body::empty())
        } else {
            response::json_bytes(200, document.bytes().clone())
        };
        let out = response.headers_mut();
        if let Some(etag) = etag {
            out.insert(header::ETAG, etag);
        }
        if query.text("hash").is_some() {
            out.insert(
                header::CACHE_CONTROL,
                HeaderValue::from_static("public, immutable"),
            );
        }
        out.insert(header::VARY, HeaderValue::from_static("Accept"));
        response
    }
}
