//! Structural schemas of custom resources: prune, default, validate, and the rules in CEL.
//!
//! Everything here is a pure function over JSON. The texts are those of the real server, since
//! people and tests read them.

mod cel;
mod correlate;
pub(crate) mod crd;
mod defaults;
mod embedded;
mod field_error;
mod formats;
pub(crate) mod gofmt;
mod lists;
pub(crate) mod names;
pub(crate) mod path;
mod prune;
mod re2;
mod structural;
mod structurality;
#[cfg(test)]
mod tests;
mod validate;

use serde_json::Value;

pub(crate) use field_error::{ErrorKind, FieldError, aggregate, invalid_message};

use path::Place;
use structural::Schema;

/// The schema of one version of a custom resource, ready for use.
#[derive(Debug)]
pub(crate) struct CompiledSchema {
    schema: Schema,
    rules: cel::Rules,
}

impl CompiledSchema {
    /// Compiles an `openAPIV3Schema`; `path` is its place in the definition, for errors.
    ///
    /// # Errors
    /// Every breach of the structural rules, or else every bad default, or else every rule that
    /// does not compile.
    pub(crate) fn compile(schema: &Value, path: &str) -> Result<Self, Vec<FieldError>> {
        let schema = Schema::parse(schema);
        let mut errors = structurality::problems(&schema, path);
        if !errors.is_empty() {
            return Err(errors);
        }
        defaults::problems(&schema, path, &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        let rules = cel::Rules::compile(&schema, path, true, &mut errors);
        if errors.is_empty() {
            Ok(Self { schema, rules })
        } else {
            Err(errors)
        }
    }

    /// Drops fields that the schema does not know and returns their sorted paths.
    pub(crate) fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::object(&self.schema, object)
    }

    /// Drops nulls where null is not allowed, then fills in defaults.
    pub(crate) fn apply_defaults(&self, object: &mut Value) {
        defaults::apply(&self.schema, object);
    }

    /// Everything that is wrong with a created (`old` is `None`) or changed object, its metadata
    /// and type aside.
    ///
    /// On update, what was wrong before and has not changed passes, except for transition rules.
    pub(crate) fn validate(&self, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let errors = validate::validate(&self.schema, new, old, "");
        self.validate_beyond_values(errors, new, old)
    }

    /// Everything that is wrong with a change of the status alone.
    pub(crate) fn validate_status(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let errors = match (new.get("status"), self.schema.properties.get("status")) {
            (Some(status), Some(schema)) => {
                validate::validate(schema, status, old.get("status"), "status")
            }
            _ => Vec::new(),
        };
        self.validate_beyond_values(errors, new, Some(old))
    }

    /// Embedded resources, uniqueness in lists and rules, after the values themselves.
    fn validate_beyond_values(
        &self,
        mut errors: Vec<FieldError>,
        new: &Value,
        old: Option<&Value>,
    ) -> Vec<FieldError> {
        let start = Place::start("");
        embedded::problems(&self.schema, new, &start, &mut errors);
        let mut repeated = Vec::new();
        lists::problems(&self.schema, new, &start, &mut repeated);
        if !repeated.is_empty() {
            let mut former = Vec::new();
            if let Some(old) = old {
                lists::problems(&self.schema, old, &start, &mut former);
            }
            // A list that held duplicates before may keep them.
            if former.is_empty() {
                errors.append(&mut repeated);
            }
        }
        if self.rules.is_empty() {
            return errors;
        }
        if errors.iter().any(blocks_rules) {
            errors.push(FieldError::invalid(
                "",
                Value::Null,
                "some validation rules were not checked because the object was invalid; correct \
                 the existing errors to complete validation",
            ));
        } else {
            errors.extend(cel::validate(&self.schema, &self.rules, "", new, old, true));
        }
        errors
    }
}

/// Whether a rule may not be run on an object with this error.
fn blocks_rules(error: &FieldError) -> bool {
    matches!(
        error.kind,
        ErrorKind::NotSupported
            | ErrorKind::Required
            | ErrorKind::TooLong
            | ErrorKind::TooMany
            | ErrorKind::TypeInvalid
    )
}
