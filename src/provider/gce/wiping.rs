//! VMs in memory whose metadata, which holds user data and credentials, is wiped once they were used.

use std::fmt;
use std::ops::Deref;

use google_cloud_compute_v1::model;
use zeroize::Zeroize as _;

/// What has metadata of VMs in it.
pub trait HoldsMetadata: Default {
    /// Overwrites the values of all metadata; the keys stay.
    fn wipe(&mut self);
}

impl HoldsMetadata for model::Instance {
    fn wipe(&mut self) {
        let items = self
            .metadata
            .iter_mut()
            .flat_map(|metadata| &mut metadata.items);
        items
            .filter_map(|item| item.value.as_mut())
            .for_each(|value| value.zeroize());
    }
}

impl HoldsMetadata for model::InstanceAggregatedList {
    fn wipe(&mut self) {
        let scopes = self.items.values_mut();
        scopes
            .flat_map(|scope| &mut scope.instances)
            .for_each(HoldsMetadata::wipe);
    }
}

/// Wipes the metadata in it when it is dropped, and prints nothing of it.
#[derive(Clone)]
pub struct Wiping<T: HoldsMetadata>(T);

impl<T: HoldsMetadata> Wiping<T> {
    /// Takes it in; give it the only copy.
    #[must_use]
    pub fn new(inner: T) -> Self {
        Self(inner)
    }

    /// Hands it on, to whoever wipes it or cannot.
    #[must_use]
    pub fn into_inner(mut self) -> T {
        std::mem::take(&mut self.0)
    }
}

impl<T: HoldsMetadata> Deref for Wiping<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: HoldsMetadata> Drop for Wiping<T> {
    fn drop(&mut self) {
        self.0.wipe();
    }
}

impl<T: HoldsMetadata> fmt::Debug for Wiping<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[metadata redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm() -> model::Instance {
        let item = model::metadata::Items::new()
            .set_key("pxo-password")
            .set_value("planted");
        model::Instance::new()
            .set_name("px-u-1")
            .set_metadata(model::Metadata::new().set_items([item]))
    }

    fn shown<T: serde::Serialize>(inner: &T) -> String {
        serde_json::to_string(inner).expect("JSON")
    }

    #[test]
    fn metadata_of_a_vm_and_of_a_list_is_wiped_and_nothing_else_is() {
        let mut one = vm();
        assert!(shown(&one).contains("planted"));
        one.wipe();
        let left = shown(&one);
        assert!(!left.contains("planted"), "{left}");
        assert!(left.contains("px-u-1") && left.contains("pxo-password"));

        let scope = model::InstancesScopedList::new().set_instances([vm(), vm()]);
        let mut list =
            model::InstanceAggregatedList::new().set_items([("zones/z".to_owned(), scope)]);
        assert!(shown(&list).contains("planted"));
        list.wipe();
        assert!(!shown(&list).contains("planted"), "{}", shown(&list));
    }

    #[test]
    fn what_is_handed_on_is_whole_and_what_is_printed_is_not() {
        let held = Wiping::new(vm());
        assert_eq!(format!("{held:?}"), "[metadata redacted]");
        assert_eq!(held.into_inner(), vm());
    }
}
