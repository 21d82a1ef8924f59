//! What is told about an object, and the limits the API server sets to it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use k8s_openapi::api::core::v1::ObjectReference;
use kube_core::Resource;

/// Longest reason and action, in bytes.
const WORD_LIMIT: usize = 128;
/// Longest note, in bytes.
const NOTE_LIMIT: usize = 1024;

/// Whether an event belongs to the normal course or tells of trouble; there is no third type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventType {
    /// Information.
    Normal,
    /// Somebody may have to act.
    Warning,
}

impl EventType {
    /// The type as the API spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text is no event type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event type {0:?} must be Normal or Warning")]
pub struct UnknownType(Box<str>);

impl FromStr for EventType {
    type Err = UnknownType;

    fn from_str(text: &str) -> Result<Self, UnknownType> {
        match text {
            "Normal" => Ok(Self::Normal),
            "Warning" => Ok(Self::Warning),
            _ => Err(UnknownType(text.into())),
        }
    }
}

/// One thing that happened to an object.
///
/// The parts tell events apart: occurrences that agree in type, reason and action (and, in the form
/// `v1`, in the note) count as one event. So reason and action are fixed words, and what varies is
/// the note. It may hold no secret: everybody who reads events reads it.
#[derive(Debug, Clone, PartialEq)]
pub struct Notice {
    pub(super) type_: EventType,
    pub(super) reason: Cow<'static, str>,
    pub(super) action: Cow<'static, str>,
    pub(super) note: String,
    pub(super) related: Option<ObjectReference>,
    pub(super) annotations: BTreeMap<String, String>,
}

impl Notice {
    /// Something that belongs to the normal course.
    ///
    /// `reason` says why in one word (`Mirrored`), `action` what the controller did (`Copy`), both
    /// in UpperCamelCase with 1 to 128 bytes; `note` says it to a person, and is cut after 1024
    /// bytes.
    #[must_use]
    pub fn normal(
        reason: impl Into<Cow<'static, str>>,
        action: impl Into<Cow<'static, str>>,
        note: impl Into<String>,
    ) -> Self {
        Self::new(EventType::Normal, reason.into(), action.into(), note.into())
    }

    /// Something that is wrong; the parts are those of [`normal`](Self::normal).
    #[must_use]
    pub fn warning(
        reason: impl Into<Cow<'static, str>>,
        action: impl Into<Cow<'static, str>>,
        note: impl Into<String>,
    ) -> Self {
        Self::new(
            EventType::Warning,
            reason.into(),
            action.into(),
            note.into(),
        )
    }

    fn new(
        type_: EventType,
        reason: Cow<'static, str>,
        action: Cow<'static, str>,
        note: String,
    ) -> Self {
        Self {
            type_,
            reason,
            action,
            note: cut(note),
            related: None,
            annotations: BTreeMap::new(),
        }
    }

    /// Names a second object that took part, such as the one that was created.
    #[must_use]
    pub fn related<K: Resource<DynamicType = ()>>(self, object: &K) -> Self {
        self.related_to(object.object_ref(&()))
    }

    /// As [`related`](Self::related), for something of which only the reference is known, or that
    /// is no object of the API server. Occurrences with different references are different events.
    #[must_use]
    pub fn related_to(mut self, object: ObjectReference) -> Self {
        self.related = Some(object);
        self
    }

    /// Adds an annotation to the event. Repetitions keep those of the first occurrence.
    #[must_use]
    pub fn annotated(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.annotations.insert(name.into(), value.into());
        self
    }

    /// The part that the server would refuse, if there is one.
    pub(super) fn fault(&self) -> Option<&'static str> {
        let fits = |word: &str| (1..=WORD_LIMIT).contains(&word.len());
        if !fits(&self.reason) {
            Some("reason must have 1 to 128 bytes")
        } else if !fits(&self.action) {
            Some("action must have 1 to 128 bytes")
        } else {
            None
        }
    }
}

/// The note in the length the server takes, marked where something was cut off.
fn cut(mut note: String) -> String {
    const MARK: &str = "…";
    if note.len() > NOTE_LIMIT {
        note.truncate(note.floor_char_boundary(NOTE_LIMIT - MARK.len()));
        note.push_str(MARK);
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c60_a_type_is_normal_or_warning() {
        for (text, expected) in [
            ("Normal", Some(EventType::Normal)),
            ("Warning", Some(EventType::Warning)),
            ("warning", None),
            ("Error", None),
            ("", None),
        ] {
            let parsed = text.parse::<EventType>();
            assert_eq!(parsed.clone().ok(), expected, "{text:?}");
            match parsed {
                Ok(parsed) => assert_eq!(parsed.to_string(), text),
                Err(error) => assert!(error.to_string().contains(&format!("{text:?}"))),
            }
        }
    }

    #[test]
    fn a_note_is_cut_at_a_character_and_words_must_fit() {
        for (note, length) in [
            ("a".repeat(1024), 1024),
            ("a".repeat(1025), 1024),
            // 3 bytes each: 340 fit beside the mark.
            ("€".repeat(342), 340 * 3 + 3),
        ] {
            let notice = Notice::normal("Reason", "Act", note.clone());
            assert_eq!(notice.note.len(), length);
            assert_eq!(notice.note.ends_with('…'), note.len() > 1024);
            assert_eq!(notice.fault(), None);
        }
        let long = "a".repeat(129);
        assert!(
            Notice::normal("", "Act", "n")
                .fault()
                .unwrap()
                .starts_with("reason")
        );
        assert!(Notice::normal(long.clone(), "Act", "n").fault().is_some());
        assert!(
            Notice::normal("R", long, "n")
                .fault()
                .unwrap()
                .starts_with("action")
        );
    }
}
