//! Options of requests, from the query or the body.

use serde_json::Value;

use super::Call;
use crate::{
    error::{ApiError, ApiResult},
    http::query::Query,
    schema::FieldError,
};

/// What happens to fields that the server does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// Options of create, update and patch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WriteOptions {
    pub(super) dry_run: bool,
    pub(super) field_validation: FieldValidation,
    /// An apply takes what others own.
    pub(super) force: bool,
}

impl WriteOptions {
    /// Reads and checks the options of a write; `kind` names them in errors.
    pub(super) fn parse(query: &Query, kind: &str) -> ApiResult<Self> {
        let mut errors = Vec::new();
        if query.raw_is_set("force") {
            errors.push(FieldError::forbidden(
                "force",
                "may not be specified for non-apply patch",
            ));
        }
        Self::parse_rest(query, kind, errors)
    }

    /// Reads and checks the options of an apply, which must say whose it is.
    pub(super) fn parse_apply(query: &Query) -> ApiResult<Self> {
        let mut errors = Vec::new();
        if query.text("fieldManager").is_none() {
            errors.push(FieldError::required(
                "fieldManager",
                "is required for apply patch",
            ));
        }
        let force = query.flag("force").unwrap_or(false);
        let rest = Self::parse_rest(query, "PatchOptions", errors)?;
        Ok(Self { force, ..rest })
    }

    fn parse_rest(query: &Query, kind: &str, mut errors: Vec<FieldError>) -> ApiResult<Self> {
        let dry_run = dry_run(query.all("dryRun"), &mut errors);
        let field_validation = match query.text("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Strict") => FieldValidation::Strict,
            Some("Ignore") => FieldValidation::Ignore,
            Some(other) => {
                errors.push(FieldError::not_supported(
                    "fieldValidation",
                    other,
                    &["", "Ignore", "Strict", "Warn"],
                ));
                FieldValidation::Warn
            }
        };
        if let Some(manager) = query.text("fieldManager") {
            if manager.len() > 128 {
                errors.push(FieldError::too_long("fieldManager", 128));
            }
            if manager.chars().any(char::is_control) {
                errors.push(FieldError::invalid(
                    "fieldManager",
                    manager,
                    "should only contain printable characters",
                ));
            }
        }
        if errors.is_empty() {
            Ok(Self {
                dry_run,
                field_validation,
                force: false,
            })
        } else {
            Err(ApiError::invalid("meta.k8s.io", kind, "", &errors))
        }
    }
}

fn dry_run<'a>(values: impl Iterator<Item = &'a str>, errors: &mut Vec<FieldError>) -> bool {
    let values: Vec<&str> = values.filter(|value| !value.is_empty()).collect();
    if values.iter().any(|value| *value != "All") {
        let list = values
            .iter()
            .map(|value| Value::from(*value))
            .collect::<Vec<_>>();
        errors.push(FieldError::not_supported(
            "dryRun",
            Value::from(list),
            &["All"],
        ));
    }
    !values.is_empty()
}

/// What becomes of the objects that an object owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    Orphan,
    Background,
    Foreground,
}

/// Options of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeleteOptions {
    pub(crate) dry_run: bool,
    pub(crate) grace: Option<i64>,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
}

impl DeleteOptions {
    /// Reads the options from the body, else from the query, and checks them.
    pub(super) fn parse(call: &Call) -> ApiResult<Self> {
        let from_body = (!call.body.iter().all(u8::is_ascii_whitespace)).then_some(());
        let source = match from_body {
            Some(()) => {
                let value = super::body::decode_any(call)?;
                if value["kind"]
                    .as_str()
                    .is_some_and(|kind| kind != "DeleteOptions")
                {
                    return Err(ApiError::bad_request(format!(
                        "the body must be DeleteOptions, not {}",
                        value["kind"]
                    )));
                }
                value
            }
            None => from_query(&call.query)?,
        };
        Self::checked(&source)
    }

    /// Options as JSON, checked.
    pub(super) fn checked(source: &Value) -> ApiResult<Self> {
        let mut errors = Vec::new();
        let runs = source["dryRun"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let dry_run = dry_run(runs, &mut errors);
        let policy = source["propagationPolicy"].as_str();
        let orphan = source["orphanDependents"].as_bool();
        if policy.is_some() && orphan.is_some() {
            errors.push(FieldError::invalid(
                "propagationPolicy",
                policy.unwrap_or_default(),
                "orphanDependents and deletionPropagation cannot be both set",
            ));
        }
        let propagation = match (policy, orphan) {
            (Some("Orphan"), _) | (None, Some(true)) => Some(Propagation::Orphan),
            (Some("Background"), _) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), _) => Some(Propagation::Foreground),
            (Some(other), _) => {
                errors.push(FieldError::not_supported(
                    "propagationPolicy",
                    other,
                    &["Foreground", "Background", "Orphan", "nil"],
                ));
                None
            }
            (None, None) => None,
        };
        if !errors.is_empty() {
            return Err(ApiError::invalid(
                "meta.k8s.io",
                "DeleteOptions",
                "",
                &errors,
            ));
        }
        let precondition = |key: &str| source["preconditions"][key].as_str().map(str::to_owned);
        Ok(Self {
            dry_run,
            grace: source["gracePeriodSeconds"].as_i64(),
            propagation,
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
        })
    }
}

fn from_query(query: &Query) -> ApiResult<Value> {
    let mut source = serde_json::Map::new();
    if let Some(seconds) = query.number("gracePeriodSeconds")? {
        source.insert("gracePeriodSeconds".to_owned(), Value::from(seconds));
    }
    if let Some(policy) = query.text("propagationPolicy") {
        source.insert("propagationPolicy".to_owned(), Value::from(policy));
    }
    if let Some(orphan) = query.flag("orphanDependents") {
        source.insert("orphanDependents".to_owned(), Value::from(orphan));
    }
    let runs: Vec<&str> = query.all("dryRun").collect();
    if !runs.is_empty() {
        source.insert("dryRun".to_owned(), Value::from(runs));
    }
    Ok(Value::Object(source))
}

/// Which revision a list shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListRevision {
    /// The newest, or any.
    Newest,
    /// That one or a later one.
    AtLeast(u64),
    /// That one.
    Exactly(u64),
}

/// Options of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListOptions {
    pub(super) limit: Option<usize>,
    pub(super) revision: ListRevision,
    pub(super) continue_token: Option<String>,
}

impl ListOptions {
    /// Reads the options of a list and checks their combination.
    pub(super) fn parse(query: &Query) -> ApiResult<Self> {
        let limit = query
            .number("limit")?
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| *n > 0);
        let continue_token = query.text("continue").map(str::to_owned);
        let revision_text = query.text("resourceVersion").unwrap_or_default();
        let matching = query.text("resourceVersionMatch");
        let mut errors = Vec::new();
        if query.flag("sendInitialEvents").is_some() {
            errors.push(FieldError::forbidden(
                "sendInitialEvents",
                "sendInitialEvents is forbidden for list",
            ));
        }
        if let Some(matching) = matching {
            check_match(
                matching,
                revision_text,
                continue_token.is_some(),
                &mut errors,
            );
        }
        if !errors.is_empty() {
            return Err(invalid_list_options(&errors));
        }
        if !revision_text.is_empty() && revision_text != "0" && continue_token.is_some() {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let revision = match revision_text {
            "" => ListRevision::Newest,
            text => {
                let asked: u64 = text.parse().map_err(|_| {
                    ApiError::bad_request(format!(
                        "invalid resource version \"{text}\": it must be a whole number"
                    ))
                })?;
                match (asked, matching, limit) {
                    (0, _, _) => ListRevision::Newest,
                    (_, Some("Exact"), _) | (_, None, Some(_)) => ListRevision::Exactly(asked),
                    _ => ListRevision::AtLeast(asked),
                }
            }
        };
        // Any state will do: it comes whole.
        let limit = if revision_text == "0" { None } else { limit };
        Ok(Self {
            limit,
            revision,
            continue_token,
        })
    }
}

fn check_match(matching: &str, revision: &str, continued: bool, errors: &mut Vec<FieldError>) {
    let at = "resourceVersionMatch";
    if revision.is_empty() {
        errors.push(FieldError::forbidden(
            at,
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        ));
    }
    if continued {
        errors.push(FieldError::forbidden(
            at,
            "resourceVersionMatch is forbidden when continue is provided",
        ));
    }
    if !matches!(matching, "Exact" | "NotOlderThan") {
        errors.push(FieldError::not_supported(
            at,
            matching,
            &["Exact", "NotOlderThan", ""],
        ));
    }
    if matching == "Exact" && revision == "0" {
        errors.push(FieldError::forbidden(
            at,
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        ));
    }
}

pub(super) fn invalid_list_options(errors: &[FieldError]) -> ApiError {
    ApiError::invalid("meta.k8s.io", "ListOptions", "", errors)
}

/// Where a watch starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchStart {
    /// The current state, at least as new as this revision, then what follows. `marked`: with a bookmark
    /// that ends the state, if bookmarks are wanted.
    State { at_least: u64 },
    /// What follows this revision.
    After(u64),
    /// What follows now.
    Now,
}

/// Options of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WatchOptions {
    pub(super) start: WatchStart,
    pub(super) bookmarks: bool,
    pub(super) timeout_seconds: Option<u64>,
}

impl WatchOptions {
    /// Reads the options of a watch and checks their combination.
    pub(super) fn parse(query: &Query) -> ApiResult<Self> {
        let text = query.text("resourceVersion").unwrap_or_default();
        let initial = query.flag("sendInitialEvents");
        let matching = query.text("resourceVersionMatch");
        let bookmarks = query.flag("allowWatchBookmarks").unwrap_or(false);
        let mut errors = Vec::new();
        match (initial, matching) {
            (None, Some(_)) => errors.push(FieldError::forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )),
            (Some(_), None) => errors.push(FieldError::forbidden(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            )),
            (Some(_), Some(other)) if other != "NotOlderThan" => errors.push(
                FieldError::not_supported("resourceVersionMatch", other, &["NotOlderThan"]),
            ),
            _ => {}
        }
        if !errors.is_empty() {
            return Err(invalid_list_options(&errors));
        }
        let timeout_seconds = query
            .number("timeoutSeconds")?
            .and_then(|n| u64::try_from(n).ok())
            .filter(|n| *n > 0);
        let revision: u64 = match text {
            "" => 0,
            text => text.parse().map_err(|_| {
                ApiError::unknown(format!(
                    "strconv.ParseUint: parsing \"{text}\": invalid syntax"
                ))
            })?,
        };
        let start = match (initial, revision) {
            (Some(true), revision) => WatchStart::State { at_least: revision },
            (Some(false), 0) => WatchStart::Now,
            (None, 0) => WatchStart::State { at_least: 0 },
            (_, revision) => WatchStart::After(revision),
        };
        Ok(Self {
            start,
            bookmarks,
            timeout_seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(Some(text))
    }

    #[test]
    fn list_options_follow_the_table_of_revision_and_match() {
        let newest = ListRevision::Newest;
        // query, limit and revision or the code of the refusal
        let cases = [
            ("", Ok((None, newest))),
            ("limit=2", Ok((Some(2), newest))),
            ("limit=-1", Ok((None, newest))),
            ("limit=2&resourceVersion=0", Ok((None, newest))),
            ("resourceVersion=7", Ok((None, ListRevision::AtLeast(7)))),
            (
                "resourceVersion=7&limit=2",
                Ok((Some(2), ListRevision::Exactly(7))),
            ),
            (
                "resourceVersion=7&resourceVersionMatch=Exact",
                Ok((None, ListRevision::Exactly(7))),
            ),
            (
                "resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=2",
                Ok((Some(2), ListRevision::AtLeast(7))),
            ),
            ("resourceVersionMatch=Exact", Err(422)),
            ("resourceVersion=0&resourceVersionMatch=Exact", Err(422)),
            ("resourceVersion=7&resourceVersionMatch=Foo", Err(422)),
            (
                "continue=x&resourceVersionMatch=Exact&resourceVersion=7",
                Err(422),
            ),
            ("continue=x&resourceVersion=7", Err(400)),
            ("sendInitialEvents=true", Err(422)),
            ("resourceVersion=abc", Err(400)),
            ("limit=abc", Err(400)),
        ];
        for (text, expected) in cases {
            let got = ListOptions::parse(&query(text));
            let got = got
                .map(|o| (o.limit, o.revision))
                .map_err(|error| error.code());
            assert_eq!(got, expected, "{text}");
        }
    }

    #[test]
    fn watch_options_follow_the_table_of_revision_and_initial_events() {
        let cases = [
            ("", Ok(WatchStart::State { at_least: 0 })),
            ("resourceVersion=0", Ok(WatchStart::State { at_least: 0 })),
            ("resourceVersion=9", Ok(WatchStart::After(9))),
            (
                "resourceVersion=9&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
                Ok(WatchStart::State { at_least: 9 }),
            ),
            (
                "sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
                Ok(WatchStart::Now),
            ),
            ("sendInitialEvents=true", Err(422)),
            ("resourceVersionMatch=NotOlderThan", Err(422)),
            ("resourceVersion=abc", Err(500)),
        ];
        for (text, expected) in cases {
            let got = WatchOptions::parse(&query(text))
                .map(|o| o.start)
                .map_err(|e| e.code());
            assert_eq!(got, expected, "{text}");
        }
    }

    #[test]
    fn delete_options_refuse_unknown_and_double_policies() {
        let cases = [
            (json!({}), Ok(None)),
            (
                json!({"propagationPolicy": "Foreground"}),
                Ok(Some(Propagation::Foreground)),
            ),
            (
                json!({"orphanDependents": true}),
                Ok(Some(Propagation::Orphan)),
            ),
            (json!({"propagationPolicy": "Foo"}), Err(422)),
            (
                json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
                Err(422),
            ),
            (json!({"dryRun": ["x"]}), Err(422)),
        ];
        for (source, expected) in cases {
            let got = DeleteOptions::checked(&source)
                .map(|o| o.propagation)
                .map_err(|e| e.code());
            assert_eq!(got, expected, "{source}");
        }
    }
}
