//! Pods: defaults, admission results, what an update may change, the grace of a deletion.

use serde_json::{Map, Value, json};

use super::{Hooks, entries, entries_mut, object_mut, set_default, text_at};
use crate::schema::{FieldError, names};

pub(crate) const POD: Hooks = Hooks {
    default: |object| {
        default_spec(object);
        set_default(object_mut(object, "spec"), "enableServiceLinks", true);
        keep_addresses_in_step(object);
    },
    prepare_create: |object| {
        admit(object);
        let class = qos_class(object);
        object["status"] = json!({"phase": "Pending", "qosClass": class});
    },
    prepare_status: |object, old| {
        // The class follows from the spec and never changes.
        if let Some(class) = old.pointer("/status/qosClass") {
            object_mut(object, "status").insert("qosClass".to_owned(), class.clone());
        }
        // Owners are not the business of whoever reports the status.
        let owners = old.pointer("/metadata/ownerReferences").cloned();
        let metadata = object_mut(object, "metadata");
        match owners {
            Some(owners) => metadata.insert("ownerReferences".to_owned(), owners),
            None => metadata.remove("ownerReferences"),
        };
        keep_addresses_in_step(object);
    },
    validate: |new, old| match old {
        None => validate_spec(new, "spec"),
        Some(old) => validate_update(new, old),
    },
    grace: Some(grace),
    ..Hooks::NONE
};

/// Fills in the defaults of the `spec` of a pod or pod template.
pub(super) fn default_spec(pod: &mut Value) {
    let spec = object_mut(pod, "spec");
    for (key, value) in [
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("schedulerName", json!("default-scheduler")),
        ("securityContext", json!({})),
    ] {
        set_default(spec, key, value);
    }
    let account = ["serviceAccountName", "serviceAccount"]
        .iter()
        .filter_map(|key| spec.get(*key).and_then(Value::as_str))
        .find(|name| !name.is_empty())
        .map(str::to_owned);
    if let Some(account) = account {
        spec.insert(
            "serviceAccountName".to_owned(),
            Value::from(account.as_str()),
        );
        spec.insert("serviceAccount".to_owned(), Value::from(account));
    }
    for list in ["/spec/containers", "/spec/initContainers"] {
        for container in entries_mut(pod, list) {
            if let Some(container) = container.as_object_mut() {
                default_container(container);
            }
        }
    }
    for volume in entries_mut(pod, "/spec/volumes") {
        default_volume(volume);
    }
}

fn default_container(container: &mut Map<String, Value>) {
    let image = container
        .get("image")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let policy = if has_fixed_tag(image) {
        "IfNotPresent"
    } else {
        "Always"
    };
    set_default(container, "imagePullPolicy", policy);
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    set_default(container, "resources", json!({}));
    if let Some(ports) = container.get_mut("ports").and_then(Value::as_array_mut) {
        for port in ports.iter_mut().filter_map(Value::as_object_mut) {
            set_default(port, "protocol", "TCP");
        }
    }
    for key in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.get_mut(key).and_then(Value::as_object_mut) else {
            continue;
        };
        for (key, seconds) in [
            ("timeoutSeconds", 1),
            ("periodSeconds", 10),
            ("successThreshold", 1),
            ("failureThreshold", 3),
        ] {
            set_default(probe, key, seconds);
        }
        if let Some(get) = probe.get_mut("httpGet").and_then(Value::as_object_mut) {
            set_default(get, "path", "/");
            set_default(get, "scheme", "HTTP");
        }
    }
    if let Some(variables) = container.get_mut("env").and_then(Value::as_array_mut) {
        for variable in variables {
            if let Some(field) = variable
                .pointer_mut("/valueFrom/fieldRef")
                .and_then(Value::as_object_mut)
            {
                set_default(field, "apiVersion", "v1");
            }
        }
    }
    if let Some(resources) = container
        .get_mut("resources")
        .and_then(Value::as_object_mut)
        && let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned()
    {
        let requests = resources.entry("requests").or_insert_with(|| json!({}));
        if let Some(requests) = requests.as_object_mut() {
            for (name, amount) in limits {
                requests.entry(name).or_insert(amount);
            }
        }
    }
}

fn default_volume(volume: &mut Value) {
    for (source, mode) in [
        ("secret", 420),
        ("configMap", 420),
        ("projected", 420),
        ("downwardAPI", 420),
    ] {
        if let Some(source) = volume.get_mut(source).and_then(Value::as_object_mut) {
            set_default(source, "defaultMode", mode);
        }
    }
    if let Some(path) = volume.get_mut("hostPath").and_then(Value::as_object_mut) {
        path.entry("type").or_insert_with(|| Value::from(""));
    }
}

/// Whether an image names a digest or a tag other than `latest`.
fn has_fixed_tag(image: &str) -> bool {
    if image.contains('@') {
        return true;
    }
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split_once(':').is_some_and(|(_, tag)| tag != "latest")
}

/// What the default admission plug-ins set on a new pod.
fn admit(pod: &mut Value) {
    let spec = object_mut(pod, "spec");
    set_default(spec, "preemptionPolicy", "PreemptLowerPriority");
    set_default(spec, "priority", 0);
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    let Some(tolerations) = tolerations.as_array_mut() else {
        return;
    };
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ] {
        let tolerated = tolerations.iter().any(|toleration| {
            let effect = text_at(toleration, "/effect");
            let wanted = text_at(toleration, "/key");
            (wanted == key || wanted.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        });
        if !tolerated {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
            }));
        }
    }
}

/// `BestEffort` without requests and limits, `Guaranteed` when every container has equal ones for CPU and
/// memory, else `Burstable`.
fn qos_class(pod: &Value) -> &'static str {
    let mut any = false;
    let mut guaranteed = true;
    for container in entries(pod, "/spec/containers").chain(entries(pod, "/spec/initContainers")) {
        for resource in ["cpu", "memory"] {
            let limit = container.pointer(&format!("/resources/limits/{resource}"));
            let request = container.pointer(&format!("/resources/requests/{resource}"));
            any |= limit.is_some() || request.is_some();
            guaranteed &= limit.is_some() && limit == request;
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// `podIP` is the first of `podIPs`, whichever was set; the same for the host's.
fn keep_addresses_in_step(pod: &mut Value) {
    let Some(status) = pod.get_mut("status").and_then(Value::as_object_mut) else {
        return;
    };
    for (single, list) in [("podIP", "podIPs"), ("hostIP", "hostIPs")] {
        let address = status
            .get(single)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let first = status
            .get(list)
            .and_then(|ips| ips.pointer("/0/ip"))
            .and_then(Value::as_str);
        match first.map(str::to_owned) {
            Some(first) if address.is_empty() => {
                status.insert(single.to_owned(), Value::from(first));
            }
            Some(first) if first == address => {}
            _ if address.is_empty() => {}
            _ => {
                status.insert(list.to_owned(), json!([{"ip": address}]));
            }
        }
    }
}

/// Everything that is wrong with the `spec` of a new pod or pod template; `at` is its path.
pub(super) fn validate_spec(pod: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if entries(pod, "/spec/containers").next().is_none() {
        errors.push(FieldError::required(format!("{at}.containers"), ""));
    }
    let mut seen: Vec<&str> = Vec::new();
    for list in ["initContainers", "containers"] {
        for (index, container) in entries(pod, &format!("/spec/{list}")).enumerate() {
            let at = format!("{at}.{list}[{index}]");
            let name = text_at(container, "/name");
            if name.is_empty() {
                errors.push(FieldError::required(format!("{at}.name"), ""));
            } else {
                for problem in names::dns_label_problems(name) {
                    errors.push(FieldError::invalid(format!("{at}.name"), name, problem));
                }
                if seen.contains(&name) {
                    errors.push(FieldError::duplicate(format!("{at}.name"), name));
                }
                seen.push(name);
            }
            if text_at(container, "/image").is_empty() {
                errors.push(FieldError::required(format!("{at}.image"), ""));
            }
            validate_ports(container, &at, &mut errors);
            let policy = text_at(container, "/imagePullPolicy");
            if !matches!(policy, "Always" | "IfNotPresent" | "Never") {
                errors.push(FieldError::not_supported(
                    format!("{at}.imagePullPolicy"),
                    policy,
                    &["Always", "IfNotPresent", "Never"],
                ));
            }
            validate_mounts(pod, container, &at, &mut errors);
            super::resources::validate(container, &at, &mut errors);
        }
    }
    let policy = text_at(pod, "/spec/restartPolicy");
    if !matches!(policy, "Always" | "OnFailure" | "Never") {
        errors.push(FieldError::not_supported(
            format!("{at}.restartPolicy"),
            policy,
            &["Always", "OnFailure", "Never"],
        ));
    }
    errors
}

fn validate_ports(container: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, port) in entries(container, "/ports").enumerate() {
        let at = format!("{at}.ports[{index}]");
        let number = port
            .get("containerPort")
            .and_then(Value::as_i64)
            .unwrap_or(0);
        if number == 0 {
            errors.push(FieldError::required(format!("{at}.containerPort"), ""));
        } else if !(1..=65535).contains(&number) {
            errors.push(FieldError::invalid(
                format!("{at}.containerPort"),
                number,
                "must be between 1 and 65535, inclusive",
            ));
        }
        let name = text_at(port, "/name");
        if !name.is_empty() {
            if seen.contains(&name) {
                errors.push(FieldError::duplicate(format!("{at}.name"), name));
            }
            seen.push(name);
        }
    }
}

fn validate_mounts(pod: &Value, container: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for (index, mount) in entries(container, "/volumeMounts").enumerate() {
        let name = text_at(mount, "/name");
        if !entries(pod, "/spec/volumes").any(|volume| text_at(volume, "/name") == name) {
            errors.push(FieldError::new(
                crate::schema::ErrorKind::NotFound,
                format!("{at}.volumeMounts[{index}].name"),
                Some(Value::from(name)),
                "",
            ));
        }
    }
}

/// What may change in a pod's spec: images, a shorter deadline, more tolerations, a grace that was negative,
/// removed scheduling gates, and the node through binding.
fn validate_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if added_tolerations_only(new, old).is_none() {
        errors.push(FieldError::forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
    let mut compared = new["spec"].clone();
    let stored = &old["spec"];
    for list in ["containers", "initContainers"] {
        for (index, container) in entries_mut(&mut compared, &format!("/{list}")).enumerate() {
            let image = stored.pointer(&format!("/{list}/{index}/image"));
            if let (Some(container), Some(image)) = (container.as_object_mut(), image) {
                if container
                    .get("image")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .is_empty()
                {
                    errors.push(FieldError::required(
                        format!("spec.{list}[{index}].image"),
                        "",
                    ));
                }
                container.insert("image".to_owned(), image.clone());
            }
        }
    }
    if let Some(compared) = compared.as_object_mut() {
        for key in [
            "activeDeadlineSeconds",
            "tolerations",
            "schedulingGates",
            "terminationGracePeriodSeconds",
        ] {
            let free = match key {
                "terminationGracePeriodSeconds" => {
                    stored
                        .get(key)
                        .and_then(Value::as_i64)
                        .is_some_and(|seconds| seconds < 0)
                        && compared.get(key).and_then(Value::as_i64) == Some(1)
                }
                "schedulingGates" => entries(new, "/spec/schedulingGates")
                    .all(|gate| entries(old, "/spec/schedulingGates").any(|kept| kept == gate)),
                _ => true,
            };
            if free {
                match stored.get(key) {
                    Some(value) => compared.insert(key.to_owned(), value.clone()),
                    None => compared.remove(key),
                };
            }
        }
    }
    if compared != *stored {
        errors.push(FieldError::forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,\
             `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
             existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
             previously negative)",
        ));
    }
    errors
}

/// `Some` when every stored toleration is still there, its seconds aside.
fn added_tolerations_only(new: &Value, old: &Value) -> Option<()> {
    let without_seconds = |toleration: &Value| {
        let mut fields = toleration.as_object().cloned().unwrap_or_default();
        fields.remove("tolerationSeconds");
        fields
    };
    entries(old, "/spec/tolerations")
        .all(|kept| {
            entries(new, "/spec/tolerations")
                .any(|one| without_seconds(one) == without_seconds(kept))
        })
        .then_some(())
}

/// The request's grace, else the pod's own; none for pods that run nowhere or are finished.
fn grace(pod: &Value, wanted: Option<i64>) -> i64 {
    let unscheduled = text_at(pod, "/spec/nodeName").is_empty();
    let finished = matches!(text_at(pod, "/status/phase"), "Succeeded" | "Failed");
    if unscheduled || finished {
        return 0;
    }
    let own = pod
        .pointer("/spec/terminationGracePeriodSeconds")
        .and_then(Value::as_i64);
    match wanted.or(own).unwrap_or(0) {
        negative if negative < 0 => 1,
        seconds => seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
        (POD.default)(&mut pod);
        (POD.prepare_create)(&mut pod);
        pod
    }

    #[test]
    fn a_new_pod_gets_the_defaults_and_admission_results() {
        let pod = pod();
        for (path, expected) in [
            ("/spec/restartPolicy", json!("Always")),
            ("/spec/containers/0/imagePullPolicy", json!("IfNotPresent")),
            ("/spec/priority", json!(0)),
            ("/spec/tolerations/1/tolerationSeconds", json!(300)),
            ("/status/phase", json!("Pending")),
            ("/status/qosClass", json!("BestEffort")),
        ] {
            assert_eq!(pod.pointer(path), Some(&expected), "{path}");
        }
        assert!((POD.validate)(&pod, None).is_empty());
    }

    #[test]
    fn images_without_a_fixed_tag_are_always_pulled() {
        for (image, fixed) in [
            ("a", false),
            ("a:latest", false),
            ("a:1", true),
            ("h:5000/a", false),
            ("h:5000/a@sha256:0", true),
        ] {
            assert_eq!(has_fixed_tag(image), fixed, "{image}");
        }
    }

    #[test]
    fn an_update_may_change_images_and_add_tolerations_but_no_volume() {
        let old = pod();
        let edit = |path: &str, value: Value| {
            let mut new = old.clone();
            match new.pointer_mut(path) {
                Some(at) => *at = value,
                None => object_mut(&mut new, "spec").extend([(path.to_owned(), value)]),
            }
            (POD.validate)(&new, Some(&old)).len()
        };
        assert_eq!(edit("/spec/containers/0/image", json!("i:2")), 0);
        assert_eq!(edit("activeDeadlineSeconds", json!(5)), 0);
        assert_eq!(edit("volumes", json!([{"name": "v", "emptyDir": {}}])), 1);
        assert_eq!(edit("/spec/tolerations", json!([])), 1);
        let mut more = old["spec"]["tolerations"].clone();
        more.as_array_mut()
            .unwrap()
            .push(json!({"key": "k", "operator": "Exists"}));
        assert_eq!(edit("/spec/tolerations", more), 0);
    }

    #[test]
    fn grace_is_the_request_s_else_the_pod_s_and_none_for_unscheduled_or_finished_pods() {
        let bound = |phase: &str| json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30}, "status": {"phase": phase}});
        let cases = [
            (bound("Running"), None, 30),
            (bound("Running"), Some(5), 5),
            (bound("Running"), Some(0), 0),
            (bound("Running"), Some(-3), 1),
            (bound("Failed"), None, 0),
            (
                json!({"spec": {"terminationGracePeriodSeconds": 30}}),
                None,
                0,
            ),
        ];
        for (pod, wanted, expected) in cases {
            assert_eq!(grace(&pod, wanted), expected, "{pod} {wanted:?}");
        }
    }
}
