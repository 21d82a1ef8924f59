//! The API server as a source.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue};
use http_body_util::{BodyExt as _, Limited};
use kube_client::client::Body;
use kube_core::{Resource, Status};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::decode::Decoder;
use super::frame::{FrameSplitter, read_all};
use super::intake::{Decoded, Intake, Splitter};
use super::scan::{ListScanner, Part, ScanError, Text};
use super::{
    Cut, Error, ListEnd, ListPart, ListRequest, ListVersion, ListWatch, Malformed, WatchEvent,
    WatchRequest, WatchStream,
};
use crate::client::{CallOptions, failure, retry_after};

const JSON: &str = "application/json";
// No plain form stands beside these: a server that cannot send metadata alone shall refuse
// rather than send whole objects.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Largest body of an error that is read.
const MAX_STATUS: usize = 1 << 20;
/// How much of an error's body that is no status goes into its message.
const MAX_TEXT: usize = 256;

/// Namespace and selectors of a source: the objects it can see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// One namespace; `None` for all.
    pub namespace: Option<String>,
    /// Label selector.
    pub label_selector: Option<String>,
    /// Field selector.
    pub field_selector: Option<String>,
}

/// How answers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Parts of objects that are left out while reading.
    pub cut: Cut,
    /// Longest time for one list call with its body.
    pub list_timeout: Duration,
    /// Keep the text of objects that cannot be read; never done for metadata alone.
    pub keep_raw: bool,
}

impl Default for ReadOptions {
    /// The default cut, 60 s for a list, no text kept.
    fn default() -> Self {
        Self {
            cut: Cut::default(),
            list_timeout: Duration::from_secs(60),
            keep_raw: false,
        }
    }
}

/// Lists and watches one kind at an API server.
///
/// Objects are decoded straight from the bytes that arrive. The whole answer of a list is never
/// held, and an object that cannot be read stops no other.
#[derive(Debug)]
pub struct KubeSource<K> {
    calls: Arc<Calls<K>>,
}

struct Calls<K> {
    client: kube_client::Client,
    path: String,
    scope: Scope,
    decoder: Arc<Decoder<K>>,
    metadata_only: bool,
    list_timeout: Duration,
}

impl<K> std::fmt::Debug for Calls<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calls")
            .field("path", &self.path)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}

impl<K: Resource + DeserializeOwned> KubeSource<K> {
    /// A source of the objects of `kind` in `scope`. Makes no request.
    ///
    /// Kinds that are metadata alone, such as [`MetadataOnly`](crate::MetadataOnly), are asked
    /// for as such.
    pub fn new(
        client: kube_client::Client,
        kind: &K::DynamicType,
        scope: Scope,
        options: ReadOptions,
    ) -> Self {
        let path = K::url_path(kind, scope.namespace.as_deref());
        let metadata_only = K::metadata_api();
        let keep_raw = options.keep_raw && !metadata_only;
        let decoder = Arc::new(Decoder::new(kind, options.cut).keep_raw(keep_raw));
        let calls = Calls {
            client,
            path,
            scope,
            decoder,
            metadata_only,
            list_timeout: options.list_timeout,
        };
        Self {
            calls: Arc::new(calls),
        }
    }
}

/// The query of a list.
fn list_query(scope: &Scope, request: &ListRequest) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    select(&mut query, scope);
    if let Some(limit) = request.limit {
        query.append_pair("limit", &limit.to_string());
    }
    // A token names its version by itself; servers refuse both together.
    match (&request.continue_token, &request.version) {
        (Some(token), _) => {
            query.append_pair("continue", token);
        }
        (None, ListVersion::Any) => {
            query.append_pair("resourceVersion", "0");
        }
        (None, ListVersion::NotOlderThan(version)) => {
            query.append_pair("resourceVersion", version);
            query.append_pair("resourceVersionMatch", "NotOlderThan");
        }
        (None, ListVersion::Exact(version)) => {
            query.append_pair("resourceVersion", version);
            query.append_pair("resourceVersionMatch", "Exact");
        }
        (None, ListVersion::Consistent) => {}
    }
    query.finish()
}

/// The query of a watch.
fn watch_query(scope: &Scope, request: &WatchRequest) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    select(&mut query, scope);
    query.append_pair("watch", "true");
    query.append_pair("allowWatchBookmarks", "true");
    query.append_pair("timeoutSeconds", &request.timeout.as_secs().to_string());
    if !request.resource_version.is_empty() {
        query.append_pair("resourceVersion", &request.resource_version);
    }
    if request.initial_events {
        query.append_pair("sendInitialEvents", "true");
        query.append_pair("resourceVersionMatch", "NotOlderThan");
    }
    query.finish()
}

fn select(query: &mut form_urlencoded::Serializer<'_, String>, scope: &Scope) {
    if let Some(labels) = &scope.label_selector {
        query.append_pair("labelSelector", labels);
    }
    if let Some(fields) = &scope.field_selector {
        query.append_pair("fieldSelector", fields);
    }
}

impl<K> Calls<K> {
    fn request(&self, query: &str, accept: &'static str) -> Result<http::Request<Body>, Error> {
        let uri = format!("{}?{query}", self.path);
        let mut request = http::Request::get(uri)
            .body(Body::empty())
            .map_err(Error::Request)?;
        let headers = request.headers_mut();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        // Bytes are read as they come, and servers compress a watch event by event, which decoders of whole
        // bodies do not understand. A request that says nothing allows any encoding.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        Ok(request)
    }

    /// Sends and looks at the status, before any byte of the body is taken for data.
    async fn send(&self, request: http::Request<Body>) -> Result<Body, Error> {
        let response = self.client.send(request).await.map_err(failure)?;
        let (head, body) = response.into_parts();
        let encoding = foreign_encoding(&head.headers);
        if head.status.is_success() {
            let Some(encoding) = encoding else {
                return Ok(body);
            };
            return Err(Error::Answer(format!(
                "encoded as `{encoding}` although `identity` was asked for: something between here and the server \
                 compresses, and has to let this client's answers be"
            )));
        }
        let retry_after = retry_after(&head.headers);
        // What the code says holds, whether or not its text can be read.
        let status = match encoding {
            None => read_status(head.status, body).await,
            Some(encoding) => {
                let text = format!("an answer encoded as `{encoding}`, which was not asked for");
                bare_status(head.status, &text)
            }
        };
        Err(match Error::status(status) {
            Error::Status {
                status,
                retry_after: None,
            } => Error::Status {
                status,
                retry_after,
            },
            error => error,
        })
    }
}

/// The encoding of an answer that cannot be read as it comes.
fn foreign_encoding(headers: &http::HeaderMap) -> Option<String> {
    let encoding = headers.get(CONTENT_ENCODING)?;
    let encoding = String::from_utf8_lossy(encoding.as_bytes());
    let known = encoding.is_empty() || encoding.eq_ignore_ascii_case("identity");
    (!known).then(|| encoding.chars().take(MAX_TEXT).collect())
}

/// The status in a body, or one made of the HTTP code where there is none.
async fn read_status(code: http::StatusCode, body: Body) -> Status {
    let text = match Limited::new(body, MAX_STATUS).collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => Bytes::new(),
    };
    match serde_json::from_slice::<Status>(&text) {
        Ok(status) if status.is_failure() => status.clone().with_code(match status.code {
            0 => code.as_u16(),
            code => code,
        }),
        _ => {
            let text: String = String::from_utf8_lossy(&text)
                .chars()
                .take(MAX_TEXT)
                .collect();
            bare_status(code, text.trim())
        }
    }
}

/// A status that says what the HTTP code says.
fn bare_status(code: http::StatusCode, text: &str) -> Status {
    let reason = code.canonical_reason().unwrap_or("unknown");
    Status::failure(text, &reason.replace(' ', "")).with_code(code.as_u16())
}

impl<K> ListWatch<K> for KubeSource<K>
where
    K: Resource + DeserializeOwned + Send + Sync + 'static,
{
    fn list(&self, request: ListRequest) -> BoxStream<'static, Result<ListPart<K>, Error>> {
        let calls = Arc::clone(&self.calls);
        stream::once(async move {
            let accept = if calls.metadata_only {
                METADATA_LIST
            } else {
                JSON
            };
            let mut http = calls.request(&list_query(&calls.scope, &request), accept)?;
            http.extensions_mut().insert(CallOptions {
                retry: false,
                timeout: Some(calls.list_timeout),
            });
            let body = calls.send(http).await?;
            let reader = ListReader::new(body, Arc::clone(&calls.decoder));
            Ok(stream::try_unfold(reader, |mut reader| async move {
                Ok(reader.next().await?.map(|part| (part, reader)))
            }))
        })
        .try_flatten()
        .boxed()
    }

    fn watch(&self, request: WatchRequest) -> BoxFuture<'static, Result<WatchStream<K>, Error>> {
        let calls = Arc::clone(&self.calls);
        Box::pin(async move {
            let accept = if calls.metadata_only { METADATA } else { JSON };
            let mut http = calls.request(&watch_query(&calls.scope, &request), accept)?;
            http.extensions_mut().insert(CallOptions {
                retry: false,
                timeout: None,
            });
            let body = calls.send(http).await?;
            let reader = WatchReader::new(body, Arc::clone(&calls.decoder));
            let stream = stream::try_unfold(reader, |mut reader| async move {
                Ok(reader.next().await?.map(|batch| (batch, reader)))
            });
            Ok(stream.boxed())
        })
    }
}

/// The fields of a list answer beside its items.
#[derive(Debug, Default)]
struct Head {
    kind: Option<String>,
    end: ListEnd,
    /// There are no items, and that is said.
    null_items: bool,
}

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[derive(Default)]
struct ListMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

impl Head {
    fn field(&mut self, key: &str, value: &[u8]) -> Result<(), Error> {
        let unreadable = |_| Error::Answer(format!("`{key}` of the list cannot be read"));
        match key {
            "kind" => self.kind = serde_json::from_slice(value).map_err(unreadable)?,
            "metadata" => {
                let meta: Option<ListMeta> = serde_json::from_slice(value).map_err(unreadable)?;
                let meta = meta.unwrap_or_default();
                self.end = ListEnd {
                    resource_version: meta.resource_version.unwrap_or_default(),
                    continue_token: meta.continue_token.filter(|token| !token.is_empty()),
                };
            }
            // Servers written in Go say so of an empty list.
            "items" if value == b"null" => self.null_items = true,
            "items" => {
                let problem = "`items` of the list is not an array".to_owned();
                return Err(Error::Answer(problem));
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether it is the head of a list. The kind of a list need not end so if its definition says
    /// otherwise; then it has items at least.
    fn check(&self, has_items: bool) -> Result<(), Error> {
        let kind = match self.kind.as_deref() {
            Some("Table" | "Status") => self.kind.as_deref(),
            Some(kind) if has_items || kind.ends_with("List") => None,
            None if has_items || self.null_items => None,
            kind => kind.or(Some("value without kind and items")),
        };
        match kind {
            Some(kind) => Err(Error::Answer(format!(
                "a {kind} instead of a list of objects"
            ))),
            None => Ok(()),
        }
    }
}

/// Cuts a list answer into its items, and keeps what stands beside them.
#[derive(Debug)]
struct ListSplitter {
    scanner: ListScanner,
    head: Head,
}

impl Splitter for ListSplitter {
    const URGENT: bool = false;

    fn split(&mut self, chunk: Bytes, texts: &mut Vec<Text>) -> Result<(), Error> {
        self.scanner.push(chunk);
        while let Some(part) = self.scanner.next().map_err(no_list)? {
            match part {
                Part::Item(item) => {
                    self.head.check(true)?;
                    texts.push(item);
                }
                Part::Field { key, value } => self.head.field(&key, &value)?,
            }
        }
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "an argument of map_err")]
fn no_list(error: ScanError) -> Error {
    Error::Answer(error.to_string())
}

struct ListReader<K> {
    intake: Intake<ListSplitter, Result<K, Box<Malformed>>>,
    ended: bool,
}

impl<K: Resource + DeserializeOwned + Send + 'static> ListReader<K> {
    fn new(body: Body, decoder: Arc<Decoder<K>>) -> Self {
        let splitter = ListSplitter {
            scanner: ListScanner::new(),
            head: Head::default(),
        };
        let read = move |text: &Text| match text.is_whole() {
            true => decoder.object(&text.bytes, false),
            false => Err(decoder.oversized(&text.bytes, text.length, false)),
        };
        let decode = move |texts: &[Text]| Decoded {
            values: texts.iter().map(&read).collect(),
            failure: None,
        };
        Self {
            intake: Intake::new(body, splitter, decode),
            ended: false,
        }
    }

    async fn next(&mut self) -> Result<Option<ListPart<K>>, Error> {
        if self.ended {
            return Ok(None);
        }
        if let Some(items) = self.intake.next().await? {
            return Ok(Some(ListPart::Items(items)));
        }
        let ListSplitter { scanner, head } = self.intake.splitter();
        scanner.finish().map_err(no_list)?;
        head.check(scanner.has_items())?;
        self.ended = true;
        Ok(Some(ListPart::End(std::mem::take(&mut head.end))))
    }
}

struct WatchReader<K> {
    intake: Intake<FrameSplitter, WatchEvent<K>>,
    ended: bool,
}

impl<K: Resource + DeserializeOwned + Send + 'static> WatchReader<K> {
    fn new(body: Body, decoder: Arc<Decoder<K>>) -> Self {
        Self {
            intake: Intake::new(body, FrameSplitter::new(), move |frames| {
                read_all(&decoder, frames)
            }),
            ended: false,
        }
    }

    async fn next(&mut self) -> Result<Option<Vec<WatchEvent<K>>>, Error> {
        if self.ended {
            return Ok(None);
        }
        if let Some(events) = self.intake.next().await? {
            return Ok(Some(events));
        }
        self.ended = true;
        self.intake.splitter().finish().map(|()| None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(version: ListVersion, limit: Option<u32>, token: Option<&str>) -> String {
        let request = ListRequest {
            version,
            limit,
            continue_token: token.map(str::to_owned),
        };
        list_query(&Scope::default(), &request)
    }

    #[test]
    fn i3_i4_a_list_query_says_what_the_request_says() {
        let at = |version: &str| ListVersion::NotOlderThan(Arc::from(version));
        assert_eq!(
            list(ListVersion::Any, Some(500), None),
            "limit=500&resourceVersion=0"
        );
        assert_eq!(
            list(at("7"), None, None),
            "resourceVersion=7&resourceVersionMatch=NotOlderThan"
        );
        assert_eq!(list(ListVersion::Consistent, Some(500), None), "limit=500");
        assert_eq!(
            list(ListVersion::Any, Some(500), Some("a/+")),
            "limit=500&continue=a%2F%2B"
        );
        assert_eq!(list(at("7"), None, Some("t")), "continue=t");
    }

    #[test]
    fn i44_selectors_go_along_with_list_and_watch_alike() {
        let scope = Scope {
            namespace: None,
            label_selector: Some("a=b,c in (d)".to_owned()),
            field_selector: Some("spec.x=y".to_owned()),
        };
        let selectors = "labelSelector=a%3Db%2Cc+in+%28d%29&fieldSelector=spec.x%3Dy";
        let request = ListRequest {
            version: ListVersion::Consistent,
            limit: None,
            continue_token: None,
        };
        assert_eq!(list_query(&scope, &request), selectors);
        let request = WatchRequest {
            resource_version: "5".to_owned(),
            timeout: Duration::from_secs(300),
            initial_events: false,
        };
        let watch = "watch=true&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion=5";
        assert_eq!(
            watch_query(&scope, &request),
            format!("{selectors}&{watch}")
        );
    }

    #[test]
    fn i20_a_streamed_list_asks_for_initial_events() {
        let request = WatchRequest {
            resource_version: String::new(),
            timeout: Duration::from_secs(300),
            initial_events: true,
        };
        assert_eq!(
            watch_query(&Scope::default(), &request),
            "watch=true&allowWatchBookmarks=true&timeoutSeconds=300\
             &sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        );
    }
}
