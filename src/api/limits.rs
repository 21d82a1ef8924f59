//! The limits of the schema applied to a manifest, before an API server sees it.
//!
//! The definition's own schema is what is walked, so that bounds stand in one place. Fields and
//! texts are those of the API server, which also looks at the rules of [`validation`] only once
//! no limit is broken; a text that the user wrote is not repeated. The server drops fields that it
//! does not know, and says so to who asks for strictness, as kubectl does; here they are faults.

use std::collections::BTreeSet;

use regex::Regex;
use serde_json::{Map, Value};

use super::v1alpha1::Proxy;
use super::validation::{self, Violation};
use super::{GROUP, crd};

/// Number under which broken limits are listed.
const LIMIT: &str = "C-01";
/// The one version there is.
const VERSION: &str = "v1alpha1";
/// Longest name of an object.
const MAX_NAME: usize = 253;
/// Fields of metadata that this schema does not spell out are the API server's own matter.
const METADATA: &str = "metadata";

/// Checks manifests of Proxies without an API server.
#[derive(Debug)]
pub struct Checker {
    schema: Value,
}

impl Default for Checker {
    /// Computes the schema (about a millisecond); one checker serves any number of manifests.
    fn default() -> Self {
        let version = crd().spec.versions.into_iter().next();
        let schema = version
            .and_then(|version| version.schema)
            .and_then(|schema| schema.open_api_v3_schema)
            .and_then(|schema| serde_json::to_value(schema).ok());
        Self {
            schema: schema.unwrap_or_default(),
        }
    }
}

impl Checker {
    /// What an API server would refuse in the manifest of a Proxy that is created; empty for a
    /// good one. Defaults need not be filled in.
    ///
    /// Costs no more than a walk over the manifest, and a regular expression for each text that
    /// has a pattern.
    #[must_use]
    pub fn check(&self, manifest: &Value) -> Vec<Violation> {
        let mut found = Found::default();
        check_type(manifest, &mut found);
        check_name(manifest, &mut found);
        found.walk("", &self.schema, manifest);
        if !found.0.is_empty() {
            return found.0;
        }
        match serde_json::from_value::<Proxy>(manifest.clone()) {
            Ok(proxy) => validation::validate(&proxy),
            // Within the schema, and yet not what the types hold, such as a number of 40 digits.
            Err(error) => {
                found.add("", format!("cannot be read as a Proxy: {error}"));
                found.0
            }
        }
    }
}

/// Whether a manifest is one of a Proxy, of any version.
#[must_use]
pub fn is_proxy(manifest: &Value) -> bool {
    let api = manifest["apiVersion"].as_str().unwrap_or_default();
    let group = api.split('/').next().unwrap_or_default();
    manifest["kind"] == "Proxy" && group == GROUP
}

fn check_type(manifest: &Value, found: &mut Found) {
    let api = manifest["apiVersion"].as_str().unwrap_or_default();
    let known = format!("{GROUP}/{VERSION}");
    if api != known {
        let text = format!("Invalid value: there is no version {api}; write {known}");
        found.add("apiVersion", text);
    }
}

fn check_name(manifest: &Value, found: &mut Found) {
    let metadata = &manifest[METADATA];
    let Some(name) = metadata["name"].as_str() else {
        if metadata["generateName"].as_str().is_none_or(str::is_empty) {
            let text = "Required value: name or generateName is required";
            found.add("metadata.name", text.to_owned());
        }
        return;
    };
    let is_label = |label: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !label.is_empty()
            && label.bytes().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > MAX_NAME || !name.split('.').all(is_label) {
        let text = "Invalid value: a lowercase RFC 1123 subdomain must consist of lower case \
                    alphanumeric characters, '-' or '.', and must start and end with an \
                    alphanumeric character";
        found.add("metadata.name", text.to_owned());
    }
}

/// Collects what is broken.
#[derive(Default)]
struct Found(Vec<Violation>);

impl Found {
    fn add(&mut self, field: &str, text: String) {
        let message = if field.is_empty() {
            text
        } else {
            format!("{field}: {text}")
        };
        self.0.push(Violation {
            rule: LIMIT,
            field: field.to_owned(),
            message,
        });
    }

    fn invalid(&mut self, field: &str, value: &Value, text: &str) {
        let shown = match value {
            Value::Number(number) => format!("{number}: "),
            _ => String::new(),
        };
        self.add(field, format!("Invalid value: {shown}{field} {text}"));
    }

    fn walk(&mut self, field: &str, schema: &Value, value: &Value) {
        // Dropped by the API server, as if it had not been written.
        if value.is_null() {
            return;
        }
        let int_or_string = schema["x-kubernetes-int-or-string"] == true;
        if let (Some(wanted), false) = (schema["type"].as_str(), int_or_string)
            && !is_of_type(value, wanted)
        {
            let text = format!("in body must be of type {wanted}: \"{}\"", type_of(value));
            self.invalid(field, value, &text);
            return;
        }
        match value {
            Value::Object(fields) => self.object(field, schema, fields),
            Value::Array(items) => self.array(field, schema, items),
            Value::String(text) => self.text(field, schema, text),
            Value::Number(number) => self.number(field, schema, number.as_f64(), value),
            Value::Bool(_) | Value::Null => {}
        }
        if let Some(allowed) = schema["enum"].as_array()
            && !allowed.contains(value)
        {
            let allowed: Vec<_> = allowed.iter().map(Value::to_string).collect();
            let allowed = allowed.join(", ");
            self.add(
                field,
                format!("Unsupported value: {value}: supported values: {allowed}"),
            );
        }
    }

    fn object(&mut self, field: &str, schema: &Value, fields: &Map<String, Value>) {
        let required = schema["required"].as_array().into_iter().flatten();
        for name in required.filter_map(Value::as_str) {
            if fields.get(name).is_none_or(Value::is_null) {
                self.add(&below(field, name), "Required value".to_owned());
            }
        }
        if let Some(most) = schema["maxProperties"].as_u64() {
            self.many(field, fields.len(), most);
        }
        let is_root = field.is_empty();
        for (name, value) in fields {
            let place = below(field, name);
            if let Some(known) = schema["properties"].get(name) {
                self.walk(&place, known, value);
            } else if let Some(each) = schema.get("additionalProperties") {
                self.walk(&place, each, value);
            } else if !(field == METADATA || is_root && matches!(&**name, "apiVersion" | "kind")) {
                let known = schema["properties"].as_object();
                let names = known.into_iter().flat_map(Map::keys).map(String::as_str);
                self.add(&place, unknown(&place, name, names));
            }
        }
    }

    fn array(&mut self, field: &str, schema: &Value, items: &[Value]) {
        if let Some(most) = schema["maxItems"].as_u64() {
            self.many(field, items.len(), most);
        }
        if let Some(least) = schema["minItems"].as_u64()
            && u64::try_from(items.len()).is_ok_and(|n| n < least)
        {
            let text = format!("in body should have at least {least} items");
            self.invalid(field, &Value::Null, &text);
        }
        let is_set = schema["x-kubernetes-list-type"] == "set";
        let mut seen = BTreeSet::new();
        for (n, item) in items.iter().enumerate() {
            let place = format!("{field}[{n}]");
            if is_set && !seen.insert(item.to_string()) {
                self.add(&place, "Duplicate value".to_owned());
            }
            self.walk(&place, &schema["items"], item);
        }
    }

    fn many(&mut self, field: &str, found: usize, most: u64) {
        if u64::try_from(found).is_ok_and(|found| found > most) {
            let text = format!("Too many: {found}: must have at most {most} items");
            self.add(field, text);
        }
    }

    /// As the server does, only the first limit that a text breaks is told.
    fn text(&mut self, field: &str, schema: &Value, text: &str) {
        let length = u64::try_from(text.chars().count()).unwrap_or(u64::MAX);
        let most = schema["maxLength"].as_u64().filter(|most| length > *most);
        let least = schema["minLength"].as_u64().filter(|least| length < *least);
        let is_other = |pattern: &&str| Regex::new(pattern).is_ok_and(|one| !one.is_match(text));
        if let Some(most) = most {
            let text = format!("Too long: may not be more than {most} bytes");
            self.add(field, text);
        } else if let Some(least) = least {
            let text = format!("in body should be at least {least} chars long");
            self.invalid(field, &Value::Null, &text);
        } else if let Some(pattern) = schema["pattern"].as_str().filter(is_other) {
            let text = format!("in body should match '{pattern}'");
            self.invalid(field, &Value::Null, &text);
        }
    }

    fn number(&mut self, field: &str, schema: &Value, number: Option<f64>, value: &Value) {
        let Some(number) = number else { return };
        if let Some(least) = schema["minimum"].as_f64()
            && number < least
        {
            let text = format!("in body should be greater than or equal to {least}");
            self.invalid(field, value, &text);
        }
        if let Some(most) = schema["maximum"].as_f64()
            && number > most
        {
            let text = format!("in body should be less than or equal to {most}");
            self.invalid(field, value, &text);
        }
    }
}

fn below(field: &str, name: &str) -> String {
    if field.is_empty() {
        name.to_owned()
    } else {
        format!("{field}.{name}")
    }
}

fn is_of_type(value: &Value, wanted: &str) -> bool {
    match wanted {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        _ => true,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The server's words for a field that it does not know, and the field that may be meant.
fn unknown<'a>(place: &str, name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = known
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .min()
        .filter(|(distance, _)| *distance <= 2);
    match near {
        Some((_, meant)) => format!("unknown field \"{place}\", did you mean {meant}"),
        None => format!("unknown field \"{place}\""),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(spec: &Value) -> Vec<String> {
        let manifest = json!({
            "apiVersion": "crawl.proxyoperator.dev/v1alpha1", "kind": "Proxy",
            "metadata": { "name": "one", "labels": { "any": "thing" } }, "spec": spec,
        });
        let found = Checker::default().check(&manifest);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn b05_a_number_out_of_its_range_is_named_with_the_range() {
        let found = faults(&json!({ "provider": "kubernetes", "port": 70000 }));
        let expected = "spec.port: Invalid value: 70000: spec.port in body should be less than or equal to 65535";
        assert_eq!(found, [expected]);
    }

    #[test]
    fn an_unknown_field_is_a_fault_with_what_may_be_meant() {
        for (spec, expected) in [
            (
                json!({ "provider": "kubernetes", "prot": 1 }),
                "spec.prot: unknown field \"spec.prot\", did you mean port",
            ),
            (
                json!({ "provider": "kubernetes", "machine": { "colour": "red" } }),
                "spec.machine.colour: unknown field \"spec.machine.colour\"",
            ),
        ] {
            assert_eq!(faults(&spec), [expected]);
        }
    }

    #[test]
    fn types_texts_lists_and_needed_fields_are_checked() {
        for (spec, expected) in [
            (
                json!({ "provider": "kubernetes", "port": "80" }),
                "spec.port: Invalid value: spec.port in body must be of type integer: \"string\"",
            ),
            (
                json!({ "mode": "External", "endpoint": { "host": "a" } }),
                "spec.endpoint.port: Required value",
            ),
            (
                json!({ "provider": "k", "healthCheck": { "expectedStatus": [200, 200] } }),
                "spec.healthCheck.expectedStatus[1]: Duplicate value",
            ),
            (
                json!({ "provider": "k", "cloudInit": { "inline": "x".repeat(65_537) } }),
                "spec.cloudInit.inline: Too long: may not be more than 65536 bytes",
            ),
        ] {
            assert_eq!(faults(&spec), [expected]);
        }
    }

    #[test]
    fn a_text_that_the_user_wrote_is_not_repeated() {
        for spec in [
            json!({ "provider": "Hunter2" }),
            json!({ "provider": "k", "tags": { "a": "Hunter2" } }),
            json!({ "provider": "k", "port": "Hunter2" }),
        ] {
            let found = faults(&spec);
            assert!(
                found.len() == 1 && !found[0].contains("Hunter2"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn version_and_name_are_checked() {
        let manifest = json!({
            "apiVersion": "crawl.proxyoperator.dev/v2", "kind": "Proxy",
            "metadata": { "name": "One" }, "spec": { "provider": "kubernetes" },
        });
        let found = Checker::default().check(&manifest);
        let fields: Vec<_> = found.iter().map(|fault| fault.field.as_str()).collect();
        assert_eq!(fields, ["apiVersion", "metadata.name"]);
        assert!(
            found[0]
                .message
                .contains("crawl.proxyoperator.dev/v1alpha1")
        );
    }

    #[test]
    fn without_a_broken_limit_the_rules_speak() {
        let found = faults(&json!({ "mode": "Managed" }));
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("spec.provider is required when spec.mode is Managed"));
        assert_eq!(faults(&json!({ "provider": "kubernetes" })), [""; 0]);
    }
}
