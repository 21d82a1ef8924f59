use serde_json::json;

use super::*;

fn spec(value: Value) -> ProxySpec {
    serde_json::from_value(value).expect("a readable spec")
}

fn canonical(value: Value) -> String {
    canonical_json(&input(&spec(value), None, None))
}

fn hash(value: Value) -> SpecHash {
    spec_hash(&spec(value), None, None)
}
