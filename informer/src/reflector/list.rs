//! Lists: pages into a new state beside the stored one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kube_core::Resource;
use tokio::time::Instant;

use super::pager::{Paged, Pager};
use super::{OnMalformed, Reflector, ReflectorError};
use crate::ObjectKey;
use crate::source::{ListRequest, Malformed};
use crate::store::BuildUp;

impl<K: Resource + Send + Sync + 'static> Reflector<K> {
    /// Lists everything into the store.
    pub(super) async fn list(&mut self, first: ListRequest) -> Result<(), ReflectorError> {
        self.core
            .progress
            .stats
            .lists
            .fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let mut built = self.begin();
        let source = Arc::clone(&self.source);
        let mut pager = Pager::new(source, first.clone(), self.options.list_timeout);
        let (end, pages) = loop {
            match pager.next().await.map_err(ReflectorError::List)? {
                Paged::Items(items) => {
                    for item in items {
                        self.take_listed(item, &mut built)?;
                    }
                }
                Paged::StartOver(error) => {
                    self.reporter.failed(&ReflectorError::List(error));
                    built = self.begin();
                }
                Paged::End { end, pages } => break (end, pages),
            }
            // Pages that have arrived must not keep the thread from others.
            tokio::task::coop::consume_budget().await;
        };
        self.finish(&built, &end.resource_version, began);
        self.state.listed(&first, pages, &end.resource_version);
        self.asked_waits = 0;
        Ok(())
    }

    /// A new state beside the stored one.
    pub(super) fn begin(&mut self) -> BuildUp<K> {
        self.listed_unreadable.clear();
        self.core.store.build_up()
    }

    /// Makes a complete state the stored one, whose list `began` at some time.
    pub(super) fn finish(&mut self, built: &BuildUp<K>, resource_version: &str, began: Instant) {
        self.core.replace(built, resource_version);
        let progress = &self.core.progress;
        progress.unreadable.retain(&self.listed_unreadable);
        progress.meters.list_duration.add_duration(began.elapsed());
        let items = self.core.store.version().len();
        progress.meters.items_per_list.add(items as u64);
        self.reporter.listed();
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
            Err(malformed) if malformed.foreign => {
                // A list that is not of our kind tells nothing of what we hold.
                if let Some(key) = &malformed.key {
                    built.keep(key, None);
                }
                self.pass_over(malformed);
            }
            Err(malformed) => {
                // It is there, only unreadable: its stored copy must not look deleted.
                if let Some(key) = &malformed.key {
                    built.keep(key, malformed.uid.as_deref());
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
                foreign: false,
                raw: None,
            })
        };
        if let Some(transform) = &self.transform {
            match catch_unwind(AssertUnwindSafe(|| transform(&mut object))) {
                Ok(Ok(())) => {}
                // What the error or the panic says may be a value of the object.
                Ok(Err(_)) => {
                    let problem = "the transform refuses it".to_owned();
                    return Ok(Err(malformed(&object, "", problem)));
                }
                Err(_) => return Err(ReflectorError::Panicked { what: "transform" }),
            }
        }
        if ObjectKey::try_of(&object).is_none() {
            let problem = "the object has no name".to_owned();
            return Ok(Err(malformed(&object, "metadata.name", problem)));
        }
        Ok(Ok(object))
    }

    /// An object of another kind is told of, whatever the policy for those that were asked for: it
    /// changes nothing.
    pub(super) fn pass_over(&mut self, foreign: Box<Malformed>) {
        self.reporter.skipped(foreign);
    }

    pub(super) fn skip(&mut self, malformed: Box<Malformed>) -> Result<(), ReflectorError> {
        match self.options.on_malformed {
            OnMalformed::Fail => Err(ReflectorError::Malformed(malformed)),
            OnMalformed::Skip | OnMalformed::KeepRaw => {
                self.reporter.skipped(malformed);
                Ok(())
            }
        }
    }
}
