//! The binding subresource of pods: a pod is put on a node, once.

use serde_json::{Value, json};

use super::{object_mut, text_at};

/// Puts a pod on the node that a Binding names.
///
/// # Errors
/// Why the pod cannot be bound (a conflict).
pub(crate) fn bind(pod: &mut Value, binding: &Value, stamp: &str) -> Result<(), String> {
    let target = text_at(binding, "/target/name");
    if !text_at(pod, "/metadata/deletionTimestamp").is_empty() {
        let name = text_at(pod, "/metadata/name");
        return Err(format!(
            "pod {name} is being deleted, cannot be assigned to a host"
        ));
    }
    let bound = text_at(pod, "/spec/nodeName");
    if !bound.is_empty() {
        let name = text_at(pod, "/metadata/name");
        return Err(format!(
            "pod {name} is already assigned to node \"{bound}\""
        ));
    }
    if pod
        .pointer("/spec/schedulingGates")
        .and_then(Value::as_array)
        .is_some_and(|g| !g.is_empty())
    {
        let name = text_at(pod, "/metadata/name");
        return Err(format!("pod {name} has non-empty .spec.schedulingGates"));
    }
    object_mut(pod, "spec").insert("nodeName".to_owned(), Value::from(target));
    let status = object_mut(pod, "status");
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    if let Some(conditions) = conditions.as_array_mut() {
        conditions.retain(|condition| condition["type"] != "PodScheduled");
        conditions.push(json!({
            "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": stamp,
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_bound_once_and_not_while_it_is_deleted() {
        let binding = json!({"target": {"name": "n1"}});
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {}});
        bind(&mut pod, &binding, "t").unwrap();
        assert_eq!(pod["spec"]["nodeName"], "n1");
        assert_eq!(pod["status"]["conditions"][0]["type"], "PodScheduled");
        assert!(
            bind(&mut pod, &binding, "t")
                .unwrap_err()
                .contains("already assigned")
        );
        let mut leaving = json!({"metadata": {"name": "p", "deletionTimestamp": "t"}, "spec": {}});
        assert!(
            bind(&mut leaving, &binding, "t")
                .unwrap_err()
                .contains("being deleted")
        );
    }
}
