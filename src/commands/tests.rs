use serde_json::json;

use super::*;

#[test]
fn the_printed_manifests_name_the_image_that_was_asked_for() {
    let objects = objects("registry.example/proxy-operator:7").expect("valid YAML");
    assert_eq!(objects[0]["kind"], "CustomResourceDefinition");
    let deployment = objects.iter().find(|one| one["kind"] == "Deployment");
    let pod = &deployment.expect("a Deployment")["spec"]["template"]["spec"];
    let image = &pod["containers"][0]["image"];
    assert_eq!(*image, json!("registry.example/proxy-operator:7"));
}
