//! I5: what a first list holds at its peak, counted by the allocator over all threads. One test, so that nothing else is
//! counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

use bytes::Bytes;
use futures::StreamExt as _;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use informer::{Informer, InformerOptions};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::Client;
use kube_client::client::Body;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

struct Counting;

static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);
static PEAK_BYTES: AtomicIsize = AtomicIsize::new(0);

fn count(bytes: isize) {
    let live = LIVE_BYTES.fetch_add(bytes, Relaxed) + bytes;
    PEAK_BYTES.fetch_max(live, Relaxed);
}

fn size(layout: Layout) -> isize {
    isize::try_from(layout.size()).expect("an allocation fits into half the address space")
}

// SAFETY: everything is done by the system's allocator; the counter allocates nothing.
#[expect(unsafe_code, reason = "an allocator cannot be written without")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(size(layout));
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-size(layout));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const OBJECTS: usize = 20_000;
const PAGE: usize = 500;
/// Bytes of a chunk of an answer, as a connection reads them.
const CHUNK: usize = 16 << 10;

fn item(at: usize) -> String {
    let value = "x".repeat(700);
    let fields = r#"{"manager":"m","operation":"Update","fieldsV1":{"f:data":{"f:k":{}}}}"#;
    let fields = [fields; 8].join(",");
    format!(
        r#"{{"metadata":{{"name":"o{at}","namespace":"n","uid":"{at}","resourceVersion":"{at}","managedFields":[{fields}]}},"data":{{"k":"{value}"}}}}"#
    )
}

/// A list answer that is made while it is read.
fn answer(items: Range<usize>, token: Option<usize>) -> impl Iterator<Item = Bytes> + Send {
    let token = token.map_or_else(String::new, |at| format!(r#","continue":"{at}""#));
    let head = format!(
        r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{{"resourceVersion":"9"{token}}},"items":["#
    );
    let first = items.start;
    let items = items.map(move |at| match at == first {
        true => item(at),
        false => format!(",{}", item(at)),
    });
    let mut pieces = std::iter::once(head).chain(items).chain(["]}".to_owned()]);
    std::iter::from_fn(move || {
        let mut chunk = String::new();
        while chunk.len() < CHUNK
            && let Some(piece) = pieces.next()
        {
            chunk.push_str(&piece);
        }
        (!chunk.is_empty()).then(|| Bytes::from(chunk))
    })
}

/// A server of lists, in pages of the size asked for or whole; its watches bring nothing.
fn client(paged: bool) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| async move {
        let query = request.uri().query().unwrap_or_default();
        let parameters = || form_urlencoded::parse(query.as_bytes());
        let number = |name: &str| {
            let (_, value) = parameters().find(|(key, _)| key == name)?;
            value.parse::<usize>().ok()
        };
        if parameters().any(|(key, _)| key == "watch") {
            return std::future::pending().await;
        }
        let begin = number("continue").unwrap_or(0);
        let end = match (paged, number("limit")) {
            (true, Some(limit)) => (begin + limit).min(OBJECTS),
            _ => OBJECTS,
        };
        let chunks = answer(begin..end, (end < OBJECTS).then_some(end));
        let frames =
            futures::stream::iter(chunks).map(|chunk| Ok::<_, Infallible>(Frame::data(chunk)));
        Ok::<_, Infallible>(Response::new(StreamBody::new(frames)))
    });
    Client::new(service, "default")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i5_the_peak_of_a_first_list_is_the_store_and_the_bytes_of_two_pages() {
    let page = isize::try_from(PAGE * item(OBJECTS).len()).unwrap();
    for paged in [false, true] {
        let before = LIVE_BYTES.load(Relaxed);
        PEAK_BYTES.store(before, Relaxed);
        let options = InformerOptions {
            watch_list: false,
            ..InformerOptions::default()
        };
        let informer: Informer<ConfigMap> = Informer::new(client(paged), options).unwrap();
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        let (running, token) = (informer.clone(), stop.clone());
        task.spawn(async move { running.run(token).await });
        informer.synced().await;
        let peak = PEAK_BYTES.load(Relaxed) - before;
        assert_eq!(informer.lister().read(|now| now.len()), OBJECTS);
        assert_eq!(informer.stats().malformed, 0);
        stop.cancel();
        task.join_next().await.unwrap().unwrap().unwrap();
        // What the store alone holds.
        let store = LIVE_BYTES.load(Relaxed) - before;

        assert!(
            peak <= store + 2 * page,
            "paged {paged}: {peak} bytes at the peak, {store} in the store, {page} in a page"
        );
        drop(informer);
    }
}
