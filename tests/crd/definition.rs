//! The definition itself: its file, its names, its bounds.

use std::path::{Path, PathBuf};

use proxy_operator::api;

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crds/proxies.crawl.proxyoperator.dev.yaml")
}

/// Set `BLESS=1` to write the file instead of comparing it.
#[test]
fn the_file_in_crds_equals_the_code() {
    let text = api::crd_yaml().expect("a definition can be written");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(file(), &text).expect("the folder crds is there");
    }
    let present = std::fs::read_to_string(file()).expect("the file is there");
    assert!(
        present == text,
        "run this test with BLESS=1 to write {}",
        file().display()
    );
}
