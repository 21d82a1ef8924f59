//! What a container may ask of its node.

use serde_json::Value;

use crate::{schema::FieldError, types};

/// Refuses negative amounts and requests above their limit, as the real server does.
pub(super) fn validate(container: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for list in ["limits", "requests"] {
        for (name, text) in amounts(container, list) {
            if types::billionths(text).is_some_and(|amount| amount < 0) {
                errors.push(FieldError::invalid(
                    format!("{at}.resources.{list}[{name}]"),
                    text,
                    "must be greater than or equal to 0",
                ));
            }
        }
    }
    for (name, request) in amounts(container, "requests") {
        let limit = container
            .pointer("/resources/limits")
            .and_then(|limits| limits.get(name))
            .and_then(Value::as_str);
        let Some(limit) = limit else { continue };
        if types::billionths(request) > types::billionths(limit) {
            errors.push(FieldError::invalid(
                format!("{at}.resources.requests"),
                request,
                format!("must be less than or equal to {name} limit of {limit}"),
            ));
        }
    }
}

fn amounts<'a>(container: &'a Value, list: &str) -> impl Iterator<Item = (&'a str, &'a str)> {
    container
        .pointer(&format!("/resources/{list}"))
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(name, amount)| Some((name.as_str(), amount.as_str()?)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_stay_below_limits_and_nothing_is_negative() {
        let cases = [
            (
                json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}),
                None,
            ),
            (
                json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1024Mi"}}),
                None,
            ),
            (json!({"requests": {"cpu": "100m"}}), None),
            (
                json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}}),
                Some(
                    "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1500m",
                ),
            ),
            (
                json!({"limits": {"cpu": "-1"}}),
                Some(
                    "spec.containers[0].resources.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
                ),
            ),
        ];
        for (resources, expected) in cases {
            let container = json!({"resources": resources});
            let mut errors = Vec::new();
            validate(&container, "spec.containers[0]", &mut errors);
            let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(texts.first().map(String::as_str), expected, "{container}");
            assert!(texts.len() <= 1);
        }
    }
}
