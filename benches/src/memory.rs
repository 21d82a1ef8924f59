//! A server that answers every call with the same bytes out of memory.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube_client::Client;
use kube_client::client::Body;

/// Bytes of one piece of the answer, as a socket may hand them out.
const PIECE: usize = 128 << 10;

/// The whole answer to a list of `path`.
pub(crate) async fn fetch(
    client: Client,
    path: &str,
    metadata: bool,
) -> Result<Vec<Bytes>, Box<dyn std::error::Error>> {
    let accept = if metadata {
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    } else {
        "application/json"
    };
    let request = Request::get(format!("{path}?resourceVersion=0"))
        .header(http::header::ACCEPT, accept)
        .body(Body::empty())?;
    let body = client.send(request).await?.into_body();
    let whole = body.collect().await?.to_bytes();
    let pieces = (0..whole.len()).step_by(PIECE);
    Ok(pieces
        .map(|at| Bytes::copy_from_slice(&whole[at..whole.len().min(at + PIECE)]))
        .collect())
}

/// A client of a server that answers with `pieces`.
pub(crate) fn client(pieces: Vec<Bytes>) -> Client {
    let mut pieces = Some(pieces);
    let service = tower::service_fn(move |_: Request<Body>| {
        let frames = pieces.take().unwrap_or_default().into_iter();
        let frames =
            frames.map(|piece| Ok::<_, std::convert::Infallible>(http_body::Frame::data(piece)));
        let body = http_body_util::StreamBody::new(futures::stream::iter(frames));
        std::future::ready(Ok::<_, std::convert::Infallible>(Response::new(body)))
    });
    Client::new(service, "default")
}
