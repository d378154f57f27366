//! The Debian package, built by debhelper.

use super::built_files::BuiltFiles;
use super::clean_root::{self, failed, passed};
use crate::clients::require;
use crate::step::{StepOutcome, program};
use std::fs;
use std::path::{Path, PathBuf};

/// The maintainer in the changelog, as in `packaging/debian/control`.
const MAINTAINER: &str = "The Todana developers <maintainers@users.noreply.a-seed-92d3ed09.example>";
/// The highest exposure that `systemd-analyze security` may report, in tenths.
const EXPOSURE_MAX_TENTHS: &str = "20";

/// Builds the package in `folder`, and returns its path.
pub(super) fn build(files: &BuiltFiles, folder: &Path) -> Result<PathBuf, StepOutcome> {
    require(|| program("sh", &["-c", "command -v dh"]).succeeds(), "debhelper", &["debhelper"])?;
    let version = &files.version;
    let source = folder.join("debian");
    let _ = fs::remove_dir_all(&source);
    fs::create_dir_all(&source).map_err(failed)?;
    for (from, to) in [(Path::new("packaging/debian"), "debian"), (&files.folder, "built")] {
        let (from, to) = (from.display().to_string(), source.join(to).display().to_string());
        passed(program("cp", &["-r", &from, &to]).run())?;
    }
    fs::copy("packaging/todana.service", source.join("debian/todana.service")).map_err(failed)?;
    let date = program("date", &["--utc", "--rfc-email", &format!("--date=@{}", files.epoch)]);
    let date = String::from_utf8_lossy(&date.output().map_err(failed)?.stdout).trim().to_string();
    let entry = "  * CHANGELOG.md lists the effects on users.";
    let changelog =
        format!("todana ({version}) unstable; urgency=medium\n\n{entry}\n\n -- {MAINTAINER}  {date}\n");
    fs::write(source.join("debian/changelog"), changelog).map_err(failed)?;
    let log = folder.join("debian-build.log");
    let line =
        format!("exec debian/rules binary >'{}' 2>&1", std::path::absolute(&log).map_err(failed)?.display());
    let build = program("sh", &["-c", &line]).folder(&source);
    let build = build.env("SOURCE_DATE_EPOCH", &files.epoch.to_string()).env("LC_ALL", "C.UTF-8");
    if !build.succeeds() {
        let log = fs::read_to_string(log).unwrap_or_default();
        return Err(StepOutcome::Failed(format!("debian/rules failed:\n{log}")));
    }
    let architecture = program("dpkg", &["--print-architecture"]).output().map_err(failed)?.stdout;
    let package = format!("todana_{version}_{}.deb", String::from_utf8_lossy(&architecture).trim());
    Ok(folder.join(package))
}

/// Checks the package with lintian, and its unit with `systemd-analyze`. Installs, upgrades,
/// removes and purges it in a minimal Debian, and uses the server there.
pub(super) fn test(files: &BuiltFiles, folder: &Path) -> Result<StepOutcome, StepOutcome> {
    let package = build(files, folder)?;
    require(|| program("lintian", &["--version"]).succeeds(), "lintian", &["lintian"])?;
    // CI runs lintian as root, which is unsafe only for packages of unknown origin.
    let words = ["--allow-root", "--fail-on", "error", &package.display().to_string()];
    passed(program("lintian", &words).run())?;
    let threshold = format!("--threshold={EXPOSURE_MAX_TENTHS}");
    require(|| program("systemd-analyze", &["--version"]).succeeds(), "systemd-analyze", &["systemd"])?;
    let words = ["security", "--no-pager", "--offline=true", &threshold, "packaging/todana.service"];
    let analysis = program("systemd-analyze", &words).output().map_err(failed)?;
    let printed = String::from_utf8_lossy(&analysis.stdout).into_owned();
    println!("{}", printed.trim_end().lines().last().unwrap_or_default());
    if !analysis.status.success() {
        return Err(StepOutcome::Failed(format!("packaging/todana.service: too exposed:\n{printed}")));
    }
    let root = clean_root::debian(folder)?;
    fs::copy(&package, root.join("package.deb")).map_err(failed)?;
    write_upgrade(&package, &folder.join("upgrade"), &root.join("upgrade.deb"))?;
    clean_root::run_inside(&root, Path::new("tests/packages/debian.sh"))?;
    Ok(StepOutcome::Passed)
}

/// Writes the same package with a later version. Compression would only take time.
fn write_upgrade(package: &Path, folder: &Path, upgrade: &Path) -> Result<(), StepOutcome> {
    let (files, upgrade) = (folder.display().to_string(), upgrade.display().to_string());
    passed(program("dpkg-deb", &["--raw-extract", &package.display().to_string(), &files]).run())?;
    let control = folder.join("DEBIAN/control");
    let text = fs::read_to_string(&control).map_err(failed)?;
    let lines = text.lines().map(|line| match line.strip_prefix("Version: ") {
        Some(version) => format!("Version: {version}+upgrade\n"),
        None => format!("{line}\n"),
    });
    fs::write(&control, lines.collect::<String>()).map_err(failed)?;
    passed(program("dpkg-deb", &["--root-owner-group", "-Znone", "--build", &files, &upgrade]).run())
}
