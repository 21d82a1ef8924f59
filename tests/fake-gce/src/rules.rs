//! Rules by which calls fail or take their time.

use serde::{Deserialize, Serialize};

use crate::answer::Answer;

/// A call of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Op {
    /// `instances.insert`
    Insert,
    /// `instances.get`
    Get,
    /// `instances.delete`
    Delete,
    /// `instances.aggregatedList`
    List,
    /// `zoneOperations.get`
    Operation,
}

/// Whether a call that fails has had its effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// It has not.
    #[default]
    Before,
    /// It has, and only the answer is lost.
    After,
}

/// What happens to some calls; of several that meet a call the oldest is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rule {
    /// The call; any if absent.
    pub op: Option<Op>,
    /// A part of the VM's name (of the operation's target, for `operation`); any if absent.
    #[serde(rename = "match")]
    pub matching: Option<String>,
    /// How the call ends; as ever, only later, if absent.
    pub answer: Option<Answer>,
    /// How many calls are met; all of them if absent.
    pub times: Option<u32>,
    /// How long the answer takes, in milliseconds.
    pub delay_ms: u64,
    /// Whether a call that fails has had its effect.
    pub when: When,
}

impl Rule {
    /// The next `times` calls of `op` end so, without an effect.
    #[must_use]
    pub fn times(op: Op, times: u32, answer: Answer) -> Self {
        Self {
            op: Some(op),
            answer: Some(answer),
            times: Some(times),
            ..Self::default()
        }
    }

    /// The next call of `op` ends so, without an effect.
    #[must_use]
    pub fn once(op: Op, answer: Answer) -> Self {
        Self::times(op, 1, answer)
    }

    /// The same after the effect of the call.
    #[must_use]
    pub fn after_effect(mut self) -> Self {
        self.when = When::After;
        self
    }

    /// The same for VMs alone whose name has that part.
    #[must_use]
    pub fn matching(mut self, part: impl Into<String>) -> Self {
        self.matching = Some(part.into());
        self
    }

    pub(crate) fn meets(&self, op: Op, name: &str) -> bool {
        self.op.is_none_or(|wanted| wanted == op)
            && self
                .matching
                .as_deref()
                .is_none_or(|part| name.contains(part))
            && self.times != Some(0)
    }
}

/// Takes the rule that meets a call out of the list, or uses it up by one.
pub(crate) fn take(rules: &mut Vec<Rule>, op: Op, name: &str) -> Option<Rule> {
    let at = rules.iter().position(|rule| rule.meets(op, name))?;
    let rule = rules[at].clone();
    if let Some(times) = &mut rules[at].times {
        *times -= 1;
        if *times == 0 {
            rules.remove(at);
        }
    }
    Some(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_used_up_by_the_calls_that_it_meets_alone() {
        let mut rules = vec![
            Rule::times(Op::Get, 2, Answer::Reset).matching("px-1"),
            Rule::once(Op::Get, Answer::Hang),
        ];
        assert_eq!(take(&mut rules, Op::Insert, "px-1"), None);
        let answers: Vec<_> = ["px-1", "px-2", "px-1", "px-1"]
            .map(|name| take(&mut rules, Op::Get, name).and_then(|rule| rule.answer))
            .to_vec();
        let (reset, hang) = (Some(Answer::Reset), Some(Answer::Hang));
        assert_eq!(answers, [reset.clone(), hang, reset, None]);
        assert!(rules.is_empty());
    }

    #[test]
    fn a_rule_reads_from_json_and_a_wrong_field_is_refused() {
        let rule: Rule = serde_json::from_str(
            r#"{"op":"insert","match":"px","times":1,"when":"after",
                "answer":{"refuse":{"status":503,"message":"Backend Error"}}}"#,
        )
        .expect("a rule");
        assert_eq!((rule.op, rule.when), (Some(Op::Insert), When::After));
        assert!(serde_json::from_str::<Rule>(r#"{"ops":"insert"}"#).is_err());
    }
}
