//! Static check of a rule: names, functions and the types that the schema makes plain.
//!
//! The evaluator below knows no types, so this is what stands between a mistaken rule and an
//! object that passes it. It refuses what it can prove wrong and what the evaluator lacks, and
//! is silent about what it cannot tell.

use std::collections::BTreeMap;

use kube_cel::cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, LiteralValue};
use kube_cel::cel::common::ast::{SelectExpr, operators};
use kube_cel::cel::{ExecutionError, Program};

use super::{environment, value};
use crate::schema::structural::Schema;

/// The type of an expression as far as it is known.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Type {
    Any,
    Bool,
    Int,
    Double,
    Text,
    Bytes,
    Duration,
    Timestamp,
    Null,
    List(Box<Type>),
    Map(Box<Type>),
    Object(BTreeMap<String, Type>),
    Optional(Box<Type>),
}

impl Type {
    /// The type of values of `schema`; none if CEL cannot see them.
    pub(super) fn of(schema: &Schema, is_root: bool) -> Option<Self> {
        if schema.int_or_string {
            return Some(Self::Any);
        }
        let type_name = if is_root {
            "object"
        } else {
            schema.type_name.as_str()
        };
        Some(match type_name {
            "boolean" => Self::Bool,
            "integer" => Self::Int,
            "number" => Self::Double,
            "string" => match schema.checks.format.as_str() {
                "byte" => Self::Bytes,
                "duration" => Self::Duration,
                "date" | "date-time" => Self::Timestamp,
                _ => Self::Text,
            },
            "array" => {
                let items = schema.items.as_deref()?;
                Self::List(Box::new(Self::of(items, items.embedded)?))
            }
            "object" => {
                if let Some(of) = schema.additional_schema() {
                    return Some(Self::Map(Box::new(Self::of(of, of.embedded)?)));
                }
                let mut fields: BTreeMap<String, Type> = schema
                    .properties
                    .iter()
                    .filter_map(|(name, property)| {
                        Some((
                            value::escape(name)?.into_owned(),
                            Self::of(property, property.embedded)?,
                        ))
                    })
                    .collect();
                if is_root {
                    let names = ["name", "generateName"].map(|n| (n.to_owned(), Self::Text));
                    fields.insert("apiVersion".to_owned(), Self::Text);
                    fields.insert("kind".to_owned(), Self::Text);
                    fields.insert("metadata".to_owned(), Self::Object(names.into()));
                }
                Self::Object(fields)
            }
            _ => return None,
        })
    }

    fn name(&self) -> String {
        match self {
            Self::Any => "dyn".to_owned(),
            Self::Bool => "bool".to_owned(),
            Self::Int => "int".to_owned(),
            Self::Double => "double".to_owned(),
            Self::Text => "string".to_owned(),
            Self::Bytes => "bytes".to_owned(),
            Self::Duration => "google.protobuf.Duration".to_owned(),
            Self::Timestamp => "google.protobuf.Timestamp".to_owned(),
            Self::Null => "null".to_owned(),
            Self::List(of) => format!("list({})", of.name()),
            Self::Map(of) => format!("map(string, {})", of.name()),
            Self::Object(_) => "object".to_owned(),
            Self::Optional(of) => format!("optional_type({})", of.name()),
        }
    }

    /// Whether values of both types can be equal, as far as is known.
    fn is_comparable(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) | (Self::Null, _) | (_, Self::Null) => true,
            (Self::Int | Self::Double, Self::Int | Self::Double) => true,
            (Self::List(a), Self::List(b)) | (Self::Map(a), Self::Map(b)) => a.is_comparable(b),
            (Self::Map(_), Self::Object(_)) | (Self::Object(_), Self::Map(_)) => true,
            (Self::Object(_), Self::Object(_)) => true,
            (Self::Optional(a), Self::Optional(b)) => a.is_comparable(b),
            (a, b) => a == b,
        }
    }
}

/// What is wrong with a parsed expression that must give `wanted` over these variables.
pub(super) fn problems(
    program: &Program,
    variables: &[(&str, Type)],
    wanted: &Type,
) -> Result<(), String> {
    let mut scope = Scope {
        variables: variables
            .iter()
            .map(|(name, ty)| ((*name).to_owned(), ty.clone()))
            .collect(),
    };
    let found = scope.infer(&program.expression().expr)?;
    match (&found, wanted) {
        (Type::Any, _) => Ok(()),
        (found, wanted) if found == wanted => Ok(()),
        (_, Type::Bool) => Err("cel expression must evaluate to a bool".to_owned()),
        _ => Err(format!(
            "messageExpression must evaluate to a {}",
            wanted.name()
        )),
    }
}

struct Scope {
    variables: Vec<(String, Type)>,
}

impl Scope {
    fn infer(&mut self, expr: &Expr) -> Result<Type, String> {
        match expr {
            Expr::Unspecified => Err("compilation failed: empty expression".to_owned()),
            Expr::Struct(_) => {
                Err("compilation failed: messages cannot be constructed here".to_owned())
            }
            Expr::Literal(literal) => Ok(match literal {
                LiteralValue::Boolean(_) => Type::Bool,
                LiteralValue::Bytes(_) => Type::Bytes,
                LiteralValue::Double(_) => Type::Double,
                LiteralValue::Int(_) => Type::Int,
                LiteralValue::Null => Type::Null,
                LiteralValue::String(_) => Type::Text,
                LiteralValue::UInt(_) => Type::Any,
            }),
            Expr::Ident(name) => self.variable(name).cloned().ok_or_else(|| {
                format!("compilation failed: undeclared reference to '{name}' (in container '')")
            }),
            Expr::List(list) => {
                let mut of = None;
                for element in &list.elements {
                    let found = self.infer(&element.expr)?;
                    of = Some(match of {
                        None => found,
                        Some(known) if known == found => known,
                        Some(_) => Type::Any,
                    });
                }
                Ok(Type::List(Box::new(of.unwrap_or(Type::Any))))
            }
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.infer(&entry.key.expr)?;
                        self.infer(&entry.value.expr)?;
                    }
                }
                Ok(Type::Map(Box::new(Type::Any)))
            }
            Expr::Select(select) => self.select(select),
            Expr::Comprehension(comprehension) => self.comprehension(comprehension),
            Expr::Call(call) => self.call(call),
        }
    }

    fn variable(&self, name: &str) -> Option<&Type> {
        self.variables
            .iter()
            .rev()
            .find(|(known, _)| known == name)
            .map(|(_, ty)| ty)
    }

    fn select(&mut self, select: &SelectExpr) -> Result<Type, String> {
        let field = &select.field;
        let found = match self.infer(&select.operand.expr)? {
            Type::Object(fields) => fields
                .get(field)
                .cloned()
                .ok_or_else(|| format!("compilation failed: undefined field '{field}'"))?,
            Type::Map(of) => *of,
            Type::Any => Type::Any,
            other => {
                let name = other.name();
                return Err(format!(
                    "compilation failed: type '{name}' does not support field selection"
                ));
            }
        };
        Ok(if select.test { Type::Bool } else { found })
    }

    fn comprehension(&mut self, comprehension: &ComprehensionExpr) -> Result<Type, String> {
        let element = match self.infer(&comprehension.iter_range.expr)? {
            Type::List(of) => *of,
            Type::Map(_) => Type::Text,
            Type::Any => Type::Any,
            other => {
                let name = other.name();
                return Err(format!(
                    "compilation failed: expression of type '{name}' cannot be range of a \
                     comprehension (must be list, map, or dynamic)"
                ));
            }
        };
        let accumulator = match self.infer(&comprehension.accu_init.expr)? {
            Type::List(_) => Type::Any,
            other => other,
        };
        let depth = self.variables.len();
        self.variables
            .push((comprehension.accu_var.clone(), accumulator));
        self.variables
            .push((comprehension.iter_var.clone(), element));
        if let Some(second) = &comprehension.iter_var2 {
            self.variables.push((second.clone(), Type::Any));
        }
        self.infer(&comprehension.loop_cond.expr)?;
        let step = self.infer(&comprehension.loop_step.expr)?;
        self.variables.truncate(depth + 1);
        let result = self.infer(&comprehension.result.expr)?;
        self.variables.truncate(depth);
        // The lists that map and filter build have the type of what each step adds.
        Ok(if result == Type::Any { step } else { result })
    }

    fn call(&mut self, call: &CallExpr) -> Result<Type, String> {
        let name = call.func_name.as_str();
        if let Some(target) = &call.target {
            if let Expr::Ident(prefix) = &target.expr
                && self.variable(prefix).is_none()
            {
                let qualified = format!("{prefix}.{name}");
                known_function(&qualified)?;
                self.arguments(call)?;
                return Ok(result_of(&qualified));
            }
            let target = self.infer(&target.expr)?;
            known_function(name)?;
            let arguments = self.arguments(call)?;
            return method(name, &target, &arguments);
        }
        let arguments = self.arguments(call)?;
        match (name, arguments.as_slice()) {
            (operators::CONDITIONAL, [condition, yes, no]) => {
                overload(name, &arguments, condition.is_comparable(&Type::Bool))?;
                Ok(if yes == no { yes.clone() } else { Type::Any })
            }
            (operators::LOGICAL_AND | operators::LOGICAL_OR, [left, right]) => {
                let fits = left.is_comparable(&Type::Bool) && right.is_comparable(&Type::Bool);
                overload(name, &arguments, fits)?;
                Ok(Type::Bool)
            }
            (operators::LOGICAL_NOT, [of]) => {
                overload(name, &arguments, of.is_comparable(&Type::Bool))?;
                Ok(Type::Bool)
            }
            (operators::NOT_STRICTLY_FALSE, _) => Ok(Type::Bool),
            (
                operators::EQUALS
                | operators::NOT_EQUALS
                | operators::LESS
                | operators::LESS_EQUALS
                | operators::GREATER
                | operators::GREATER_EQUALS,
                [left, right],
            ) => {
                overload(name, &arguments, left.is_comparable(right))?;
                Ok(Type::Bool)
            }
            (operators::IN, [left, right]) => {
                let fits = match right {
                    Type::List(of) => left.is_comparable(of),
                    Type::Map(_) => left.is_comparable(&Type::Text),
                    Type::Any => true,
                    _ => false,
                };
                overload(name, &arguments, fits)?;
                Ok(Type::Bool)
            }
            (operators::INDEX, [of, _]) => match of {
                Type::List(of) | Type::Map(of) => Ok((**of).clone()),
                Type::Any => Ok(Type::Any),
                _ => overload(name, &arguments, false).map(|()| Type::Any),
            },
            (operators::OPT_INDEX | operators::OPT_SELECT, _) => {
                Err("compilation failed: optional access is not supported here".to_owned())
            }
            (operators::ADD, [left, right]) => {
                let fits = matches!((left, right), (Type::Duration | Type::Timestamp, _))
                    || matches!(right, Type::Duration | Type::Timestamp)
                    || left.is_comparable(right);
                overload(name, &arguments, fits)?;
                Ok(if left == right {
                    left.clone()
                } else {
                    Type::Any
                })
            }
            (
                operators::SUBSTRACT | operators::MULTIPLY | operators::DIVIDE | operators::MODULO,
                [left, right],
            ) => Ok(
                if left == right && matches!(left, Type::Int | Type::Double) {
                    left.clone()
                } else {
                    Type::Any
                },
            ),
            (operators::NEGATE, [of]) => Ok(of.clone()),
            _ => {
                known_function(name)?;
                Ok(result_of(name))
            }
        }
    }

    fn arguments(&mut self, call: &CallExpr) -> Result<Vec<Type>, String> {
        call.args
            .iter()
            .map(|argument| self.infer(&argument.expr))
            .collect()
    }
}

fn overload(function: &str, arguments: &[Type], fits: bool) -> Result<(), String> {
    if fits {
        return Ok(());
    }
    let types: Vec<String> = arguments.iter().map(Type::name).collect();
    let types = types.join(", ");
    Err(format!(
        "compilation failed: found no matching overload for '{function}' applied to '({types})'"
    ))
}

fn method(name: &str, target: &Type, arguments: &[Type]) -> Result<Type, String> {
    let wants_text = matches!(
        name,
        "matches" | "startsWith" | "endsWith" | "contains" | "split" | "trim"
    );
    if wants_text {
        let fits = target.is_comparable(&Type::Text)
            && arguments
                .iter()
                .all(|a| a.is_comparable(&Type::Text) || *a == Type::Int);
        if !fits {
            let types: Vec<String> = arguments.iter().map(Type::name).collect();
            return Err(format!(
                "compilation failed: found no matching overload for '{name}' applied to '{}.({})'",
                target.name(),
                types.join(", ")
            ));
        }
    }
    Ok(match (name, target) {
        ("orValue" | "value", Type::Optional(of)) => (**of).clone(),
        _ => result_of(name),
    })
}

fn result_of(function: &str) -> Type {
    match function {
        "matches" | "startsWith" | "endsWith" | "contains" | "hasValue" | "isURL" | "isIP"
        | "isCIDR" | "isQuantity" | "isSorted" | "isSemver" | "sets.contains"
        | "sets.intersects" | "sets.equivalent" => Type::Bool,
        "size" | "int" => Type::Int,
        "string" | "lowerAscii" | "upperAscii" | "trim" | "join" | "substring" | "replace"
        | "format" => Type::Text,
        "double" => Type::Double,
        "duration" => Type::Duration,
        "timestamp" => Type::Timestamp,
        "split" | "findAll" => Type::List(Box::new(Type::Text)),
        _ => Type::Any,
    }
}

/// Refuses a function that the evaluator does not have.
fn known_function(name: &str) -> Result<(), String> {
    let missing = || {
        Err(format!(
            "compilation failed: undeclared reference to '{name}' (in container '')"
        ))
    };
    let gap = match name {
        "cel.bind" | "sortBy" | "transformList" | "transformMap" => true,
        "all" | "exists" | "exists_one" | "existsOne" => true,
        _ => name.starts_with("authorizer"),
    };
    if gap {
        return Err(format!(
            "compilation failed: '{name}' in this form is not supported here"
        ));
    }
    // The registry of functions cannot be listed; a call without arguments tells.
    let Ok(probe) = Program::compile(&format!("{name}()")) else {
        return missing();
    };
    let is_missing = environment::with(|context| {
        matches!(
            probe.execute(context),
            Err(ExecutionError::UndeclaredReference(_))
        )
    });
    if is_missing { missing() } else { Ok(()) }
}
