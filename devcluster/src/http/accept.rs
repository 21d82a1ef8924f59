//! Negotiation of the response's form from the `Accept` header.

use crate::error::{ApiError, ApiResult};

/// How an object is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transform {
    /// The object itself.
    None,
    /// `meta.k8s.io` Table of that version.
    Table(TableVersion),
    /// `PartialObjectMetadata`.
    Metadata,
    /// `PartialObjectMetadataList`.
    MetadataList,
}

/// The version of a Table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableVersion {
    V1,
    V1Beta1,
}

impl TableVersion {
    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::V1 => "meta.k8s.io/v1",
            Self::V1Beta1 => "meta.k8s.io/v1beta1",
        }
    }
}

/// The media type of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    Json,
    Yaml,
}

/// Which transforms an endpoint offers beside the object itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Objects one by one (get, writes, watch).
    Item,
    /// Lists.
    List,
    /// Nothing but the object (subresources with a form of their own).
    Plain,
}

/// The form that was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) media: Media,
    pub(crate) transform: Transform,
}

/// One clause of an `Accept` header.
#[derive(Clone, Debug)]
pub(crate) struct Clause<'a> {
    pub(crate) media: &'a str,
    params: Vec<(&'a str, &'a str)>,
    quality: f32,
}

impl<'a> Clause<'a> {
    pub(crate) fn param(&self, name: &str) -> Option<&'a str> {
        self.params
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| *value)
    }
}

/// The clauses of a header, best first: by `q`, then by order.
pub(crate) fn clauses(header: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = header
        .split(',')
        .map(str::trim)
        .filter(|clause| !clause.is_empty())
        .map(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            let params: Vec<_> = parts
                .filter_map(|part| part.split_once('='))
                .map(|(key, value)| (key.trim(), value.trim().trim_matches('"')))
                .collect();
            let quality = params
                .iter()
                .find(|(key, _)| *key == "q")
                .and_then(|(_, value)| value.parse().ok())
                .unwrap_or(1.0);
            Clause {
                media,
                params,
                quality,
            }
        })
        .collect();
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    clauses
}

const ACCEPTED: &[&str] = &["application/json", "application/yaml"];

/// Picks the first clause whose media type and transform can both be served.
///
/// # Errors
/// 406 when there is none.
pub(crate) fn negotiate(header: Option<&str>, offer: Offer) -> ApiResult<Form> {
    let header = header.unwrap_or_default();
    if header.trim().is_empty() {
        return Ok(Form {
            media: Media::Json,
            transform: Transform::None,
        });
    }
    clauses(header)
        .iter()
        .find_map(|clause| {
            let media = match clause.media {
                "application/json" | "application/*" | "*/*" => Media::Json,
                "application/yaml" => Media::Yaml,
                _ => return None,
            };
            Some(Form {
                media,
                transform: transform(clause, offer)?,
            })
        })
        .ok_or_else(|| ApiError::not_acceptable(ACCEPTED))
}

fn transform(clause: &Clause<'_>, offer: Offer) -> Option<Transform> {
    let Some(wanted) = clause.param("as") else {
        return Some(Transform::None);
    };
    let (group, version) = (clause.param("g"), clause.param("v"));
    if group != Some("meta.k8s.io") {
        return None;
    }
    let version = match version {
        Some("v1") => TableVersion::V1,
        Some("v1beta1") => TableVersion::V1Beta1,
        _ => return None,
    };
    match (wanted, offer, version) {
        ("Table", Offer::Item | Offer::List, version) => Some(Transform::Table(version)),
        ("PartialObjectMetadata", Offer::Item, TableVersion::V1) => Some(Transform::Metadata),
        ("PartialObjectMetadataList", Offer::List, TableVersion::V1) => {
            Some(Transform::MetadataList)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_servable_clause_wins() {
        let partial = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        let list = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let cases = [
            ("", Offer::Item, Some(Transform::None)),
            ("*/*", Offer::Plain, Some(Transform::None)),
            ("application/xml", Offer::Item, None),
            ("application/vnd.kubernetes.protobuf", Offer::Item, None),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                Offer::List,
                Some(Transform::None),
            ),
            (partial, Offer::Item, Some(Transform::Metadata)),
            (partial, Offer::List, None),
            (list, Offer::List, Some(Transform::MetadataList)),
            (list, Offer::Item, None),
            (table, Offer::List, Some(Transform::Table(TableVersion::V1))),
            (table, Offer::Plain, Some(Transform::None)),
            (
                "application/json;q=0.1,application/json;as=Table;v=v1;g=meta.k8s.io;q=0.9",
                Offer::List,
                Some(Transform::Table(TableVersion::V1)),
            ),
        ];
        for (header, offer, expected) in cases {
            let got = negotiate(Some(header), offer)
                .ok()
                .map(|form| form.transform);
            assert_eq!(got, expected, "{header:?} for {offer:?}");
        }
    }

    #[test]
    fn nothing_servable_is_406_with_the_list() {
        let error = negotiate(Some("application/xml"), Offer::Item).unwrap_err();
        assert_eq!(error.code(), 406);
        assert!(error.message().contains("application/json"));
    }
}
