//! Keys of objects in a cache.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use kube_core::ObjectMeta;
use kube_core::Resource;

/// Bytes of text that stand in a key itself; longer ones are shared.
const INLINE: usize = 45;

/// The name of an object inside its kind: `namespace/name`, or `name`.
///
/// Up to 45 bytes of namespace and name together stand in the key itself, so that making, copying
/// and comparing it goes to no other place in memory; a longer text is reference counted. Keys
/// order by namespace, then by name; keys without a namespace come first. Mirrors client-go's
/// `cache.ObjectName`.
///
/// ```
/// use informer::ObjectKey;
///
/// let key: ObjectKey = "team-a/web".parse()?;
/// assert_eq!(key, ObjectKey::namespaced("team-a", "web"));
/// assert_eq!(key.to_string(), "team-a/web");
/// assert!("a/b/c".parse::<ObjectKey>().is_err());
/// # Ok::<(), informer::ParseKeyError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ObjectKey(Text);

/// Namespace and name without anything between them; `split` is where the name begins.
///
/// A text has one form only, by its length, and the bytes behind an inline one are zero: so equal
/// keys are equal field by field.
#[derive(Clone, PartialEq, Eq)]
enum Text {
    Inline {
        len: u8,
        split: u8,
        bytes: [u8; INLINE],
    },
    Shared {
        split: usize,
        text: Arc<str>,
    },
}

impl ObjectKey {
    /// Key of an object in a namespace; an empty namespace counts as none.
    pub fn namespaced(namespace: impl AsRef<str>, name: impl AsRef<str>) -> Self {
        Self::from_parts(Some(namespace.as_ref()), name.as_ref())
    }

    /// Key of an object of cluster scope.
    pub fn cluster(name: impl AsRef<str>) -> Self {
        Self::from_parts(None, name.as_ref())
    }

    /// Key of `object`, or `None` while it has no name (`generateName` before creation).
    ///
    /// An empty namespace counts as none.
    pub fn try_of<K: Resource>(object: &K) -> Option<Self> {
        Self::from_meta(object.meta())
    }

    /// Key of `object`; an object without a name gets the empty name.
    ///
    /// Every object out of a cache or an event has a name, so for those the key is exact. For
    /// objects of other origin prefer [`ObjectKey::try_of`].
    pub fn of<K: Resource>(object: &K) -> Self {
        Self::try_of(object).unwrap_or_else(|| {
            let meta = object.meta();
            Self::from_parts(meta.namespace.as_deref(), "")
        })
    }

    /// Key of the object that `meta` describes, or `None` while it has no name.
    pub fn from_meta(meta: &ObjectMeta) -> Option<Self> {
        let name = meta.name.as_deref().filter(|name| !name.is_empty())?;
        Some(Self::from_parts(meta.namespace.as_deref(), name))
    }

    /// Key from borrowed parts; an empty namespace counts as none.
    pub fn from_parts(namespace: Option<&str>, name: &str) -> Self {
        let namespace = namespace.unwrap_or_default();
        let split = namespace.len();
        let whole = split + name.len();
        let (Some(mut bytes), Ok(len), Ok(short_split)) = (
            (whole <= INLINE).then_some([0; INLINE]),
            u8::try_from(whole),
            u8::try_from(split),
        ) else {
            let text = [namespace, name].concat().into();
            return Self(Text::Shared { split, text });
        };
        bytes[..split].copy_from_slice(namespace.as_bytes());
        bytes[split..whole].copy_from_slice(name.as_bytes());
        Self(Text::Inline {
            len,
            split: short_split,
            bytes,
        })
    }

    /// The namespace; `None` for an object of cluster scope.
    pub fn namespace(&self) -> Option<&str> {
        let (namespace, _) = self.parts();
        (!namespace.is_empty()).then(|| text(namespace))
    }

    /// The name inside the namespace or the cluster.
    pub fn name(&self) -> &str {
        text(self.parts().1)
    }

    fn parts(&self) -> (&[u8], &[u8]) {
        match &self.0 {
            Text::Inline { len, split, bytes } => {
                bytes[..usize::from(*len)].split_at(usize::from(*split))
            }
            Text::Shared { split, text } => text.as_bytes().split_at(*split),
        }
    }
}

/// A part of a key, which was a text when the key was made.
fn text(part: &[u8]) -> &str {
    std::str::from_utf8(part).expect("keys are made of whole texts")
}

impl PartialOrd for ObjectKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectKey {
    fn cmp(&self, other: &Self) -> Ordering {
        // Texts order as their bytes do, and the empty namespace of the cluster before all others.
        self.parts().cmp(&other.parts())
    }
}

impl Hash for ObjectKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match &self.0 {
            Text::Inline { len, split, bytes } => {
                state.write(&bytes[..usize::from(*len)]);
                state.write_usize(usize::from(*split));
            }
            Text::Shared { split, text } => {
                state.write(text.as_bytes());
                state.write_usize(*split);
            }
        }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace() {
            Some(namespace) => write!(f, "{namespace}/{}", self.name()),
            None => f.write_str(self.name()),
        }
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectKey({self})")
    }
}

/// A text that is no key: it has more than one slash or an empty part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an object key: write `namespace/name`, or `name` for cluster scope")]
pub struct ParseKeyError {
    text: String,
}

impl FromStr for ObjectKey {
    type Err = ParseKeyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || ParseKeyError {
            text: text.to_owned(),
        };
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        let complete = !name.is_empty() && !name.contains('/') && namespace != Some("");
        if complete {
            Ok(Self::from_parts(namespace, name))
        } else {
            Err(refused())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher as _;

    use foldhash::fast::FixedState;
    use proptest::prelude::*;

    use super::*;

    /// Parts of all lengths around the one up to which a key holds its text.
    fn parts() -> impl Strategy<Value = (Option<String>, String)> {
        (prop::option::of("[a-é]{1,60}"), "[a-é]{0,60}")
    }

    proptest! {
        #[test]
        fn keys_compare_and_hash_as_their_parts_do(left in parts(), right in parts()) {
            let key = |(namespace, name): &(Option<String>, String)| {
                ObjectKey::from_parts(namespace.as_deref(), name)
            };
            let (one, other) = (key(&left), key(&right));
            prop_assert_eq!(one.namespace(), left.0.as_deref());
            prop_assert_eq!(one.name(), &left.1);
            prop_assert_eq!(one.cmp(&other), left.cmp(&right));
            prop_assert_eq!(one == other, left == right);
            let hasher = FixedState::default();
            prop_assert_eq!(hasher.hash_one(&one), hasher.hash_one(key(&left)));
        }
    }

    #[test]
    fn where_the_namespace_ends_makes_a_difference() {
        for pad in ["", "0123456789012345678901234567890123456789012345"] {
            let split = |at: usize| {
                let text = format!("{pad}abc");
                ObjectKey::from_parts(Some(&text[..at]), &text[at..])
            };
            assert_ne!(split(1), split(2));
            let hasher = FixedState::default();
            assert_ne!(hasher.hash_one(split(1)), hasher.hash_one(split(2)));
        }
    }

    #[test]
    fn parse_takes_one_slash_at_most_and_no_empty_part() {
        for (text, want) in [
            ("a/b", Some(ObjectKey::namespaced("a", "b"))),
            ("b", Some(ObjectKey::cluster("b"))),
            ("", None),
            ("/", None),
            ("/b", None),
            ("a/", None),
            ("a/b/c", None),
            ("a//c", None),
        ] {
            assert_eq!(text.parse::<ObjectKey>().ok(), want, "{text:?}");
        }
    }

    #[test]
    fn display_and_parse_are_inverse() {
        for key in [ObjectKey::namespaced("ns", "n"), ObjectKey::cluster("n")] {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
    }

    #[test]
    fn metadata_without_a_name_has_no_key() {
        assert_eq!(ObjectKey::from_meta(&ObjectMeta::default()), None);
        let meta = ObjectMeta {
            name: Some("n".into()),
            namespace: Some(String::new()),
            ..ObjectMeta::default()
        };
        assert_eq!(ObjectKey::from_meta(&meta), Some(ObjectKey::cluster("n")));
    }
}
