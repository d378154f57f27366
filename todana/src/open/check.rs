//! Checks whether a database can be opened with its name and its options.

use super::contents::expect_kind;
use super::{DatabaseName, DatabaseStorage, DatabaseTuning};
use crate::disk::Disk;
use std::fs;
use std::io::{self, Read};
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
            Ok(found) if !found.is_dir() && !self.kind.is_in_memory() => match tokyo_cabinets_tool(place) {
                Some(tool) => self.refuse(&format!(
                    "{0}: is a file of Tokyo Cabinet, which cannot be opened; give another name, and copy its \
                     records with `{tool} list -pv -px {0} | todana load - --format tsv-hex --db NAME`",
                    place.display()
                )),
                None => self.refuse(&format!("{}: is a file; a database is a directory", place.display())),
            },
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

/// Returns Tokyo Cabinet's tool for a file, if it is one of Tokyo Cabinet's.
///
/// ```text
/// 0   16  "ToKyO CaBiNeT\n" and the version
/// 32   1  kind: 0 hash, 1 tree, 2 fixed, 3 table
/// ```
fn tokyo_cabinets_tool(path: &Path) -> Option<&'static str> {
    let mut head = [0; 33];
    fs::File::open(path).and_then(|mut file| file.read_exact(&mut head)).ok()?;
    let is_tokyos = head.starts_with(b"ToKyO CaBiNeT\n");
    let tools = ["tchmgr", "tcbmgr", "tcfmgr", "tctmgr"];
    is_tokyos.then(|| tools.get(usize::from(head[32])).copied().unwrap_or(tools[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokyo_cabinets_file_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        for (name, kind, tool) in
            [("x.tch", 0, "tchmgr"), ("x.bdb", 1, "tcbmgr"), ("x.tcf", 2, "tcfmgr"), ("x.tct", 3, "tctmgr")]
        {
            let path = folder.path().join(name);
            let file = [&b"ToKyO CaBiNeT\n1.0:911\n"[..], &[0; 10], &[kind], &[0; 223]].concat();
            assert_eq!(file.len(), 256);
            fs::write(&path, &file).unwrap();
            let Err(error) = crate::Db::open(path.to_str().unwrap()) else { panic!("{name} was opened") };
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let command = format!("`{tool} list -pv -px {} | todana load", path.display());
            assert!(error.to_string().contains(&command), "{error}");
            assert_eq!(fs::read(&path).unwrap(), file);
        }
    }
}
