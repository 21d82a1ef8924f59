//! Discovery: which groups, versions and resources there are.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use parking_lot::Mutex;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Api, openapi::OpenApi};
use crate::{
    error::ApiResult,
    http::{
        accept::{self, Offer},
        body,
        path::Discovery,
        response::{self, ApiResponse},
    },
    registry::{Catalog, GroupVersion, Resource},
    store::object_bytes,
};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The documents of a catalog, made once.
#[derive(Debug)]
pub(crate) struct Documents {
    core: Document,
    groups: Document,
    pub(super) openapi: OpenApi,
}

#[derive(Debug)]
struct Document {
    bytes: Bytes,
    etag: HeaderValue,
}

impl Documents {
    fn of(catalog: &Catalog) -> Self {
        Self {
            core: Document::aggregated(catalog.groups().filter(|(group, _)| group.is_empty())),
            groups: Document::aggregated(catalog.groups().filter(|(group, _)| !group.is_empty())),
            openapi: OpenApi::of(catalog),
        }
    }
}

impl Document {
    fn aggregated<'a>(groups: impl Iterator<Item = (&'a str, &'a [GroupVersion])>) -> Self {
        let items: Vec<Value> = groups
            .map(|(group, versions)| aggregated_group(group, versions))
            .collect();
        let list = json!({
            "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
            "items": items,
        });
        let bytes = object_bytes(&list);
        let hash: String = Sha256::digest(&bytes)
            .iter()
            .map(|byte| format!("{byte:02X}"))
            .collect();
        let etag = HeaderValue::from_str(&format!("\"{hash}\"")).expect("hex digits make a header");
        Self { bytes, etag }
    }

    fn response(&self, headers: &HeaderMap) -> ApiResponse {
        let known = headers
            .get_all(header::IF_NONE_MATCH)
            .iter()
            .any(|tag| tag == self.etag);
        let mut response = if known {
            response::with_type(304, AGGREGATED, body::empty())
        } else {
            response::with_type(200, AGGREGATED, body::full(self.bytes.clone()))
        };
        let out = response.headers_mut();
        out.insert(header::ETAG, self.etag.clone());
        out.insert(header::VARY, HeaderValue::from_static("Accept"));
        out.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
        response
    }
}

/// The documents of the newest catalog that was asked for.
#[derive(Debug, Default)]
pub(crate) struct DocumentCache(Mutex<Option<(Arc<Catalog>, Arc<Documents>)>>);

impl DocumentCache {
    pub(super) fn of(&self, catalog: &Arc<Catalog>) -> Arc<Documents> {
        let mut cached = self.0.lock();
        match &*cached {
            Some((of, documents)) if Arc::ptr_eq(of, catalog) => Arc::clone(documents),
            _ => {
                let documents = Arc::new(Documents::of(catalog));
                *cached = Some((Arc::clone(catalog), Arc::clone(&documents)));
                documents
            }
        }
    }
}

impl Api {
    /// Answers a discovery path.
    ///
    /// # Errors
    /// 406 when no form is acceptable.
    pub(crate) fn discover(&self, path: &Discovery, headers: &HeaderMap) -> ApiResult<ApiResponse> {
        let catalog = self.registry.catalog();
        let accepted = headers
            .get(header::ACCEPT)
            .and_then(|value| value.to_str().ok());
        if matches!(path, Discovery::CoreVersions | Discovery::Groups) && wants_aggregated(accepted)
        {
            let documents = self.documents.of(&catalog);
            let document = if *path == Discovery::Groups {
                &documents.groups
            } else {
                &documents.core
            };
            return Ok(document.response(headers));
        }
        accept::negotiate(accepted, Offer::Plain)?;
        Ok(match path {
            Discovery::CoreVersions => {
                let versions: Vec<&str> = catalog
                    .group("")
                    .into_iter()
                    .flatten()
                    .map(|gv| &*gv.version)
                    .collect();
                response::json(
                    200,
                    &json!({
                        "kind": "APIVersions", "versions": versions,
                        "serverAddressByClientCIDRs": [],
                    }),
                )
            }
            Discovery::Groups => {
                let groups: Vec<Value> = catalog
                    .groups()
                    .filter(|(group, _)| !group.is_empty())
                    .map(|(group, versions)| api_group(group, versions))
                    .collect();
                response::json(
                    200,
                    &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}),
                )
            }
            Discovery::Group(group) => match catalog.group(group) {
                Some(versions) if !group.is_empty() => {
                    let mut document = api_group(group, versions);
                    document["kind"] = Value::from("APIGroup");
                    document["apiVersion"] = Value::from("v1");
                    response::json(200, &document)
                }
                _ => response::page_not_found(),
            },
            Discovery::Resources { group, version } => {
                match catalog.group_version(group, version) {
                    Some(served) => response::json(200, &resource_list(group, served)),
                    None => response::page_not_found(),
                }
            }
        })
    }
}

/// Whether the best clause that can be served asks for aggregated discovery.
fn wants_aggregated(accept: Option<&str>) -> bool {
    let clauses = accept::clauses(accept.unwrap_or_default());
    clauses
        .iter()
        .find_map(|clause| {
            if !matches!(
                clause.media,
                "application/json" | "application/*" | "*/*" | "application/yaml"
            ) {
                return None;
            }
            match clause.param("as") {
                None => Some(false),
                Some("APIGroupDiscoveryList")
                    if clause.param("g") == Some("apidiscovery.k8s.io")
                        && clause.param("v") == Some("v2") =>
                {
                    Some(true)
                }
                Some(_) => None,
            }
        })
        .unwrap_or(false)
}

fn group_version_text(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

fn api_group(group: &str, versions: &[GroupVersion]) -> Value {
    let entry = |gv: &GroupVersion| json!({"groupVersion": group_version_text(group, &gv.version), "version": &*gv.version});
    let all: Vec<Value> = versions.iter().map(entry).collect();
    json!({"name": group, "versions": all, "preferredVersion": all.first()})
}

/// A subresource as discovery shows it: its name, the type of its body and its verbs.
struct Subresource {
    name: &'static str,
    group: String,
    version: String,
    kind: String,
    verbs: &'static [&'static str],
}

fn subresources(resource: &Resource) -> Vec<Subresource> {
    let own = |name, verbs| Subresource {
        name,
        group: resource.group.to_string(),
        version: resource.version.to_string(),
        kind: resource.kind.to_string(),
        verbs,
    };
    let other = |name, group: &str, kind: &str, verbs| Subresource {
        name,
        group: group.to_owned(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        verbs,
    };
    let mut found = Vec::new();
    for name in resource.extra {
        found.push(match *name {
            "binding" => other("binding", "", "Binding", &["create"]),
            "eviction" => other("eviction", "policy", "Eviction", &["create"]),
            "token" => other(
                "token",
                "authentication.k8s.io",
                "TokenRequest",
                &["create"],
            ),
            name => own(name, &["update"]),
        });
    }
    if resource.scale.is_some() {
        found.push(other(
            "scale",
            "autoscaling",
            "Scale",
            &["get", "patch", "update"],
        ));
    }
    if resource.status {
        found.push(own("status", &["get", "patch", "update"]));
    }
    found
}

fn resource_list(group: &str, served: &GroupVersion) -> Value {
    let mut resources = Vec::new();
    for resource in served.resources.values() {
        let mut entry = json!({
            "name": &*resource.plural, "singularName": &*resource.singular,
            "namespaced": resource.namespaced, "kind": &*resource.kind, "verbs": resource.verbs(),
        });
        if resource.review.is_none() {
            entry["storageVersionHash"] = Value::from(storage_hash(resource));
        }
        if !resource.short_names.is_empty() {
            entry["shortNames"] = texts(&resource.short_names);
        }
        if !resource.categories.is_empty() {
            entry["categories"] = texts(&resource.categories);
        }
        resources.push(entry);
        for subresource in subresources(resource) {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, subresource.name), "singularName": "",
                "namespaced": resource.namespaced, "kind": subresource.kind, "verbs": subresource.verbs,
            });
            if subresource.group != group || subresource.version != *served.version {
                if !subresource.group.is_empty() {
                    entry["group"] = Value::from(subresource.group);
                }
                entry["version"] = Value::from(subresource.version);
            }
            resources.push(entry);
        }
    }
    json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": group_version_text(group, &served.version), "resources": resources,
    })
}

fn aggregated_group(group: &str, versions: &[GroupVersion]) -> Value {
    let versions: Vec<Value> = versions
        .iter()
        .map(|served| {
            let resources: Vec<Value> = served
                .resources
                .values()
                .map(|resource| aggregated_resource(resource))
                .collect();
            json!({"version": &*served.version, "resources": resources, "freshness": "Current"})
        })
        .collect();
    let metadata = if group.is_empty() {
        json!({})
    } else {
        json!({"name": group})
    };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(resource: &Resource) -> Value {
    let response_kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let mut entry = json!({
        "resource": &*resource.plural,
        "responseKind": response_kind(&resource.group, &resource.version, &resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": &*resource.singular,
        "verbs": resource.verbs(),
    });
    if !resource.short_names.is_empty() {
        entry["shortNames"] = texts(&resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = texts(&resource.categories);
    }
    let subresources: Vec<Value> = subresources(resource)
        .into_iter()
        .map(|subresource| {
            json!({
                "subresource": subresource.name,
                "responseKind":
                    response_kind(&subresource.group, &subresource.version, &subresource.kind),
                "verbs": subresource.verbs,
            })
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = Value::Array(subresources);
    }
    entry
}

fn texts(list: &[Arc<str>]) -> Value {
    list.iter().map(|text| Value::from(&**text)).collect()
}

/// Changes when the objects of a resource move to another storage version.
fn storage_hash(resource: &Resource) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let stored = match resource.custom() {
        Some(custom) => custom.storage_api_version.clone(),
        None => resource.api_version(),
    };
    let digest = Sha256::digest(format!("{stored}/{}", resource.kind));
    STANDARD.encode(&digest[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregated_discovery_is_chosen_by_the_first_servable_clause() {
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        let cases = [
            (v2.to_owned(), true),
            (format!("{v2};profile=nopeer,{v2},application/json"), true),
            (format!("{beta},application/json"), false),
            (format!("application/json,{v2}"), false),
            (String::new(), false),
        ];
        for (header, expected) in cases {
            assert_eq!(wants_aggregated(Some(&header)), expected, "{header}");
        }
    }
}
