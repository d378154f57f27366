//! Tests that the header and the library name the same functions. `cargo xtask test` runs the C
//! programs beside this file.

use std::collections::BTreeSet;

const HEADER: &str = include_str!("../include/todana.h");

/// Returns the functions that the header declares: the names before a parenthesis at the beginning
/// of a declaration.
fn declared() -> BTreeSet<&'static str> {
    let lines = HEADER.lines().filter(|line| !line.starts_with("//") && !line.starts_with("static"));
    let names = lines.filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        (name.starts_with("todana_") && !line.starts_with(' ')).then_some(name)
    });
    names.collect()
}

/// Returns the functions that the sources export.
fn exported() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    for file in std::fs::read_dir(folder).expect("the sources are there") {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("a text");
        for piece in text.split("pub extern \"C\" fn ").skip(1) {
            names.extend(piece.split('(').next().map(String::from));
        }
    }
    names
}

#[test]
fn header_declares_all_exported_functions() {
    let declared: BTreeSet<String> = declared().into_iter().map(String::from).collect();
    assert_eq!(declared, exported());
    assert!(declared.contains("todana_get") && declared.len() > 50, "{declared:?}");
}

#[test]
fn library_exports_all_declared_functions() {
    // The library is beside the test program, or one folder above it.
    let test = std::env::current_exe().expect("a test has a path");
    let places = test.ancestors().skip(1).take(2).map(|folder| folder.join("libtodana_c.so"));
    let Some(library) = places.filter_map(|place| std::fs::read(place).ok()).next() else {
        println!("skipped: this system has no libtodana_c.so");
        return;
    };
    for name in declared() {
        let symbol = format!("\0{name}\0");
        assert!(library.windows(symbol.len()).any(|window| window == symbol.as_bytes()), "{name}");
    }
}
