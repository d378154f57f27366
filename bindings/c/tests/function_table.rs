//! Tests that the functions of the three libraries in docs/tokyo-cabinet.md exist.

use std::fs;
use std::path::Path;

fn repository_text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the Rust sources in a folder.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            text.push_str(&sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).expect("a text"));
        }
    }
    text
}

/// Returns true if a word is in a text and no letter or digit follows it.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        !text[at + word.len()..].starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_')
    })
}

/// Returns the words in backticks in a cell of a table.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

fn is_type(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_uppercase())
}

#[test]
fn functions_beside_those_of_tokyo_cabinet_exist() {
    let page = repository_text("docs/tokyo-cabinet.md");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rust = sources(&root.join("todana/src")) + &sources(&root.join("core/src"));
    let python = repository_text("bindings/python/todana/__init__.pyi");
    let header = repository_text("bindings/c/include/todana.h");
    let mut checked = 0;
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, _, rust_cell, python_cell, c_cell, ..] = cells[..] else { panic!("{line}") };
        let mut missing = Vec::new();
        let mut expect = |name: &str, is_there: bool| {
            checked += 1;
            if !is_there {
                missing.push(name.to_owned());
            }
        };
        for name in names(rust_cell).flat_map(|name| name.split("::")) {
            let declared = |word: &str| has_word(&rust, &format!("{word} {name}"));
            let is_there = if is_type(name) {
                ["struct", "enum", "trait"].into_iter().any(declared)
            } else {
                declared("fn")
            };
            expect(name, is_there);
        }
        for name in names(python_cell).flat_map(|name| name.split('.')) {
            let word = if is_type(name) { "class" } else { "def" };
            expect(name, has_word(&python, &format!("{word} {name}")));
        }
        for name in names(c_cell) {
            expect(name, has_word(&header, name));
        }
        assert!(missing.is_empty(), "{missing:?} do not exist: {line}");
    }
    assert!(checked > 150, "{checked}");
}
