use serde_json::{Value, json};

use super::super::settings::{Project, Zone};
use super::*;
use crate::provider::conformance::{request, request_with_data};
use crate::provider::{Credentials, Redacted, SecretKey};

fn settings() -> Settings {
    let project = Project::new("my-project-1").expect("a project");
    Settings::new(project, Zone::new("europe-west1-b").expect("a zone"))
}

fn wire(request: &CreateRequest) -> Value {
    let insert = build(request, &settings()).expect("a VM");
    serde_json::to_value(&*insert.vm).expect("JSON")
}

fn with_machine(machine: Value) -> CreateRequest {
    CreateRequest {
        machine: serde_json::from_value(machine).expect("a machine"),
        ..request("u-1")
    }
}

fn metadata(vm: &Value, key: &str) -> Option<String> {
    let items = vm["metadata"]["items"].as_array()?;
    let item = items.iter().find(|item| item["key"] == key)?;
    item["value"].as_str().map(str::to_owned)
}

#[test]
fn p22_a_proxy_without_wishes_gets_the_providers_defaults() {
    let vm = wire(&request("u-1"));
    assert_eq!(vm["name"], "px-u-1");
    assert_eq!(
        vm["machineType"],
        "zones/europe-west1-b/machineTypes/e2-micro"
    );
    assert_eq!(
        vm["disks"],
        json!([{
            "boot": true, "autoDelete": true,
            "initializeParams": {
                "sourceImage": "projects/debian-cloud/global/images/family/debian-12",
                "diskSizeGb": "10",
            },
        }])
    );
    assert_eq!(
        vm["networkInterfaces"],
        json!([{
            "network": "global/networks/default",
            "accessConfigs": [{ "name": "External NAT", "networkTier": "PREMIUM" }],
        }])
    );
    for absent in ["scheduling", "serviceAccounts", "minCpuPlatform"] {
        assert!(vm[absent].is_null(), "{absent}: {vm}");
    }
    for (key, value) in [
        (META_NAMESPACE, "default"),
        (META_PROXY, "proxy-u-1"),
        (META_PORT, "3128"),
        (META_PROTOCOL, "http"),
    ] {
        assert_eq!(metadata(&vm, key).as_deref(), Some(value));
    }
}

#[test]
fn p22_every_field_of_the_machine_has_its_place() {
    let vm = wire(&with_machine(json!({
        "size": "n2-standard-2", "image": "my-image", "zone": "europe-west1-c", "diskSizeGiB": 20,
        "region": "europe-west1", "spot": true, "publicIP": true,
        "gce": {
            "network": "net", "subnetwork": "sub", "networkTags": ["proxy"], "networkTier": "STANDARD",
            "diskType": "pd-balanced", "serviceAccountEmail": "a@b", "scopes": ["s"],
            "minCpuPlatform": "Intel Ice Lake",
        },
    })));
    assert_eq!(
        vm["machineType"],
        "zones/europe-west1-c/machineTypes/n2-standard-2"
    );
    let params = &vm["disks"][0]["initializeParams"];
    assert_eq!(
        *params,
        json!({
            "sourceImage": "global/images/my-image", "diskSizeGb": "20",
            "diskType": "zones/europe-west1-c/diskTypes/pd-balanced",
        })
    );
    let interface = &vm["networkInterfaces"][0];
    assert_eq!(interface["network"], "global/networks/net");
    assert_eq!(
        interface["subnetwork"],
        "regions/europe-west1/subnetworks/sub"
    );
    assert_eq!(interface["accessConfigs"][0]["networkTier"], "STANDARD");
    assert_eq!(vm["tags"], json!({ "items": ["proxy"] }));
    assert_eq!(
        vm["scheduling"],
        json!({
            "provisioningModel": "SPOT", "instanceTerminationAction": "DELETE",
            "automaticRestart": false,
        })
    );
    assert_eq!(
        vm["serviceAccounts"],
        json!([{ "email": "a@b", "scopes": ["s"] }])
    );
    assert_eq!(vm["minCpuPlatform"], "Intel Ice Lake");
}

#[test]
fn p22_paths_stand_as_they_are_and_a_private_vm_has_no_public_address() {
    let vm = wire(&with_machine(json!({
        "image": "projects/p/global/images/i", "publicIP": false,
        "gce": { "network": "projects/host/global/networks/shared", "serviceAccountEmail": "a@b" },
    })));
    let source = &vm["disks"][0]["initializeParams"]["sourceImage"];
    assert_eq!(source, "projects/p/global/images/i");
    let interface = &vm["networkInterfaces"][0];
    assert_eq!(interface["network"], "projects/host/global/networks/shared");
    assert!(
        interface["accessConfigs"]
            .as_array()
            .is_none_or(Vec::is_empty)
    );
    assert_eq!(vm["serviceAccounts"][0]["scopes"][0], DEFAULT_SCOPE);
}

#[test]
fn p05_the_operators_labels_stand_over_the_users_tags() {
    let mut request = request("U-1");
    request
        .tags
        .insert(LABEL_UID.to_owned(), "forged".to_owned());
    let vm = wire(&request);
    assert_eq!(
        vm["labels"],
        json!({
            "team": "crawl", LABEL_MANAGED: MANAGED_BY, LABEL_CLUSTER: "cluster-1",
            LABEL_UID: "u-1", LABEL_HASH: request.spec_hash.tag(),
        })
    );
}

#[test]
fn p22_user_data_goes_to_cloud_init_or_is_a_startup_script() {
    for (data, key, other) in [
        (
            "#cloud-config\npackages: []\n",
            META_USER_DATA,
            META_STARTUP_SCRIPT,
        ),
        ("#!/bin/sh\necho\n", META_STARTUP_SCRIPT, META_USER_DATA),
        (" #cloud-config\n", META_STARTUP_SCRIPT, META_USER_DATA),
    ] {
        let vm = wire(&request_with_data("u-1", data));
        assert_eq!(metadata(&vm, key).as_deref(), Some(data));
        assert_eq!(metadata(&vm, other), None);
    }
}

#[test]
fn p22_credentials_reach_the_vm_as_metadata() {
    let source = |key: &str| SecretKey {
        name: "s".to_owned(),
        key: key.to_owned(),
    };
    let vm = wire(&CreateRequest {
        credentials: Some(Credentials {
            username: Redacted::new(b"me".to_vec()),
            password: Redacted::new(b"secret".to_vec()),
            username_source: source("username"),
            password_source: source("password"),
        }),
        ..request("u-1")
    });
    assert_eq!(metadata(&vm, META_USERNAME).as_deref(), Some("me"));
    assert_eq!(metadata(&vm, META_PASSWORD).as_deref(), Some("secret"));
}

#[test]
fn b10_what_a_vm_cannot_take_is_refused_here_with_size_and_limit() {
    let data = "x".repeat(300 * 1024);
    let many = (0..62).map(|n| (format!("l{n}"), String::new())).collect();
    for (request, parts) in [
        (
            request_with_data("u-1", &data),
            &["spec.cloudInit", "307200", "262144"][..],
        ),
        (
            CreateRequest {
                tags: many,
                ..request("u-1")
            },
            &["spec.tags", "66", "64"],
        ),
        (
            with_machine(json!({ "zone": "nowhere" })),
            &["spec.machine", "nowhere"],
        ),
        (
            with_machine(json!({ "region": "us-central1" })),
            &[
                "spec.machine.region",
                "us-central1",
                "europe-west1-b",
                "the provider's own",
            ],
        ),
    ] {
        let Err(error) = build(&request, &settings()) else {
            panic!("{parts:?}");
        };
        assert_eq!(error.reason(), Reason::InvalidInput);
        for part in parts {
            assert!(error.message().contains(part), "{error}");
        }
        assert!(!error.message().contains("xxx"), "{error}");
    }
}

#[test]
fn g06_filters_name_the_cluster_and_the_operator() {
    assert_eq!(
        cluster_filter("c-1"),
        r#"(labels.pxo-cluster = "c-1") (labels.pxo-managed = "proxy-operator")"#
    );
    assert_eq!(name_filter("px-1"), r#"name = "px-1""#);
}
