//! Fields that others own and that an apply would change.

use std::collections::BTreeMap;

use super::{
    managers::{ManagerId, Operation},
    path::{self, PathElement},
};
use crate::{error::ApiError, schema::gofmt};

/// One field that somebody else owns with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) owner: ManagerId,
    pub(super) path: Vec<PathElement>,
}

/// The 409 of an apply that was not forced; its texts are the real server's.
pub(super) fn refusal(conflicts: &[Conflict]) -> ApiError {
    let message = match conflicts {
        [one] => format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            owner_text(&one.owner),
            path::text(&one.path)
        ),
        many => {
            let mut by_owner: BTreeMap<&ManagerId, Vec<String>> = BTreeMap::new();
            for conflict in many {
                let paths = by_owner.entry(&conflict.owner).or_default();
                paths.push(format!("- {}", path::text(&conflict.path)));
            }
            let parts: Vec<String> = by_owner
                .into_iter()
                .map(|(owner, paths)| {
                    format!(
                        "conflicts with {}:\n{}",
                        owner_text(owner),
                        paths.join("\n")
                    )
                })
                .collect();
            let count = many.len();
            format!("Apply failed with {count} conflicts: {}", parts.join("\n"))
        }
    };
    conflicts
        .iter()
        .fold(ApiError::apply_conflict(message), |error, conflict| {
            let cause = format!("conflict with {}", owner_text(&conflict.owner));
            error.with_cause("FieldManagerConflict", &cause, &path::text(&conflict.path))
        })
}

fn owner_text(id: &ManagerId) -> String {
    let mut text = gofmt::quote(&id.manager);
    if !id.subresource.is_empty() {
        text.push_str(&format!(
            " with subresource {}",
            gofmt::quote(&id.subresource)
        ));
    }
    if id.operation == Operation::Update {
        text.push_str(&format!(" using {}", id.api_version));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conflict(manager: &str, operation: Operation, subresource: &str, field: &str) -> Conflict {
        Conflict {
            owner: ManagerId {
                manager: manager.to_owned(),
                operation,
                api_version: match operation {
                    Operation::Apply => String::new(),
                    Operation::Update => "apps/v1".to_owned(),
                },
                subresource: subresource.to_owned(),
            },
            path: vec![PathElement::Field(field.to_owned())],
        }
    }

    #[test]
    fn p5_a_conflict_names_the_owner_and_the_field() {
        let one = [conflict("m2", Operation::Apply, "", "a")];
        let error = refusal(&one);
        assert_eq!(
            error.message(),
            "Apply failed with 1 conflict: conflict with \"m2\": .a"
        );
        let many = [
            conflict("m2", Operation::Apply, "", "a"),
            conflict("k", Operation::Update, "status", "b"),
            conflict("m2", Operation::Apply, "", "c"),
        ];
        let error = refusal(&many);
        assert_eq!(
            error.message(),
            "Apply failed with 3 conflicts: conflicts with \"k\" with subresource \"status\" using \
             apps/v1:\n- .b\nconflicts with \"m2\":\n- .a\n- .c"
        );
        let causes = error.status()["details"]["causes"].clone();
        assert_eq!(causes[1]["reason"], "FieldManagerConflict");
        assert_eq!(causes[1]["field"], ".b");
        assert_eq!(
            causes[1]["message"],
            "conflict with \"k\" with subresource \"status\" using apps/v1"
        );
    }
}
