//! `x-kubernetes-validations`: rules in CEL on the nodes of a schema.
//!
//! The library evaluates; what a rule sees, where it applies and what its failure says is
//! decided here, because the library's own validation engine correlates lists by position, walks
//! `anyOf` and shows undeclared fields, none of which the real server does.

mod check;
mod cost;
mod environment;
mod evaluate;
mod field_path;
mod needs;
mod nesting;
mod value;

use std::collections::BTreeMap;

use kube_cel::cel::Program;
use serde_json::Value;

use super::field_error::{ErrorKind, FieldError};
use super::path;
use super::structural::{RuleSource, Schema, property_path};
use check::Type;
use cost::{Bound, Cardinality};
use needs::Needs;

pub(super) use evaluate::validate;

/// The compiled rules of a node and of those below it that have any.
#[derive(Debug, Default)]
pub(super) struct Rules {
    own: Vec<Rule>,
    /// What the own rules look at of `self`, and of `oldSelf`.
    needs: Needs,
    old_needs: Needs,
    properties: BTreeMap<String, Rules>,
    items: Option<Box<Rules>>,
    additional: Option<Box<Rules>>,
}

/// One compiled rule.
#[derive(Debug)]
struct Rule {
    program: Program,
    uses_old_self: bool,
    optional_old_self: bool,
    /// What to call the rule in messages about it: its message, else its source.
    display: String,
    message: String,
    message_program: Option<Program>,
    kind: ErrorKind,
    /// The path below the node that failures are reported at; may be empty.
    field_path: String,
}

impl Rule {
    fn programs(&self) -> impl Iterator<Item = &Program> {
        std::iter::once(&self.program).chain(&self.message_program)
    }
}

impl Rules {
    /// Compiles the rules of `schema` and below; `at` is its place in the definition.
    pub(super) fn compile(
        schema: &Schema,
        at: &str,
        is_root: bool,
        errors: &mut Vec<FieldError>,
    ) -> Self {
        let mut compiler = Compiler {
            errors,
            total: 0,
            expensive: Vec::new(),
        };
        let rules = compiler.node(schema, at, is_root, None, Cardinality::ROOT);
        compiler.judge_total(at);
        rules
    }

    /// Whether no node has a rule.
    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty()
            && self.properties.is_empty()
            && self.items.is_none()
            && self.additional.is_none()
    }

    fn into_option(self) -> Option<Box<Self>> {
        if self.is_empty() {
            None
        } else {
            Some(Box::new(self))
        }
    }
}

/// One walk over a schema, with what it has found.
struct Compiler<'e> {
    errors: &'e mut Vec<FieldError>,
    /// The cost of all rules so far.
    total: u64,
    /// Rules that take a notable part of what all may cost, with their places.
    expensive: Vec<(u64, String)>,
}

impl Compiler<'_> {
    /// `uncorrelated` is the list above whose items have no former selves, if there is one.
    fn node(
        &mut self,
        schema: &Schema,
        at: &str,
        is_root: bool,
        uncorrelated: Option<&str>,
        cardinality: Cardinality,
    ) -> Rules {
        let mut rules = Rules::default();
        if !schema.rules.is_empty() {
            rules.own = self.own(schema, at, is_root, uncorrelated, cardinality);
            for program in rules.own.iter().flat_map(Rule::programs) {
                rules.needs.extend(Needs::of(program, "self"));
                rules.old_needs.extend(Needs::of(program, "oldSelf"));
            }
        }
        let below = cardinality.below(schema);
        if let Some(items) = &schema.items {
            let is_map = schema.list_type.as_deref() == Some("map");
            let uncorrelated = uncorrelated.or_else(|| (!is_map).then_some(at));
            let at = path::child(at, "items");
            rules.items = self
                .node(items, &at, items.embedded, uncorrelated, below)
                .into_option();
        }
        if let Some(of) = schema.additional_schema() {
            let at = path::child(at, "additionalProperties");
            rules.additional = self
                .node(of, &at, of.embedded, uncorrelated, below)
                .into_option();
        }
        for (name, property) in &schema.properties {
            let at = property_path(at, name);
            let of_property = self.node(property, &at, property.embedded, uncorrelated, below);
            if !of_property.is_empty() {
                rules.properties.insert(name.clone(), of_property);
            }
        }
        rules
    }

    fn own(
        &mut self,
        schema: &Schema,
        at: &str,
        is_root: bool,
        uncorrelated: Option<&str>,
        cardinality: Cardinality,
    ) -> Vec<Rule> {
        let at = path::child(at, "x-kubernetes-validations");
        let seen = Type::of(schema, is_root).zip(Bound::of(schema, is_root));
        let Some((self_type, (bound, least))) = seen else {
            self.errors.push(FieldError::internal(
                at,
                "internal error: failed to construct type information for \
                 x-kubernetes-validations rules: unable to convert structural schema to CEL \
                 declarations",
            ));
            return Vec::new();
        };
        let mut compiled = Vec::new();
        for (index, source) in schema.rules.iter().enumerate() {
            let at = path::index(&at, index);
            match compile_rule(schema, source, &self_type) {
                Ok(Some(rule)) => {
                    let once = cost::of_program(&rule.program, &bound, &bound);
                    let place = path::child(&at, "rule");
                    self.judge("rule", cardinality.times(once, least), place);
                    if let Some(message) = &rule.message_program {
                        let once = cost::of_program(message, &bound, &bound);
                        self.judge(
                            "messageExpression",
                            once,
                            path::child(&at, "messageExpression"),
                        );
                    }
                    match uncorrelated {
                        Some(list) if rule.uses_old_self => {
                            let detail = format!(
                                "oldSelf cannot be used on the uncorrelatable portion of the \
                                 schema within {list}"
                            );
                            let field = path::child(&at, "rule");
                            self.errors.push(FieldError::invalid(
                                field,
                                source.rule.as_str(),
                                detail,
                            ));
                        }
                        _ => compiled.push(rule),
                    }
                }
                // An empty rule is reported as missing where the definition is checked.
                Ok(None) => {}
                Err(fault) => self.errors.push(fault.into_error(&at, source)),
            }
        }
        compiled
    }

    /// Refuses an expression that costs too much, and counts it towards the total.
    fn judge(&mut self, what: &str, cost: u64, place: String) {
        if cost > cost::RULE_LIMIT {
            let what = format!("estimated {what} cost");
            let detail = cost::excess(&what, cost, cost::RULE_LIMIT);
            self.errors
                .push(FieldError::forbidden(place.as_str(), detail));
        }
        self.total = self.total.saturating_add(cost);
        if cost >= cost::SCHEMA_LIMIT / 100 {
            self.expensive.push((cost, place));
        }
    }

    /// Refuses rules that cost too much together, and names the four that cost most.
    fn judge_total(&mut self, at: &str) {
        if self.total <= cost::SCHEMA_LIMIT {
            return;
        }
        self.expensive
            .sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        for (_, place) in self.expensive.drain(..).take(4) {
            self.errors.push(FieldError::forbidden(
                place,
                "contributed to estimated rule cost total exceeding cost limit for entire \
                 OpenAPIv3 schema",
            ));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        let detail = cost::excess(what, self.total, cost::SCHEMA_LIMIT);
        self.errors.push(FieldError::forbidden(at, detail));
    }
}

enum Fault {
    Rule(String),
    MessageExpression(String),
    OptionalOldSelf,
    FieldPath,
}

impl Fault {
    /// The error about the rule at `at`.
    fn into_error(self, at: &str, source: &RuleSource) -> FieldError {
        match self {
            Self::Rule(detail) => refused(at, "rule", source, &detail),
            Self::MessageExpression(detail) => refused(at, "messageExpression", source, &detail),
            Self::OptionalOldSelf => FieldError::invalid(
                path::child(at, "optionalOldSelf"),
                true,
                "may not be set if oldSelf is not used in rule",
            ),
            Self::FieldPath => FieldError::invalid(
                path::child(at, "fieldPath"),
                source.field_path.as_str(),
                "must be a valid path",
            ),
        }
    }
}

fn compile_rule(
    schema: &Schema,
    source: &RuleSource,
    self_type: &Type,
) -> Result<Option<Rule>, Fault> {
    let text = source.rule.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let optional_old_self = source.optional_old_self.unwrap_or_default();
    let old_type = if optional_old_self {
        Type::Optional(Box::new(self_type.clone()))
    } else {
        self_type.clone()
    };
    let mut variables = vec![("self", self_type.clone()), ("oldSelf", old_type)];
    variables.extend(environment::TYPE_NAMES.map(|name| (name, Type::Any)));

    let program = parse(text).map_err(|e| Fault::Rule(format!("compilation failed: {e}")))?;
    check::problems(&program, &variables, &Type::Bool).map_err(Fault::Rule)?;
    let uses_old_self = program.references().has_variable("oldSelf");
    if optional_old_self && !uses_old_self {
        return Err(Fault::OptionalOldSelf);
    }
    let message_program = if source.message_expression.is_empty() {
        None
    } else {
        let failed = |e| Fault::MessageExpression(format!("messageExpression {e}"));
        let program = parse(&source.message_expression)
            .map_err(|e| failed(format!("compilation failed: {e}")))?;
        check::problems(&program, &variables, &Type::Text).map_err(|detail| {
            if detail.starts_with("compilation") {
                failed(detail)
            } else {
                Fault::MessageExpression(detail)
            }
        })?;
        Some(program)
    };
    let message = source.message.trim();
    let display = if message.is_empty() { text } else { message };
    Ok(Some(Rule {
        program,
        uses_old_self,
        optional_old_self,
        display: display.to_owned(),
        message: if message.is_empty() {
            format!("failed rule: {text}")
        } else {
            message.to_owned()
        },
        message_program,
        kind: match source.reason.as_deref() {
            Some("FieldValueForbidden") => ErrorKind::Forbidden,
            Some("FieldValueRequired") => ErrorKind::Required,
            Some("FieldValueDuplicate") => ErrorKind::Duplicate,
            _ => ErrorKind::Invalid,
        },
        field_path: if source.field_path.is_empty() {
            String::new()
        } else {
            field_path::normalize(&source.field_path, schema).map_err(|_| Fault::FieldPath)?
        },
    }))
}

/// Parses; the parser panics on some malformed literals, which is as good as an error.
fn parse(source: &str) -> Result<Program, String> {
    if nesting::depth(source) > nesting::LIMIT {
        return Err(format!(
            "expression recursion limit exceeded: {}",
            nesting::LIMIT
        ));
    }
    std::panic::catch_unwind(|| Program::compile(source))
        .map_err(|_| "the expression cannot be parsed".to_owned())?
        .map_err(|errors| errors.to_string())
}

/// Whether `source` is a path of fields and map keys below a node of `schema`.
pub(super) fn is_field_path(source: &str, schema: &Schema) -> bool {
    field_path::normalize(source, schema).is_ok()
}

/// An error that shows the rule as the real server does: in its own internal form.
fn refused(at: &str, part: &str, source: &RuleSource, detail: &str) -> FieldError {
    let text = |text: &str| Value::from(text);
    let shown = format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\
         \"OptionalOldSelf\":{}}}",
        text(&source.rule),
        text(&source.message),
        text(&source.message_expression),
        Value::from(source.reason.as_deref()),
        text(&source.field_path),
        Value::from(source.optional_old_self),
    );
    let field = path::child(at, part);
    FieldError::new(
        ErrorKind::Invalid,
        field,
        None,
        format!("{shown}: {detail}"),
    )
}
