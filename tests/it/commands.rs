//! The subcommands that do one thing and end, as a user types them.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_client::core::params::{Patch, PatchParams, PostParams};
use kube_client::{Api, Client};
use proxy_operator::api;
use proxy_operator::definition::NAME;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::common::eventually::eventually;
use crate::common::manifests;
use crate::common::world::World;

const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the program to its end, with a text on stdin.
async fn run(args: &[&str], kubeconfig: Option<&Path>, stdin: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_proxy-operator"));
    command.args(args).env_remove("KUBECONFIG");
    if let Some(kubeconfig) = kubeconfig {
        command.env("PXO_KUBECONFIG", kubeconfig);
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the binary starts");
    let mut input = child.stdin.take().expect("a pipe");
    // It may end without having read all of it.
    drop(input.write_all(stdin.as_bytes()).await);
    drop(input);
    tokio::time::timeout(PATIENCE, child.wait_with_output())
        .await
        .unwrap_or_else(|_| panic!("{args:?} hangs"))
        .expect("the process is ours")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

async fn crd_apply(world: &World, more: &[&str]) -> Output {
    let args = [&["crd", "apply"], more].concat();
    run(&args, Some(&world.admin_kubeconfig()), "").await
}

fn definitions(client: &Client) -> Api<CustomResourceDefinition> {
    Api::all(client.clone())
}

/// Our definition with something done to it.
fn changed(change: impl FnOnce(&mut Value)) -> CustomResourceDefinition {
    let mut value = serde_json::to_value(api::crd()).expect("plain texts");
    change(&mut value);
    serde_json::from_value(value).expect("still a definition")
}

fn fields(definition: &mut Value) -> &mut serde_json::Map<String, Value> {
    let at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let fields = definition.pointer_mut(at).expect("the fields of spec");
    fields.as_object_mut().expect("fields by name")
}

async fn put(client: &Client, definition: &CustomResourceDefinition) {
    let definitions = definitions(client);
    let mut wanted = definition.clone();
    match definitions.get_opt(NAME).await.expect("an answer") {
        Some(present) => {
            wanted.metadata.resource_version = present.metadata.resource_version;
            let params = PostParams::default();
            let replaced = definitions.replace(NAME, &params, &wanted).await;
            drop(replaced.expect("accepted"));
        }
        None => {
            let created = definitions.create(&PostParams::default(), &wanted).await;
            drop(created.expect("accepted"));
        }
    }
}

/// O-08 on a server that has no definition yet.
async fn crd_apply_creates_extends_and_never_takes_away(world: &World) {
    let dry = crd_apply(world, &["--dry-run"]).await;
    assert!(dry.status.success(), "{}", err(&dry));
    let none = definitions(&world.admin)
        .get_opt(NAME)
        .await
        .expect("an answer");
    assert!(none.is_none(), "a dry run keeps nothing");

    let created = crd_apply(world, &["-o", "json"]).await;
    assert!(created.status.success(), "{}", err(&created));
    let said: Value = serde_json::from_str(&out(&created)).expect("JSON");
    assert_eq!(
        said,
        json!({ "name": NAME, "result": "created", "dryRun": false })
    );
    world.serves_proxies().await;
    let again = crd_apply(world, &[]).await;
    assert_eq!(
        out(&again),
        format!("customresourcedefinition/{NAME} unchanged\n")
    );

    // An older one, written by somebody else, is brought up to date.
    put(
        &world.admin,
        &changed(|older| drop(fields(older).remove("paused"))),
    )
    .await;
    let updated = crd_apply(world, &[]).await;
    assert_eq!(
        out(&updated),
        format!("customresourcedefinition/{NAME} updated\n"),
        "{}",
        err(&updated)
    );
    let stored = definitions(&world.admin)
        .get(NAME)
        .await
        .expect("it is there");
    let mut stored = serde_json::to_value(stored).expect("plain texts");
    assert!(fields(&mut stored).contains_key("paused"));

    // A newer one stays.
    let newer = changed(|newer| {
        fields(newer).insert("brandNew".to_owned(), json!({ "type": "string" }));
    });
    put(&world.admin, &newer).await;
    let refused = crd_apply(world, &[]).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        err(&refused).contains("v1alpha1 spec.brandNew"),
        "{}",
        err(&refused)
    );

    // A version with stored objects stays, and may go once nothing is stored in it.
    let two = changed(|two| {
        let versions = two["spec"]["versions"].as_array_mut().expect("versions");
        let mut other = versions[0].clone();
        other["name"] = json!("v1beta1");
        versions[0]["storage"] = json!(false);
        versions.push(other);
    });
    put(&world.admin, &two).await;
    eventually(PATIENCE, "objects are stored in v1beta1", || async {
        let stored = definitions(&world.admin)
            .get(NAME)
            .await
            .expect("it is there");
        let versions = stored.status.and_then(|status| status.stored_versions);
        match versions {
            Some(versions) if versions.iter().any(|one| one == "v1beta1") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let refused = crd_apply(world, &[]).await;
    assert_eq!(refused.status.code(), Some(1));
    for part in ["v1beta1", "storedVersions", "convert"] {
        assert!(err(&refused).contains(part), "{part} in {}", err(&refused));
    }
    let nothing_stored = json!({ "status": { "storedVersions": ["v1alpha1"] } });
    // Storage goes back first: the server never forgets the version it stores in.
    let back = changed(|back| {
        let versions = back["spec"]["versions"].as_array_mut().expect("versions");
        let mut other = versions[0].clone();
        other["name"] = json!("v1beta1");
        other["storage"] = json!(false);
        versions.push(other);
    });
    put(&world.admin, &back).await;
    definitions(&world.admin)
        .patch_status(
            NAME,
            &PatchParams::default(),
            &Patch::Merge(&nothing_stored),
        )
        .await
        .expect("an administrator may say so");
    let dropped = crd_apply(world, &[]).await;
    assert!(dropped.status.success(), "{}", err(&dropped));
}

/// O-08 from the operator's side.
async fn the_operator_does_not_start_on_an_older_definition(world: &World) {
    put(
        &world.admin,
        &changed(|older| drop(fields(older).remove("paused"))),
    )
    .await;
    let refused = run(&["run"], Some(&world.operator_kubeconfig()), "").await;
    assert_eq!(refused.status.code(), Some(1));
    let words = err(&refused);
    for part in ["v1alpha1 spec.paused", "proxy-operator crd apply"] {
        assert!(words.contains(part), "{part} in {words}");
    }
}

mod embedded {
    use crate::common::world::World;

    #[tokio::test(flavor = "multi_thread")]
    async fn o08_the_operator_does_not_start_on_an_older_definition() {
        let world = World::embedded().await;
        super::the_operator_does_not_start_on_an_older_definition(&world).await;
        world.shutdown().await;
    }
}

mod real {
    use crate::common::world::World;

    #[tokio::test(flavor = "multi_thread")]
    async fn o08_crd_apply_creates_extends_and_never_takes_away() {
        let Some(world) = World::bare().await else {
            return crate::common::skipped("no real API server");
        };
        super::crd_apply_creates_extends_and_never_takes_away(&world).await;
        world.shutdown().await;
    }
}

#[tokio::test]
async fn d10_crd_prints_the_definition_as_yaml_and_as_json() {
    let yaml = run(&["crd"], None, "").await;
    assert_eq!(out(&yaml), api::crd_yaml().expect("YAML"));
    let json = run(&["crd", "-o", "json"], None, "").await;
    let read: CustomResourceDefinition = serde_json::from_str(&out(&json)).expect("a definition");
    assert_eq!(read, api::crd());
}

#[tokio::test]
async fn d10_manifests_prints_what_the_base_holds() {
    let yaml = run(&["manifests"], None, "").await;
    assert!(yaml.status.success(), "{}", err(&yaml));
    let printed = manifests::objects(&out(&yaml));
    let json = run(
        &[
            "manifests",
            "-o",
            "json",
            "--image",
            "registry.example/op:7",
        ],
        None,
        "",
    )
    .await;
    let list: Value = serde_json::from_str(&out(&json)).expect("JSON");
    assert_eq!(list["items"].as_array().map(Vec::len), Some(printed.len()));
    assert!(out(&json).contains("\"registry.example/op:7\""));
    let Some(built) = crate::install::kustomize("manifests/base").await else {
        return;
    };
    assert_eq!(
        crate::install::by_name(&printed),
        crate::install::by_name(&built)
    );
}

const BAD: &str = "\
apiVersion: crawl.proxyoperator.dev/v1alpha1
kind: Proxy
metadata: { name: one, namespace: crawl }
spec: { mode: Managed }
---
apiVersion: v1
kind: ConfigMap
metadata: { name: other }
---
apiVersion: crawl.proxyoperator.dev/v1alpha1
kind: Proxy
metadata: { name: two }
spec: { provider: kubernetes, port: 70000, prot: 1 }
---
apiVersion: crawl.proxyoperator.dev/v1alpha1
kind: Proxy
metadata: { name: three }
spec: { provider: kubernetes }
";

#[tokio::test]
async fn d10_validate_says_what_a_server_would_refuse_and_where() {
    let bad = run(&["validate", "-f", "-"], None, BAD).await;
    assert_eq!(bad.status.code(), Some(1));
    let lines: Vec<_> = out(&bad).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 4, "{lines:#?}");
    assert!(lines[0].starts_with(
        "-: document 1: crawl/one: spec.provider is required when spec.mode is Managed"
    ));
    assert!(lines[1].starts_with("-: document 3: two: spec.port: Invalid value: 70000"));
    assert!(
        lines[2].contains("unknown field \"spec.prot\", did you mean port"),
        "{}",
        lines[2]
    );
    assert_eq!(lines[3], "-: document 4: three: valid");
    assert!(err(&bad).contains("2 of 3"), "{}", err(&bad));

    let json = run(&["validate", "-o", "json", "-f", "-"], None, BAD).await;
    let json: Value = serde_json::from_str(&out(&json)).expect("JSON");
    assert_eq!(json["proxies"][0]["faults"][0]["rule"], "V1");
    assert_eq!(json["proxies"][2]["valid"], true);

    let sample = manifests::in_project("manifests/samples/fleet.yaml");
    let sample = run(
        &["validate", "-f", sample.to_str().expect("UTF-8")],
        None,
        "",
    )
    .await;
    assert!(sample.status.success(), "{}{}", out(&sample), err(&sample));
    assert_eq!(out(&sample).matches(": valid\n").count(), 6);
}

#[tokio::test]
async fn d10_faults_of_a_command_line_and_of_a_file_have_their_codes_and_words() {
    for (args, stdin, code, parts) in [
        (&["validate"][..], "", 2, &["--filename"][..]),
        (&["crd", "aply"], "", 2, &["aply", "apply"]),
        (&["crd", "-o", "xml"], "", 2, &["xml", "text", "json"]),
        (&["manifests", "--image", "a b"], "", 2, &["--image", "a b"]),
        (
            &["validate", "-f", "/none.yaml"],
            "",
            1,
            &["/none.yaml", "No such file"],
        ),
        (
            &["validate", "-f", "-"],
            "a: [",
            1,
            &["- is no YAML", "line"],
        ),
        (&["validate", "-f", "-"], "kind: Pod", 1, &["no Proxy in -"]),
        (
            &["crd", "apply", "--kubeconfig", "/none"],
            "",
            1,
            &["/none"],
        ),
    ] {
        let output = run(args, None, stdin).await;
        let words = err(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {words}");
        for part in parts {
            assert!(words.contains(part), "{args:?} should name {part}: {words}");
        }
    }
}
