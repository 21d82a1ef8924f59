//! HTTP on loopback around a world.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin;
use crate::answer::{Answer, Refusal, Reply};
use crate::operation::Failure;
use crate::rules::{Op, Rule, When};
use crate::settings::Settings;
use crate::world::{ListQuery, World};

/// More than the largest metadata of a VM, in JSON.
const MAX_BODY: usize = 4 << 20;
const PREFIX: &str = "/compute/v1/projects/";

/// Why a fake cloud does not start.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address}")]
pub struct Error {
    address: SocketAddr,
    source: std::io::Error,
}

/// A fake cloud that serves until it is dropped.
#[derive(Debug)]
pub struct FakeGce {
    world: World,
    address: SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl FakeGce {
    /// Serves a new world on a free port of 127.0.0.1.
    ///
    /// # Errors
    ///
    /// [`Error`] if there is no port left.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        Self::listen(settings, (Ipv4Addr::LOCALHOST, 0).into()).await
    }

    /// Serves a new world at that address, which should be one of this machine alone: nobody is
    /// asked for credentials.
    ///
    /// # Errors
    ///
    /// [`Error`] if the address cannot be had.
    pub async fn listen(settings: Settings, address: SocketAddr) -> Result<Self, Error> {
        let failed = |source| Error { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let world = World::new(settings);
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let accept = accept(listener, world.clone(), stop.clone(), tasks.clone());
        tasks.spawn(stop.clone().run_until_cancelled_owned(accept));
        Ok(Self {
            world,
            address,
            stop,
            tasks,
        })
    }

    /// The cloud behind the address.
    #[must_use]
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The endpoint for clients, `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops serving and waits for all connections to end.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for FakeGce {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(listener: TcpListener, world: World, stop: CancellationToken, tasks: TaskTracker) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                let connection = connection(socket, world.clone());
                tasks.spawn(stop.clone().run_until_cancelled_owned(connection));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
}

/// Serves one connection until it ends, or until an answer cuts it.
async fn connection(socket: TcpStream, world: World) {
    let cut = CancellationToken::new();
    let service = service_fn(|request: Request<Incoming>| {
        let (world, cut) = (world.clone(), cut.clone());
        async move {
            match respond(&world, request).await {
                Some(response) => Ok::<_, Infallible>(response),
                None => {
                    cut.cancel();
                    std::future::pending().await
                }
            }
        }
    });
    let serve = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(socket), service);
    if let Some(Err(error)) = cut.run_until_cancelled(serve).await {
        tracing::debug!(%error, "connection ended");
    }
}

/// The response, or none where the connection is to be cut.
async fn respond(world: &World, request: Request<Incoming>) -> Option<Response<Full<Bytes>>> {
    let (parts, body) = request.into_parts();
    let query: Vec<(String, String)> =
        form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes())
            .into_owned()
            .collect();
    let body = match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => {
            let refusal = Refusal::boxed(413, "uploadTooLarge", "The request is too large.");
            return render(Reply::Refused(refusal)).await;
        }
    };
    let path = percent_encoding::percent_decode_str(parts.uri.path()).decode_utf8_lossy();
    let reply = match path.strip_prefix("/fake/") {
        Some(path) => admin::respond(world, &parts.method, path, &body),
        None => match Call::parse(world, &parts.method, &path, &query, &body) {
            Ok(call) => answer(world, call).await,
            Err(refusal) => Reply::Refused(refusal),
        },
    };
    render(reply).await
}

async fn render(reply: Reply) -> Option<Response<Full<Bytes>>> {
    let (status, retry_after, text) = match reply {
        Reply::Ok(value) => (200, None, value.to_string()),
        Reply::Refused(refusal) => (
            refusal.status,
            refusal.retry_after,
            refusal.body().to_string(),
        ),
        Reply::Raw(status, body) => (status, None, body),
        Reply::Reset => return None,
        Reply::Hang => std::future::pending().await,
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::IM_A_TEAPOT);
    let json = http::HeaderValue::from_static("application/json; charset=UTF-8");
    response
        .headers_mut()
        .insert(http::header::CONTENT_TYPE, json);
    if let Some(seconds) = retry_after {
        response
            .headers_mut()
            .insert(http::header::RETRY_AFTER, seconds.into());
    }
    Some(response)
}

/// A call of the API, as the request spells it.
struct Call {
    op: Op,
    zone: String,
    /// Name of the VM or operation; the filter of a list.
    what: String,
    request_id: Option<String>,
    resource: Value,
    list: Option<ListQuery>,
}

impl Call {
    fn parse(
        world: &World,
        method: &Method,
        path: &str,
        query: &[(String, String)],
        body: &[u8],
    ) -> Result<Self, Box<Refusal>> {
        let unknown = || Refusal::boxed(404, "notFound", format!("No method {method} {path}"));
        let mut segments = path.strip_prefix(PREFIX).ok_or_else(unknown)?.split('/');
        let project = segments.next().unwrap_or_default();
        if project != world.settings().project {
            return Err(Refusal::not_found(&format!("projects/{project}")));
        }
        let rest: Vec<_> = segments.collect();
        let parameter = |name: &str| {
            let found = query.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.clone())
        };
        let call = |op, zone: &str, what: &str| Self {
            op,
            zone: zone.to_owned(),
            what: what.to_owned(),
            request_id: None,
            resource: Value::Null,
            list: None,
        };
        let mut call = match (method, rest.as_slice()) {
            (&Method::POST, ["zones", zone, "instances"]) => {
                let resource: Value = serde_json::from_slice(body).map_err(|error| {
                    Refusal::boxed(400, "parseError", format!("Parse Error: {error}"))
                })?;
                let name = resource["name"].as_str().unwrap_or_default().to_owned();
                Self {
                    resource,
                    ..call(Op::Insert, zone, &name)
                }
            }
            (&Method::GET, ["zones", zone, "instances", name]) => call(Op::Get, zone, name),
            (&Method::DELETE, ["zones", zone, "instances", name]) => call(Op::Delete, zone, name),
            (&Method::GET, ["zones", zone, "operations", name]) => call(Op::Operation, zone, name),
            (&Method::GET, ["aggregated", "instances"]) => {
                let filter = parameter("filter").unwrap_or_default();
                let query = ListQuery {
                    filter: filter.clone(),
                    max_results: parameter("maxResults").and_then(|text| text.parse().ok()),
                    page_token: parameter("pageToken"),
                };
                Self {
                    list: Some(query),
                    ..call(Op::List, "", &filter)
                }
            }
            _ => return Err(unknown()),
        };
        call.request_id = parameter("requestId");
        if let Some(id) = &call.request_id
            && !uuid::Uuid::parse_str(id).is_ok_and(|id| !id.is_nil())
        {
            return Err(Refusal::invalid(
                "requestId",
                id,
                "Must be a UUID, and not zero.",
            ));
        }
        Ok(call)
    }

    /// What the call does, and what it is answered where no rule says otherwise.
    fn run(&self, world: &World, fail: Option<Failure>) -> Result<Value, Box<Refusal>> {
        let request_id = self.request_id.as_deref();
        match (self.op, &self.list) {
            (Op::Insert, _) => world.insert(&self.zone, self.resource.clone(), request_id, fail),
            (Op::Get, _) => world.get(&self.zone, &self.what),
            (Op::Delete, _) => world.delete(&self.zone, &self.what, request_id, fail),
            (Op::Operation, _) => world.operation(&self.zone, &self.what),
            (Op::List, Some(query)) => world.list(query),
            (Op::List, None) => Err(Refusal::unavailable()),
        }
    }
}

/// One call: what the rules say, around its effect.
async fn answer(world: &World, call: Call) -> Reply {
    let rule = world.meet(call.op, &call.what, call.request_id.as_deref());
    let Some(Rule {
        answer,
        when,
        delay_ms,
        ..
    }) = rule
    else {
        return call.run(world, None).into();
    };
    let delay = std::time::Duration::from_millis(delay_ms);
    let ended = match answer {
        Some(Answer::Refuse(refusal)) => Reply::Refused(Box::new(refusal)),
        Some(Answer::Raw { status, body }) => Reply::Raw(status, body),
        Some(Answer::Reset) => Reply::Reset,
        Some(Answer::Hang) => Reply::Hang,
        Some(Answer::FailOperation {
            code,
            message,
            status,
        }) => {
            tokio::time::sleep(delay).await;
            return call
                .run(
                    world,
                    Some(Failure {
                        code,
                        message,
                        status,
                    }),
                )
                .into();
        }
        None => {
            tokio::time::sleep(delay).await;
            return call.run(world, None).into();
        }
    };
    if when == When::After
        && let Err(refusal) = call.run(world, None)
    {
        return Reply::Refused(refusal);
    }
    tokio::time::sleep(delay).await;
    ended
}
