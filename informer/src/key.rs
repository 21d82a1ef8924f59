//! Keys of objects in a cache.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use kube_core::ObjectMeta;
use kube_core::Resource;

/// The name of an object inside its kind: `namespace/name`, or `name`.
///
/// Both parts are reference counted, so a clone copies no text. Keys order by namespace, then by
/// name; keys without a namespace come first. Mirrors client-go's `cache.ObjectName`.
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
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    namespace: Option<Arc<str>>,
    name: Arc<str>,
}

impl ObjectKey {
    /// Key of an object in a namespace.
    pub fn namespaced(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: Some(namespace.into()),
            name: name.into(),
        }
    }

    /// Key of an object of cluster scope.
    pub fn cluster(name: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: None,
            name: name.into(),
        }
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
        Self {
            namespace: namespace.filter(|ns| !ns.is_empty()).map(Arc::from),
            name: Arc::from(name),
        }
    }

    /// The namespace; `None` for an object of cluster scope.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The name inside the namespace or the cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn shared_namespace(&self) -> Option<&Arc<str>> {
        self.namespace.as_ref()
    }

    /// The same key with `namespace`'s allocation in place of its own.
    pub(crate) fn with_shared_namespace(mut self, namespace: Arc<str>) -> Self {
        debug_assert_eq!(self.namespace.as_deref(), Some(&*namespace));
        self.namespace = Some(namespace);
        self
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
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
    use super::*;

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
