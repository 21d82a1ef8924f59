//! A cluster with simulated nodes, and what the scenarios do with it.

use std::{fmt::Debug, net::IpAddr, time::Duration};

use devcluster::{
    echo::{Call, EchoHandle, EchoServer},
    kubelet::{Kubelet, KubeletHandle, KubeletOptions},
};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Secret};
use kube_client::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep},
};

const LIMIT: Duration = Duration::from_secs(20);

/// A cluster under test.
pub(crate) struct World {
    pub(crate) client: Client,
    pub(crate) kubelet: KubeletHandle,
    pub(crate) echo: EchoHandle,
}

impl World {
    pub(crate) async fn start(client: Client, options: KubeletOptions) -> Self {
        let kubelet = Kubelet::start(client.clone(), options).await.unwrap();
        Self {
            client,
            kubelet,
            echo: EchoServer::start().await.unwrap(),
        }
    }

    /// A namespace of its own for one scenario.
    pub(crate) async fn namespace(&self, name: &str) -> Scene<'_> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace: Namespace =
            serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        // An API server that was killed before takes a moment to come back.
        eventually("the namespace is created", async || {
            match namespaces.create(&PostParams::default(), &namespace).await {
                Err(kube_client::Error::Api(answer)) if answer.code == 409 => Ok(()),
                outcome => outcome.map(drop).map_err(|error| error.to_string()),
            }
        })
        .await;
        self.scene(name)
    }

    /// A namespace that is there.
    pub(crate) fn scene(&self, name: &str) -> Scene<'_> {
        Scene {
            world: self,
            namespace: name.to_owned(),
        }
    }
}

/// A scenario's place.
pub(crate) struct Scene<'a> {
    pub(crate) world: &'a World,
    namespace: String,
}

impl Scene<'_> {
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.world.client.clone(), &self.namespace)
    }

    pub(crate) fn nodes(&self) -> Api<Node> {
        Api::all(self.world.client.clone())
    }

    pub(crate) async fn create_pod(&self, name: &str, spec: Value) -> Pod {
        self.create_annotated(name, spec, json!({})).await
    }

    pub(crate) async fn create_annotated(
        &self,
        name: &str,
        spec: Value,
        annotations: Value,
    ) -> Pod {
        let pod = serde_json::from_value(json!({
            "metadata": { "name": name, "annotations": annotations }, "spec": spec,
        }))
        .unwrap();
        self.pods()
            .create(&PostParams::default(), &pod)
            .await
            .unwrap()
    }

    pub(crate) async fn create_secret(&self, name: &str, data: Value) {
        let secrets: Api<Secret> = Api::namespaced(self.world.client.clone(), &self.namespace);
        let secret = serde_json::from_value(json!({
            "metadata": { "name": name }, "stringData": data,
        }))
        .unwrap();
        secrets
            .create(&PostParams::default(), &secret)
            .await
            .unwrap();
    }

    pub(crate) async fn delete(&self, name: &str, grace: Option<u32>) {
        let params = DeleteParams {
            grace_period_seconds: grace,
            ..DeleteParams::default()
        };
        let _deleted = self.pods().delete(name, &params).await.unwrap();
    }

    /// Waits until the pod is as wanted, and gives it.
    pub(crate) async fn pod_when<T: Debug>(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&Pod) -> Option<T>,
    ) -> T {
        eventually(what, async || {
            let pod = self
                .pods()
                .get(name)
                .await
                .map_err(|error| error.to_string())?;
            wanted(&pod).ok_or_else(|| {
                let status = pod
                    .status
                    .map(|status| serde_json::to_string(&status).unwrap());
                status.unwrap_or_default()
            })
        })
        .await
    }

    pub(crate) async fn ready(&self, name: &str) -> IpAddr {
        self.pod_when(name, "the pod is Ready", |pod| {
            condition(pod, "Ready", "True").then(|| ip(pod)).flatten()
        })
        .await
    }

    pub(crate) async fn gone(&self, name: &str) {
        eventually("the pod is gone", async || {
            match self.pods().get_opt(name).await {
                Ok(None) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// Messages of the namespace's Events with that reason.
    pub(crate) async fn event_with(&self, reason: &str, part: &str) {
        let events: Api<k8s_openapi::api::core::v1::Event> =
            Api::namespaced(self.world.client.clone(), &self.namespace);
        eventually("there is an Event", async || {
            let all = events
                .list(&ListParams::default())
                .await
                .map_err(|e| e.to_string())?;
            let told: Vec<String> = all
                .items
                .into_iter()
                .map(|event| {
                    let reason = event.reason.unwrap_or_default();
                    format!("{reason}: {}", event.message.unwrap_or_default())
                })
                .collect();
            let found = told
                .iter()
                .any(|text| text.starts_with(reason) && text.contains(part));
            if found {
                Ok(())
            } else {
                Err(format!("{told:?}"))
            }
        })
        .await;
    }
}

pub(crate) fn ip(pod: &Pod) -> Option<IpAddr> {
    pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

pub(crate) fn condition(pod: &Pod, type_: &str, status: &str) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == type_ && condition.status == status)
}

/// Reason and message of the first container's waiting state.
pub(crate) fn waiting(pod: &Pod) -> Option<(String, String)> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    Some((
        waiting.reason.clone()?,
        waiting.message.clone().unwrap_or_default(),
    ))
}

/// Polls until it holds; fails with the last refusal.
pub(crate) async fn eventually<T>(what: &str, attempt: impl AsyncFn() -> Result<T, String>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(problem) if Instant::now() >= deadline => panic!("not so: {what}: {problem}"),
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

/// GET through a proxy; the status code, and the call as the echo server saw it.
pub(crate) async fn fetch(
    proxy: (IpAddr, u16),
    echo: &EchoHandle,
    credentials: Option<&str>,
) -> std::io::Result<(u16, Option<Call>)> {
    let mut stream = TcpStream::connect(proxy).await?;
    let auth = credentials
        .map(|value| format!("Proxy-Authorization: {value}\r\n"))
        .unwrap_or_default();
    let request = format!(
        "GET {}/ HTTP/1.1\r\nHost: x\r\n{auth}Connection: close\r\n\r\n",
        echo.url()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status, serde_json::from_str(body).ok()))
}
