//! The binding for Python: its wheel, built by maturin as pip would, installed into the project's
//! own environment, and its tests.

use crate::clients::{PYTHON, pip};
use crate::step::{Outcome, PROFILE, Report, patient, program, target_directory};
use std::path::{Path, PathBuf};

const FOLDER: &str = "bindings/python";

pub(crate) fn run(report: &mut Report) {
    report.step("python", || test().unwrap_or_else(|ending| ending));
}

fn test() -> Result<Outcome, Outcome> {
    pip("maturin", "maturin", &[])?;
    pip("mypy", "mypy", &[])?;
    let is_young_enough = "import sys; sys.exit(sys.version_info < (3, 10))";
    if !program(PYTHON, &["-c", is_young_enough]).succeeds() {
        return Err(Outcome::Skipped("python3 is older than 3.10".into()));
    }
    let wheel = build()?;
    let words =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--force-reinstall"];
    if !program(PYTHON, &[&words[..], &[&wheel.display().to_string()]].concat()).succeeds() {
        return Err(Outcome::Failed(format!("pip does not install {}", wheel.display())));
    }
    let tests = format!("{FOLDER}/tests");
    Ok(patient(PYTHON, &["-m", "pytest", "-q", "-p", "no:cacheprovider", &tests])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .run())
}

/// With the profile of the other steps, whose builds it shares as far as features allow.
fn build() -> Result<PathBuf, Outcome> {
    let folder = target_directory().join("wheels");
    // Of an earlier version there may be one.
    let _ = std::fs::remove_dir_all(&folder);
    let (manifest, out) = (format!("{FOLDER}/Cargo.toml"), folder.display().to_string());
    let words = ["-m", "maturin", "build", "--quiet", "--locked", "--profile", PROFILE];
    let place = ["--manifest-path", &manifest, "--interpreter", PYTHON, "--out", &out];
    match program(PYTHON, &[&words[..], &place].concat()).run() {
        Outcome::Passed => wheel_in(&folder).ok_or_else(|| Outcome::Failed("maturin built no wheel".into())),
        ending => Err(ending),
    }
}

fn wheel_in(folder: &Path) -> Option<PathBuf> {
    let mut paths = std::fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| path.extension().is_some_and(|extension| extension == "whl"))
}
