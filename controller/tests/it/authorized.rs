//! Who may read the endpoints, as a real API server and the embedded one decide it.

use controller::metrics;
use controller::server::{HttpServer, ServerOptions, TokenAuth};
use controller::upsert::named;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use kube_client::api::PostParams;
use kube_client::{Api, Client, ResourceExt};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// A service account of that name, and a token of it for these audiences.
async fn token(client: &Client, name: &str, audiences: &[&str]) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    if accounts.get_opt(name).await.unwrap().is_none() {
        let account: ServiceAccount = named("default", name);
        accounts
            .create(&PostParams::default(), &account)
            .await
            .unwrap();
    }
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: audiences.iter().map(|&one| one.to_owned()).collect(),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let given = accounts
        .create_token_request(name, &PostParams::default(), &request)
        .await
        .unwrap();
    given.status.unwrap().token
}

/// Lets the service account get `/metrics`.
async fn allow(client: &Client, account: &str) {
    let role = ClusterRole {
        rules: Some(vec![PolicyRule {
            non_resource_urls: Some(vec!["/metrics".to_owned()]),
            verbs: vec!["get".to_owned()],
            ..PolicyRule::default()
        }]),
        ..named("", "metrics-reader")
    };
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let role = roles.create(&PostParams::default(), &role).await.unwrap();
    let binding = ClusterRoleBinding {
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "ClusterRole".to_owned(),
            name: role.name_any(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: account.to_owned(),
            namespace: Some("default".to_owned()),
            ..Subject::default()
        }]),
        ..named("", "metrics-reader")
    };
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    bindings
        .create(&PostParams::default(), &binding)
        .await
        .unwrap();
}

/// A server whose readers `auth` decides about, and the task that runs it.
fn serve(
    auth: TokenAuth,
    stop: &CancellationToken,
    running: &mut JoinSet<()>,
) -> std::net::SocketAddr {
    let page = || metrics::render(&[]) + "own_total 7\n";
    let server = HttpServer::bind(ServerOptions::loopback(0))
        .unwrap()
        .with_auth(auth)
        .route(
            "/metrics",
            controller::server::MetricsPage::of(&Default::default()).and(page),
        );
    let (address, stop) = (server.address(), stop.clone());
    running.spawn(async move { server.run(stop).await.unwrap() });
    address
}

async fn status(address: std::net::SocketAddr, path: &str, token: Option<&str>) -> u16 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let bearer = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
    let bearer = bearer.unwrap_or_default();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{bearer}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(
        answer.contains("own_total 7"),
        answer.starts_with("HTTP/1.1 200"),
        "{answer}"
    );
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

/// What [`TokenAuth`] makes of real tokens and real roles.
async fn only_those_read_whom_roles_allow(client: Client) {
    let reader = token(&client, "reader", &[]).await;
    let guest = token(&client, "guest", &[]).await;
    let elsewhere = token(&client, "reader", &["https://elsewhere.example"]).await;
    allow(&client, "reader").await;
    let forged = format!("{}x", &reader[..reader.len() - 6]);

    let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
    let by_roles = serve(TokenAuth::new(client.clone()), &stop, &mut running);
    let known = TokenAuth::new(client.clone()).without_authorization();
    let known = serve(known, &stop, &mut running);
    let meant = vec!["https://elsewhere.example".to_owned()];
    let meant = serve(TokenAuth::new(client).audiences(meant), &stop, &mut running);
    // A real server takes a moment to know a new role.
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while status(by_roles, "/metrics", Some(&reader)).await != 200 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the role has no effect"
        );
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    for (address, path, token, expected) in [
        (by_roles, "/metrics", None, 401),
        (by_roles, "/metrics", Some("nonsense"), 401),
        (by_roles, "/metrics", Some(forged.as_str()), 401),
        (by_roles, "/metrics", Some(elsewhere.as_str()), 401),
        (by_roles, "/metrics", Some(guest.as_str()), 403),
        (by_roles, "/metrics", Some(reader.as_str()), 200),
        (by_roles, "/other", Some(reader.as_str()), 403),
        (known, "/metrics", Some(guest.as_str()), 200),
        (known, "/metrics", Some(forged.as_str()), 401),
        (meant, "/metrics", Some(elsewhere.as_str()), 200),
        (meant, "/metrics", Some(reader.as_str()), 401),
    ] {
        let found = status(address, path, token).await;
        assert_eq!(found, expected, "{path} with {token:?}");
    }
    stop.cancel();
    running.join_all().await;
}

#[tokio::test]
async fn c36_embedded_tokens_and_roles_decide_who_reads_the_metrics() {
    let cluster = devcluster::DevCluster::builder()
        .authorization(devcluster::Authorization::Rbac)
        .start()
        .await
        .unwrap();
    only_those_read_whom_roles_allow(cluster.client()).await;
    cluster.shutdown().await;
}

#[tokio::test]
async fn c36_real_tokens_and_roles_decide_who_reads_the_metrics() {
    let Some((_cluster, client)) = crate::servers::real().await else {
        return;
    };
    only_those_read_whom_roles_allow(client).await;
}
