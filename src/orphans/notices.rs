//! What the collection tells by Events (G-07).

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube_core::Resource as _;

use super::decide::{Sighting, Why};
use super::{Guard, Mode};
use crate::api::Proxy;
use crate::events::{Events, Subject, Word};

/// Tells by Events, if there is anybody to tell.
#[derive(Debug)]
pub(crate) struct Notices {
    pub(crate) events: Option<Arc<Events>>,
    /// What a word about the collection itself is about.
    pub(crate) about: ObjectReference,
}

impl Notices {
    /// An orphan that was none in the cycle before.
    pub(super) fn found(&self, sighting: &Sighting, why: Why, mode: Mode) {
        let id = &sighting.instance.id;
        let then = match mode {
            Mode::Delete => "it goes if it still is one in the next cycle and is old enough",
            Mode::Off | Mode::DryRun => "nothing deletes it, as --gc-mode is not delete",
        };
        let note = format!("{id} is an orphan: {}; {then}", why.as_str());
        self.tell(sighting, Word::OrphanFound, &note);
    }

    /// An orphan whose deletion its provider accepted.
    pub(super) fn deleted(&self, sighting: &Sighting) {
        let note = format!(
            "{} was an orphan and is being deleted",
            sighting.instance.id
        );
        self.tell(sighting, Word::OrphanDeleted, &note);
    }

    /// A guard that did not hold the cycle before.
    pub(super) fn guarded(&self, guard: &Guard) {
        if let Some(events) = &self.events {
            events.tell(&self.about, Word::OrphansKept, &guard.to_string());
        }
    }

    /// Tells of the Proxy that the tags name, though it is gone: its namespace is where its users
    /// look. The instance is what it is related to, so that each one is told of, also of several
    /// that name one Proxy or none.
    fn tell(&self, sighting: &Sighting, word: Word, note: &str) {
        let Some(events) = &self.events else {
            return;
        };
        let (owner, instance) = (&sighting.owner, &sighting.instance);
        let instance = ObjectReference {
            kind: Some("Instance".to_owned()),
            name: Some(instance.id.to_string()),
            uid: Some(instance.incarnation.to_string()),
            ..ObjectReference::default()
        };
        if owner.namespace.is_empty() || owner.proxy.is_empty() {
            let subject = Subject {
                about: &self.about,
                related: Some(&instance),
            };
            return events.tell(subject, word, note);
        }
        let proxy = ObjectReference {
            api_version: Some(Proxy::api_version(&()).into_owned()),
            kind: Some(Proxy::kind(&()).into_owned()),
            namespace: Some(owner.namespace.clone()),
            name: Some(owner.proxy.clone()),
            uid: Some(owner.uid.clone()),
            ..ObjectReference::default()
        };
        let subject = Subject {
            about: &proxy,
            related: Some(&instance),
        };
        events.tell(subject, word, note);
    }
}
