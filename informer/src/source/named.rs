//! Whose text it is, read out of a text that is of no other use.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::ObjectKey;

/// What can be read of an object whatever its kind, each part by itself, up to where the text is
/// none or breaks off: a cache that cannot tell whose state is unreadable would take that object
/// for gone.
#[derive(Debug, Default)]
pub(super) struct Named {
    pub(super) api_version: Option<String>,
    pub(super) kind: Option<String>,
    name: Option<String>,
    namespace: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
}

impl Named {
    pub(super) fn of(text: &[u8]) -> Self {
        let mut named = Self::default();
        let mut json = serde_json::Deserializer::from_slice(text);
        let object = Within {
            metadata: false,
            named: &mut named,
        };
        // What came before a fault counts.
        drop(object.deserialize(&mut json));
        named
    }

    pub(super) fn key(&self) -> Option<ObjectKey> {
        let name = self.name.as_deref().filter(|name| !name.is_empty())?;
        Some(ObjectKey::from_parts(self.namespace.as_deref(), name))
    }
}

/// A reader of an object, or of its metadata.
struct Within<'n> {
    metadata: bool,
    named: &'n mut Named,
}

impl<'de> DeserializeSeed<'de> for Within<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Within<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if !self.metadata && key == "metadata" {
                map.next_value_seed(Within {
                    metadata: true,
                    named: &mut *self.named,
                })?;
                continue;
            }
            let field = match (self.metadata, &*key) {
                (false, "apiVersion") => &mut self.named.api_version,
                (false, "kind") => &mut self.named.kind,
                (true, "name") => &mut self.named.name,
                (true, "namespace") => &mut self.named.namespace,
                (true, "uid") => &mut self.named.uid,
                (true, "resourceVersion") => &mut self.named.resource_version,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            let value = map.next_value::<&RawValue>()?;
            *field = serde_json::from_str(value.get()).ok();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_before_the_end_of_a_text_is_read_wherever_it_breaks_off() {
        let text = r#"{"name":"no","kind":"Pod","metadata":{"name":"a","namespace":"n","uid":7,"labels":{"name":"no"},"resourceVersion":"3"},"data":{"uid":"no"}}"#;
        let mut read = Vec::new();
        for at in 0..=text.len() {
            let named = Named::of(&text.as_bytes()[..at]);
            assert_eq!(named.uid, None, "it is no text");
            let shown = (
                named.key().map(|key| key.to_string()),
                named.resource_version,
            );
            if read.last() != Some(&shown) {
                read.push(shown);
            }
        }
        let key = |key: &str| Some(key.to_owned());
        let want = [
            (None, None),
            (key("a"), None),
            (key("n/a"), None),
            (key("n/a"), Some("3".to_owned())),
        ];
        assert_eq!(read, want);
    }
}
