//! The API server's side of the wire, played by a service in this process.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use informer::source::{KubeSource, ReadOptions, Scope};
use kube_client::Client;
use kube_client::client::Body;
use kube_core::Resource;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) retry_after: Option<u32>,
    pub(crate) encoding: Option<&'static str>,
    /// How long after the head the body comes.
    pub(crate) delay: Duration,
    pub(crate) chunks: Vec<Bytes>,
    /// Keep the body open after the chunks.
    pub(crate) open: bool,
}

pub(crate) fn answer(code: u16, body: &str) -> Answer {
    let chunks = body
        .as_bytes()
        .chunks(7)
        .map(Bytes::copy_from_slice)
        .collect();
    Answer {
        code,
        retry_after: None,
        encoding: None,
        delay: Duration::ZERO,
        chunks,
        open: false,
    }
}

/// A client whose calls are recorded and answered in order; beyond the answers they hang.
#[derive(Clone, Default)]
pub(crate) struct Wire {
    pub(crate) answers: Arc<Mutex<VecDeque<Answer>>>,
    calls: Arc<Mutex<Vec<http::request::Parts>>>,
}

impl Wire {
    pub(crate) fn with(answers: impl IntoIterator<Item = Answer>) -> Self {
        let wire = Self::default();
        wire.answers.lock().extend(answers);
        wire
    }

    pub(crate) fn client(&self) -> Client {
        let wire = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            wire.calls.lock().push(request.into_parts().0);
            let answer = wire.answers.lock().pop_front();
            async move {
                let Some(answer) = answer else {
                    return std::future::pending().await;
                };
                let delay = answer.delay;
                let chunks = futures::stream::once(async move {
                    tokio::time::sleep(delay).await;
                    futures::stream::iter(answer.chunks)
                });
                let frames = chunks
                    .flatten()
                    .map(|chunk| Ok::<_, Infallible>(Frame::data(chunk)));
                let body = match answer.open {
                    true => frames.chain(futures::stream::pending()).boxed(),
                    false => frames.boxed(),
                };
                let mut response = Response::builder().status(answer.code);
                if let Some(seconds) = answer.retry_after {
                    response = response.header("retry-after", seconds);
                }
                if let Some(encoding) = answer.encoding {
                    response = response.header("content-encoding", encoding);
                }
                Ok::<_, Infallible>(response.body(StreamBody::new(body)).unwrap())
            }
        });
        Client::new(service, "default")
    }

    pub(crate) fn source<K>(&self, scope: Scope) -> KubeSource<K>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        KubeSource::new(self.client(), &(), scope, ReadOptions::default())
    }

    pub(crate) fn uris(&self) -> Vec<String> {
        self.calls
            .lock()
            .iter()
            .map(|call| call.uri.to_string())
            .collect()
    }

    pub(crate) fn header(&self, call: usize, name: &str) -> String {
        let calls = self.calls.lock();
        let value = calls[call]
            .headers
            .get(name)
            .map(|value| value.to_str().unwrap().to_owned());
        value.unwrap_or_default()
    }
}
