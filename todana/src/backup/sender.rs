//! The sending side of a backup: reads a data directory and returns the backup as a stream of
//! bytes.

use super::manifest::{BackupFileKind, BackupManifest, ListedFile};
use super::stream::{self, StreamHeader};
use crate::checkpoint::{CheckpointFailure, FileHold, HeldBytes, LogHold};
use crate::data_directory::{LOG, cannot, refuse_tree};
use crate::disk::{Disk, File};
use crate::update_log::{
    DatabaseIdentity, LogChange, LogPosition, LogReader, LogTail, SEGMENT_HEADER_LEN, segment_name,
    segment_start,
};
use crate::{DataDirectory, Database, Db};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use todana_core::{Error, ErrorKind, FrozenContent, FrozenFile, FrozenKind, Result};
use todana_engine::DiskHash;

/// Bytes of a file in one piece of the stream.
const PIECE_LEN: u64 = 256 << 10;

/// A backup in progress: a stream of bytes that the caller reads piece by piece at any pace. Until
/// the backup is dropped, the update log is kept from the checkpoint's position on. Nothing waits
/// for a slow caller.
///
/// After the checkpoint, the stream contains the log up to the position that the log has reached by
/// then, so the backup contains changes that are younger than its checkpoint.
pub struct BackupSender {
    disk: Arc<dyn Disk>,
    /// The directory of the update log; `None` for a hash on disk, which has none.
    log: Option<PathBuf>,
    identity: DatabaseIdentity,
    /// The database, unless it is closed.
    database: Option<Arc<Database>>,
    start: LogPosition,
    /// The end of the sent log, known when the checkpoint has been sent.
    end: Option<LogPosition>,
    created_ms: u64,
    records: u64,
    refused: Vec<String>,
    tail: LogTail,
    stage: SendStage,
    queue: VecDeque<OutgoingFile>,
    files: Vec<ListedFile>,
    /// The CRC of the last piece.
    crc: u32,
    done: u64,
    likely: u64,
    bytes: Vec<u8>,
    hold: Option<LogHold>,
    /// Keeps files of a hash on disk readable that compaction removes during the backup.
    hold_files: Option<FileHold>,
    /// Keeps the database open during the backup.
    _open: Option<Db>,
}

enum SendStage {
    StreamHeader,
    /// Sends the identity and the checkpoint. The files of the log are queued after that.
    Checkpoint,
    Log,
    Over,
}

/// A file to send, and the number of its bytes that were sent.
struct OutgoingFile {
    path: PathBuf,
    content: OutgoingContent,
    listed: ListedFile,
    offset: u64,
}

enum OutgoingContent {
    File(Box<dyn File>),
    Frozen(Arc<dyn FrozenContent>),
}

impl OutgoingFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        match &self.content {
            OutgoingContent::File(file) => {
                file.read_at(offset, into).map_err(|error| cannot("read", &self.path, &error))
            }
            OutgoingContent::Frozen(content) => content.read_at(offset, into),
        }
    }
}

impl BackupSender {
    /// Writes a checkpoint of the database in this directory, and starts a backup with it. Takes as
    /// long as [`DataDirectory::checkpoint`]. Fails as that function does, and with `Closed` once
    /// `stops` is true.
    pub fn start(
        directory: &DataDirectory,
        database: &Arc<Database>,
        stops: &AtomicBool,
    ) -> Result<BackupSender> {
        let Some(log) = database.log() else {
            return Err(Error::new(ErrorKind::Invalid, "backup: the database has no update log"));
        };
        // The log is held before the checkpoint begins, which will need only the log after this
        // position.
        let hold = directory.hold(log.end());
        let is_tree = database.engine().checkpointed().is_some();
        let (made, file) = match is_tree {
            // A tree on disk is its own checkpoint, but its file cannot be sent as a stream of
            // records.
            true => directory.checkpoint_for_backup(database, stops)?,
            false => {
                let made = directory.checkpoint_unless(database, stops)?;
                let file = directory.disk().open(&made.path, false);
                let file = file.map_err(|error| cannot("read", &made.path, &error))?;
                (made, file)
            }
        };
        hold.advance(made.start);
        let mut backup = BackupSender::new(directory, hold, Some(Arc::clone(database)));
        backup.records = made.records;
        backup.start = made.start;
        let listed =
            ListedFile { kind: BackupFileKind::Checkpoint, crc: 0, position: made.start, len: made.len };
        backup.enqueue_identity()?;
        backup.enqueue_open(made.path, file, listed);
        backup.likely += log.end().0.saturating_sub(made.start.0);
        Ok(backup)
    }

    /// Starts a backup of an open hash on disk, which consists of the hash's files with their
    /// present lengths. The backup contains the state at this moment and no log. Writes and
    /// compaction continue. Files that compaction removes take up disk space until the backup is
    /// dropped. Fails with `Invalid` for another kind of database, and with `Unavailable` if writes
    /// in memory cannot be flushed.
    pub fn of_files(disk: Arc<dyn Disk>, database: &Arc<Database>) -> Result<BackupSender> {
        let not_so = || Error::new(ErrorKind::Invalid, "backup: only a hash on disk is copied file by file");
        let durable = database.engine().durable().ok_or_else(not_so)?;
        let files = durable.freeze()?;
        let hold_files = FileHold::new(&files);
        let mut backup = BackupSender::empty(disk, Some(Arc::clone(database)));
        backup.hold_files = Some(hold_files);
        backup.created_ms = database.now().0.saturating_mul(1000);
        backup.records = database.engine().status().records;
        backup.end = Some(LogPosition(0));
        if let Some(first) = files.first() {
            let mut bytes = [0; 64];
            let got = first.content.read_at(0, &mut bytes)?;
            backup.identity.database_id = DiskHash::database_of(&bytes[..got]).unwrap_or_default();
        }
        for FrozenFile { kind, number, len, content } in files {
            let kind = match kind {
                FrozenKind::Records => BackupFileKind::HashSegment,
                FrozenKind::Dictionary => BackupFileKind::HashDictionary,
            };
            let listed = ListedFile { kind, crc: 0, position: LogPosition(number), len };
            backup.likely += len;
            let path = content.path().to_path_buf();
            backup.queue.push_back(OutgoingFile {
                path,
                content: OutgoingContent::Frozen(content),
                listed,
                offset: 0,
            });
        }
        Ok(backup)
    }

    /// Keeps a database open until the backup is dropped.
    pub(crate) fn keeping(mut self, open: Db) -> BackupSender {
        self._open = Some(open);
        self
    }

    /// Starts a backup of a directory whose database is closed. The backup contains the newest
    /// intact checkpoint and the log after it; this function reads and checks both first. A torn
    /// tail of the log is left out. Fails with `Corrupt` if damage makes the data unreadable; the
    /// message names file and offset. Fails with `Invalid` for a tree on disk.
    pub fn of_rest(directory: &DataDirectory, progress: &mut dyn FnMut(u64)) -> Result<BackupSender> {
        refuse_tree(&**directory.disk(), directory.path())?;
        let hold = directory.hold(LogPosition(0));
        let mut backup = BackupSender::new(directory, hold, None);
        backup.enqueue_identity()?;
        let checkpoint_store = directory.checkpoint_store();
        let mut until = LogPosition(0);
        for start in checkpoint_store.list()? {
            let outcome =
                checkpoint_store.open(start).map_err(CheckpointFailure::Damaged).and_then(|reader| {
                    reader.verify(progress)?;
                    Ok(reader)
                });
            match outcome {
                Ok(reader) => {
                    (backup.start, backup.records, backup.created_ms) =
                        (start, reader.footer.records, reader.header.created_ms);
                    until = reader.footer.until;
                    let listed = ListedFile {
                        kind: BackupFileKind::Checkpoint,
                        crc: 0,
                        position: start,
                        len: reader.len(),
                    };
                    backup.enqueue(checkpoint_store.path_of(start), listed)?;
                    break;
                }
                Err(CheckpointFailure::Damaged(why)) => backup.refused.push(why),
                Err(CheckpointFailure::Refused(error)) => return Err(error),
            }
        }
        let end = backup.read_log(progress).map_err(|error| {
            let why = backup.refused.iter().map(|why| format!("; {why}"));
            Error::new(error.kind(), format!("{error}{}", why.collect::<String>()))
        })?;
        if end < until {
            let message = format!(
                "update log: ends at position {}, but the checkpoint needs it up to {}",
                end.0, until.0
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        backup.end = Some(end);
        backup.likely += end.0 - backup.start.0;
        Ok(backup)
    }

    fn new(directory: &DataDirectory, hold: LogHold, database: Option<Arc<Database>>) -> BackupSender {
        let mut backup = BackupSender::empty(Arc::clone(directory.disk()), database);
        backup.log = Some(directory.path().join(LOG));
        backup.identity = directory.identity();
        backup.hold = Some(hold);
        backup
    }

    fn empty(disk: Arc<dyn Disk>, database: Option<Arc<Database>>) -> BackupSender {
        BackupSender {
            disk,
            log: None,
            identity: DatabaseIdentity { server_id: 0, database_id: [0; 16] },
            database,
            start: LogPosition(0),
            end: None,
            created_ms: 0,
            records: 0,
            refused: Vec::new(),
            tail: LogTail::Clean,
            stage: SendStage::StreamHeader,
            queue: VecDeque::new(),
            files: Vec::new(),
            crc: 0,
            done: 0,
            likely: 0,
            bytes: Vec::new(),
            hold: None,
            hold_files: None,
            _open: None,
        }
    }

    /// Appends the next piece to `out`: about 256 KiB, or a little more at the end. Returns false
    /// if no pieces remain. Fails with `Unavailable` if a file cannot be read; the backup is then
    /// unusable.
    pub fn next(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        loop {
            match self.stage {
                SendStage::StreamHeader => {
                    let BackupSender { identity, start, likely, .. } = *self;
                    let header = StreamHeader { identity, start, likely }.encode();
                    self.crc = u32::from_le_bytes(*header.last_chunk().expect("it has four bytes"));
                    out.extend_from_slice(&header);
                    self.stage = if self.log.is_some() { SendStage::Checkpoint } else { SendStage::Log };
                    return Ok(true);
                }
                SendStage::Checkpoint | SendStage::Log if !self.queue.is_empty() => {
                    self.put_bytes(out)?;
                    return Ok(true);
                }
                SendStage::Checkpoint => {
                    self.enqueue_log()?;
                    self.stage = SendStage::Log;
                }
                SendStage::Log => {
                    let manifest = BackupManifest {
                        identity: self.identity,
                        start: self.start,
                        end: self.end.unwrap_or(self.start),
                        created_ms: self.created_ms,
                        records: self.records,
                        files: std::mem::take(&mut self.files),
                    };
                    let too_many =
                        || Error::new(ErrorKind::Invalid, "backup: the update log has too many segments");
                    let content = manifest.encode().ok_or_else(too_many)?;
                    stream::put(stream::PieceKind::End, &content, &mut self.crc, out);
                    self.stage = SendStage::Over;
                    return Ok(true);
                }
                SendStage::Over => return Ok(false),
            }
        }
    }

    /// Returns the number of bytes of files that were sent, and the number that will probably
    /// follow.
    pub fn progress(&self) -> crate::LoadProgress {
        crate::LoadProgress { done: self.done, remaining: self.likely.saturating_sub(self.done) }
    }

    /// Returns the bytes of the log, or of the files of a hash, that are on disk only because of
    /// this backup.
    pub fn held(&self) -> Option<HeldBytes> {
        self.hold.as_ref().map(LogHold::held).or_else(|| self.hold_files.as_ref().map(FileHold::held))
    }

    /// Returns the number of records in the checkpoint.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Returns the damaged checkpoints that were skipped: file, offset and reason of each.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// Returns the torn tail of a closed directory's log, which the backup leaves out.
    pub fn tail(&self) -> &LogTail {
        &self.tail
    }

    /// Sends the next bytes of the current file.
    fn put_bytes(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let outgoing = self.queue.front_mut().expect("its turn has come");
        if outgoing.offset == 0 {
            stream::put(stream::PieceKind::File, &outgoing.listed.encode(), &mut self.crc, out);
            outgoing.listed.crc = crc32c::crc32c(&[]);
        }
        let len = (outgoing.listed.len - outgoing.offset).min(PIECE_LEN) as usize;
        self.bytes.resize(len, 0);
        let got = outgoing.read_at(outgoing.offset, &mut self.bytes)?;
        let OutgoingFile { path, listed, offset, .. } = outgoing;
        if got < len {
            let offset = *offset + got as u64;
            let message = format!("{} at offset {offset}: the file ends here", path.display());
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        if len > 0 {
            stream::put(stream::PieceKind::Bytes, &self.bytes, &mut self.crc, out);
        }
        listed.crc = crc32c::crc32c_append(listed.crc, &self.bytes);
        *offset += len as u64;
        self.done += len as u64;
        if *offset == listed.len {
            self.files.push(*listed);
            self.queue.pop_front();
        }
        Ok(())
    }

    fn enqueue_identity(&mut self) -> Result<()> {
        let path = self.log_path().with_file_name("identity");
        let file = self.disk.open(&path, false).map_err(|error| cannot("read", &path, &error))?;
        let len = file.len().map_err(|error| cannot("read", &path, &error))?;
        let listed = ListedFile { kind: BackupFileKind::Identity, crc: 0, position: LogPosition(0), len };
        self.likely += len;
        self.queue.push_back(OutgoingFile { path, content: OutgoingContent::File(file), listed, offset: 0 });
        Ok(())
    }

    fn log_path(&self) -> &Path {
        self.log.as_deref().expect("there is a log where one is sent")
    }

    fn enqueue(&mut self, path: PathBuf, listed: ListedFile) -> Result<()> {
        let file = self.disk.open(&path, false).map_err(|error| cannot("read", &path, &error))?;
        self.enqueue_open(path, file, listed);
        Ok(())
    }

    fn enqueue_open(&mut self, path: PathBuf, file: Box<dyn File>, listed: ListedFile) {
        if listed.kind == BackupFileKind::Checkpoint {
            self.likely += listed.len;
        }
        self.queue.push_back(OutgoingFile { path, content: OutgoingContent::File(file), listed, offset: 0 });
    }

    /// Queues the segments of the log from the checkpoint's position to the end.
    fn enqueue_log(&mut self) -> Result<()> {
        let end = match (self.end, self.database.as_ref().and_then(|database| database.log())) {
            (Some(end), _) => end,
            (None, Some(log)) => {
                // The sync includes all changes that were acknowledged by now. If the log cannot be
                // written at present, the part of it that is on disk is enough, because that part
                // contains everything that the checkpoint needs.
                let _ = log.sync_to(log.end());
                self.created_ms =
                    self.database.as_ref().map_or(0, |database| database.now().0.saturating_mul(1000));
                log.synced()
            }
            (None, None) => self.start,
        };
        self.end = Some(end);
        let directory = self.log_path().to_path_buf();
        let names = self.disk.list(&directory).map_err(|error| cannot("read", &directory, &error))?;
        let mut starts: Vec<LogPosition> = names.iter().filter_map(|name| segment_start(name)).collect();
        starts.sort_unstable();
        for (n, &start) in starts.iter().enumerate() {
            let next = starts.get(n + 1).copied();
            let is_over_before = next.is_some_and(|next| next <= self.start && next <= end);
            if is_over_before || (start >= end && start > self.start) {
                continue;
            }
            let until = next.unwrap_or(end).min(end).max(start);
            let len = SEGMENT_HEADER_LEN as u64 + (until.0 - start.0);
            let listed = ListedFile { kind: BackupFileKind::Segment, crc: 0, position: start, len };
            self.enqueue(directory.join(segment_name(start)), listed)?;
        }
        Ok(())
    }

    /// Reads the log from the checkpoint on, and returns its end.
    fn read_log(&mut self, progress: &mut dyn FnMut(u64)) -> Result<LogPosition> {
        const TELL_EVERY: u64 = 1 << 12;
        let mut reader = LogReader::open(Arc::clone(&self.disk), self.log_path(), self.identity, self.start)?;
        let mut entries = 0u64;
        while let Some((_, entry)) = reader.next_entry()? {
            if let LogChange::Mark { time_ms, .. } = entry.change {
                self.created_ms = self.created_ms.max(time_ms);
            }
            entries += 1;
            if entries.is_multiple_of(TELL_EVERY) {
                progress(reader.position().0 - self.start.0);
            }
        }
        self.tail = reader.tail().clone();
        Ok(reader.position())
    }
}
