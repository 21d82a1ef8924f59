//! The metrics page.

use std::fmt;

use http::StatusCode;

use super::page::{Endpoint, Page, PageRequest};
use crate::manager::Directory;
use crate::{events, metrics};

type Text = Box<dyn Fn() -> String + Send + Sync>;

/// All metrics of a process in the Prometheus text format, read when asked for.
///
/// What a manager runs (`controller_runtime_…`, `leader_election_…`), every named queue
/// (`workqueue_…`), informer (`reflector_…`, `informer_…`) and event recorder (`event_recorder_…`) of
/// the process, and the process itself (`process_…`, on Linux).
pub struct MetricsPage {
    directory: Directory,
    more: Vec<Text>,
}

impl fmt::Debug for MetricsPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsPage")
            .field("more", &self.more.len())
            .finish_non_exhaustive()
    }
}

impl MetricsPage {
    /// The metrics of what `directory` knows and of the process.
    #[must_use]
    pub fn of(directory: &Directory) -> Self {
        Self {
            directory: directory.clone(),
            more: Vec::new(),
        }
    }

    /// Adds metrics of the program's own: whole families in the Prometheus text format, of other
    /// names than those of this crate. Must not block.
    #[must_use]
    pub fn and(mut self, text: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.more.push(Box::new(text));
        self
    }
}

impl Endpoint for MetricsPage {
    fn answer(&self, request: &PageRequest<'_>) -> Page {
        if !request.subpath.is_empty() {
            return Page::not_found();
        }
        let controllers = self.directory.controllers();
        let controllers: Vec<_> = controllers.iter().map(|one| one.metrics()).collect();
        let elections: Vec<_> = self.directory.election().into_iter().collect();
        let elections: Vec<_> = elections.iter().map(|one| one.metrics()).collect();
        let mut body = metrics::render(&controllers);
        body.push_str(&metrics::render_elections(&elections));
        body.push_str(&workqueue::metrics::Registry::global().render());
        body.push_str(&informer::metrics::Registry::global().render());
        body.push_str(&metrics::render_events(&events::all_metrics()));
        body.push_str(&metrics::process());
        for text in &self.more {
            body.push_str(&text());
        }
        Page {
            status: StatusCode::OK,
            content_type: "text/plain; version=0.0.4; charset=utf-8",
            body,
        }
    }
}
