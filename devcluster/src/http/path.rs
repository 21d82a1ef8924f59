//! What a request's path names.

use http::Method;
use percent_encoding::percent_decode_str;

/// A path, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// `/api`, `/apis`, `/apis/G`, `/apis/G/V`, `/api/v1`.
    Discovery(Discovery),
    /// A resource below a group version.
    Resource(ResourcePath),
    /// Anything else, e.g. `/healthz`.
    Other(Vec<String>),
}

/// A discovery document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Discovery {
    CoreVersions,
    Groups,
    Group(String),
    Resources { group: String, version: String },
}

/// A path to a collection, an item or a subresource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    pub(crate) group: String,
    pub(crate) version: String,
    /// The deprecated `/watch/` form.
    pub(crate) watch_prefix: bool,
    pub(crate) namespace: Option<String>,
    pub(crate) plural: String,
    pub(crate) name: Option<String>,
    /// Everything behind the name, joined with `/`.
    pub(crate) subresource: Option<String>,
}

/// What a request wants to do, in the words of authorization and counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

impl Route {
    /// Takes a path apart. Names are percent-decoded one by one, so `%2F` stays inside its segment.
    pub(crate) fn parse(path: &str) -> Self {
        let segments: Vec<String> = path
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(|segment| percent_decode_str(segment).decode_utf8_lossy().into_owned())
            .collect();
        let texts: Vec<&str> = segments.iter().map(String::as_str).collect();
        match texts.as_slice() {
            ["api"] => Self::Discovery(Discovery::CoreVersions),
            ["apis"] => Self::Discovery(Discovery::Groups),
            ["apis", group] => Self::Discovery(Discovery::Group((*group).to_owned())),
            ["api", version] => Self::Discovery(Discovery::Resources {
                group: String::new(),
                version: (*version).to_owned(),
            }),
            ["apis", group, version] => Self::Discovery(Discovery::Resources {
                group: (*group).to_owned(),
                version: (*version).to_owned(),
            }),
            ["api", version, rest @ ..] => Self::Resource(ResourcePath::parse("", version, rest)),
            ["apis", group, version, rest @ ..] => {
                Self::Resource(ResourcePath::parse(group, version, rest))
            }
            _ => Self::Other(segments),
        }
    }
}

impl ResourcePath {
    fn parse(group: &str, version: &str, segments: &[&str]) -> Self {
        let mut path = Self {
            group: group.to_owned(),
            version: version.to_owned(),
            ..Self::default()
        };
        let mut rest = segments;
        // A resource of that name does not exist: `watch` as first segment is always the prefix.
        if let ["watch", tail @ ..] = rest
            && !tail.is_empty()
        {
            path.watch_prefix = true;
            rest = tail;
        }
        // Below the core group these two name subresources of the namespace itself.
        let of_namespace = matches!(rest, ["namespaces", _, "status" | "finalize", ..]);
        if let ["namespaces", namespace, plural, tail @ ..] = rest
            && !of_namespace
        {
            path.namespace = Some((*namespace).to_owned());
            path.plural = (*plural).to_owned();
            rest = tail;
        } else if let [plural, tail @ ..] = rest {
            path.plural = (*plural).to_owned();
            rest = tail;
        }
        if let [name, tail @ ..] = rest {
            path.name = Some((*name).to_owned());
            rest = tail;
        }
        if !rest.is_empty() {
            path.subresource = Some(rest.join("/"));
        }
        path
    }

    /// The verb of a request on this path; `None` for methods the API does not know.
    pub(crate) fn verb(&self, method: &Method, wants_watch: bool) -> Option<Verb> {
        let item = self.name.is_some();
        Some(match *method {
            Method::GET | Method::HEAD if self.watch_prefix => Verb::Watch,
            Method::GET | Method::HEAD if item => Verb::Get,
            Method::GET | Method::HEAD if wants_watch => Verb::Watch,
            Method::GET | Method::HEAD => Verb::List,
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE if item => Verb::Delete,
            Method::DELETE => Verb::DeleteCollection,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(path: &str) -> ResourcePath {
        match Route::parse(path) {
            Route::Resource(path) => path,
            other => panic!("{path} is no resource: {other:?}"),
        }
    }

    #[test]
    fn paths_name_group_version_namespace_resource_name_and_subresource() {
        // path, group, version, namespace, plural, name, subresource
        let cases = [
            ("/api/v1/pods", "", "v1", None, "pods", None, None),
            (
                "/api/v1/namespaces/a/pods/p/status",
                "",
                "v1",
                Some("a"),
                "pods",
                Some("p"),
                Some("status"),
            ),
            (
                "/api/v1/namespaces/a",
                "",
                "v1",
                None,
                "namespaces",
                Some("a"),
                None,
            ),
            (
                "/api/v1/namespaces/a/finalize",
                "",
                "v1",
                None,
                "namespaces",
                Some("a"),
                Some("finalize"),
            ),
            (
                "/apis/g.io/v2/namespaces/a/things/t",
                "g.io",
                "v2",
                Some("a"),
                "things",
                Some("t"),
                None,
            ),
            (
                "/apis/r/v1/clusterroles/system%3Anode",
                "r",
                "v1",
                None,
                "clusterroles",
                Some("system:node"),
                None,
            ),
            (
                "/api/v1/namespaces/a/pods/p%2Fq",
                "",
                "v1",
                Some("a"),
                "pods",
                Some("p/q"),
                None,
            ),
        ];
        for (text, group, version, namespace, plural, name, subresource) in cases {
            let expected = ResourcePath {
                group: group.to_owned(),
                version: version.to_owned(),
                watch_prefix: false,
                namespace: namespace.map(str::to_owned),
                plural: plural.to_owned(),
                name: name.map(str::to_owned),
                subresource: subresource.map(str::to_owned),
            };
            assert_eq!(resource(text), expected, "{text}");
        }
    }

    #[test]
    fn the_watch_prefix_turns_reads_into_watches() {
        let path = resource("/api/v1/watch/namespaces/a/configmaps/c");
        assert!(path.watch_prefix);
        assert_eq!(
            (path.plural.as_str(), path.name.as_deref()),
            ("configmaps", Some("c"))
        );
        assert_eq!(path.verb(&Method::GET, false), Some(Verb::Watch));
    }

    #[test]
    fn an_item_ignores_the_watch_parameter() {
        assert_eq!(
            resource("/api/v1/nodes/n").verb(&Method::GET, true),
            Some(Verb::Get)
        );
        assert_eq!(
            resource("/api/v1/nodes").verb(&Method::GET, true),
            Some(Verb::Watch)
        );
        assert_eq!(
            resource("/api/v1/nodes").verb(&Method::DELETE, false),
            Some(Verb::DeleteCollection)
        );
        assert_eq!(resource("/api/v1/nodes").verb(&Method::TRACE, false), None);
    }

    #[test]
    fn discovery_and_other_paths_are_told_apart() {
        assert_eq!(
            Route::parse("/api/"),
            Route::Discovery(Discovery::CoreVersions)
        );
        assert_eq!(
            Route::parse("/apis/apps"),
            Route::Discovery(Discovery::Group("apps".to_owned()))
        );
        assert_eq!(
            Route::parse("/openapi/v3"),
            Route::Other(vec!["openapi".to_owned(), "v3".to_owned()])
        );
    }
}
