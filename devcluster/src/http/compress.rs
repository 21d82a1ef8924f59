//! Compression of large answers, for clients that take gzip.
//!
//! As kube-apiserver does it: above 128 KiB, fast rather than small, and never a watch, whose events must not wait for
//! each other.

use std::io::Write as _;

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures::{Stream, StreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Response, header};
use http_body::Body as _;
use http_body_util::BodyExt as _;

use super::{
    body::{self, Aborted},
    response::ApiResponse,
};

/// Bytes of a body above which it is compressed.
const THRESHOLD: usize = 128 << 10;
/// How hard it is tried, from 1 to 9.
const LEVEL: u32 = 1;
/// Bytes that are compressed without a pause for others.
const PIECE: usize = 64 << 10;

/// Whether the client takes gzip: the word must stand there as it is, as weights are not looked at.
pub(crate) fn is_wanted(headers: &HeaderMap) -> bool {
    let wanted = headers.get(header::ACCEPT_ENCODING);
    let wanted = wanted.and_then(|value| value.to_str().ok());
    wanted.is_some_and(|wanted| wanted.split(',').any(|word| word.trim() == "gzip"))
}

/// The same answer, compressed if it is large.
pub(crate) async fn gzip(response: ApiResponse) -> ApiResponse {
    let exact = response.body().size_hint().exact();
    if exact.is_some_and(|length| length <= THRESHOLD as u64) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let mut chunks = body.into_data_stream();
    let mut first = Vec::new();
    let mut length = 0;
    while length <= THRESHOLD
        && let Some(chunk) = chunks.next().await
    {
        length += chunk.as_ref().map_or(0, Bytes::len);
        let is_over = chunk.is_err();
        first.push(chunk);
        if is_over {
            break;
        }
    }
    let chunks = stream::iter(first).chain(chunks);
    if length <= THRESHOLD {
        return Response::from_parts(head, body::fallible(chunks));
    }
    head.headers.remove(header::CONTENT_LENGTH);
    let gzip = HeaderValue::from_static("gzip");
    head.headers.insert(header::CONTENT_ENCODING, gzip);
    let vary = HeaderValue::from_static("Accept-Encoding");
    head.headers.append(header::VARY, vary);
    Response::from_parts(head, body::fallible(compressed(chunks)))
}

struct Compressing<S> {
    chunks: S,
    /// What is left of a chunk.
    rest: Bytes,
    /// `None` after the end.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

/// The chunks as one gzip member.
fn compressed(
    chunks: impl Stream<Item = Result<Bytes, Aborted>> + Send + Unpin + 'static,
) -> impl Stream<Item = Result<Bytes, Aborted>> + Send + 'static {
    let begin = Compressing {
        chunks,
        rest: Bytes::new(),
        encoder: Some(GzEncoder::new(Vec::new(), Compression::new(LEVEL))),
    };
    stream::try_unfold(begin, |mut at| async {
        let next = at.next().await?;
        Ok(next.map(|chunk| (chunk, at)))
    })
}

impl<S: Stream<Item = Result<Bytes, Aborted>> + Unpin> Compressing<S> {
    async fn next(&mut self) -> Result<Option<Bytes>, Aborted> {
        const INFALLIBLE: &str = "a vector takes whatever is written";
        loop {
            if self.rest.is_empty() {
                match self.chunks.next().await {
                    Some(chunk) => self.rest = chunk?,
                    None => {
                        let end = self.encoder.take();
                        return Ok(end.map(|end| Bytes::from(end.finish().expect(INFALLIBLE))));
                    }
                }
            }
            let Some(encoder) = &mut self.encoder else {
                return Ok(None);
            };
            let piece = self.rest.split_to(self.rest.len().min(PIECE));
            encoder.write_all(&piece).expect(INFALLIBLE);
            if encoder.get_ref().len() >= PIECE {
                return Ok(Some(std::mem::take(encoder.get_mut()).into()));
            }
            tokio::task::coop::consume_budget().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::http::response;

    #[test]
    fn only_the_plain_word_asks_for_it() {
        let cases = [
            ("gzip", true),
            ("identity, gzip", true),
            ("deflate,gzip , br", true),
            ("gzip;q=1.0", false),
            ("x-gzip", false),
            ("identity", false),
            ("", false),
        ];
        for (value, wanted) in cases {
            let headers =
                HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))]);
            assert_eq!(is_wanted(&headers), wanted, "{value}");
        }
        assert!(!is_wanted(&HeaderMap::new()));
    }

    /// A text that is not all the same, in chunks.
    fn chunks(length: usize, each: usize) -> Vec<Bytes> {
        let text: Vec<u8> = (0..length).map(|at| b"kubernetes"[at * at % 10]).collect();
        text.chunks(each).map(Bytes::copy_from_slice).collect()
    }

    #[tokio::test]
    async fn what_is_large_is_compressed_whole_or_in_chunks_and_what_is_small_stays() {
        for (length, large) in [
            (0, false),
            (THRESHOLD, false),
            (THRESHOLD + 1, true),
            (3_000_000, true),
        ] {
            for each in [100, PIECE + 1, 10_000_000] {
                let chunks = chunks(length, each);
                let whole = chunks.concat();
                let bodies = [
                    body::full(whole.clone()),
                    body::stream(stream::iter(chunks)),
                ];
                for body in bodies {
                    let answer = gzip(response::with_type(200, "application/json", body)).await;
                    let headers = answer.headers().clone();
                    let sent = answer.into_body().collect().await.unwrap().to_bytes();
                    let encoding = headers.get(header::CONTENT_ENCODING);
                    assert_eq!(encoding.is_some(), large, "{length}");
                    assert_eq!(headers.get(header::VARY).is_some(), large, "{length}");
                    if large {
                        assert!(sent.len() < length / 2, "{} of {length}", sent.len());
                        let mut read = Vec::new();
                        let mut decoder = flate2::read::GzDecoder::new(&sent[..]);
                        decoder.read_to_end(&mut read).unwrap();
                        assert!(read == whole, "{length}");
                    } else {
                        assert!(sent == whole, "{length}");
                    }
                }
            }
        }
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_breaks_off_compressed_too() {
        let parts = chunks(300_000, 1000).into_iter().map(Ok);
        let broken = body::fallible(stream::iter(parts.chain([Err(Aborted)])));
        let answer = gzip(response::with_type(200, "application/json", broken)).await;
        assert!(answer.headers().contains_key(header::CONTENT_ENCODING));
        answer.into_body().collect().await.unwrap_err();
    }
}
