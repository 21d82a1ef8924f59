//! The table of requirements in the README: every one is there, and every test it names is.

use std::collections::BTreeSet;
use std::path::Path;

/// Ranges of requirement numbers by letter, as the specification has them.
const REQUIRED: [(char, &[(u32, u32)]); 5] = [
    (
        'I',
        &[
            (1, 10),
            (20, 27),
            (30, 45),
            (50, 59),
            (60, 72),
            (80, 94),
            (100, 108),
        ],
    ),
    ('R', &[(1, 18)]),
    ('D', &[(1, 10)]),
    ('S', &[(1, 6)]),
    ('H', &[(1, 15)]),
];

/// The rows of the table: what is required, and what holds it.
fn rows(readme: &str) -> Vec<(&str, &str)> {
    let table = readme.split("| requirement | test |").nth(1);
    let table = table.expect("the README has a table of requirements");
    table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let mut cells = line.trim_matches('|').splitn(2, '|');
            let mut cell = || cells.next().expect("two cells").trim();
            (cell(), cell())
        })
        .collect()
}

/// All sources of the crate and its tests.
fn sources(folder: &Path, into: &mut String) {
    for entry in folder.read_dir().expect("a readable folder") {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push_str(&std::fs::read_to_string(&path).expect("a readable source"));
        }
    }
}

#[test]
fn every_requirement_stands_in_the_readme_with_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).expect("a readable README");
    let mut code = String::new();
    sources(&root.join("src"), &mut code);
    sources(&root.join("tests"), &mut code);
    let mut listed = BTreeSet::new();
    for (required, held_by) in rows(&readme) {
        for id in required.split(", ") {
            assert!(listed.insert(id), "{id} stands there twice");
        }
        let mut tests = 0;
        for name in held_by.split('`').skip(1).step_by(2) {
            if name.contains(['/', '.', ' ']) {
                assert!(
                    root.join(name).exists() || root.join("..").join(name).exists(),
                    "{required}: no file {name}"
                );
            } else {
                assert!(
                    code.contains(&format!("fn {name}(")),
                    "{required}: no test {name}"
                );
            }
            tests += 1;
        }
        assert!(
            tests > 0 || held_by.contains("left out"),
            "{required}: {held_by}"
        );
    }
    let mut all = BTreeSet::new();
    for (letter, ranges) in REQUIRED {
        for (first, last) in ranges {
            all.extend((*first..=*last).map(|number| format!("{letter}{number}")));
        }
    }
    let listed: BTreeSet<_> = listed.into_iter().map(str::to_owned).collect();
    assert_eq!(listed, all);
}
