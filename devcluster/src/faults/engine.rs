//! Carries out the action of a rule around a call.

use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::{HeaderName, HeaderValue, Request, Uri};
use http_body_util::BodyExt as _;
use rand::Rng as _;
use tokio_util::sync::CancellationToken;

use super::{Action, Faults, Hit, Target, action, stream::WatchEvents};
use crate::http::{
    body::{self, Aborted, Body},
    response::ApiResponse,
};

/// Bytes of a slow body that come at once.
const SLOW_PIECE: usize = 256;

/// Asks the connection of a request to end; an extension of requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Away(pub(crate) CancellationToken);

impl Faults {
    /// Makes a call, with what rules want to happen to it.
    ///
    /// # Errors
    /// [`Aborted`] where the connection has to end without an answer.
    pub(crate) async fn around<B, F>(
        &self,
        mut request: Request<B>,
        call: impl FnOnce(Request<B>) -> F,
    ) -> Result<ApiResponse, Aborted>
    where
        F: Future<Output = Result<ApiResponse, Aborted>>,
    {
        let target = Target::of(&request);
        let (hit, known) = self.strike(&target);
        let away = request.extensions().get::<Away>().cloned();
        let mut watch = None;
        let mut transform: fn(Body, u64) -> Body = |body, _| body;
        let mut amount = 0;
        if let Some(hit) = hit {
            match hit.action() {
                Action::Latency(delay) => {
                    let wait = delay.at(hit.entry.dice.lock().random());
                    tokio::time::sleep(wait).await;
                }
                Action::Status(failure) => return Ok(action::answer(failure)),
                Action::ResetBefore => return Err(Aborted),
                Action::ResetAfter => {
                    call(request).await?;
                    return Err(Aborted);
                }
                Action::Truncate(bytes) => (transform, amount) = (truncated, *bytes),
                Action::Slow(rate) => (transform, amount) = (slow, *rate),
                Action::Stall => self.removed(&hit).await,
                Action::Query(name, value) => set_query(&mut request, name, value),
                Action::Header(name, value) => set_header(&mut request, name, value),
                Action::GoAway => {
                    if let Some(Away(token)) = &away {
                        token.cancel();
                    }
                }
                Action::Watch(_) => watch = Some(hit),
            }
        }
        let response = call(request).await?;
        let events = target.is_watch() && response.status().is_success();
        Ok(response.map(|body| match events {
            true => self.watched(body, target, watch, known),
            false => transform(body, amount),
        }))
    }

    fn watched(&self, events: Body, target: Target, hit: Option<Hit>, known: u64) -> Body {
        let events = WatchEvents::new(self.clone(), events, target, hit, known);
        body::fallible(futures::stream::try_unfold(events, |mut events| async {
            Ok(events.next().await?.map(|chunk| (chunk, events)))
        }))
    }
}

fn set_query<B>(request: &mut Request<B>, name: &str, value: &str) {
    let uri = request.uri();
    let mut query = form_urlencoded::Serializer::new(String::new());
    let others = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    query.extend_pairs(others.filter(|(other, _)| other != name));
    query.append_pair(name, value);
    let changed = format!("{}?{}", uri.path(), query.finish());
    match changed.parse::<Uri>() {
        Ok(changed) => *request.uri_mut() = changed,
        Err(error) => tracing::error!(%error, name, "a fault rule's query cannot be sent"),
    }
}

fn set_header<B>(request: &mut Request<B>, name: &str, value: &str) {
    match (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
        (Ok(name), Ok(value)) => {
            request.headers_mut().insert(name, value);
        }
        _ => tracing::error!(name, "a fault rule's header cannot be sent"),
    }
}

fn chunks(body: Body) -> impl Stream<Item = Result<Bytes, Aborted>> + Send {
    body.into_data_stream()
}

/// The first `rest` bytes of a body; then the connection breaks, unless the body is no longer.
fn truncated(body: Body, rest: u64) -> Body {
    let state = (Box::pin(chunks(body)), rest);
    body::fallible(futures::stream::try_unfold(
        state,
        |(mut body, rest)| async move {
            if rest == 0 {
                // What came before is sent before the connection breaks.
                tokio::task::yield_now().await;
                return Err(Aborted);
            }
            let Some(chunk) = body.next().await.transpose()? else {
                return Ok(None);
            };
            let length = usize::try_from(rest).unwrap_or(usize::MAX).min(chunk.len());
            Ok(Some((chunk.slice(..length), (body, rest - length as u64))))
        },
    ))
}

/// A body at `rate` bytes per second.
fn slow(body: Body, rate: u64) -> Body {
    let state = (Box::pin(chunks(body)), Bytes::new());
    body::fallible(futures::stream::try_unfold(
        state,
        move |(mut body, mut chunk)| async move {
            while chunk.is_empty() {
                let Some(next) = body.next().await.transpose()? else {
                    return Ok(None);
                };
                chunk = next;
            }
            let piece = chunk.split_to(SLOW_PIECE.min(chunk.len()));
            let time = piece.len() as f64 / rate.max(1) as f64;
            tokio::time::sleep(Duration::from_secs_f64(time)).await;
            Ok(Some((piece, (body, chunk))))
        },
    ))
}
