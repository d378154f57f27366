//! Packages: `cargo xtask package` builds each, and tests install each in a folder of its own.
//!
//! ```text
//! executable   linked statically for the image, and with the C library for all other packages
//! BuiltFiles   the executable and the files that it generates
//! packages     debian, image
//! ```
//!
//! All packages have the same bytes in every build of a commit. Times of files come from
//! `SOURCE_DATE_EPOCH` or the commit.

mod archive;
mod built_files;
mod clean_root;
mod debian;
mod image;

use crate::step::{StepOutcome, StepReport, built};
use built_files::BuiltFiles;
use clean_root::failed;
use std::path::Path;

/// Installs the packages with the executable of the other steps, which is quick to build.
pub(crate) fn test(report: &mut StepReport) {
    report.step("packages: debian", || in_folder(debian::test));
    report.step("packages: image", || in_folder(image::test));
}

/// Runs a test with the built files, in a new folder.
fn in_folder(test: fn(&BuiltFiles, &Path) -> Result<StepOutcome, StepOutcome>) -> StepOutcome {
    let run = || {
        let folder = tempfile::tempdir().map_err(failed)?;
        let files = BuiltFiles::new(&built("todana"), folder.path().join("built"))?;
        test(&files, folder.path())
    };
    run().unwrap_or_else(|ending| ending)
}
