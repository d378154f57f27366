//! Homebrew's formula, which installs the archive.

use super::clean_root::failed;
use super::tarball::sha256;
use crate::step::StepOutcome;
use std::fs;
use std::path::Path;

const TEMPLATE: &str = "packaging/homebrew/todana.rb";

/// Writes the formula beside the archive. `url` is the folder from which users download that.
pub(super) fn write(archive: &Path, url: &str, version: &str) -> Result<(), StepOutcome> {
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    let hash = sha256(&fs::read(archive).map_err(failed)?);
    let url = format!("{}/{name}", url.trim_end_matches('/'));
    let formula = fs::read_to_string(TEMPLATE).map_err(failed)?;
    let formula = formula.replace("@URL@", &url).replace("@SHA256@", &hash).replace("@VERSION@", version);
    fs::write(archive.with_file_name("todana.rb"), formula).map_err(failed)
}
