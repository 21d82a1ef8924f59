//! Evaluation of compiled rules on an object.

use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use kube_cel::cel::{Context, ExecutionError, Program, Value as CelValue};
use serde_json::Value;

use super::cost::{self, Bound};
use super::{Rule, Rules, environment, value};
use crate::schema::correlate;
use crate::schema::field_error::{ErrorKind, FieldError};
use crate::schema::path;
use crate::schema::structural::Schema;

/// The most bytes that a message expression may give.
const MAX_MESSAGE_BYTES: usize = 5 * 1024;

/// Every rule that `new` breaks. `old` is the former object on update; `is_root` says that
/// `schema` is that of a whole resource.
pub(in crate::schema) fn validate(
    schema: &Schema,
    rules: &Rules,
    at: &str,
    new: &Value,
    old: Option<&Value>,
    is_root: bool,
) -> Vec<FieldError> {
    let mut run = Run {
        errors: Vec::new(),
        budget: cost::OBJECT_LIMIT,
        is_spent: false,
    };
    let pair = old.map(|old| (new, old));
    walk(
        Node {
            schema,
            rules,
            at,
            new,
            old,
            pair,
            is_root,
        },
        true,
        &mut run,
    );
    run.errors
}

/// One validation of an object.
struct Run {
    errors: Vec<FieldError>,
    /// What the rules that follow may cost.
    budget: u64,
    /// A rule did not fit in; those after it are not looked at.
    is_spent: bool,
}

impl Run {
    /// Takes the cost of a rule out of the budget; whether it may run.
    fn afford(&mut self, node: Node<'_>, cost: u64) -> bool {
        match self.budget.checked_sub(cost) {
            Some(left) => self.budget = left,
            None => {
                self.is_spent = true;
                self.errors.push(FieldError::invalid(
                    node.at,
                    Value::from(node.schema.type_name.as_str()),
                    "validation failed due to running out of cost budget, no further validation \
                     rules will be run: make lists, maps and texts of the object smaller",
                ));
            }
        }
        !self.is_spent
    }
}

#[derive(Clone, Copy)]
struct Node<'a> {
    schema: &'a Schema,
    rules: &'a Rules,
    at: &'a str,
    new: &'a Value,
    old: Option<&'a Value>,
    /// New and old value of this node or of the nearest one above that has an old value.
    pair: Option<(&'a Value, &'a Value)>,
    is_root: bool,
}

fn walk(node: Node<'_>, is_top: bool, run: &mut Run) {
    if node.new.is_null() || run.is_spent {
        return;
    }
    if !node.rules.own.is_empty() {
        own_rules(node, run);
    }
    match node.new {
        Value::Array(items) => {
            let (Some(rules), Some(schema)) = (&node.rules.items, node.schema.items.as_deref())
            else {
                return;
            };
            let former = correlate::Items::new(node.schema, node.old);
            for (index, new) in items.iter().enumerate() {
                let at = path::index(node.at, index);
                let old = former.of(new);
                let pair = old.map(|old| (new, old)).or(node.pair);
                let is_root = schema.embedded;
                walk(
                    Node {
                        schema,
                        rules,
                        at: &at,
                        new,
                        old,
                        pair,
                        is_root,
                    },
                    false,
                    run,
                );
            }
        }
        Value::Object(fields) => {
            for (name, new) in fields {
                let (schema, rules, at) = match (
                    node.rules.properties.get(name),
                    node.schema.properties.get(name),
                ) {
                    (Some(rules), Some(schema)) => (schema, rules, path::child(node.at, name)),
                    _ => match (&node.rules.additional, node.schema.additional_schema()) {
                        (Some(rules), Some(schema)) => (schema, &**rules, path::key(node.at, name)),
                        _ => continue,
                    },
                };
                let old = correlate::field(node.schema, node.old, name);
                // apiVersion and kind were made equal before, so they prove nothing.
                let pair = match name.as_str() {
                    "apiVersion" | "kind" if is_top => None,
                    _ => old.map(|old| (new, old)).or(node.pair),
                };
                let is_root = schema.embedded;
                walk(
                    Node {
                        schema,
                        rules,
                        at: &at,
                        new,
                        old,
                        pair,
                        is_root,
                    },
                    false,
                    run,
                );
            }
        }
        _ => {}
    }
}

fn own_rules(node: Node<'_>, run: &mut Run) {
    let Rules {
        needs, old_needs, ..
    } = node.rules;
    let bound = Bound::of_value(node.schema, node.new, node.is_root, needs);
    let former_bound = match node.old {
        Some(old) => Bound::of_value(node.schema, old, node.is_root, old_needs),
        None => Bound::scalar(0),
    };
    environment::with(|base| {
        let mut this = base.new_inner_scope();
        let value = value::convert(node.schema, node.new, node.is_root, needs);
        this.add_variable_from_value("self", value);
        let seen = Seen::new(node, &this);
        for rule in &node.rules.own {
            if rule.uses_old_self && !seen.has_former() && !rule.optional_old_self {
                continue;
            }
            let cost = cost::of_run(&rule.program, &bound, &former_bound);
            if !run.afford(node, cost) {
                return;
            }
            match execute(&rule.program, seen.by(rule)) {
                Ok(CelValue::Bool(true)) => {}
                Ok(CelValue::Bool(false)) => {
                    let unchanged = node.pair.is_some_and(|(new, old)| new == old);
                    if rule.uses_old_self || !unchanged {
                        run.errors.push(failure(node, rule, &seen));
                    }
                }
                Ok(_) => run
                    .errors
                    .push(broken(node, rule, &ExecutionError::NoSuchOverload)),
                Err(error) => run.errors.push(broken(node, rule, &error)),
            }
        }
    });
}

/// The variables of the rules of one node. Each is handed over once, and only when a rule asks for it:
/// the library copies what it is given.
struct Seen<'s> {
    node: Node<'s>,
    this: &'s Context<'s>,
    with_former: OnceCell<Context<'s>>,
    with_optional: OnceCell<Context<'s>>,
}

impl<'s> Seen<'s> {
    /// `this` has `self`.
    fn new(node: Node<'s>, this: &'s Context<'s>) -> Self {
        Self {
            node,
            this,
            with_former: OnceCell::new(),
            with_optional: OnceCell::new(),
        }
    }

    fn has_former(&self) -> bool {
        self.node.old.is_some_and(|old| !old.is_null())
    }

    /// What a rule itself sees.
    fn by(&self, rule: &Rule) -> &Context<'s> {
        if !rule.uses_old_self {
            self.this
        } else if rule.optional_old_self {
            let optional = || self.with_old_self(value::optional(self.former()));
            self.with_optional.get_or_init(optional)
        } else {
            self.by_message()
        }
    }

    /// What the message of a rule sees: the former self as such, if there is one.
    fn by_message(&self) -> &Context<'s> {
        match self.with_former.get() {
            Some(known) => known,
            None => match self.former() {
                Some(former) => self.with_former.get_or_init(|| self.with_old_self(former)),
                None => self.this,
            },
        }
    }

    fn former(&self) -> Option<CelValue> {
        let Node {
            schema,
            rules,
            old,
            is_root,
            ..
        } = self.node;
        let old = old.filter(|old| !old.is_null())?;
        Some(value::convert(schema, old, is_root, &rules.old_needs))
    }

    fn with_old_self(&self, old_self: CelValue) -> Context<'s> {
        let mut context = self.this.new_inner_scope();
        context.add_variable_from_value("oldSelf", old_self);
        context
    }
}

fn failure(node: Node<'_>, rule: &Rule, seen: &Seen<'_>) -> FieldError {
    // The real server's text of a duplicate has no room for a message.
    if rule.kind == ErrorKind::Duplicate {
        return FieldError::new(rule.kind, reported_field(node, rule), shown_value(node), "");
    }
    let detail = rule
        .message_program
        .as_ref()
        .and_then(|program| evaluated_message(program, seen.by_message()))
        .unwrap_or_else(|| rule.message.clone());
    FieldError::new(
        rule.kind,
        reported_field(node, rule),
        shown_value(node),
        detail,
    )
}

fn reported_field(node: Node<'_>, rule: &Rule) -> String {
    match (node.at, rule.field_path.as_str()) {
        (at, "") => at.to_owned(),
        (at, below) if below.starts_with('[') => format!("{at}{below}"),
        (at, below) => path::child(at, below),
    }
}

/// The value in the text; whole objects and lists are not repeated there.
fn shown_value(node: Node<'_>) -> Option<Value> {
    let scalar = !matches!(node.new, Value::Object(_) | Value::Array(_));
    scalar.then(|| node.new.clone())
}

/// The message that an expression gives; none if it fails or gives nothing fit to print.
fn evaluated_message(program: &Program, seen: &Context<'_>) -> Option<String> {
    match execute(program, seen) {
        Ok(CelValue::String(text)) => {
            let text = text.trim();
            let fits = !text.is_empty() && text.len() <= MAX_MESSAGE_BYTES && !text.contains('\n');
            fits.then(|| text.to_owned())
        }
        _ => None,
    }
}

/// The error for a rule that could not be evaluated.
fn broken(node: Node<'_>, rule: &Rule, error: &ExecutionError) -> FieldError {
    let display = &rule.display;
    let detail = match error {
        ExecutionError::NoSuchOverload
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::ValuesNotComparable(..)
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::UnsupportedTargetType { .. } => format!(
            "'no such overload': call arguments did not match a supported operator, function or \
             macro signature for rule: {display}"
        ),
        error => format!("{} evaluating rule: {display}", words(error)),
    };
    FieldError::new(
        ErrorKind::Invalid,
        node.at,
        Some(Value::from(node.schema.type_name.as_str())),
        detail,
    )
}

fn words(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => "integer overflow".to_owned(),
        ExecutionError::IndexOutOfBounds(CelValue::Int(index)) => {
            format!("index out of bounds: {index}")
        }
        ExecutionError::FunctionError { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

fn execute(program: &Program, seen: &Context<'_>) -> Result<CelValue, Box<ExecutionError>> {
    // The library computes with times that can overflow, which ends in a panic there.
    let result = catch_unwind(AssertUnwindSafe(|| program.execute(seen).map_err(Box::new)));
    result.unwrap_or_else(|_| {
        Err(Box::new(ExecutionError::function_error(
            "rule",
            "range error",
        )))
    })
}
