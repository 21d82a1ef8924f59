//! Label and field selectors of list, watch and deletecollection requests.
//!
//! Both parsers accept what the real server accepts and name what is wrong in its words.

use serde_json::{Map, Value};

use crate::schema::FieldError;
use crate::schema::names;

/// A conjunction of requirements on labels; the empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LabelSelector {
    requirements: Vec<LabelRequirement>,
}

#[derive(Clone, Debug, PartialEq)]
struct LabelRequirement {
    key: String,
    test: LabelTest,
}

#[derive(Clone, Debug, PartialEq)]
enum LabelTest {
    Exists,
    Missing,
    OneOf(Vec<String>),
    NoneOf(Vec<String>),
    Above(i64),
    Below(i64),
}

impl LabelSelector {
    /// Parses the grammar of `labelSelector` (`a`, `!a`, `a=b`, `a!=b`, `a in (x,y)`, `a>5`…).
    ///
    /// # Errors
    /// The real server's description of the syntax error or of the bad key or value.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        LabelParser {
            tokens: scan(text),
            position: 0,
        }
        .parse()
    }

    /// Whether every object matches.
    pub(crate) fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether `labels` (an object's `metadata.labels`) meets every requirement.
    pub(crate) fn matches(&self, labels: Option<&Map<String, Value>>) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = labels
                .and_then(|l| l.get(&requirement.key))
                .and_then(Value::as_str);
            requirement.test.admits(value)
        })
    }
}

impl LabelTest {
    fn admits(&self, value: Option<&str>) -> bool {
        let number = || value.and_then(|v| v.parse::<i64>().ok());
        match self {
            Self::Exists => value.is_some(),
            Self::Missing => value.is_none(),
            Self::OneOf(values) => value.is_some_and(|v| values.iter().any(|x| x == v)),
            Self::NoneOf(values) => value.is_none_or(|v| values.iter().all(|x| x != v)),
            Self::Above(bound) => number().is_some_and(|n| n > *bound),
            Self::Below(bound) => number().is_some_and(|n| n < *bound),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    End,
    Word,
    Open,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    NotEquals,
    Greater,
    Less,
    In,
    NotIn,
    Error,
}

#[derive(Clone, Debug)]
struct Token {
    kind: Kind,
    text: String,
}

fn is_symbol(byte: u8) -> bool {
    matches!(byte, b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<')
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn symbol(text: &str) -> Option<Kind> {
    Some(match text {
        ")" => Kind::Close,
        "," => Kind::Comma,
        "!" => Kind::Not,
        "==" => Kind::DoubleEquals,
        "=" => Kind::Equals,
        ">" => Kind::Greater,
        "<" => Kind::Less,
        "!=" => Kind::NotEquals,
        "(" => Kind::Open,
        _ => return None,
    })
}

/// Splits into tokens, the longest known symbol first; always ends with `End`.
fn scan(text: &str) -> Vec<Token> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    loop {
        while at < bytes.len() && is_space(bytes[at]) {
            at += 1;
        }
        if at >= bytes.len() {
            tokens.push(Token {
                kind: Kind::End,
                text: String::new(),
            });
            return tokens;
        }
        let start = at;
        if is_symbol(bytes[at]) {
            let longest = (1..=2)
                .rev()
                .filter_map(|n| text.get(start..start + n))
                .find_map(|part| symbol(part).map(|kind| (kind, part)));
            match longest {
                Some((kind, part)) => {
                    at += part.len();
                    tokens.push(Token {
                        kind,
                        text: part.to_owned(),
                    });
                }
                None => {
                    at += 1;
                    let text = format!("error expected: keyword found '{}'", &text[start..at]);
                    tokens.push(Token {
                        kind: Kind::Error,
                        text,
                    });
                }
            }
            continue;
        }
        while at < bytes.len() && !is_symbol(bytes[at]) && !is_space(bytes[at]) {
            at += 1;
        }
        let word = &text[start..at];
        let kind = match word {
            "in" => Kind::In,
            "notin" => Kind::NotIn,
            _ => Kind::Word,
        };
        tokens.push(Token {
            kind,
            text: word.to_owned(),
        });
    }
}

struct LabelParser {
    tokens: Vec<Token>,
    position: usize,
}

impl LabelParser {
    /// The current token; `in` and `notin` are plain words except where an operator stands.
    fn peek(&self, operator: bool) -> (Kind, &str) {
        let token = &self.tokens[self.position.min(self.tokens.len() - 1)];
        let kind = match token.kind {
            Kind::In | Kind::NotIn if !operator => Kind::Word,
            kind => kind,
        };
        (kind, &token.text)
    }

    fn take(&mut self, operator: bool) -> (Kind, String) {
        let (kind, text) = self.peek(operator);
        let taken = (kind, text.to_owned());
        self.position += 1;
        taken
    }

    fn parse(mut self) -> Result<LabelSelector, String> {
        let mut requirements = Vec::new();
        loop {
            match self.peek(false) {
                (Kind::Word | Kind::Not, _) => {
                    let requirement = self
                        .requirement()
                        .map_err(|e| format!("unable to parse requirement: {e}"))?;
                    requirements.push(requirement);
                    match self.take(false) {
                        (Kind::End, _) => break,
                        (Kind::Comma, _) => {
                            let (next, text) = self.peek(false);
                            if !matches!(next, Kind::Word | Kind::Not) {
                                return Err(format!(
                                    "found '{text}', expected: identifier after ','"
                                ));
                            }
                        }
                        (_, text) => {
                            return Err(format!(
                                "found '{text}', expected: ',' or 'end of string'"
                            ));
                        }
                    }
                }
                (Kind::End, _) => break,
                (_, text) => {
                    return Err(format!(
                        "found '{text}', expected: !, identifier, or 'end of string'"
                    ));
                }
            }
        }
        Ok(LabelSelector { requirements })
    }

    fn requirement(&mut self) -> Result<LabelRequirement, String> {
        let (mut kind, mut key) = self.take(false);
        let negated = kind == Kind::Not;
        if negated {
            (kind, key) = self.take(false);
        }
        if kind != Kind::Word {
            return Err(format!("found '{key}', expected: identifier"));
        }
        if let Some(problem) = joined(&names::label_key_problems(&key)) {
            return Err(FieldError::invalid("", key, problem).to_string());
        }
        if matches!(self.peek(false).0, Kind::End | Kind::Comma) || negated {
            let test = if negated {
                LabelTest::Missing
            } else {
                LabelTest::Exists
            };
            return Ok(LabelRequirement { key, test });
        }
        let (operator, text) = self.take(true);
        let values = match operator {
            Kind::In | Kind::NotIn => self.value_list()?,
            Kind::Equals | Kind::DoubleEquals | Kind::NotEquals | Kind::Greater | Kind::Less => {
                vec![self.single_value()?]
            }
            _ => {
                return Err(format!(
                    "found '{text}', expected: in, notin, =, ==, !=, gt, lt"
                ));
            }
        };
        let test = label_test(&key, operator, values)?;
        Ok(LabelRequirement { key, test })
    }

    fn single_value(&mut self) -> Result<String, String> {
        if matches!(self.peek(false).0, Kind::End | Kind::Comma) {
            return Ok(String::new());
        }
        match self.take(false) {
            (Kind::Word, text) => Ok(text),
            (_, text) => Err(format!("found '{text}', expected: identifier")),
        }
    }

    fn value_list(&mut self) -> Result<Vec<String>, String> {
        let (open, text) = self.take(false);
        if open != Kind::Open {
            return Err(format!("found '{text}' expected: '('"));
        }
        let mut values = Vec::new();
        let mut expects_value = true;
        loop {
            match self.take(false) {
                (Kind::Word, text) if expects_value => {
                    values.push(text);
                    expects_value = false;
                    let (next, text) = self.peek(false);
                    if !matches!(next, Kind::Comma | Kind::Close) {
                        return Err(format!("found '{text}', expected: ',' or ')'"));
                    }
                }
                // An empty place between separators is the empty value.
                (Kind::Comma, _) => {
                    if expects_value {
                        values.push(String::new());
                    }
                    expects_value = true;
                }
                (Kind::Close, _) => {
                    if expects_value {
                        values.push(String::new());
                    }
                    values.sort_unstable();
                    values.dedup();
                    return Ok(values);
                }
                (_, text) if values.is_empty() => {
                    return Err(format!("found '{text}', expected: ',', ')' or identifier"));
                }
                (_, text) => return Err(format!("found '{text}', expected: ',', or identifier")),
            }
        }
    }
}

fn joined(problems: &[String]) -> Option<String> {
    if problems.is_empty() {
        None
    } else {
        Some(problems.join("; "))
    }
}

fn label_test(key: &str, operator: Kind, values: Vec<String>) -> Result<LabelTest, String> {
    let mut errors = Vec::new();
    let mut bound = 0;
    if matches!(operator, Kind::Greater | Kind::Less) {
        match values.first().map(|v| v.parse::<i64>()) {
            Some(Ok(number)) => bound = number,
            _ => errors.push(FieldError::invalid(
                "values[0]",
                values.first().cloned().unwrap_or_default(),
                "for 'Gt', 'Lt' operators, the value must be an integer",
            )),
        }
    }
    for (index, value) in values.iter().enumerate() {
        if let Some(problem) = joined(&names::label_value_problems(value)) {
            let field = format!("values[{index}][{key}]");
            errors.push(FieldError::invalid(field, value.as_str(), problem));
        }
    }
    if !errors.is_empty() {
        return Err(crate::schema::aggregate(&errors));
    }
    Ok(match operator {
        Kind::NotIn | Kind::NotEquals => LabelTest::NoneOf(values),
        Kind::Greater => LabelTest::Above(bound),
        Kind::Less => LabelTest::Below(bound),
        _ => LabelTest::OneOf(values),
    })
}

/// A conjunction of `field=value` and `field!=value`; the empty one matches everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

/// One term of a [`FieldSelector`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldRequirement {
    /// The field's path, e.g. `status.phase`.
    pub(crate) field: String,
    /// Whether the field must equal the value, or must not.
    pub(crate) equals: bool,
    /// The value, unescaped.
    pub(crate) value: String,
}

impl FieldSelector {
    /// Parses `f=v`, `f==v`, `f!=v` joined by commas; `\` escapes `\`, `,` and `=` in values.
    ///
    /// # Errors
    /// The real server's description of the bad term. Whether a field is supported is for
    /// the caller to decide, by [`FieldSelector::requirements`].
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for term in split_terms(text) {
            if term.is_empty() {
                continue;
            }
            let Some((field, equals, raw)) = split_term(term) else {
                return Err(format!(
                    "invalid selector: '{text}'; can't understand '{term}'"
                ));
            };
            let value = unescape(raw)?;
            requirements.push(FieldRequirement {
                field: field.to_owned(),
                equals,
                value,
            });
        }
        Ok(Self { requirements })
    }

    /// Whether every object matches.
    pub(crate) fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The terms in the order given.
    pub(crate) fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }

    /// The value that `field` must have, if a term demands one.
    pub(crate) fn exact(&self, field: &str) -> Option<&str> {
        self.requirements
            .iter()
            .find(|r| r.equals && r.field == field)
            .map(|r| r.value.as_str())
    }

    /// Whether an object matches whose fields `value_of` gives (missing = empty text).
    pub(crate) fn matches<S: AsRef<str>>(&self, value_of: impl Fn(&str) -> S) -> bool {
        self.requirements
            .iter()
            .all(|r| (value_of(&r.field).as_ref() == r.value) == r.equals)
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    term.char_indices().find_map(|(at, _)| {
        let rest = &term[at..];
        [("!=", false), ("==", true), ("=", true)]
            .iter()
            .find_map(|(operator, equals)| {
                rest.strip_prefix(operator)
                    .map(|value| (&term[..at], *equals, value))
            })
    })
}

fn unescape(raw: &str) -> Result<String, String> {
    let mut value = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(next @ ('\\' | ',' | '=')) => value.push(next),
                Some(next) => {
                    return Err(format!(
                        "invalid field selector: invalid escape sequence: \\{next}"
                    ));
                }
                None => {
                    return Err("invalid field selector: invalid escape sequence: \\".to_owned());
                }
            },
            ',' | '=' => {
                return Err(format!(
                    "invalid field selector: unescaped character in value: {}",
                    u32::from(c)
                ));
            }
            c => value.push(c),
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn x1_label_selectors_match_as_the_grammar_says() {
        let labels = json!({"a": "1", "b": "x", "e": "", "in": "yes"});
        let labels = labels.as_object();
        let cases = [
            ("", true),
            ("a", true),
            ("!a", false),
            ("!zz", true),
            ("a=1", true),
            ("a==1", true),
            ("a = 2", false),
            ("a!=2", true),
            ("zz!=2", true),
            ("b in (x,y)", true),
            ("b in (y)", false),
            ("b notin (x)", false),
            ("zz notin (x)", true),
            ("a>0", true),
            ("a<1", false),
            ("b>0", false),
            ("e in (,x)", true),
            ("e=", true),
            ("e in ()", true),
            ("a=1,b=x", true),
            ("a=1, b=y", false),
            ("in=yes", true),
            ("b in (in, x)", true),
        ];
        for (text, expected) in cases {
            let selector = LabelSelector::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(selector.matches(labels), expected, "{text}");
        }
        assert!(!LabelSelector::parse("a").unwrap().matches(None));
    }

    #[test]
    fn x1_bad_label_selectors_are_refused_with_a_reason() {
        for (text, part) in [
            ("a=(", "found '(', expected: identifier"),
            ("a in", "found '' expected: '('"),
            ("a in (x", "found '', expected: ',' or ')'"),
            ("a,", "found '', expected: identifier after ','"),
            (
                ",",
                "found ',', expected: !, identifier, or 'end of string'",
            ),
            ("a b", "expected: in, notin, =, ==, !=, gt, lt"),
            ("a>x", "the value must be an integer"),
            ("a=b c", "found 'c', expected: ',' or 'end of string'"),
            ("-a=b", "name part must consist of alphanumeric characters"),
            (
                "a=b@c",
                "a valid label must be an empty string or consist of",
            ),
        ] {
            let error = LabelSelector::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn x2_field_selectors_unescape_and_compare() {
        let selector = FieldSelector::parse(r"metadata.name=a\,b,status.phase!=Done,x==").unwrap();
        let fields = |field: &str| match field {
            "metadata.name" => "a,b".to_owned(),
            "status.phase" => "New".to_owned(),
            _ => String::new(),
        };
        assert!(selector.matches(fields));
        assert_eq!(selector.exact("metadata.name"), Some("a,b"));
        assert_eq!(selector.exact("status.phase"), None);
        assert!(!FieldSelector::parse("x=1").unwrap().matches(fields));
        for bad in ["nope", r"a=b\c", r"a=b\", "a=b=c"] {
            assert!(FieldSelector::parse(bad).is_err(), "{bad}");
        }
    }
}
