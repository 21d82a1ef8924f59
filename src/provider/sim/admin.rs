//! P-30: lets a simulated cloud be changed from outside while it runs, by HTTP on loopback.
//!
//! | Request | What it does |
//! |---|---|
//! | `GET /` | names of the simulated providers |
//! | `GET /NAME/machines` | the machines that belong to a Proxy |
//! | `POST /NAME/machines/NAMESPACE/PROXY/stop` | stops the machine of a Proxy |
//! | `POST /NAME/machines/NAMESPACE/PROXY/preempt` | takes it away as a spot machine is taken |
//! | `POST /NAME/machines/NAMESPACE/PROXY/vanish` | lets it be gone from one moment to the next |
//! | `GET /NAME/rules` | rules, oldest first, with what is left of their times |
//! | `POST /NAME/rules` | adds a [`RuleDocument`] |
//! | `DELETE /NAME/rules` | drops all rules |
//! | `GET /NAME/settings` | how the cloud behaves |
//! | `PATCH /NAME/settings` | changes what the [`Change`] names |
//! | `GET /NAME/calls` | calls so far, by name |
//!
//! Bodies are JSON. A path or machine that is not there answers 404, a body that cannot be read
//! 400, 415 or 422 with what is wrong. There is no authentication: whoever reaches the address may
//! do all of it, so that it is loopback only.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Json, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, serve};
use k8s_openapi::jiff::fmt::serde::unsigned_duration::friendly::compact;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{Op, Rule, Settings, When, World, up_to};
use crate::provider::{Class, Instance, Owner, Reason};

/// Why the address cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Others could reach it.
    #[error(
        "{0} is not loopback; the control API has no authentication, so give for example 127.0.0.1:8090"
    )]
    NotLoopback(SocketAddr),
    /// The address is in use or not ours.
    #[error("listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
}

/// The worlds by the names of their providers.
type Worlds = Arc<BTreeMap<String, World>>;

/// The control API, listening.
#[derive(Debug)]
pub struct Admin {
    listener: TcpListener,
    address: SocketAddr,
    worlds: Worlds,
}

impl Admin {
    /// Listens; connections wait until [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// [`Error::NotLoopback`]; [`Error::Bind`] if the address is in use.
    pub async fn bind(address: SocketAddr, worlds: BTreeMap<String, World>) -> Result<Self, Error> {
        if !address.ip().is_loopback() {
            return Err(Error::NotLoopback(address));
        }
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            let local = listener.local_addr()?;
            Ok((listener, local))
        };
        let (listener, address) = bound
            .await
            .map_err(|source| Error::Bind { address, source })?;
        Ok(Self {
            listener,
            address,
            worlds: Arc::new(worlds),
        })
    }

    /// The address it listens on, with the port that was picked.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`, then lets answers under way be finished.
    ///
    /// # Errors
    ///
    /// The listener broke.
    pub async fn run(self, stop: CancellationToken) -> Result<(), std::io::Error> {
        let routes = routes(self.worlds);
        serve(self.listener, routes)
            .with_graceful_shutdown(stop.cancelled_owned())
            .await
    }
}

fn routes(worlds: Worlds) -> Router {
    Router::new()
        .route("/", get(names))
        .route("/{provider}/machines", get(machines))
        .route(
            "/{provider}/machines/{namespace}/{proxy}/{fate}",
            post(strike),
        )
        .route(
            "/{provider}/rules",
            get(rules).post(add_rule).delete(clear_rules),
        )
        .route("/{provider}/settings", get(settings).patch(change))
        .route("/{provider}/calls", get(calls))
        .with_state(worlds)
}

/// A request about something that is not there.
struct Missing(String);

impl IntoResponse for Missing {
    fn into_response(self) -> Response {
        (StatusCode::NOT_FOUND, self.0).into_response()
    }
}

fn world<'a>(worlds: &'a Worlds, provider: &str) -> Result<&'a World, Missing> {
    worlds.get(provider).ok_or_else(|| {
        let known: Vec<_> = worlds.keys().map(String::as_str).collect();
        let known = known.join(", ");
        Missing(format!(
            "no simulated provider {provider:?}; there are: {known}\n"
        ))
    })
}

async fn names(State(worlds): State<Worlds>) -> Json<Vec<String>> {
    Json(worlds.keys().cloned().collect())
}

/// A machine as the control API shows it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineDocument {
    /// Namespace of the Proxy.
    pub namespace: String,
    /// Name of the Proxy.
    pub proxy: String,
    /// The provider's id.
    pub id: String,
    /// Number of the machine, never used twice.
    pub incarnation: String,
    /// `Provisioning`, `Running`, `Stopped` or `Terminated`.
    pub state: String,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Its address, if it runs.
    pub ip: Option<String>,
    /// Its zone, if it has one.
    pub zone: Option<String>,
}

impl From<(Owner, Instance)> for MachineDocument {
    fn from((owner, seen): (Owner, Instance)) -> Self {
        Self {
            ip: seen.ip().map(str::to_owned),
            namespace: owner.namespace,
            proxy: owner.proxy,
            id: seen.id.as_str().to_owned(),
            incarnation: seen.incarnation.as_str().to_owned(),
            state: format!("{:?}", seen.state),
            deleting: seen.deleting,
            zone: seen.zone,
        }
    }
}

async fn machines(
    State(worlds): State<Worlds>,
    Path(provider): Path<String>,
) -> Result<Json<Vec<MachineDocument>>, Missing> {
    let all = world(&worlds, &provider)?.all();
    Ok(Json(all.into_iter().map(MachineDocument::from).collect()))
}

/// What may happen to a machine.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Fate {
    Stop,
    Preempt,
    Vanish,
}

async fn strike(
    State(worlds): State<Worlds>,
    Path((provider, namespace, proxy, fate)): Path<(String, String, String, Fate)>,
) -> Result<StatusCode, Missing> {
    let world = world(&worlds, &provider)?;
    let mut struck = false;
    for (owner, _) in world.all() {
        if owner.namespace == namespace && owner.proxy == proxy {
            let name = owner.instance_name();
            struck |= match fate {
                Fate::Stop => world.stop(&name),
                Fate::Preempt => world.preempt(&name),
                Fate::Vanish => world.vanish(&name),
            };
        }
    }
    if struck {
        Ok(StatusCode::NO_CONTENT)
    } else {
        let text = format!("Proxy {namespace}/{proxy} has no machine at {provider}\n");
        Err(Missing(text))
    }
}

/// A [`Rule`] as the control API reads and shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RuleDocument {
    /// The call: `create`, `get`, `delete`, `find` or `list`; any if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub op: Option<Op>,
    /// A part of `namespace/name` of the Proxy; any Proxy if absent.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub matching: Option<String>,
    /// How the call fails: `not-found`, `quota`, `permanent` or `transient`; it only takes longer
    /// if class and reason are absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// The same more exactly, for example `capacity`, `credentials` or `throttled`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// How long the error asks to wait, as `10s`.
    #[serde(skip_serializing_if = "Option::is_none", with = "compact::optional")]
    pub retry_after: Option<Duration>,
    /// How many calls are met; all of them if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<NonZeroU32>,
    /// Only each so-manieth call that fits is met, for failures that come and go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<NonZeroU32>,
    /// How long the answer takes, as `500ms`.
    #[serde(skip_serializing_if = "Option::is_none", with = "compact::optional")]
    pub delay: Option<Duration>,
    /// `before`: the call fails without its effect; `after`: only the answer is lost.
    pub when: When,
}

impl TryFrom<RuleDocument> for Rule {
    type Error = String;

    fn try_from(document: RuleDocument) -> Result<Self, String> {
        let error = match (document.class, document.reason) {
            (Some(class), Some(reason)) if reason.class() != class => {
                return Err(format!(
                    "reason {reason:?} is of class {}, not {}; leave one of them out",
                    reason.class().as_str(),
                    class.as_str()
                ));
            }
            (_, Some(reason)) => Some(reason),
            (Some(class), None) => Some(match class {
                Class::NotFound => Reason::Gone,
                Class::QuotaExceeded => Reason::Quota,
                Class::Permanent => Reason::InvalidInput,
                Class::Transient => Reason::Unavailable,
            }),
            (None, None) => None,
        };
        Ok(Self {
            op: document.op,
            matching: document.matching,
            error,
            times: document.times.map(NonZeroU32::get),
            every: document.every,
            passed: 0,
            delay: document.delay.unwrap_or_default(),
            when: document.when,
            retry_after: document.retry_after,
        })
    }
}

impl From<Rule> for RuleDocument {
    fn from(rule: Rule) -> Self {
        Self {
            op: rule.op,
            matching: rule.matching,
            class: rule.error.map(Reason::class),
            reason: rule.error,
            retry_after: rule.retry_after,
            times: rule.times.and_then(NonZeroU32::new),
            every: rule.every,
            delay: (!rule.delay.is_zero()).then_some(rule.delay),
            when: rule.when,
        }
    }
}

async fn rules(
    State(worlds): State<Worlds>,
    Path(provider): Path<String>,
) -> Result<Json<Vec<RuleDocument>>, Missing> {
    let rules = world(&worlds, &provider)?.rules();
    Ok(Json(rules.into_iter().map(RuleDocument::from).collect()))
}

async fn add_rule(
    State(worlds): State<Worlds>,
    Path(provider): Path<String>,
    Json(document): Json<RuleDocument>,
) -> Result<Response, Missing> {
    let world = world(&worlds, &provider)?;
    Ok(match Rule::try_from(document) {
        Ok(rule) => {
            world.add_rule(rule);
            StatusCode::CREATED.into_response()
        }
        Err(fault) => (StatusCode::UNPROCESSABLE_ENTITY, fault + "\n").into_response(),
    })
}

async fn clear_rules(
    State(worlds): State<Worlds>,
    Path(provider): Path<String>,
) -> Result<StatusCode, Missing> {
    world(&worlds, &provider)?.clear_rules();
    Ok(StatusCode::NO_CONTENT)
}

/// [`Settings`] as the control API shows them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SettingsDocument {
    #[serde(with = "compact::required")]
    boot: Duration,
    #[serde(with = "compact::required")]
    deletion: Duration,
    #[serde(with = "compact::required")]
    hidden_for: Duration,
    quota: Option<usize>,
    calls_per_second: Option<NonZeroU32>,
    unreachable: BTreeSet<String>,
}

impl From<Settings> for SettingsDocument {
    fn from(settings: Settings) -> Self {
        Self {
            boot: settings.boot.end,
            deletion: settings.deletion.end,
            hidden_for: settings.hidden_for,
            quota: settings.quota,
            calls_per_second: settings.calls_per_second,
            unreachable: settings.unreachable,
        }
    }
}

/// What is to be changed of [`Settings`]; what is absent stays, and `null` lifts a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Change {
    /// Longest time a machine takes to boot, as `2s`; the shortest is half of it.
    #[serde(with = "compact::optional")]
    pub boot: Option<Duration>,
    /// Longest time a deletion takes; the shortest is half of it.
    #[serde(with = "compact::optional")]
    pub deletion: Option<Duration>,
    /// How long a machine that was made does not show in reads.
    #[serde(with = "compact::optional")]
    pub hidden_for: Option<Duration>,
    /// Most machines at a time.
    #[serde(deserialize_with = "given")]
    pub quota: Option<Option<usize>>,
    /// Most calls in a second.
    #[serde(deserialize_with = "given")]
    pub calls_per_second: Option<Option<NonZeroU32>>,
    /// Zones that do not answer.
    pub unreachable: Option<BTreeSet<String>>,
}

/// Tells a `null` from an absent field.
fn given<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

impl Change {
    fn apply(self, world: &World) {
        world.change_settings(|settings| {
            if let Some(boot) = self.boot {
                settings.boot = up_to(boot);
            }
            if let Some(deletion) = self.deletion {
                settings.deletion = up_to(deletion);
            }
            if let Some(hidden_for) = self.hidden_for {
                settings.hidden_for = hidden_for;
            }
            if let Some(quota) = self.quota {
                settings.quota = quota;
            }
            if let Some(limit) = self.calls_per_second {
                settings.calls_per_second = limit;
            }
            if let Some(unreachable) = self.unreachable {
                settings.unreachable = unreachable;
            }
        });
    }
}

async fn settings(
    State(worlds): State<Worlds>,
    Path(provider): Path<String>,
) -> Result<Json<SettingsDocument>, Missing> {
    let settings = world(&worlds, &provider)?.settings();
    Ok(Json(settings.into()))
}

async fn change(
    State(worlds): State<Worlds>,
    Path(provider): Path<String>,
    Json(change): Json<Change>,
) -> Result<Json<SettingsDocument>, Missing> {
    let world = world(&worlds, &provider)?;
    change.apply(world);
    Ok(Json(world.settings().into()))
}

async fn calls(
    State(worlds): State<Worlds>,
    Path(provider): Path<String>,
) -> Result<Json<BTreeMap<&'static str, u64>>, Missing> {
    let world = world(&worlds, &provider)?;
    let count = |op: Op| (op.as_str(), world.calls(op));
    Ok(Json(Op::ALL.into_iter().map(count).collect()))
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
