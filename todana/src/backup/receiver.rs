//! The receiving side of a backup: stores the stream as a directory.

use super::manifest::{
    BACKUP, BackedUp, BackupFileKind, BackupManifest, FILE_LEN, FILES_MAX, HASH, ListedFile,
};
use super::stream::{self, FRAME_LEN, HEADER_LEN, StreamHeader};
use crate::data_directory::{CHECKPOINTS, LOG, StagedDirectory, cannot, verify};
use crate::disk::{Disk, File};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// Most bytes that are written before a sync. A longer sync would delay the other syncs on the same
/// disk.
const UNSYNCED_MAX: u64 = 8 << 20;

/// Stores a backup as its stream arrives. The directory gets its final name when
/// [`finish`](BackupReceiver::finish) has verified all files. If the receiver is dropped before
/// that, everything that it has written is removed.
pub struct BackupReceiver {
    disk: Arc<dyn Disk>,
    target: StagedDirectory,
    state: ReceiverState,
    /// The bytes of the current piece, or of the header.
    bytes: Vec<u8>,
    /// The CRC of the last piece.
    crc: u32,
    header: Option<StreamHeader>,
    files: Vec<ListedFile>,
    file: Option<IncomingFile>,
    manifest: Option<BackupManifest>,
    done: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReceiverState {
    StreamHeader,
    Pieces,
    Over,
    Failed,
}

struct IncomingFile {
    path: PathBuf,
    file: Box<dyn File>,
    /// The file as its announcement describes it, but with the CRC of the bytes received so far.
    listed: ListedFile,
    len: u64,
    synced: u64,
}

/// Returns the names of the folders in a backup.
fn parts(is_hash: bool) -> &'static [&'static str] {
    if is_hash { &[HASH] } else { &[LOG, CHECKPOINTS] }
}

impl BackupReceiver {
    /// Creates the directory `<target>.partial`. Fails with `Invalid` if `target` exists, with
    /// `Busy` if another process is writing a backup to the same target, and with `Unavailable` if
    /// the directory cannot be created.
    pub fn create(disk: Arc<dyn Disk>, target: &Path) -> Result<BackupReceiver> {
        let target = StagedDirectory::create(Arc::clone(&disk), target)?;
        Ok(BackupReceiver {
            disk,
            target,
            state: ReceiverState::StreamHeader,
            bytes: Vec::new(),
            crc: 0,
            header: None,
            files: Vec::new(),
            file: None,
            manifest: None,
            done: 0,
        })
    }

    /// Processes the next bytes of the stream, however the stream is divided. Keeps at most one
    /// piece (1 MiB) in memory. Fails with `Corrupt` if the bytes are not those that the sender
    /// sent, and with `Unavailable` if the files cannot be written. After an error all further
    /// bytes are ignored.
    pub fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let taken = self.try_take(bytes);
        if taken.is_err() {
            self.state = ReceiverState::Failed;
        }
        taken
    }

    fn try_take(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let wanted = match self.state {
                ReceiverState::StreamHeader => HEADER_LEN,
                ReceiverState::Pieces => self.piece_len()?,
                ReceiverState::Over => return Err(self.wrong("bytes follow the end")),
                ReceiverState::Failed => {
                    return Err(Error::new(ErrorKind::Closed, "backup: an earlier piece has failed"));
                }
            };
            let (now, rest) = bytes.split_at(bytes.len().min(wanted - self.bytes.len()));
            self.bytes.extend_from_slice(now);
            bytes = rest;
            if self.bytes.len() < wanted {
                continue;
            }
            if self.state == ReceiverState::StreamHeader {
                let header: &[u8; HEADER_LEN] = self.bytes.first_chunk().expect("the length was checked");
                self.header = Some(StreamHeader::decode(header).map_err(|why| self.wrong(&why))?);
                self.crc = u32::from_le_bytes(*header.last_chunk().expect("it has four bytes"));
                self.state = ReceiverState::Pieces;
                self.done += HEADER_LEN as u64;
                self.bytes.clear();
            } else if self.piece_len()? == self.bytes.len() {
                let piece = std::mem::take(&mut self.bytes);
                self.take_piece(&piece)?;
                self.done += piece.len() as u64;
                self.bytes = piece;
                self.bytes.clear();
            }
        }
        Ok(())
    }

    /// Returns the length of the current piece, or of its frame until the frame is complete.
    fn piece_len(&self) -> Result<usize> {
        let Some(frame) = self.bytes.first_chunk::<FRAME_LEN>() else { return Ok(FRAME_LEN) };
        let (_, len) = stream::frame(frame).ok_or_else(|| self.wrong("not a piece of a backup"))?;
        Ok(FRAME_LEN + len)
    }

    fn take_piece(&mut self, piece: &[u8]) -> Result<()> {
        let (frame, content) = piece.split_first_chunk::<FRAME_LEN>().expect("the length was checked");
        let (kind, _) = stream::frame(frame).ok_or_else(|| self.wrong("not a piece of a backup"))?;
        let crc = stream::crc_of(self.crc, frame, content);
        if crc.to_le_bytes() != frame[..4] {
            return Err(self.wrong("the checksum of a piece differs"));
        }
        self.crc = crc;
        match kind {
            stream::PieceKind::File => self.begin_file(content),
            stream::PieceKind::Bytes => self.take_bytes(content),
            stream::PieceKind::End => self.end(content),
        }
    }

    fn begin_file(&mut self, content: &[u8]) -> Result<()> {
        let listed = <&[u8; FILE_LEN]>::try_from(content).ok().and_then(ListedFile::decode);
        let listed = listed
            .filter(|listed| self.file.is_none() && listed.follows(self.files.last()) && listed.crc == 0);
        let listed = listed.ok_or_else(|| self.wrong("an unexpected file"))?;
        if self.files.len() == FILES_MAX {
            return Err(self.wrong(&format!("more than {FILES_MAX} files, the maximum of a backup")));
        }
        let path = listed.path(self.target.place());
        if self.files.is_empty() {
            self.make_directories(listed.kind)?;
        }
        let file = self.disk.create(&path).map_err(|error| cannot("create", &path, &error))?;
        self.file = Some(IncomingFile { path, file, listed, len: 0, synced: 0 });
        self.end_file_if_whole()
    }

    /// Creates the folders of the backup. The kind of the first file shows the kind of the backup.
    fn make_directories(&self, first: BackupFileKind) -> Result<()> {
        for part in parts(first == BackupFileKind::HashSegment) {
            let path = self.target.place().join(part);
            self.disk.make_directory(&path).map_err(|error| cannot("create", &path, &error))?;
        }
        Ok(())
    }

    fn take_bytes(&mut self, content: &[u8]) -> Result<()> {
        let left = self.file.as_ref().map_or(0, |incoming| incoming.listed.len - incoming.len);
        let Some(incoming) =
            self.file.as_mut().filter(|_| !content.is_empty() && content.len() as u64 <= left)
        else {
            return Err(self.wrong("bytes that belong to no file"));
        };
        let IncomingFile { path, file, listed, len, synced } = incoming;
        let unwritable = |error: std::io::Error| cannot("write to", path, &error);
        file.write_at(*len, &mut [IoSlice::new(content)]).map_err(unwritable)?;
        listed.crc = crc32c::crc32c_append(listed.crc, content);
        *len += content.len() as u64;
        if *len - *synced >= UNSYNCED_MAX {
            file.sync().map_err(unwritable)?;
            *synced = *len;
        }
        self.end_file_if_whole()
    }

    fn end_file_if_whole(&mut self) -> Result<()> {
        if let Some(incoming) = self.file.take_if(|incoming| incoming.len == incoming.listed.len) {
            incoming.file.sync().map_err(|error| cannot("sync", &incoming.path, &error))?;
            self.files.push(incoming.listed);
        }
        Ok(())
    }

    fn end(&mut self, content: &[u8]) -> Result<()> {
        let manifest = BackupManifest::decode(content).map_err(|why| self.wrong(&why))?;
        let is_of_this = self
            .header
            .is_some_and(|header| (header.identity, header.start) == (manifest.identity, manifest.start));
        if !is_of_this || self.file.is_some() || self.files != manifest.files {
            return Err(self.wrong("the list at the end does not match the received files"));
        }
        let path = self.target.place().join(BACKUP);
        let write = || {
            let file = self.disk.create(&path)?;
            file.write_at(0, &mut [IoSlice::new(content)])?;
            file.sync()
        };
        write().map_err(|error| cannot("write to", &path, &error))?;
        self.manifest = Some(manifest);
        self.state = ReceiverState::Over;
        Ok(())
    }

    /// Returns the number of bytes of the stream that were processed, and the number that will
    /// probably follow.
    pub fn progress(&self) -> crate::LoadProgress {
        let likely = self.header.map_or(0, |header| header.likely);
        let remaining = if self.state == ReceiverState::Over { 0 } else { likely.saturating_sub(self.done) };
        crate::LoadProgress { done: self.done, remaining }
    }

    /// Returns true when the complete stream has arrived. The caller may then close the connection.
    pub fn is_over(&self) -> bool {
        self.state == ReceiverState::Over
    }

    /// Reads the written files again, checks every checksum, and gives the directory its final
    /// name. `progress` is called with the number of bytes read. Fails with `Corrupt` if the stream
    /// ended early or is damaged, and with `Unavailable` if the directory cannot be written. Damage
    /// that was in the files of a hash before the backup is copied unchanged and listed in
    /// [`BackedUp::damages`], so that one damaged entry does not prevent the backup of all others.
    pub fn finish(self, progress: &mut dyn FnMut(u64)) -> Result<BackedUp> {
        let Some(manifest) = self.manifest.as_ref().filter(|_| self.state == ReceiverState::Over) else {
            return Err(self.wrong("the backup is cut off"));
        };
        let mut verified = verify(Arc::clone(&self.disk), self.target.place(), progress)?;
        let inherited = verified.damages.split_off(verified.damages.len() - verified.inherited);
        if let Some(damage) = verified.damages.first() {
            return Err(Error::new(ErrorKind::Corrupt, format!("received backup: is damaged: {damage}")));
        }
        // The messages contain the temporary path, under which the damages were found.
        let (partial, path) = (self.target.place().display().to_string(), self.target.path().display());
        let damages = inherited.iter().map(|damage| damage.replace(&partial, &path.to_string())).collect();
        let backed_up = BackedUp { damages, ..manifest.backed_up() };
        let parts = parts(manifest.is_hash()).iter().map(|part| self.target.place().join(part));
        for directory in parts.chain([self.target.place().into()]) {
            self.disk.sync_directory(&directory).map_err(|error| cannot("sync", &directory, &error))?;
        }
        self.target.finish()?;
        Ok(backed_up)
    }

    fn wrong(&self, what: &str) -> Error {
        Error::new(ErrorKind::Corrupt, format!("stream of the backup at offset {}: {what}", self.done))
    }
}
