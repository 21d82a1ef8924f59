//! Static cost of a rule: the most work that an object within its schema's bounds can cause.
//!
//! Costs are those of the real server's estimator, so that it and this crate refuse the same
//! rules as too expensive. One unit is about one simple operation.
//!
//! The same estimate with the sizes of one object bounds what its validation may cost, see
//! [`OBJECT_LIMIT`]: the evaluator cannot be interrupted.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::rc::Rc;

use kube_cel::cel::Program;
use kube_cel::cel::common::ast::operators;
use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue};
use serde_json::Value;

use super::needs::Needs;
use super::value;
use crate::schema::structural::{Additional, Schema};

/// The most that one rule may cost, all places where it applies taken together.
pub(super) const RULE_LIMIT: u64 = 10_000_000;
/// The most that all rules of a schema may cost together.
pub(super) const SCHEMA_LIMIT: u64 = 100_000_000;

/// The most that all rules may cost on one object, told from the sizes of its values before they
/// run.
pub(super) const OBJECT_LIMIT: u64 = 10_000_000;
/// Copying a value, for each value in it: the evaluator copies what is selected, what is handed to
/// a function and, for each item that a macro adds to a list, the whole list.
const COPY: (u64, u64) = (1, 10);

/// The most bytes of an object's name.
const MAX_NAME_BYTES: u64 = 253;

/// The most bytes of a request, which bounds what the schema does not.
const MAX_REQUEST_BYTES: u64 = 3 * 1024 * 1024;

/// How large values of a type can be. Cheap to clone: an estimate copies bounds at every step.
#[derive(Clone, Debug)]
pub(super) struct Bound<'s> {
    /// Entries of lists and maps, bytes of strings; none if unknown.
    size: Option<u64>,
    /// Whether values are compared in one step, as numbers are.
    is_scalar: bool,
    below: Below<'s>,
    /// Values in it, itself included, if it is the bound of an object's own values; else 0, so
    /// that nothing is charged for copies.
    weight: u64,
}

#[derive(Clone, Debug)]
enum Below<'s> {
    Nothing,
    Items(Rc<Bound<'s>>),
    Values(Rc<Bound<'s>>),
    Fields(Rc<BTreeMap<Cow<'s, str>, Bound<'s>>>),
}

impl<'s> Bound<'s> {
    /// A number or flag; the estimator takes those of the schema as of no size.
    pub(super) fn scalar(size: u64) -> Self {
        Self {
            size: Some(size),
            is_scalar: true,
            below: Below::Nothing,
            weight: 0,
        }
    }

    fn text(size: u64) -> Self {
        Self::sized(Some(size), Below::Nothing)
    }

    fn unknown() -> Self {
        Self::sized(None, Below::Nothing)
    }

    fn sized(size: Option<u64>, below: Below<'s>) -> Self {
        Self {
            size,
            is_scalar: false,
            below,
            weight: 0,
        }
    }

    fn max(&self) -> u64 {
        self.size.unwrap_or(u64::MAX)
    }

    /// The bound of values of `schema`, and the fewest bytes of one of them as JSON; none where
    /// CEL cannot see the value.
    pub(super) fn of(schema: &'s Schema, is_root: bool) -> Option<(Self, u64)> {
        let checks = &schema.checks;
        let limit = |limit: Option<i64>| limit.map(|limit| u64::try_from(limit).unwrap_or(0));
        // A character takes up to four bytes.
        let characters = limit(checks.max_length).map(|length| length.saturating_mul(4));
        if schema.int_or_string {
            return Some((Self::text(characters.unwrap_or(MAX_REQUEST_BYTES - 2)), 1));
        }
        let type_name = if is_root {
            "object"
        } else {
            schema.type_name.as_str()
        };
        Some(match type_name {
            "boolean" => (Self::scalar(0), 4),
            "integer" | "number" => (Self::scalar(0), 1),
            "string" => match checks.format.as_str() {
                "duration" => (Self::text(32), 3),
                "date" => (Self::text(12), 12),
                "date-time" => (Self::text(32), 21),
                "byte" => {
                    let size = limit(checks.max_length).unwrap_or(MAX_REQUEST_BYTES - 2);
                    (Self::text(size), 2)
                }
                _ => {
                    let longest = checks.enumeration.iter().filter_map(|v| v.as_str());
                    let longest = longest.map(|text| text.len() as u64).max();
                    let size = characters.or(longest).unwrap_or(MAX_REQUEST_BYTES - 2);
                    (Self::text(size), 2)
                }
            },
            "array" => {
                let items = schema.items.as_deref()?;
                let (item, least) = Self::of(items, items.embedded)?;
                let size = limit(checks.max_items).unwrap_or((MAX_REQUEST_BYTES - 2) / (least + 1));
                (Self::sized(Some(size), Below::Items(Rc::new(item))), 2)
            }
            "object" => {
                if let Some(of) = schema.additional_schema() {
                    let (value, least) = Self::of(of, of.embedded)?;
                    let size = limit(checks.max_properties)
                        .unwrap_or((MAX_REQUEST_BYTES - 2) / (least + 6));
                    return Some((Self::sized(Some(size), Below::Values(Rc::new(value))), 2));
                }
                Self::of_object(schema, is_root)
            }
            _ => return None,
        })
    }

    /// The bound of `value` itself, as rules of `schema` that look at `needs` see it. Cost: one pass over
    /// what they look at, and a count of the rest.
    pub(super) fn of_value(
        schema: &'s Schema,
        value: &Value,
        is_root: bool,
        needs: &Needs,
    ) -> Self {
        Self::of_values(schema, &[value], is_root, needs)
    }

    /// The bound of any of `values`.
    fn of_values(schema: &'s Schema, values: &[&Value], is_root: bool, needs: &Needs) -> Self {
        let most = |size: fn(&Value) -> usize| {
            let sizes = values.iter().map(|value| size(value));
            sizes.max().unwrap_or(0) as u64
        };
        let mut bound = if let Some(of) = schema.items.as_deref() {
            let items: Vec<&Value> = values
                .iter()
                .filter_map(|value| value.as_array())
                .flatten()
                .collect();
            let size = most(|value| value.as_array().map_or(0, Vec::len));
            let below = Self::of_values(of, &items, of.embedded, &Needs::Everything);
            Self::sized(Some(size), Below::Items(Rc::new(below)))
        } else if let Some(of) = schema.additional_schema() {
            let members: Vec<&Value> = values
                .iter()
                .filter_map(|value| value.as_object())
                .flat_map(|object| object.values())
                .collect();
            let size = most(|value| value.as_object().map_or(0, serde_json::Map::len));
            let below = Self::of_values(of, &members, of.embedded, &Needs::Everything);
            Self::sized(Some(size), Below::Values(Rc::new(below)))
        } else if values.iter().any(|value| value.is_object()) {
            Self::of_members(schema, values, is_root, needs)
        } else if values.iter().any(|value| value.is_string()) {
            Self::text(most(|value| value.as_str().map_or(0, str::len)))
        } else {
            Self::scalar(0)
        };
        bound.weight = bound.weight.max(most(count));
        bound
    }

    fn of_members(schema: &'s Schema, values: &[&Value], is_root: bool, needs: &Needs) -> Self {
        let mut fields = BTreeMap::new();
        for (name, property) in &schema.properties {
            let Some(name_in_cel) = value::escape(name).filter(|name| needs.include(name)) else {
                continue;
            };
            let members: Vec<&Value> = values.iter().filter_map(|value| value.get(name)).collect();
            let bound = Self::of_values(property, &members, property.embedded, &Needs::Everything);
            fields.insert(name_in_cel, bound);
        }
        if is_root {
            Self::add_type_and_name(&mut fields, MAX_NAME_BYTES);
        }
        Self::sized(None, Below::Fields(Rc::new(fields)))
    }

    /// What rules see of every resource, with texts of so many bytes at most.
    fn add_type_and_name(fields: &mut BTreeMap<Cow<'s, str>, Self>, size: u64) {
        let text = || Self::text(size);
        let names = ["name", "generateName"].map(|name| (Cow::Borrowed(name), text()));
        let metadata = Self::sized(None, Below::Fields(Rc::new(names.into())));
        fields.insert(Cow::Borrowed("metadata"), metadata);
        fields.insert(Cow::Borrowed("apiVersion"), text());
        fields.insert(Cow::Borrowed("kind"), text());
    }

    fn of_object(schema: &'s Schema, is_root: bool) -> (Self, u64) {
        let mut fields = BTreeMap::new();
        let mut least = 2;
        for (name, property) in &schema.properties {
            let Some((bound, size)) = Self::of(property, property.embedded) else {
                continue;
            };
            if schema.checks.required.contains(name) && property.default.is_none() {
                least += name.len() as u64 + size + 4;
            }
            if let Some(name) = value::escape(name) {
                fields.insert(name, bound);
            }
        }
        if is_root {
            Self::add_type_and_name(&mut fields, MAX_REQUEST_BYTES - 2);
        }
        (Self::sized(None, Below::Fields(Rc::new(fields))), least)
    }
}

/// The values in a value, itself included.
fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(count).sum::<usize>(),
        _ => 1,
    }
}

/// How often values of a node can occur in an object: known while every list and map above has
/// a bound, else told by the size of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cardinality(Option<u64>);

impl Cardinality {
    pub(super) const ROOT: Self = Self(Some(1));

    /// That of the nodes below `schema`.
    pub(super) fn below(self, schema: &Schema) -> Self {
        let factor = match schema.type_name.as_str() {
            "array" => schema.checks.max_items,
            "object" if matches!(schema.additional, Some(Additional::Of(_))) => {
                schema.checks.max_properties
            }
            _ => Some(1),
        };
        let factor = factor.map(|limit| u64::try_from(limit).unwrap_or(0));
        Self(
            self.0
                .zip(factor)
                .map(|(own, factor)| own.saturating_mul(factor)),
        )
    }

    /// The cost of a rule that costs `once` at each value of at least `least` bytes.
    pub(super) fn times(self, once: u64, least: u64) -> u64 {
        let count = self.0.unwrap_or(MAX_REQUEST_BYTES / (least + 1));
        once.saturating_mul(count)
    }
}

/// The most that one evaluation of `program` costs.
pub(super) fn of_program<'s>(program: &'s Program, this: &Bound<'s>, old_self: &Bound<'s>) -> u64 {
    let mut scope = Scope {
        variables: vec![("self", this.clone()), ("oldSelf", old_self.clone())],
    };
    scope.cost(&program.expression().expr).0
}

/// The most that one run of `program` costs on values of these bounds, handing them over included.
pub(super) fn of_run<'s>(program: &'s Program, this: &Bound<'s>, old_self: &Bound<'s>) -> u64 {
    let handed_over = this.weight.saturating_add(old_self.weight);
    of_program(program, this, old_self).saturating_add(scaled(handed_over, COPY))
}

/// The sentence about a cost over its limit.
#[expect(clippy::cast_precision_loss, reason = "a rough factor is told")]
pub(super) fn excess(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding \
         maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}

/// Reading a whole string, for each byte.
const TRAVERSAL: (u64, u64) = (1, 10);
/// Running a regular expression, for each byte of its source.
const REGEX: (u64, u64) = (1, 4);

/// `size` times a fraction, rounded up.
fn scaled(size: u64, (numerator, denominator): (u64, u64)) -> u64 {
    size.saturating_mul(numerator).div_ceil(denominator)
}

fn sum(costs: &[u64]) -> u64 {
    costs
        .iter()
        .fold(0, |total, cost| total.saturating_add(*cost))
}

struct Scope<'s> {
    variables: Vec<(&'s str, Bound<'s>)>,
}

impl<'s> Scope<'s> {
    /// The cost of an expression and how large its value can be.
    fn cost(&mut self, expr: &'s Expr) -> (u64, Bound<'s>) {
        match expr {
            Expr::Unspecified | Expr::Struct(_) => (0, Bound::unknown()),
            Expr::Literal(LiteralValue::String(text)) => {
                (0, Bound::text(text.inner().chars().count() as u64))
            }
            Expr::Literal(_) => (0, Bound::scalar(1)),
            Expr::Ident(name) => {
                let known = self.variables.iter().rev().find(|(known, _)| known == name);
                (
                    1,
                    known.map_or_else(Bound::unknown, |(_, bound)| bound.clone()),
                )
            }
            Expr::Select(select) => {
                let (cost, operand) = self.cost(&select.operand.expr);
                let (step, found) = match operand.below {
                    Below::Fields(fields) => (
                        1,
                        fields
                            .get(select.field.as_str())
                            .map_or_else(Bound::unknown, Bound::clone),
                    ),
                    Below::Values(of) => (1, (*of).clone()),
                    _ => (0, Bound::unknown()),
                };
                if select.test {
                    (cost, Bound::scalar(1))
                } else {
                    let copy = scaled(found.weight, COPY);
                    (sum(&[cost, step, copy]), found)
                }
            }
            Expr::List(list) => {
                let (costs, bounds): (Vec<u64>, Vec<Bound<'s>>) = list
                    .elements
                    .iter()
                    .map(|element| self.cost(&element.expr))
                    .unzip();
                let item = bounds
                    .into_iter()
                    .max_by_key(Bound::max)
                    .unwrap_or_else(|| Bound::text(0));
                let size = Some(list.elements.len() as u64);
                let bound = Bound::sized(size, Below::Items(Rc::new(item)));
                (sum(&costs).saturating_add(10), bound)
            }
            Expr::Map(map) => {
                let mut total = 30_u64;
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        total = total.saturating_add(self.cost(&entry.key.expr).0);
                        total = total.saturating_add(self.cost(&entry.value.expr).0);
                    }
                }
                let size = Some(map.entries.len() as u64);
                let below = Below::Values(Rc::new(Bound::unknown()));
                (total, Bound::sized(size, below))
            }
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::Call(call) => self.call(call),
        }
    }

    fn comprehension(&mut self, comprehension: &'s ComprehensionExpr) -> (u64, Bound<'s>) {
        let (range_cost, range) = self.cost(&comprehension.iter_range.expr);
        let (init_cost, init) = self.cost(&comprehension.accu_init.expr);
        let count = range.max();
        let element = match &range.below {
            // Nor has it one of the items of a list that the rule itself has made.
            Below::Items(_) if matches!(comprehension.iter_range.expr, Expr::Comprehension(_)) => {
                Bound::text(0)
            }
            Below::Items(of) => (**of).clone(),
            // The estimator knows no size of keys and takes them for empty.
            Below::Values(_) => Bound::text(0),
            _ => Bound::unknown(),
        };
        let builds_list = matches!(comprehension.accu_init.expr, Expr::List(_));
        let depth = self.variables.len();
        self.variables.push((&comprehension.accu_var, init.clone()));
        self.variables.push((&comprehension.iter_var, element));
        let (condition_cost, _) = self.cost(&comprehension.loop_cond.expr);
        let (step_cost, step) = self.cost(&comprehension.loop_step.expr);
        self.variables.truncate(depth + 1);
        let (result_cost, _) = self.cost(&comprehension.result.expr);
        self.variables.truncate(depth);
        let loop_cost = count.saturating_mul(condition_cost.saturating_add(step_cost));
        let mut cost = sum(&[range_cost, init_cost, loop_cost, result_cost]);
        let bound = if builds_list {
            let item = match step.below {
                Below::Items(of) => of,
                _ => Rc::new(Bound::unknown()),
            };
            let weight = count.saturating_mul(item.weight.max(1));
            let mut built = Bound::sized(Some(count), Below::Items(item));
            if range.weight > 0 {
                built.weight = weight;
                // The list is copied for each item; it has half of them on average.
                let copies = built.weight.saturating_mul(count) / 2;
                cost = cost.saturating_add(scaled(copies, COPY));
            }
            built
        } else {
            init
        };
        (cost, bound)
    }

    fn call(&mut self, call: &'s CallExpr) -> (u64, Bound<'s>) {
        let is_namespace = |target: &Expr| matches!(target, Expr::Ident(name) if self.variables.iter().all(|(known, _)| known != name));
        let target = call
            .target
            .as_deref()
            .filter(|target| !is_namespace(&target.expr));
        let (target_cost, target) = match target {
            Some(target) => {
                let (cost, bound) = self.cost(&target.expr);
                (cost, Some(bound))
            }
            None => (0, None),
        };
        let (costs, arguments): (Vec<u64>, Vec<Bound<'s>>) = call
            .args
            .iter()
            .map(|argument| self.cost(&argument.expr))
            .unzip();
        let copied = arguments
            .iter()
            .chain(target.as_ref())
            .fold(0_u64, |sum, bound| sum.saturating_add(bound.weight));
        let name = call.func_name.as_str();
        let (own, mut result) = match (name, costs.as_slice()) {
            (operators::CONDITIONAL, [condition, yes, no]) => {
                let result = arguments.into_iter().skip(1).max_by_key(Bound::max);
                return (
                    condition.saturating_add(*yes.max(no)),
                    result.unwrap_or_else(Bound::unknown),
                );
            }
            (operators::LOGICAL_AND | operators::LOGICAL_OR, _) => (0, Bound::scalar(1)),
            _ => function_cost(name, target.as_ref(), &arguments),
        };
        if copied > 0 {
            result.weight = result.weight.max(result.size.unwrap_or(0)).max(1);
        }
        let copy = scaled(copied, COPY);
        (sum(&[target_cost, own, copy, sum(&costs)]), result)
    }
}

/// The cost of a function itself, and how large its result can be.
fn function_cost<'s>(
    name: &str,
    target: Option<&Bound<'s>>,
    arguments: &[Bound<'s>],
) -> (u64, Bound<'s>) {
    let size = |at: usize| arguments.get(at).map_or(u64::MAX, Bound::max);
    let own = target.map_or_else(|| size(0), Bound::max);
    let one = (1, Bound::scalar(1));
    match name {
        operators::EQUALS | operators::NOT_EQUALS => {
            (scaled(size(0).min(size(1)), TRAVERSAL), Bound::scalar(1))
        }
        operators::LESS
        | operators::LESS_EQUALS
        | operators::GREATER
        | operators::GREATER_EQUALS => {
            let are_scalar = arguments.iter().any(|argument| argument.is_scalar);
            let cost = if are_scalar {
                1
            } else {
                scaled(size(0).min(size(1)), TRAVERSAL)
            };
            (cost, Bound::scalar(1))
        }
        operators::IN => match arguments.get(1) {
            Some(Bound {
                below: Below::Items(_),
                ..
            }) => (size(1), Bound::scalar(1)),
            _ => one,
        },
        operators::INDEX => match arguments.first().map(|bound| &bound.below) {
            Some(Below::Items(of) | Below::Values(of)) => (1, (**of).clone()),
            _ => (1, Bound::unknown()),
        },
        operators::ADD => match arguments {
            [
                Bound {
                    below: Below::Items(left),
                    size: a,
                    ..
                },
                Bound {
                    below: Below::Items(right),
                    size: b,
                    ..
                },
            ] => {
                let item = if left.max() >= right.max() {
                    left
                } else {
                    right
                };
                let size = a.zip(*b).map(|(a, b)| a.saturating_add(b));
                (1, Bound::sized(size, Below::Items(Rc::clone(item))))
            }
            [left, right] if left.is_scalar || right.is_scalar => one,
            _ => {
                let total = size(0).saturating_add(size(1));
                (scaled(total, TRAVERSAL), Bound::text(total))
            }
        },
        "matches" | "find" | "findAll" => {
            let pattern = if target.is_some() { size(0) } else { size(1) };
            let text = scaled(own.saturating_add(1), TRAVERSAL);
            let cost = text.saturating_mul(scaled(pattern, REGEX));
            let result = if name == "matches" {
                Bound::scalar(1)
            } else {
                Bound::text(own)
            };
            (cost, result)
        }
        "contains" => {
            let cost = scaled(own, TRAVERSAL).saturating_mul(scaled(size(0), TRAVERSAL));
            (cost, Bound::scalar(1))
        }
        "startsWith" | "endsWith" => (scaled(size(0), TRAVERSAL), Bound::scalar(1)),
        "lowerAscii" | "upperAscii" | "substring" | "trim" | "url" => {
            (scaled(own, TRAVERSAL), Bound::text(own))
        }
        "split" => (
            scaled(own, (2, 10)),
            Bound::sized(Some(own), Below::Items(Rc::new(Bound::text(own)))),
        ),
        "replace" => (
            scaled(own, (2, 10)),
            Bound::text(own.saturating_mul(size(1).saturating_add(1))),
        ),
        "join" => {
            let item = match target.map(|target| &target.below) {
                Some(Below::Items(of)) => of.max(),
                _ => u64::MAX,
            };
            let separators = size(0).saturating_mul(own.saturating_sub(1));
            let separators = if arguments.is_empty() { 0 } else { separators };
            let total = own.saturating_mul(item).saturating_add(separators);
            (scaled(total, TRAVERSAL), Bound::text(total))
        }
        "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
            match target.map(|target| &target.below) {
                Some(Below::Items(of)) => {
                    let each = if of.is_scalar {
                        1
                    } else {
                        1 + scaled(of.max(), TRAVERSAL)
                    };
                    (own.saturating_mul(each), Bound::scalar(1))
                }
                _ => (scaled(own, TRAVERSAL), Bound::scalar(1)),
            }
        }
        "format" => (scaled(own, TRAVERSAL), Bound::unknown()),
        "isIP" | "isCIDR" | "ip" | "cidr" | "quantity" | "isQuantity" | "semver" | "isSemver" => {
            (scaled(own, TRAVERSAL), Bound::unknown())
        }
        "string" | "bytes" if size(0) > 1 => (scaled(size(0), TRAVERSAL), Bound::text(own)),
        "size" => one,
        _ => (1, Bound::scalar(1)),
    }
}
