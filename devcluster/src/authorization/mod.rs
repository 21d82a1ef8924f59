//! Who may do what: everybody who is known, or those to whom roles are bound.

mod bootstrap;
mod policy;

use std::{collections::HashMap, ops::ControlFlow, sync::Arc};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    auth::User,
    error::{ApiError, Named},
    registry::{Registry, Resource},
    store::{Key, Scope, StoredObject},
};
pub(crate) use bootstrap::{bindings as default_bindings, roles as default_roles};
use policy::{Binding, Rule};

/// The group whose members may do everything, whatever roles say.
const MASTERS: &str = "system:masters";
/// Roles and bindings that are kept decoded.
const CACHE_LIMIT: usize = 4096;

/// How a cluster decides who may do what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Authorization {
    /// Whoever is known may do everything; strangers may ask how the server is.
    #[default]
    Authenticated,
    /// Roles decide, as in a real server: what no role allows is forbidden. The administrator is one of
    /// `system:masters`, who may do everything. The roles of discovery, of asking about oneself and
    /// `cluster-admin` are there from the start; `admin`, `edit` and `view` are not. Whoever may write roles
    /// may grant what they do not have: the real server's guard against that is missing.
    Rbac,
}

/// What somebody wants to do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Access<'a> {
    pub(crate) verb: &'a str,
    pub(crate) group: &'a str,
    /// The plural; "" when it is about a path.
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    /// "" at the cluster scope.
    pub(crate) namespace: &'a str,
    /// "" for whole collections.
    pub(crate) name: &'a str,
    /// A path outside the resources.
    pub(crate) path: &'a str,
}

/// Whether something may be done, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) allowed: bool,
    pub(crate) reason: String,
}

/// A kind of role or binding, with what was decoded of it.
#[derive(Debug)]
struct Decoded<T> {
    resource: Arc<Resource>,
    cache: Mutex<HashMap<Key, (u64, Arc<T>)>>,
}

/// Decides by the roles and bindings that are stored at the moment of asking.
#[derive(Debug)]
pub(crate) struct Authorizer {
    pub(crate) mode: Authorization,
    cluster_bindings: Decoded<Binding>,
    bindings: Decoded<Binding>,
    cluster_roles: Decoded<Vec<Rule>>,
    roles: Decoded<Vec<Rule>>,
}

/// What a user may do in a namespace, as a review tells it.
#[derive(Debug)]
pub(crate) struct Rules {
    pub(crate) rules: Vec<Value>,
    /// Roles that are bound and do not exist.
    pub(crate) problems: Vec<String>,
}

impl<T> Decoded<T> {
    fn new(registry: &Registry, plural: &str) -> Self {
        Self {
            resource: registry.built_in("rbac.authorization.k8s.io", plural),
            cache: Mutex::default(),
        }
    }

    /// An object, decoded at most once for each of its versions.
    fn of(&self, key: &Key, stored: &StoredObject, decode: impl FnOnce(&Value) -> T) -> Arc<T> {
        let mut cache = self.cache.lock();
        if let Some((revision, known)) = cache.get(key)
            && *revision == stored.revision
        {
            return Arc::clone(known);
        }
        if cache.len() >= CACHE_LIMIT {
            cache.clear();
        }
        let decoded = Arc::new(decode(&self.resource.read(stored)));
        cache.insert(key.clone(), (stored.revision, Arc::clone(&decoded)));
        decoded
    }
}

impl Authorizer {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            mode: Authorization::default(),
            cluster_bindings: Decoded::new(registry, "clusterrolebindings"),
            bindings: Decoded::new(registry, "rolebindings"),
            cluster_roles: Decoded::new(registry, "clusterroles"),
            roles: Decoded::new(registry, "roles"),
        }
    }

    /// Whether a user may do something.
    ///
    /// Cost with roles: a look at every binding of the cluster and of the namespace.
    pub(crate) fn decide(&self, user: &User, access: &Access<'_>) -> Verdict {
        let known = |allowed| Verdict {
            allowed,
            reason: String::new(),
        };
        if self.mode == Authorization::Authenticated {
            return known(!user.is_anonymous() || is_public(access.path));
        }
        if user.groups.iter().any(|group| group == MASTERS) {
            return known(true);
        }
        let mut found = None;
        let problems = self.visit(user, access.namespace, |binding, subject, rules| {
            if rules.iter().any(|rule| rule.allows(access)) {
                found = Some(format!("RBAC: allowed by {}", binding.described(subject)));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        match found {
            Some(reason) => Verdict {
                allowed: true,
                reason,
            },
            None if problems.is_empty() => known(false),
            None => Verdict {
                allowed: false,
                reason: format!("rbac: RBAC: {}", list_of(&problems)),
            },
        }
    }

    /// What a user may do in a namespace.
    pub(crate) fn rules_of(&self, user: &User, namespace: &str) -> Rules {
        if self.mode == Authorization::Authenticated {
            let everything = [
                json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}),
                json!({"verbs": ["*"], "nonResourceURLs": ["*"]}),
            ];
            return Rules {
                rules: everything.into(),
                problems: Vec::new(),
            };
        }
        let mut rules = Vec::new();
        let problems = self.visit(user, namespace, |_, _, found| {
            rules.extend(found.iter().map(Rule::source));
            ControlFlow::Continue(())
        });
        Rules { rules, problems }
    }

    /// The rules of every binding that names a user: those of the cluster, then those of a namespace. Gives
    /// what is wrong with bindings.
    fn visit(
        &self,
        user: &User,
        namespace: &str,
        mut step: impl FnMut(&Binding, &str, &[Rule]) -> ControlFlow<()>,
    ) -> Vec<String> {
        let mut problems = Vec::new();
        let mut done = false;
        let scopes = [
            (&self.cluster_bindings, Some(Scope::All)),
            (
                &self.bindings,
                (!namespace.is_empty()).then_some(Scope::Namespace(namespace)),
            ),
        ];
        for (bindings, scope) in scopes {
            let Some(scope) = scope.filter(|_| !done) else {
                continue;
            };
            let collection = &bindings.resource.collection;
            let scanned = collection.scan(scope, None, None, |key, stored| {
                let binding = bindings.of(key, stored, Binding::read);
                let Some(subject) = binding.subject_of(user) else {
                    return ControlFlow::Continue(());
                };
                match self.rules_of_role(&binding) {
                    Ok(rules) => {
                        let flow = step(&binding, &subject, &rules);
                        done |= flow.is_break();
                        flow
                    }
                    Err(problem) => {
                        problems.push(problem);
                        ControlFlow::Continue(())
                    }
                }
            });
            debug_assert!(scanned.is_ok(), "the present is never compacted");
        }
        problems
    }

    fn rules_of_role(&self, binding: &Binding) -> Result<Arc<Vec<Rule>>, String> {
        let (roles, key, kind) = if binding.role_kind == "ClusterRole" {
            let key = Key::new(None, &binding.role_name);
            (&self.cluster_roles, key, "clusterrole")
        } else {
            let key = Key::new(binding.namespace.as_deref(), &binding.role_name);
            (&self.roles, key, "role")
        };
        let Some(stored) = roles.resource.collection.get(&key) else {
            return Err(format!(
                "{kind}.rbac.authorization.k8s.io \"{}\" not found",
                binding.role_name
            ));
        };
        Ok(roles.of(&key, &stored, |role| {
            let rules = role["rules"].as_array().into_iter().flatten();
            rules.map(Rule::read).collect()
        }))
    }
}

/// Paths that strangers may read where no roles decide.
fn is_public(path: &str) -> bool {
    matches!(
        path.trim_start_matches('/').split('/').next(),
        Some("healthz" | "livez" | "readyz" | "version")
    )
}

/// Problems as the real server lists them.
pub(crate) fn list_of(problems: &[String]) -> String {
    match problems {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

/// The 403 of a user who may not do something.
pub(crate) fn forbidden(user: &User, access: &Access<'_>, reason: &str) -> ApiError {
    let user = &user.name;
    let verb = access.verb;
    if access.resource.is_empty() {
        return ApiError::forbidden_path(user, verb, access.path, reason);
    }
    let mut resource = access.resource.to_owned();
    if !access.subresource.is_empty() {
        resource = format!("{resource}/{}", access.subresource);
    }
    let scope = match access.namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace \"{namespace}\""),
    };
    let mut why = format!(
        "User \"{user}\" cannot {verb} resource \"{resource}\" in API group \"{}\" {scope}",
        access.group
    );
    if !reason.is_empty() {
        why = format!("{why}: {reason}");
    }
    let named = Named {
        group: access.group,
        plural: access.resource,
    };
    ApiError::forbidden(named, access.name, &why)
}
