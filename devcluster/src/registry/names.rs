//! Acceptance of the names that a definition wants.

use serde_json::{Map, Value, json};

/// What a definition gets of the names it asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Acceptance {
    /// `status.acceptedNames`.
    pub(crate) names: Value,
    /// Reason and text of the first clash, if there is one.
    pub(crate) clash: Option<(&'static str, String)>,
}

/// Decides which names a definition gets, given the accepted names of the other definitions of its group.
///
/// A name that was accepted before stays; a clash leaves what was accepted before in its place.
pub(crate) fn accept(definition: &Value, others: &[&Value]) -> Acceptance {
    let requested = &definition["spec"]["names"];
    let current = &definition["status"]["acceptedNames"];
    let taken = |key: &str, name: &str| {
        others.iter().any(|other| {
            let accepted = &other["status"]["acceptedNames"];
            let resources = [&accepted["plural"], &accepted["singular"]];
            let kinds = [&accepted["kind"], &accepted["listKind"]];
            match key {
                "kind" | "listKind" => kinds.iter().any(|kind| **kind == name),
                _ => {
                    resources.iter().any(|resource| **resource == name)
                        || accepted["shortNames"]
                            .as_array()
                            .into_iter()
                            .flatten()
                            .any(|s| s == name)
                }
            }
        })
    };
    let mut names = current.as_object().cloned().unwrap_or_default();
    let mut clash = None;
    for (key, reason) in [
        ("plural", "PluralConflict"),
        ("singular", "SingularConflict"),
        ("kind", "KindConflict"),
        ("listKind", "ListKindConflict"),
    ] {
        let name = requested[key].as_str().unwrap_or_default();
        if taken(key, name) {
            clash.get_or_insert_with(|| (reason, in_use(name)));
        } else {
            names.insert(key.to_owned(), Value::from(name));
        }
    }
    let wanted: Vec<&str> = requested["shortNames"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let refused: Vec<&str> = wanted
        .iter()
        .copied()
        .filter(|name| taken("shortNames", name))
        .collect();
    if refused.is_empty() {
        set_or_remove(&mut names, "shortNames", json!(wanted));
    } else {
        let texts: Vec<String> = refused.iter().map(|name| in_use(name)).collect();
        clash.get_or_insert_with(|| ("ShortNamesConflict", texts.join(", ")));
    }
    set_or_remove(&mut names, "categories", requested["categories"].clone());
    Acceptance {
        names: Value::Object(names),
        clash,
    }
}

fn in_use(name: &str) -> String {
    format!("\"{name}\" is already in use")
}

fn set_or_remove(names: &mut Map<String, Value>, key: &str, list: Value) {
    if list.as_array().is_some_and(|list| !list.is_empty()) {
        names.insert(key.to_owned(), list);
    } else {
        names.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(plural: &str, kind: &str, short: &[&str]) -> Value {
        json!({"spec": {"names": {
            "plural": plural, "singular": kind.to_lowercase(), "kind": kind,
            "listKind": format!("{kind}List"), "shortNames": short,
        }}})
    }

    fn accepted(mut definition: Value) -> Value {
        let names = accept(&definition, &[]).names;
        definition["status"] = json!({"acceptedNames": names});
        definition
    }

    #[test]
    fn free_names_are_accepted_and_taken_ones_named() {
        let first = accepted(definition("foos", "Foo", &["f"]));
        let cases = [
            (definition("bars", "Bar", &["b"]), None),
            (
                definition("bars", "Bar", &["f"]),
                Some("ShortNamesConflict"),
            ),
            (definition("bars", "Foo", &[]), Some("SingularConflict")),
            (definition("foos", "Bar", &[]), Some("PluralConflict")),
        ];
        for (second, reason) in cases {
            let acceptance = accept(&second, &[&first]);
            assert_eq!(
                acceptance.clash.as_ref().map(|(reason, _)| *reason),
                reason,
                "{second}"
            );
        }
        let second = accept(&definition("bars", "Bar", &["f"]), &[&first]);
        assert_eq!(second.names["plural"], "bars");
        assert!(second.names.get("shortNames").is_none());
    }
}
