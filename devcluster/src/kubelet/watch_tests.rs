use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use http::{Request, Response, StatusCode};
use k8s_openapi::api::core::v1::ConfigMap;
use kube_client::{Client, client::Body};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tower::service_fn;

use super::*;

/// Answers a request: a status code, and lines.
type Answer = (u16, Vec<Value>);

/// A client that answers from a script, then never; it records the queries.
fn scripted(answers: impl IntoIterator<Item = Answer>) -> (Client, Arc<Mutex<Vec<String>>>) {
    let script = Arc::new(Mutex::new(answers.into_iter().collect::<VecDeque<_>>()));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&asked);
    let service = service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        recorded.lock().unwrap().push(query);
        let answer = script.lock().unwrap().pop_front();
        async move {
            let Some((status, lines)) = answer else {
                std::future::pending().await
            };
            let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let mut response = Response::new(Body::from(text.into_bytes()));
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            Ok::<_, Infallible>(response)
        }
    });
    (Client::new(service, "default"), asked)
}

fn map(name: &str, version: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": name, "namespace": "n", "resourceVersion": version,
        "managedFields": [{ "manager": "m" }],
    } })
}

fn list_of(version: &str, continued: &str, items: &[Value]) -> Answer {
    (
        200,
        vec![json!({
            "apiVersion": "v1", "kind": "ConfigMapList",
            "metadata": { "resourceVersion": version, "continue": continued },
            "items": items,
        })],
    )
}

fn event(type_: &str, object: &Value) -> Value {
    json!({ "type": type_, "object": object })
}

fn failure(code: u16) -> Value {
    json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code,
            "reason": "x", "message": "x", "metadata": {} })
}

/// Runs the script and tells the changes as text, with the queries.
async fn check(answers: Vec<Answer>, n_changes: usize) -> (Vec<String>, Vec<String>) {
    let n_answers = answers.len();
    let (client, asked) = scripted(answers);
    let (sender, mut receiver) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    tasks.spawn(follow(Api::<ConfigMap>::all(client), sender));
    let mut changes = Vec::new();
    for _ in 0..n_changes {
        changes.push(match receiver.recv().await.unwrap() {
            Change::Replaced(items) => format!("= {}", items.len()),
            Change::Applied(map) => {
                assert!(map.metadata.managed_fields.is_none());
                format!("+ {}", map.metadata.name.unwrap())
            }
            Change::Deleted(map) => format!("- {}", map.metadata.name.unwrap()),
        });
    }
    while asked.lock().unwrap().len() <= n_answers {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(receiver);
    tasks.join_next().await.unwrap().unwrap();
    let versions = asked
        .lock()
        .unwrap()
        .iter()
        .map(|query| {
            let find = |name: &str| {
                let pairs = form_urlencoded::parse(query.as_bytes());
                pairs
                    .into_iter()
                    .find(|(k, _)| k == name)
                    .map(|(_, v)| v.into_owned())
            };
            match (find("watch"), find("resourceVersion"), find("continue")) {
                (Some(_), version, _) => format!("watch {}", version.unwrap_or_default()),
                (None, _, Some(token)) => format!("list after {token}"),
                (None, ..) => "list".to_owned(),
            }
        })
        .collect();
    (changes, versions)
}

#[tokio::test(start_paused = true)]
async fn a_list_in_pages_is_followed_by_a_watch_that_resumes_where_it_was() {
    let bookmark = json!({ "apiVersion": "v1", "kind": "ConfigMap",
                           "metadata": { "resourceVersion": "9" } });
    let (changes, asked) = check(
        vec![
            list_of("4", "t", &[map("a", "1")]),
            list_of("5", "", &[map("b", "2")]),
            (
                200,
                vec![
                    event("ADDED", &map("c", "6")),
                    event("DELETED", &map("a", "7")),
                ],
            ),
            (
                200,
                vec![
                    event("MODIFIED", &map("c", "8")),
                    event("BOOKMARK", &bookmark),
                ],
            ),
        ],
        4,
    )
    .await;
    assert_eq!(changes, ["= 2", "+ c", "- a", "+ c"]);
    assert_eq!(
        asked,
        ["list", "list after t", "watch 5", "watch 7", "watch 9"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_history_leads_to_a_new_list() {
    let (changes, asked) = check(
        vec![
            list_of("5", "", &[map("a", "1")]),
            (200, vec![event("ERROR", &failure(410))]),
            list_of("9", "", &[]),
            (410, vec![failure(410)]),
            list_of("12", "", &[map("b", "11")]),
        ],
        3,
    )
    .await;
    assert_eq!(changes, ["= 1", "= 0", "= 1"]);
    assert_eq!(
        asked,
        ["list", "watch 5", "list", "watch 9", "list", "watch 12"]
    );
}

#[tokio::test(start_paused = true)]
async fn failures_are_retried_from_the_last_version() {
    let (changes, asked) = check(
        vec![
            (503, vec![failure(503)]),
            list_of("5", "", &[]),
            (500, vec![failure(500)]),
            (
                200,
                vec![
                    event("ADDED", &map("c", "6")),
                    event("ERROR", &failure(500)),
                ],
            ),
            (429, vec![failure(429)]),
        ],
        2,
    )
    .await;
    assert_eq!(changes, ["= 0", "+ c"]);
    assert_eq!(
        asked,
        ["list", "list", "watch 5", "watch 5", "watch 6", "watch 6"]
    );
}
