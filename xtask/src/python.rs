//! Builds the wheel of the Python binding with maturin, installs it into the project's own
//! environment, and runs its tests.

use crate::clients::{PYTHON, pip};
use crate::step::{PROFILE, StepOutcome, StepReport, program, target_directory, with_time_limit};
use std::path::{Path, PathBuf};

const FOLDER: &str = "bindings/python";

pub(crate) fn run(report: &mut StepReport) {
    report.step("python", || test().unwrap_or_else(|ending| ending));
}

fn test() -> Result<StepOutcome, StepOutcome> {
    pip("maturin", "maturin", &[])?;
    pip("mypy", "mypy", &[])?;
    let is_young_enough = "import sys; sys.exit(sys.version_info < (3, 10))";
    if !program(PYTHON, &["-c", is_young_enough]).succeeds() {
        return Err(StepOutcome::Skipped("python3: older than 3.10".into()));
    }
    let wheel = build()?;
    let words =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--force-reinstall"];
    if !program(PYTHON, &[&words[..], &[&wheel.display().to_string()]].concat()).succeeds() {
        return Err(StepOutcome::Failed(format!("{}: pip cannot install it", wheel.display())));
    }
    let tests = format!("{FOLDER}/tests");
    Ok(with_time_limit(PYTHON, &["-m", "pytest", "-q", "-p", "no:cacheprovider", &tests])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .run())
}

/// Builds the wheel with the profile of the other steps, to share their builds.
fn build() -> Result<PathBuf, StepOutcome> {
    let folder = target_directory().join("wheels");
    // The folder may hold a wheel of an earlier version.
    let _ = std::fs::remove_dir_all(&folder);
    let (manifest, out) = (format!("{FOLDER}/Cargo.toml"), folder.display().to_string());
    let words = ["-m", "maturin", "build", "--quiet", "--locked", "--profile", PROFILE];
    let place = ["--manifest-path", &manifest, "--interpreter", PYTHON, "--out", &out];
    match program(PYTHON, &[&words[..], &place].concat()).run() {
        StepOutcome::Passed => {
            wheel_in(&folder).ok_or_else(|| StepOutcome::Failed("maturin: built no wheel".into()))
        }
        ending => Err(ending),
    }
}

fn wheel_in(folder: &Path) -> Option<PathBuf> {
    let mut paths = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| path.extension().is_some_and(|extension| extension == "whl"))
}
