//! Renders README, `docs/` and the other pages as a site with search, by mdBook.

use crate::step::{StepOutcome, cargo, program, target_directory};
use std::collections::HashSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const VERSION: &str = "0.4.52";
/// The folder of the project into which mdBook is installed.
const INSTALLED: &str = ".clients/mdbook";
/// The page whose headings and links are the contents of the site.
const CONTENTS: &str = "docs/README.md";
const BOOK: &str = r#"[book]
title = "Todana"
language = "en"

# They would rename README, and read text between double braces.
[build]
use-default-preprocessors = false

[output.html]
no-section-label = true
"#;

/// Renders the site, and installs mdBook before if it is missing.
pub(crate) fn run() -> StepOutcome {
    if !has_mdbook() {
        println!("mdBook {VERSION} is compiled into {INSTALLED}");
        let install = ["install", "mdbook", "--version", VERSION, "--locked", "--root", INSTALLED];
        if !cargo(&install).succeeds() {
            return StepOutcome::Failed("mdBook cannot be installed".into());
        }
    }
    build()
}

/// Renders the site if mdBook is there.
pub(crate) fn test() -> StepOutcome {
    if has_mdbook() {
        build()
    } else {
        StepOutcome::Skipped("no mdBook; `cargo xtask site` installs it".into())
    }
}

fn mdbook() -> String {
    format!("{INSTALLED}/bin/mdbook")
}

fn has_mdbook() -> bool {
    Path::new(&mdbook()).is_file()
}

fn build() -> StepOutcome {
    match written() {
        Ok(folder) => {
            let book = folder.join("book");
            match program(mdbook(), &["build", &folder.display().to_string()]).run() {
                StepOutcome::Passed => checked(&book),
                outcome => outcome,
            }
        }
        Err(error) => StepOutcome::Failed(error.to_string()),
    }
}

/// Checks that the links between pages lead to files.
fn checked(book: &Path) -> StepOutcome {
    let pages = program("find", &[&book.display().to_string(), "-name", "*.html"]).output();
    let Ok(pages) = pages else { return StepOutcome::Failed("find: cannot be run".into()) };
    let mut broken = Vec::new();
    for page in String::from_utf8_lossy(&pages.stdout).lines() {
        // mdBook writes pages of its own, with links that depend on where they are shown.
        if ["404.html", "print.html", "toc.html", "index.html"].iter().any(|own| page.ends_with(own)) {
            continue;
        }
        let folder = Path::new(page).parent().expect("a file has a folder");
        let text = std::fs::read_to_string(page).unwrap_or_default();
        for link in text.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let path = link.split('#').next().unwrap_or_default();
            if !path.contains(':') && !path.is_empty() && !folder.join(path).exists() {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    println!("{}", book.join("index.html").display());
    if broken.is_empty() { StepOutcome::Passed } else { StepOutcome::Failed(broken.join(", ")) }
}

/// Writes the sources of the site to a folder: the pages at their paths in this repository, so that
/// their links stay right.
fn written() -> std::io::Result<PathBuf> {
    let folder = target_directory().join("site");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let listed =
        program("git", &["ls-files", "*.md", "*.svg", "*.png", "monitoring", "examples", "packaging"])
            .output()?;
    let listed = String::from_utf8_lossy(&listed.stdout);
    let pages: Vec<&str> = listed.lines().filter(|path| Path::new(path).exists()).collect();
    for page in &pages {
        let copy = folder.join("src").join(page);
        std::fs::create_dir_all(copy.parent().expect("a file has a folder"))?;
        std::fs::copy(page, copy)?;
    }
    std::fs::write(folder.join("book.toml"), BOOK)?;
    std::fs::write(folder.join("src/SUMMARY.md"), summary(&std::fs::read_to_string(CONTENTS)?, &pages))?;
    Ok(folder)
}

/// Returns the contents of the site: the headings and links of a page in `docs/`, and the pages
/// that it does not name.
fn summary(contents: &str, pages: &[&str]) -> String {
    let mut text = String::from("[Todana](README.md)\n\n[Contents](docs/README.md)\n");
    let mut named = HashSet::from(["README.md".to_string(), CONTENTS.to_string()]);
    for line in contents.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let _ = write!(text, "\n# {heading}\n\n");
        }
        for part in line.split('[').skip(1) {
            let Some((name, rest)) = part.split_once("](") else { continue };
            let Some((target, _)) = rest.split_once(')') else { continue };
            let path = target.strip_prefix("../").map_or_else(|| format!("docs/{target}"), str::to_string);
            if pages.contains(&path.as_str()) && named.insert(path.clone()) {
                let _ = writeln!(text, "- [{name}]({path})");
            }
        }
    }
    text.push_str("\n# Further pages\n\n");
    for page in pages.iter().filter(|page| page.ends_with(".md") && !named.contains(**page)) {
        let _ = writeln!(text, "- [{}]({page})", page.trim_end_matches(".md"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn site_has_all_pages_once() {
        let contents = "# Docs\n\n## Using\n| [One](one.md) | see [Two](../two.md) and [One](one.md#x) |\n";
        let pages = ["README.md", "docs/README.md", "docs/one.md", "docs/more.md", "two.md", "docs/a.svg"];
        let expected = "[Todana](README.md)\n\n[Contents](docs/README.md)\n\n# Using\n\n- [One](docs/one.md)\n- [Two](two.md)\n\n\
             # Further pages\n\n- [docs/more](docs/more.md)\n";
        assert_eq!(summary(contents, &pages), expected);
    }
}
