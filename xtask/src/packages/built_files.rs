//! The files that packages contain: the executable, manual pages, completions and texts, in one
//! folder.

use super::clean_root::failed;
use super::materials;
use crate::step::{StepOutcome, program};
use std::fs;
use std::path::{Path, PathBuf};

/// The files and their version.
pub(super) struct BuiltFiles {
    pub(super) folder: PathBuf,
    pub(super) version: String,
    /// The time of all files in packages, in seconds since 1970.
    pub(super) epoch: u64,
}

/// A text of this repository, and its name in packages.
const TEXTS: [(&str, &str); 5] = [
    ("README.md", "README.md"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("packaging/todana.toml", "todana.toml"),
];

impl BuiltFiles {
    /// Writes the files into a new folder. The executable itself generates some of them.
    pub(super) fn new(executable: &Path, folder: PathBuf) -> Result<BuiltFiles, StepOutcome> {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("bash")).map_err(failed)?;
        let copy = folder.join("todana");
        fs::copy(executable, &copy).map_err(failed)?;
        let todana = |words: &[&str]| {
            let run = program(&copy, words).output_with_errors_shown().map_err(failed)?;
            match run.status.success() {
                true => Ok(run.stdout),
                false => Err(StepOutcome::Failed(format!("todana {words:?}: {}", run.status))),
            }
        };
        for (shell, file) in [("bash", "bash/todana"), ("zsh", "_todana"), ("fish", "todana.fish")] {
            fs::write(folder.join(file), todana(&["completions", shell])?).map_err(failed)?;
        }
        todana(&["man", &folder.join("man").display().to_string()])?;
        for (text, name) in TEXTS {
            fs::copy(text, folder.join(name)).map_err(failed)?;
        }
        let printed = String::from_utf8_lossy(&todana(&["version"])?).trim().to_string();
        let version = printed.strip_prefix("todana ").map(String::from);
        let version = version.ok_or(StepOutcome::Failed(format!("todana version: printed {printed:?}")))?;
        let files = BuiltFiles { folder, version, epoch: epoch()? };
        materials::write(&files)?;
        Ok(files)
    }

    /// Returns the content of a file.
    pub(super) fn content(&self, name: &str) -> Result<Vec<u8>, StepOutcome> {
        fs::read(self.folder.join(name)).map_err(failed)
    }
}

/// Returns the time of all files in packages: `SOURCE_DATE_EPOCH`, or the time of the last commit.
pub(super) fn epoch() -> Result<u64, StepOutcome> {
    let text = std::env::var("SOURCE_DATE_EPOCH").ok().or_else(|| {
        let commit = program("git", &["log", "-1", "--format=%ct"]).output().ok()?;
        String::from_utf8(commit.stdout).ok()
    });
    let number = text.and_then(|text| text.trim().parse().ok());
    number.ok_or(StepOutcome::Failed("SOURCE_DATE_EPOCH: must be set outside a clone".into()))
}
