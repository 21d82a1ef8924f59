//! Objects that carry metadata alone, and a metadata reader that leaves out what caches never use.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube_core::{ObjectMeta, Resource, TypeMeta};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

/// Annotation in which `kubectl apply` keeps the whole object as it was applied.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An object of kind `K` of which the server sends the metadata alone.
///
/// An informer over `MetadataOnly<Secret>` asks the server for `PartialObjectMetadata`, so the
/// secret's data never reach this process. The last-applied annotation, which may hold a copy of
/// them, and `managedFields` are skipped while reading and stand in no instance of this type.
///
/// ```no_run
/// # use k8s_openapi::api::core::v1::Secret;
/// use informer::{Informer, InformerOptions, MetadataOnly};
/// # fn start(client: kube_client::Client) -> Result<(), informer::Error> {
/// let secrets: Informer<MetadataOnly<Secret>> = Informer::new(client, InformerOptions::default())?;
/// # Ok(()) }
/// ```
///
/// Of a kind that is known at run time alone, such as `MetadataOnly<DynamicObject>`, every object
/// says which one it is ([`MetadataOnly::types`]), though the server's answers do not.
pub struct MetadataOnly<K> {
    metadata: ObjectMeta,
    types: Option<Arc<TypeMeta>>,
    kind: PhantomData<fn() -> K>,
}

impl<K> MetadataOnly<K> {
    /// Wraps `metadata`; the last-applied annotation and `managedFields` are dropped. It has no
    /// [`types`](Self::types).
    pub fn new(mut metadata: ObjectMeta) -> Self {
        metadata.managed_fields = None;
        if let Some(annotations) = &mut metadata.annotations {
            annotations.remove(LAST_APPLIED);
        }
        Self {
            metadata,
            types: None,
            kind: PhantomData,
        }
    }

    /// The metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    /// `apiVersion` and `kind` of the object itself, not of its `PartialObjectMetadata`.
    ///
    /// Objects of an informer have them if `K` is a kind that is known at run time alone. Where the
    /// type tells the kind (as `MetadataOnly<Secret>` does) it is `None`; ask [`Resource`] there.
    pub fn types(&self) -> Option<&TypeMeta> {
        self.types.as_deref()
    }
}

impl<K> Clone for MetadataOnly<K> {
    fn clone(&self) -> Self {
        Self {
            metadata: self.metadata.clone(),
            types: self.types.clone(),
            kind: PhantomData,
        }
    }
}

impl<K> PartialEq for MetadataOnly<K> {
    fn eq(&self, other: &Self) -> bool {
        self.metadata == other.metadata && self.types == other.types
    }
}

impl<K> fmt::Debug for MetadataOnly<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetadataOnly")
            .field("types", &self.types)
            .field("metadata", &self.metadata)
            .finish()
    }
}

impl<K: Resource> Resource for MetadataOnly<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn metadata_api() -> bool {
        true
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl<K> Serialize for MetadataOnly<K> {
    /// Writes `{"metadata": …}`, with the kind before it where the object has
    /// [`types`](MetadataOnly::types).
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let fields = if self.types.is_some() { 3 } else { 1 };
        let mut object = serializer.serialize_struct("MetadataOnly", fields)?;
        if let Some(types) = &self.types {
            object.serialize_field("apiVersion", &types.api_version)?;
            object.serialize_field("kind", &types.kind)?;
        }
        object.serialize_field("metadata", &self.metadata)?;
        object.end()
    }
}

impl<'de, K> Deserialize<'de> for MetadataOnly<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Partial {
            #[serde(default)]
            api_version: Said,
            #[serde(default)]
            kind: Said,
            #[serde(default)]
            metadata: LeanMeta,
        }
        let partial = Partial::deserialize(deserializer)?;
        let types = match (partial.api_version, partial.kind) {
            (Said(Some(api_version)), Said(Some(kind))) => {
                Some(shared(TypeMeta { api_version, kind }))
            }
            _ => None,
        };
        Ok(Self {
            metadata: partial.metadata.into(),
            types,
            kind: PhantomData,
        })
    }
}

const PARTIAL_API_VERSION: &str = "meta.k8s.io/v1";
const PARTIAL_KIND: &str = "PartialObjectMetadata";

/// What servers call an object of any kind of which they send the metadata alone.
pub(crate) fn partial() -> TypeMeta {
    TypeMeta {
        api_version: PARTIAL_API_VERSION.to_owned(),
        kind: PARTIAL_KIND.to_owned(),
    }
}

/// Part of a kind, where it says more than that this is metadata.
#[derive(Default)]
struct Said(Option<String>);

impl<'de> Deserialize<'de> for Said {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SaidVisitor;

        impl Visitor<'_> for SaidVisitor {
            type Value = Said;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<Said, E> {
                let says_nothing = text == PARTIAL_API_VERSION || text == PARTIAL_KIND;
                Ok(Said((!says_nothing).then(|| text.to_owned())))
            }
        }

        deserializer.deserialize_str(SaidVisitor)
    }
}

/// Kinds that a thread has read last. Few informers are read by turns, and whatever text asks for
/// it, this holds no more.
const RECENT_KINDS: usize = 8;

/// The kind that objects which a thread reads by turns have in common, kept once for all of them.
fn shared(types: TypeMeta) -> Arc<TypeMeta> {
    thread_local! {
        static RECENT: RefCell<VecDeque<Arc<TypeMeta>>> = const { RefCell::new(VecDeque::new()) };
    }
    RECENT.with_borrow_mut(|recent| {
        if let Some(known) = recent.iter().find(|known| ***known == types) {
            return Arc::clone(known);
        }
        recent.truncate(RECENT_KINDS - 1);
        recent.push_front(Arc::new(types));
        Arc::clone(&recent[0])
    })
}

/// `ObjectMeta` as read from text without building what [`MetadataOnly`] must not hold.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LeanMeta {
    #[serde(deserialize_with = "annotations_but_last_applied")]
    annotations: Option<BTreeMap<String, String>>,
    creation_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    deletion_timestamp: Option<Time>,
    finalizers: Option<Vec<String>>,
    generate_name: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    name: Option<String>,
    namespace: Option<String>,
    owner_references: Option<Vec<OwnerReference>>,
    resource_version: Option<String>,
    self_link: Option<String>,
    uid: Option<String>,
}

impl From<LeanMeta> for ObjectMeta {
    fn from(lean: LeanMeta) -> Self {
        Self {
            annotations: lean.annotations,
            creation_timestamp: lean.creation_timestamp,
            deletion_grace_period_seconds: lean.deletion_grace_period_seconds,
            deletion_timestamp: lean.deletion_timestamp,
            finalizers: lean.finalizers,
            generate_name: lean.generate_name,
            generation: lean.generation,
            labels: lean.labels,
            managed_fields: None,
            name: lean.name,
            namespace: lean.namespace,
            owner_references: lean.owner_references,
            resource_version: lean.resource_version,
            self_link: lean.self_link,
            uid: lean.uid,
        }
    }
}

fn annotations_but_last_applied<'de, D>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error>
where
    D: Deserializer<'de>,
{
    struct Annotations;

    impl<'de> Visitor<'de> for Annotations {
        type Value = Option<BTreeMap<String, String>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of annotations")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_none<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Self::Value, D::Error> {
            inner.deserialize_map(self)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut kept = BTreeMap::new();
            while let Some(name) = map.next_key::<String>()? {
                if name == LAST_APPLIED {
                    let IgnoredAny = map.next_value()?;
                } else {
                    kept.insert(name, map.next_value()?);
                }
            }
            Ok(Some(kept))
        }
    }

    deserializer.deserialize_option(Annotations)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use kube_core::DynamicObject;

    use super::*;

    #[test]
    fn i102_a_kind_is_written_and_read_again_and_kept_once() {
        let read = |text: &str| serde_json::from_str::<MetadataOnly<DynamicObject>>(text).unwrap();
        let text = |kind: &str| {
            format!(r#"{{"apiVersion":"apps/v1","kind":"{kind}","metadata":{{"name":"a"}}}}"#)
        };
        let object = read(&text("Deployment"));
        assert_eq!(object.types().unwrap().kind, "Deployment");
        let written = serde_json::to_string(&object).unwrap();
        assert_eq!(written, text("Deployment"));
        let again = read(&written);
        assert_eq!(again, object);
        assert!(std::ptr::eq(
            again.types().unwrap(),
            object.types().unwrap()
        ));
        let kinds: Vec<_> = (0..100).map(|at| read(&text(&at.to_string()))).collect();
        let of_two: Vec<_> = (0..100)
            .map(|at| read(&text(&(at % 2).to_string())))
            .collect();
        assert!(
            kinds
                .iter()
                .zip(0..)
                .all(|(one, at)| one.types().unwrap().kind == at.to_string())
        );
        let shared =
            |at: usize| std::ptr::eq(of_two[at].types().unwrap(), of_two[0].types().unwrap());
        assert!((0..100).all(|at| shared(at) == (at % 2 == 0)));
    }

    #[test]
    fn last_applied_and_managed_fields_are_cut_at_decoding() {
        let text = r#"{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadata","metadata":{
            "name":"s","namespace":"n","resourceVersion":"7","uid":"u","generation":2,
            "annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"data\":\"hunter2\"}","a":"b"},
            "labels":{"x":"y"},"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"o","uid":"1"}],
            "finalizers":["f"],"creationTimestamp":"2026-01-02T03:04:05Z",
            "managedFields":[{"manager":"hunter2","fieldsV1":{"f:x":{}}}]}}"#;
        let object: MetadataOnly<Secret> = serde_json::from_str(text).unwrap();
        let mut whole: ObjectMeta = serde_json::from_value(
            serde_json::from_str::<serde_json::Value>(text).unwrap()["metadata"].take(),
        )
        .unwrap();
        whole.managed_fields = None;
        whole.annotations.as_mut().unwrap().remove(LAST_APPLIED);
        assert_eq!(object.metadata(), &whole);
        assert!(!format!("{object:?}").contains("hunter2"));
    }

    #[test]
    fn null_annotations_are_none() {
        let object: MetadataOnly<Secret> =
            serde_json::from_str(r#"{"metadata":{"name":"s","annotations":null}}"#).unwrap();
        assert_eq!(object.metadata().annotations, None);
    }

    #[test]
    fn wrapping_metadata_drops_the_same_parts() {
        let metadata = ObjectMeta {
            annotations: Some([(LAST_APPLIED.to_owned(), "x".to_owned())].into()),
            managed_fields: Some(Vec::new()),
            ..ObjectMeta::default()
        };
        let object = MetadataOnly::<Secret>::new(metadata);
        assert_eq!(object.metadata().annotations, Some(BTreeMap::new()));
        assert_eq!(object.metadata().managed_fields, None);
    }
}
