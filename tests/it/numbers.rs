//! Every scenario that the specification numbers has a test that its number leads.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Every file of Rust below a folder of the project.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("UTF-8");
                found.push((path, text));
            }
        }
    }
    found
}

/// The number that leads the name of a test in this line: `fn t16_…`, or a name in the list of a macro.
fn number_of(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let name = line.split_once("fn ").map_or(line, |(_, name)| name);
    let number = name.get(..3)?;
    let is_number = number.starts_with(['t', 'b'])
        && number[1..].bytes().all(|byte| byte.is_ascii_digit())
        && name[3..].starts_with('_');
    let ends = name.trim_end_matches(|c: char| c != ',' && c != ':' && c != '(');
    (is_number && (name.contains('(') || !ends.is_empty())).then_some(number)
}

#[test]
fn every_numbered_scenario_has_a_test_of_its_number() {
    let wanted = (1..=52)
        .chain(82..=88)
        .map(|number| format!("t{number:02}"))
        .chain((1..=11).chain([17]).map(|number| format!("b{number:02}")));
    let is_this = |path: &Path| path.ends_with("tests/it/numbers.rs");
    let all: Vec<_> = sources("src")
        .into_iter()
        .chain(sources("tests"))
        .filter(|(path, _)| !is_this(path))
        .collect();
    let there: BTreeSet<&str> = all
        .iter()
        .flat_map(|(_, text)| text.lines().filter_map(number_of))
        .collect();
    let missing: Vec<_> = wanted.filter(|number| !there.contains(&**number)).collect();
    assert!(missing.is_empty(), "no test leads with {missing:?}");
}

#[test]
fn the_number_of_a_test_is_read_from_its_name() {
    for (line, want) in [
        (
            "async fn t16_cp1_before_the_create_call(world: &World) {",
            Some("t16"),
        ),
        ("            t16_cp1_before_the_create_call,", Some("t16")),
        (
            "    b05_a_port_out_of_range_has_the_range_named:",
            Some("b05"),
        ),
        ("    fn b17_a_bad_file_is_refused() {", Some("b17")),
        ("// t16_ is told of elsewhere", None),
        ("let t16_ = 1;", None),
        ("fn table_of_cases() {", None),
    ] {
        assert_eq!(number_of(line), want, "{line}");
    }
}
