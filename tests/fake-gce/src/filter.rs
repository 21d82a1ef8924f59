//! The filter of a list, as far as clients of labels and names use it.
//!
//! Terms are `FIELD = VALUE`, `FIELD != VALUE` and `FIELD:*`, bare or in parentheses, joined by
//! `AND` or by standing beside each other. Fields are `name`, `status` and `labels.KEY`. Anything
//! else is refused, so that no test passes on a filter that was not understood.

use serde_json::Value;

/// A parsed filter: all terms must hold.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Filter(Vec<Term>);

#[derive(Debug, PartialEq, Eq)]
struct Term {
    field: String,
    test: Test,
}

#[derive(Debug, PartialEq, Eq)]
enum Test {
    Is(String),
    IsNot(String),
    Exists,
}

impl Filter {
    /// Parses a filter; the empty one lets everything pass.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut words = words(text)?.into_iter().peekable();
        let mut terms = Vec::new();
        while let Some(field) = words.next() {
            if field == "AND" {
                continue;
            }
            let known = field == "name" || field == "status" || field.starts_with("labels.");
            if !known {
                return Err(format!("field {field} is not supported"));
            }
            let operator = words.next().ok_or("an operator is missing")?;
            let value = words.next().ok_or("a value is missing")?;
            let test = match (operator.as_str(), value.as_str()) {
                (":", "*") => Test::Exists,
                ("=" | "eq", _) => Test::Is(value),
                ("!=" | "ne", _) => Test::IsNot(value),
                _ => return Err(format!("operator {operator} is not supported")),
            };
            terms.push(Term { field, test });
        }
        Ok(Self(terms))
    }

    /// Whether a resource passes.
    pub(crate) fn passes(&self, resource: &Value) -> bool {
        self.0.iter().all(|term| {
            let found = match term.field.strip_prefix("labels.") {
                Some(key) => resource["labels"][key].as_str(),
                None => resource[&term.field].as_str(),
            };
            match &term.test {
                Test::Is(value) => found == Some(value),
                Test::IsNot(value) => found != Some(value),
                Test::Exists => found.is_some(),
            }
        })
    }
}

/// Fields, operators and values; parentheses only group, and all groups are joined by AND.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let taken = match first {
            '(' | ')' => {
                rest = rest[1..].trim_start();
                continue;
            }
            '"' => {
                let end = rest[1..].find('"').ok_or("a quote is not closed")?;
                words.push(rest[1..=end].to_owned());
                end + 2
            }
            '!' if rest.starts_with("!=") => {
                words.push("!=".to_owned());
                2
            }
            '=' | ':' => {
                words.push(first.to_string());
                1
            }
            _ => {
                let stop = |c: char| c.is_whitespace() || "()=!:\"".contains(c);
                let end = rest.find(stop).unwrap_or(rest.len());
                words.push(rest[..end].to_owned());
                end
            }
        };
        if taken == 0 {
            return Err(format!("{rest} cannot be read"));
        }
        rest = rest[taken..].trim_start();
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_terms_of_a_filter_must_hold() {
        let vm = json!({ "name": "px-1", "status": "RUNNING", "labels": { "pxo-uid": "u-1" } });
        for (text, want) in [
            ("", true),
            ("name=px-1", true),
            (r#"name = "px-1""#, true),
            ("name != px-1", false),
            (r#"(labels.pxo-uid = "u-1") (status = RUNNING)"#, true),
            ("labels.pxo-uid=u-1 AND status=TERMINATED", false),
            ("labels.pxo-uid:*", true),
            ("labels.other:*", false),
            ("labels.other != x", true),
        ] {
            let filter = Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(filter.passes(&vm), want, "{text}");
        }
    }

    #[test]
    fn a_filter_that_is_not_understood_is_refused() {
        for text in [
            "zone = a",
            "name > a",
            "name =",
            "name",
            "name = \"a",
            "! = a",
        ] {
            assert!(Filter::parse(text).is_err(), "{text}");
        }
    }
}
