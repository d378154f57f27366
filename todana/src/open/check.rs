//! Checks whether a database can be opened with its name and its options.

use super::cabinet_file::cabinet_file_problem;
use super::contents::expect_kind;
use super::{DatabaseName, DatabaseStorage, DatabaseTuning};
use crate::disk::Disk;
use std::fs;
use std::io;
use std::path::Path;
use todana_core::{Error, ErrorKind, Result, WhenFull};

/// The use of a database's data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPurpose {
    /// The directory holds the records.
    Records,
    /// The directory holds only an update log for replicas. The records are in the files of a hash
    /// on disk, elsewhere.
    Replicas,
}

impl DatabaseName {
    /// Fails with `Invalid` if the name or the data directory requires something that a database of
    /// this kind cannot do. Does not access the disk.
    pub fn check(&self, data_dir: Option<(&Path, DataPurpose)>, when_full: WhenFull) -> Result<()> {
        let DatabaseTuning { records_max, compress, read_only, truncate, .. } = self.tuning;
        if compress && !self.kind.can_compress() {
            return self.refuse("only mem:tree and PATH.hash can be compressed (opts=c, zcomp=)");
        }
        if read_only && truncate {
            return self.refuse("a read-only database cannot be emptied; leave out the t of mode=");
        }
        if records_max.is_some() && when_full == WhenFull::Refuse {
            return self.refuse(
                "a limit on records evicts others for new ones; leave it out where new ones are refused (-M, when_full)",
            );
        }
        match (self.kind.storage(), data_dir) {
            (DatabaseStorage::Memory, None) if read_only => self.refuse(
                "nothing is there to be read in memory; give it the data directory that has its records",
            ),
            (DatabaseStorage::Files, Some((_, DataPurpose::Records))) => {
                self.refuse("has its own path; leave out the data directory")
            }
            (DatabaseStorage::FilesAndLog, Some((directory, _)))
                if self.path.as_deref() != Some(directory) =>
            {
                self.refuse("has its own path; leave out the data directory")
            }
            (_, Some((_, DataPurpose::Replicas))) if read_only => self.refuse(
                "a read-only database has no changes for an update log; leave out the log, or mode=r",
            ),
            _ => Ok(()),
        }
    }

    /// Fails with `Invalid` if something other than this database exists at its path, or if the
    /// path must exist and does not.
    pub(crate) fn check_place(&self, disk: &dyn Disk, data_dir: Option<&Path>) -> Result<()> {
        self.expect_own_kind(disk)?;
        let place = if self.kind.is_in_memory() { data_dir } else { self.path.as_deref() };
        let Some(place) = place else { return Ok(()) };
        match fs::metadata(place) {
            Ok(found) if !found.is_dir() && !self.kind.is_in_memory() => {
                let problem = cabinet_file_problem(place);
                let problem = problem.unwrap_or_else(|| "is a file; a database is a directory".into());
                self.refuse(&format!("{}: {problem}", place.display()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.tuning.must_exist => {
                self.refuse(&format!("{}: does not exist", place.display()))
            }
            _ if self.kind.is_in_memory() => expect_kind(disk, place, self.kind),
            _ => Ok(()),
        }
    }

    fn refuse(&self, problem: &str) -> Result<()> {
        Err(Error::new(ErrorKind::Invalid, format!("database \"{self}\": {problem}")))
    }
}
