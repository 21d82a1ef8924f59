//! Response bodies.

use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};

/// The connection is to break here: a fault rule says so, or the server behind a proxy broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the connection is cut")]
pub(crate) struct Aborted;

/// The body of a response: whole, or streamed in chunks. A stream of the API's own that must stop early ends;
/// only faults break one off.
pub(crate) type Body = UnsyncBoxBody<Bytes, Aborted>;

/// A body that is complete.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// A body without content.
pub(crate) fn empty() -> Body {
    full(Bytes::new())
}

/// A body of chunks that are flushed one by one.
pub(crate) fn stream(chunks: impl Stream<Item = Bytes> + Send + 'static) -> Body {
    fallible(chunks.map(Ok))
}

/// A body of chunks that may break off.
pub(crate) fn fallible(
    chunks: impl Stream<Item = Result<Bytes, Aborted>> + Send + 'static,
) -> Body {
    StreamBody::new(chunks.map_ok(Frame::data)).boxed_unsync()
}
