//! Responses in the form that was negotiated.

use std::{borrow::Cow, sync::Arc};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::header;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{Api, Call};
use crate::{
    error::{ApiError, ApiResult},
    http::{
        accept::{self, Form, Media, Offer, TableVersion, Transform},
        body,
        response::{self, ApiResponse},
    },
    printers::{IncludeObject, TableOptions},
    registry::Resource,
    store::{StoredObject, object_bytes},
};

/// Bytes of a list that are sent at once.
const CHUNK: usize = 64 * 1024;

/// How the objects of a request are shown.
#[derive(Clone, Debug)]
pub(super) struct View {
    resource: Arc<Resource>,
    form: Form,
    include: IncludeObject,
    pretty: bool,
    now: Timestamp,
}

/// The metadata of a list.
#[derive(Clone, Debug, Default)]
pub(super) struct ListMetadata {
    pub(super) revision: u64,
    pub(super) continue_token: Option<String>,
    pub(super) remaining: Option<usize>,
}

impl ListMetadata {
    fn value(&self) -> Value {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if let Some(token) = &self.continue_token {
            metadata["continue"] = Value::from(token.as_str());
        }
        if let Some(remaining) = self.remaining {
            metadata["remainingItemCount"] = Value::from(remaining);
        }
        metadata
    }
}

impl View {
    /// For single objects: get, writes, watch events.
    pub(super) fn for_item(api: &Api, call: &Call) -> ApiResult<Self> {
        Self::negotiated(api, call, Offer::Item)
    }

    pub(super) fn for_list(api: &Api, call: &Call) -> ApiResult<Self> {
        Self::negotiated(api, call, Offer::List)
    }

    fn negotiated(api: &Api, call: &Call, offer: Offer) -> ApiResult<Self> {
        let form = accept::negotiate(call.header(header::ACCEPT), offer)?;
        let include = match call.query.text("includeObject") {
            None | Some("Metadata") => IncludeObject::Metadata,
            Some("None") => IncludeObject::None,
            Some("Object") => IncludeObject::Object,
            Some(other) if matches!(form.transform, Transform::Table(_)) => {
                return Err(ApiError::bad_request(format!(
                    "unrecognized includeObject value: \"{other}\" (allowed: None, Metadata, Object)"
                )));
            }
            Some(_) => IncludeObject::Metadata,
        };
        let agent = call.header(header::USER_AGENT).unwrap_or_default();
        let browser = ["curl", "Wget", "Mozilla/5.0"]
            .iter()
            .any(|prefix| agent.starts_with(prefix));
        let pretty = call.query.flag("pretty").unwrap_or(browser);
        Ok(Self {
            resource: Arc::clone(&call.resource),
            form,
            include,
            pretty,
            now: api.clock.now(),
        })
    }

    /// A response of a stored object.
    pub(super) fn stored(&self, code: u16, object: &StoredObject) -> ApiResponse {
        if self.form
            == (Form {
                media: Media::Json,
                transform: Transform::None,
            })
            && !self.pretty
            && object.shape == self.resource.shape
        {
            return response::json_bytes(code, object.bytes().clone());
        }
        self.value(code, self.resource.read(object))
    }

    /// A response of an object of the resource.
    pub(super) fn value(&self, code: u16, object: Value) -> ApiResponse {
        let shown = match self.form.transform {
            Transform::None => object,
            Transform::Metadata => partial(&object),
            Transform::MetadataList => partial(&object),
            Transform::Table(version) => {
                let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
                self.table(version, &[&object], metadata, true)
            }
        };
        self.respond(code, &shown)
    }

    /// A response of any value, without transform.
    pub(super) fn respond(&self, code: u16, value: &Value) -> ApiResponse {
        if self.form.media == Media::Yaml {
            return match serde_saphyr::to_string(value) {
                Ok(text) => response::with_type(code, "application/yaml", body::full(text)),
                Err(error) => response::failure(&ApiError::internal(&error.to_string())),
            };
        }
        if self.pretty {
            let mut text = serde_json::to_vec_pretty(value).expect("a JSON value serialises");
            text.push(b'\n');
            return response::json_bytes(code, Bytes::from(text));
        }
        response::json(code, value)
    }

    fn table(
        &self,
        version: TableVersion,
        objects: &[&Value],
        metadata: Value,
        headers: bool,
    ) -> Value {
        let options = TableOptions {
            api_version: version.api_version().to_owned(),
            include_object: self.include,
            headers,
            now: self.now,
        };
        self.resource.printer().table(objects, metadata, &options)
    }

    /// A response of a list, streamed in chunks.
    pub(super) fn list(
        &self,
        objects: Vec<Arc<StoredObject>>,
        metadata: &ListMetadata,
    ) -> ApiResponse {
        let kind = match self.form.transform {
            Transform::Table(version) => {
                let values: Vec<Value> = objects
                    .iter()
                    .map(|object| self.resource.read(object))
                    .collect();
                let values: Vec<&Value> = values.iter().collect();
                return self.respond(200, &self.table(version, &values, metadata.value(), true));
            }
            Transform::Metadata | Transform::MetadataList => {
                ("PartialObjectMetadataList", "meta.k8s.io/v1".to_owned())
            }
            Transform::None => (&*self.resource.list_kind, self.resource.api_version()),
        };
        let head = json!({"kind": kind.0, "apiVersion": kind.1, "metadata": metadata.value()});
        if self.pretty || self.form.media == Media::Yaml {
            let items: Vec<Value> = objects
                .iter()
                .map(|object| serde_json::from_slice(&self.list_item(object)).unwrap_or_default())
                .collect();
            let mut whole = head;
            whole["items"] = Value::Array(items);
            return self.respond(200, &whole);
        }
        let mut start = BytesMut::from(&object_bytes(&head)[..]);
        start.truncate(start.len() - 1);
        start.put_slice(b",\"items\":[");
        let chunks = ListChunks {
            view: self.clone(),
            objects: objects.into_iter(),
            start,
            first: true,
            finished: false,
        };
        response::with_type(
            200,
            "application/json",
            body::stream(futures::stream::iter(chunks)),
        )
    }

    /// An object as a member of `items`.
    fn list_item(&self, object: &StoredObject) -> Bytes {
        match self.form.transform {
            Transform::None if object.shape == self.resource.shape => {
                if self.resource.typed_items() {
                    return object.bytes().clone();
                }
                let tail = object.untyped_tail();
                let mut item = BytesMut::with_capacity(tail.len() + 1);
                item.put_u8(b'{');
                item.put_slice(&tail);
                item.freeze()
            }
            Transform::None => {
                let mut value = self.resource.read(object);
                if let Some(object) = value.as_object_mut()
                    && !self.resource.typed_items()
                {
                    object.remove("kind");
                    object.remove("apiVersion");
                }
                object_bytes(&value)
            }
            _ => object_bytes(&partial(&self.resource.read(object))),
        }
    }

    /// The object of a watch event. `headers`: a Table shows its columns.
    pub(super) fn event_object<'a>(
        &self,
        object: &'a StoredObject,
        headers: bool,
    ) -> Cow<'a, [u8]> {
        match self.form.transform {
            Transform::None if object.shape == self.resource.shape => Cow::Borrowed(object.bytes()),
            Transform::None => Cow::Owned(object_bytes(&self.resource.read(object)).to_vec()),
            Transform::Metadata | Transform::MetadataList => {
                Cow::Owned(object_bytes(&partial(&self.resource.read(object))).to_vec())
            }
            Transform::Table(version) => {
                let value = self.resource.read(object);
                let metadata = json!({"resourceVersion": value["metadata"]["resourceVersion"]});
                Cow::Owned(
                    object_bytes(&self.table(version, &[&value], metadata, headers)).to_vec(),
                )
            }
        }
    }

    /// The object of a bookmark.
    pub(super) fn bookmark(&self, revision: u64, ends_state: bool, headers: bool) -> Bytes {
        let mut metadata =
            json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if ends_state {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let mut object = json!({
            "kind": &*self.resource.kind, "apiVersion": self.resource.api_version(), "metadata": metadata,
        });
        match self.form.transform {
            Transform::None => {}
            Transform::Metadata | Transform::MetadataList => object = partial(&object),
            Transform::Table(version) => {
                let metadata = json!({"resourceVersion": revision.to_string()});
                object = self.table(version, &[&object], metadata, headers);
            }
        }
        object_bytes(&object)
    }
}

/// An object's metadata alone.
fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
    })
}

/// The text of a list, piece by piece: nothing is copied before it is sent.
struct ListChunks {
    view: View,
    objects: std::vec::IntoIter<Arc<StoredObject>>,
    start: BytesMut,
    first: bool,
    finished: bool,
}

impl Iterator for ListChunks {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let mut chunk = std::mem::take(&mut self.start);
        for object in self.objects.by_ref() {
            if !std::mem::take(&mut self.first) {
                chunk.put_u8(b',');
            }
            chunk.put_slice(&self.view.list_item(&object));
            if chunk.len() >= CHUNK {
                return Some(chunk.freeze());
            }
        }
        if !self.finished {
            self.finished = true;
            chunk.put_slice(b"]}");
        }
        (!chunk.is_empty()).then(|| chunk.freeze())
    }
}
