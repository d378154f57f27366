//! The place where records are kept over a restart: beside the file of `-e`, or in the directory
//! that the variables of `todana serve` name. The command line takes precedence.
//!
//! memcached's memory file contains the memory itself, and is complete only after a graceful stop.
//! Here `-e PATH` selects the data directory `PATH.todana`. If memcached has written a file at
//! PATH, that file stays unchanged, so that the user can return to memcached.

use super::server_failure::{ABORTED, ServerFailure};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use todana_server::{DataDirectoryOptions, OpeningReport, SyncPolicy};

const DIRECTORY: &str = "TODANA_DATA_DIR";
const SYNC: &str = "TODANA_SYNC";

/// The suffix that is appended to the path of `-e`.
const ENDING: &str = ".todana";

/// Returns the place where records are kept, or `None` if they are lost at exit.
pub(super) fn asked(
    memory_file: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<DataDirectoryOptions>, ServerFailure> {
    let said = |name| variable(name).filter(|value| !value.is_empty());
    let sync = said(SYNC).map(|text| {
        let text = text.to_string_lossy().into_owned();
        crate::serve::sync(&text)
            .map_err(|what| ServerFailure::usage(format!("{SYNC} is \"{text}\": {what}")))
    });
    let sync = sync.transpose()?;
    let (path, sync) = match (memory_file, said(DIRECTORY)) {
        (Some(file), _) if file.as_os_str().is_empty() => {
            return Err(ServerFailure::new(ABORTED, "failed to open the memory file: -e has an empty path"));
        }
        // The kernel decides when changes are on disk, as it does for memcached's file.
        (Some(file), _) => (beside(file), sync.unwrap_or(SyncPolicy::Never)),
        (None, Some(directory)) => (PathBuf::from(directory), sync.unwrap_or(crate::serve::SYNC_DEFAULT)),
        (None, None) if sync.is_some() => {
            return Err(ServerFailure::usage(format!("{SYNC}: needs {DIRECTORY} or -e")));
        }
        (None, None) => return Ok(None),
    };
    // A daemon changes to the directory `/`, so the path must be absolute.
    let directory = std::path::absolute(&path).map_err(|error| {
        ServerFailure::new(ABORTED, format!("{}: cannot find it: {error}", path.display()))
    })?;
    Ok(Some(DataDirectoryOptions::new(directory, sync)))
}

/// Returns a warning if both `-e` and a directory of the environment are given, because `-e` takes
/// precedence. It is printed at any verbosity, because the user expects the records in the
/// directory.
pub(super) fn outdone(
    memory_file: Option<&Path>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Option<String> {
    let file = memory_file?;
    let directory = PathBuf::from(variable(DIRECTORY).filter(|value| !value.is_empty())?);
    let (said, counts) = (std::path::absolute(&directory).ok(), std::path::absolute(beside(file)).ok());
    (said != counts).then(|| {
        format!("{DIRECTORY} has no effect beside -e; records are kept in {}", beside(file).display())
    })
}

fn beside(file: &Path) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(ENDING);
    path.into()
}

/// Returns the failure for a directory that cannot be opened or read. memcached aborts in this
/// case, which a shell reports as 134.
pub(super) fn refused(memory_file: Option<&Path>, error: &io::Error) -> ServerFailure {
    let place = memory_file.map_or_else(
        || format!("failed to open the data directory ({DIRECTORY})"),
        |file| format!("failed to open the memory file {} (-e)", file.display()),
    );
    ServerFailure::new(ABORTED, format!("{place}: {error}"))
}

/// Describes the loaded data in memcached's style. Printed at any verbosity.
pub(super) fn found(place: &DataDirectoryOptions, opened: &OpeningReport) -> String {
    let sync = match place.sync {
        SyncPolicy::Always => "before its reply".into(),
        SyncPolicy::Every(interval) => format!("within {} ms", interval.as_millis()),
        SyncPolicy::Never => "when the kernel decides".into(),
    };
    let kept =
        format!("[restart] records are kept in {}; every write is on disk {sync}", place.directory.display());
    if opened.checkpoint.is_none() && opened.entries == 0 {
        return format!("{kept}\n[restart] no data found, starting with a clean cache");
    }
    let checkpoint = if opened.checkpoint.is_some() { "a checkpoint and " } else { "" };
    let (entries, took) = (opened.entries, opened.took.as_secs_f64());
    format!("{kept}\n[restart] loaded {checkpoint}{entries} entries of the update log in {took:.1} s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn asked_by(
        file: Option<&str>,
        variables: &[(&str, &str)],
    ) -> Result<Option<DataDirectoryOptions>, ServerFailure> {
        asked(file.map(Path::new), |name| {
            variables.iter().find(|(one, _)| *one == name).map(|(_, value)| OsString::from(value))
        })
    }

    fn place(directory: &str, sync: SyncPolicy) -> Option<DataDirectoryOptions> {
        Some(DataDirectoryOptions::new(directory.into(), sync))
    }

    #[test]
    fn nothing_is_kept_unless_asked_for() {
        for none in [&[][..], &[(DIRECTORY, "")], &[(DIRECTORY, ""), (SYNC, "")]] {
            assert_eq!(asked_by(None, none), Ok(None));
        }
    }

    #[test]
    fn memory_file_precedes_the_environment() {
        let everywhere = [(DIRECTORY, "/other"), (SYNC, "250")];
        assert_eq!(asked_by(Some("/run/memory"), &[]), Ok(place("/run/memory.todana", SyncPolicy::Never)));
        let every = SyncPolicy::Every(Duration::from_millis(250));
        assert_eq!(asked_by(Some("/run/memory"), &everywhere), Ok(place("/run/memory.todana", every)));
        assert_eq!(asked_by(None, &everywhere), Ok(place("/other", every)));
        let second = SyncPolicy::Every(Duration::from_secs(1));
        assert_eq!(asked_by(None, &everywhere[..1]), Ok(place("/other", second)));
    }

    #[test]
    fn a_relative_place_is_that_of_the_start() {
        let here = std::env::current_dir().unwrap().join("memory.todana");
        assert_eq!(asked_by(Some("memory"), &[]).unwrap().unwrap().directory, here);
    }

    #[test]
    fn overridden_directory_draws_a_warning() {
        let told = |file: Option<&str>, directory: &str| {
            outdone(file.map(Path::new), |name| (name == DIRECTORY).then(|| OsString::from(directory)))
        };
        let why = "TODANA_DATA_DIR has no effect beside -e; records are kept in /m.todana".to_string();
        assert_eq!(told(Some("/m"), "/other"), Some(why));
        for (file, directory) in [(Some("/m"), "/m.todana"), (Some("/m"), ""), (None, "/other")] {
            assert_eq!(told(file, directory), None);
        }
    }

    #[test]
    fn half_a_wish_is_refused() {
        assert_eq!(asked_by(None, &[(SYNC, "always")]).unwrap_err().code, 64);
        assert_eq!(asked_by(Some("/m"), &[(SYNC, "sometimes")]).unwrap_err().code, 64);
        assert_eq!(asked_by(Some(""), &[]).unwrap_err().code, 134);
    }
}
