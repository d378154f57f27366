//! The lines of the report.

use crate::amount::amount;
use std::fmt::Write as _;

/// The importance of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FindingLevel {
    /// Nothing to do.
    Ok,
    /// Something to consider.
    Warning,
    /// Something that is or will be wrong.
    Problem,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) level: FindingLevel,
    /// The subject and the facts, and the change if one is needed.
    pub(super) text: String,
}

impl Finding {
    /// Returns a finding that needs no change.
    pub(super) fn ok(subject: &str, facts: impl AsRef<str>) -> Finding {
        Finding { level: FindingLevel::Ok, text: format!("{subject}: {}", facts.as_ref()) }
    }

    /// Returns a finding with the change to consider.
    pub(super) fn warning(subject: &str, facts: impl AsRef<str>, change: impl AsRef<str>) -> Finding {
        let text = format!("{subject}: {}; {}", facts.as_ref(), change.as_ref());
        Finding { level: FindingLevel::Warning, text }
    }

    /// Returns a finding with the change that is needed.
    pub(super) fn problem(subject: &str, facts: impl AsRef<str>, change: impl AsRef<str>) -> Finding {
        Finding { level: FindingLevel::Problem, ..Finding::warning(subject, facts, change) }
    }
}

/// All findings.
#[derive(Debug, Default)]
pub(super) struct CheckReport(Vec<Finding>);

impl CheckReport {
    pub(super) fn add(&mut self, finding: Finding) {
        self.0.push(finding);
    }

    pub(super) fn add_all(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.0.extend(findings);
    }

    pub(super) fn has_problem(&self) -> bool {
        self.count(FindingLevel::Problem) > 0
    }

    fn count(&self, level: FindingLevel) -> usize {
        self.0.iter().filter(|finding| finding.level == level).count()
    }

    /// Returns a line for each finding, and one with their numbers. If `quiet`, findings that need
    /// no change are left out.
    pub(super) fn text(&self, quiet: bool) -> String {
        let mut text = String::new();
        for Finding { level, text: facts } in &self.0 {
            let word = match level {
                FindingLevel::Ok if quiet => continue,
                FindingLevel::Ok => "ok",
                FindingLevel::Warning => "warning",
                FindingLevel::Problem => "problem",
            };
            // Writing to a String does not fail.
            let _ = writeln!(text, "{word:<8} {facts}");
        }
        let count = |level, what| amount(self.count(level) as u64, what);
        let (problems, warnings) =
            (count(FindingLevel::Problem, "problem"), count(FindingLevel::Warning, "warning"));
        let _ = writeln!(text, "{}: {problems}, {warnings}", amount(self.0.len() as u64, "check"));
        text
    }
}
