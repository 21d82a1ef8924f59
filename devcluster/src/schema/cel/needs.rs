//! Which fields of a value a rule looks at, so that no more than these are handed over to it.

use std::collections::BTreeSet;

use kube_cel::cel::Program;
use kube_cel::cel::common::ast::{EntryExpr, Expr};

/// What rules look at of the value of a variable.
///
/// It may name more than is looked at, never less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// The value as a whole.
    Everything,
    /// Fields of it, by their names in CEL; none if only its presence matters.
    Fields(BTreeSet<String>),
}

impl Default for Needs {
    /// Nothing yet.
    fn default() -> Self {
        Self::Fields(BTreeSet::new())
    }
}

impl Needs {
    /// What `program` looks at of `variable`.
    pub(super) fn of(program: &Program, variable: &str) -> Self {
        let mut needs = Self::default();
        needs.add_of(&program.expression().expr, variable);
        needs
    }

    /// Whether a field is looked at.
    pub(super) fn include(&self, field: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Fields(fields) => fields.contains(field),
        }
    }

    /// Adds what others look at.
    pub(super) fn extend(&mut self, more: Self) {
        match (&mut *self, more) {
            (Self::Fields(fields), Self::Fields(more)) => fields.extend(more),
            (_, Self::Everything) => *self = Self::Everything,
            (Self::Everything, Self::Fields(_)) => {}
        }
    }

    fn add_field(&mut self, field: &str) {
        if let Self::Fields(fields) = self {
            fields.insert(field.to_owned());
        }
    }

    fn add_of(&mut self, expr: &Expr, variable: &str) {
        let is_variable = |expr: &Expr| matches!(expr, Expr::Ident(name) if name == variable);
        match expr {
            Expr::Unspecified | Expr::Literal(_) => {}
            Expr::Ident(name) => {
                if name == variable {
                    *self = Self::Everything;
                }
            }
            Expr::Select(select) if is_variable(&select.operand.expr) => {
                self.add_field(&select.field);
            }
            Expr::Select(select) => self.add_of(&select.operand.expr, variable),
            Expr::Call(call) => {
                match call.target.as_deref() {
                    // Whether an optional has a value is told without it.
                    Some(target) if call.func_name == "hasValue" && is_variable(&target.expr) => {}
                    Some(target) => self.add_of(&target.expr, variable),
                    None => {}
                }
                for argument in &call.args {
                    self.add_of(&argument.expr, variable);
                }
            }
            Expr::Comprehension(all) => {
                let parts = [
                    &all.iter_range,
                    &all.accu_init,
                    &all.loop_cond,
                    &all.loop_step,
                    &all.result,
                ];
                for part in parts {
                    self.add_of(&part.expr, variable);
                }
            }
            Expr::List(list) => {
                for element in &list.elements {
                    self.add_of(&element.expr, variable);
                }
            }
            Expr::Map(map) => {
                self.add_entries(map.entries.iter().map(|entry| &entry.expr), variable)
            }
            Expr::Struct(of) => {
                self.add_entries(of.entries.iter().map(|entry| &entry.expr), variable)
            }
        }
    }

    fn add_entries<'e>(&mut self, entries: impl Iterator<Item = &'e EntryExpr>, variable: &str) {
        for entry in entries {
            match entry {
                EntryExpr::MapEntry(entry) => {
                    self.add_of(&entry.key.expr, variable);
                    self.add_of(&entry.value.expr, variable);
                }
                EntryExpr::StructField(field) => self.add_of(&field.value.expr, variable),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c6_a_rule_gets_the_fields_it_names_and_everything_where_it_takes_the_whole() {
        let cases: [(&str, &str, Option<&[&str]>); 12] = [
            ("self.a == 1 && has(self.b.c)", "self", Some(&["a", "b"])),
            ("self.a == oldSelf.b", "oldSelf", Some(&["b"])),
            ("true", "self", Some(&[])),
            ("oldSelf.hasValue() || self.a", "oldSelf", Some(&[])),
            ("oldSelf.value().a == 1", "oldSelf", None),
            ("oldSelf.orValue(self).a", "self", None),
            ("self == oldSelf", "self", None),
            ("size(self) > 1", "self", None),
            ("self['a'] == 1", "self", None),
            ("self.all(k, k == 'a')", "self", None),
            (
                "self.list.all(x, x < self.most)",
                "self",
                Some(&["list", "most"]),
            ),
            ("[self.a, {'k': self.b}.k][0]", "self", Some(&["a", "b"])),
        ];
        for (rule, variable, fields) in cases {
            let program = Program::compile(rule).expect(rule);
            let needs = Needs::of(&program, variable);
            match fields {
                None => assert_eq!(needs, Needs::Everything, "{rule}"),
                Some(fields) => {
                    let fields = fields.iter().map(|field| (*field).to_owned()).collect();
                    assert_eq!(needs, Needs::Fields(fields), "{rule}");
                }
            }
        }
    }

    #[test]
    fn c6_needs_of_several_rules_add_up() {
        let of = |rule: &str| Needs::of(&Program::compile(rule).expect(rule), "self");
        let mut needs = of("self.a");
        needs.extend(of("self.b"));
        assert!(needs.include("a") && needs.include("b") && !needs.include("c"));
        needs.extend(of("self == self"));
        needs.extend(of("self.a"));
        assert_eq!(needs, Needs::Everything);
    }
}
