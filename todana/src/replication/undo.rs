//! The undo log of a replica: the former records of the keys that it has changed since it stored
//! its position.
//!
//! A master that speaks Tokyo Tyrant's protocol sends commands. The effect of some commands depends
//! on the record, as with `putcat`. After the death of the process, the commands after the stored
//! position are executed again. Before that, the former records are put back, so that no command
//! counts twice.
//!
//! The file contains entries of the update log (docs/format/update-log.md, section 2): a mark with
//! the end of the database's log, then a put for each record that existed, and a remove for each
//! that did not. The stored position takes the place of the database ID in their checksums, so
//! entries from before another position do not count. The file is not synced: it survives the
//! process, but not a power failure.

use crate::update_log::{
    DatabaseIdentity, EntryDecoder, LogChange, LogEntry, LogPosition, UpdateLog, encode, seal_entries,
};
use crate::{Database, OverwriteVisitor};
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use todana_core::{Action, Error, ErrorKind, Result, Visitor, key_of_number};

/// From this number of bytes on, the replica should store its position soon.
const LARGE_LEN: u64 = 16 << 20;
/// The file does not grow beyond this number of bytes. It has room for any record and the changes
/// of a large command.
const LEN_MAX: u64 = 4 << 30;

/// The undo log of a replica.
pub struct UndoLog {
    path: PathBuf,
    /// `None` until the first record is kept.
    file: Option<File>,
    len: u64,
    position: u64,
    kept_keys: RestorableKeys,
    entry: Vec<u8>,
    must_restore: bool,
}

/// The keys of records that may be put back.
pub type RestorableKeys = HashSet<Box<[u8]>>;

impl UndoLog {
    /// Creates the undo log of a replica at this position. The file is created when the first
    /// record is kept.
    pub fn new(path: PathBuf, position: u64) -> UndoLog {
        UndoLog {
            path,
            file: None,
            len: 0,
            position,
            kept_keys: HashSet::new(),
            entry: Vec::new(),
            must_restore: true,
        }
    }

    /// Returns true if the records of the file must be put back before the next change.
    pub fn must_restore(&self) -> bool {
        self.must_restore
    }

    /// Returns the position to which the records belong.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Passes the records that the file contains for this position to `restore`: the servers that
    /// the undone change has passed, the key, and the visitor that puts the record back. Later
    /// records are appended to the file.
    ///
    /// Before that, `exclude` removes the keys of records that must stay as they are, because they
    /// were changed in another way after this position of the database's log. Fails if the file
    /// cannot be read, or if `restore` fails.
    pub fn restore(
        &mut self,
        exclude: impl FnOnce(LogPosition, &mut RestorableKeys),
        mut restore: impl FnMut(u32, &[u8], &mut dyn Visitor) -> Result<()>,
    ) -> Result<()> {
        let mut bytes = Vec::new();
        let file = OpenOptions::new().read(true).write(true).open(&self.path);
        match file.and_then(|file| (&file).read_to_end(&mut bytes).map(|_| file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => self.file = Some(outcome.map_err(|error| self.cannot("read", &error))?),
        }
        let mut mark = None;
        self.kept_keys.clear();
        self.len = each_record(&bytes, self.position, &mut |change, _| {
            match change {
                LogChange::Mark { synced, .. } => mark = Some(synced),
                LogChange::Put { key, .. } | LogChange::Remove { key } => {
                    self.kept_keys.insert(key.into());
                }
                _ => {}
            }
            Ok(())
        })?;
        let mut restorable = self.kept_keys.clone();
        if let Some(mark) = mark {
            exclude(mark, &mut restorable);
        }
        each_record(&bytes, self.position, &mut |change, origin| {
            let (key, action) = match change {
                LogChange::Put { key, record } => (key, Action::Put(record)),
                LogChange::Remove { key } => (key, Action::Remove),
                _ => return Ok(()),
            };
            if restorable.contains(key) {
                restore(origin, key, &mut OverwriteVisitor(action))
            } else {
                Ok(())
            }
        })?;
        self.must_restore = false;
        Ok(())
    }

    /// Keeps the record of a key as it is now, unless it has been kept since the position was
    /// stored. `origin` is the origin of the change that follows. Fails if the record cannot be
    /// written, or if the file has reached its maximum length because no position was stored.
    pub fn keep(&mut self, database: &Database, origin: u32, key: &[u8]) -> Result<()> {
        let mut text = [0; 20];
        let key = match (database.engine().numbered(), database.number_of(key)?) {
            (None, _) => key,
            (Some(_), Some(number)) => key_of_number(number, &mut text),
            // No record can have such a key.
            (Some(_), None) => return Ok(()),
        };
        if self.kept_keys.contains(key) {
            return Ok(());
        }
        let entry = &mut self.entry;
        entry.clear();
        let log_end = database.log().map(UpdateLog::end);
        if let Some(synced) = log_end.filter(|_| self.len == 0) {
            encode(&LogEntry::own(LogChange::Mark { time_ms: 0, synced }), false, entry);
        }
        let origin = Some(origin);
        let exists = database.peek_stored(key, &mut |record| {
            encode(&LogEntry { origin, source: None, change: LogChange::Put { key, record } }, false, entry);
        })?;
        if !exists {
            encode(&LogEntry { origin, source: None, change: LogChange::Remove { key } }, false, entry);
        }
        let identity = DatabaseIdentity { server_id: 0, database_id: database_id(self.position) };
        let mut position = LogPosition(self.len);
        seal_entries(entry, identity.seed(), &mut position, None, log_end.unwrap_or_default(), 0);
        if position.0 > LEN_MAX {
            let error = io::Error::new(io::ErrorKind::StorageFull, "the file has its maximum length");
            return Err(self.cannot("write to", &error));
        }
        self.append().map_err(|error| self.cannot("write to", &error))?;
        self.len = position.0;
        self.kept_keys.insert(key.into());
        Ok(())
    }

    fn append(&mut self) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let file = OpenOptions::new().create(true).write(true).truncate(false).open(&self.path)?;
                none.insert(file)
            }
        };
        file.write_all_at(&self.entry, self.len)
    }

    /// Returns true if the replica should store its position soon, to keep the undo log short.
    pub fn is_large(&self) -> bool {
        self.len >= LARGE_LEN
    }

    /// Empties the undo log after a new position was stored.
    pub fn begin(&mut self, position: u64) {
        self.position = position;
        self.len = 0;
        self.must_restore = false;
        self.kept_keys.clear();
        if let Some(file) = &self.file {
            // Entries that remain have wrong checksums, so a failure only wastes space.
            let _ = file.set_len(0);
        }
    }

    fn cannot(&self, what: &str, error: &io::Error) -> Error {
        let message = format!("{}: cannot {what} it: {error}", self.path.display());
        Error::new(ErrorKind::Unavailable, message)
    }
}

/// Passes each complete entry and its origin to `see`. Returns their length. The command of an
/// incomplete entry was not executed.
fn each_record(
    bytes: &[u8],
    position: u64,
    see: &mut dyn FnMut(LogChange<'_>, u32) -> Result<()>,
) -> Result<u64> {
    let mut entries = EntryDecoder::new(database_id(position), LogPosition(0));
    entries.push(bytes);
    while let Ok(Some((_, entry))) = entries.next_entry() {
        see(entry.change, entry.origin.unwrap_or_default())?;
    }
    Ok(entries.position().0)
}

fn database_id(position: u64) -> [u8; 16] {
    u128::from(position).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CachedClock;
    use std::sync::Arc;
    use todana_core::{Attributes, Record};
    use todana_engine::{MemHash, MemHashOptions};

    fn value(database: &Database, key: &[u8]) -> Option<Vec<u8>> {
        let mut value = None;
        database.peek(key, &mut |record| value = Some(record.value.to_vec())).unwrap();
        value
    }

    #[test]
    fn first_records_since_the_position_return() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("position.undo");
        let engine = MemHash::new(MemHashOptions::default()).unwrap();
        let database = Database::new(Box::new(engine), Arc::new(CachedClock::new()));
        let counters = database.worker_counters();
        let set = |key: &[u8], text: &[u8]| {
            let put = Action::Put(Record::new(text, Attributes { flags: 7, ..Attributes::default() }));
            database.visit_record_from(5, &counters, key, &mut OverwriteVisitor(put)).unwrap();
        };
        let restored = |position| {
            let mut origins = Vec::new();
            let mut undo = UndoLog::new(path.clone(), position);
            undo.restore(
                |_, _| (),
                |origin, key, visitor| {
                    origins.push((origin, key.to_vec()));
                    database.visit_record_from(origin, &counters, key, visitor).map(|_| ())
                },
            )
            .unwrap();
            origins
        };
        assert_eq!(restored(10), []);
        set(b"a", b"old");
        let mut undo = UndoLog::new(path.clone(), 10);
        for (key, origin) in [(b"a", 3), (b"b", 4), (b"a", 5)] {
            undo.keep(&database, origin, key).unwrap();
            set(key, b"new");
        }
        assert_eq!(restored(9), []);
        let kept = [(3, b"a".to_vec()), (4, b"b".to_vec())];
        assert_eq!(restored(10), kept);
        assert_eq!((value(&database, b"a"), value(&database, b"b")), (Some(b"old".to_vec()), None));
        // An incomplete entry does not count, and is overwritten.
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let mut undo = UndoLog::new(path.clone(), 10);
        undo.restore(|_, _| (), |_, _, _| Ok(())).unwrap();
        undo.keep(&database, 4, b"b").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), whole);
        undo.begin(11);
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        assert_eq!(restored(11), []);
    }
}
