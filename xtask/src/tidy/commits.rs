//! Checks the subjects of commits.

use std::path::Path;
use std::process::Command;

const SUBJECT_LEN_MAX: usize = 72;

/// Returns those subjects after the commit `base` that are too long, or `None` where that commit is
/// unknown.
///
/// A shallow clone may lack the base. Its commits are all newer then, so all of them count.
pub(super) fn long_subjects(root: &Path, base: &str) -> Option<Vec<String>> {
    let range = if git(root, &["cat-file", "-e", &format!("{base}^{{commit}}")]).is_some() {
        format!("{base}..HEAD")
    } else if git(root, &["rev-parse", "--is-shallow-repository"])?.trim() == "true" {
        "HEAD".into()
    } else {
        return None;
    };
    let log = git(root, &["log", "--no-merges", "--format=%h: %s", &range])?;
    let is_long = |line: &&str| {
        line.split_once(": ").is_some_and(|(_, subject)| subject.chars().count() > SUBJECT_LEN_MAX)
    };
    Some(log.lines().filter(is_long).map(String::from).collect())
}

fn git(root: &Path, words: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(words).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a repository with one commit for each subject, and returns its oldest commit.
    fn repository(root: &Path, subjects: &[&str]) -> String {
        let run = |words: &[&str]| git(root, words).expect("git succeeds");
        run(&["init", "--quiet"]);
        for subject in subjects {
            let identity =
                ["-c", "user.name=T", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"];
            run(&[&identity[..], &["commit", "--quiet", "--allow-empty", "-m", subject]].concat());
        }
        run(&["rev-list", "--max-parents=0", "HEAD"]).trim().into()
    }

    #[test]
    fn only_subjects_after_the_base_count() {
        let folder = tempfile::tempdir().expect("a folder");
        let (long, limit) = ("x".repeat(73), "y".repeat(72));
        let base = repository(folder.path(), &[&long, &limit, &format!("{long}z")]);
        let found = long_subjects(folder.path(), &base).expect("the base is known");
        assert_eq!(found.len(), 1);
        assert!(
            found[0]
                .ends_with(": xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxz")
        );
        assert_eq!(long_subjects(folder.path(), "0123456789abcdef"), None);
    }

    #[test]
    fn shallow_clone_counts_the_commits_it_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let (origin, clone) = (folder.path().join("origin"), folder.path().join("clone"));
        std::fs::create_dir(&origin).expect("a folder");
        let base = repository(&origin, &["base", &"x".repeat(73), "tip"]);
        let url = format!("file://{}", origin.display());
        let cloned = ["clone", "--quiet", "--depth", "2", &url, clone.to_str().expect("a text")];
        git(folder.path(), &cloned).expect("git clones");
        assert_eq!(long_subjects(&clone, &base).map(|found| found.len()), Some(1));
    }
}
