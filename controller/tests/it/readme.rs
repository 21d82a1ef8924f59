//! The table "requirement → test" of the README: each test is there, and as many as it says.

use std::path::{Path, PathBuf};

/// Names of the tests of a file.
fn tests(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let (mut names, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim_start) {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let line = line.strip_prefix("async ").unwrap_or(line);
        let name = line
            .strip_prefix("fn ")
            .and_then(|line| line.split_once('('));
        if let Some((name, _)) = name {
            names.extend(std::mem::take(&mut is_test).then(|| name.to_owned()));
        }
    }
    names
}

/// Where the tests of a module lie: beside its code if the path says `tests`, else among those of the
/// crate, or they are a module of their own.
fn files(module: &[&str]) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    match module {
        [path @ .., "tests"] => {
            let path = root.join("src").join(path.join("/"));
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            vec![
                path.with_extension("rs"),
                path.with_file_name(format!("{name}_tests.rs")),
                path.join("mod.rs"),
                path.join("tests.rs"),
            ]
        }
        path => {
            let path = path.join("/");
            let folders = ["tests/it", "tests", "src"];
            folders
                .map(|folder| root.join(folder).join(&path).with_extension("rs"))
                .into()
        }
    }
}

/// How many tests `path` names: a whole name, or one cut short by `…`.
fn found(path: &str) -> usize {
    let (start, is_cut) = match path.split_once('…') {
        Some((start, _)) => (start, true),
        None => (path, false),
    };
    let mut module: Vec<_> = start.split("::").collect();
    let start = module.pop().unwrap();
    let names: Vec<_> = files(&module).iter().flat_map(|file| tests(file)).collect();
    let fits = |name: &&String| name.starts_with(start) && (is_cut || *name == start);
    names.iter().filter(fits).count()
}

/// The path that stands for `path` after `last`, whose module `…::` repeats.
fn whole(path: &str, last: &str) -> String {
    let module = last.rsplit_once("::").map_or("", |(module, _)| module);
    match path.strip_prefix("…::") {
        Some(name) => format!("{module}::{name}"),
        None => path.to_owned(),
    }
}

#[test]
fn the_table_of_the_readme_names_tests_that_are_there_and_counts_them_right() {
    const WORDS: [&str; 9] = [
        "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    ];
    let readme = include_str!("../../README.md");
    let table = readme.split_once("| row | what | test |").unwrap().1;
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let (mut last, mut checked, mut faults) = (String::new(), 0, Vec::new());
    for row in rows {
        let parts: Vec<_> = row.rsplit_once(" | ").unwrap().1.split('`').collect();
        for pair in parts[1..].chunks(2) {
            let [path, after] = pair else { continue };
            // In both of these modules, or a file's name.
            if path.contains('{') || !path.contains("::") {
                continue;
            }
            last = whole(path, &last);
            let tests = found(&last);
            if tests == 0 {
                faults.push(format!("{last} is no test"));
            }
            let word = after
                .strip_prefix(" (")
                .and_then(|rest| rest.split_once(')'));
            let word = word.and_then(|(word, _)| WORDS.iter().position(|one| *one == word));
            if let Some(said) = word.map(|at| at + 2) {
                checked += 1;
                if said != tests {
                    faults.push(format!("{last} is {tests} tests, not {said}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(checked > 20, "{checked}");
}
