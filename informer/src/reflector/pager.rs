//! The pages of one list, asked for ahead of the one who takes them.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use tokio::time::Sleep;

use super::classify;
use super::state::State;
use crate::Cause;
use crate::source::{Error, ListEnd, ListPart, ListRequest, ListWatch, Malformed};

/// Pages that may wait complete for the one who takes them.
const PREFETCH: usize = 10;

/// What comes out of a list.
pub(super) enum Paged<K> {
    /// Objects, in the order of the list.
    Items(Vec<Result<K, Box<Malformed>>>),
    /// The rest of the list is gone at the server: what came before is void, and the whole list
    /// comes anew. At most once.
    StartOver(Error),
    /// The list is complete.
    End { end: ListEnd, pages: usize },
}

enum Waiting<K> {
    Items(Vec<Result<K, Box<Malformed>>>),
    EndOfPage,
    End(ListEnd),
}

/// The page that arrives now.
struct Page<K> {
    request: ListRequest,
    parts: BoxStream<'static, Result<ListPart<K>, Error>>,
    deadline: Pin<Box<Sleep>>,
    objects: usize,
}

/// One list, page by page. The next page is asked for as soon as its token is known, and up to
/// [`PREFETCH`] complete pages wait; one that a server sends unpaged is taken as it arrives.
///
/// Mirrors client-go's `pager.ListPager`.
pub(super) struct Pager<K> {
    source: Arc<dyn ListWatch<K>>,
    first: ListRequest,
    timeout: Duration,
    page: Option<Page<K>>,
    waiting: VecDeque<Waiting<K>>,
    /// Complete pages in `waiting`.
    ahead: usize,
    pages: usize,
    /// The whole list is asked for in place of one whose rest was gone.
    started_over: bool,
}

impl<K: Send + 'static> Pager<K> {
    /// Begins the list of `first`; each of its pages may take `timeout`.
    pub(super) fn new(
        source: Arc<dyn ListWatch<K>>,
        first: ListRequest,
        timeout: Duration,
    ) -> Self {
        let mut pager = Self {
            source,
            first: first.clone(),
            timeout,
            page: None,
            waiting: VecDeque::new(),
            ahead: 0,
            pages: 0,
            started_over: false,
        };
        pager.ask(first);
        pager
    }

    fn ask(&mut self, request: ListRequest) {
        self.page = Some(Page {
            parts: self.source.list(request.clone()),
            request,
            deadline: Box::pin(tokio::time::sleep(self.timeout)),
            objects: 0,
        });
    }

    /// What comes next. Cancel-safe. Not to be called after [`Paged::End`] or an error.
    pub(super) async fn next(&mut self) -> Result<Paged<K>, Error> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Paged<K>, Error>> {
        loop {
            while self.waiting.is_empty() || self.reads_ahead() {
                match self.poll_page(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(error)) => return Poll::Ready(self.failed(error)),
                    Poll::Pending if self.waiting.is_empty() => return Poll::Pending,
                    Poll::Pending => break,
                }
            }
            let next = match self.waiting.pop_front() {
                Some(Waiting::Items(items)) => Paged::Items(items),
                Some(Waiting::End(end)) => Paged::End {
                    end,
                    pages: self.pages,
                },
                Some(Waiting::EndOfPage) => {
                    self.ahead -= 1;
                    continue;
                }
                None => unreachable!("the loop above ends with something that waits"),
            };
            return Poll::Ready(Ok(next));
        }
    }

    /// Whether more may be read though something waits. A page that is larger than asked for
    /// comes from a server that does not page.
    fn reads_ahead(&self) -> bool {
        let Some(page) = &self.page else {
            return false;
        };
        let limit = page.request.limit.map_or(0, |limit| limit as usize);
        self.ahead < PREFETCH && page.objects <= limit
    }

    /// Takes one part of the page that arrives.
    fn poll_page(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some(page) = &mut self.page else {
            return Poll::Ready(Err(Error::Answer("a list after its end".to_owned())));
        };
        let part = match page.parts.poll_next_unpin(cx) {
            Poll::Ready(part) => part,
            Poll::Pending if page.deadline.as_mut().poll(cx).is_ready() => {
                return Poll::Ready(Err(Error::Deadline {
                    step: "list",
                    after: self.timeout,
                }));
            }
            Poll::Pending => return Poll::Pending,
        };
        match part {
            Some(Ok(ListPart::Items(items))) => {
                page.objects += items.len();
                self.waiting.push_back(Waiting::Items(items));
            }
            Some(Ok(ListPart::End(end))) if end.resource_version.is_empty() => {
                let problem = "a list without metadata.resourceVersion";
                return Poll::Ready(Err(Error::Answer(problem.to_owned())));
            }
            Some(Ok(ListPart::End(mut end))) => {
                self.pages += 1;
                match end.continue_token.take() {
                    Some(token) => {
                        self.waiting.push_back(Waiting::EndOfPage);
                        self.ahead += 1;
                        self.ask(State::next_page(&self.first, token));
                    }
                    None => {
                        self.page = None;
                        self.waiting.push_back(Waiting::End(end));
                    }
                }
            }
            Some(Err(error)) => return Poll::Ready(Err(error)),
            None => {
                let problem = "a list without an end";
                return Poll::Ready(Err(Error::Answer(problem.to_owned())));
            }
        }
        Poll::Ready(Ok(()))
    }

    fn failed(&mut self, error: Error) -> Result<Paged<K>, Error> {
        let of_later_page = self
            .page
            .take()
            .is_some_and(|page| page.request.continue_token.is_some());
        self.waiting.clear();
        self.ahead = 0;
        let gone = of_later_page && classify::cause(&error) == Cause::Expired;
        // A server that pages what was asked for whole, and forgets its tokens again, is met by a
        // wait like any other failure.
        if !gone || std::mem::replace(&mut self.started_over, true) {
            return Err(error);
        }
        self.pages = 0;
        self.ask(State::whole_list(&self.first));
        Ok(Paged::StartOver(error))
    }
}
