//! From a request to its response: identity, permission, limits, dispatch, panics, headers, counters.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task,
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, header, request::Parts};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;

use crate::{
    auth::User,
    authorization::{self, Access, Authorizer},
    counters::{CounterKey, RevisionClass},
    error::{ApiError, ApiResult},
    faults::Faults,
    handlers::{Api, Call},
    http::{
        body::Aborted,
        compress,
        path::{ResourcePath, Route, Verb},
        query::Query,
        response::{self, ApiResponse},
        server::Respond,
    },
    registry::Resource,
    selector::FieldSelector,
};

/// The most bytes of a request's body.
const BODY_LIMIT: usize = 3 * 1024 * 1024;
/// The longest that a request other than a watch may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);

/// Serves the API to connections and to in-process clients.
#[derive(Debug)]
pub(crate) struct Frontend {
    api: Arc<Api>,
    pub(crate) faults: Faults,
    /// Clients of this process find nobody, as those of a closed port do.
    pub(crate) down: AtomicBool,
}

/// What is known of a request before its body is read.
struct Head {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    query: Query,
    route: Route,
    verb: Option<Verb>,
}

impl Head {
    fn of(parts: Parts) -> Self {
        let Parts {
            method,
            uri,
            headers,
            ..
        } = parts;
        let query = Query::parse(uri.query());
        let route = Route::parse(uri.path());
        let verb = match &route {
            Route::Resource(path) => path.verb(&method, query.flag("watch").unwrap_or(false)),
            Route::Discovery(_) | Route::Other(_) => None,
        };
        Self {
            method,
            uri,
            headers,
            query,
            route,
            verb,
        }
    }

    /// Whether the answer is an object or a list.
    fn may_be_compressed(&self) -> bool {
        self.verb.is_some_and(|verb| verb != Verb::Watch)
    }

    fn header(&self, name: header::HeaderName) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    fn counter_key(&self, code: u16, user: &User) -> CounterKey {
        let (group, resource, subresource) = match &self.route {
            Route::Resource(path) => (
                path.group.clone(),
                path.plural.clone(),
                path.subresource.clone().unwrap_or_default(),
            ),
            Route::Discovery(_) | Route::Other(_) => {
                (String::new(), self.uri.path().to_owned(), String::new())
            }
        };
        let verb = match self.verb {
            Some(verb) => verb.as_str().to_owned(),
            None => self.method.as_str().to_ascii_lowercase(),
        };
        CounterKey {
            verb,
            group,
            resource,
            subresource,
            code,
            user: user.name.clone(),
            user_agent: self.header(header::USER_AGENT).to_owned(),
            revision: match self.query.text("resourceVersion") {
                None => RevisionClass::Unset,
                Some("0") => RevisionClass::Zero,
                Some(_) => RevisionClass::Set,
            },
            continued: self.query.text("continue").is_some(),
        }
    }
}

impl Frontend {
    pub(crate) fn new(api: Arc<Api>) -> Self {
        Self {
            api,
            faults: Faults::default(),
            down: AtomicBool::new(false),
        }
    }

    /// Answers a request, unless a fault rule wants something else. A `trusted` user needs no credentials.
    pub(crate) async fn serve<B>(
        &self,
        request: Request<B>,
        trusted: Option<User>,
    ) -> Result<ApiResponse, Aborted>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<tower::BoxError>,
    {
        let answer = |request| async { Ok(self.answer(request, trusted).await) };
        self.faults.around(request, answer).await
    }

    async fn answer<B>(&self, request: Request<B>, trusted: Option<User>) -> ApiResponse
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<tower::BoxError>,
    {
        let (parts, body) = request.into_parts();
        let head = Head::of(parts);
        let user = match trusted {
            Some(user) => Ok(user),
            None => self
                .api
                .authenticator
                .authenticate(&head.headers, |namespace, name| {
                    self.api.account_uid(namespace, name)
                }),
        };
        let (user, refused) = match user {
            Ok(user) => (user, None),
            Err(error) => (User::unknown(), Some(error)),
        };
        let mut response = match refused {
            Some(error) => response::failure(&error),
            None => {
                let answered = guarded(self.handle(&head, &user, body)).await;
                answered.unwrap_or_else(|| {
                    self.api.recorder.panicked();
                    tracing::error!(method = %head.method, path = head.uri.path(), "a handler panicked");
                    let message = "the server failed while it handled the request";
                    response::failure(&ApiError::internal(message))
                })
            }
        };
        self.finish(&head, &user, &mut response);
        if head.may_be_compressed() && compress::is_wanted(&head.headers) {
            response = compress::gzip(response).await;
        }
        response
    }

    async fn handle<B>(&self, head: &Head, user: &User, body: B) -> ApiResponse
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<tower::BoxError>,
    {
        let limit = match timeout_of(&head.query) {
            Ok(limit) => limit.min(REQUEST_LIMIT),
            Err(error) => return response::failure(&error),
        };
        let mut warnings = Vec::new();
        let handled =
            tokio::time::timeout(limit, self.dispatch(head, user, body, &mut warnings)).await;
        let outcome = handled.unwrap_or_else(|_| {
            Err(ApiError::timeout(
                "request did not complete within the allotted timeout",
            ))
        });
        let mut response = outcome.unwrap_or_else(|error| response::failure(&error));
        response::add_warnings(&mut response, &warnings);
        response
    }

    async fn dispatch<B>(
        &self,
        head: &Head,
        user: &User,
        body: B,
        warnings: &mut Vec<String>,
    ) -> ApiResult<ApiResponse>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<tower::BoxError>,
    {
        authorize(&self.api.authorizer, head, user)?;
        let path = match &head.route {
            Route::Discovery(discovery) => {
                if !matches!(head.method, Method::GET | Method::HEAD) {
                    return Err(ApiError::method_not_allowed());
                }
                return self.api.discover(discovery, &head.headers);
            }
            Route::Other(path) => {
                return self
                    .api
                    .other(&head.method, path, &head.query, &head.headers);
            }
            Route::Resource(path) => path,
        };
        let verb = head.verb.ok_or_else(ApiError::method_not_allowed)?;
        let Some(resource) = self.find(path, verb)? else {
            return Ok(response::page_not_found());
        };
        let body = read_body(head, body).await?;
        let mut call = Call {
            user: user.clone(),
            verb,
            path: path.clone(),
            resource,
            query: head.query.clone(),
            headers: head.headers.clone(),
            body,
            warnings: Vec::new(),
        };
        let handled = self.api.handle(&mut call).await;
        warnings.append(&mut call.warnings);
        handled
    }

    /// The resource that a path names. Where there is none, built-in group versions answer with a Status (the
    /// error), all others in plain text (`None`).
    fn find(&self, path: &ResourcePath, verb: Verb) -> ApiResult<Option<Arc<Resource>>> {
        let catalog = self.api.registry.catalog();
        let Some(served) = catalog.group_version(&path.group, &path.version) else {
            return Ok(None);
        };
        let Some(resource) = served.resources.get(&*path.plural) else {
            return if served.custom {
                Ok(None)
            } else {
                Err(ApiError::no_such_resource())
            };
        };
        let wrong_scope = match (resource.namespaced, &path.namespace) {
            (false, Some(_)) => true,
            (true, None) => {
                path.name.is_some()
                    || (resource.is_custom()
                        && matches!(verb, Verb::Create | Verb::DeleteCollection))
            }
            _ => false,
        };
        match (wrong_scope, resource.is_custom()) {
            (false, _) => Ok(Some(Arc::clone(resource))),
            (true, true) => Ok(None),
            (true, false) => Err(ApiError::no_such_resource()),
        }
    }

    fn finish(&self, head: &Head, user: &User, response: &mut ApiResponse) {
        let code = response.status().as_u16();
        let out = response.headers_mut();
        let audit = head
            .headers
            .get("audit-id")
            .cloned()
            .or_else(|| HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()).ok());
        if let Some(audit) = audit {
            out.insert("audit-id", audit);
        }
        out.entry(header::CACHE_CONTROL)
            .or_insert(HeaderValue::from_static("no-cache, private"));
        let key = head.counter_key(code, user);
        tracing::debug!(
            http.request.method = %head.method,
            url.path = head.uri.path(),
            http.response.status_code = code,
            user = %user.name,
            "request"
        );
        self.api
            .recorder
            .request(self.api.clock.now(), key, head.uri.to_string());
    }
}

/// The answer of a handler; `None` when it panicked, which ends that request alone.
async fn guarded(handling: impl Future<Output = ApiResponse>) -> Option<ApiResponse> {
    AssertUnwindSafe(handling).catch_unwind().await.ok()
}

/// The name that a selector of a collection's request narrows it to: it counts as that of one object.
fn selected_name(head: &Head) -> Option<String> {
    let of_many = matches!(
        head.verb,
        Some(Verb::List | Verb::Watch | Verb::DeleteCollection)
    );
    let text = head.query.text("fieldSelector").filter(|_| of_many)?;
    let fields = FieldSelector::parse(text).ok()?;
    fields.exact("metadata.name").map(str::to_owned)
}

/// Whether the user may do what is asked.
///
/// # Errors
/// 403 when not.
fn authorize(authorizer: &Authorizer, head: &Head, user: &User) -> ApiResult<()> {
    let selected = selected_name(head);
    let method = head.method.as_str().to_ascii_lowercase();
    let access = match &head.route {
        Route::Resource(path) => {
            let name = path.name.as_deref().or(selected.as_deref());
            // A namespace lies in itself.
            let itself = (path.group.is_empty() && path.plural == "namespaces")
                .then_some(path.name.as_deref())
                .flatten();
            Access {
                verb: head.verb.map_or("unknown", Verb::as_str),
                group: &path.group,
                resource: &path.plural,
                subresource: path.subresource.as_deref().unwrap_or_default(),
                namespace: path.namespace.as_deref().or(itself).unwrap_or_default(),
                name: name.unwrap_or_default(),
                path: "",
            }
        }
        Route::Discovery(_) | Route::Other(_) => Access {
            verb: &method,
            path: head.uri.path(),
            ..Access::default()
        },
    };
    let verdict = authorizer.decide(user, &access);
    if verdict.allowed {
        Ok(())
    } else {
        Err(authorization::forbidden(user, &access, &verdict.reason))
    }
}

async fn read_body<B>(head: &Head, body: B) -> ApiResult<Bytes>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<tower::BoxError>,
{
    if matches!(head.method, Method::GET | Method::HEAD) {
        return Ok(Bytes::new());
    }
    let body = std::pin::pin!(body);
    match Limited::new(body, BODY_LIMIT).collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::body_too_large(BODY_LIMIT)),
        Err(error) => Err(ApiError::bad_request(format!(
            "cannot read the body: {error}"
        ))),
    }
}

/// The `timeout` parameter: a number of seconds with a unit (`500ms`, `30s`, `1m`).
fn timeout_of(query: &Query) -> ApiResult<Duration> {
    let Some(text) = query.text("timeout") else {
        return Ok(REQUEST_LIMIT);
    };
    let digits = text
        .bytes()
        .take_while(|c| c.is_ascii_digit() || *c == b'.')
        .count();
    let number: Option<f64> = text[..digits].parse().ok();
    let unit = match &text[digits..] {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    match number
        .map(|number| number * unit)
        .filter(|seconds| *seconds >= 0.0 && *seconds < 1e9)
    {
        Some(0.0) => Ok(REQUEST_LIMIT),
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => Err(ApiError::bad_request(format!(
            "invalid timeout specified in the request URL: \"{text}\" is no duration like 30s"
        ))),
    }
}

impl Respond for Frontend {
    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Result<ApiResponse, Aborted> {
        self.serve(request, None).await
    }
}

/// The API as a service for clients of the same process: no socket, no timers but those of the API.
#[derive(Clone, Debug)]
pub(crate) struct InProcess {
    pub(crate) frontend: Arc<Frontend>,
    pub(crate) user: User,
}

impl tower::Service<Request<kube_client::client::Body>> for InProcess {
    type Response = ApiResponse;
    type Error = Aborted;
    type Future = BoxFuture<'static, Result<ApiResponse, Aborted>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> task::Poll<Result<(), Aborted>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube_client::client::Body>) -> Self::Future {
        let Self { frontend, user } = self.clone();
        // A token that the request carries counts, so that one process can act as several users.
        let trusted = (!request.headers().contains_key(header::AUTHORIZATION)).then_some(user);
        Box::pin(async move {
            if frontend.down.load(Ordering::Relaxed) {
                return Err(Aborted);
            }
            frontend.serve(request, trusted).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_ends_one_request_alone() {
        let broken = async { panic!("a handler is broken") };
        assert!(guarded(broken).await.is_none());
        assert!(guarded(async { response::text(200, "ok") }).await.is_some());
    }

    #[test]
    fn timeouts_are_durations_with_a_unit() {
        let cases = [
            (None, Ok(60_000)),
            (Some("timeout=500ms"), Ok(500)),
            (Some("timeout=1.5s"), Ok(1500)),
            (Some("timeout=2m"), Ok(120_000)),
            (Some("timeout=0s"), Ok(60_000)),
            (Some("timeout=abc"), Err(400)),
            (Some("timeout=5"), Err(400)),
        ];
        for (query, expected) in cases {
            let got = timeout_of(&Query::parse(query));
            assert_eq!(
                got.map(|limit| limit.as_millis()).map_err(|e| e.code()),
                expected,
                "{query:?}"
            );
        }
    }
}
