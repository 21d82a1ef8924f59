//! What simulated nodes do, whatever API server they serve.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use devcluster::proxy::Credentials;
use futures::future::join_all;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube_client::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{World, condition, eventually, fetch, ip, phase, waiting};

const PORT: u16 = 3128;

/// Runs every scenario; those that change nodes come last, one after the other.
pub(crate) async fn all(world: &World) {
    nodes_are_ready_and_hold_leases(world).await;
    tokio::join!(
        a_proxy_pod_really_serves_from_its_own_address(world),
        a_pod_waits_for_the_secret_of_its_volume(world),
        a_pod_waits_for_the_secret_of_its_environment(world),
        a_deleted_pod_drains_and_goes(world),
        a_pod_deleted_by_force_stops_serving(world),
        a_pod_of_the_same_name_starts_afresh(world),
        containers_that_end_complete_their_pod(world),
        annotations_impair_a_proxy(world),
        a_burst_of_pods_spreads_over_nodes_and_addresses(world),
    );
    a_pod_that_fits_nowhere_says_so_and_runs_when_a_node_opens(world).await;
}

/// With [`Addressing::Virtual`](devcluster::kubelet::Addressing::Virtual).
pub(crate) async fn a_virtual_pod_tells_where_its_proxy_listens(world: &World) {
    let scene = world.namespace("virtual").await;
    scene.create_pod("p", proxy_spec()).await;
    let map = scene
        .pod_when("p", "the pod has a port map", |pod| {
            pod.metadata
                .annotations
                .as_ref()?
                .get("devcluster/port-map")
                .cloned()
        })
        .await;
    let address: SocketAddr = map.strip_prefix("3128=").unwrap().parse().unwrap();
    let proxy = (address.ip(), address.port());
    let (status, call) = fetch(proxy, &world.echo, None).await.unwrap();
    assert_eq!((status, call.is_some()), (200, true));
    let shown = scene.pod_when("p", "the pod has an address", ip).await;
    assert!(shown.to_string().starts_with("10.244."), "{shown}");
}

/// Leaves a Running pod behind, as a kubelet that crashes does.
pub(crate) async fn a_pod_runs_and_its_node_goes(world: World) -> (Client, IpAddr) {
    let scene = world.namespace("orphan").await;
    scene.create_pod("p", proxy_spec()).await;
    let address = scene.ready("p").await;
    drop(scene);
    world.kubelet.shutdown().await;
    assert!(
        TcpStream::connect((address, PORT)).await.is_err(),
        "the proxy ends with its node"
    );
    (world.client, address)
}

/// The next kubelet starts the pod again, elsewhere.
pub(crate) async fn the_pod_runs_again(world: &World, before: IpAddr) {
    let scene = world.scene("orphan");
    let address = scene
        .pod_when("p", "the pod runs again", |pod| {
            let address = ip(pod).filter(|ip| *ip != before)?;
            condition(pod, "Ready", "True").then_some(address)
        })
        .await;
    let (status, call) = fetch((address, PORT), &world.echo, None).await.unwrap();
    assert_eq!((status, call.map(|call| call.ip)), (200, Some(address)));
    let status = scene.pods().get("p").await.unwrap().status.unwrap();
    assert_eq!(status.container_statuses.unwrap()[0].restart_count, 1);
    let addresses: Vec<String> = status
        .pod_ips
        .unwrap()
        .into_iter()
        .map(|address| address.ip)
        .collect();
    assert_eq!(
        addresses,
        [address.to_string()],
        "the old address is taken out"
    );
}

fn proxy_spec() -> Value {
    json!({
        "terminationGracePeriodSeconds": 30,
        "containers": [{
            "name": "proxy",
            "image": "example.test/proxy",
            "ports": [{ "name": "proxy", "containerPort": PORT }],
            "readinessProbe": { "tcpSocket": { "port": "proxy" }, "periodSeconds": 5 },
        }],
    })
}

fn plain_spec() -> Value {
    json!({ "containers": [{ "name": "c", "image": "example.test/c" }] })
}

async fn nodes_are_ready_and_hold_leases(world: &World) {
    let nodes: Api<Node> = Api::all(world.client.clone());
    let leases: Api<Lease> = Api::namespaced(world.client.clone(), "kube-node-lease");
    for name in world.kubelet.nodes() {
        let node = nodes.get(name).await.unwrap();
        let ready = node.status.unwrap().conditions.unwrap();
        assert!(
            ready
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "True")
        );
        assert_eq!(
            node.spec.and_then(|spec| spec.taints),
            None,
            "{name} takes pods"
        );
        let lease = leases.get(name).await.unwrap().spec.unwrap();
        assert_eq!(lease.holder_identity.as_deref(), Some(name.as_str()));
        assert_eq!(lease.lease_duration_seconds, Some(40));
        assert!(lease.renew_time.is_some());
    }
}

async fn a_proxy_pod_really_serves_from_its_own_address(world: &World) {
    let scene = world.namespace("serves").await;
    scene.create_pod("p", proxy_spec()).await;
    let address = scene.ready("p").await;
    let (status, call) = fetch((address, PORT), &world.echo, None).await.unwrap();
    assert_eq!((status, call.map(|call| call.ip)), (200, Some(address)));

    let pod = scene.pods().get("p").await.unwrap();
    for type_ in [
        "PodScheduled",
        "Initialized",
        "PodReadyToStartContainers",
        "ContainersReady",
    ] {
        assert!(condition(&pod, type_, "True"), "{type_}");
    }
    let status = pod.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.pod_ips.unwrap()[0].ip, address.to_string());
    assert!(status.start_time.is_some() && status.host_ip.is_some());
    let container = &status.container_statuses.unwrap()[0];
    assert!(container.ready && container.state.as_ref().unwrap().running.is_some());
    let listed = world.kubelet.proxies();
    let proxy = listed.iter().find(|proxy| proxy.pod == "serves/p").unwrap();
    assert_eq!(
        (proxy.address, proxy.counters.forwarded),
        ((address, PORT).into(), 1)
    );
}

async fn a_pod_waits_for_the_secret_of_its_volume(world: &World) {
    let scene = world.namespace("volume").await;
    let mut spec = proxy_spec();
    spec["volumes"] = json!([{ "name": "ci", "secret": { "secretName": "cloud",
        "items": [{ "key": "user-data", "path": "user-data" }] } }]);
    scene.create_pod("p", spec).await;
    scene
        .pod_when("p", "the pod waits for its Secret", |pod| {
            let (reason, message) = waiting(pod)?;
            (reason == "ContainerCreating" && message.contains("secret \"cloud\" not found"))
                .then_some(())
        })
        .await;
    scene
        .event_with("FailedMount", "secret \"cloud\" not found")
        .await;
    scene.create_secret("cloud", json!({ "other": "x" })).await;
    scene
        .event_with("FailedMount", "non-existent secret key: user-data")
        .await;
    let pod = scene.pods().get("p").await.unwrap();
    assert_eq!((phase(&pod), ip(&pod)), ("Pending", None));
    let patch = Patch::Merge(json!({ "stringData": { "user-data": "#!" } }));
    let secrets: Api<k8s_openapi::api::core::v1::Secret> =
        Api::namespaced(world.client.clone(), "volume");
    secrets
        .patch("cloud", &PatchParams::default(), &patch)
        .await
        .unwrap();
    scene.ready("p").await;
}

async fn a_pod_waits_for_the_secret_of_its_environment(world: &World) {
    let scene = world.namespace("environment").await;
    let mut spec = proxy_spec();
    let from = |key: &str| json!({ "secretKeyRef": { "name": "auth", "key": key } });
    spec["containers"][0]["env"] = json!([
        { "name": "PROXY_USERNAME", "valueFrom": from("username") },
        { "name": "PROXY_PASSWORD", "valueFrom": from("password") },
    ]);
    scene.create_pod("p", spec).await;
    scene
        .pod_when("p", "the pod waits for its Secret", |pod| {
            (waiting(pod)?.0 == "CreateContainerConfigError").then_some(())
        })
        .await;
    scene
        .event_with("Failed", "secret \"auth\" not found")
        .await;
    scene
        .create_secret("auth", json!({ "username": "u", "password": "p" }))
        .await;
    let proxy = (scene.ready("p").await, PORT);
    assert_eq!(fetch(proxy, &world.echo, None).await.unwrap().0, 407);
    let wrong = Credentials::new("u", "x").header_value();
    assert_eq!(
        fetch(proxy, &world.echo, Some(&wrong)).await.unwrap().0,
        407
    );
    let right = Credentials::new("u", "p").header_value();
    assert_eq!(
        fetch(proxy, &world.echo, Some(&right)).await.unwrap().0,
        200
    );
}

async fn a_deleted_pod_drains_and_goes(world: &World) {
    let scene = world.namespace("drains").await;
    scene.create_pod("p", proxy_spec()).await;
    let address = scene.ready("p").await;
    let mut held = TcpStream::connect((address, PORT)).await.unwrap();
    scene.delete("p", None).await;
    eventually(
        "the proxy takes no new client",
        async || match TcpStream::connect((address, PORT)).await {
            Err(_) => Ok(()),
            Ok(_) => Err("it still listens".to_owned()),
        },
    )
    .await;
    assert_eq!(
        held.read(&mut [0; 1]).await.unwrap_or(0),
        0,
        "an idle client is let go"
    );
    scene.gone("p").await;
}

/// More pods drain at one time than the kubelet has steps under way; a new pod starts all the same.
pub(crate) async fn pods_that_drain_hold_up_no_other(world: &World) {
    const DRAINING: usize = 70;
    let scene = world.namespace("draining").await;
    let names: Vec<String> = (0..DRAINING).map(|n| format!("p-{n}")).collect();
    join_all(
        names
            .iter()
            .map(|name| scene.create_pod(name, proxy_spec())),
    )
    .await;
    let addresses = join_all(names.iter().map(|name| scene.ready(name))).await;
    let tunnels = join_all(addresses.into_iter().map(|address| tunnel(world, address))).await;
    join_all(names.iter().map(|name| scene.delete(name, None))).await;
    eventually("every pod drains", async || {
        let open = join_all(names.iter().map(|name| async {
            let pod = scene.pods().get(name).await;
            pod.is_ok_and(|pod| pod.metadata.deletion_timestamp.is_some())
        }));
        let n = open.await.into_iter().filter(|deleting| *deleting).count();
        (n == DRAINING)
            .then_some(())
            .ok_or(format!("{n} are being deleted"))
    })
    .await;
    scene.create_pod("next", proxy_spec()).await;
    scene.ready("next").await;
    drop(tunnels);
    join_all(names.iter().map(|name| scene.gone(name))).await;
}

/// An open tunnel to the echo server.
async fn tunnel(world: &World, proxy: IpAddr) -> TcpStream {
    let target = world.echo.address();
    let mut stream = TcpStream::connect((proxy, PORT)).await.unwrap();
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    stream
}

async fn a_pod_deleted_by_force_stops_serving(world: &World) {
    let scene = world.namespace("force").await;
    scene.create_pod("p", proxy_spec()).await;
    let address = scene.ready("p").await;
    scene.delete("p", Some(0)).await;
    eventually(
        "the proxy is gone with its pod",
        async || match TcpStream::connect((address, PORT)).await {
            Err(_) => Ok(()),
            Ok(_) => Err("it still listens".to_owned()),
        },
    )
    .await;
}

async fn a_pod_of_the_same_name_starts_afresh(world: &World) {
    let scene = world.namespace("again").await;
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        scene.create_pod("p", proxy_spec()).await;
        let address = scene.ready("p").await;
        assert!(seen.insert(address), "{address} was another pod's");
        scene.delete("p", Some(0)).await;
    }
    scene.gone("p").await;
}

async fn containers_that_end_complete_their_pod(world: &World) {
    let scene = world.namespace("ends").await;
    for (name, code, end) in [("good", "0", "Succeeded"), ("bad", "3", "Failed")] {
        let mut spec = plain_spec();
        spec["restartPolicy"] = json!("Never");
        let annotations = json!({ "devcluster/run-for": "50ms", "devcluster/exit-code": code });
        scene.create_annotated(name, spec, annotations).await;
        scene
            .pod_when(name, "the pod has ended", |pod| {
                (phase(pod) == end).then_some(())
            })
            .await;
    }
}

async fn annotations_impair_a_proxy(world: &World) {
    let scene = world.namespace("impaired").await;
    let ratio = "devcluster/proxy-error-ratio";
    scene
        .create_annotated("bad", proxy_spec(), json!({ ratio: "1.0" }))
        .await;
    scene
        .create_annotated("odd", proxy_spec(), json!({ ratio: "often" }))
        .await;
    let address = scene.ready("bad").await;
    assert_eq!(
        fetch((address, PORT), &world.echo, None).await.unwrap().0,
        502
    );
    scene
        .pod_when("odd", "the annotation is refused", |pod| {
            let (reason, message) = waiting(pod)?;
            (reason == "CreateContainerConfigError" && message.contains(ratio)).then_some(())
        })
        .await;
}

/// After the API server has been away.
pub(crate) async fn a_pod_runs(world: &World, namespace: &str) {
    let scene = world.namespace(namespace).await;
    scene.create_pod("p", proxy_spec()).await;
    let address = scene.ready("p").await;
    assert_eq!(
        fetch((address, PORT), &world.echo, None).await.unwrap().0,
        200
    );
}

async fn a_burst_of_pods_spreads_over_nodes_and_addresses(world: &World) {
    const N: usize = 40;
    let scene = world.namespace("burst").await;
    let names: Vec<String> = (0..N).map(|i| format!("p{i}")).collect();
    join_all(
        names
            .iter()
            .map(|name| scene.create_pod(name, plain_spec())),
    )
    .await;
    let addresses: BTreeSet<IpAddr> = join_all(names.iter().map(|name| scene.ready(name)))
        .await
        .into_iter()
        .collect();
    assert_eq!(addresses.len(), N);
    let pods = scene.pods().list(&ListParams::default()).await.unwrap();
    let nodes: BTreeSet<String> = pods
        .items
        .into_iter()
        .filter_map(|pod| pod.spec?.node_name)
        .collect();
    assert_eq!(nodes.into_iter().collect::<Vec<_>>(), world.kubelet.nodes());
}

async fn a_pod_that_fits_nowhere_says_so_and_runs_when_a_node_opens(world: &World) {
    let scene = world.namespace("nowhere").await;
    let cordon = async |closed: bool| {
        for name in world.kubelet.nodes() {
            let patch = Patch::Merge(json!({ "spec": { "unschedulable": closed } }));
            scene
                .nodes()
                .patch(name, &PatchParams::default(), &patch)
                .await
                .unwrap();
        }
    };
    let extra = json!({ "metadata": { "name": "outsider" } });
    let extra: Node = serde_json::from_value(extra).unwrap();
    scene
        .nodes()
        .create(&PostParams::default(), &extra)
        .await
        .unwrap();
    cordon(true).await;
    // The scheduler may not have seen all of that yet: a pod that it still places proves nothing.
    let mut made = 0;
    let name = loop {
        let name = format!("p{made}");
        scene.create_pod(&name, plain_spec()).await;
        let is_placed = scene
            .pod_when(&name, "the pod is placed or unschedulable", |pod| {
                let is_refused = condition(pod, "PodScheduled", "False");
                let is_placed = pod.spec.as_ref()?.node_name.is_some();
                (is_refused || is_placed).then_some(is_placed)
            })
            .await;
        if !is_placed {
            break name;
        }
        made += 1;
        assert!(made < 100, "closed nodes take pods for ever");
    };
    scene
        .event_with("FailedScheduling", "nodes are available")
        .await;
    cordon(false).await;
    scene.ready(&name).await;
}
