//! What an insert is refused for.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::answer::Refusal;

const MAX_LABELS: usize = 64;
const MAX_METADATA_VALUE: usize = 256 * 1024;
const MAX_METADATA_TOTAL: usize = 512 * 1024;
/// Machine types that there are.
const SIZES: [&str; 6] = [
    "e2-micro",
    "e2-small",
    "e2-medium",
    "n1-standard-1",
    "n2-standard-2",
    "t2d-standard-1",
];

/// Checks the resource of an insert into `zone` of `project`.
pub(crate) fn check(resource: &Value, project: &str, zone: &str) -> Result<(), Box<Refusal>> {
    name(resource)?;
    machine_type(resource, project, zone)?;
    disks(resource, project)?;
    network(resource, project)?;
    labels(resource)?;
    tags(resource)?;
    metadata(resource)
}

fn name(resource: &Value) -> Result<(), Box<Refusal>> {
    let name = resource["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        return Err(required("resource.name"));
    }
    let pattern = "(?:[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)";
    if is_label_like(name, "-")
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
    {
        Ok(())
    } else {
        Err(Refusal::invalid(
            "resource.name",
            name,
            &format!("Must be a match of regex '{pattern}'"),
        ))
    }
}

/// At most 63 of lower-case letters, digits and `others`.
fn is_label_like(text: &str, others: &str) -> bool {
    text.len() <= 63
        && text
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || others.contains(c))
}

fn machine_type(resource: &Value, project: &str, zone: &str) -> Result<(), Box<Refusal>> {
    let text = resource["machineType"].as_str().unwrap_or_default();
    if text.is_empty() {
        return Err(required("resource.machineType"));
    }
    let size = text
        .strip_prefix(&format!("zones/{zone}/machineTypes/"))
        .ok_or_else(|| {
            let why = "The URL is malformed or names another zone.";
            Refusal::invalid("resource.machineType", text, why)
        })?;
    if SIZES.contains(&size) {
        Ok(())
    } else {
        let full = format!("projects/{project}/zones/{zone}/machineTypes/{size}");
        let message = format!(
            "Invalid value for field 'resource.machineType': \
             'https://compute.googleapis.com/compute/v1/{full}'. The referenced resource does not \
             exist."
        );
        Err(Refusal::boxed(400, "invalid", message))
    }
}

fn disks(resource: &Value, project: &str) -> Result<(), Box<Refusal>> {
    let boot = resource["disks"]
        .as_array()
        .and_then(|disks| disks.iter().find(|disk| disk["boot"] == true))
        .ok_or_else(|| required("resource.disks"))?;
    let params = &boot["initializeParams"];
    let image = params["sourceImage"].as_str().unwrap_or_default();
    if image.is_empty() {
        return Err(required("resource.disks[0].initializeParams.sourceImage"));
    }
    if image.contains("missing") {
        let path = match image.strip_prefix("global/") {
            Some(rest) => format!("projects/{project}/global/{rest}"),
            None => image.to_owned(),
        };
        return Err(Refusal::not_found(&path));
    }
    Ok(())
}

fn network(resource: &Value, project: &str) -> Result<(), Box<Refusal>> {
    let interface = &resource["networkInterfaces"][0];
    for (field, kind) in [("network", "networks"), ("subnetwork", "subnetworks")] {
        let text = interface[field].as_str().unwrap_or_default();
        if text.contains("missing") {
            let name = text.rsplit('/').next().unwrap_or_default();
            let path = format!("projects/{project}/global/{kind}/{name}");
            return Err(Refusal::not_found(&path));
        }
    }
    if interface.is_null() {
        return Err(required("resource.networkInterfaces"));
    }
    Ok(())
}

fn labels(resource: &Value) -> Result<(), Box<Refusal>> {
    let Some(labels) = resource["labels"].as_object() else {
        return Ok(());
    };
    if labels.len() > MAX_LABELS {
        let why = format!("At most {MAX_LABELS} labels are allowed.");
        return Err(Refusal::invalid("resource.labels", "", &why));
    }
    for (key, value) in labels {
        let value = value.as_str().unwrap_or("?");
        let is_key = is_label_like(key, "-_") && key.starts_with(|c: char| c.is_ascii_lowercase());
        if !is_key || !is_label_like(value, "-_") {
            let why = "Label keys and values have at most 63 of a-z, 0-9, - and _.";
            return Err(Refusal::invalid("resource.labels", key, why));
        }
    }
    Ok(())
}

fn tags(resource: &Value) -> Result<(), Box<Refusal>> {
    let items = resource["tags"]["items"].as_array();
    for item in items.into_iter().flatten() {
        let tag = item.as_str().unwrap_or_default();
        if !is_label_like(tag, "-") || !tag.starts_with(|c: char| c.is_ascii_lowercase()) {
            return Err(Refusal::invalid("resource.tags.items[0]", tag, "No tag."));
        }
    }
    Ok(())
}

/// Repeats the value that it refuses, as the cloud does.
fn metadata(resource: &Value) -> Result<(), Box<Refusal>> {
    let mut keys = BTreeSet::new();
    let mut total = 0;
    let items = resource["metadata"]["items"].as_array();
    for (index, item) in items.into_iter().flatten().enumerate() {
        let key = item["key"].as_str().unwrap_or_default();
        let value = item["value"].as_str().unwrap_or_default();
        let field = format!("resource.metadata.items[{index}]");
        if key.is_empty() || key.len() > 128 || !keys.insert(key) {
            return Err(Refusal::invalid(
                &format!("{field}.key"),
                key,
                "A key stands once.",
            ));
        }
        total += key.len() + value.len();
        if value.len() > MAX_METADATA_VALUE {
            let why = format!(
                "Value has {} bytes, at most {MAX_METADATA_VALUE}.",
                value.len()
            );
            return Err(Refusal::invalid(&format!("{field}.value"), value, &why));
        }
        if value.contains("refuse-this-value") {
            let why = "Metadata value is refused.";
            return Err(Refusal::invalid(&format!("{field}.value"), value, why));
        }
    }
    if total > MAX_METADATA_TOTAL {
        let message = format!("Metadata has {total} bytes, at most {MAX_METADATA_TOTAL}.");
        return Err(Refusal::boxed(413, "uploadTooLarge", message));
    }
    Ok(())
}

fn required(field: &str) -> Box<Refusal> {
    let message = format!("Required field '{field}' not specified");
    Refusal::boxed(400, "required", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vm() -> Value {
        json!({
            "name": "px-1", "machineType": "zones/z/machineTypes/e2-micro",
            "disks": [{ "boot": true, "initializeParams": { "sourceImage": "global/images/debian" } }],
            "networkInterfaces": [{ "network": "global/networks/default" }],
        })
    }

    #[test]
    fn each_fault_is_refused_with_its_field_and_status() {
        assert_eq!(check(&vm(), "p", "z"), Ok(()));
        for (pointer, value, status, part) in [
            ("/name", json!("Px"), 400, "resource.name"),
            ("/name", json!(""), 400, "Required field 'resource.name'"),
            (
                "/machineType",
                json!("zones/y/machineTypes/e2-micro"),
                400,
                "another zone",
            ),
            (
                "/machineType",
                json!("zones/z/machineTypes/huge"),
                400,
                "machineTypes/huge",
            ),
            ("/disks", json!([]), 400, "resource.disks"),
            (
                "/disks/0/initializeParams/sourceImage",
                json!("global/images/missing"),
                404,
                "projects/p/global/images/missing",
            ),
            (
                "/networkInterfaces/0/network",
                json!("global/networks/missing"),
                404,
                "networks/missing",
            ),
            ("/labels", json!({ "A": "b" }), 400, "resource.labels"),
            ("/labels", json!({ "a": "B" }), 400, "resource.labels"),
            ("/tags", json!({ "items": ["1"] }), 400, "resource.tags"),
            (
                "/metadata",
                json!({ "items": [{ "key": "a", "value": "x".repeat(MAX_METADATA_VALUE + 1) }] }),
                400,
                "resource.metadata.items[0].value",
            ),
        ] {
            let mut vm = vm();
            match vm.pointer_mut(pointer) {
                Some(place) => *place = value,
                None => vm[&pointer[1..]] = value,
            }
            let refused = check(&vm, "p", "z").expect_err(pointer);
            assert_eq!(refused.status, status, "{pointer}");
            assert!(refused.message.contains(part), "{}", refused.message);
        }
        let many: serde_json::Map<_, _> = (0..=MAX_LABELS)
            .map(|n| (format!("l{n}"), json!("")))
            .collect();
        let mut vm = vm();
        vm["labels"] = Value::Object(many);
        assert!(check(&vm, "p", "z").is_err());
    }
}
