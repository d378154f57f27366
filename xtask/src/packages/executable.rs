//! The executable of packages. Its bytes do not depend on the folders of the build.

use super::clean_root::{failed, passed};
use crate::step::{StepOutcome, cargo, program, target_directory};
use std::fs;
use std::path::{Path, PathBuf};

/// How the executable finds the C library.
#[derive(Clone, Copy)]
pub(super) enum Linkage {
    /// From the system. The executable has all features.
    Shared,
    /// Contains it, for an image that has no other files. Databases on clusters are left out, and
    /// so are the tables of unwinding.
    Static,
}

impl Linkage {
    fn name(self) -> &'static str {
        match self {
            Linkage::Shared => "shared",
            Linkage::Static => "static",
        }
    }

    /// Returns the arguments of cargo and of rustc.
    fn arguments(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Linkage::Shared => (&["--features", "cassandra"], &[]),
            Linkage::Static => (
                &[],
                &[
                    "-Ctarget-feature=+crt-static",
                    "-Clink-arg=-Wl,-z,pack-relative-relocs",
                    "-Clink-arg=-Wl,--icf=safe",
                    "-Clink-arg=-Wl,--no-eh-frame-hdr",
                    "-Clink-arg=-Wl,-T,packaging/linker/without-unwinding.ld",
                ],
            ),
        }
    }
}

/// Builds the executable with the profile `dist` into `folder`, and returns its path.
pub(super) fn build(linkage: Linkage, folder: &Path) -> Result<PathBuf, StepOutcome> {
    let sources = std::env::current_dir().map_err(failed)?;
    let target = std::path::absolute(target_directory()).map_err(failed)?;
    build_from(&sources, &target, linkage, folder)
}

/// Builds the executable again, from a copy of the last commit and with a target folder of its own.
pub(super) fn build_again(linkage: Linkage, folder: &Path) -> Result<PathBuf, StepOutcome> {
    build_from(&copy_of_commit(folder)?, &folder.join("other-target"), linkage, folder)
}

/// Writes the files of the last commit into a folder, and returns its path.
pub(super) fn copy_of_commit(folder: &Path) -> Result<PathBuf, StepOutcome> {
    let sources = folder.join("sources");
    fs::create_dir_all(&sources).map_err(failed)?;
    let copy = "git archive HEAD | tar -x -C \"$1\"";
    passed(program("sh", &["-c", copy, "sh", &sources.display().to_string()]).run())?;
    Ok(sources)
}

fn build_from(
    sources: &Path,
    target_folder: &Path,
    linkage: Linkage,
    folder: &Path,
) -> Result<PathBuf, StepOutcome> {
    let target = host()?;
    let (features, rustc) = linkage.arguments();
    let words = ["rustc", "--locked", "--profile", "dist", "--package", "todana-cli", "--bin", "todana"];
    let words = [&words[..], &["--target", &target], features, &["--"], rustc].concat();
    let (rustflags, cflags) = without_folders(sources, target_folder)?;
    // The variable for one target does not reach build scripts, which need no fixed bytes.
    let cflags_name = format!("CFLAGS_{}", target.replace('-', "_"));
    let run = cargo(&words).folder(sources).env("CARGO_TARGET_DIR", &target_folder.display().to_string());
    let run = run.env("RUSTFLAGS", &rustflags).env(&cflags_name, &cflags);
    passed(run.env("CARGO_INCREMENTAL", "0").run())?;
    let copy = folder.join(format!("todana-{}", linkage.name()));
    fs::copy(target_folder.join(target).join("dist/todana"), &copy).map_err(failed)?;
    let bytes = fs::metadata(&copy).map_err(failed)?.len();
    println!("{}: {:.2} MB", copy.display(), bytes as f64 / 1e6);
    Ok(copy)
}

/// Returns the flags of rustc and of the C compiler that replace this machine's folders in messages
/// and debug information.
pub(super) fn without_folders(sources: &Path, target: &Path) -> Result<(String, String), StepOutcome> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cargo_home = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    // The last flag that fits a path applies, and the target folder may lie in the sources.
    let folders = [(sources, "/todana"), (&cargo_home, "/cargo"), (target, "/target")];
    let flags = |option: &str| {
        let flags = folders.iter().map(|(from, to)| format!("{option}={}={to}", from.display()));
        flags.collect::<Vec<_>>().join(" ")
    };
    Ok((flags("--remap-path-prefix"), flags("-ffile-prefix-map")))
}

/// Returns the target triple of this machine.
pub(super) fn host() -> Result<String, StepOutcome> {
    let printed = program("rustc", &["--version", "--verbose"]).output().map_err(failed)?;
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    let host = printed.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(String::from).ok_or(StepOutcome::Failed("rustc: names no host".into()))
}
