//! Compares two builds of each package, in different folders.

use super::built_files::BuiltFiles;
use super::clean_root::failed;
use super::executable::{self, Linkage};
use super::{archive, debian, image};
use crate::step::StepOutcome;
use std::fs;
use std::path::{Path, PathBuf};

/// Builds packages of an executable.
type PackageBuild = fn(&BuiltFiles, &Path) -> Result<PathBuf, StepOutcome>;

pub(super) const QUICK: &[PackageBuild] = &[image::build, archive::build];
pub(super) const ALL: &[PackageBuild] = &[image::build, archive::build, debian::build];

/// Builds packages of an executable twice.
pub(super) fn test(executable: &Path, builds: &[PackageBuild]) -> StepOutcome {
    let test = || {
        let folders = [tempfile::tempdir().map_err(failed)?, tempfile::tempdir().map_err(failed)?];
        let mut packages = Vec::new();
        for folder in &folders {
            let files = BuiltFiles::new(executable, folder.path().join("built"))?;
            let built = builds.iter().map(|build| build(&files, folder.path()));
            packages.push(built.collect::<Result<Vec<_>, _>>()?);
        }
        packages[0].iter().zip(&packages[1]).try_for_each(|(first, second)| compare(first, second))
    };
    test().map_or_else(|ending| ending, |()| StepOutcome::Passed)
}

/// Builds the statically linked executable twice.
pub(super) fn test_executable() -> StepOutcome {
    let test = || {
        let (first, second) = (tempfile::tempdir().map_err(failed)?, tempfile::tempdir().map_err(failed)?);
        let first = executable::build(Linkage::Static, first.path())?;
        compare(&first, &executable::build_again(Linkage::Static, second.path())?)
    };
    test().map_or_else(|ending| ending, |()| StepOutcome::Passed)
}

/// Fails if two files differ.
pub(super) fn compare(first: &Path, second: &Path) -> Result<(), StepOutcome> {
    let bytes = [fs::read(first).map_err(failed)?, fs::read(second).map_err(failed)?];
    let name = first.file_name().unwrap_or_default().to_string_lossy();
    match bytes[0] == bytes[1] {
        true => {
            println!("{name}: the same {} bytes", bytes[0].len());
            Ok(())
        }
        false => Err(StepOutcome::Failed(format!("{name}: differs between two builds"))),
    }
}
