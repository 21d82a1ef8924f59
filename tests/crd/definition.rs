//! The definition itself: its files, its names, its bounds.

use std::path::{Path, PathBuf};

use proxy_operator::api;

/// For kustomize and for helm, which takes definitions from within the chart alone.
fn files() -> [PathBuf; 2] {
    ["crds", "charts/proxy-operator/crds"].map(|folder| {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(folder)
            .join("proxies.crawl.proxyoperator.dev.yaml")
    })
}

/// Set `BLESS=1` to write the files instead of comparing them.
#[test]
fn the_files_in_crds_and_in_the_chart_equal_the_code() {
    let text = api::crd_yaml().expect("a definition can be written");
    for file in files() {
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&file, &text).expect("the folder is there");
        }
        let present = std::fs::read_to_string(&file).expect("the file is there");
        assert!(
            present == text,
            "run this test with BLESS=1 to write {}",
            file.display()
        );
    }
}
