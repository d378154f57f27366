//! Counts words and widths of prose: comments, string literals, and Markdown.

use super::TidyFigure;
use super::tree::{SourceText, SourceTree};
use regex::Regex;

/// Lines of prose that belong together: a run of comment lines, a literal, a paragraph.
#[derive(Debug, PartialEq)]
struct ProseBlock {
    path: String,
    /// The number of each line and its text.
    lines: Vec<(usize, String)>,
}

pub(super) fn figures(tree: &SourceTree) -> Vec<TidyFigure> {
    let all = |sources: &[SourceText], blocks: fn(&SourceText) -> Vec<ProseBlock>| -> Vec<ProseBlock> {
        sources.iter().flat_map(blocks).collect()
    };
    let program_comments: Vec<SourceText> = tree.programs.iter().map(without_program_code).collect();
    let mut figures = Vec::new();
    for (group, blocks) in [
        ("sources", all(&tree.sources, comments)),
        ("tests", all(&tree.tests, comments)),
        ("programs", all(&program_comments, unmarked)),
        ("texts", all(&tree.sources, literals)),
        ("documents", all(&tree.documents, paragraphs)),
    ] {
        figures.extend(words(group, &blocks));
    }
    for (group, sources) in [("sources", &tree.sources), ("tests", &tree.tests)] {
        for limit in [100, 110] {
            let name = format!("{group}_comment_lines_over_{limit}");
            figures.push(TidyFigure::count(
                name,
                wide(sources, limit, |line| line.trim_start().starts_with("//")),
            ));
        }
    }
    figures
        .push(TidyFigure::count("programs_comment_lines_over_100", wide(&program_comments, 100, |_| true)));
    // Tables, links, and headings cannot be wrapped.
    let wraps =
        |line: &str| !line.trim_start().starts_with(['|', '#', '[', '!', '<']) && !line.contains("](");
    let prose: Vec<SourceText> = tree.documents.iter().map(without_code).collect();
    figures.push(TidyFigure::count("documents_lines_over_100", wide(&prose, 100, wraps)));
    let readme = tree.documents.iter().find(|document| document.path == "README.md");
    let readme_words = readme.map_or(0, |readme| readme.text.split_whitespace().count());
    figures.push(TidyFigure { name: "readme_words".into(), value: readme_words as f64, places: Vec::new() });
    figures
}

/// Counts the discouraged words of a group, per 1,000 words.
fn words(group: &str, blocks: &[ProseBlock]) -> Vec<TidyFigure> {
    let pattern = |pattern: &str| Regex::new(pattern).expect("a correct pattern");
    let word = pattern(r"[A-Za-z']+");
    let total = blocks.iter().map(|block| word.find_iter(&block.text()).count()).sum();
    let counted = [
        ("free_relatives", pattern(r"(?m)(?:[.;:!] |^)(?:Who|Whoever|What|Whatever)\b")),
        ("tell", pattern(r"(?i)\b(?:tell|tells|told|telling)\b")),
        ("behind", pattern(r"(?i)\bbehind\b")),
        ("so_many", pattern(r"(?i)\bso (?:many|much)\b")),
    ];
    let figure = |(name, pattern): &(&str, Regex)| {
        let mut places = Vec::new();
        for block in blocks {
            let text = block.text();
            for found in pattern.find_iter(&text) {
                let sentence = text[found.end()..].split('.').next().unwrap_or_default();
                let is_question = *name == "free_relatives" && sentence.contains('?');
                if !is_question {
                    places.push(block.place(found.end()));
                }
            }
        }
        TidyFigure::rate(format!("{group}_{name}"), places, total, 1000)
    };
    counted.iter().map(figure).collect()
}

impl ProseBlock {
    fn text(&self) -> String {
        let lines: Vec<&str> = self.lines.iter().map(|(_, line)| line.as_str()).collect();
        lines.join(" ")
    }

    /// Returns the place of an offset in the text.
    fn place(&self, offset: usize) -> String {
        let mut end = 0;
        let line = self.lines.iter().find(|(_, line)| {
            end += line.len() + 1;
            offset < end
        });
        line.map_or_else(|| self.path.clone(), |(number, line)| format!("{}:{number}: {line}", self.path))
    }
}

/// Collects runs of lines for which `strip` returns prose.
fn runs(source: &SourceText, strip: impl Fn(&str) -> Option<String>) -> Vec<ProseBlock> {
    let mut blocks: Vec<ProseBlock> = Vec::new();
    let mut is_open = false;
    for (number, line) in (source.first_line..).zip(source.text.lines()) {
        let Some(text) = strip(line) else {
            is_open = false;
            continue;
        };
        match blocks.last_mut().filter(|_| is_open) {
            Some(block) => block.lines.push((number, text)),
            None => blocks.push(ProseBlock { path: source.path.clone(), lines: vec![(number, text)] }),
        }
        is_open = true;
    }
    blocks
}

fn comments(source: &SourceText) -> Vec<ProseBlock> {
    runs(source, |line| {
        let text = line.trim_start().strip_prefix("//")?;
        let text = text.strip_prefix(['/', '!']).unwrap_or(text);
        Some(text.strip_prefix(' ').unwrap_or(text).to_string())
    })
}

/// Returns a program whose lines are empty, except for comments and Python's docstrings.
fn without_program_code(program: &SourceText) -> SourceText {
    let is_python = program.path.ends_with(".py") || program.path.ends_with(".pyi");
    // Is true in a docstring, and false in any other string of several lines.
    let mut open_string = None;
    let mut text = String::new();
    for line in program.text.lines() {
        let start = line.trim_start();
        let quotes = if is_python { line.matches("\"\"\"").count() } else { 0 };
        let marks: &[&str] = if is_python { &["# ", "\"\"\""] } else { &["# ", "// ", "-- ", "/** "] };
        let is_prose = open_string.unwrap_or(marks.iter().any(|mark| start.starts_with(mark)));
        if quotes % 2 == 1 {
            open_string = open_string.is_none().then_some(is_prose);
        }
        if is_prose {
            text.push_str(line);
        }
        text.push('\n');
    }
    SourceText { path: program.path.clone(), first_line: program.first_line, text }
}

/// Returns the paragraphs of comments, without the marks of comments.
fn unmarked(comments: &SourceText) -> Vec<ProseBlock> {
    runs(comments, |line| {
        let text = line.trim_start_matches(['#', '/', '-', '*', '"', ' ', '\t']);
        (!text.is_empty()).then(|| text.to_string())
    })
}

/// Returns the string literals of several words: errors, log lines, help texts.
fn literals(source: &SourceText) -> Vec<ProseBlock> {
    let token =
        Regex::new(r##"(?s)//[^\n]*|'(?:\\.|[^\\'\n])'|r#"(?P<raw>.*?)"#|"(?P<text>(?:[^"\\]|\\.)*)""##);
    let token = token.expect("a correct pattern");
    let mut blocks = Vec::new();
    for found in token.captures_iter(&source.text) {
        let Some(literal) = found.name("raw").or(found.name("text")) else { continue };
        if literal.as_str().contains(' ') {
            let before = source.text[..literal.start()].matches('\n').count();
            let numbers = source.first_line + before..;
            let text = literal.as_str().replace("\\n", "\n");
            let lines = numbers.zip(text.lines().map(String::from)).collect();
            blocks.push(ProseBlock { path: source.path.clone(), lines });
        }
    }
    blocks
}

/// Returns the paragraphs and list items of a document.
fn paragraphs(source: &SourceText) -> Vec<ProseBlock> {
    let mut blocks = Vec::new();
    for block in runs(&without_code(source), |line| (!line.trim().is_empty()).then(|| line.to_string())) {
        let mut item = ProseBlock { path: block.path.clone(), lines: Vec::new() };
        for (number, line) in block.lines {
            let text = line.trim_start().trim_start_matches(['#', '-', '*', '|', '>', ' ']);
            if text.len() < line.len() && !item.lines.is_empty() {
                blocks.push(std::mem::replace(
                    &mut item,
                    ProseBlock { path: block.path.clone(), lines: Vec::new() },
                ));
            }
            item.lines.push((number, text.to_string()));
        }
        blocks.push(item);
    }
    blocks
}

/// Returns a document whose code blocks are empty lines.
fn without_code(document: &SourceText) -> SourceText {
    let mut is_code = false;
    let mut text = String::new();
    for line in document.text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        if !is_code && !is_fence && !line.starts_with("    ") {
            text.push_str(line);
        }
        text.push('\n');
        is_code ^= is_fence;
    }
    SourceText { path: document.path.clone(), first_line: document.first_line, text }
}

/// Returns the places of those lines of more than `limit` columns that `counts` accepts.
fn wide(sources: &[SourceText], limit: usize, counts: impl Fn(&str) -> bool) -> Vec<String> {
    let mut places = Vec::new();
    for source in sources {
        for (number, line) in (source.first_line..).zip(source.text.lines()) {
            if line.chars().count() > limit && counts(line) {
                places.push(format!("{}:{number}: {}", source.path, line.trim()));
            }
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(path: &str, text: &str) -> SourceTree {
        let mut tree = SourceTree::default();
        tree.add(path, text.into(), true);
        tree
    }

    fn places(tree: &SourceTree, name: &str) -> Vec<String> {
        let figure = figures(tree).into_iter().find(|figure| figure.name == name);
        figure.expect("a figure of that name").places
    }

    #[test]
    fn free_relatives_are_counted_questions_are_not() {
        let code =
            "// Who waits is notified.\n// And: What for?\nf();\n/// Sends it. What is left\n/// stays.\n";
        let tree = tree("a.rs", code);
        assert_eq!(
            places(&tree, "sources_free_relatives"),
            ["a.rs:1: Who waits is notified.", "a.rs:4: Sends it. What is left"]
        );
        let figures = figures(&tree);
        assert_eq!(figures[0].value, (2000.0_f64 / 13.0 * 100.0).round() / 100.0);
    }

    #[test]
    fn literals_are_no_comments() {
        let code = "let a = '\"'; // told\nlet b = \"the client is told // so many\";\nlet c = r#\"so much \"x\" \"#;\n";
        let tree = tree("a.rs", code);
        assert_eq!(places(&tree, "texts_tell"), ["a.rs:2: the client is told // so many"]);
        assert_eq!(places(&tree, "texts_so_many").len(), 2);
        assert_eq!(places(&tree, "sources_tell"), Vec::<String>::new());
    }

    #[test]
    fn markdown_code_is_no_prose() {
        let text = "# Told\n\ntold\n\n    told\n\n```sh\ntold\n```\n\n- behind\n- What is it.\n";
        let tree = tree("docs/a.md", text);
        assert_eq!(places(&tree, "documents_tell"), ["docs/a.md:1: Told", "docs/a.md:3: told"]);
        assert_eq!(places(&tree, "documents_behind"), ["docs/a.md:11: behind"]);
        assert_eq!(places(&tree, "documents_free_relatives"), ["docs/a.md:12: What is it."]);
    }

    #[test]
    fn comments_and_docstrings_of_programs_are_counted() {
        let python = "\"\"\"Tells.\n\nWhat is\nbehind.\n\"\"\"\nTEXT = \"\"\"\ntold\n\"\"\"\n#: told\n# told\n-- told\n";
        let tree = tree("a.py", python);
        assert_eq!(places(&tree, "programs_tell"), ["a.py:1: Tells.", "a.py:10: told"]);
        assert_eq!(places(&tree, "programs_free_relatives"), ["a.py:3: What is"]);
        assert_eq!(places(&tree, "programs_behind"), ["a.py:4: behind."]);
    }

    #[test]
    fn comments_of_other_languages_are_counted() {
        let line = format!("  // {}\n", "x".repeat(100));
        let text = format!("-- told\n#include <told>\nf(); // told\n/** told */\n{line}f(\"{line}");
        let tree = tree("a.c", &text);
        assert_eq!(places(&tree, "programs_tell"), ["a.c:1: told", "a.c:4: told */"]);
        assert_eq!(places(&tree, "programs_comment_lines_over_100"), [format!("a.c:5: {}", line.trim())]);
    }

    #[test]
    fn wide_comment_lines_are_counted() {
        let line = format!("// {}\n", "x".repeat(100));
        let tree = tree("a.rs", &format!("{line}    {}f({}\n", line.trim(), "y".repeat(200)));
        assert_eq!(places(&tree, "sources_comment_lines_over_100").len(), 2);
        assert_eq!(places(&tree, "sources_comment_lines_over_110").len(), 1);
    }
}
