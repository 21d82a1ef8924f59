//! One call: pace, deadline, repetition, span.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use kube_client::client::Body;
use tokio::time::{Instant, Sleep};
use tower::{BoxError, Service, ServiceExt as _};
use tracing::Instrument as _;

use super::credentials::{CredentialsError, without_secrets};
use super::intent::Intent;
use super::limiter::Limiter;
use super::retry::{Failed, names_version};
use crate::source;

/// Wishes of one call that differ from the client's options; an extension of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOptions {
    /// Repeat the call where that is safe.
    pub retry: bool,
    /// Longest time for the call; for a watch, until it is answered.
    pub timeout: Option<Duration>,
}

/// What is longer than this is no limit; it can still be added to any moment.
const NO_LIMIT: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Times of calls by what they want.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    pub(super) call: Duration,
    pub(super) list: Duration,
    pub(super) watch_open: Duration,
}

/// A call was not answered in its time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no answer to {call} within {} s", after.as_secs_f32())]
struct DeadlinePassed {
    call: &'static str,
    after: Duration,
}

/// The service between a `kube_client::Client` and the connections.
#[derive(Clone, Debug)]
pub(super) struct Calls<S> {
    inner: S,
    timeouts: Timeouts,
    limiter: Option<Limiter>,
    retry: bool,
    /// Command that gives credentials, where there is one.
    plugin: Option<Arc<str>>,
}

impl<S> Calls<S> {
    pub(super) fn new(inner: S, timeouts: Timeouts, limiter: Option<Limiter>, retry: bool) -> Self {
        Self {
            inner,
            timeouts,
            limiter,
            retry,
            plugin: None,
        }
    }

    /// The same service, which names the command that its credentials come from when that fails.
    pub(super) fn with_plugin(self, plugin: Option<Arc<str>>) -> Self {
        Self { plugin, ..self }
    }
}

impl<S, B> Service<Request<Body>> for Calls<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<DeadlineBody<B>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // Each call waits for its own copy of the inner service.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let intent = Intent::of(&request);
        let wishes = request.extensions().get::<CallOptions>().copied();
        let timeout = wishes
            .and_then(|wishes| wishes.timeout)
            .unwrap_or(match intent {
                Intent::List => self.timeouts.list,
                Intent::Watch => self.timeouts.watch_open,
                _ => self.timeouts.call,
            });
        let retry = wishes.map_or(self.retry, |wishes| wishes.retry);
        let span = tracing::debug_span!(
            "http.call",
            otel.kind = "client",
            http.request.method = %request.method(),
            url.path = request.uri().path(),
            intent = intent.name(),
            http.response.status_code = tracing::field::Empty,
        );
        let call = Call {
            service: self.inner.clone(),
            limiter: self.limiter.clone(),
            intent,
            retry,
            plugin: self.plugin.clone(),
        };
        Box::pin(call.run(request, timeout).instrument(span))
    }
}

struct Call<S> {
    service: S,
    limiter: Option<Limiter>,
    intent: Intent,
    retry: bool,
    plugin: Option<Arc<str>>,
}

impl<S, B> Call<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError> + Clone,
    B: HttpBody<Data = Bytes> + Unpin,
{
    async fn run(
        self,
        request: Request<Body>,
        after: Duration,
    ) -> Result<Response<DeadlineBody<B>>, BoxError> {
        let intent = self.intent;
        let passed = DeadlinePassed {
            call: intent.name(),
            after,
        };
        let deadline = Instant::now() + after.min(NO_LIMIT);
        let answer = tokio::time::timeout_at(deadline, self.attempts(request, deadline)).await;
        let response = answer.map_err(|_| BoxError::from(passed))??;
        tracing::Span::current().record("http.response.status_code", response.status().as_u16());
        // The events of a watch come for as long as it lasts; an error's body does not.
        let endless = intent == Intent::Watch && response.status().is_success();
        let end = (!endless).then(|| Box::pin(tokio::time::sleep_until(deadline)));
        Ok(response.map(|inner| DeadlineBody { inner, end, passed }))
    }

    async fn attempts(
        self,
        request: Request<Body>,
        deadline: Instant,
    ) -> Result<Response<B>, BoxError> {
        let mut next = Some(request);
        let mut retries = 0;
        loop {
            let request = next.take().expect("every repetition sets its request");
            // Without a copy of the body the call cannot be repeated.
            let copy = if self.retry { copy(&request) } else { None };
            if let Some(limiter) = &self.limiter {
                limiter.ready().await;
            }
            let response = self.service.clone().oneshot(request).await;
            let response =
                response.map_err(|error| without_secrets(error, self.plugin.as_deref()))?;
            let failed = Failed {
                intent: self.intent,
                status: response.status(),
                retry_after: retry_after(response.headers()),
                retries,
                remaining: deadline.saturating_duration_since(Instant::now()),
            };
            let Some(copy) = copy.filter(|_| failed.is_transient()) else {
                return Ok(response);
            };
            let guarded =
                self.intent == Intent::Update && is_guarded(copy.body().try_clone()).await;
            let Some(wait) = failed.wait(guarded, rand::random()) else {
                return Ok(response);
            };
            tracing::debug!(status = %failed.status, ?wait, retries, "repeating a call");
            tokio::time::sleep(wait).await;
            retries += 1;
            next = Some(copy);
        }
    }
}

/// How long an answer asks to wait, in whole seconds; a date is not understood.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse();
    seconds.ok().map(Duration::from_secs)
}

fn copy(request: &Request<Body>) -> Option<Request<Body>> {
    let body = request.body().try_clone()?;
    let mut copy = Request::new(body);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

async fn is_guarded(body: Option<Body>) -> bool {
    match body {
        Some(body) => body
            .collect_bytes()
            .await
            .is_ok_and(|bytes| names_version(&bytes)),
        None => false,
    }
}

/// An answer's body that fails when the call's time is over.
#[derive(Debug)]
pub(super) struct DeadlineBody<B> {
    inner: B,
    end: Option<Pin<Box<Sleep>>>,
    passed: DeadlinePassed,
}

impl<B> HttpBody for DeadlineBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        if let Some(end) = &mut self.end
            && end.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Some(Err(self.passed.into())));
        }
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// What a client's error means to a source.
pub(crate) fn failure(error: kube_client::Error) -> source::Error {
    let mut next: Option<&(dyn StdError + 'static)> = Some(&error);
    while let Some(link) = next {
        if let Some(passed) = link.downcast_ref::<DeadlinePassed>() {
            return source::Error::Deadline {
                step: passed.call,
                after: passed.after,
            };
        }
        if let Some(credentials) = link.downcast_ref::<CredentialsError>() {
            return source::Error::Credentials(credentials.clone());
        }
        if let Some(io) = link.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::ConnectionRefused
        {
            return source::Error::Refused(Box::new(error));
        }
        next = link.source();
    }
    source::Error::Transport(Box::new(error))
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use http_body_util::{BodyExt as _, Full};
    use parking_lot::Mutex;

    use super::*;

    /// Codes to answer with, in order; afterwards 200. `None` never answers.
    type Script = Arc<Mutex<Vec<Option<u16>>>>;

    async fn call(
        request: Request<Body>,
        answers: &[Option<u16>],
    ) -> (Result<StatusCode, String>, usize) {
        let script: Script = Arc::new(Mutex::new(answers.iter().rev().copied().collect()));
        let made = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&made);
        let inner = tower::service_fn(move |_: Request<Body>| {
            *counted.lock() += 1;
            let answer = script.lock().pop().unwrap_or(Some(200));
            async move {
                match answer {
                    Some(code) => Ok::<_, BoxError>(
                        Response::builder()
                            .status(code)
                            .body(Full::new(Bytes::from("{}")))
                            .unwrap(),
                    ),
                    None => std::future::pending().await,
                }
            }
        });
        let seconds = Duration::from_secs;
        let timeouts = Timeouts {
            call: seconds(10),
            list: seconds(60),
            watch_open: seconds(15),
        };
        let answer = Calls::new(inner, timeouts, None, true)
            .oneshot(request)
            .await;
        let made = *made.lock();
        (
            answer
                .map(|answer| answer.status())
                .map_err(|error| error.to_string()),
            made,
        )
    }

    fn request(method: &str, uri: &str, body: &str) -> Request<Body> {
        let body = Body::from(body.as_bytes().to_vec());
        Request::builder()
            .method(method)
            .uri(uri)
            .body(body)
            .unwrap()
    }

    const PODS: &str = "/api/v1/namespaces/n/pods";
    const POD: &str = "/api/v1/namespaces/n/pods/p";

    #[tokio::test(start_paused = true)]
    async fn a_call_is_repeated_only_where_that_is_safe() {
        let guarded = r#"{"metadata":{"resourceVersion":"5"}}"#;
        let cases = [
            ("GET", POD, "", 503, 200, 2),
            ("POST", PODS, "{}", 503, 503, 1),
            ("POST", PODS, "{}", 429, 200, 2),
            ("PUT", POD, "{}", 504, 504, 1),
            ("PUT", POD, guarded, 504, 200, 2),
            ("PATCH", POD, guarded, 503, 200, 2),
            ("DELETE", POD, "{}", 503, 503, 1),
            ("GET", POD, "", 500, 500, 1),
        ];
        for (method, uri, body, answered, want, calls) in cases {
            let outcome = call(request(method, uri, body), &[Some(answered)]).await;
            let want = (Ok(StatusCode::from_u16(want).unwrap()), calls);
            assert_eq!(outcome, want, "{method} {uri} {body} answered {answered}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_wants_no_repetition_gets_none() {
        let mut request = request("GET", POD, "");
        request.extensions_mut().insert(CallOptions {
            retry: false,
            timeout: None,
        });
        let (answer, calls) = call(request, &[Some(503)]).await;
        assert_eq!((answer, calls), (Ok(StatusCode::SERVICE_UNAVAILABLE), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_without_an_answer_ends_at_its_deadline() {
        for (uri, seconds) in [(POD, 10), (PODS, 60), ("/api/v1/pods?watch=true", 15)] {
            let began = Instant::now();
            let (answer, _) = call(request("GET", uri, ""), &[None]).await;
            assert!(
                answer.unwrap_err().contains(&format!("within {seconds} s")),
                "{uri}"
            );
            assert_eq!(began.elapsed().as_secs(), seconds, "{uri}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_throttled_call_gives_up_before_its_deadline() {
        let began = Instant::now();
        let (answer, _) = call(request("GET", POD, ""), &[Some(429); 50]).await;
        assert_eq!(answer, Ok(StatusCode::TOO_MANY_REQUESTS));
        assert!(began.elapsed() < Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn the_body_of_a_call_has_the_deadline_of_the_call_and_a_watch_has_none() {
        for (uri, limited) in [(POD, true), ("/api/v1/pods?watch=true", false)] {
            let inner = tower::service_fn(|_: Request<Body>| async {
                let body = http_body_util::StreamBody::new(futures::stream::pending::<
                    Result<Frame<Bytes>, BoxError>,
                >());
                Ok::<_, BoxError>(Response::new(body))
            });
            let second = Duration::from_secs(1);
            let timeouts = Timeouts {
                call: second,
                list: second,
                watch_open: second,
            };
            let calls = Calls::new(inner, timeouts, None, true);
            let response = calls.oneshot(request("GET", uri, "")).await.unwrap();
            let hour = Duration::from_secs(3600);
            let body = tokio::time::timeout(hour, response.into_body().collect()).await;
            assert_eq!(matches!(body, Ok(Err(_))), limited, "{uri}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_may_take_as_long_as_it_likes() {
        let mut request = request("GET", POD, "");
        request.extensions_mut().insert(CallOptions {
            retry: true,
            timeout: Some(Duration::MAX),
        });
        let outcome = call(request, &[]).await;
        assert_eq!(outcome, (Ok(StatusCode::OK), 1));
    }
}
