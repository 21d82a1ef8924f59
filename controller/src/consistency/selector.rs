//! Whether a label selector, as a cache was given it, selects an object.

use std::collections::BTreeMap;

use kube_core::{Expression, Selector, SelectorExt as _};

/// Whether `selector` selects an object with these labels; `None` for one that is not understood:
/// comparisons of numbers (`a>1`), and what an API server would refuse.
pub(super) fn selects(selector: &str, labels: Option<&BTreeMap<String, String>>) -> Option<bool> {
    let selector = parse(selector)?;
    let none = BTreeMap::new();
    Some(selector.matches(labels.unwrap_or(&none)))
}

fn parse(selector: &str) -> Option<Selector> {
    if selector.trim().is_empty() {
        return Some(Selector::default());
    }
    parts(selector).map(requirement).collect()
}

/// Splits at the commas outside of parentheses.
fn parts(selector: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    selector.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

/// One of `a`, `!a`, `a=b`, `a==b`, `a!=b`, `a in (b, c)`, `a notin (b, c)`.
fn requirement(part: &str) -> Option<Expression> {
    let part = part.trim();
    if let Some((head, set)) = part.split_once('(') {
        let mut head = head.split_whitespace();
        let (key, operator) = (word(head.next()?)?, head.next()?);
        let set = set.strip_suffix(')')?.split(',').map(value);
        let set = set.collect::<Option<_>>()?;
        return match (operator, head.next()) {
            ("in", None) => Some(Expression::In(key, set)),
            ("notin", None) => Some(Expression::NotIn(key, set)),
            _ => None,
        };
    }
    if let Some(key) = part.strip_prefix('!') {
        return Some(Expression::DoesNotExist(word(key)?));
    }
    let Some((key, wanted)) = part.split_once('=') else {
        return Some(Expression::Exists(word(part)?));
    };
    match key.strip_suffix('!') {
        Some(key) => Some(Expression::NotEqual(word(key)?, value(wanted)?)),
        None => {
            let wanted = wanted.strip_prefix('=').unwrap_or(wanted);
            Some(Expression::Equal(word(key)?, value(wanted)?))
        }
    }
}

/// A value, which may be empty.
fn value(text: &str) -> Option<String> {
    let text = text.trim();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    text.chars().all(is_plain).then(|| text.to_owned())
}

fn word(text: &str) -> Option<String> {
    value(text).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k8_a_selector_is_evaluated_by_the_grammar_of_requests_and_any_other_is_not_known() {
        let labels: BTreeMap<_, _> = [("app", "web"), ("tier", ""), ("example.dev/x-y", "1.0")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        for (selector, expected) in [
            ("app=web", Some(true)),
            ("app==web", Some(true)),
            ("app = web", Some(true)),
            ("app=web,tier", Some(true)),
            ("app=web, tier=", Some(true)),
            ("example.dev/x-y=1.0", Some(true)),
            ("app=db", Some(false)),
            ("app=web,other", Some(false)),
            ("app!=web", Some(false)),
            ("app!=db", Some(true)),
            ("other!=web", Some(true)),
            ("other!=", Some(true)),
            ("!other", Some(true)),
            ("!app", Some(false)),
            ("! other , app", Some(true)),
            ("app in (web, db)", Some(true)),
            ("app in(db)", Some(false)),
            ("tier in (a,)", Some(true)),
            ("other in (web)", Some(false)),
            ("app notin (web,db)", Some(false)),
            ("app notin (db)", Some(true)),
            ("other notin (web)", Some(true)),
            ("app in (web,db),tier,other notin (a,b)", Some(true)),
            ("app in (web,db),tier,app notin (web)", Some(false)),
            ("", Some(true)),
            ("app>1", None),
            ("app<1,tier", None),
            ("app=web,", None),
            (",app", None),
            ("app web", None),
            ("app in web", None),
            ("app in (web", None),
            ("app in (web),b)", None),
            ("app in (web) x", None),
            ("in (web)", None),
            ("app within (web)", None),
            ("app in also (web)", None),
            ("=web", None),
            ("!", None),
            ("app===web", None),
        ] {
            assert_eq!(selects(selector, Some(&labels)), expected, "{selector:?}");
        }
        assert_eq!(selects("app", None), Some(false));
        assert_eq!(selects("!app", None), Some(true));
    }
}
