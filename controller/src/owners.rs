//! Owner references: which object an object belongs to, and who controls it.
//!
//! Mirrors controller-runtime's `controllerutil`: two references mean the same owner if group,
//! kind and name agree, whatever the version, so a reference follows an API upgrade. Pure
//! functions on metadata; the caller writes the object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube_core::Resource;
use kube_core::metadata::ObjectMeta;

/// Why an owner reference was not set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another object controls the child already; there can be only one.
    #[error("{child} is already controlled by {} {}", owner.kind, owner.name)]
    AlreadyOwned {
        /// Name of the child.
        child: Box<str>,
        /// The reference of its present controller.
        owner: Box<OwnerReference>,
    },
    /// The owner lives in a namespace and the child is in another one, or in none.
    #[error(
        "{child} in {} can't belong to an owner in namespace {owner_namespace}: an owner is \
         cluster-scoped or in the same namespace",
        child_namespace.as_deref().map_or("no namespace".to_owned(), |ns| format!("namespace {ns}"))
    )]
    CrossNamespace {
        /// Name of the child.
        child: Box<str>,
        /// Namespace of the child, none if cluster-scoped.
        child_namespace: Option<Box<str>>,
        /// Namespace of the owner.
        owner_namespace: Box<str>,
    },
    /// The owner has not been created on the API server.
    #[error("owner has no metadata.{field}: create it on the API server first")]
    IncompleteOwner {
        /// The missing field.
        field: &'static str,
    },
}

/// Reference by which `owner` controls its child, with `blockOwnerDeletion`.
///
/// It knows nothing of the child: that must lie in the owner's namespace, or anywhere if the owner lies in
/// none. The garbage collector looks for the owner there, so it deletes a child elsewhere at once;
/// [`set_controller`] refuses it.
///
/// # Errors
/// [`Error::IncompleteOwner`] if the owner has no name or UID.
pub fn controller_reference<O>(owner: &O) -> Result<OwnerReference, Error>
where
    O: Resource<DynamicType = ()>,
{
    let reference = owner_reference(owner)?;
    Ok(OwnerReference {
        controller: Some(true),
        block_owner_deletion: Some(true),
        ..reference
    })
}

/// Reference to `owner` that does not control: the child goes when its last owner goes.
///
/// # Errors
/// [`Error::IncompleteOwner`] if the owner has no name or UID.
pub fn owner_reference<O>(owner: &O) -> Result<OwnerReference, Error>
where
    O: Resource<DynamicType = ()>,
{
    let present = |field, value: &Option<String>| match value {
        Some(value) if !value.is_empty() => Ok(value.clone()),
        _ => Err(Error::IncompleteOwner { field }),
    };
    Ok(OwnerReference {
        api_version: O::api_version(&()).into_owned(),
        kind: O::kind(&()).into_owned(),
        name: present("name", &owner.meta().name)?,
        uid: present("uid", &owner.meta().uid)?,
        controller: None,
        block_owner_deletion: None,
    })
}

/// Makes `owner` the controller of `child`; reports whether that changed `child`.
///
/// A reference to the same group, kind and name is replaced (UID and version included).
///
/// # Errors
/// [`Error::AlreadyOwned`] if another object controls `child`, [`Error::CrossNamespace`],
/// [`Error::IncompleteOwner`]. `child` is unchanged then.
pub fn set_controller<O, C>(child: &mut C, owner: &O) -> Result<bool, Error>
where
    O: Resource<DynamicType = ()>,
    C: Resource,
{
    let reference = controller_reference(owner)?;
    if let Some(present) = controller_of(child)
        && !same_owner(present, &reference)
    {
        let owner = Box::new(present.clone());
        return Err(Error::AlreadyOwned {
            child: name_of(child.meta()),
            owner,
        });
    }
    upsert(child.meta_mut(), owner.meta(), reference)
}

/// Adds `owner` as one owner among others; reports whether that changed `child`.
///
/// # Errors
/// [`Error::CrossNamespace`], [`Error::IncompleteOwner`]. `child` is unchanged then.
pub fn add_owner<O, C>(child: &mut C, owner: &O) -> Result<bool, Error>
where
    O: Resource<DynamicType = ()>,
    C: Resource,
{
    let reference = owner_reference(owner)?;
    upsert(child.meta_mut(), owner.meta(), reference)
}

/// Takes the control of `owner` away from `child`; reports whether it had it.
///
/// A reference by which `owner` does not control is left alone, as is another controller.
pub fn remove_controller<O, C>(child: &mut C, owner: &O) -> bool
where
    O: Resource<DynamicType = ()>,
    C: Resource,
{
    let controls = controller_of(child).is_some_and(|reference| refers_to(reference, owner));
    controls && remove_owner(child, owner)
}

/// Reports whether `child` has a controller, whoever it is.
pub fn has_controller(child: &impl Resource) -> bool {
    controller_of(child).is_some()
}

/// Removes each reference to `owner` from `child`; reports whether there was one.
pub fn remove_owner<O, C>(child: &mut C, owner: &O) -> bool
where
    O: Resource<DynamicType = ()>,
    C: Resource,
{
    let references = &mut child.meta_mut().owner_references;
    let Some(list) = references else { return false };
    let before = list.len();
    list.retain(|reference| !refers_to(reference, owner));
    let changed = list.len() != before;
    if list.is_empty() {
        *references = None;
    }
    changed
}

/// Reports whether `child` has a reference to the group, kind and name of `owner`.
pub fn has_owner<O, C>(child: &C, owner: &O) -> bool
where
    O: Resource<DynamicType = ()>,
    C: Resource,
{
    references(child)
        .iter()
        .any(|reference| refers_to(reference, owner))
}

/// The reference of the one owner that controls `child`.
pub fn controller_of(child: &impl Resource) -> Option<&OwnerReference> {
    references(child)
        .iter()
        .find(|reference| reference.controller == Some(true))
}

/// Reports whether exactly this incarnation of `owner` (same UID) controls `child`.
pub fn is_controlled_by(child: &impl Resource, owner: &impl Resource) -> bool {
    match (controller_of(child), owner.meta().uid.as_deref()) {
        (Some(reference), Some(uid)) => reference.uid == uid,
        _ => false,
    }
}

/// Group of an `apiVersion`; `None` if that is malformed (empty, or more than one slash).
pub(crate) fn group_of(api_version: &str) -> Option<&str> {
    match api_version.split_once('/') {
        None if api_version.is_empty() => None,
        None => Some(""),
        Some((group, version)) => (!version.is_empty() && !version.contains('/')).then_some(group),
    }
}

/// The owner references of an object.
pub(crate) fn references(object: &impl Resource) -> &[OwnerReference] {
    object
        .meta()
        .owner_references
        .as_deref()
        .unwrap_or_default()
}

fn same_owner(a: &OwnerReference, b: &OwnerReference) -> bool {
    a.name == b.name && a.kind == b.kind && group_of(&a.api_version) == group_of(&b.api_version)
}

fn refers_to<O: Resource<DynamicType = ()>>(reference: &OwnerReference, owner: &O) -> bool {
    owner.meta().name.as_deref() == Some(&reference.name)
        && reference.kind == O::kind(&())
        && group_of(&reference.api_version) == Some(&*O::group(&()))
}

fn name_of(meta: &ObjectMeta) -> Box<str> {
    let name = meta.name.as_deref().or(meta.generate_name.as_deref());
    name.unwrap_or_default().into()
}

fn upsert(
    child: &mut ObjectMeta,
    owner: &ObjectMeta,
    reference: OwnerReference,
) -> Result<bool, Error> {
    if let Some(owner_namespace) = owner.namespace.as_deref()
        && child.namespace.as_deref() != Some(owner_namespace)
    {
        return Err(Error::CrossNamespace {
            child: name_of(child),
            child_namespace: child.namespace.as_deref().map(Into::into),
            owner_namespace: owner_namespace.into(),
        });
    }
    let list = child.owner_references.get_or_insert_default();
    match list
        .iter_mut()
        .find(|present| same_owner(present, &reference))
    {
        Some(present) if *present == reference => Ok(false),
        Some(present) => {
            *present = reference;
            Ok(true)
        }
        None => {
            list.push(reference);
            Ok(true)
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};

    use super::*;

    fn owner(name: &str, uid: &str, namespace: &str) -> ConfigMap {
        let mut owner = ConfigMap::default();
        owner.metadata.name = Some(name.to_owned());
        owner.metadata.uid = Some(uid.to_owned());
        owner.metadata.namespace = Some(namespace.to_owned());
        owner
    }

    fn child(namespace: Option<&str>) -> Pod {
        let mut child = Pod::default();
        child.metadata.name = Some("child".to_owned());
        child.metadata.namespace = namespace.map(str::to_owned);
        child
    }

    #[test]
    fn c72_a_controller_is_set_once_and_blocks_the_owners_deletion() {
        let (owner, mut child) = (owner("a", "u1", "ns"), child(Some("ns")));
        assert!(set_controller(&mut child, &owner).unwrap());
        assert!(!set_controller(&mut child, &owner).unwrap());
        let expected = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            name: "a".to_owned(),
            uid: "u1".to_owned(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        assert_eq!(references(&child), [expected]);
        assert!(has_owner(&child, &owner) && is_controlled_by(&child, &owner));
    }

    #[test]
    fn c72_a_second_controller_is_refused_and_a_second_owner_is_not() {
        let mut child = child(Some("ns"));
        set_controller(&mut child, &owner("a", "u1", "ns")).unwrap();
        let error = set_controller(&mut child, &owner("b", "u2", "ns")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "child is already controlled by ConfigMap a"
        );
        assert_eq!(references(&child).len(), 1);
        assert!(add_owner(&mut child, &owner("b", "u2", "ns")).unwrap());
        assert_eq!(references(&child).len(), 2);
        assert_eq!(controller_of(&child).unwrap().name, "a");
    }

    #[test]
    fn c72_a_new_incarnation_of_the_owner_replaces_its_reference() {
        let mut child = child(Some("ns"));
        set_controller(&mut child, &owner("a", "u1", "ns")).unwrap();
        let again = owner("a", "u2", "ns");
        assert!(has_owner(&child, &again) && !is_controlled_by(&child, &again));
        assert!(set_controller(&mut child, &again).unwrap());
        assert!(is_controlled_by(&child, &again));
        assert_eq!(references(&child).len(), 1);
    }

    #[test]
    fn c72_an_owner_is_cluster_scoped_or_in_the_childs_namespace() {
        let namespaced = owner("a", "u1", "ns");
        let mut cluster_owner = Node::default();
        cluster_owner.metadata.name = Some("n".to_owned());
        cluster_owner.metadata.uid = Some("u9".to_owned());
        for (namespace, ok) in [(Some("ns"), true), (Some("other"), false), (None, false)] {
            let mut child = child(namespace);
            assert_eq!(
                set_controller(&mut child, &namespaced).is_ok(),
                ok,
                "{namespace:?}"
            );
            assert_eq!(references(&child).len(), usize::from(ok));
            assert!(
                add_owner(&mut child, &cluster_owner).unwrap(),
                "{namespace:?}"
            );
        }
        let error = set_controller(&mut child(None), &namespaced).unwrap_err();
        assert!(
            error.to_string().contains("child in no namespace"),
            "{error}"
        );
    }

    #[test]
    fn c72_an_owner_not_yet_created_is_refused_by_the_missing_field() {
        let mut fresh = owner("a", "", "ns");
        assert!(matches!(
            controller_reference(&fresh),
            Err(Error::IncompleteOwner { field: "uid" })
        ));
        fresh.metadata.name = None;
        assert!(matches!(
            owner_reference(&fresh),
            Err(Error::IncompleteOwner { field: "name" })
        ));
    }

    #[test]
    fn c72_only_the_controller_is_removed_as_the_controller() {
        let mut child = child(Some("ns"));
        let (controller, other) = (owner("a", "u1", "ns"), owner("b", "u2", "ns"));
        assert!(!has_controller(&child) && !remove_controller(&mut child, &controller));
        set_controller(&mut child, &controller).unwrap();
        add_owner(&mut child, &other).unwrap();
        assert!(
            !remove_controller(&mut child, &other),
            "an owner, but no controller"
        );
        assert!(has_controller(&child));
        assert!(remove_controller(&mut child, &controller));
        assert!(!has_controller(&child));
        assert_eq!(references(&child).len(), 1, "the other owner stays");
        assert!(
            set_controller(&mut child, &other).unwrap(),
            "the place is free"
        );
    }

    #[test]
    fn c72_removing_an_owner_leaves_the_others() {
        let mut child = child(Some("ns"));
        add_owner(&mut child, &owner("a", "u1", "ns")).unwrap();
        add_owner(&mut child, &owner("b", "u2", "ns")).unwrap();
        assert!(remove_owner(&mut child, &owner("a", "another uid", "ns")));
        assert!(!remove_owner(&mut child, &owner("a", "u1", "ns")));
        assert_eq!(references(&child).len(), 1);
        assert!(remove_owner(&mut child, &owner("b", "u2", "ns")));
        assert_eq!(child.metadata.owner_references, None);
    }

    #[test]
    fn c72_the_group_of_an_api_version_ignores_the_version() {
        let cases = [
            ("v1", Some("")),
            ("apps/v1", Some("apps")),
            (
                "crawl.proxyoperator.dev/v1alpha1",
                Some("crawl.proxyoperator.dev"),
            ),
            ("", None),
            ("a/b/c", None),
            ("apps/", None),
        ];
        for (api_version, group) in cases {
            assert_eq!(group_of(api_version), group, "{api_version:?}");
        }
        assert_eq!(group_of(&Namespace::api_version(&())), Some(""));
    }
}
