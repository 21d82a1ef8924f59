//! Validation of values against a schema: types, bounds, formats and junctors.
//!
//! Mirrors the real server's validator in what it reports, in which words and, within one node,
//! in which order. On update, errors of parts that did not change are let pass (ratcheting).

use std::collections::HashSet;

use serde_json::Value;

use super::correlate;
use super::field_error::{ErrorKind, FieldError};
use super::path::Place;
use super::structural::{Additional, Checks, Schema};
use super::{formats, gofmt};

/// Checks `value`; `old` is its former self on update, `base` the field that paths begin at.
pub(super) fn validate(
    schema: &Schema,
    value: &Value,
    old: Option<&Value>,
    base: &str,
) -> Vec<FieldError> {
    let walk = Walk { base };
    let outcome = walk.ratcheted(schema, value, old, &Place::start(""));
    outcome
        .problems
        .into_iter()
        .map(|problem| problem.error)
        .collect()
}

/// One problem with the sentence that identifies it; a sentence counts once.
struct Problem {
    sentence: String,
    error: FieldError,
}

/// What the checks of one node and those below it found.
#[derive(Default)]
struct Outcome {
    problems: Vec<Problem>,
    /// How many checks could be made; the failing alternative with the most is reported.
    passed: usize,
}

impl Outcome {
    fn is_valid(&self) -> bool {
        self.problems.is_empty()
    }

    fn merge(&mut self, other: Outcome) {
        self.passed += other.passed;
        let mut known: HashSet<String> = self
            .problems
            .iter()
            .map(|problem| problem.sentence.clone())
            .collect();
        self.problems.extend(
            other
                .problems
                .into_iter()
                .filter(|p| known.insert(p.sentence.clone())),
        );
    }

    fn push(&mut self, sentence: String, error: FieldError) {
        if self
            .problems
            .iter()
            .all(|problem| problem.sentence != sentence)
        {
            self.problems.push(Problem { sentence, error });
        }
    }
}

struct Walk<'a> {
    base: &'a str,
}

impl Walk<'_> {
    fn field(&self, at: &Place<'_>) -> String {
        let at = at.to_string();
        let at = at.strip_prefix('.').unwrap_or(&at);
        match (self.base, at) {
            (base, "") => base.to_owned(),
            ("", at) => at.to_owned(),
            (base, at) => format!("{base}.{at}"),
        }
    }

    /// An error whose detail is the sentence about the field.
    fn invalid(&self, outcome: &mut Outcome, at: &Place<'_>, value: impl Into<Value>, rest: &str) {
        let sentence = format!("{at} in body {rest}");
        let error = FieldError::invalid(self.field(at), value, sentence.as_str());
        outcome.push(sentence, error);
    }

    /// An error about the value as a whole, which the real server reports without a field.
    fn unplaced(&self, outcome: &mut Outcome, sentence: String) {
        let error = FieldError::invalid(self.base, "", sentence.as_str());
        outcome.push(sentence, error);
    }

    fn type_mismatch(&self, outcome: &mut Outcome, at: &Place<'_>, wanted: &str, found: &str) {
        let sentence = format!(
            "{at} in body must be of type {wanted}: {}",
            gofmt::quote(found)
        );
        let error = FieldError::type_invalid(self.field(at), found, sentence.as_str());
        outcome.push(sentence, error);
    }

    fn ratcheted(
        &self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        at: &Place<'_>,
    ) -> Outcome {
        let outcome = self.node(schema, value, old, at);
        if !outcome.is_valid() && old == Some(value) {
            return Outcome {
                problems: Vec::new(),
                passed: outcome.passed,
            };
        }
        outcome
    }

    fn node(&self, schema: &Schema, value: &Value, old: Option<&Value>, at: &Place<'_>) -> Outcome {
        let mut outcome = Outcome::default();
        let checks = &schema.checks;
        if value.is_null() {
            let types = schema.types();
            if types.is_empty() || schema.nullable || types.contains(&"null") {
                outcome.passed += 1;
            } else {
                self.type_mismatch(&mut outcome, at, &types.join(","), "null");
            }
            self.enumeration(&mut outcome, checks, value, at);
            return outcome;
        }
        if !schema.types().is_empty() || !checks.format.is_empty() {
            self.type_of(&mut outcome, schema, value, at);
            outcome.passed += 1;
        }
        self.junctors(&mut outcome, checks, value, old, at);
        outcome.passed += 1;
        match value {
            Value::String(text) => {
                self.string(&mut outcome, checks, text, at);
                outcome.passed += 1;
                if !checks.format.is_empty() && !is_numeric_format(&checks.format) {
                    if !formats::holds(&checks.format, text) {
                        self.type_mismatch(&mut outcome, at, &checks.format, text);
                    }
                    outcome.passed += 1;
                }
            }
            Value::Number(_) => {
                self.number(&mut outcome, schema, value, at);
                outcome.passed += 2;
            }
            Value::Array(items) => {
                self.array(&mut outcome, schema, items, old, at);
                outcome.passed += 2;
            }
            _ => {}
        }
        self.enumeration(&mut outcome, checks, value, at);
        outcome.passed += 1;
        if let Value::Object(fields) = value {
            self.object(&mut outcome, schema, fields, old, at);
            outcome.passed += 1;
        }
        outcome.passed += 1;
        outcome
    }

    fn type_of(&self, outcome: &mut Outcome, schema: &Schema, value: &Value, at: &Place<'_>) {
        let types = schema.types();
        let format = schema.checks.format.as_str();
        let (found, found_format) = match value {
            Value::Null => ("null", ""),
            Value::Bool(_) => ("boolean", ""),
            Value::String(_) => ("string", ""),
            Value::Number(number) if number.is_i64() => ("integer", "int64"),
            Value::Number(_) => ("number", "float64"),
            Value::Array(_) => ("array", ""),
            Value::Object(_) => ("object", ""),
        };
        let whole = found == "number"
            && types.contains(&"integer")
            && value.as_f64().is_some_and(|number| number.fract() == 0.0);
        let widened = found == "integer" && types.contains(&"number");
        let fits = types.contains(&found) || whole || widened;
        let sequence = matches!(value, Value::String(_) | Value::Array(_));
        if !sequence && !format.is_empty() && !fits && found_format != format {
            self.type_mismatch(outcome, at, format, found_format);
            return;
        }
        let numeric = types.contains(&"number") || types.contains(&"integer");
        if !numeric && !format.is_empty() && sequence {
            outcome.passed += 1;
            return;
        }
        if fits {
            outcome.passed += 1;
        } else {
            self.type_mismatch(outcome, at, &types.join(","), found);
        }
    }

    fn junctors(
        &self,
        outcome: &mut Outcome,
        checks: &Checks,
        value: &Value,
        old: Option<&Value>,
        at: &Place<'_>,
    ) {
        let quoted = || gofmt::quote(&at.to_string());
        if !checks.any_of.is_empty() {
            let mut best: Option<Outcome> = None;
            let mut valid = None;
            for schema in &checks.any_of {
                let result = self.node(schema, value, old, at);
                if result.is_valid() {
                    valid = Some(result);
                    break;
                }
                if best.as_ref().is_none_or(|b| result.passed > b.passed) {
                    best = Some(result);
                }
            }
            if valid.is_none() {
                let sentence = format!("{} must validate at least one schema (anyOf)", quoted());
                self.unplaced(outcome, sentence);
            }
            if let Some(result) = valid.or(best) {
                outcome.merge(result);
            }
        }
        if !checks.one_of.is_empty() {
            self.one_of(outcome, checks, value, old, at);
        }
        if !checks.all_of.is_empty() {
            let mut valid = 0;
            for schema in &checks.all_of {
                let result = self.node(schema, value, old, at);
                valid += usize::from(result.is_valid());
                outcome.merge(result);
            }
            if valid != checks.all_of.len() {
                let rest = if valid == 0 { ". None validated" } else { "" };
                let sentence = format!("{} must validate all the schemas (allOf){rest}", quoted());
                self.unplaced(outcome, sentence);
            }
        }
        if let Some(not) = &checks.not
            && self.node(not, value, old, at).is_valid()
        {
            let sentence = format!("{} must not validate the schema (not)", quoted());
            self.unplaced(outcome, sentence);
        }
        outcome.passed += 1;
    }

    fn one_of(
        &self,
        outcome: &mut Outcome,
        checks: &Checks,
        value: &Value,
        old: Option<&Value>,
        at: &Place<'_>,
    ) {
        let mut best: Option<Outcome> = None;
        let mut first_valid = None;
        let mut valid = 0;
        for schema in &checks.one_of {
            let result = self.node(schema, value, old, at);
            if result.is_valid() {
                valid += 1;
                best = None;
                first_valid.get_or_insert(result);
            } else if valid == 0 && best.as_ref().is_none_or(|b| result.passed > b.passed) {
                best = Some(result);
            }
        }
        if valid == 1 {
            if let Some(result) = first_valid {
                outcome.merge(result);
            }
            return;
        }
        let found = if valid == 0 {
            "Found none valid".to_owned()
        } else {
            format!("Found {valid} valid alternatives")
        };
        let quoted = gofmt::quote(&at.to_string());
        let sentence = format!("{quoted} must validate one and only one schema (oneOf). {found}");
        self.unplaced(outcome, sentence);
        if let Some(result) = best {
            outcome.merge(result);
        }
    }

    /// Length and pattern; only the first breach is told.
    fn string(&self, outcome: &mut Outcome, checks: &Checks, text: &str, at: &Place<'_>) {
        let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        if let Some(max) = checks.max_length.filter(|max| length > *max) {
            let sentence = format!("{at} in body should be at most {max} chars long");
            outcome.push(sentence, FieldError::too_long(self.field(at), max));
        } else if let Some(min) = checks.min_length.filter(|min| length < *min) {
            self.invalid(
                outcome,
                at,
                text,
                &format!("should be at least {min} chars long"),
            );
        } else if let Some(pattern) = &checks.pattern {
            let source = &pattern.source;
            match &pattern.compiled {
                Ok(regex) if regex.is_match(text) => {}
                Ok(_) => self.invalid(outcome, at, text, &format!("should match '{source}'")),
                Err(error) => {
                    let rest = format!("should match '{source}, but pattern is invalid: {error}'");
                    self.invalid(outcome, at, text, &rest);
                }
            }
        }
    }

    fn number(&self, outcome: &mut Outcome, schema: &Schema, value: &Value, at: &Place<'_>) {
        let checks = &schema.checks;
        let number = value.as_f64().unwrap_or_default();
        let integer = value.as_i64();
        let whole = |bound: f64| {
            gofmt::float(if integer.is_some() {
                bound.trunc()
            } else {
                bound
            })
        };
        self.range(outcome, schema, number, at);
        if let Some(factor) = checks.multiple_of {
            let quotient = if factor < 1.0 {
                1.0 / factor * number
            } else {
                number / factor
            };
            if quotient.fract() != 0.0 {
                let rest = format!("should be a multiple of {}", whole(factor));
                self.invalid(outcome, at, value.clone(), &rest);
            }
        }
        if let Some(min) = checks.minimum {
            let exclusive = checks.exclusive_minimum;
            if number < min || (exclusive && number <= min) {
                let words = if exclusive {
                    "greater than"
                } else {
                    "greater than or equal to"
                };
                let rest = format!("should be {words} {}", whole(min));
                self.invalid(outcome, at, value.clone(), &rest);
            }
        }
        if let Some(max) = checks.maximum {
            let exclusive = checks.exclusive_maximum;
            if number > max || (exclusive && number >= max) {
                let words = if exclusive {
                    "less than"
                } else {
                    "less than or equal to"
                };
                let rest = format!("should be {words} {}", whole(max));
                self.invalid(outcome, at, value.clone(), &rest);
            }
        }
    }

    /// Whether the number fits the width that the format names.
    fn range(&self, outcome: &mut Outcome, schema: &Schema, number: f64, at: &Place<'_>) {
        let format = schema.checks.format.as_str();
        let fits = match (schema.type_name.as_str(), format) {
            ("integer", "int32") => {
                (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&number)
                    && number.fract() == 0.0
            }
            ("integer", _) => (-TWO_TO_63..TWO_TO_63).contains(&number) && number.fract() == 0.0,
            ("number", "float") => number.abs() <= f64::from(f32::MAX),
            _ => true,
        };
        if fits {
            return;
        }
        let type_name = schema.type_name.as_str();
        let with = if format.is_empty() {
            " (default format)".to_owned()
        } else {
            format!(" with format {format}")
        };
        self.unplaced(
            outcome,
            format!("Checked value must be of type {type_name}{with} in {at}"),
        );
    }

    fn enumeration(&self, outcome: &mut Outcome, checks: &Checks, value: &Value, at: &Place<'_>) {
        let allowed = &checks.enumeration;
        if allowed.is_empty() || allowed.iter().any(|one| same_value(one, value)) {
            return;
        }
        let names: Vec<String> = allowed.iter().map(gofmt::plain).collect();
        let sentence = format!("{at} in body should be one of [{}]", names.join(" "));
        let error = FieldError::not_supported(self.field(at), value.clone(), &names);
        outcome.push(sentence, error);
    }

    fn array(
        &self,
        outcome: &mut Outcome,
        schema: &Schema,
        items: &[Value],
        old: Option<&Value>,
        at: &Place<'_>,
    ) {
        if let Some(item_schema) = schema.items.as_deref() {
            let former = correlate::Items::new(schema, old);
            for (index, item) in items.iter().enumerate() {
                let at = at.index(index);
                outcome.merge(self.ratcheted(item_schema, item, former.of(item), &at));
            }
        }
        let size = i64::try_from(items.len()).unwrap_or(i64::MAX);
        let checks = &schema.checks;
        if let Some(min) = checks.min_items.filter(|min| size < *min) {
            self.invalid(
                outcome,
                at,
                size,
                &format!("should have at least {min} items"),
            );
        }
        if let Some(max) = checks.max_items.filter(|max| size > *max) {
            let sentence = format!("{at} in body should have at most {max} items");
            outcome.push(sentence, FieldError::too_many(self.field(at), size, max));
        }
        if checks.unique_items && (1..items.len()).any(|n| items[..n].contains(&items[n])) {
            self.invalid(outcome, at, "", "shouldn't contain duplicates");
        }
    }

    fn object(
        &self,
        outcome: &mut Outcome,
        schema: &Schema,
        fields: &serde_json::Map<String, Value>,
        old: Option<&Value>,
        at: &Place<'_>,
    ) {
        let checks = &schema.checks;
        let size = i64::try_from(fields.len()).unwrap_or(i64::MAX);
        if let Some(min) = checks.min_properties.filter(|min| size < *min) {
            self.invalid(
                outcome,
                at,
                size,
                &format!("should have at least {min} properties"),
            );
        }
        if let Some(max) = checks.max_properties.filter(|max| size > *max) {
            let sentence = format!("{at} in body should have at most {max} properties");
            outcome.push(sentence, FieldError::too_many(self.field(at), size, max));
        }
        let old = |name: &str| {
            // apiVersion and kind are the same in both by the time they get here.
            let type_meta = at.is_empty() && matches!(name, "apiVersion" | "kind");
            correlate::field(schema, old, name).filter(|_| !type_meta)
        };
        for (name, value) in fields {
            if schema.properties.contains_key(name) {
                continue;
            }
            match &schema.additional {
                Some(Additional::Allowed(false)) => {
                    let sentence = format!("{at}.{name} in body is a forbidden property");
                    let error =
                        FieldError::invalid(self.field(at), name.as_str(), sentence.as_str());
                    outcome.push(sentence, error);
                }
                Some(Additional::Of(of)) => {
                    let at = at.member(name);
                    outcome.merge(self.ratcheted(of, value, old(name), &at));
                }
                _ => {}
            }
        }
        for (name, property) in &schema.properties {
            if let Some(value) = fields.get(name) {
                let at = at.child(name);
                outcome.merge(self.ratcheted(property, value, old(name), &at));
            }
        }
        for name in checks
            .required
            .iter()
            .filter(|name| !fields.contains_key(*name))
        {
            let at = at.member(name);
            outcome.push(
                format!("{at} in body is required"),
                FieldError::new(ErrorKind::Required, self.field(&at), None, ""),
            );
        }
    }
}

/// Exact as a float, and the first whole number that does not fit 64 bits.
const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;

fn is_numeric_format(format: &str) -> bool {
    matches!(format, "int32" | "int64" | "float" | "double")
}

/// Equality of enumerated values: numbers by value, null never.
fn same_value(allowed: &Value, value: &Value) -> bool {
    match (allowed, value) {
        (Value::Null, _) => false,
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (a, b) => a == b,
    }
}
