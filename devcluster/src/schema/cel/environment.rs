//! What every rule knows: functions to call, and the names of types.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use kube_cel::KubeCelExt as _;
use kube_cel::cel::extractors::This;
use kube_cel::cel::{Context, ExecutionError, FunctionContext, Value};
use regex::Regex;

use crate::schema::re2;

/// Expressions that a thread keeps compiled. Those of rules are few; a rule may also take one out of the
/// object.
const KEPT_EXPRESSIONS: usize = 256;

/// Bytes of the longest text of such an expression.
const LONGEST_KEPT: usize = 1024;

/// Runs `f` with the environment of all rules: Kubernetes' libraries and no variables but the names of types.
pub(super) fn with<R>(f: impl FnOnce(&Context<'static>) -> R) -> R {
    // A context cannot be shared between threads, and building one costs more than most rules.
    thread_local! {
        static ENVIRONMENT: OnceCell<Context<'static>> = const { OnceCell::new() };
    }
    ENVIRONMENT.with(|cell| f(cell.get_or_init(build)))
}

fn build() -> Context<'static> {
    let mut context = Context::default().with_all();
    context.add_function("size", size);
    context.add_function("type", type_of);
    context.add_function("matches", matches);
    for name in TYPE_NAMES {
        context.add_variable_from_value(name, name);
    }
    context
}

/// Size in characters of strings (the library's own counts bytes), in entries of others.
#[expect(
    clippy::result_large_err,
    reason = "the library's signature of functions"
)]
fn size(context: &FunctionContext<'_, '_>, This(this): This<Value>) -> Result<i64, ExecutionError> {
    let size = match &this {
        Value::List(items) => items.len(),
        Value::Map(map) => map.map.len(),
        Value::String(text) => text.chars().count(),
        Value::Bytes(bytes) => bytes.len(),
        _ => return Err(context.error("no such overload")),
    };
    Ok(i64::try_from(size).unwrap_or(i64::MAX))
}

/// Whether a part of the text matches an RE2 expression (the library's own reads another syntax).
#[expect(
    clippy::result_large_err,
    reason = "the library's signature of functions"
)]
#[expect(
    clippy::needless_pass_by_value,
    reason = "the library's signature of functions"
)]
fn matches(
    context: &FunctionContext<'_, '_>,
    This(this): This<Arc<String>>,
    source: Arc<String>,
) -> Result<bool, ExecutionError> {
    compiled(&source)
        .map(|regex| regex.is_match(&this))
        .map_err(|error| context.error(format!("error parsing regexp: {error}")))
}

/// The compiled form of an RE2 expression; kept, since compiling costs many times what a match does.
fn compiled(source: &Arc<String>) -> Result<Rc<Regex>, String> {
    // A clone of an expression would come without the scratch memory that makes matches fast.
    thread_local! {
        static COMPILED: RefCell<HashMap<Arc<String>, Rc<Regex>>> = RefCell::default();
    }
    COMPILED.with_borrow_mut(|kept| {
        if let Some(regex) = kept.get(source) {
            return Ok(Rc::clone(regex));
        }
        let regex = Rc::new(re2::compile(source)?);
        // Rules write short ones; what is longer comes from an object, and will hardly come again.
        if source.len() > LONGEST_KEPT {
            return Ok(regex);
        }
        if kept.len() >= KEPT_EXPRESSIONS {
            kept.clear();
        }
        kept.insert(Arc::clone(source), Rc::clone(&regex));
        Ok(regex)
    })
}

/// Names of types, which `type(x)` gives and which stand in rules as `int`, `string` and so on.
pub(super) const TYPE_NAMES: [&str; 9] = [
    "int",
    "uint",
    "double",
    "bool",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
];

#[expect(
    clippy::needless_pass_by_value,
    reason = "the library's signature of functions"
)]
fn type_of(value: Value) -> Arc<String> {
    let name = match value {
        Value::Int(_) => "int",
        Value::UInt(_) => "uint",
        Value::Float(_) => "double",
        Value::Bool(_) => "bool",
        Value::String(_) => "string",
        Value::Bytes(_) => "bytes",
        Value::List(_) => "list",
        Value::Map(_) => "map",
        Value::Null => "null_type",
        _ => "dyn",
    };
    Arc::new(name.to_owned())
}
