//! The JSON paths of printer columns: fields, indexes, wildcards and filters.

use serde_json::Value;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    Slice(Option<i64>, Option<i64>),
    Wildcard,
    Descendants,
    Filter { path: JsonPath, test: Test },
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    Exists,
    Compare(Operator, Value),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

const OPERATORS: [(&str, Operator); 6] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("<", Operator::Less),
    (">", Operator::Greater),
];

impl JsonPath {
    /// Parses a path such as `.status.conditions[?(@.type=="Ready")].status`.
    pub(super) fn parse(source: &str) -> Option<Self> {
        let mut rest = source.trim();
        rest = rest.strip_prefix(['$', '@']).unwrap_or(rest);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(tail) = rest.strip_prefix("..") {
                steps.push(Step::Descendants);
                rest = tail;
                if rest.starts_with('[') {
                    continue;
                }
                let (step, tail) = field(rest)?;
                steps.push(step);
                rest = tail;
            } else if let Some(tail) = rest.strip_prefix('.') {
                if tail.is_empty() {
                    break;
                }
                if tail.starts_with('[') {
                    rest = tail;
                    continue;
                }
                let (step, tail) = field(tail)?;
                steps.push(step);
                rest = tail;
            } else if let Some(tail) = rest.strip_prefix('[') {
                let end = closing_bracket(tail)?;
                steps.push(bracket(tail[..end].trim())?);
                rest = &tail[end + 1..];
            } else if steps.is_empty() {
                let (step, tail) = field(rest)?;
                steps.push(step);
                rest = tail;
            } else {
                return None;
            }
        }
        Some(Self { steps })
    }

    /// The first value that the path leads to.
    pub(super) fn first<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        self.all(value).into_iter().next()
    }

    fn all<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        self.steps.iter().fold(vec![value], |values, step| {
            values
                .into_iter()
                .flat_map(|value| step.follow(value))
                .collect()
        })
    }
}

impl Step {
    fn follow<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Self::Field(name) => value.get(name).into_iter().collect(),
            Self::Index(index) => {
                let Some(items) = value.as_array() else {
                    return Vec::new();
                };
                place(*index, items.len())
                    .and_then(|at| items.get(at))
                    .into_iter()
                    .collect()
            }
            Self::Slice(from, to) => {
                let Some(items) = value.as_array() else {
                    return Vec::new();
                };
                let bound = |index: i64| place(index, items.len()).unwrap_or(items.len());
                let from = from.map_or(0, bound);
                let to = to.map_or(items.len(), bound).min(items.len());
                items
                    .get(from..to)
                    .map(|some| some.iter().collect())
                    .unwrap_or_default()
            }
            Self::Wildcard => children(value),
            Self::Descendants => {
                let mut found = vec![value];
                let mut at = 0;
                while let Some(value) = found.get(at).copied() {
                    found.extend(children(value));
                    at += 1;
                }
                found
            }
            Self::Filter { path, test } => {
                let Some(items) = value.as_array() else {
                    return Vec::new();
                };
                items
                    .iter()
                    .filter(|item| test.holds(path.first(item)))
                    .collect()
            }
        }
    }
}

impl Test {
    fn holds(&self, value: Option<&Value>) -> bool {
        match (self, value) {
            (_, None) => false,
            (Self::Exists, Some(_)) => true,
            (Self::Compare(operator, wanted), Some(value)) => {
                let order = match (value, wanted) {
                    (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
                    (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
                    (a, b) => (a == b).then_some(std::cmp::Ordering::Equal),
                };
                match operator {
                    Operator::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
                    Operator::NotEqual => !order.is_some_and(std::cmp::Ordering::is_eq),
                    Operator::Less => order.is_some_and(std::cmp::Ordering::is_lt),
                    Operator::LessOrEqual => order.is_some_and(std::cmp::Ordering::is_le),
                    Operator::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
                    Operator::GreaterOrEqual => order.is_some_and(std::cmp::Ordering::is_ge),
                }
            }
        }
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}

/// The place of an index that may count from the end.
fn place(index: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).ok()?;
    usize::try_from(if index < 0 { length + index } else { index }).ok()
}

/// A field name up to the next separator; `\` takes a separator as part of the name.
fn field(source: &str) -> Option<(Step, &str)> {
    let mut name = String::new();
    let mut chars = source.char_indices();
    let mut end = source.len();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.push(chars.next()?.1),
            '.' | '[' => {
                end = at;
                break;
            }
            c => name.push(c),
        }
    }
    let step = if name == "*" {
        Step::Wildcard
    } else {
        Step::Field(name)
    };
    Some((step, &source[end..])).filter(|_| end > 0)
}

/// Where the bracket that was opened before `source` closes.
fn closing_bracket(source: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut quote = None;
    for (at, c) in source.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn bracket(inner: &str) -> Option<Step> {
    if inner == "*" {
        return Some(Step::Wildcard);
    }
    if let Some(name) = quoted(inner) {
        return Some(Step::Field(name));
    }
    if let Some(filter) = inner
        .strip_prefix("?(")
        .and_then(|rest| rest.strip_suffix(')'))
    {
        return parse_filter(filter);
    }
    if let Some((from, to)) = inner.split_once(':') {
        let bound = |text: &str| match text.trim() {
            "" => Some(None),
            number => number.parse().ok().map(Some),
        };
        return Some(Step::Slice(bound(from)?, bound(to)?));
    }
    inner.parse().ok().map(Step::Index)
}

fn parse_filter(source: &str) -> Option<Step> {
    for (sign, operator) in OPERATORS {
        if let Some((left, right)) = source.split_once(sign) {
            let path = JsonPath::parse(left.trim())?;
            let right = right.trim();
            let wanted = match quoted(right) {
                Some(text) => Value::String(text),
                None => serde_json::from_str(right).ok()?,
            };
            return Some(Step::Filter {
                path,
                test: Test::Compare(operator, wanted),
            });
        }
    }
    Some(Step::Filter {
        path: JsonPath::parse(source.trim())?,
        test: Test::Exists,
    })
}

fn quoted(source: &str) -> Option<String> {
    ['\'', '"'].iter().find_map(|quote| {
        let inner = source.strip_prefix(*quote)?.strip_suffix(*quote)?;
        Some(inner.replace("\\'", "'").replace("\\\"", "\""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn n9_paths_with_filters_indexes_and_wildcards_find_values() {
        let value = json!({
            "metadata": {"annotations": {"a.b/c": "dotted"}},
            "spec": {"l": [{"n": 1, "t": "x"}, {"n": 2, "t": "y"}, {"n": 3}]},
        });
        let cases = [
            (".spec.l[0].n", Some(json!(1))),
            ("{.spec}", None),
            (".spec.l[-1].n", Some(json!(3))),
            (".spec.l[*].t", Some(json!("x"))),
            (".spec.l[1:].n", Some(json!(2))),
            (".spec.l[?(@.t==\"y\")].n", Some(json!(2))),
            (".spec.l[?(@.t == 'y')].n", Some(json!(2))),
            (".spec.l[?(@.n>2)].n", Some(json!(3))),
            (".spec.l[?(@.t)].n", Some(json!(1))),
            (".spec.l[?(@.t!='x')].t", Some(json!("y"))),
            (".spec.l[9].n", None),
            (".spec.gone.deep", None),
            (r".metadata.annotations.a\.b/c", Some(json!("dotted"))),
            (".metadata.annotations['a.b/c']", Some(json!("dotted"))),
            ("..t", Some(json!("x"))),
        ];
        for (source, expected) in cases {
            let found = JsonPath::parse(source).and_then(|path| path.first(&value).cloned());
            assert_eq!(found, expected, "{source}");
        }
        for bad in [".a[", ".a[x]", ".a[?(@.b==)]", ".a]"] {
            let parsed = JsonPath::parse(bad);
            assert!(parsed.is_none() || bad == ".a]", "{bad}");
        }
    }
}
