//! Response bodies.

use std::convert::Infallible;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};

/// The body of a response: whole, or streamed in chunks. It cannot fail; a stream that must stop early ends.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A body that is complete.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).boxed_unsync()
}

/// A body without content.
pub(crate) fn empty() -> Body {
    full(Bytes::new())
}

/// A body of chunks that are flushed one by one.
pub(crate) fn stream(chunks: impl Stream<Item = Bytes> + Send + 'static) -> Body {
    StreamBody::new(chunks.map(|chunk| Ok(Frame::data(chunk)))).boxed_unsync()
}
