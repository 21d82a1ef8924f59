//! Errors about one field of an object, in the words of the real server.

use std::collections::HashSet;
use std::fmt;

use serde_json::{Value, json};

use super::gofmt;

/// Why a field was refused; [`ErrorKind::reason`] is the `reason` of a Status cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// A value that must be there is missing.
    Required,
    /// A value breaks a rule.
    Invalid,
    /// A value is not one of an enumeration.
    NotSupported,
    /// A value must be unique and is not.
    Duplicate,
    /// A value may not be given here.
    Forbidden,
    /// A string is longer than allowed.
    TooLong,
    /// A list or map has more entries than allowed.
    TooMany,
    /// A value has the wrong JSON type.
    TypeInvalid,
    /// A value names something that does not exist.
    NotFound,
    /// The server could not decide.
    Internal,
}

impl ErrorKind {
    /// The machine-readable reason, e.g. `FieldValueInvalid`.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotFound => "FieldValueNotFound",
            Self::Internal => "InternalError",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::NotFound => "Not found",
            Self::Internal => "Internal error",
        }
    }

    /// Whether the text of this kind shows the refused value.
    fn shows_value(self) -> bool {
        !matches!(
            self,
            Self::Required | Self::Forbidden | Self::TooLong | Self::Internal
        )
    }
}

/// One refused field.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldError {
    /// Why it was refused.
    pub(crate) kind: ErrorKind,
    /// Path of the field, e.g. `spec.ports[0].name`; empty for the whole object.
    pub(crate) field: String,
    /// What is wrong and what is allowed; may be empty.
    pub(crate) detail: String,
    /// The refused value where the text shows one; `None` leaves it out.
    pub(crate) value: Option<Value>,
}

impl FieldError {
    /// A value that must be there is missing.
    pub(crate) fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Required, field, None, detail)
    }

    /// A value breaks a rule.
    pub(crate) fn invalid(
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(ErrorKind::Invalid, field, Some(value.into()), detail)
    }

    /// A value has the wrong JSON type.
    pub(crate) fn type_invalid(
        field: impl Into<String>,
        value: impl Into<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(ErrorKind::TypeInvalid, field, Some(value.into()), detail)
    }

    /// A value is not one of `supported`.
    pub(crate) fn not_supported<S: AsRef<str>>(
        field: impl Into<String>,
        value: impl Into<Value>,
        supported: &[S],
    ) -> Self {
        let quoted: Vec<String> = supported.iter().map(|s| gofmt::quote(s.as_ref())).collect();
        let detail = if quoted.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", quoted.join(", "))
        };
        Self::new(ErrorKind::NotSupported, field, Some(value.into()), detail)
    }

    /// A value must be unique and is not.
    pub(crate) fn duplicate(field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self::new(ErrorKind::Duplicate, field, Some(value.into()), "")
    }

    /// A value may not be given here.
    pub(crate) fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Forbidden, field, None, detail)
    }

    /// A string is longer than `max` bytes.
    pub(crate) fn too_long(field: impl Into<String>, max: i64) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        Self::new(
            ErrorKind::TooLong,
            field,
            None,
            format!("may not be more than {max} {unit}"),
        )
    }

    /// A list or map has `actual` entries where `max` are allowed.
    pub(crate) fn too_many(field: impl Into<String>, actual: i64, max: i64) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        Self::new(
            ErrorKind::TooMany,
            field,
            Some(Value::from(actual)),
            format!("must have at most {max} {unit}"),
        )
    }

    /// The server could not decide about the field.
    pub(crate) fn internal(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, field, None, detail)
    }

    /// Any error, field by field; `value: None` keeps the value out of the text.
    pub(crate) fn new(
        kind: ErrorKind,
        field: impl Into<String>,
        value: Option<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            kind,
            field: field.into(),
            detail: detail.into(),
            value,
        }
    }

    /// The text without the field, as a Status cause carries it.
    pub(crate) fn body(&self) -> String {
        let mut text = self.kind.words().to_owned();
        if let Some(value) = self.value.as_ref().filter(|_| self.kind.shows_value()) {
            text.push_str(": ");
            text.push_str(&gofmt::field_value(value));
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }

    /// The entry of `details.causes` of a Status.
    pub(crate) fn cause(&self) -> Value {
        json!({"reason": self.kind.reason(), "message": self.body(), "field": self.displayed_field()})
    }

    fn displayed_field(&self) -> &str {
        if self.field.is_empty() {
            "<nil>"
        } else {
            &self.field
        }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.displayed_field(), self.body())
    }
}

/// All errors in one text: bare if there is one, else `[a, b]`, repeated ones once.
pub(crate) fn aggregate(errors: &[FieldError]) -> String {
    let mut seen = HashSet::new();
    let texts: Vec<String> = errors
        .iter()
        .map(ToString::to_string)
        .filter(|text| seen.insert(text.clone()))
        .collect();
    match texts.as_slice() {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// `message` of the 422 Status for an object of `kind` (with its group) called `name`.
pub(crate) fn invalid_message(
    group: &str,
    kind: &str,
    name: &str,
    errors: &[FieldError],
) -> String {
    let qualified = if group.is_empty() {
        kind.to_owned()
    } else {
        format!("{kind}.{group}")
    };
    let head = format!("{qualified} {} is invalid", gofmt::quote(name));
    if errors.is_empty() {
        head
    } else {
        format!("{head}: {}", aggregate(errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_equal_those_of_the_real_server() {
        let cases = [
            (FieldError::required("spec.x", ""), "spec.x: Required value"),
            (
                FieldError::invalid("spec.x", "a\"b", "bad"),
                r#"spec.x: Invalid value: "a\"b": bad"#,
            ),
            (
                FieldError::invalid("spec.x", 3, "bad"),
                "spec.x: Invalid value: 3: bad",
            ),
            (
                FieldError::invalid("", Value::Null, "bad"),
                "<nil>: Invalid value: null: bad",
            ),
            (
                FieldError::invalid("spec", json!({"b": 1, "a": [true]}), "bad"),
                r#"spec: Invalid value: {"a":[true],"b":1}: bad"#,
            ),
            (
                FieldError::not_supported("spec.x", "c", &["a", "b"]),
                r#"spec.x: Unsupported value: "c": supported values: "a", "b""#,
            ),
            (
                FieldError::too_long("spec.x", 1),
                "spec.x: Too long: may not be more than 1 byte",
            ),
            (
                FieldError::too_many("spec.x", 3, 2),
                "spec.x: Too many: 3: must have at most 2 items",
            ),
            (
                FieldError::duplicate("spec.x[1]", "a"),
                r#"spec.x[1]: Duplicate value: "a""#,
            ),
            (
                FieldError::forbidden("spec.x", "no"),
                "spec.x: Forbidden: no",
            ),
            (
                FieldError::new(ErrorKind::Invalid, "spec", None, "rule"),
                "spec: Invalid value: rule",
            ),
        ];
        for (error, text) in cases {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn several_errors_stand_in_brackets_and_repeated_ones_once() {
        let one = FieldError::required("a", "");
        let two = FieldError::required("b", "");
        assert_eq!(aggregate(std::slice::from_ref(&one)), "a: Required value");
        assert_eq!(
            invalid_message("g.io", "K", "n", &[one.clone(), two, one]),
            r#"K.g.io "n" is invalid: [a: Required value, b: Required value]"#
        );
    }
}
