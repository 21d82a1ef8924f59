//! What the endpoints of a manager answer while it runs.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use controller::election::{ElectionOptions, Elector};
use controller::server::{
    Diagnostics, Endpoint as _, HttpServer, MetricsPage, PageRequest, ServerOptions, liveness,
    readiness,
};
use controller::{Action, Controller, ControllerOptions, Manager, ManagerHandle, ReconcileError};
use informer::source;
use informer::source::scripted::ListAnswer;
use k8s_openapi::api::core::v1::Secret;
use kube_core::Status;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::leases::Leases;
use crate::support::{Answer, Scene, Scripting, config, ms, object, pass, unique};

const PATIENCE: Duration = Duration::from_secs(30);
const CONTENT: &str = "hunter2";

/// A manager with one controller, an election and all endpoints.
struct Serving {
    address: SocketAddr,
    _scene: Scene<Secret>,
    name: String,
    handle: ManagerHandle,
    stop: CancellationToken,
    running: JoinSet<()>,
}

impl Serving {
    /// Over Secrets of these names; `holder` has the Lease before.
    fn start(names: &[&str], holder: Option<&str>, reconciler: Scripting) -> Self {
        let (scene, leases) = (Scene::<Secret>::silent(), Leases::default());
        // The first try fails, so that there is a time without the list.
        let status = Status::failure("not yet", "ServiceUnavailable").with_code(503);
        let failure = ListAnswer::Fail(vec![], source::Error::status(status));
        scene.script.list(failure);
        let secrets = names.iter().map(|name| {
            let mut secret: Secret = object(name, 1);
            let content = [("password".to_owned(), CONTENT.to_owned())];
            secret.string_data = Some(content.into());
            secret
        });
        let list = ListAnswer::all(secrets.collect::<Vec<_>>(), "1000");
        scene.script.list(list);
        if let Some(holder) = holder {
            leases.hold(holder);
        }
        let name = unique("served");
        let controller = Controller::builder(name.clone(), reconciler)
            .for_object(&scene.informer)
            .options(ControllerOptions {
                workers: 2,
                stuck_after: Some(Duration::from_millis(300)),
                ..ControllerOptions::default()
            })
            .build()
            .unwrap();
        let elector = Elector::new(leases.client(), ElectionOptions::new("ns", &name)).unwrap();
        let manager = Manager::default()
            .with_election(elector)
            .add_informer(&scene.informer)
            .add_controller(controller);
        let directory = manager.directory();
        let server = HttpServer::bind(ServerOptions::loopback(0))
            .unwrap()
            .route("/healthz", liveness(&directory))
            .route("/readyz", readiness(&directory))
            .route(
                "/metrics",
                MetricsPage::of(&directory).and(|| "own_total 7\n".to_owned()),
            )
            .route("/debug/state", Diagnostics::of(&directory));
        let address = server.address();
        let manager = manager.add_server(server);
        let (handle, stop) = (manager.handle(), CancellationToken::new());
        let mut running = JoinSet::new();
        let token = stop.clone();
        running.spawn(async move { manager.run(token).await.unwrap() });
        Self {
            address,
            _scene: scene,
            name,
            handle,
            stop,
            running,
        }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    /// Asks until the answer `fits`.
    async fn until(&self, path: &str, fits: impl Fn(u16, &str) -> bool) -> String {
        let asked = async {
            loop {
                let (status, body) = self.get(path).await;
                if fits(status, &body) {
                    return body;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let answer = tokio::time::timeout(PATIENCE, asked).await;
        answer.unwrap_or_else(|_| panic!("{path} never answers as it should"))
    }

    async fn end(mut self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.running.join_next()).await;
        ended.expect("it ends").unwrap().unwrap();
    }
}

/// Runs of `slow-…` end when they are told to, of `bad-…` with an error, of `never-…` with one that is not
/// retried, of others well; those of `wrote-…` write what the cache does not show.
fn reconciler(release: &CancellationToken) -> Scripting {
    let release = release.clone();
    Scripting::new(move |key, ctx, _| {
        let release = release.clone();
        async move {
            if key.name().starts_with("slow-") {
                tokio::select! {
                    () = ctx.cancelled() => {}
                    () = release.cancelled() => {}
                }
            }
            if key.name().starts_with("bad-") {
                return Err(ReconcileError::retry(std::io::Error::other("no luck")));
            }
            if key.name().starts_with("never-") {
                return Err(ReconcileError::terminal("no way"));
            }
            if key.name().starts_with("wrote-") {
                ctx.wrote(&object::<Secret>(key.name(), 5000));
            }
            Ok(Action::Done)
        }
    })
}

/// What a controller's state says of a key that fails; null if it does not.
fn failing<'a>(controller: &'a Value, name: &str) -> &'a Value {
    let key = format!("ns/{name}");
    let failing = controller["failing"].as_array();
    let found = failing.and_then(|all| all.iter().find(|one| one["key"] == *key));
    found.unwrap_or(&Value::Null)
}

#[tokio::test(flavor = "multi_thread")]
async fn c11_c35_probes_follow_what_the_manager_does() {
    let release = CancellationToken::new();
    let serving = Serving::start(&["slow-1"], None, reconciler(&release));
    // No list yet.
    serving
        .until("/readyz", |status, body| {
            status == 500 && body.contains("[-]informers failed: reason withheld")
        })
        .await;
    assert_eq!(serving.get("/healthz").await, (200, "ok".to_owned()));
    serving
        .until("/readyz", |status, body| status == 200 && body == "ok")
        .await;
    assert_eq!(serving.get("/readyz/controllers").await.0, 200);
    // A run that takes longer than 0.3 s.
    let body = serving.until("/healthz", |status, _| status == 500).await;
    assert!(body.contains("[-]runs failed: reason withheld"), "{body}");
    assert!(!body.contains("slow-1"), "{body}");
    assert_eq!(serving.get("/healthz?exclude=runs").await.0, 200);
    release.cancel();
    serving.until("/healthz", |status, _| status == 200).await;
    // From the stop on it takes no more, and says so as long as it serves.
    let gate = CancellationToken::new();
    let held = gate.clone();
    serving
        .handle
        .add_task("slow to end", move |stop| async move {
            stop.cancelled().await;
            held.cancelled().await;
            Ok::<(), std::convert::Infallible>(())
        })
        .unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    serving.stop.cancel();
    let body = serving.until("/readyz", |status, _| status == 500).await;
    assert!(body.contains("[-]running failed"), "{body}");
    gate.cancel();
    serving.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_ready_without_its_controllers() {
    let reconciler = reconciler(&CancellationToken::new());
    let serving = Serving::start(&["a"], Some("somebody"), reconciler);
    serving.until("/readyz", |status, _| status == 200).await;
    let state: Value = serde_json::from_str(&serving.get("/debug/state").await.1).unwrap();
    assert_eq!(state["election"]["isLeader"], false);
    assert_eq!(state["controllers"][0]["synced"], false);
    serving.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c36_the_metrics_page_has_controllers_queues_election_and_process() {
    let reconciler = reconciler(&CancellationToken::new());
    let serving = Serving::start(&["a", "b"], None, reconciler);
    let name = &serving.name;
    let success = format!(
        "controller_runtime_reconcile_total{{controller=\"{name}\",result=\"success\"}} 2\n"
    );
    let body = serving
        .until("/metrics", |_, body| body.contains(&success))
        .await;
    for part in [
        format!("workqueue_adds_total{{name=\"{name}\",controller=\"{name}\"}} 2\n"),
        format!("leader_election_master_status{{name=\"{name}\"}} 1\n"),
        "process_resident_memory_bytes ".to_owned(),
        "own_total 7\n".to_owned(),
    ] {
        assert!(body.contains(&part), "{part} in\n{body}");
    }
    // A scraper takes a page only if each family stands in it once.
    let mut families: Vec<_> = body
        .lines()
        .filter(|line| line.starts_with("# TYPE "))
        .collect();
    let all = families.len();
    families.sort_unstable();
    families.dedup();
    assert_eq!(families.len(), all);
    serving.end().await;
}

#[tokio::test(start_paused = true)]
async fn c07_of_controllers_that_share_a_name_each_is_seen() {
    let scene = Scene::listing(vec![config("a", 1)]);
    let name = unique("shared");
    let build = |reconciler, workers| {
        Controller::builder(name.clone(), reconciler)
            .for_object(&scene.informer)
            .options(ControllerOptions {
                workers,
                stuck_after: Some(ms(1_000)),
                unique_name: false,
                ..ControllerOptions::default()
            })
            .build()
            .unwrap()
    };
    let stuck = build(Scripting::new(|_, _, _| pending::<Answer>()), 2);
    let well = build(Scripting::answering(|_, _| Ok(Action::Done)), 3);
    let manager = Manager::default()
        .add_informer(&scene.informer)
        .add_controller(stuck)
        .add_controller(well);
    let directory = manager.directory();
    let mut running = JoinSet::new();
    running.spawn(manager.run(CancellationToken::new()));
    pass(ms(2_000)).await;
    let request = PageRequest {
        subpath: "",
        query: "",
    };
    assert_eq!(liveness(&directory).answer(&request).status.as_u16(), 500);
    let page = MetricsPage::of(&directory).answer(&request).body;
    for (series, value) in [
        ("max_concurrent_reconciles", 5),
        ("active_workers", 1),
        ("reconcile_time_seconds_count", 1),
    ] {
        let series = format!("controller_runtime_{series}{{controller=\"{name}\"}}");
        let lines: Vec<_> = page.lines().filter(|l| l.starts_with(&series)).collect();
        assert_eq!(lines, [format!("{series} {value}")], "one line of both");
    }
    let state = Diagnostics::of(&directory).state();
    let shown = state["controllers"].as_array().unwrap();
    let workers: Vec<_> = shown.iter().map(|one| &one["workers"]).collect();
    assert_eq!(workers, [2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_diagnostics_show_caches_queues_running_and_failing_keys_and_no_content() {
    let release = CancellationToken::new();
    let names = ["slow-1", "bad-1", "never-1", "good-1", "wrote-1"];
    let serving = Serving::start(&names, None, reconciler(&release));
    let body = serving
        .until("/debug/state", |_, body| {
            let state: Value = serde_json::from_str(body).unwrap();
            let controller = &state["controllers"][0];
            failing(controller, "bad-1")["attempts"].as_u64() > Some(2)
                && !failing(controller, "never-1").is_null()
                && controller["results"]["success"] == 2
                && controller["running"]
                    .as_array()
                    .is_some_and(|runs| !runs.is_empty())
        })
        .await;
    assert!(
        !body.contains(CONTENT) && !body.contains("password"),
        "{body}"
    );
    let state: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(state["phase"], "running");
    assert_eq!(state["election"]["isLeader"], true);
    assert_eq!(state["election"]["lease"], serving.name);
    let informer = &state["informers"][0];
    assert_eq!(
        (&informer["kind"], &informer["objects"]),
        (&"Secret".into(), &5.into())
    );
    assert_eq!(informer["resourceVersion"], "1000");
    assert_eq!(informer["lag"][&serving.name], 0);
    let controller = &state["controllers"][0];
    assert_eq!(controller["name"], serving.name);
    assert!(
        controller["running"]
            .as_array()
            .unwrap()
            .iter()
            .any(|run| { run["key"] == "ns/slow-1" && run["ageSeconds"].as_f64().unwrap() >= 0.0 })
    );
    let bad = failing(controller, "bad-1");
    assert!(bad["nextDueSeconds"].is_number(), "{bad}");
    assert_eq!(
        (&bad["terminal"], &bad["lastError"]),
        (&false.into(), &"no luck".into())
    );
    let never = failing(controller, "never-1");
    assert!(never["nextDueSeconds"].is_null(), "{never}");
    assert_eq!(
        (&never["terminal"], &never["lastError"]),
        (&true.into(), &"no way".into())
    );
    assert_eq!(controller["queue"]["failing"], 1);
    assert_eq!(controller["unseenWrites"], 1);
    let held = &controller["heldBack"];
    assert_eq!(held.as_array().unwrap().len(), 1, "{held}");
    let held = &held[0];
    assert_eq!(
        (&held["key"], &held["cache"]),
        (&"ns/wrote-1".into(), &"Secret".into())
    );
    assert!(held["waitedSeconds"].as_f64().unwrap() < 10.0, "{held}");
    serving.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_never_ends_is_shown_with_its_age_until_the_grace_time_is_over() {
    let log = Arc::new(Mutex::new(0));
    let count = Arc::clone(&log);
    let reconciler = Scripting::new(move |_, _, _| {
        *count.lock().unwrap() += 1;
        pending::<Answer>()
    });
    let serving = Serving::start(&["stuck"], None, reconciler);
    serving
        .until("/debug/state", |_, body| {
            let state: Value = serde_json::from_str(body).unwrap();
            state["controllers"][0]["running"][0]["ageSeconds"].as_f64() > Some(0.3)
        })
        .await;
    assert_eq!(*log.lock().unwrap(), 1);
    // Not waited for: the manager goes with the test.
}
