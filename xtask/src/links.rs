//! Checks that the relative links in Markdown files point to existing files and headings.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns the Markdown files that git tracks or would add.
fn markdown_files() -> Vec<PathBuf> {
    let words = ["-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "*.md"];
    let output = Command::new("git").args(words).output().expect("git lists the files");
    let names = String::from_utf8(output.stdout).expect("file names are UTF-8");
    let files: Vec<PathBuf> = names.lines().map(|name| Path::new(ROOT).join(name)).collect();
    assert!(files.len() > 20, "git lists the files: {files:?}");
    files.into_iter().filter(|path| path.exists()).collect()
}

/// Returns the text outside of fenced blocks and code spans.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let outside = |line: &&str| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence && !line.starts_with("    ")
    };
    let lines: Vec<&str> = text.lines().filter(outside).collect();
    // Every second piece between backticks is code.
    lines.join("\n").split('`').step_by(2).collect::<Vec<_>>().join("code")
}

/// Returns the targets of links and images.
fn targets(text: &str) -> Vec<String> {
    let prose = prose(text);
    prose.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_string())).collect()
}

/// Returns the anchors that GitHub gives to the headings.
fn anchors(text: &str) -> HashSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn relative_links_point_to_files_and_headings() {
    let mut broken = Vec::new();
    for file in markdown_files() {
        let text = std::fs::read_to_string(&file).expect("git's files can be read");
        for target in targets(&text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let folder = file.parent().expect("a file has a folder");
            let linked = if path.is_empty() { file.clone() } else { folder.join(path) };
            let has_anchor =
                || std::fs::read_to_string(&linked).is_ok_and(|text| anchors(&text).contains(anchor));
            if !linked.exists() || (!anchor.is_empty() && !has_anchor()) {
                broken.push(format!("{}: {target}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

/// Returns the paths of this repository that a text names, such as
/// `server/src/transport/worker.rs`.
fn source_paths(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    let words = text.split(move |c| !is_part(c)).map(|word| word.trim_end_matches(['.', '/']));
    words.filter(|word| word.contains("/src/") && word.split("//").count() == 1)
}

#[test]
fn source_paths_in_documents_exist() {
    let mut missing = Vec::new();
    for name in ["ARCHITECTURE.md", "CONTRIBUTING.md", "SAFETY.md"] {
        let text = std::fs::read_to_string(Path::new(ROOT).join(name)).expect("the page can be read");
        let absent = source_paths(&text).filter(|path| !Path::new(ROOT).join(path).exists());
        missing.extend(absent.map(|path| format!("{name}: {path}")));
    }
    assert!(missing.is_empty(), "paths that do not exist:\n{}", missing.join("\n"));
}

/// Returns the words of a text that name a path in one of the top-level folders.
fn named_paths(text: &str) -> Vec<&str> {
    const FOLDERS: [&str; 15] = [
        "bench", "benches", "bindings", "cli", "client", "core", "docs", "engine", "examples", "fuzz",
        "protocol", "script", "server", "todana", "xtask",
    ];
    let is_of_a_path = |c: char| c.is_ascii_alphanumeric() || "/_.-{}*".contains(c);
    let words = text.split(|c| !is_of_a_path(c)).map(|word| word.trim_end_matches(['.', '-']));
    let named = |word: &&str| {
        // `core/src` names a path, `read/write` does not.
        let parts =
            word.split_once('/').filter(|(folder, rest)| FOLDERS.contains(folder) && !rest.is_empty());
        parts.is_some_and(|(_, rest)| rest.starts_with("src/") || rest.contains('.'))
            && !word.contains(['{', '*'])
    };
    words.filter(named).collect()
}

#[test]
fn paths_in_documents_exist() {
    let mut missing = Vec::new();
    for file in markdown_files().iter().filter(|file| !file.to_string_lossy().contains("benches/record/2")) {
        let text = std::fs::read_to_string(file).expect("git's files can be read");
        for path in named_paths(&text) {
            let folder = file.parent().expect("a file has a folder");
            if !Path::new(ROOT).join(path).exists() && !folder.join(path).exists() {
                missing.push(format!("{}: {path}", file.display()));
            }
        }
    }
    assert!(missing.is_empty(), "paths that do not exist:\n{}", missing.join("\n"));
}

#[test]
fn links_in_code_do_not_count() {
    let text = "[a](b.md#c) `[d](e)`\n\n    [f](g)\n```sh\n[h](i)\n```\n![j](k.svg)\n";
    assert_eq!(targets(text), ["b.md#c", "k.svg"]);
    assert!(anchors("## The `#map=off` word, *again*").contains("the-mapoff-word-again"));
}
