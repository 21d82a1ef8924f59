//! The strategy table: one row for each built-in kind.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use super::{
    hooks::{self, Hooks},
    resource::{BUILT_IN_SHAPE, Content, NameRule, Resource, Review, ScalePaths, Traits},
};
use crate::{store::Store, types};

/// The shape of versions that are converted on every read.
const CONVERTED_SHAPE: u64 = u64::MAX;

struct Row {
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    short_names: &'static [&'static str],
    categories: &'static [&'static str],
    namespaced: bool,
    traits: Traits,
    status: bool,
    /// `/scale` with the paths of the workload kinds.
    scale: bool,
    extra: &'static [&'static str],
    name_rule: NameRule,
    selectable: &'static [&'static str],
    hooks: Hooks,
    /// The collection of another row that holds the objects.
    stored_as: Option<&'static str>,
    review: Option<Review>,
}

const TRAITS: Traits = Traits {
    unconditional_update: false,
    create_on_update: false,
    delete_returns_object: false,
    generation: false,
    no_propagation: false,
    status_on_create: false,
    status_keeps_metadata: false,
};

const ROW: Row = Row {
    group: "",
    version: "v1",
    plural: "",
    singular: "",
    kind: "",
    short_names: &[],
    categories: &[],
    namespaced: true,
    traits: Traits {
        unconditional_update: true,
        ..TRAITS
    },
    status: false,
    scale: false,
    extra: &[],
    name_rule: NameRule::Subdomain,
    selectable: &[],
    hooks: Hooks::NONE,
    stored_as: None,
    review: None,
};

const CREATABLE: Traits = Traits {
    unconditional_update: true,
    create_on_update: true,
    ..TRAITS
};

const CORE_EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
];

const EVENT_FIELDS: &[&str] = &[
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reason",
    "reportingController",
    "type",
];

const TABLE: &[Row] = &[
    Row {
        plural: "namespaces",
        singular: "namespace",
        kind: "Namespace",
        short_names: &["ns"],
        namespaced: false,
        traits: Traits {
            unconditional_update: true,
            delete_returns_object: true,
            ..TRAITS
        },
        status: true,
        extra: &["finalize"],
        name_rule: NameRule::Label,
        selectable: &["status.phase"],
        hooks: hooks::NAMESPACE,
        ..ROW
    },
    Row {
        plural: "nodes",
        singular: "node",
        kind: "Node",
        short_names: &["no"],
        namespaced: false,
        traits: Traits {
            unconditional_update: true,
            status_on_create: true,
            ..TRAITS
        },
        status: true,
        selectable: &["spec.unschedulable"],
        hooks: hooks::NODE,
        ..ROW
    },
    Row {
        plural: "pods",
        singular: "pod",
        kind: "Pod",
        short_names: &["po"],
        categories: &["all"],
        traits: Traits {
            unconditional_update: true,
            delete_returns_object: true,
            generation: true,
            ..TRAITS
        },
        status: true,
        extra: &["binding", "eviction"],
        selectable: &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        hooks: hooks::POD,
        ..ROW
    },
    Row {
        plural: "secrets",
        singular: "secret",
        kind: "Secret",
        selectable: &["type"],
        hooks: hooks::SECRET,
        ..ROW
    },
    Row {
        plural: "configmaps",
        singular: "configmap",
        kind: "ConfigMap",
        short_names: &["cm"],
        hooks: hooks::CONFIG_MAP,
        ..ROW
    },
    Row {
        plural: "serviceaccounts",
        singular: "serviceaccount",
        kind: "ServiceAccount",
        short_names: &["sa"],
        traits: Traits {
            unconditional_update: true,
            delete_returns_object: true,
            ..TRAITS
        },
        extra: &["token"],
        ..ROW
    },
    Row {
        plural: "events",
        singular: "event",
        kind: "Event",
        short_names: &["ev"],
        traits: Traits {
            no_propagation: true,
            ..CREATABLE
        },
        selectable: CORE_EVENT_FIELDS,
        hooks: hooks::CORE_EVENT,
        ..ROW
    },
    Row {
        group: "events.k8s.io",
        plural: "events",
        singular: "event",
        kind: "Event",
        short_names: &["ev"],
        traits: Traits {
            no_propagation: true,
            ..CREATABLE
        },
        selectable: EVENT_FIELDS,
        hooks: hooks::EVENT,
        stored_as: Some("/events"),
        ..ROW
    },
    Row {
        group: "coordination.k8s.io",
        plural: "leases",
        singular: "lease",
        kind: "Lease",
        traits: Traits {
            create_on_update: true,
            ..TRAITS
        },
        ..ROW
    },
    Row {
        group: "apiextensions.k8s.io",
        plural: "customresourcedefinitions",
        singular: "customresourcedefinition",
        kind: "CustomResourceDefinition",
        short_names: &["crd", "crds"],
        categories: &["api-extensions"],
        namespaced: false,
        traits: Traits {
            generation: true,
            status_keeps_metadata: true,
            ..TRAITS
        },
        status: true,
        hooks: hooks::DEFINITION,
        ..ROW
    },
    Row {
        group: "apps",
        plural: "deployments",
        singular: "deployment",
        kind: "Deployment",
        short_names: &["deploy"],
        categories: &["all"],
        traits: Traits {
            unconditional_update: true,
            generation: true,
            status_keeps_metadata: true,
            ..TRAITS
        },
        status: true,
        scale: true,
        hooks: hooks::DEPLOYMENT,
        ..ROW
    },
    Row {
        group: "rbac.authorization.k8s.io",
        plural: "clusterroles",
        singular: "clusterrole",
        kind: "ClusterRole",
        namespaced: false,
        traits: CREATABLE,
        name_rule: NameRule::PathSegment,
        ..ROW
    },
    Row {
        group: "rbac.authorization.k8s.io",
        plural: "clusterrolebindings",
        singular: "clusterrolebinding",
        kind: "ClusterRoleBinding",
        namespaced: false,
        traits: CREATABLE,
        name_rule: NameRule::PathSegment,
        hooks: hooks::ROLE_BINDING,
        ..ROW
    },
    Row {
        group: "rbac.authorization.k8s.io",
        plural: "roles",
        singular: "role",
        kind: "Role",
        traits: CREATABLE,
        name_rule: NameRule::PathSegment,
        ..ROW
    },
    Row {
        group: "rbac.authorization.k8s.io",
        plural: "rolebindings",
        singular: "rolebinding",
        kind: "RoleBinding",
        traits: CREATABLE,
        name_rule: NameRule::PathSegment,
        hooks: hooks::ROLE_BINDING,
        ..ROW
    },
    Row {
        group: "authentication.k8s.io",
        plural: "selfsubjectreviews",
        singular: "selfsubjectreview",
        kind: "SelfSubjectReview",
        namespaced: false,
        review: Some(Review::SelfSubject),
        ..ROW
    },
    Row {
        group: "authentication.k8s.io",
        plural: "tokenreviews",
        singular: "tokenreview",
        kind: "TokenReview",
        namespaced: false,
        review: Some(Review::Token),
        ..ROW
    },
    Row {
        group: "authorization.k8s.io",
        plural: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        kind: "SelfSubjectAccessReview",
        namespaced: false,
        review: Some(Review::Access),
        ..ROW
    },
    Row {
        group: "authorization.k8s.io",
        plural: "selfsubjectrulesreviews",
        singular: "selfsubjectrulesreview",
        kind: "SelfSubjectRulesReview",
        namespaced: false,
        review: Some(Review::Rules),
        ..ROW
    },
    Row {
        group: "authorization.k8s.io",
        plural: "subjectaccessreviews",
        singular: "subjectaccessreview",
        kind: "SubjectAccessReview",
        namespaced: false,
        review: Some(Review::Access),
        ..ROW
    },
    Row {
        group: "authorization.k8s.io",
        plural: "localsubjectaccessreviews",
        singular: "localsubjectaccessreview",
        kind: "LocalSubjectAccessReview",
        review: Some(Review::Access),
        ..ROW
    },
];

/// The built-in resources, over the collections of a store.
pub(super) fn built_in(store: &Store) -> Vec<Arc<Resource>> {
    TABLE
        .iter()
        .map(|row| Arc::new(row.resource(store)))
        .collect()
}

impl Row {
    fn resource(&self, store: &Store) -> Resource {
        let texts = |list: &[&str]| list.iter().map(|text| Arc::from(*text)).collect();
        let api_version = if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        };
        let own = format!("{}/{}", self.group, self.plural);
        Resource {
            group: self.group.into(),
            version: self.version.into(),
            plural: self.plural.into(),
            singular: self.singular.into(),
            kind: self.kind.into(),
            list_kind: format!("{}List", self.kind).into(),
            short_names: texts(self.short_names),
            categories: texts(self.categories),
            namespaced: self.namespaced,
            traits: self.traits,
            status: self.status,
            scale: self.scale.then(|| ScalePaths {
                spec_replicas: "spec.replicas".to_owned(),
                status_replicas: "status.replicas".to_owned(),
                label_selector: Some("spec.selector".to_owned()),
            }),
            extra: self.extra,
            name_rule: self.name_rule,
            selectable: texts(self.selectable),
            hooks: self.hooks,
            content: Content::BuiltIn(types::lookup(&api_version, self.kind)),
            shape: if self.hooks.conversion.is_some() {
                CONVERTED_SHAPE
            } else {
                BUILT_IN_SHAPE
            },
            collection: store.collection(self.stored_as.unwrap_or(&own)),
            retired: CancellationToken::new(),
            printer: OnceLock::new(),
            review: self.review,
        }
    }
}
