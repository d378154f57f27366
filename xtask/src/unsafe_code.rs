//! `unsafe` stands where SAFETY.md says that it does. The compiler holds each crate to its own
//! promise; this holds all crates to having made it.

use std::fs;
use std::path::{Path, PathBuf};

/// Where code may be unsafe.
const RAW: [&str; 2] = ["engine/src/raw/", "bindings/c/src/raw.rs"];
/// Here functions are given names that C knows, which is an attribute called unsafe.
const NAMED: &str = "bindings/c/src/";

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the repository").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if path.is_dir() && !path.is_symlink() && !name.starts_with('.') && name != "target" {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

/// Whether a line has the word, beside what is a comment or a string.
fn says_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let code: String = code.split('"').step_by(2).collect();
    code.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|word| word == "unsafe")
}

#[test]
fn unsafe_stands_only_where_it_may() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let mut files = Vec::new();
    sources(root, &mut files);
    let (mut wrong, mut raw) = (Vec::new(), 0);
    for file in files {
        let name = file.strip_prefix(root).expect("it lies below").display().to_string();
        let text = fs::read_to_string(&file).expect("a text");
        for (number, line) in text.lines().enumerate().filter(|(_, line)| says_unsafe(line)) {
            if RAW.iter().any(|place| name.starts_with(place)) {
                raw += 1;
            } else if !(name.starts_with(NAMED) && line == "#[unsafe(no_mangle)]") {
                wrong.push(format!("{name}:{}", number + 1));
            }
        }
        let is_root = ["/src/lib.rs", "/src/main.rs"].iter().any(|end| name.ends_with(end));
        // `forbid` cannot be overridden in a file.
        let denies =
            ["engine/", "bindings/c/src/", "bindings/python/"].iter().any(|place| name.starts_with(place));
        let promises = |line: &str| match line.trim() {
            "#![forbid(unsafe_code)]" => true,
            "#![deny(unsafe_code)]" => denies,
            _ => false,
        };
        if is_root && !text.lines().any(promises) {
            wrong.push(format!("{name} does not forbid it"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(raw > 10, "the test looks in the wrong place");
}

#[test]
fn the_word_is_found_in_code_alone() {
    assert!(says_unsafe("    let x = unsafe { *p };"));
    assert!(says_unsafe("pub unsafe fn f() {"));
    assert!(!says_unsafe("#![deny(unsafe_code)]"));
    assert!(!says_unsafe("// no unsafe here"));
    assert!(!says_unsafe(&format!("let text = {:?};", "unsafe")));
}
