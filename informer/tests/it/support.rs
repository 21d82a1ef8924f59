//! Objects, recording handlers and running informers for tests.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use informer::source::scripted::{Request, Scripted};
use informer::source::{self, Malformed, WatchEvent};
use informer::{Event, HandlerOptions, Informer, InformerOptions, ObjectKey};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_core::{ObjectMeta, Status};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A config map in namespace `n`; its UID is its name.
pub(crate) fn object(name: &str, version: u64) -> ConfigMap {
    object_of(name, name, version)
}

/// A config map with a UID of its own.
pub(crate) fn object_of(name: &str, uid: &str, version: u64) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some("n".to_owned()),
            uid: Some(uid.to_owned()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

pub(crate) fn key(name: &str) -> ObjectKey {
    ObjectKey::namespaced("n", name)
}

pub(crate) fn bookmark(version: &str) -> WatchEvent<ConfigMap> {
    WatchEvent::Bookmark {
        resource_version: version.to_owned(),
        initial_events_end: false,
    }
}

pub(crate) fn status(code: u16, reason: &str) -> Status {
    Status::failure("", reason).with_code(code)
}

pub(crate) fn refusal(code: u16, reason: &str) -> source::Error {
    source::Error::status(status(code, reason))
}

pub(crate) fn refused() -> source::Error {
    source::Error::Refused(Box::new(kube_client::Error::TlsRequired))
}

pub(crate) fn broken() -> source::Error {
    source::Error::Transport(Box::new(kube_client::Error::TlsRequired))
}

/// Gaps between calls, in whole milliseconds.
pub(crate) fn gaps(requests: &[Request]) -> Vec<u128> {
    requests
        .windows(2)
        .map(|pair| (pair[1].at() - pair[0].at()).as_millis())
        .collect()
}

/// An object of which only the name and the version can be read.
pub(crate) fn malformed(name: &str, version: Option<&str>) -> Box<Malformed> {
    Box::new(Malformed {
        kind: "ConfigMap".to_owned(),
        key: Some(key(name)),
        uid: None,
        resource_version: version.map(str::to_owned),
        path: "data".to_owned(),
        problem: "found a string".to_owned(),
        deleted: false,
        foreign: false,
        raw: None,
    })
}

/// An event as a short text: `+a@1` (`+a@1!` of the initial list), `a@1~a@2`, `-a@3`, `-?a@3`.
pub(crate) fn show(event: &Event<ConfigMap>) -> String {
    let tag = |object: &ConfigMap| {
        let meta = &object.metadata;
        let name = meta.name.as_deref().unwrap_or("");
        format!("{name}@{}", meta.resource_version.as_deref().unwrap_or(""))
    };
    match event {
        Event::Added {
            object,
            is_in_initial_list: true,
        } => format!("+{}!", tag(object)),
        Event::Added { object, .. } => format!("+{}", tag(object)),
        Event::Updated { old, new } => format!("{}~{}", tag(old), tag(new)),
        Event::Deleted {
            object,
            final_state_known: true,
            ..
        } => format!("-{}", tag(object)),
        Event::Deleted { object, .. } => format!("-?{}", tag(object)),
    }
}

/// Options that differ from the default ones by `change`.
pub(crate) fn options(change: impl FnOnce(&mut HandlerOptions)) -> HandlerOptions {
    let mut options = HandlerOptions::default();
    change(&mut options);
    options
}

/// Keeps what a handler was told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn handler(&self) -> impl Fn(&Event<ConfigMap>) + Send + Sync + 'static {
        let log = self.clone();
        move |event| log.push(show(event))
    }

    pub(crate) fn push(&self, text: String) {
        self.0.lock().push(text);
    }

    /// What was told since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

/// Keeps what this thread logs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    /// Logs go here until the guard is dropped.
    pub(crate) fn begin(&self, level: tracing::Level) -> tracing::subscriber::DefaultGuard {
        // While a subscriber that wants everything is there, no span that another test meets first,
        // without one of its own, is switched off for good.
        static EVERYTHING: std::sync::Once = std::sync::Once::new();
        EVERYTHING.call_once(|| {
            tracing::subscriber::set_global_default(tracing_subscriber::registry())
                .expect("no other subscriber is for the whole process");
        });
        let writer = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().clone()).expect("UTF-8")
    }
}

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A running informer; dropping it ends the task.
pub(crate) struct Run {
    pub(crate) stop: CancellationToken,
    task: JoinSet<Result<(), informer::Error>>,
}

impl Run {
    pub(crate) fn start(informer: &Informer<ConfigMap>) -> Self {
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        let (informer, token) = (informer.clone(), stop.clone());
        task.spawn(async move { informer.run(token).await });
        Self { stop, task }
    }

    pub(crate) async fn end(mut self) -> Result<(), informer::Error> {
        self.stop.cancel();
        self.outcome().await
    }

    pub(crate) async fn outcome(&mut self) -> Result<(), informer::Error> {
        match self.task.join_next().await.expect("one task") {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    /// What the run panics with.
    pub(crate) async fn panicked(mut self) -> Box<dyn std::any::Any + Send> {
        let ended = self.task.join_next().await.expect("one task");
        ended.expect_err("a panic").into_panic()
    }
}

/// Lets everything happen that is ready, with hardly any time passing.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

pub(crate) fn scripted(
    options: InformerOptions<ConfigMap>,
) -> (Scripted<ConfigMap>, Informer<ConfigMap>) {
    let source = Scripted::new();
    let informer = Informer::from_source("ConfigMap", source.clone(), options)
        .expect("options of tests are valid");
    (source, informer)
}

/// Names and versions in the cache, sorted.
pub(crate) fn cached(informer: &Informer<ConfigMap>) -> Vec<String> {
    let objects = informer.lister().snapshot().list_sorted();
    let tag = |object: &Arc<ConfigMap>| {
        let meta = &object.metadata;
        format!(
            "{}@{}",
            meta.name.as_deref().unwrap_or("?"),
            meta.resource_version.as_deref().unwrap_or("?")
        )
    };
    objects.iter().map(tag).collect()
}
