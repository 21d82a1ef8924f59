//! From JSON text to an object, leaving out unwanted parts in the same pass.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kube_core::Resource;
use serde::de::value::{BorrowedStrDeserializer, StrDeserializer};
use serde::de::{
    Deserialize, DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor,
};

use serde_json::value::RawValue;

use super::{Cut, Malformed, RawObject};
use crate::ObjectKey;
use crate::meta::LAST_APPLIED;

/// How objects of one kind are read.
#[derive(Debug)]
pub(crate) struct Decoder<K> {
    /// Kind for messages.
    kind: String,
    /// What `apiVersion` and `kind` say if they are there.
    api_version: String,
    object_kind: String,
    cut: Cut,
    /// Objects that cannot be read keep their text.
    keep_raw: bool,
    object: PhantomData<fn() -> K>,
}

impl<K: Resource + DeserializeOwned> Decoder<K> {
    pub(crate) fn new(dynamic: &K::DynamicType, cut: Cut) -> Self {
        let kind = K::kind(dynamic).into_owned();
        let (api_version, object_kind) = if K::metadata_api() {
            (
                "meta.k8s.io/v1".to_owned(),
                "PartialObjectMetadata".to_owned(),
            )
        } else {
            (K::api_version(dynamic).into_owned(), kind.clone())
        };
        Self {
            kind,
            api_version,
            object_kind,
            cut,
            keep_raw: false,
            object: PhantomData,
        }
    }

    pub(crate) fn keep_raw(self, keep_raw: bool) -> Self {
        Self { keep_raw, ..self }
    }

    pub(crate) fn kind(&self) -> &str {
        &self.kind
    }

    /// Reads one object; `deleted` is what a failure shall say of it.
    pub(crate) fn object(&self, text: &[u8], deleted: bool) -> Result<K, Box<Malformed>> {
        self.try_object(text)
            .map_err(|Unreadable| Box::new(self.explain(text, deleted)))
    }

    /// As [`Decoder::object`], without saying what is wrong.
    pub(super) fn try_object(&self, text: &[u8]) -> Result<K, Unreadable> {
        // The code that reads may be a user's; a panic costs its object alone.
        let read = catch_unwind(AssertUnwindSafe(|| {
            let mut json = serde_json::Deserializer::from_slice(text);
            let object = K::deserialize(Filtered {
                inner: &mut json,
                level: Level::Object,
                to: self,
            })?;
            json.end().map(|()| object)
        }));
        match read {
            Ok(Ok(object)) => Ok(object),
            _ => Err(Unreadable),
        }
    }

    /// Reads again what failed, this time keeping track of the path.
    fn explain(&self, text: &[u8], deleted: bool) -> Malformed {
        let mut json = serde_json::Deserializer::from_slice(text);
        let mut track = serde_path_to_error::Track::new();
        let read = catch_unwind(AssertUnwindSafe(|| {
            let inner = serde_path_to_error::Deserializer::new(&mut json, &mut track);
            K::deserialize(Filtered {
                inner,
                level: Level::Object,
                to: self,
            })
        }));
        let (path, problem) = match read {
            Ok(Ok(_)) => (String::new(), "text after the object".to_owned()),
            Ok(Err(error)) => (track.path().to_string(), without_values(&error)),
            // What the panic said may be a value of the object.
            Err(_) => (String::new(), "the code that reads it panics".to_owned()),
        };
        let named = serde_json::from_slice::<Named<'_>>(text).unwrap_or_default();
        let namespace = named.text("namespace");
        Malformed {
            kind: self.kind.clone(),
            key: named
                .text("name")
                .filter(|name| !name.is_empty())
                .map(|name| ObjectKey::from_parts(namespace.as_deref(), &name)),
            uid: named.text("uid"),
            resource_version: named.text("resourceVersion"),
            path,
            problem,
            deleted,
            raw: self
                .keep_raw
                .then(|| RawObject::new(String::from_utf8_lossy(text))),
        }
    }
}

/// A text that is no object of the kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unreadable;

/// What can be read of an object whatever its kind, each part by itself: a cache that cannot tell
/// whose state is unreadable would take that object for gone.
#[derive(Default, serde::Deserialize)]
struct Named<'a> {
    #[serde(default, borrow)]
    metadata: HashMap<Cow<'a, str>, &'a RawValue>,
}

impl Named<'_> {
    fn text(&self, field: &str) -> Option<String> {
        serde_json::from_str(self.metadata.get(field)?.get()).ok()
    }
}

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

const WRONG_KIND: &str = "object of another kind: ";

/// Depth at which a map stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Object,
    Metadata,
    Annotations,
}

/// A deserializer (or seed, or visitor, or map) that watches the keys of one level.
struct Filtered<'a, T, K> {
    inner: T,
    level: Level,
    to: &'a Decoder<K>,
}

/// What to do with the value of a key.
enum Entry {
    Pass,
    Skip,
    Descend(Level),
    /// `apiVersion` or `kind`, and what it must say.
    Identity(Expect),
    /// The same where the text leaves it out, as items of lists do.
    Given(Expect),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Expect {
    ApiVersion,
    Kind,
}

impl<K> Decoder<K> {
    fn entry(&self, level: Level, key: &str) -> Entry {
        match (level, key) {
            (Level::Object, "metadata") => Entry::Descend(Level::Metadata),
            (Level::Object, "apiVersion") => Entry::Identity(Expect::ApiVersion),
            (Level::Object, "kind") => Entry::Identity(Expect::Kind),
            (Level::Metadata, "managedFields") if self.cut.managed_fields => Entry::Skip,
            (Level::Metadata, "annotations") if self.cut.last_applied => {
                Entry::Descend(Level::Annotations)
            }
            (Level::Annotations, LAST_APPLIED) => Entry::Skip,
            _ => Entry::Pass,
        }
    }

    fn wanted(&self, expect: Expect) -> (&'static str, &str) {
        match expect {
            Expect::ApiVersion => ("apiVersion", &self.api_version),
            Expect::Kind => ("kind", &self.object_kind),
        }
    }

    fn check<E: serde::de::Error>(&self, expect: Expect, found: &str) -> Result<(), E> {
        let (field, wanted) = self.wanted(expect);
        if found == wanted {
            return Ok(());
        }
        Err(E::custom(format_args!(
            "{WRONG_KIND}{field} is not {wanted}"
        )))
    }
}

/// Forwards the ways of reading a struct through [`Filtered`], and refuses nothing else.
impl<'de, D: Deserializer<'de>, K> Deserializer<'de> for Filtered<'_, D, K> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let Self { inner, level, to } = self;
        inner.deserialize_any(Filtered {
            inner: visitor,
            level,
            to,
        })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let Self { inner, level, to } = self;
        inner.deserialize_map(Filtered {
            inner: visitor,
            level,
            to,
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let Self { inner, level, to } = self;
        inner.deserialize_struct(
            name,
            fields,
            Filtered {
                inner: visitor,
                level,
                to,
            },
        )
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        let Self { inner, level, to } = self;
        inner.deserialize_option(Filtered {
            inner: visitor,
            level,
            to,
        })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let Self { inner, level, to } = self;
        inner.deserialize_newtype_struct(
            name,
            Filtered {
                inner: visitor,
                level,
                to,
            },
        )
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_ignored_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf
        unit unit_struct seq tuple tuple_struct enum identifier
    }
}

macro_rules! forward_visits {
    ($($method:ident($type:ty))*) => {
        $(fn $method<E: serde::de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>, K> Visitor<'de> for Filtered<'_, V, K> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    forward_visits! {
        visit_bool(bool) visit_i64(i64) visit_u64(u64) visit_f64(f64)
        visit_str(&str) visit_borrowed_str(&'de str) visit_string(String)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let Self {
            inner: visitor,
            level,
            to,
        } = self;
        visitor.visit_some(Filtered { inner, level, to })
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        let Self {
            inner: visitor,
            level,
            to,
        } = self;
        visitor.visit_newtype_struct(Filtered { inner, level, to })
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, seq: A) -> Result<V::Value, A::Error> {
        self.inner.visit_seq(seq)
    }

    fn visit_map<A: MapAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        let Self {
            inner: visitor,
            level,
            to,
        } = self;
        let map = Filtered { inner, level, to };
        visitor.visit_map(FilteredMap {
            map,
            entry: Entry::Pass,
            seen: Vec::new(),
        })
    }
}

struct FilteredMap<'a, A, K> {
    map: Filtered<'a, A, K>,
    entry: Entry,
    /// Which parts of the identity stood in the text, or were given.
    seen: Vec<Expect>,
}

impl<'de, A: MapAccess<'de>, K> MapAccess<'de> for FilteredMap<'_, A, K> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let Filtered { inner, level, to } = &mut self.map;
        loop {
            let Some(Text(key)) = inner.next_key()? else {
                break;
            };
            self.entry = to.entry(*level, &key);
            match self.entry {
                Entry::Skip => {
                    let IgnoredAny = inner.next_value()?;
                    continue;
                }
                Entry::Identity(expect) => self.seen.push(expect),
                _ => {}
            }
            return Text(key).read(seed).map(Some);
        }
        let missing = [Expect::ApiVersion, Expect::Kind]
            .into_iter()
            .find(|expect| *level == Level::Object && !self.seen.contains(expect));
        let Some(expect) = missing else {
            return Ok(None);
        };
        self.seen.push(expect);
        self.entry = Entry::Given(expect);
        seed.deserialize(StrDeserializer::new(to.wanted(expect).0))
            .map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let Filtered { inner, to, .. } = &mut self.map;
        match self.entry {
            Entry::Descend(level) => inner.next_value_seed(Filtered {
                inner: seed,
                level,
                to,
            }),
            Entry::Identity(expect) => inner.next_value_seed(Identity { seed, expect, to }),
            Entry::Given(expect) => seed.deserialize(StrDeserializer::new(to.wanted(expect).1)),
            Entry::Pass | Entry::Skip => inner.next_value_seed(seed),
        }
    }
}

impl<'de, S: DeserializeSeed<'de>, K> DeserializeSeed<'de> for Filtered<'_, S, K> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        let Self {
            inner: seed,
            level,
            to,
        } = self;
        seed.deserialize(Filtered { inner, level, to })
    }
}

/// Reads a text that must say what the decoder expects.
struct Identity<'a, S, K> {
    seed: S,
    expect: Expect,
    to: &'a Decoder<K>,
}

impl<'de, S: DeserializeSeed<'de>, K> DeserializeSeed<'de> for Identity<'_, S, K> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let found = Text::deserialize(deserializer)?;
        self.to.check(self.expect, &found.0)?;
        found.read(self.seed)
    }
}

/// A text, borrowed from the input where it has no escapes.
struct Text<'de>(Cow<'de, str>);

impl<'de> Text<'de> {
    fn read<S: DeserializeSeed<'de>, E: serde::de::Error>(self, seed: S) -> Result<S::Value, E> {
        match self.0 {
            Cow::Borrowed(text) => seed.deserialize(BorrowedStrDeserializer::new(text)),
            Cow::Owned(text) => seed.deserialize(StrDeserializer::new(&text)),
        }
    }
}

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_string<E>(self, text: String) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text)))
            }
        }

        deserializer.deserialize_str(TextVisitor)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
    use kube_core::DynamicObject;
    use kube_core::discovery::ApiResource;

    use super::*;

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
                let Text(text) = Text::deserialize(deserializer)?;
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
        let text = br#"{"kind":"Secret","apiVersion":"v1","metadata":{"name":"s"}}"#;
        let malformed = decoder::<ConfigMap>(ALL).object(text, false).unwrap_err();
        assert_eq!(malformed.path, "kind");
        assert_eq!(
            malformed.problem,
            "object of another kind: kind is not ConfigMap"
        );
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
}
