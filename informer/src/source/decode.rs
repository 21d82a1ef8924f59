//! From JSON text to an object, leaving out unwanted parts in the same pass.

use std::any::TypeId;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kube_core::{Resource, TypeMeta};
use serde::de::DeserializeOwned;

use super::filter::{Filter, Rules, WRONG_KIND};
use super::named::Named;
use super::outline::Arrays;
use super::scan::MAX_VALUE;
use super::{Cut, Malformed, RawObject};
use crate::meta;

/// How objects of one kind are read.
#[derive(Debug)]
pub(crate) struct Decoder<K> {
    /// The kind itself, of which servers may be asked for the metadata alone.
    own: TypeMeta,
    rules: Rules,
    /// Objects that cannot be read keep their text.
    keep_raw: bool,
    object: PhantomData<fn() -> K>,
}

impl<K: Resource + DeserializeOwned> Decoder<K> {
    pub(crate) fn new(dynamic: &K::DynamicType, cut: Cut) -> Self {
        let own = TypeMeta {
            api_version: K::api_version(dynamic).into_owned(),
            kind: K::kind(dynamic).into_owned(),
        };
        let said = match K::metadata_api() {
            true => meta::partial(),
            false => own.clone(),
        };
        // Where the type alone tells the kind, no object needs to.
        let is_typed = TypeId::of::<K::DynamicType>() == TypeId::of::<()>();
        let told = if is_typed { said.clone() } else { own.clone() };
        Self {
            own,
            rules: Rules { said, told, cut },
            keep_raw: false,
            object: PhantomData,
        }
    }

    pub(crate) fn keep_raw(self, keep_raw: bool) -> Self {
        Self { keep_raw, ..self }
    }

    pub(crate) fn kind(&self) -> &str {
        &self.own.kind
    }

    /// Reads one object; `deleted` is what a failure shall say of it.
    pub(crate) fn object(&self, text: &[u8], deleted: bool) -> Result<K, Box<Malformed>> {
        self.try_object(text)
            .map_err(|Unreadable| self.explain(text, deleted))
    }

    /// As [`Decoder::object`], without saying what is wrong.
    pub(super) fn try_object(&self, text: &[u8]) -> Result<K, Unreadable> {
        // The code that reads may be a user's; a panic costs its object alone.
        let read = |arrays: &Arrays| {
            catch_unwind(AssertUnwindSafe(|| {
                let mut json = serde_json::Deserializer::from_slice(text);
                let object = K::deserialize(Filter::new(&mut json, &self.rules, arrays))?;
                json.end().map(|()| object)
            }))
        };
        let outcome = match read(&Arrays::of(text)) {
            // What is passed over by its outline must be text; without one it may be any bytes.
            Ok(Err(_)) => read(&Arrays::default()),
            outcome => outcome,
        };
        match outcome {
            Ok(Ok(object)) => Ok(object),
            _ => Err(Unreadable),
        }
    }

    /// Reads again what failed, this time keeping track of the path.
    pub(super) fn explain(&self, text: &[u8], deleted: bool) -> Box<Malformed> {
        let mut json = serde_json::Deserializer::from_slice(text);
        let mut track = serde_path_to_error::Track::new();
        let read = catch_unwind(AssertUnwindSafe(|| {
            let inner = serde_path_to_error::Deserializer::new(&mut json, &mut track);
            K::deserialize(Filter::new(inner, &self.rules, &Arrays::default()))
        }));
        let (path, problem) = match read {
            Ok(Ok(_)) => (String::new(), "text after the object".to_owned()),
            Ok(Err(error)) => (track.path().to_string(), without_values(&error)),
            // What the panic said may be a value of the object.
            Err(_) => (String::new(), "the code that reads it panics".to_owned()),
        };
        let mut malformed = self.unreadable(text, path, problem, deleted);
        if self.keep_raw && !malformed.foreign {
            malformed.raw = Some(RawObject::new(String::from_utf8_lossy(text)));
        }
        Box::new(malformed)
    }

    /// What is told of an object that is too long to be read, of whose text this is the beginning.
    pub(super) fn oversized(&self, head: &[u8], length: usize, deleted: bool) -> Box<Malformed> {
        let problem = format!("it has {length} bytes, and above {MAX_VALUE} none is read");
        Box::new(self.unreadable(head, String::new(), problem, deleted))
    }

    fn unreadable(&self, text: &[u8], path: String, problem: String, deleted: bool) -> Malformed {
        let named = Named::of(text);
        // Whatever else does not fit: an object of another kind need not.
        let (api_version, kind) = (named.api_version.as_deref(), named.kind.as_deref());
        let foreign = self.rules.foreign(&self.own, api_version, kind);
        let is_foreign = foreign.is_some();
        let (path, problem) = match foreign {
            Some((field, problem)) => (field.to_owned(), problem),
            None => (path, problem),
        };
        Malformed {
            kind: self.own.kind.clone(),
            key: named.key(),
            uid: named.uid,
            resource_version: named.resource_version,
            path,
            problem,
            deleted,
            foreign: is_foreign,
            raw: None,
        }
    }
}

/// A text that is no object of the kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unreadable;

/// A decoding problem without any value of the object, which may be a secret.
fn without_values(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!("line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&format!(" at {place}")).unwrap_or(&text);
    // Field names come out of the type, the rest may come out of the object.
    let of_the_type = ["missing field `", "duplicate field `", WRONG_KIND];
    if !error.is_data() || of_the_type.iter().any(|start| text.starts_with(start)) {
        return text.to_owned();
    }
    let expected = text
        .rsplit_once(", expected ")
        .map(|(_, expected)| expected);
    let found = text
        .strip_prefix("invalid type: ")
        .and_then(|rest| rest.split([' ', ',']).next())
        .map_or("an unusable value", |word| word);
    match expected {
        Some(expected) => format!("found {found}, expected {expected}"),
        None => "the value does not fit".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
    use kube_core::discovery::ApiResource;
    use kube_core::{DynamicObject, GroupVersionKind};
    use proptest::prelude::*;
    use serde::de::{Deserialize, Deserializer};

    use super::*;
    use crate::meta::LAST_APPLIED;
    use crate::{MetadataOnly, ObjectKey};

    fn decoder<K: Resource<DynamicType = ()> + DeserializeOwned>(cut: Cut) -> Decoder<K> {
        Decoder::new(&(), cut)
    }

    const ALL: Cut = Cut {
        managed_fields: true,
        last_applied: true,
    };
    const NONE: Cut = Cut {
        managed_fields: false,
        last_applied: false,
    };
    const CONFIG_MAP: &str = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"managedFields":
        [{"manager":"m"}],"name":"c\u0061","namespace":"n","resourceVersion":"5",
        "annotations":{"kubectl.kubernetes.io/last-applied-configuration":"x","b":"c"}},
        "data":{"metadata":"stays","managedFields":"stays","\u0061":"\n"}}"#;

    #[test]
    fn only_the_cut_parts_are_left_out() {
        let mut whole: ConfigMap = serde_json::from_str(CONFIG_MAP).unwrap();
        let read = |cut| {
            decoder::<ConfigMap>(cut)
                .object(CONFIG_MAP.as_bytes(), false)
                .unwrap()
        };
        assert_eq!(read(NONE), whole);
        whole.metadata.managed_fields = None;
        assert_eq!(read(Cut::default()), whole);
        whole
            .metadata
            .annotations
            .as_mut()
            .unwrap()
            .remove(LAST_APPLIED);
        assert_eq!(read(ALL), whole);
    }

    #[test]
    fn dynamic_objects_are_cut_alike() {
        let kind = ApiResource::erase::<ConfigMap>(&());
        let decoder = Decoder::<DynamicObject>::new(&kind, ALL);
        let object = decoder.object(CONFIG_MAP.as_bytes(), false).unwrap();
        assert_eq!(object.metadata.managed_fields, None);
        assert_eq!(object.data["data"]["managedFields"], "stays");
        assert_eq!(object.types.unwrap().kind, "ConfigMap");
    }

    #[test]
    fn i102_an_item_of_a_list_gets_the_kind_that_it_leaves_out() {
        let kind = ApiResource::erase::<ConfigMap>(&());
        let decoder = Decoder::<DynamicObject>::new(&kind, ALL);
        let object = decoder
            .object(br#"{"metadata":{"name":"a"},"data":{}}"#, false)
            .unwrap();
        let types = object.types.unwrap();
        assert_eq!(
            (types.api_version.as_str(), types.kind.as_str()),
            ("v1", "ConfigMap")
        );
        assert_eq!(object.data, serde_json::json!({"data": {}}));
    }

    #[test]
    fn i102_metadata_of_a_kind_known_at_run_time_tell_the_kind_and_share_it() {
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("net.example.dev", "v1", "Widget"));
        let decoder = Decoder::<MetadataOnly<DynamicObject>>::new(&kind, ALL);
        // As an event carries it, and as an item of a list does.
        let event = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}}"#;
        let item = r#"{"metadata":{"name":"b"}}"#;
        let read = |text: &str| decoder.object(text.as_bytes(), false).unwrap();
        let (event, item) = (read(event), read(item));
        let own = TypeMeta {
            api_version: "net.example.dev/v1".to_owned(),
            kind: "Widget".to_owned(),
        };
        assert_eq!((event.types(), item.types()), (Some(&own), Some(&own)));
        assert!(std::ptr::eq(event.types().unwrap(), item.types().unwrap()));
        // A server that sends whole objects where metadata were asked for.
        let whole =
            br#"{"kind":"Widget","apiVersion":"net.example.dev/v1","metadata":{"name":"a"}}"#;
        let refused = decoder.object(whole, false).unwrap_err();
        assert_eq!((refused.foreign, &*refused.path), (false, "kind"));
    }

    #[test]
    fn i102_metadata_of_a_kind_known_by_its_type_carry_no_copy_of_it() {
        let text = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}}"#;
        for text in [text, r#"{"metadata":{"name":"a"}}"#] {
            let decoder = decoder::<MetadataOnly<Secret>>(ALL);
            let object = decoder.object(text.as_bytes(), false).unwrap();
            assert_eq!(object.types(), None, "{text}");
        }
    }

    #[test]
    fn r18_a_misfit_tells_name_path_and_no_value() {
        let text = br#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"3"},
            "spec":{"containers":[{"name":"x","image":{"hunter2":1}}]}}"#;
        let malformed = decoder::<Pod>(ALL).object(text, true).unwrap_err();
        assert_eq!(
            *malformed,
            Malformed {
                kind: "Pod".into(),
                key: Some(ObjectKey::namespaced("n", "a")),
                uid: Some("u".into()),
                resource_version: Some("3".into()),
                path: "spec.containers[0].image".into(),
                problem: "found map, expected a string".into(),
                deleted: true,
                foreign: false,
                raw: None,
            }
        );
    }

    #[test]
    fn a_misfit_of_one_part_of_the_metadata_hides_no_other() {
        let text = br#"{"metadata":{"name":"a","namespace":"n","uid":7,"resourceVersion":"3"}}"#;
        let malformed = decoder::<Pod>(ALL).object(text, false).unwrap_err();
        assert_eq!(malformed.path, "metadata.uid");
        assert_eq!(malformed.key, Some(ObjectKey::namespaced("n", "a")));
        assert_eq!(
            (malformed.uid, malformed.resource_version),
            (None, Some("3".into()))
        );
    }

    #[test]
    fn values_never_stand_in_a_problem() {
        for data in [
            r#""hunter2""#,
            r#"{"k":"hunter2!"}"#,
            r#"{"k":["hunter2"]}"#,
            r#"{"k":12345}"#,
        ] {
            let text = format!(r#"{{"metadata":{{"name":"s"}},"data":{data}}}"#);
            let malformed = decoder::<Secret>(ALL)
                .object(text.as_bytes(), false)
                .unwrap_err();
            let shown = format!("{malformed} {malformed:?}");
            assert!(
                !shown.contains("hunter2") && !shown.contains("12345"),
                "{shown}"
            );
        }
    }

    #[test]
    fn i8_a_panic_while_an_object_is_read_is_a_misfit_of_that_object() {
        #[derive(Clone, Debug)]
        struct Fused;

        impl<'de> Deserialize<'de> for Fused {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                assert_ne!(text, "hunter2");
                Ok(Self)
            }
        }

        let kind = ApiResource::erase::<ConfigMap>(&());
        let decoder = Decoder::<kube_core::Object<Fused, ()>>::new(&kind, ALL);
        let object = |spec| format!(r#"{{"metadata":{{"name":"a"}},"spec":"{spec}"}}"#);
        assert!(decoder.object(object("calm").as_bytes(), false).is_ok());
        let malformed = decoder
            .object(object("hunter2").as_bytes(), false)
            .unwrap_err();
        assert_eq!(malformed.key, Some(ObjectKey::cluster("a")));
        assert_eq!(malformed.problem, "the code that reads it panics");
    }

    #[test]
    fn another_kind_is_refused_by_name() {
        let cases = [
            (
                r#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"s"}}"#,
                "kind",
                "ConfigMap",
            ),
            (
                r#"{"kind":"ConfigMap","apiVersion":"example.dev/v1","metadata":{"name":"s"}}"#,
                "apiVersion",
                "v1",
            ),
            // What does not fit before the kind is told says nothing: it need not fit.
            (
                r#"{"data":7,"metadata":{"name":"s"},"kind":"Secret"}"#,
                "kind",
                "ConfigMap",
            ),
        ];
        for (text, path, wanted) in cases {
            let decoder = decoder::<ConfigMap>(ALL).keep_raw(true);
            let malformed = decoder.object(text.as_bytes(), false).unwrap_err();
            assert_eq!(malformed.path, path, "{text}");
            assert_eq!(
                malformed.problem,
                format!("object of another kind: {path} is not {wanted}")
            );
            assert!(malformed.foreign && malformed.raw.is_none(), "{text}");
        }
        let own = br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"s"},"data":7}"#;
        let malformed = decoder::<ConfigMap>(ALL).object(own, false).unwrap_err();
        assert!(!malformed.foreign);
        // Another version of the same kind is the same object, in words that are not understood.
        let skewed = br#"{"kind":"ConfigMap","apiVersion":"v2","metadata":{"name":"s"}}"#;
        let malformed = decoder::<ConfigMap>(ALL).object(skewed, false).unwrap_err();
        assert_eq!((malformed.foreign, &*malformed.path), (false, "apiVersion"));
    }

    #[test]
    fn text_that_is_no_json_is_refused() {
        for text in ["", "{", "[]", "1", "{}{}", "\u{0}", r#"{"metadata":}"#] {
            let malformed = decoder::<ConfigMap>(ALL)
                .object(text.as_bytes(), false)
                .unwrap_err();
            assert!(
                malformed.key.is_none() && !malformed.problem.is_empty(),
                "{text:?}"
            );
        }
    }

    const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","unknown":{"a":[1,[2],{"b":[]}],"c":"\u00e9["},
        "metadata":{"name":"p","namespace":"n","resourceVersion":"7","managedFields":[{"manager":"m",
        "fieldsV1":{"f:spec":{"k:{\"name\":\"x[\"}":[1,2]}}}],"ownerReferences":[{"apiVersion":"v1","kind":"K",
        "name":"o","uid":"u"}],"finalizers":["a","b","c"],"labels":{"a":"[,]","b":"{"}},
        "spec":{"containers":[{"name":"a","args":["x","y\n","\"]"],"ports":[{"containerPort":1}],
        "new":[[],[]],"env":[{"name":"e","value":"v"}]},{"name":"b","livenessProbe":{"httpGet":
        {"port":"http","httpHeaders":[{"name":"h","value":"1"}]}}}],"volumes":[{"name":"v","projected":
        {"sources":[{"secret":{"name":"s"}}]}}],"nodeSelector":null,"tolerations":[]},
        "status":{"conditions":[{"type":"Ready","status":"True","lastProbeTime":null}],"podIPs":[{"ip":"::1"}]}}"#;

    fn capacities(pod: &Pod) -> Vec<(usize, usize)> {
        let spec = pod.spec.as_ref().unwrap();
        let first = &spec.containers[0];
        let size = |len, capacity| (len, capacity);
        vec![
            size(spec.containers.len(), spec.containers.capacity()),
            first
                .args
                .as_ref()
                .map(|a| (a.len(), a.capacity()))
                .unwrap(),
            first
                .ports
                .as_ref()
                .map(|a| (a.len(), a.capacity()))
                .unwrap(),
            first.env.as_ref().map(|a| (a.len(), a.capacity())).unwrap(),
            spec.volumes
                .as_ref()
                .map(|a| (a.len(), a.capacity()))
                .unwrap(),
            pod.metadata
                .finalizers
                .as_ref()
                .map(|a| (a.len(), a.capacity()))
                .unwrap(),
        ]
    }

    #[test]
    fn vectors_are_as_large_as_they_must_be_whatever_was_passed_over_before() {
        let pod = decoder::<Pod>(ALL).object(POD.as_bytes(), false).unwrap();
        for (length, capacity) in capacities(&pod) {
            assert_eq!(length, capacity);
        }
        let mut whole: Pod = serde_json::from_str(POD).unwrap();
        whole.metadata.managed_fields = None;
        assert_eq!(pod, whole);
    }

    proptest! {
        #[test]
        fn a_text_reads_as_serde_json_alone_reads_it(
            edits in proptest::collection::vec((any::<prop::sample::Index>(), prop_oneof![
                4 => prop::sample::select(br#"{}[]":,\0enull "#.to_vec()),
                1 => any::<u8>(),
            ]), 0..4),
            cut_off in proptest::option::weighted(0.1, any::<prop::sample::Index>()),
        ) {
            let mut text = POD.as_bytes().to_vec();
            for (at, byte) in edits {
                let at = at.index(text.len());
                text[at] = byte;
            }
            if let Some(at) = cut_off {
                text.truncate(at.index(text.len()));
            }
            let alone = serde_json::from_slice::<Pod>(&text);
            match decoder::<Pod>(NONE).object(&text, false) {
                Ok(pod) => prop_assert_eq!(Some(pod), alone.ok()),
                Err(malformed) => prop_assert!(
                    alone.is_err() || malformed.problem.starts_with(WRONG_KIND),
                    "{}: {}", malformed.path, malformed.problem
                ),
            }
            // The same text as an untyped object, which takes what has no field of its own.
            let kind = ApiResource::erase::<Pod>(&());
            let untyped = Decoder::<DynamicObject>::new(&kind, NONE).object(&text, false);
            let alone = serde_json::from_slice::<DynamicObject>(&text);
            if let Ok(object) = untyped {
                prop_assert_eq!(object.data, alone.unwrap().data);
            }
        }
    }
}
