//! The undo log of a replica: the former records of the keys that it has changed since it stored
//! its position.
//!
//! A master that speaks Tokyo Tyrant's protocol sends commands. The effect of some commands depends
//! on the record, as with `putcat`. After the death of the process, the commands after the stored
//! position are executed again. Before that, the former records are put back, so that no command
//! counts twice.
//!
//! The file contains entries of the update log (docs/format/update-log.md, section 2): a put for
//! each record that existed, and a remove for each that did not. The stored position takes the
//! place of the database ID in their checksums, so entries from before another position do not
//! count. The file is not synced: it survives the process, but not a power failure.

use crate::update_log::{
    DatabaseIdentity, EntryDecoder, LogChange, LogEntry, LogPosition, encode, seal_entries,
};
use crate::{Database, OverwriteVisitor};
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use todana_core::{Action, Error, ErrorKind, Result, Visitor};

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
    kept_keys: HashSet<Box<[u8]>>,
    entry: Vec<u8>,
}

impl UndoLog {
    /// Creates an empty undo log for a replica at this position. The file is created when the first
    /// record is kept.
    pub fn new(path: PathBuf, position: u64) -> UndoLog {
        UndoLog { path, file: None, len: 0, position, kept_keys: HashSet::new(), entry: Vec::new() }
    }

    /// Passes each record that the file contains for this position to `restore`: the servers that
    /// the undone change has passed, the key, and the visitor that puts the record back. Later
    /// records are appended to the file. Fails if the file cannot be read, or if `restore` fails.
    pub fn restore(
        &mut self,
        mut restore: impl FnMut(u32, &[u8], &mut dyn Visitor) -> Result<()>,
    ) -> Result<()> {
        let mut bytes = Vec::new();
        match File::open(&self.path).and_then(|mut file| file.read_to_end(&mut bytes)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            outcome => outcome.map_err(|error| self.cannot("read", &error))?,
        };
        let mut entries = EntryDecoder::new(database_id(self.position), LogPosition(0));
        entries.push(&bytes);
        self.kept_keys.clear();
        // The command of an incomplete entry was not executed.
        while let Ok(Some((_, LogEntry { origin: Some(origin), change }))) = entries.next_entry() {
            let (key, action) = match change {
                LogChange::Put { key, record } => (key, Action::Put(record)),
                LogChange::Remove { key } => (key, Action::Remove),
                _ => break,
            };
            restore(origin, key, &mut OverwriteVisitor(action))?;
            self.kept_keys.insert(key.into());
        }
        self.len = entries.position().0;
        Ok(())
    }

    /// Keeps the record of a key as it is now, unless it has been kept since the position was
    /// stored. `origin` is the origin of the change that follows. Fails if the record cannot be
    /// written, or if the file has reached its maximum length because no position was stored.
    pub fn keep(&mut self, database: &Database, origin: u32, key: &[u8]) -> Result<()> {
        if self.kept_keys.contains(key) {
            return Ok(());
        }
        let entry = &mut self.entry;
        entry.clear();
        let origin = Some(origin);
        let exists = database.peek_stored(key, &mut |record| {
            encode(&LogEntry { origin, change: LogChange::Put { key, record } }, false, entry);
        })?;
        if !exists {
            encode(&LogEntry { origin, change: LogChange::Remove { key } }, false, entry);
        }
        let identity = DatabaseIdentity { server_id: 0, database_id: database_id(self.position) };
        let mut position = LogPosition(self.len);
        seal_entries(entry, identity.seed(), &mut position, None, LogPosition(0), 0);
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
            undo.restore(|origin, key, visitor| {
                origins.push((origin, key.to_vec()));
                database.visit_record_from(origin, &counters, key, visitor).map(|_| ())
            })
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
        undo.restore(|_, _, _| Ok(())).unwrap();
        undo.keep(&database, 4, b"b").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), whole);
        undo.begin(11);
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        assert_eq!(restored(11), []);
    }
}
