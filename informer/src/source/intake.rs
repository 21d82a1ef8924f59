//! From the chunks of an answer to what they say, on as many cores as there are.
//!
//! The task that reads cuts chunks into texts and gives those to threads for blocking work, some
//! at a time, while it goes on reading; results come back in the order of the texts. Few texts
//! that arrive alone are decoded in place: handing them over would cost more than it gains.

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use http_body_util::BodyExt as _;
use kube_client::client::Body;
use tokio_util::task::AbortOnDropHandle;

use super::Error;
use super::scan::Text;
use crate::client::failure;

/// Bytes of the texts that are decoded together.
const TOGETHER: usize = 64 << 10;
/// Bytes up to which texts are decoded in place, if nothing else is at work.
const IN_PLACE: usize = 8 << 10;
/// Most jobs at a time, whatever the machine: what they hold is memory.
const MOST_JOBS: usize = 8;

/// Cuts chunks into texts.
pub(super) trait Splitter {
    /// Whether texts are of use before the answer is complete, and so shall not wait for company.
    const URGENT: bool;

    /// Adds the texts that `chunk` completes to `texts`.
    ///
    /// # Errors
    /// An answer that is not what was asked for. Texts before the fault stand in `texts`.
    fn split(&mut self, chunk: Bytes, texts: &mut Vec<Text>) -> Result<(), Error>;
}

/// What texts say, up to the first that is of no use.
#[derive(Debug)]
pub(super) struct Decoded<T> {
    pub(super) values: Vec<T>,
    pub(super) failure: Option<Error>,
}

type Decode<T> = dyn Fn(&[Text]) -> Decoded<T> + Send + Sync;

/// Reads one answer.
pub(super) struct Intake<S, T> {
    /// `None` after its end.
    body: Option<Body>,
    splitter: S,
    decode: Arc<Decode<T>>,
    texts: Vec<Text>,
    jobs: VecDeque<AbortOnDropHandle<Decoded<T>>>,
    most_jobs: usize,
    /// A failure behind what was read before it.
    failure: Option<Error>,
}

impl<S: Splitter, T: Send + 'static> Intake<S, T> {
    pub(super) fn new(
        body: Body,
        splitter: S,
        decode: impl Fn(&[Text]) -> Decoded<T> + Send + Sync + 'static,
    ) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            body: Some(body),
            splitter,
            decode: Arc::new(decode),
            texts: Vec::new(),
            jobs: VecDeque::new(),
            most_jobs: (2 * cores).min(MOST_JOBS),
            failure: None,
        }
    }

    pub(super) fn splitter(&mut self) -> &mut S {
        &mut self.splitter
    }

    /// The next values; `None` after all of them. Cancel-safe.
    ///
    /// # Errors
    /// Why the answer broke off or is of no use, behind the values before that.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<T>>, Error> {
        loop {
            let decoded = match self.step().await {
                Step::Decoded(decoded) => decoded,
                Step::Chunk(chunk) => {
                    self.take(chunk);
                    continue;
                }
                Step::End => {
                    self.body = None;
                    return self.failure.take().map_or(Ok(None), Err);
                }
            };
            if let Some(failure) = decoded.failure {
                // Nothing behind it counts.
                self.failure = Some(failure);
                self.body = None;
                self.texts.clear();
                self.jobs.clear();
            }
            if !decoded.values.is_empty() {
                return Ok(Some(decoded.values));
            }
        }
    }

    async fn step(&mut self) -> Step<T> {
        loop {
            let has_room = self.jobs.len() < self.most_jobs;
            let Some(body) = self.body.as_mut().filter(|_| has_room) else {
                if has_room && let Some(decoded) = self.flush() {
                    return Step::Decoded(decoded);
                }
                if self.jobs.is_empty() {
                    return Step::End;
                }
                return Step::Decoded(oldest(&mut self.jobs).await);
            };
            let frame = match body.frame().now_or_never() {
                Some(frame) => frame,
                // Nothing more is at hand: what waits for company waits no longer.
                None => match S::URGENT.then(|| self.flush()).flatten() {
                    Some(decoded) => return Step::Decoded(decoded),
                    None => tokio::select! {
                        biased;
                        decoded = oldest(&mut self.jobs) => return Step::Decoded(decoded),
                        frame = self.body.as_mut().expect("looked at above").frame() => frame,
                    },
                },
            };
            match frame {
                Some(Ok(frame)) => {
                    if let Ok(chunk) = frame.into_data() {
                        return Step::Chunk(chunk);
                    }
                }
                Some(Err(error)) => {
                    self.failure = Some(failure(error));
                    self.body = None;
                }
                None => self.body = None,
            }
        }
    }

    fn take(&mut self, chunk: Bytes) {
        if let Err(failure) = self.splitter.split(chunk, &mut self.texts) {
            self.failure = Some(failure);
            self.body = None;
        }
        let mut bytes = 0;
        let mut together = Vec::new();
        for text in std::mem::take(&mut self.texts) {
            bytes += text.bytes.len();
            together.push(text);
            if bytes >= TOGETHER {
                bytes = 0;
                self.start(std::mem::take(&mut together));
            }
        }
        self.texts = together;
    }

    /// Decodes the texts that are left: now, or if that would take long, beside this task.
    fn flush(&mut self) -> Option<Decoded<T>> {
        if self.texts.is_empty() {
            return None;
        }
        let texts = std::mem::take(&mut self.texts);
        let bytes: usize = texts.iter().map(|text| text.bytes.len()).sum();
        if self.jobs.is_empty() && bytes <= IN_PLACE {
            return Some((self.decode)(&texts));
        }
        self.start(texts);
        None
    }

    fn start(&mut self, texts: Vec<Text>) {
        let decode = Arc::clone(&self.decode);
        let job = tokio::task::spawn_blocking(move || decode(&texts));
        self.jobs.push_back(AbortOnDropHandle::new(job));
    }
}

enum Step<T> {
    Decoded(Decoded<T>),
    Chunk(Bytes),
    End,
}

/// The outcome of the oldest job, once there is one. Cancel-safe.
async fn oldest<T>(jobs: &mut VecDeque<AbortOnDropHandle<Decoded<T>>>) -> Decoded<T> {
    let Some(job) = jobs.front_mut() else {
        return std::future::pending().await;
    };
    let outcome = job.await;
    jobs.pop_front();
    match outcome {
        Ok(decoded) => decoded,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime ends, and this task with it.
            Err(_) => std::future::pending().await,
        },
    }
}
