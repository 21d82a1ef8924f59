//! Deployments and role bindings: defaults that readers rely on; no controller acts on them here.

use serde_json::{Value, json};

use super::{Hooks, entries_mut, object_mut, pod, set_default, text_at};
use crate::schema::FieldError;

pub(crate) const DEPLOYMENT: Hooks = Hooks {
    default: |object| {
        let spec = object_mut(object, "spec");
        set_default(spec, "replicas", 1);
        set_default(spec, "revisionHistoryLimit", 10);
        set_default(spec, "progressDeadlineSeconds", 600);
        let strategy = spec.entry("strategy").or_insert_with(|| json!({}));
        if let Some(strategy) = strategy.as_object_mut() {
            set_default(strategy, "type", "RollingUpdate");
            if strategy["type"] == "RollingUpdate" {
                let rolling = strategy.entry("rollingUpdate").or_insert_with(|| json!({}));
                if let Some(rolling) = rolling.as_object_mut() {
                    set_default(rolling, "maxUnavailable", "25%");
                    set_default(rolling, "maxSurge", "25%");
                }
            }
        }
        if let Some(template) = object.pointer_mut("/spec/template") {
            pod::default_spec(template);
        }
    },
    validate: |new, old| {
        let mut errors = Vec::new();
        let wanted = new
            .pointer("/spec/selector/matchLabels")
            .and_then(Value::as_object);
        let labels = new
            .pointer("/spec/template/metadata/labels")
            .and_then(Value::as_object);
        if new.pointer("/spec/selector").is_none() {
            errors.push(FieldError::required("spec.selector", ""));
        }
        let matches = wanted
            .into_iter()
            .flatten()
            .all(|(key, value)| labels.and_then(|l| l.get(key)) == Some(value));
        if !matches {
            errors.push(FieldError::invalid(
                "spec.template.metadata.labels",
                labels.cloned().map_or(Value::Null, Value::Object),
                "`selector` does not match template `labels`",
            ));
        }
        if let Some(old) = old
            && new.pointer("/spec/selector") != old.pointer("/spec/selector")
        {
            errors.push(FieldError::invalid(
                "spec.selector",
                new["spec"]["selector"].clone(),
                "field is immutable",
            ));
        }
        errors.extend(pod::validate_spec(
            new.pointer("/spec/template").unwrap_or(&Value::Null),
            "spec.template.spec",
        ));
        errors
    },
    ..Hooks::NONE
};

pub(crate) const ROLE_BINDING: Hooks = Hooks {
    default: |object| {
        for subject in entries_mut(object, "/subjects") {
            let group = match text_at(subject, "/kind") {
                "User" | "Group" => "rbac.authorization.k8s.io",
                _ => continue,
            };
            if let Some(subject) = subject.as_object_mut() {
                set_default(subject, "apiGroup", group);
            }
        }
        if let Some(role) = object.get_mut("roleRef").and_then(Value::as_object_mut) {
            set_default(role, "apiGroup", "rbac.authorization.k8s.io");
        }
    },
    validate: |new, old| match old {
        Some(old) if new.get("roleRef") != old.get("roleRef") => vec![FieldError::invalid(
            "roleRef",
            new["roleRef"].clone(),
            "cannot change roleRef",
        )],
        _ => Vec::new(),
    },
    ..Hooks::NONE
};
