//! A deserializer around another that leaves out unwanted parts, checks the kind, and knows how
//! long arrays are before they are read.
//!
//! Generated types read an array into a vector that grows by doubling, from room for four. Their
//! elements take kilobytes (a container 2.1, a volume 3.2), so a third of a pod's memory would be
//! room for elements that never come. With the length known, vectors are as large as they must be.

use std::borrow::Cow;
use std::fmt;

use serde::de::value::{BorrowedStrDeserializer, StrDeserializer};
use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use kube_core::TypeMeta;
use serde_json::value::RawValue;

use super::Cut;
use super::outline::Arrays;
use crate::meta::LAST_APPLIED;

/// How a problem begins that is an object of another kind.
pub(super) const WRONG_KIND: &str = "object of another kind: ";

/// What a filter leaves out, and what it insists on.
#[derive(Debug)]
pub(super) struct Rules {
    /// What `apiVersion` and `kind` say if they are there.
    pub(super) said: TypeMeta,
    /// What the reader is told that they say, in any case.
    pub(super) told: TypeMeta,
    pub(super) cut: Cut,
}

/// Depth at which a value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Object,
    Metadata,
    Annotations,
    /// Where nothing is left out.
    Other,
}

#[derive(Clone, Copy)]
struct Context<'a> {
    level: Level,
    rules: &'a Rules,
    arrays: &'a Arrays,
}

impl<'a> Context<'a> {
    fn at(self, level: Level) -> Self {
        Self { level, ..self }
    }

    fn around<T>(self, inner: T) -> Filter<'a, T> {
        Filter {
            inner,
            context: self,
        }
    }
}

/// A deserializer, seed, visitor or access around another of its sort.
pub(super) struct Filter<'a, T> {
    inner: T,
    context: Context<'a>,
}

impl<'a, T> Filter<'a, T> {
    /// Around the deserializer of a whole object. `arrays` may be those of another text; then
    /// vectors have the wrong size, and nothing else is wrong.
    pub(super) fn new(inner: T, rules: &'a Rules, arrays: &'a Arrays) -> Self {
        let level = Level::Object;
        Context {
            level,
            rules,
            arrays,
        }
        .around(inner)
    }
}

/// What to do with the value of a key.
#[derive(Clone, Copy)]
enum Entry {
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

impl Expect {
    /// The field, and what stands in it.
    fn of(self, types: &TypeMeta) -> (&'static str, &str) {
        match self {
            Self::ApiVersion => ("apiVersion", &types.api_version),
            Self::Kind => ("kind", &types.kind),
        }
    }
}

impl Expect {
    /// What of the field's value tells kinds apart, whatever the version.
    fn group_or_kind(self, value: &str) -> &str {
        match self {
            Self::ApiVersion => value.rsplit_once('/').map_or("", |(group, _)| group),
            Self::Kind => value,
        }
    }
}

impl Rules {
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
            _ => Entry::Descend(Level::Other),
        }
    }

    fn wanted(&self, expect: Expect) -> (&'static str, &str) {
        expect.of(&self.said)
    }

    fn told(&self, expect: Expect) -> (&'static str, &str) {
        expect.of(&self.told)
    }

    fn check<E: serde::de::Error>(&self, expect: Expect, found: &str) -> Result<(), E> {
        if found == self.wanted(expect).1 {
            return Ok(());
        }
        Err(E::custom(self.not(expect)))
    }

    fn not(&self, expect: Expect) -> String {
        let (field, wanted) = self.wanted(expect);
        format!("{WRONG_KIND}{field} is not {wanted}")
    }

    /// Where and how an object says that it is of another kind or API group than `own`, if it does.
    /// A whole object where metadata alone are wanted, and one in another version of the API, is
    /// refused, and is not of another kind.
    pub(super) fn foreign(
        &self,
        own: &TypeMeta,
        api_version: Option<&str>,
        kind: Option<&str>,
    ) -> Option<(&'static str, String)> {
        let said = [(Expect::ApiVersion, api_version), (Expect::Kind, kind)];
        said.into_iter().find_map(|(expect, found)| {
            let (field, wanted) = self.wanted(expect);
            let found = expect.group_or_kind(found?);
            let ours = [wanted, expect.of(own).1].map(|ours| expect.group_or_kind(ours));
            (!ours.contains(&found)).then(|| (field, self.not(expect)))
        })
    }
}

macro_rules! forward_scalars {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method(visitor)
        })*
    };
}

macro_rules! wrap_visitors {
    ($($method:ident($($name:ident: $type:ty),*))*) => {
        $(fn $method<V: Visitor<'de>>(self, $($name: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method($($name,)* self.context.around(visitor))
        })*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Filter<'_, D> {
    type Error = D::Error;

    forward_scalars! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
        deserialize_u128 deserialize_f32 deserialize_f64 deserialize_char deserialize_str
        deserialize_string deserialize_unit deserialize_identifier
    }

    wrap_visitors! {
        deserialize_any()
        deserialize_bytes()
        deserialize_byte_buf()
        deserialize_option()
        deserialize_seq()
        deserialize_tuple(length: usize)
        deserialize_tuple_struct(name: &'static str, length: usize)
        deserialize_map()
        deserialize_struct(name: &'static str, fields: &'static [&'static str])
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        // serde_json's way of handing out text as it is; the arrays in it pass by unseen.
        if name.starts_with("$serde_json::private::") {
            self.context.arrays.lose();
        }
        self.inner
            .deserialize_newtype_struct(name, self.context.around(visitor))
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        Skip(self.context.arrays).deserialize(self.inner)?;
        visitor.visit_unit()
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! forward_visits {
    ($($method:ident($type:ty))*) => {
        $(fn $method<E: serde::de::Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        })*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Filter<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    forward_visits! {
        visit_bool(bool) visit_i64(i64) visit_i128(i128) visit_u64(u64) visit_u128(u128)
        visit_f64(f64) visit_str(&str) visit_borrowed_str(&'de str) visit_string(String)
        visit_bytes(&[u8]) visit_borrowed_bytes(&'de [u8]) visit_byte_buf(Vec<u8>)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_some(self.context.around(inner))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.inner.visit_newtype_struct(self.context.around(inner))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<V::Value, A::Error> {
        let left = self.context.arrays.next_length();
        self.inner.visit_seq(FilteredSeq {
            seq: self.context.at(Level::Other).around(seq),
            left,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.inner.visit_map(FilteredMap {
            map: self.context.around(map),
            entry: Entry::Descend(Level::Other),
            api_version_seen: false,
            kind_seen: false,
        })
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<V::Value, A::Error> {
        self.inner
            .visit_enum(self.context.at(Level::Other).around(data))
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Filter<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(self.context.around(inner))
    }
}

impl<'a, 'de, A: EnumAccess<'de>> EnumAccess<'de> for Filter<'a, A> {
    type Error = A::Error;
    type Variant = Filter<'a, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.inner.variant_seed(seed)?;
        Ok((value, self.context.around(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Filter<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.newtype_variant_seed(self.context.around(seed))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner
            .tuple_variant(length, self.context.around(visitor))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner
            .struct_variant(fields, self.context.around(visitor))
    }
}

struct FilteredSeq<'a, A> {
    seq: Filter<'a, A>,
    /// Elements that are still to come, where that is known.
    left: Option<usize>,
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for FilteredSeq<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.left = self.left.map(|left| left.saturating_sub(1));
        let Filter { inner, context } = &mut self.seq;
        inner.next_element_seed(context.around(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.left
    }
}

struct FilteredMap<'a, A> {
    map: Filter<'a, A>,
    entry: Entry,
    // Which parts of the identity stood in the text, or were given.
    api_version_seen: bool,
    kind_seen: bool,
}

impl<A> FilteredMap<'_, A> {
    fn seen(&mut self, expect: Expect) -> &mut bool {
        match expect {
            Expect::ApiVersion => &mut self.api_version_seen,
            Expect::Kind => &mut self.kind_seen,
        }
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for FilteredMap<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let context = self.map.context;
        if context.level == Level::Other {
            return self.map.inner.next_key_seed(seed);
        }
        while let Some(Text(key)) = self.map.inner.next_key()? {
            self.entry = context.rules.entry(context.level, &key);
            match self.entry {
                Entry::Skip => {
                    self.map.inner.next_value_seed(Skip(context.arrays))?;
                    continue;
                }
                Entry::Identity(expect) => *self.seen(expect) = true,
                Entry::Descend(_) | Entry::Given(_) => {}
            }
            return Text(key).read(seed).map(Some);
        }
        if context.level != Level::Object {
            return Ok(None);
        }
        for expect in [Expect::ApiVersion, Expect::Kind] {
            if !std::mem::replace(self.seen(expect), true) {
                self.entry = Entry::Given(expect);
                let name = StrDeserializer::new(context.rules.told(expect).0);
                return seed.deserialize(name).map(Some);
            }
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let Filter { inner, context } = &mut self.map;
        let rules = context.rules;
        match self.entry {
            Entry::Descend(level) => inner.next_value_seed(context.at(level).around(seed)),
            Entry::Identity(expect) => inner.next_value_seed(Identity {
                seed,
                expect,
                rules,
            }),
            Entry::Given(expect) => seed.deserialize(StrDeserializer::new(rules.told(expect).1)),
            Entry::Skip => inner.next_value_seed(seed),
        }
    }

    fn size_hint(&self) -> Option<usize> {
        self.map.inner.size_hint()
    }
}

/// Passes over a value, and over its arrays in the outline.
struct Skip<'a>(&'a Arrays);

impl<'de> DeserializeSeed<'de> for Skip<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let Self(arrays) = self;
        if arrays.is_spent() {
            return IgnoredAny::deserialize(deserializer).map(|IgnoredAny| ());
        }
        let value = <&RawValue>::deserialize(deserializer)?;
        arrays.pass_over(value.get().as_bytes());
        Ok(())
    }
}

/// Reads a text that must say what the rules expect, and tells what they want told.
struct Identity<'a, S> {
    seed: S,
    expect: Expect,
    rules: &'a Rules,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Identity<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let found = Text::deserialize(deserializer)?;
        self.rules.check(self.expect, &found.0)?;
        let told = self.rules.told(self.expect).1;
        self.seed.deserialize(StrDeserializer::new(told))
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
