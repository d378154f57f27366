//! The tracked text of the repository, split into product code, other Rust code, programs in other
//! languages, and Markdown.

use regex::Regex;
use std::path::Path;
use std::process::Command;

/// A text and the line at which it begins.
#[derive(Debug)]
pub(super) struct SourceText {
    pub(super) path: String,
    pub(super) first_line: usize,
    pub(super) text: String,
}

#[derive(Debug, Default)]
pub(super) struct SourceTree {
    /// The code below `src` of each crate, without its tests.
    pub(super) sources: Vec<SourceText>,
    /// All other Rust code: tests, benches, examples, fuzz targets.
    pub(super) tests: Vec<SourceText>,
    /// Programs in other languages, manifests, and transcripts.
    pub(super) programs: Vec<SourceText>,
    pub(super) documents: Vec<SourceText>,
}

impl SourceTree {
    /// Reads the files that git tracks. Returns `None` outside of a git checkout.
    pub(super) fn tracked(root: &Path) -> Option<SourceTree> {
        let output = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output().ok()?;
        let paths = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
        let paths: Vec<&str> = paths.split('\0').filter(|path| !path.is_empty()).collect();
        let manifests = paths.iter().filter_map(|path| path.strip_suffix("Cargo.toml"));
        let crates: Vec<&str> = manifests.filter(|folder| !folder.contains("fuzz")).collect();
        let mut tree = SourceTree::default();
        for path in paths {
            // A file that is deleted but still tracked has no text.
            let Ok(text) = std::fs::read_to_string(root.join(path)) else { continue };
            let below_src = crates.iter().find_map(|folder| path.strip_prefix(folder)?.strip_prefix("src/"));
            tree.add(path, text, below_src.is_some_and(is_product));
        }
        Some(tree)
    }

    pub(super) fn add(&mut self, path: &str, mut text: String, is_product: bool) {
        let source = |text, first_line| SourceText { path: path.into(), first_line, text };
        if path.ends_with(".md") {
            self.documents.push(source(text, 1));
        } else if path.ends_with(".rs") && is_product {
            // The line break before the tests stays with them, so that lines are counted right.
            let tests = text.split_off(start_of_tests(&text));
            let first_line = 1 + text.matches('\n').count();
            self.sources.push(source(text, 1));
            self.tests.push(source(tests, first_line));
        } else if path.ends_with(".rs") {
            self.tests.push(source(text, 1));
        } else if is_program(path) {
            self.programs.push(source(text, 1));
        }
    }

    /// Returns all Rust code.
    pub(super) fn code(&self) -> impl Iterator<Item = &SourceText> {
        self.sources.iter().chain(&self.tests)
    }
}

fn is_product(below_src: &str) -> bool {
    let mut parts = below_src.trim_end_matches(".rs").split('/');
    !parts.any(|part| part == "tests")
}

/// Returns true for files whose comments are lines, or docstrings.
fn is_program(path: &str) -> bool {
    const EXTENSIONS: &str = "c go h java js lua php pl py pyi rb sh toml";
    let extension = Path::new(path).extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| EXTENSIONS.split(' ').any(|known| known == extension))
        || path.starts_with("tests/transcripts/")
        || path == ".ci/run"
}

/// Returns the offset at which the unit tests of a file begin, which end a file by convention.
fn start_of_tests(text: &str) -> usize {
    let tests = Regex::new(r"\n\s*#\[cfg\(test\)\]\s*\n\s*mod \w+ \{").expect("a correct pattern");
    tests.find(text).map_or(text.len(), |tests| tests.start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_tests_are_split_from_product_code() {
        let mut tree = SourceTree::default();
        tree.add("core/src/a.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n}\n".into(), is_product("a.rs"));
        tree.add("core/tests/b.rs", "fn g() {}\n".into(), false);
        tree.add("core/src/tests/c.rs", String::new(), is_product("tests/c.rs"));
        assert_eq!(tree.sources[0].text, "fn f() {}");
        let tests: Vec<_> = tree.tests.iter().map(|part| (part.path.as_str(), part.first_line)).collect();
        assert_eq!(tests, [("core/src/a.rs", 1), ("core/tests/b.rs", 1), ("core/src/tests/c.rs", 1)]);
    }

    #[test]
    fn programs_are_known_by_their_extensions() {
        let paths =
            ["a/b.py", "tests/transcripts/t.txt", "Cargo.toml", "Cargo.lock", "fuzz/seeds/pl", "x.txt"];
        assert_eq!(paths.map(is_program), [true, true, true, false, false, false]);
    }
}
