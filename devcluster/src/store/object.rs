//! Stored objects: shared bytes plus the few decoded facts that selection needs.

use std::{borrow::Cow, fmt, io::Write as _, ops::Range, sync::Arc};

use bytes::Bytes;
use serde_json::{Map, Value};

/// The key of an object inside its collection: `NAMESPACE/NAME`, or `NAME` for cluster-scoped kinds.
///
/// Keys order by bytes, which is the order of lists.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key(Arc<str>);

impl Key {
    pub(crate) fn new(namespace: Option<&str>, name: &str) -> Self {
        match namespace {
            Some(namespace) => Self(Arc::from(format!("{namespace}/{name}"))),
            None => Self(Arc::from(name)),
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.0.split_once('/').map(|(namespace, _)| namespace)
    }

    pub(crate) fn name(&self) -> &str {
        self.0.split_once('/').map_or(&*self.0, |(_, name)| name)
    }
}

impl std::borrow::Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An object on its way into the store: everything but the revision.
#[derive(Debug)]
pub(crate) struct Draft {
    /// The whole object, in its storage version. A `metadata.resourceVersion` in it is replaced.
    pub(crate) value: Value,
    /// Values of the fields that selectors of this kind may name, beside name and namespace.
    pub(crate) fields: Vec<(Arc<str>, String)>,
    /// Which reader's form the bytes have: a resource with the same shape serves them as they are.
    pub(crate) shape: u64,
}

/// One version of an object. Immutable; shared by the store, the watch history and responses.
pub(crate) struct StoredObject {
    pub(crate) revision: u64,
    pub(crate) shape: u64,
    pub(crate) labels: Option<Map<String, Value>>,
    fields: Vec<(Arc<str>, String)>,
    bytes: Bytes,
    /// Where the text after `kind` and `apiVersion` starts.
    body_at: usize,
    /// Where the digits of `metadata.resourceVersion` stand.
    revision_at: Range<usize>,
}

impl StoredObject {
    /// Serialises a draft, once, at its revision.
    pub(crate) fn seal(draft: Draft, revision: u64) -> Self {
        let Draft {
            value,
            fields,
            shape,
        } = draft;
        let labels = value
            .pointer("/metadata/labels")
            .and_then(Value::as_object)
            .cloned();
        let mut text = ObjectText::default();
        text.write(&value, Some(revision));
        Self {
            revision,
            shape,
            labels,
            fields,
            body_at: text.body_at,
            revision_at: text.revision_at,
            bytes: Bytes::from(text.bytes),
        }
    }

    /// The object's JSON, starting with `kind` and `apiVersion`.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The object's JSON after `{"kind":…,"apiVersion":…,`: prefixed with `{` it is an item of a list whose
    /// items carry no type.
    pub(crate) fn untyped_tail(&self) -> Bytes {
        self.bytes.slice(self.body_at..)
    }

    /// Parses the bytes back. Cost: one pass over the object.
    pub(crate) fn value(&self) -> Value {
        serde_json::from_slice(&self.bytes).expect("the bytes were serialised from a JSON value")
    }

    /// The text of a selectable field, or "" when the object has none.
    pub(crate) fn field(&self, path: &str) -> Cow<'_, str> {
        if let Some((_, text)) = self.fields.iter().find(|(name, _)| &**name == path) {
            return Cow::Borrowed(text);
        }
        Cow::Owned(field_text(&self.value(), path))
    }

    /// The same content under another revision.
    pub(crate) fn restamped(&self, revision: u64) -> Self {
        let digits = revision.to_string();
        let Range { start, end } = self.revision_at.clone();
        let mut bytes = Vec::with_capacity(self.bytes.len() + digits.len());
        bytes.extend_from_slice(&self.bytes[..start]);
        bytes.extend_from_slice(digits.as_bytes());
        bytes.extend_from_slice(&self.bytes[end..]);
        Self {
            revision,
            shape: self.shape,
            labels: self.labels.clone(),
            fields: self.fields.clone(),
            bytes: Bytes::from(bytes),
            body_at: self.body_at,
            revision_at: start..start + digits.len(),
        }
    }
}

impl fmt::Debug for StoredObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredObject")
            .field("revision", &self.revision)
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

/// The text of the scalar at a dotted path (`spec.nodeName`); "" where nothing stands there.
pub(crate) fn field_text(value: &Value, path: &str) -> String {
    let found = path
        .trim_start_matches('.')
        .split('.')
        .try_fold(value, |at, step| at.get(step));
    match found {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

/// Serialises an object with `kind`, `apiVersion` and `metadata` first.
pub(crate) fn object_bytes(value: &Value) -> Bytes {
    let mut text = ObjectText::default();
    text.write(value, None);
    Bytes::from(text.bytes)
}

#[derive(Default)]
struct ObjectText {
    bytes: Vec<u8>,
    body_at: usize,
    revision_at: Range<usize>,
}

impl ObjectText {
    fn write(&mut self, value: &Value, revision: Option<u64>) {
        let Some(object) = value.as_object() else {
            self.json(value);
            return;
        };
        self.bytes.push(b'{');
        for key in ["kind", "apiVersion"] {
            if let Some(value) = object.get(key) {
                self.member(key, value);
            }
        }
        self.body_at = self.bytes.len();
        if let Some(metadata) = object.get("metadata") {
            match (metadata, revision) {
                (Value::Object(metadata), Some(revision)) => self.metadata(metadata, revision),
                _ => self.member("metadata", metadata),
            }
        }
        for (key, value) in object {
            if !matches!(key.as_str(), "kind" | "apiVersion" | "metadata") {
                self.member(key, value);
            }
        }
        self.close();
    }

    fn metadata(&mut self, metadata: &Map<String, Value>, revision: u64) {
        self.bytes.extend_from_slice(b"\"metadata\":{");
        for (key, value) in metadata {
            if key != "resourceVersion" {
                self.member(key, value);
            }
        }
        self.bytes.extend_from_slice(b"\"resourceVersion\":\"");
        let start = self.bytes.len();
        write!(self.bytes, "{revision}").expect("a vector takes every write");
        self.revision_at = start..self.bytes.len();
        self.bytes.extend_from_slice(b"\"},");
    }

    fn member(&mut self, key: &str, value: &Value) {
        self.json(&Value::String(key.to_owned()));
        self.bytes.push(b':');
        self.json(value);
        self.bytes.push(b',');
    }

    fn close(&mut self) {
        if self.bytes.last() == Some(&b',') {
            self.bytes.pop();
        }
        self.bytes.push(b'}');
    }

    fn json(&mut self, value: &Value) {
        serde_json::to_writer(&mut self.bytes, value).expect("a JSON value serialises to a vector");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sealed(revision: u64) -> StoredObject {
        let value = json!({
            "spec": {"a": [1, 2], "name": "x"}, "apiVersion": "v1", "kind": "Thing",
            "metadata": {"name": "n", "resourceVersion": "stale", "labels": {"l": "v"}},
        });
        StoredObject::seal(
            Draft {
                value,
                fields: vec![],
                shape: 0,
            },
            revision,
        )
    }

    #[test]
    fn sealing_puts_kind_and_version_first_and_the_revision_in_metadata() {
        let object = sealed(41);
        let text = std::str::from_utf8(object.bytes()).unwrap();
        assert!(
            text.starts_with(r#"{"kind":"Thing","apiVersion":"v1","metadata":{"#),
            "{text}"
        );
        assert_eq!(object.value()["metadata"]["resourceVersion"], "41");
        assert!(object.untyped_tail().starts_with(b"\"metadata\":{"));
        assert_eq!(object.field("spec.name"), "x");
        assert_eq!(object.field("spec.none"), "");
    }

    #[test]
    fn restamping_changes_the_revision_alone() {
        let object = sealed(9).restamped(1000).restamped(7);
        assert_eq!(object.value(), sealed(7).value());
        assert_eq!(object.bytes(), sealed(7).bytes());
    }
}
