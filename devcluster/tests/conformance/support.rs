//! Requests, answers and watches against the target of a run.

use std::{
    fmt,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use bytes::Bytes;
use devcluster::{Authorization, DevCluster};
use http::{HeaderMap, Method, Request, header};
use http_body_util::BodyExt as _;
use kube_client::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::time::timeout;

/// Names the kubeconfig of the server to test instead of an embedded cluster.
pub(crate) const KUBECONFIG: &str = "DEVCLUSTER_CONFORMANCE_KUBECONFIG";
/// No answer of any target takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
pub(crate) const TABLE: &str = "application/json;as=Table;g=meta.k8s.io;v=v1";
pub(crate) const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
pub(crate) const PARTIAL_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// The server under test, with a namespace of the case's own.
pub(crate) struct Target {
    client: Client,
    config: Config,
    pub(crate) embedded: Option<DevCluster>,
    pub(crate) namespace: String,
}

/// One answer.
#[derive(Clone)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    /// The body as it was sent.
    pub(crate) bytes: Bytes,
    pub(crate) text: String,
    /// `Null` when the body is no JSON.
    pub(crate) json: Value,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String = self.text.chars().take(2000).collect();
        write!(f, "{} {shown}", self.code)
    }
}

impl Answer {
    /// Fails the case unless the answer has that code; gives the body.
    #[track_caller]
    pub(crate) fn expect(&self, code: u16) -> &Value {
        assert_eq!(self.code, code, "{self:?}");
        &self.json
    }

    /// Fails the case unless the answer is a Status with that code and reason.
    #[track_caller]
    pub(crate) fn refused(&self, code: u16, reason: &str) -> &Value {
        let body = self.expect(code);
        assert_eq!(body["kind"], "Status", "{self:?}");
        assert_eq!(body["code"], code, "{self:?}");
        assert_eq!(
            body["reason"].as_str().unwrap_or_default(),
            reason,
            "{self:?}"
        );
        body
    }

    /// Fails the case unless it is a 422 with a cause for that field.
    #[track_caller]
    pub(crate) fn invalid(&self, reason: &str, field: &str) {
        let body = self.refused(422, "Invalid");
        let causes = body["details"]["causes"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let found = causes
            .iter()
            .any(|cause| cause["reason"] == reason && cause["field"] == field);
        assert!(found, "no cause {reason} at {field}: {self:?}");
    }

    /// Fails the case unless it is the plain text of a path that nothing serves.
    #[track_caller]
    pub(crate) fn plain_not_found(&self) {
        self.expect(404);
        assert!(
            self.header("content-type").starts_with("text/plain"),
            "{self:?}"
        );
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        let values = self.headers.get_all("warning");
        values
            .iter()
            .filter_map(|value| value.to_str().ok())
            .map(str::to_owned)
            .collect()
    }

    pub(crate) fn revision(&self) -> u64 {
        revision(&self.json)
    }
}

/// `metadata.resourceVersion` as a number.
#[track_caller]
pub(crate) fn revision(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"].as_str();
    text.and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("no revision in {object}"))
}

/// The names of a list's items.
pub(crate) fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().into_iter().flatten();
    items
        .map(|item| {
            item["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        })
        .collect()
}

/// A request under construction.
pub(crate) struct Ask<'a> {
    target: &'a Target,
    method: Method,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    anonymous: bool,
}

impl Ask<'_> {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn accept(self, value: &str) -> Self {
        self.header("accept", value)
    }

    /// A body with its media type.
    pub(crate) fn body(mut self, media: &str, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self.header("content-type", media)
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        let text = body.to_string();
        self.body("application/json", text)
    }

    /// Sends no credentials, or those that a header gives.
    pub(crate) fn anonymous(mut self) -> Self {
        self.anonymous = true;
        self
    }

    fn request(&self) -> Request<Body> {
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(&self.path);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        request
            .body(Body::from(self.body.clone()))
            .expect("the case makes a sound request")
    }

    pub(crate) async fn send(self) -> Answer {
        let client = if self.anonymous {
            let mut config = self.target.config.clone();
            config.auth_info = kube_client::config::AuthInfo::default();
            Client::try_from(config).expect("the configuration was used before")
        } else {
            self.target.client.clone()
        };
        let what = format!("{} {}", self.method, self.path);
        let answered = timeout(PATIENCE, async {
            let response = client
                .send(self.request())
                .await
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            let (parts, body) = response.into_parts();
            let bytes = body
                .collect()
                .await
                .unwrap_or_else(|e| panic!("{what}: {e}"))
                .to_bytes();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let json = serde_json::from_str(&text).unwrap_or_default();
            Answer {
                code: parts.status.as_u16(),
                headers: parts.headers,
                bytes,
                text,
                json,
            }
        });
        answered
            .await
            .unwrap_or_else(|_| panic!("no answer to {what}"))
    }

    /// Opens a watch.
    pub(crate) async fn watch(self) -> Watch {
        let what = format!("watch {}", self.path);
        let opened = timeout(PATIENCE, async {
            loop {
                let sent = self.target.client.send(self.request()).await;
                let response = sent.unwrap_or_else(|error| panic!("{what}: {error}"));
                // The real server refuses watches for a moment while it takes up a new definition.
                if response.status() != 429 {
                    return response;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        let Ok(response) = opened.await else {
            panic!("{what}: no headers")
        };
        assert_eq!(response.status(), 200, "{what}");
        Watch {
            body: response.into_body(),
            buffer: Vec::new(),
        }
    }
}

/// An open watch.
pub(crate) struct Watch {
    body: Body,
    buffer: Vec<u8>,
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) kind: String,
    pub(crate) object: Value,
}

impl Event {
    pub(crate) fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or_default()
    }

    #[track_caller]
    pub(crate) fn revision(&self) -> u64 {
        revision(&self.object)
    }
}

impl Watch {
    /// The next event, or `None` at the end of the stream; fails the case when neither comes in time.
    pub(crate) async fn next_or_end(&mut self, patience: Duration) -> Option<Event> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).expect("each line is an event");
                let kind = event["type"].as_str().unwrap_or_default().to_owned();
                return Some(Event {
                    kind,
                    object: event["object"].clone(),
                });
            }
            match timeout(patience, self.body.frame())
                .await
                .expect("no event came")
            {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(_)) | None => return None,
            }
        }
    }

    /// The next event.
    pub(crate) async fn next(&mut self) -> Event {
        self.next_or_end(PATIENCE).await.expect("the watch ended")
    }

    /// Whether nothing comes for a while.
    pub(crate) async fn is_silent(&mut self) -> bool {
        self.buffer.is_empty()
            && timeout(Duration::from_millis(300), self.body.frame())
                .await
                .is_err()
    }
}

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A name that no other case uses.
pub(crate) fn unique(prefix: &str) -> String {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{}-{number}", std::process::id())
}

impl Target {
    /// The target of this run and a fresh namespace on it.
    pub(crate) async fn start() -> Self {
        Self::start_with(Authorization::Authenticated).await
    }

    /// The same; where it is an embedded cluster, roles decide who may do what, as they do in a real server.
    pub(crate) async fn start_with_roles() -> Self {
        Self::start_with(Authorization::Rbac).await
    }

    async fn start_with(authorization: Authorization) -> Self {
        let (config, embedded) = match std::env::var_os(KUBECONFIG) {
            Some(path) => {
                let kubeconfig = Kubeconfig::read_from(path).expect("the kubeconfig can be read");
                let options = KubeConfigOptions::default();
                let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
                (config.expect("the kubeconfig is sound"), None)
            }
            None => {
                let cluster = DevCluster::builder()
                    .namespace_controller(false)
                    .default_service_accounts(false)
                    .authorization(authorization)
                    .start()
                    .await
                    .expect("the cluster starts");
                (
                    cluster
                        .client_config()
                        .await
                        .expect("its configuration is sound"),
                    Some(cluster),
                )
            }
        };
        let mut config = config;
        config.default_retry = false;
        let client = Client::try_from(config.clone()).expect("the configuration is sound");
        let mut target = Self {
            client,
            config,
            embedded,
            namespace: String::new(),
        };
        target.namespace = target.new_namespace().await;
        target
    }

    /// Makes one more namespace.
    pub(crate) async fn new_namespace(&self) -> String {
        let name = unique("case");
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.post("/api/v1/namespaces", &body).await.expect(201);
        name
    }

    pub(crate) fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    pub(crate) fn ask(&self, method: Method, path: impl Into<String>) -> Ask<'_> {
        Ask {
            target: self,
            method,
            path: path.into(),
            headers: vec![(header::USER_AGENT.to_string(), "conformance/1".to_owned())],
            body: Vec::new(),
            anonymous: false,
        }
    }

    pub(crate) async fn get(&self, path: impl Into<String>) -> Answer {
        self.ask(Method::GET, path).send().await
    }

    pub(crate) async fn post(&self, path: impl Into<String>, body: &Value) -> Answer {
        self.ask(Method::POST, path).json(body).send().await
    }

    pub(crate) async fn put(&self, path: impl Into<String>, body: &Value) -> Answer {
        self.ask(Method::PUT, path).json(body).send().await
    }

    pub(crate) async fn patch(&self, path: impl Into<String>, media: &str, body: &Value) -> Answer {
        self.ask(Method::PATCH, path)
            .body(media, body.to_string())
            .send()
            .await
    }

    pub(crate) async fn delete(&self, path: impl Into<String>) -> Answer {
        self.ask(Method::DELETE, path).send().await
    }

    pub(crate) async fn delete_with(&self, path: impl Into<String>, options: &Value) -> Answer {
        self.ask(Method::DELETE, path).json(options).send().await
    }

    pub(crate) async fn watch(&self, path: impl Into<String>) -> Watch {
        self.ask(Method::GET, path).watch().await
    }

    /// The ConfigMaps of the case's namespace.
    pub(crate) fn config_maps(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.namespace)
    }

    /// A path below the case's namespace in the core group.
    pub(crate) fn core(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{rest}", self.namespace)
    }

    /// Creates a ConfigMap with one value.
    pub(crate) async fn config_map(&self, name: &str) -> Value {
        self.post(self.config_maps(), &config_map(name))
            .await
            .expect(201)
            .clone()
    }

    /// Repeats a request until its answer passes.
    pub(crate) async fn until(&self, path: &str, passes: impl Fn(&Answer) -> bool) -> Answer {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let answer = self.get(path).await;
            if passes(&answer) {
                return answer;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{path} never passed: {answer:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A ConfigMap to create.
pub(crate) fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

/// A pod to create, with one container.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "example.com/i:1"}]},
    })
}
