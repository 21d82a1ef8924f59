//! What a pod asks of its node, read from its spec and annotations.

use k8s_openapi::api::core::v1::Pod;
use tracing::warn;

use super::{
    KubeletOptions,
    delay::{Purpose, parse_duration},
    lifecycle::{Plan, RestartPolicy},
    probe::ProbePlan,
    workload::has_proxy,
};

/// Component that writes Events about the life of a pod.
pub(super) const PLAN_COMPONENT: &str = "kubelet";

/// Annotation of a pod: its containers end by themselves after that time.
const RUN_FOR: &str = "devcluster/run-for";
/// Annotation of a pod: the exit code of containers that end by themselves.
const EXIT_CODE: &str = "devcluster/exit-code";
/// Annotation of a pod: overrides the kubelet's start delay.
const START_DELAY: &str = "devcluster/start-delay";

/// Whether the pod's containers are over for good.
pub(super) fn is_finished(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// The plan for a pod; an annotation that cannot be read is logged and counts as absent.
pub(super) fn plan_of(pod: &Pod, key: &str, options: &KubeletOptions) -> Plan {
    let annotation = |name: &str| {
        pod.metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(name))
    };
    let duration = |name: &str| {
        annotation(name).and_then(|text| {
            parse_duration(text)
                .map_err(|problem| warn!(pod = key, annotation = name, problem, "ignored"))
                .ok()
        })
    };
    let exit_code = annotation(EXIT_CODE).and_then(|text| {
        text.parse()
            .map_err(|_| {
                let problem = format!("{text:?} is no exit code: write for example 1");
                warn!(pod = key, annotation = EXIT_CODE, problem, "ignored");
            })
            .ok()
    });
    let spec = pod.spec.as_ref();
    // Without a real workload nothing listens, so a probe has nobody to ask.
    let real = options.proxy && has_proxy(pod);
    Plan {
        start_delay: duration(START_DELAY)
            .unwrap_or_else(|| options.start_delay.draw(options.seed, key, Purpose::Start)),
        stop_delay: options.stop_delay.draw(options.seed, key, Purpose::Stop),
        run_for: duration(RUN_FOR),
        exit_code: exit_code.unwrap_or(0),
        restart: match spec.and_then(|spec| spec.restart_policy.as_deref()) {
            Some("Never") => RestartPolicy::Never,
            Some("OnFailure") => RestartPolicy::OnFailure,
            _ => RestartPolicy::Always,
        },
        probes: spec
            .iter()
            .flat_map(|spec| &spec.containers)
            .map(|container| ProbePlan::of(container, real))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    fn plan(annotations: &Value) -> Plan {
        let pod = serde_json::from_value(json!({
            "metadata": { "name": "a", "annotations": annotations },
            "spec": { "containers": [{ "name": "c" }, { "name": "d" }] },
        }))
        .unwrap();
        let start_delay = Duration::from_secs(9).into();
        plan_of(
            &pod,
            "n/a",
            &KubeletOptions {
                start_delay,
                ..KubeletOptions::default()
            },
        )
    }

    #[test]
    fn annotations_change_the_plan_and_bad_ones_do_not() {
        let plain = plan(&json!({}));
        assert_eq!(plain.start_delay, Duration::from_secs(9));
        assert_eq!((plain.run_for, plain.exit_code), (None, 0));
        assert_eq!(plain.restart, RestartPolicy::Always);
        assert_eq!(plain.probes.len(), 2);
        let changed = plan(&json!({
            "devcluster/run-for": "3s", "devcluster/exit-code": "2", "devcluster/start-delay": "0s",
        }));
        assert_eq!(changed.start_delay, Duration::ZERO);
        assert_eq!(
            (changed.run_for, changed.exit_code),
            (Some(Duration::from_secs(3)), 2)
        );
        let bad = plan(&json!({ "devcluster/run-for": "soon", "devcluster/exit-code": "x" }));
        assert_eq!((bad.run_for, bad.exit_code), (None, 0));
    }
}
