//! Events as the API server takes them.

use k8s_openapi::api::core::v1::{Event as CoreEvent, EventSource};
use k8s_openapi::api::events::v1::{Event as SeriesEvent, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube_core::ObjectMeta;
use serde_json::{Value, json};

use super::ledger::{Repeats, Tally};

/// Who reports: `reportingController` and `reportingInstance`.
#[derive(Debug, Clone)]
pub(super) struct Reporter {
    pub(super) controller: String,
    pub(super) instance: String,
}

/// The whole event, to create it.
pub(super) fn whole(
    form: Repeats,
    reporter: &Reporter,
    tally: &Tally,
) -> Result<Value, serde_json::Error> {
    match form {
        Repeats::Series => serde_json::to_value(series(reporter, tally)),
        Repeats::Each => serde_json::to_value(counted(reporter, tally)),
    }
}

/// The merge patch that brings a known event up to the count.
pub(super) fn patch(form: Repeats, tally: &Tally) -> Value {
    match form {
        Repeats::Series => json!({ "series": series_of(tally) }),
        Repeats::Each => json!({
            "count": count(tally),
            "lastTimestamp": Time(tally.last),
            "message": tally.notice.note,
        }),
    }
}

fn count(tally: &Tally) -> i32 {
    i32::try_from(tally.count).unwrap_or(i32::MAX)
}

/// A single occurrence is no series; the server refuses one below 2.
fn series_of(tally: &Tally) -> Option<EventSeries> {
    (tally.count > 1).then(|| EventSeries {
        count: count(tally),
        last_observed_time: MicroTime(tally.last),
    })
}

fn metadata(tally: &Tally) -> ObjectMeta {
    let annotations = &tally.notice.annotations;
    ObjectMeta {
        name: Some(tally.name.clone()),
        namespace: Some(tally.namespace.clone()),
        annotations: (!annotations.is_empty()).then(|| annotations.clone()),
        ..ObjectMeta::default()
    }
}

fn series(reporter: &Reporter, tally: &Tally) -> SeriesEvent {
    let notice = &tally.notice;
    SeriesEvent {
        metadata: metadata(tally),
        event_time: Some(MicroTime(tally.first)),
        series: series_of(tally),
        reporting_controller: Some(reporter.controller.clone()),
        reporting_instance: Some(reporter.instance.clone()),
        type_: Some(notice.type_.to_string()),
        reason: Some(notice.reason.clone().into_owned()),
        action: Some(notice.action.clone().into_owned()),
        note: Some(notice.note.clone()),
        regarding: Some(tally.regarding.clone()),
        related: notice.related.clone(),
        ..SeriesEvent::default()
    }
}

fn counted(reporter: &Reporter, tally: &Tally) -> CoreEvent {
    let notice = &tally.notice;
    CoreEvent {
        metadata: metadata(tally),
        involved_object: tally.regarding.clone(),
        type_: Some(notice.type_.to_string()),
        reason: Some(notice.reason.clone().into_owned()),
        action: Some(notice.action.clone().into_owned()),
        message: Some(notice.note.clone()),
        related: notice.related.clone(),
        count: Some(count(tally)),
        first_timestamp: Some(Time(tally.first)),
        last_timestamp: Some(Time(tally.last)),
        source: Some(EventSource {
            component: Some(reporter.controller.clone()),
            host: Some(reporter.instance.clone()),
        }),
        reporting_component: Some(reporter.controller.clone()),
        reporting_instance: Some(reporter.instance.clone()),
        ..CoreEvent::default()
    }
}
