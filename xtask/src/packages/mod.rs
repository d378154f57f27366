//! Packages: `cargo xtask package` builds each, and tests install each in a folder of its own.
//!
//! ```text
//! executable   with the C library of the system; and statically linked, for the image
//! built_files  the executable, and the files that it generates; materials: licences
//! packages     debian, image, archive (for cargo binstall, Homebrew), wheel
//! tarball      archives with fixed times and owners, for the image and the archive
//! clean_root   where tests install them; repetition: two builds have the same bytes
//! ```
//!
//! All packages have the same bytes in every build of a commit. Times of files come from
//! `SOURCE_DATE_EPOCH` or the commit.

mod archive;
mod built_files;
mod clean_root;
mod debian;
mod executable;
mod homebrew;
mod image;
mod kubernetes;
mod materials;
mod repetition;
mod tarball;
mod wheel;

use crate::step::{StepOutcome, StepReport, built, target_directory};
use built_files::BuiltFiles;
use clean_root::failed;
use executable::Linkage;
use std::fs;
use std::path::{Path, PathBuf};

/// Builds all packages into `target/packages`, or those with this name. `url` is the folder from
/// which users will download them.
pub(crate) fn build(report: &mut StepReport, only: Option<&str>, url: Option<&str>) {
    report.only(only);
    let folder = match absolute_folder() {
        Ok(folder) => folder,
        Err(error) => return report.step("folder", || failed(error)),
    };
    let with = |linkage: Linkage| {
        let executable = executable::build(linkage, &folder)?;
        BuiltFiles::new(&executable, folder.join("built"))
    };
    report
        .step("debian", || completed(with(Linkage::Shared).and_then(|files| debian::build(&files, &folder))));
    report.step("archive", || {
        let archive = |files: BuiltFiles| {
            let archive = archive::build(&files, &folder)?;
            url.map_or(Ok(()), |url| homebrew::write(&archive, url, &files.version))?;
            Ok(archive)
        };
        completed(with(Linkage::Shared).and_then(archive))
    });
    report.step("image", || completed(with(Linkage::Static).and_then(|files| image::build(&files, &folder))));
    report.step("wheel", || completed(wheel::build(&folder)));
}

/// Prints the path of a package and its size.
fn completed(package: Result<PathBuf, StepOutcome>) -> StepOutcome {
    match package {
        Ok(path) => {
            let bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            println!("{}: {:.2} MB", path.display(), bytes as f64 / 1e6);
            StepOutcome::Passed
        }
        Err(ending) => ending,
    }
}

fn absolute_folder() -> std::io::Result<PathBuf> {
    let folder = std::path::absolute(target_directory().join("packages"))?;
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Installs the packages with the executable of the other steps, which is quick to build.
pub(crate) fn test(report: &mut StepReport) {
    report.step("packages: debian", || in_folder(&built("todana"), debian::test));
    report.step("packages: image", || in_folder(&built("todana"), image::test));
    report.step("packages: archive", || in_folder(&built("todana"), archive::test));
    report.step("packages: same bytes", || repetition::test(&built("todana"), repetition::QUICK));
    report.step("packages: kubernetes", || kubernetes::test().unwrap_or_else(|ending| ending));
}

/// Installs the packages as they are released.
pub(crate) fn prove(report: &mut StepReport) {
    let with = |linkage: Linkage, test: PackageTest| {
        let folder = absolute_folder().map_err(failed);
        let executable = folder.and_then(|folder| executable::build(linkage, &folder));
        executable.map_or_else(|ending| ending, |executable| in_folder(&executable, test))
    };
    report.step("packages: image", || with(Linkage::Static, image::test));
    report.step("packages: debian", || with(Linkage::Shared, debian::test));
    report.step("packages: archive", || with(Linkage::Shared, archive::test));
    report.step("packages: same bytes", || {
        let executable =
            absolute_folder().map_err(failed).and_then(|folder| executable::build(Linkage::Shared, &folder));
        executable.map_or_else(|ending| ending, |executable| repetition::test(&executable, repetition::ALL))
    });
    report.step("packages: wheel", || wheel::test().unwrap_or_else(|ending| ending));
    report.step("packages: same executable", repetition::test_executable);
}

type PackageTest = fn(&BuiltFiles, &Path) -> Result<StepOutcome, StepOutcome>;

/// Runs a test with an executable and its files, in a new folder.
fn in_folder(executable: &Path, test: PackageTest) -> StepOutcome {
    let run = || {
        let folder = tempfile::tempdir().map_err(failed)?;
        let files = BuiltFiles::new(executable, folder.path().join("built"))?;
        test(&files, folder.path())
    };
    run().unwrap_or_else(|ending| ending)
}
