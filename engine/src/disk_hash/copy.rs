//! Copies a database during normal operation. Only the end of the last segment ever changes.
//! Therefore the files, cut to the lengths that they have at one moment, are the database at that
//! moment.

use super::DiskHash;
use super::segment::{Segment, read_error, write_error};
use crate::disk::{Disk, File, SystemDisk};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use todana_core::{Error, ErrorKind, FrozenContent, FrozenFile, FrozenKind, Result};

const PIECE: usize = 1 << 20;

impl DiskHash {
    pub(super) fn copy_to(&self, to: &Path) -> Result<()> {
        // A read-only disk keeps writes in memory, so write the copy to the system's disk.
        let disk = if self.log.disk.is_read_only() { &SystemDisk } else { &*self.log.disk };
        if disk.list(to).is_ok() {
            return Err(Error::new(ErrorKind::Invalid, format!("{}: exists already", to.display())));
        }
        self.maintenance.lock().copies += 1;
        let outcome = self.copy_files(disk, to);
        self.maintenance.lock().copies -= 1;
        outcome
    }

    /// Returns all segments with the lengths that they have at one moment. All bytes up to these
    /// lengths are in the files.
    fn segments_now(&self) -> Result<Vec<(u64, Arc<Segment>)>> {
        let mut appender = self.log.lock();
        appender.flush()?;
        let segments = self.log.table().0.by_age();
        Ok(segments.into_iter().map(|segment| (segment.len(), segment)).collect())
    }

    /// Returns the files of the database at one moment. A segment stays readable through its open
    /// file even after maintenance has removed its name.
    pub(super) fn freeze_files(&self) -> Result<Vec<FrozenFile>> {
        let frozen = |(len, segment): (u64, Arc<Segment>)| FrozenFile {
            kind: FrozenKind::Records,
            number: segment.number,
            len,
            content: segment,
        };
        let mut files: Vec<FrozenFile> = self.segments_now()?.into_iter().map(frozen).collect();
        // The dictionaries are read after the segments, so that the copy includes all dictionaries
        // that these segments declare.
        for (number, dictionary) in self.dictionaries.iter() {
            let path = dictionary.path.clone();
            let file = self.log.disk.open(&path, false).map_err(|error| read_error(&path, &error))?;
            files.push(FrozenFile {
                kind: FrozenKind::Dictionary,
                number: number as u64,
                len: dictionary.len,
                content: Arc::new(FrozenDictionary { path, file }),
            });
        }
        Ok(files)
    }

    fn copy_files(&self, disk: &dyn Disk, to: &Path) -> Result<()> {
        let mut name = to.file_name().unwrap_or_default().to_os_string();
        name.push(".partial");
        let partial = to.with_file_name(name);
        // Removes the remainder of an interrupted copy, and nothing else.
        let is_link = disk.is_link(&partial).map_err(|error| read_error(&partial, &error))?;
        let remains = disk.list(&partial).unwrap_or_default();
        let foreign =
            remains.iter().find(|name| !name.ends_with(".segment") && !name.ends_with(".dictionary"));
        if is_link || foreign.is_some() {
            let path = foreign.map_or_else(|| partial.clone(), |name| partial.join(name));
            let message = format!("{}: not part of an interrupted copy; move it elsewhere", path.display());
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        for name in remains {
            let path = partial.join(name);
            disk.remove(&path).map_err(|error| write_error(&path, &error))?;
        }
        disk.make_directory(&partial).map_err(|error| write_error(&partial, &error))?;
        for FrozenFile { len, content, .. } in self.freeze_files()? {
            copy_file(disk, &*content, len, &partial)?;
        }
        let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        disk.sync_directory(&partial).map_err(|error| write_error(&partial, &error))?;
        disk.rename(&partial, to).map_err(|error| write_error(to, &error))?;
        disk.sync_directory(parent).map_err(|error| write_error(parent, &error))
    }
}

impl FrozenContent for Segment {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        Segment::read_at(self, offset, into)
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn has_name(&self) -> bool {
        !self.is_removed.load(Ordering::Relaxed)
    }
}

struct FrozenDictionary {
    path: PathBuf,
    file: Box<dyn File>,
}

impl FrozenContent for FrozenDictionary {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.file.read_at(offset, into).map_err(|error| read_error(&self.path, &error))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

fn copy_file(disk: &dyn Disk, content: &dyn FrozenContent, len: u64, to: &Path) -> Result<()> {
    let path = to.join(content.path().file_name().unwrap_or_default());
    let file = disk.create(&path).map_err(|error| write_error(&path, &error))?;
    let mut piece = vec![0; PIECE.min(len as usize)];
    let mut at = 0;
    while at < len {
        let wanted = PIECE.min((len - at) as usize);
        if content.read_at(at, &mut piece[..wanted])? < wanted {
            return Err(read_error(content.path(), &std::io::ErrorKind::UnexpectedEof.into()));
        }
        let written = file.write_at(at, &mut [IoSlice::new(&piece[..wanted])]);
        written.map_err(|error| write_error(&path, &error))?;
        at += wanted as u64;
    }
    file.sync().map_err(|error| write_error(&path, &error))
}
