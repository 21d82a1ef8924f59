//! Which requests a rule is about, and when it strikes.

use std::{ops::Range, time::Duration};

use http::{Request, header};

use super::Action;
use crate::http::{path::Route, query::Query};

/// What a request is, as far as rules can tell.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    verb: String,
    group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
    user_agent: String,
    query: Query,
    is_watch: bool,
}

impl Target {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let query = Query::parse(request.uri().query());
        let agent = request.headers().get(header::USER_AGENT);
        let mut target = Self {
            verb: request.method().as_str().to_ascii_lowercase(),
            group: String::new(),
            resource: request.uri().path().to_owned(),
            subresource: String::new(),
            namespace: String::new(),
            name: String::new(),
            user_agent: agent
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned(),
            query,
            is_watch: false,
        };
        if let Route::Resource(path) = Route::parse(request.uri().path()) {
            let wants_watch = target.query.flag("watch").unwrap_or(false);
            if let Some(verb) = path.verb(request.method(), wants_watch) {
                target.verb = verb.as_str().to_owned();
            }
            target.is_watch = target.verb == "watch";
            target.group = path.group;
            target.resource = path.plural;
            target.subresource = path.subresource.unwrap_or_default();
            target.namespace = path.namespace.unwrap_or_default();
            target.name = path.name.unwrap_or_default();
        }
        target
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.is_watch
    }
}

/// A part of a request that a rule names.
#[derive(Clone, Debug)]
enum Is {
    Verb(String),
    Group(String),
    Resource(String),
    Subresource(String),
    Namespace(String),
    Name(String),
    UserAgent(String),
    Query(String, Option<String>),
}

impl Is {
    fn holds(&self, target: &Target) -> bool {
        match self {
            Self::Verb(verb) => target.verb == *verb,
            Self::Group(group) => target.group == *group,
            Self::Resource(resource) => target.resource == *resource,
            Self::Subresource(subresource) => target.subresource == *subresource,
            Self::Namespace(namespace) => target.namespace == *namespace,
            Self::Name(name) => target.name == *name,
            Self::UserAgent(prefix) => target.user_agent.starts_with(prefix),
            Self::Query(name, None) => target.query.raw_is_set(name),
            Self::Query(name, Some(value)) => target.query.text(name) == Some(value),
        }
    }
}

/// A fault: requests that it is about, when it strikes, what it does.
///
/// Without further words it strikes every request. Conditions add up.
#[derive(Clone, Debug)]
#[must_use]
pub struct Rule {
    pub(super) action: Action,
    conditions: Vec<Is>,
    pub(super) nth: Option<u64>,
    pub(super) every: Option<u64>,
    pub(super) at_most: Option<u64>,
    pub(super) probability: Option<f64>,
    pub(super) seed: u64,
    pub(super) window: Range<Duration>,
}

impl Rule {
    /// A rule that does `action` to every request.
    pub fn new(action: impl Into<Action>) -> Self {
        Self {
            action: action.into(),
            conditions: Vec::new(),
            nth: None,
            every: None,
            at_most: None,
            probability: None,
            seed: 0,
            window: Duration::ZERO..Duration::MAX,
        }
    }

    fn only(mut self, condition: Is) -> Self {
        self.conditions.push(condition);
        self
    }

    /// Only `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`; for paths
    /// outside the API the HTTP method in lower case.
    pub fn verb(self, verb: &str) -> Self {
        self.only(Is::Verb(verb.to_owned()))
    }

    /// Only this API group; "" is the core group.
    pub fn group(self, group: &str) -> Self {
        self.only(Is::Group(group.to_owned()))
    }

    /// Only this plural, such as `pods`; for paths outside the API the path.
    pub fn resource(self, plural: &str) -> Self {
        self.only(Is::Resource(plural.to_owned()))
    }

    /// Only this subresource; "" for requests on the object itself.
    pub fn subresource(self, subresource: &str) -> Self {
        self.only(Is::Subresource(subresource.to_owned()))
    }

    /// Only this namespace of the path.
    pub fn namespace(self, namespace: &str) -> Self {
        self.only(Is::Namespace(namespace.to_owned()))
    }

    /// Only the object of this name.
    pub fn name(self, name: &str) -> Self {
        self.only(Is::Name(name.to_owned()))
    }

    /// Only clients whose `User-Agent` begins like this.
    pub fn user_agent(self, prefix: &str) -> Self {
        self.only(Is::UserAgent(prefix.to_owned()))
    }

    /// Only requests with this query parameter, of this value if one is given.
    pub fn query(self, name: &str, value: Option<&str>) -> Self {
        self.only(Is::Query(name.to_owned(), value.map(str::to_owned)))
    }

    /// Only the `number`th of the matching requests, from 1.
    pub fn nth(mut self, number: u64) -> Self {
        self.nth = Some(number);
        self
    }

    /// Only every `number`th of the matching requests; at least 1.
    pub fn every(mut self, number: u64) -> Self {
        self.every = Some(number.max(1));
        self
    }

    /// That often and no more.
    pub fn at_most(mut self, times: u64) -> Self {
        self.at_most = Some(times);
        self
    }

    /// By chance, from 0 for never to 1 for always; the same seed strikes the same requests.
    pub fn probability(mut self, chance: f64, seed: u64) -> Self {
        self.probability = Some(chance);
        self.seed = seed;
        self
    }

    /// Only in this time after the rule was added.
    pub fn between(mut self, from: Duration, until: Duration) -> Self {
        self.window = from..until;
        self
    }

    pub(super) fn matches(&self, target: &Target) -> bool {
        // What happens to a watch's events says nothing to other requests.
        let kind = target.is_watch || !matches!(self.action, Action::Watch(_));
        kind && self
            .conditions
            .iter()
            .all(|condition| condition.holds(target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{Cut, WatchAction};

    #[test]
    fn every_condition_has_to_hold() {
        let request = |uri: &str| {
            let request = Request::get(uri).header("user-agent", "tool/2 x");
            Target::of(&request.body(()).unwrap())
        };
        let rule = || Rule::new(Action::ResetBefore);
        let item = "/apis/apps/v1/namespaces/n/deployments/d/scale";
        let list = "/api/v1/pods?limit=5&continue=abc";
        let cases = [
            (rule(), list, true),
            (rule().verb("list"), list, true),
            (rule().verb("get"), list, false),
            (
                rule().verb("get").group("apps").resource("deployments"),
                item,
                true,
            ),
            (
                rule().subresource("scale").namespace("n").name("d"),
                item,
                true,
            ),
            (rule().subresource(""), item, false),
            (rule().name("e"), item, false),
            (rule().user_agent("tool/"), item, true),
            (rule().user_agent("other/"), item, false),
            (rule().query("continue", None), list, true),
            (rule().query("continue", None), item, false),
            (rule().query("limit", Some("5")), list, true),
            (rule().query("limit", Some("6")), list, false),
            (rule().resource("/readyz").verb("get"), "/readyz", true),
            (Rule::new(WatchAction::cut(Cut::Reset)), list, false),
            (
                Rule::new(WatchAction::cut(Cut::Reset)),
                "/api/v1/pods?watch=1",
                true,
            ),
        ];
        for (rule, uri, want) in cases {
            assert_eq!(rule.matches(&request(uri)), want, "{rule:?} {uri}");
        }
    }
}
