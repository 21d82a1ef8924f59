//! Lists: pages into a new state beside the stored one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use futures::StreamExt as _;
use kube_core::Resource;

use super::state::State;
use super::{OnMalformed, Reflector, ReflectorError};
use crate::error::panic_text;
use crate::source::{self, ListEnd, ListPart, ListRequest, Malformed};
use crate::store::BuildUp;
use crate::{Cause, ObjectKey};

impl<K: Resource + Send + Sync + 'static> Reflector<K> {
    /// Lists everything into the store.
    pub(super) async fn list(&mut self, first: ListRequest) -> Result<(), ReflectorError> {
        self.core
            .progress
            .stats
            .lists
            .fetch_add(1, Ordering::Relaxed);
        let mut built = self.begin();
        let mut request = first.clone();
        let mut pages = 0;
        let end = loop {
            match self.list_page(request.clone(), &mut built).await {
                Ok(mut end) => {
                    pages += 1;
                    match end.continue_token.take() {
                        Some(token) => request = State::next_page(&first, token),
                        None => break end,
                    }
                }
                Err(error)
                    if request.continue_token.is_some() && error.cause() == Cause::Expired =>
                {
                    self.reporter.failed(&error);
                    built = self.begin();
                    request = State::whole_list(&first);
                }
                Err(error) => return Err(error),
            }
        };
        self.finish(&built, &end.resource_version);
        self.state.listed(&first, pages, &end.resource_version);
        self.asked_waits = 0;
        Ok(())
    }

    /// A new state beside the stored one.
    pub(super) fn begin(&mut self) -> BuildUp<K> {
        self.listed_unreadable.clear();
        self.core.store.build_up()
    }

    /// Makes a complete state the stored one.
    pub(super) fn finish(&mut self, built: &BuildUp<K>, resource_version: &str) {
        self.core.replace(built, resource_version);
        self.core
            .progress
            .unreadable
            .retain(&self.listed_unreadable);
        self.reporter.listed();
    }

    async fn list_page(
        &mut self,
        request: ListRequest,
        built: &mut BuildUp<K>,
    ) -> Result<ListEnd, ReflectorError> {
        let after = self.options.list_timeout;
        let mut parts = self.source.list(request);
        let page = async {
            while let Some(part) = parts.next().await {
                match part.map_err(ReflectorError::List)? {
                    ListPart::Items(items) => {
                        for item in items {
                            self.take_listed(item, built)?;
                        }
                    }
                    ListPart::End(end) if end.resource_version.is_empty() => {
                        return Err(ReflectorError::List(source::Error::Answer(
                            "a list without metadata.resourceVersion".to_owned(),
                        )));
                    }
                    ListPart::End(end) => return Ok(end),
                }
            }
            Err(ReflectorError::List(source::Error::Answer(
                "a list without an end".to_owned(),
            )))
        };
        match tokio::time::timeout(after, page).await {
            Ok(result) => result,
            Err(_) => Err(ReflectorError::List(source::Error::Deadline {
                step: "list",
                after,
            })),
        }
    }

    pub(super) fn take_listed(
        &mut self,
        item: Result<K, Box<Malformed>>,
        built: &mut BuildUp<K>,
    ) -> Result<(), ReflectorError> {
        match item.map_or_else(
            |malformed| Ok(Err(malformed)),
            |object| self.prepare(object),
        )? {
            Ok(object) => {
                if !self.listed_unreadable.is_empty()
                    && let Some(key) = ObjectKey::try_of(&object)
                {
                    self.listed_unreadable.remove(&key);
                }
                let named = built.put(object);
                debug_assert!(named, "objects are prepared with a name");
            }
            Err(malformed) => {
                // It is there, only unreadable: its stored copy must not look deleted.
                if let Some(key) = &malformed.key {
                    built.keep(key);
                    self.listed_unreadable.insert(key.clone());
                }
                self.skip(malformed)?;
            }
        }
        Ok(())
    }

    /// Makes an object fit for the store.
    pub(super) fn prepare(
        &self,
        mut object: K,
    ) -> Result<Result<K, Box<Malformed>>, ReflectorError> {
        let malformed = |object: &K, path: &str, problem: String| {
            Box::new(Malformed {
                kind: self.core.progress.kind.clone(),
                key: ObjectKey::try_of(object),
                uid: object.meta().uid.clone(),
                resource_version: object.meta().resource_version.clone(),
                path: path.to_owned(),
                problem,
                deleted: false,
            })
        };
        if let Some(transform) = &self.transform {
            match catch_unwind(AssertUnwindSafe(|| transform(&mut object))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    let problem = format!("the transform refuses it: {error}");
                    return Ok(Err(malformed(&object, "", problem)));
                }
                Err(panic) => {
                    return Err(ReflectorError::Panicked {
                        what: "transform",
                        message: panic_text(&*panic).to_owned(),
                    });
                }
            }
        }
        if ObjectKey::try_of(&object).is_none() {
            let problem = "the object has no name".to_owned();
            return Ok(Err(malformed(&object, "metadata.name", problem)));
        }
        Ok(Ok(object))
    }

    pub(super) fn skip(&mut self, malformed: Box<Malformed>) -> Result<(), ReflectorError> {
        let error = ReflectorError::Malformed(malformed);
        match self.options.on_malformed {
            OnMalformed::Fail => Err(error),
            OnMalformed::Skip => {
                self.reporter.skipped(&error);
                Ok(())
            }
        }
    }
}
