//! From the bytes of a watch to its events.

use std::borrow::Cow;

use bytes::{Buf as _, Bytes, BytesMut};
use kube_core::{Resource, Status};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::decode::Decoder;
use super::intake::{Decoded, Splitter};
use super::scan::{KEPT, MAX_VALUE, Text};
use super::{Error, Malformed, WatchEvent};
use crate::ObjectKey;

/// Annotation on the bookmark that ends a streamed initial state.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// The envelope of one event, with the object left as text.
#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct BookmarkObject<'a> {
    #[serde(borrow)]
    metadata: BookmarkMeta<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta<'a> {
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
    #[serde(default)]
    annotations: Option<std::collections::HashMap<String, String>>,
}

/// Cuts a watch into its frames, which are lines.
#[derive(Debug)]
pub(crate) struct FrameSplitter {
    /// The beginning of a line whose end has not arrived.
    held: BytesMut,
    /// The line that arrives is too long to be kept; this is its beginning.
    oversized: Option<Text>,
    /// The body is not made of frames; it is kept whole, as it may be a status.
    status: Option<Vec<u8>>,
    /// The first line was a frame.
    any: bool,
}

impl FrameSplitter {
    pub(crate) fn new() -> Self {
        Self {
            held: BytesMut::new(),
            oversized: None,
            status: None,
            any: false,
        }
    }

    /// The body has ended. An unfinished event is dropped: it comes again after a resume.
    ///
    /// # Errors
    /// The status that the body was, if it was not made of events.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        // The whole body may be one line without an end.
        let only = self.status.is_none() && !self.any && !self.held.is_empty();
        if only && !begins_as_frame(&self.held) {
            self.status = Some(self.held.to_vec());
        }
        match &self.status {
            None => Ok(()),
            Some(body) => match serde_json::from_slice::<Status>(body) {
                Ok(status) if status.is_failure() => Err(Error::status(status)),
                _ => Err(Error::Answer(format!(
                    "{} bytes that are no events",
                    body.len()
                ))),
            },
        }
    }
}

impl Splitter for FrameSplitter {
    const URGENT: bool = true;

    fn split(&mut self, mut chunk: Bytes, lines: &mut Vec<Text>) -> Result<(), Error> {
        if let Some(body) = &mut self.status {
            return collect(body, &chunk);
        }
        if let Some(mut line) = self.oversized.take() {
            let end = memchr::memchr(b'\n', &chunk);
            line.length += end.unwrap_or(chunk.len());
            let Some(end) = end else {
                self.oversized = Some(line);
                return Ok(());
            };
            lines.push(line);
            chunk.advance(end + 1);
        }
        while let Some(length) = memchr::memchr(b'\n', &chunk) {
            let mut line = chunk.split_to(length);
            if !self.held.is_empty() {
                self.held.extend_from_slice(&line);
                line = self.held.split().freeze();
            }
            if !line.iter().all(u8::is_ascii_whitespace) {
                // A status is printed over many lines by some servers, so the first line that is
                // no frame decides that nothing is.
                if !self.any && !is_frame(&line) {
                    let body = self.status.insert(line.to_vec());
                    return collect(body, &chunk);
                }
                self.any = true;
                lines.push(Text::whole(line));
            }
            chunk.advance(1);
        }
        self.held.extend_from_slice(&chunk);
        if self.held.len() > MAX_VALUE {
            let held = std::mem::take(&mut self.held);
            if !self.any && !begins_as_frame(&held[..KEPT]) {
                return collect(self.status.insert(Vec::new()), &held);
            }
            self.any = true;
            self.oversized = Some(Text {
                bytes: Bytes::copy_from_slice(&held[..KEPT]),
                length: held.len(),
            });
        }
        Ok(())
    }
}

/// Whether a text that has no end may become a frame.
fn begins_as_frame(text: &[u8]) -> bool {
    match serde_json::from_slice::<Frame<'_>>(text) {
        Ok(_) => true,
        Err(error) => error.is_eof(),
    }
}

fn is_frame(line: &[u8]) -> bool {
    serde_json::from_slice::<Frame<'_>>(line).is_ok()
}

fn collect(body: &mut Vec<u8>, chunk: &[u8]) -> Result<(), Error> {
    body.extend_from_slice(chunk);
    if body.len() > MAX_VALUE {
        return Err(Error::Answer(format!(
            "more than {MAX_VALUE} bytes that are no events"
        )));
    }
    Ok(())
}

/// What frames say, up to the first line that is none.
pub(super) fn read_all<K: Resource + DeserializeOwned>(
    decoder: &Decoder<K>,
    lines: &[Text],
) -> Decoded<WatchEvent<K>> {
    let mut values = Vec::with_capacity(lines.len());
    for line in lines {
        let event = match line.is_whole() {
            true => read_line(decoder, &line.bytes),
            false => Ok(oversized(decoder, line)),
        };
        match event {
            Ok(event) => values.push(event),
            Err(error) => {
                let failure = Some(error);
                return Decoded { values, failure };
            }
        }
    }
    Decoded {
        values,
        failure: None,
    }
}

/// What is told of an event that is too long to be read. Where its beginning does not say that its
/// object is there, the object may be gone.
fn oversized<K: Resource + DeserializeOwned>(decoder: &Decoder<K>, line: &Text) -> WatchEvent<K> {
    let (deleted, object) = match begin_of_plain_frame::<K>(&line.bytes) {
        Some((kind, _, object)) => (kind == "DELETED", object),
        None => (true, &[][..]),
    };
    WatchEvent::Malformed(decoder.oversized(object, line.length, deleted))
}

fn read_line<K: Resource + DeserializeOwned>(
    decoder: &Decoder<K>,
    line: &[u8],
) -> Result<WatchEvent<K>, Error> {
    // Most frames are written in one way, and then no parser has to look for their object.
    let plain = plain_frame(line);
    if let Some((wrap, object)) = plain
        && let Ok(object) = decoder.try_object(object)
    {
        return Ok(wrap(object));
    }
    let tried = plain.map(|(_, object)| object);
    match serde_json::from_slice::<Frame<'_>>(line) {
        Ok(frame) => read(decoder, &frame, tried),
        Err(error) => Err(Error::Answer(format!(
            "a line of {} bytes in a watch is no event (line {} column {})",
            line.len(),
            error.line(),
            error.column()
        ))),
    }
}

type Wrap<K> = fn(K) -> WatchEvent<K>;

/// The parts of a frame of an object that is written as servers write it. What is said to be the
/// object is it only if it can be read.
fn plain_frame<K>(line: &[u8]) -> Option<(Wrap<K>, &[u8])> {
    let (_, wrap, rest) = begin_of_plain_frame(line)?;
    Some((wrap, rest.trim_ascii_end().strip_suffix(b"}")?))
}

/// Type of such a frame, and what stands from its object on.
fn begin_of_plain_frame<K>(line: &[u8]) -> Option<(&'static str, Wrap<K>, &[u8])> {
    let rest = line.strip_prefix(br#"{"type":""#)?;
    let kinds: [(&str, Wrap<K>); 3] = [
        ("MODIFIED", WatchEvent::Modified),
        ("ADDED", WatchEvent::Added),
        ("DELETED", WatchEvent::Deleted),
    ];
    kinds.into_iter().find_map(|(kind, wrap)| {
        let rest = rest.strip_prefix(kind.as_bytes())?;
        Some((kind, wrap, rest.strip_prefix(br#"","object":"#)?))
    })
}

/// Reads a frame whose object is not the text that was `tried` in vain, or explains why that is of
/// no use.
fn read<K: Resource + DeserializeOwned>(
    decoder: &Decoder<K>,
    frame: &Frame<'_>,
    tried: Option<&[u8]>,
) -> Result<WatchEvent<K>, Error> {
    let wrap: Wrap<K> = match &*frame.kind {
        "ADDED" => WatchEvent::Added,
        "MODIFIED" => WatchEvent::Modified,
        "DELETED" => WatchEvent::Deleted,
        "BOOKMARK" => return Ok(bookmark(decoder, frame.object.get())),
        "ERROR" => {
            return match serde_json::from_str(frame.object.get()) {
                Ok(status) => Ok(WatchEvent::Error(Box::new(status))),
                Err(_) => Err(Error::Answer("an error event without a status".to_owned())),
            };
        }
        _ => {
            let problem = "unknown type of event".to_owned();
            return Ok(WatchEvent::Malformed(nameless(decoder, "type", problem)));
        }
    };
    let deleted = &*frame.kind == "DELETED";
    let text = frame.object.get().as_bytes();
    let object = if tried.is_some_and(|tried| std::ptr::eq(tried, text)) {
        Err(decoder.explain(text, deleted))
    } else {
        decoder.object(text, deleted)
    };
    Ok(match object {
        Ok(object) => wrap(object),
        Err(malformed) => WatchEvent::Malformed(malformed),
    })
}

fn bookmark<K: Resource + DeserializeOwned>(decoder: &Decoder<K>, text: &str) -> WatchEvent<K> {
    match serde_json::from_str::<BookmarkObject<'_>>(text) {
        Ok(BookmarkObject { metadata }) => WatchEvent::Bookmark {
            resource_version: metadata.resource_version.into_owned(),
            initial_events_end: metadata
                .annotations
                .is_some_and(|all| all.get(INITIAL_EVENTS_END).is_some_and(|end| end == "true")),
        },
        Err(_) => {
            let problem = "a bookmark without a resource version".to_owned();
            WatchEvent::Malformed(nameless(decoder, "object", problem))
        }
    }
}

fn nameless<K: Resource + DeserializeOwned>(
    decoder: &Decoder<K>,
    path: &str,
    problem: String,
) -> Box<Malformed> {
    Box::new(Malformed {
        kind: decoder.kind().to_owned(),
        key: None::<ObjectKey>,
        uid: None,
        resource_version: None,
        path: path.to_owned(),
        problem,
        deleted: false,
        foreign: false,
        raw: None,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use proptest::prelude::*;

    use super::super::Cut;
    use super::*;

    fn decoder() -> Decoder<ConfigMap> {
        Decoder::new(&(), Cut::default())
    }

    /// Events as short texts, and how the stream ended.
    fn play(pieces: &[&[u8]]) -> (Vec<String>, Result<(), String>) {
        let mut splitter = FrameSplitter::new();
        let mut lines = Vec::new();
        let split = pieces
            .iter()
            .try_for_each(|piece| splitter.split(Bytes::copy_from_slice(piece), &mut lines));
        let Decoded {
            values: events,
            failure,
        } = read_all(&decoder(), &lines);
        let end = failure
            .map_or(split, Err)
            .and_then(|()| splitter.finish())
            .map_err(|error| error.to_string());
        let name = |object: &ConfigMap| object.metadata.name.clone().unwrap_or_default();
        let shown = events
            .iter()
            .map(|event| match event {
                WatchEvent::Added(object) => format!("+{}", name(object)),
                WatchEvent::Modified(object) => format!("~{}", name(object)),
                WatchEvent::Deleted(object) => format!("-{}", name(object)),
                WatchEvent::Bookmark {
                    resource_version,
                    initial_events_end,
                } => {
                    format!(
                        "@{resource_version}{}",
                        if *initial_events_end { "!" } else { "" }
                    )
                }
                WatchEvent::Malformed(malformed) => format!("?{}", malformed.path),
                WatchEvent::Error(status) => format!("E{}", status.code),
            })
            .collect();
        (shown, end)
    }

    const STREAM: &str = concat!(
        r#"{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"x":"\n{\"é"}}}"#,
        "\n",
        r#"{"object":{"metadata":{"name":"b"}},"type":"MODIFIED"}"#,
        "\r\n\n",
        r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
        "\n",
        r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"10","annotations":null}}}"#,
        "\n",
        r#"{"type":"ADDED","object":{"metadata":{"name":"c"},"data":5}}"#,
        "\n",
        r#"{"type":"EXTENDED","object":{}}"#,
        "\n",
        r#"{"type":"DELETED","object":{"metadata":{"name":"a"}}}"#,
        "\n",
        r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","status":"Failure"}}"#,
        "\n",
    );
    const EVENTS: [&str; 8] = ["+a", "~b", "@9!", "@10", "?data", "?type", "-a", "E410"];

    #[test]
    fn a_watch_may_be_cut_at_every_byte() {
        let bytes = STREAM.as_bytes();
        for at in 0..=bytes.len() {
            let (events, end) = play(&[&bytes[..at], &bytes[at..]]);
            assert_eq!(
                (events.as_slice(), end),
                (&EVENTS.map(str::to_owned)[..], Ok(())),
                "{at}"
            );
        }
    }

    #[test]
    fn a_watch_may_break_off_at_every_byte_and_gives_the_whole_events_before() {
        let bytes = STREAM.as_bytes();
        for at in 0..bytes.len() {
            let (events, end) = play(&[&bytes[..at]]);
            let whole = bytes[..at].iter().filter(|byte| **byte == b'\n').count();
            assert!(EVENTS.starts_with(&events.iter().map(String::as_str).collect::<Vec<_>>()[..]));
            assert!(events.len() + 1 >= whole, "{at}");
            assert_eq!(end, Ok(()), "a resume brings the rest ({at})");
        }
    }

    #[test]
    fn a_status_over_many_lines_is_one_error() {
        let status = "{\n  \"kind\": \"Status\",\n  \"status\": \"Failure\",\n  \"message\": \"too old\",\n  \"reason\": \"Expired\",\n  \"code\": 410\n}";
        for at in 0..=status.len() {
            let (events, end) = play(&[&status.as_bytes()[..at], &status.as_bytes()[at..]]);
            assert_eq!(events, Vec::<String>::new());
            assert_eq!(end, Err("server answered 410 Expired: too old".to_owned()));
        }
    }

    #[test]
    fn what_is_no_frame_ends_the_stream_with_an_error() {
        assert!(play(&[b"404 page not found\n"]).1.is_err());
        assert!(play(&[b"404 page not found"]).1.is_err());
        let (events, end) = play(&[STREAM.as_bytes(), b"junk\n"]);
        assert_eq!(events.len(), EVENTS.len());
        assert!(end.unwrap_err().contains("a line of 4 bytes"));
    }

    #[test]
    fn an_endless_line_that_is_no_frame_is_an_error() {
        let mut splitter = FrameSplitter::new();
        let chunk = Bytes::from(vec![b'x'; 1 << 20]);
        let outcome = (0..17).try_for_each(|_| splitter.split(chunk.clone(), &mut Vec::new()));
        assert!(matches!(outcome, Err(Error::Answer(_))));
    }

    #[test]
    fn i6_an_event_that_is_too_long_is_told_by_name_and_the_next_one_follows() {
        let long = |kind: &str| {
            format!(
                r#"{{"type":"{kind}","object":{{"metadata":{{"name":"big","namespace":"n","resourceVersion":"7"}},"data":{{"k":""#
            )
        };
        // Begin of the line; whether its object may be gone; whose it is.
        let cases = [
            (
                long("MODIFIED"),
                false,
                Some(ObjectKey::namespaced("n", "big")),
            ),
            (
                long("DELETED"),
                true,
                Some(ObjectKey::namespaced("n", "big")),
            ),
            (r#"{"object":{"data":{"k":""#.to_owned(), true, None),
        ];
        for (begin, deleted, key) in cases {
            let chunk = Bytes::from(vec![b'x'; 1 << 20]);
            let end = r#""}}}"#;
            let next = "\n{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"b\"}}}\n";
            let pieces = [Bytes::from(begin.clone())]
                .into_iter()
                .chain(std::iter::repeat_n(chunk, 20))
                .chain([Bytes::from(format!("{end}{next}"))]);
            let mut splitter = FrameSplitter::new();
            let mut lines = Vec::new();
            for piece in pieces {
                splitter.split(piece, &mut lines).unwrap();
                assert!(splitter.held.len() <= MAX_VALUE, "memory is bounded");
            }
            splitter.finish().unwrap();
            let decoded = read_all(&decoder(), &lines);
            assert!(decoded.failure.is_none());
            let [WatchEvent::Malformed(malformed), WatchEvent::Added(_)] = &decoded.values[..]
            else {
                panic!("{:?}", decoded.values)
            };
            assert_eq!((malformed.deleted, &malformed.key), (deleted, &key));
            let length = begin.len() + (20 << 20) + end.len();
            let problem = &malformed.problem;
            assert!(problem.contains(&format!("{length} bytes")), "{problem}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(
            mut bytes in Just(STREAM.as_bytes().to_vec()),
            edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            prop_assert_eq!(play(&pieces).0, play(&[&bytes]).0);
        }
    }
}
