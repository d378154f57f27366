//! The archive for other systems: the executable and its files, as `cargo binstall` and Homebrew
//! expect them.

use super::built_files::BuiltFiles;
use super::clean_root::{self, failed};
use super::executable::host;
use super::homebrew;
use super::tarball::{ArchiveEntry, gzip, tar};
use crate::clients::require;
use crate::step::{StepOutcome, program};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Writes the files into an archive, whose name and folder are in the metadata for `cargo binstall`
/// in cli/Cargo.toml.
pub(super) fn build(files: &BuiltFiles, folder: &Path) -> Result<PathBuf, StepOutcome> {
    let name = format!("todana-{}-{}", files.version, host()?);
    let mut entries = vec![ArchiveEntry::folder(&format!("{name}/"), 0o755, 0)];
    add(&files.folder, &name, &mut entries).map_err(failed)?;
    let archive = folder.join(format!("{name}.tar.gz"));
    let bytes = tar(&entries, files.epoch).and_then(|bytes| gzip(&bytes)).map_err(failed)?;
    fs::write(&archive, bytes).map_err(failed)?;
    Ok(archive)
}

/// Adds the files of a folder, ordered by name.
fn add(folder: &Path, name: &str, entries: &mut Vec<ArchiveEntry>) -> io::Result<()> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.sort();
    for path in paths {
        let name = format!("{name}/{}", path.file_name().unwrap_or_default().to_string_lossy());
        if path.is_dir() {
            entries.push(ArchiveEntry::folder(&format!("{name}/"), 0o755, 0));
            add(&path, &name, entries)?;
        } else {
            let mode = if path.ends_with("built/todana") { 0o755 } else { 0o644 };
            entries.push(ArchiveEntry::file(&name, mode, fs::read(path)?));
        }
    }
    Ok(())
}

/// Compares the archive with the metadata for `cargo binstall`, unpacks it in a minimal Debian,
/// uses the server there, and checks Homebrew's formula.
pub(super) fn test(files: &BuiltFiles, folder: &Path) -> Result<StepOutcome, StepOutcome> {
    let archive = build(files, folder)?;
    let manifest = fs::read_to_string("cli/Cargo.toml").map_err(failed)?.parse::<toml::Table>();
    let manifest = manifest.map_err(|error| StepOutcome::Failed(format!("cli/Cargo.toml: {error}")))?;
    let metadata = &manifest["package"]["metadata"]["binstall"];
    let host = host()?;
    let named = |field: &str| {
        let template = metadata[field].as_str().unwrap_or_default();
        let values = [("version", &*files.version), ("target", &host), ("bin", "todana"), ("binary-ext", "")];
        values
            .iter()
            .fold(template.to_string(), |text, (name, value)| text.replace(&format!("{{ {name} }}"), value))
    };
    let name = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if named("pkg-url").rsplit('/').next() != Some(&*name) || metadata["pkg-fmt"].as_str() != Some("tgz") {
        return Err(StepOutcome::Failed(format!("cli/Cargo.toml: names another archive than {name}")));
    }
    let path = archive.display().to_string();
    let listed = program("tar", &["-t", "-f", &path]).output().map_err(failed)?.stdout;
    let bin = named("bin-dir");
    if !String::from_utf8_lossy(&listed).lines().any(|file| file == bin) {
        return Err(StepOutcome::Failed(format!("cli/Cargo.toml: {bin}: not in {name}")));
    }
    let root = clean_root::debian(folder)?;
    fs::copy(&archive, root.join("archive.tar.gz")).map_err(failed)?;
    clean_root::run_inside(&root, Path::new("tests/packages/archive.sh"))?;
    homebrew::write(&archive, "file:///downloads/", &files.version)?;
    require(|| program("ruby", &["--version"]).succeeds(), "ruby", &["ruby"])?;
    Ok(program(
        "ruby",
        &["tests/packages/formula.rb", &folder.join("todana.rb").display().to_string(), &path],
    )
    .run())
}
