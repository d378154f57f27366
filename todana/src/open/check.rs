//! The check of whether a database can be opened as its name and its options say.

use super::contents::expect_kind;
use super::{Name, Storage, Tuning};
use crate::disk::Disk;
use std::fs;
use std::io;
use std::path::Path;
use todana_core::{Error, ErrorKind, Result, WhenFull};

/// The purpose of a database's data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPurpose {
    /// The directory holds the records.
    Records,
    /// The directory holds an update log for replicas, of a hash on disk that has its records
    /// elsewhere.
    Replicas,
}

impl Name {
    /// Fails with `Invalid` if the name and the data directory ask for something that a database of
    /// this kind cannot do. Does not access the disk.
    pub fn check(&self, data_dir: Option<(&Path, DataPurpose)>, when_full: WhenFull) -> Result<()> {
        let Tuning { records_max, compress, read_only, truncate, .. } = self.tuning;
        if compress && !self.kind.can_compress() {
            return self.refuse("only mem:tree and PATH.hash are compressed (opts=c, zcomp=)");
        }
        if read_only && truncate {
            return self.refuse("a database that is only read cannot be emptied; leave out the t of mode=");
        }
        if records_max.is_some() && when_full == WhenFull::Refuse {
            return self.refuse(
                "a limit on records evicts others for new ones; leave it out where new ones are refused (-M, when_full)",
            );
        }
        match (self.kind.storage(), data_dir) {
            (Storage::Memory, None) if read_only => self.refuse(
                "nothing is there to be read in memory; give it the data directory that has its records",
            ),
            (Storage::Files, Some((_, DataPurpose::Records))) => {
                self.refuse("its data lies at its own path; leave out the data directory")
            }
            (Storage::FilesAndLog, Some((directory, _))) if self.path.as_deref() != Some(directory) => {
                self.refuse("its data lies at its own path; leave out the data directory")
            }
            (_, Some((_, DataPurpose::Replicas))) if read_only => self.refuse(
                "a database that is only read has no changes for an update log; leave out the log, or mode=r",
            ),
            _ => Ok(()),
        }
    }

    /// Fails with `Invalid` if something other than this database exists at its path, or if nothing
    /// exists there and it must.
    pub(crate) fn check_place(&self, disk: &dyn Disk, data_dir: Option<&Path>) -> Result<()> {
        self.expect_own_kind(disk)?;
        let place = if self.kind.is_in_memory() { data_dir } else { self.path.as_deref() };
        let Some(place) = place else { return Ok(()) };
        match fs::metadata(place) {
            Ok(found) if !found.is_dir() && !self.kind.is_in_memory() => {
                self.refuse(&format!("{} is a file; a database is a directory", place.display()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.tuning.must_exist => {
                self.refuse(&format!("{} does not exist", place.display()))
            }
            _ if self.kind.is_in_memory() => expect_kind(disk, place, self.kind),
            _ => Ok(()),
        }
    }

    fn refuse(&self, problem: &str) -> Result<()> {
        Err(Error::new(ErrorKind::Invalid, format!("database \"{self}\": {problem}")))
    }
}
