//! Checks that `unsafe` occurs only in the files that SAFETY.md lists, and that every crate forbids
//! or denies it elsewhere. The compiler then enforces each crate's attribute.

use std::fs;
use std::path::{Path, PathBuf};

/// The files that may contain unsafe code.
const RAW: [&str; 2] = ["engine/src/raw/", "bindings/c/src/raw.rs"];
/// The folder in which functions are exported to C, by an attribute that is marked unsafe.
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

/// Returns true if a line has the word `unsafe` outside of comments and strings.
fn has_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let code: String = code.split('"').step_by(2).collect();
    code.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|word| word == "unsafe")
}

#[test]
fn unsafe_code_is_confined() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let mut files = Vec::new();
    sources(root, &mut files);
    let (mut wrong, mut raw) = (Vec::new(), 0);
    for file in files {
        let name = file.strip_prefix(root).expect("the file lies below the root").display().to_string();
        let text = fs::read_to_string(&file).expect("a text");
        for (number, line) in text.lines().enumerate().filter(|(_, line)| has_unsafe(line)) {
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
            wrong.push(format!("{name}: does not forbid unsafe code"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(raw > 10, "the test found no unsafe code in {RAW:?}");
}

#[test]
fn unsafe_keyword_is_found_only_in_code() {
    assert!(has_unsafe("    let x = unsafe { *p };"));
    assert!(has_unsafe("pub unsafe fn f() {"));
    assert!(!has_unsafe("#![deny(unsafe_code)]"));
    assert!(!has_unsafe("// no unsafe here"));
    assert!(!has_unsafe(&format!("let text = {:?};", "unsafe")));
}
