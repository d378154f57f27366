//! `cargo xtask tidy`: counts what the house style counts, over all tracked files, and compares
//! each figure with its limit in `xtask/tidy.toml`.
//!
//! Invariant: a limit may fall and never rises. `--lower` writes those that can fall; to raise a
//! limit, edit the file and defend the edit in review.
//! Not here: the layout of code, which rustfmt and clippy check.

mod commits;
mod names;
mod prose;
mod tree;

use crate::step::StepOutcome;
use std::collections::BTreeMap;
use std::path::Path;
use tree::SourceTree;

const LIMITS: &str = "xtask/tidy.toml";
const HEADER: &str = "\
# The limits of `cargo xtask tidy`: none may rise, and `cargo xtask tidy --lower` lowers them.
# Rates are counted per 1,000 words. \"sources\" are the comments of product code, \"tests\" those of
# all other Rust files, \"programs\" those of files in other languages, \"texts\" the string literals
# of product code, \"documents\" all Markdown.

";

/// A counted property of the tree.
#[derive(Debug)]
struct TidyFigure {
    name: String,
    value: f64,
    /// The places that count, as `PATH:LINE: TEXT`.
    places: Vec<String>,
}

impl TidyFigure {
    fn count(name: impl Into<String>, places: Vec<String>) -> TidyFigure {
        TidyFigure { name: name.into(), value: places.len() as f64, places }
    }

    /// Counts the places per `per` of `total`.
    fn rate(name: impl Into<String>, places: Vec<String>, total: usize, per: usize) -> TidyFigure {
        let value = places.len() as f64 * per as f64 / total.max(1) as f64;
        TidyFigure { name: name.into(), value: (value * 100.0).round() / 100.0, places }
    }
}

/// The settings of `tidy.toml`.
struct TidyLimits {
    /// The commit after which each subject counts.
    base: String,
    limits: BTreeMap<String, f64>,
}

impl TidyLimits {
    fn parse(text: &str) -> Result<TidyLimits, String> {
        let table: toml::Table = text.parse().map_err(|error| format!("{LIMITS}: {error}"))?;
        let base = table.get("base").and_then(|base| base.as_str());
        let base = base.ok_or(format!("{LIMITS}: base is missing"))?.to_string();
        let number = |value: &toml::Value| value.as_float().or(value.as_integer().map(|whole| whole as f64));
        let numbers = table.iter().filter_map(|(name, value)| Some((name.clone(), number(value)?)));
        Ok(TidyLimits { base, limits: numbers.collect() })
    }

    /// Returns the limit of a figure. A figure without one must be zero.
    fn of(&self, figure: &TidyFigure) -> f64 {
        self.limits.get(&figure.name).copied().unwrap_or(0.0)
    }

    /// Returns the text of `tidy.toml` with each limit lowered to its figure.
    fn lowered(&self, figures: &[TidyFigure]) -> String {
        let mut text = format!("{HEADER}base = \"{}\"\n\n", self.base);
        for figure in figures {
            text.push_str(&format!("{} = {}\n", figure.name, figure.value.min(self.of(figure))));
        }
        text
    }
}

/// Counts all figures and fails if one exceeds its limit. Prints the places of figure `list`.
pub(crate) fn run(lower: bool, list: Option<&str>) -> StepOutcome {
    let root = Path::new(".");
    let Some(tree) = SourceTree::tracked(root) else {
        return StepOutcome::Skipped("git lists no files here".into());
    };
    let limits = match std::fs::read_to_string(LIMITS) {
        Ok(text) => match TidyLimits::parse(&text) {
            Ok(limits) => limits,
            Err(problem) => return StepOutcome::Failed(problem),
        },
        Err(error) => return StepOutcome::Failed(format!("{LIMITS}: {error}")),
    };
    let figures = count(&tree, root, &limits.base);
    if let Some(name) = list {
        let Some(figure) = figures.iter().find(|figure| figure.name == name) else {
            let names: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
            return StepOutcome::Failed(format!(
                "{name}: no such figure; the figures are {}",
                names.join(" ")
            ));
        };
        figure.places.iter().for_each(|place| println!("{place}"));
    }
    let exceeded = compare(&figures, &limits);
    if !exceeded.is_empty() {
        let names = exceeded.join(", ");
        return StepOutcome::Failed(format!(
            "{names}: above the limit; `cargo xtask tidy --list NAME` shows where"
        ));
    }
    if lower && let Err(error) = std::fs::write(LIMITS, limits.lowered(&figures)) {
        return StepOutcome::Failed(format!("{LIMITS}: {error}"));
    }
    StepOutcome::Passed
}

fn count(tree: &SourceTree, root: &Path, base: &str) -> Vec<TidyFigure> {
    let mut figures = prose::figures(tree);
    figures.extend(names::figures(tree));
    match commits::long_subjects(root, base) {
        Some(subjects) => figures.push(TidyFigure::count("commit_subjects_over_72", subjects)),
        None => println!("{base}: no such commit here; commit subjects are not counted"),
    }
    figures
}

/// Prints each figure beside its limit and returns the names of those that exceed theirs.
fn compare<'f>(figures: &'f [TidyFigure], limits: &TidyLimits) -> Vec<&'f str> {
    let mut exceeded = Vec::new();
    for figure in figures {
        let limit = limits.of(figure);
        let is_over = figure.value > limit;
        let mark = if is_over { "  ABOVE THE LIMIT" } else { "" };
        println!("{:36} {:8}  limit {limit}{mark}", figure.name, figure.value);
        if is_over {
            exceeded.push(figure.name.as_str());
        }
    }
    exceeded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(name: &str, value: f64) -> TidyFigure {
        TidyFigure { name: name.into(), value, places: Vec::new() }
    }

    fn limits() -> TidyLimits {
        TidyLimits::parse("base = \"abc\"\nfalls = 3.5\nrises = 2\n").expect("a table")
    }

    #[test]
    fn figure_above_its_limit_fails() {
        let figures = [figure("falls", 3.5), figure("rises", 2.01), figure("unlisted", 1.0)];
        assert_eq!(compare(&figures, &limits()), ["rises", "unlisted"]);
    }

    #[test]
    fn lowering_never_raises_a_limit() {
        let text = limits().lowered(&[figure("falls", 1.25), figure("rises", 9.0)]);
        let lowered = TidyLimits::parse(&text).expect("a table");
        assert_eq!(
            (lowered.base.as_str(), &lowered.limits["falls"], &lowered.limits["rises"]),
            ("abc", &1.25, &2.0)
        );
    }
}
