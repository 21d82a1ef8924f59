//! A cache as far as own writes go: whose kind it shows, how far it has come, what it will show.

use informer::{Informer, ObjectKey};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::Resource;

use super::ObservedVersion;
use super::selector::selects;

/// A cache that own writes are compared with: an [`Informer`], or one of a test's own.
pub trait Cache: ObservedVersion {
    /// The kind with its group where it has one, as [`Informer::kind`] gives it.
    fn kind(&self) -> &str;

    /// UID of the object that is cached under `key`.
    fn uid(&self, key: &ObjectKey) -> Option<String>;

    /// Whether an object of this kind that was just written will be shown, or shown to be gone. What
    /// is not known counts as no, so that nobody waits in vain.
    fn will_show(&self, written: &ObjectMeta) -> bool;

    /// A number that all handles of one cache share and no other cache has while it lives, so that one
    /// tracked twice counts once; `None`, unless said otherwise, for a cache with one handle.
    fn identity(&self) -> Option<usize> {
        None
    }
}

impl<K: Resource + Send + Sync + 'static> Cache for Informer<K> {
    fn kind(&self) -> &str {
        Informer::kind(self)
    }

    fn uid(&self, key: &ObjectKey) -> Option<String> {
        let object = self.lister().get(key)?;
        Some(object.meta().uid.clone().unwrap_or_default())
    }

    fn will_show(&self, written: &ObjectMeta) -> bool {
        let scope = self.scope();
        if scope.namespace.is_some() && scope.namespace != written.namespace {
            return false;
        }
        let labels = match &scope.label_selector {
            None => Some(true),
            Some(selector) => selects(selector, written.labels.as_ref()),
        };
        let by_fields = scope.field_selector.is_none();
        if by_fields && labels == Some(true) {
            return true;
        }
        // Of an object that it shows, it will tell that it has left as well.
        ObjectKey::from_meta(written).is_some_and(|key| self.lister().get(&key).is_some())
    }

    fn identity(&self) -> Option<usize> {
        // All handles lend the scope of the one informer behind them.
        Some(std::ptr::from_ref(self.scope()).addr())
    }
}

#[cfg(test)]
mod tests {
    use informer::InformerOptions;
    use informer::source::scripted::Scripted;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn k8_a_cache_shows_what_its_namespace_and_selectors_take_in() {
        let meta = |namespace: &str, app: &str| ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some("a".to_owned()),
            labels: Some([("app".to_owned(), app.to_owned())].into()),
            ..ObjectMeta::default()
        };
        let text = |text: &str| Some(text.to_owned());
        for (namespace, labels, fields, expected) in [
            (None, None, None, true),
            (text("ns"), None, None, true),
            (text("other"), None, None, false),
            (None, text("app=web"), None, true),
            (None, text("app=db"), None, false),
            (None, text("app in (web)"), None, true),
            (None, text("app notin (web)"), None, false),
            (None, text("app>1"), None, false),
            (None, None, text("metadata.name=a"), false),
            (None, text("app=web"), text("metadata.name=a"), false),
        ] {
            let options = InformerOptions {
                namespace,
                label_selector: labels,
                field_selector: fields,
                ..InformerOptions::default()
            };
            let cache: Informer<ConfigMap> =
                Informer::from_source("ConfigMap", Scripted::new(), options).unwrap();
            let scope = cache.scope().clone();
            assert_eq!(cache.will_show(&meta("ns", "web")), expected, "{scope:?}");
        }
    }

    #[test]
    fn handles_of_one_informer_are_one_cache() {
        let informer = || -> Informer<ConfigMap> {
            let options = InformerOptions::default();
            Informer::from_source("ConfigMap", Scripted::new(), options).unwrap()
        };
        let (one, other) = (informer(), informer());
        assert_eq!(one.identity(), one.clone().identity());
        assert_ne!(one.identity(), other.identity());
    }
}
