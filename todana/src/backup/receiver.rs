//! The receiving side: writes a stream as a directory.

use super::manifest::{BACKUP, BackedUp, FILE_LEN, FILES_MAX, HASH, Kind, Listed, Manifest};
use super::stream::{self, FRAME_LEN, HEADER_LEN, Header};
use crate::data_directory::{CHECKPOINTS, LOG, StagedDirectory, cannot, verify};
use crate::disk::{Disk, File};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// Most bytes that wait for a sync, so that other syncs on the same disk do not wait for all of the
/// backup.
const UNSYNCED_MAX: u64 = 8 << 20;

/// Writes a backup as its stream arrives. The directory gets its name only when
/// [`finish`](Receiver::finish) has verified all of it. Nothing is left if the receiver is dropped
/// before.
pub struct Receiver {
    disk: Arc<dyn Disk>,
    target: StagedDirectory,
    state: State,
    /// The bytes of the current piece, or of the header.
    bytes: Vec<u8>,
    /// The CRC of the last piece.
    crc: u32,
    header: Option<Header>,
    files: Vec<Listed>,
    file: Option<Incoming>,
    manifest: Option<Manifest>,
    done: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Header,
    Pieces,
    Over,
    Failed,
}

struct Incoming {
    path: PathBuf,
    file: Box<dyn File>,
    /// The file as announced, with the CRC of the bytes so far.
    listed: Listed,
    len: u64,
    synced: u64,
}

/// Returns the folders of a backup.
fn parts(is_hash: bool) -> &'static [&'static str] {
    if is_hash { &[HASH] } else { &[LOG, CHECKPOINTS] }
}

impl Receiver {
    /// Begins a directory at `<target>.partial`. Fails with `Invalid` if something exists at the
    /// target, with `Busy` if another process is writing the same one, and with `Unavailable` if it
    /// cannot be created.
    pub fn create(disk: Arc<dyn Disk>, target: &Path) -> Result<Receiver> {
        let target = StagedDirectory::create(Arc::clone(&disk), target)?;
        Ok(Receiver {
            disk,
            target,
            state: State::Header,
            bytes: Vec::new(),
            crc: 0,
            header: None,
            files: Vec::new(),
            file: None,
            manifest: None,
            done: 0,
        })
    }

    /// Takes the next bytes of the stream, in any cut. Keeps at most one piece (1 MiB) in memory.
    /// Fails with `Corrupt` if the bytes are not what was sent, and with `Unavailable` if they
    /// cannot be written. After an error no more bytes are taken.
    pub fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let taken = self.try_take(bytes);
        if taken.is_err() {
            self.state = State::Failed;
        }
        taken
    }

    fn try_take(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let wanted = match self.state {
                State::Header => HEADER_LEN,
                State::Pieces => self.piece_len()?,
                State::Over => return Err(self.wrong("something stands behind the end")),
                State::Failed => return Err(Error::new(ErrorKind::Closed, "this backup has failed")),
            };
            let (now, rest) = bytes.split_at(bytes.len().min(wanted - self.bytes.len()));
            self.bytes.extend_from_slice(now);
            bytes = rest;
            if self.bytes.len() < wanted {
                continue;
            }
            if self.state == State::Header {
                let header: &[u8; HEADER_LEN] = self.bytes.first_chunk().expect("so many bytes have come");
                self.header = Some(Header::decode(header).map_err(|why| self.wrong(&why))?);
                self.crc = u32::from_le_bytes(*header.last_chunk().expect("it has four bytes"));
                self.state = State::Pieces;
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

    /// Returns the length of the current piece, as far as it is known yet.
    fn piece_len(&self) -> Result<usize> {
        let Some(frame) = self.bytes.first_chunk::<FRAME_LEN>() else { return Ok(FRAME_LEN) };
        let (_, len) = stream::frame(frame).ok_or_else(|| self.wrong("this is no piece of a backup"))?;
        Ok(FRAME_LEN + len)
    }

    fn take_piece(&mut self, piece: &[u8]) -> Result<()> {
        let (frame, content) = piece.split_first_chunk::<FRAME_LEN>().expect("so many bytes have come");
        let (kind, _) = stream::frame(frame).ok_or_else(|| self.wrong("this is no piece of a backup"))?;
        let crc = stream::crc_of(self.crc, frame, content);
        if crc.to_le_bytes() != frame[..4] {
            return Err(self.wrong("the checksum of a piece differs"));
        }
        self.crc = crc;
        match kind {
            stream::Kind::File => self.begin_file(content),
            stream::Kind::Bytes => self.take_bytes(content),
            stream::Kind::End => self.end(content),
        }
    }

    fn begin_file(&mut self, content: &[u8]) -> Result<()> {
        let listed = <&[u8; FILE_LEN]>::try_from(content).ok().and_then(Listed::decode);
        let listed = listed
            .filter(|listed| self.file.is_none() && listed.follows(self.files.last()) && listed.crc == 0);
        let listed = listed.ok_or_else(|| self.wrong("a file that has no place here"))?;
        if self.files.len() == FILES_MAX {
            return Err(self.wrong(&format!("more than {FILES_MAX} files, which no backup has")));
        }
        let path = listed.path(self.target.place());
        if self.files.is_empty() {
            self.make_directories(listed.kind)?;
        }
        let file = self.disk.create(&path).map_err(|error| cannot("make", &path, &error))?;
        self.file = Some(Incoming { path, file, listed, len: 0, synced: 0 });
        self.end_file_if_whole()
    }

    /// The first file shows the kind of the backup.
    fn make_directories(&self, first: Kind) -> Result<()> {
        for part in parts(first == Kind::HashSegment) {
            let path = self.target.place().join(part);
            self.disk.make_directory(&path).map_err(|error| cannot("make", &path, &error))?;
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
        let Incoming { path, file, listed, len, synced } = incoming;
        let unwritable = |error: std::io::Error| cannot("write", path, &error);
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
        let manifest = Manifest::decode(content).map_err(|why| self.wrong(&why))?;
        let is_of_this = self
            .header
            .is_some_and(|header| (header.identity, header.start) == (manifest.identity, manifest.start));
        if !is_of_this || self.file.is_some() || self.files != manifest.files {
            return Err(self.wrong("the end does not tell what has come"));
        }
        let path = self.target.place().join(BACKUP);
        let write = || {
            let file = self.disk.create(&path)?;
            file.write_at(0, &mut [IoSlice::new(content)])?;
            file.sync()
        };
        write().map_err(|error| cannot("write", &path, &error))?;
        self.manifest = Some(manifest);
        self.state = State::Over;
        Ok(())
    }

    /// Returns the number of bytes of the stream that were taken, and the number that is likely to
    /// follow.
    pub fn progress(&self) -> crate::Progress {
        let likely = self.header.map_or(0, |header| header.likely);
        let remaining = if self.state == State::Over { 0 } else { likely.saturating_sub(self.done) };
        crate::Progress { done: self.done, remaining }
    }

    /// Returns true once all of the stream has arrived. A connection may then be closed.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Reads the written files again, checks every checksum, and gives the directory its name.
    /// `progress` is called with the number of bytes read. Fails with `Corrupt` if the stream is
    /// cut off or damaged, and with `Unavailable` if the directory cannot be written. Damage that
    /// existed in the files of a hash before is received as it is, and listed in
    /// [`BackedUp::damages`], so that one damaged entry does not prevent the backup of all others.
    pub fn finish(self, progress: &mut dyn FnMut(u64)) -> Result<BackedUp> {
        let Some(manifest) = self.manifest.as_ref().filter(|_| self.state == State::Over) else {
            return Err(self.wrong("the backup is cut off"));
        };
        let mut verified = verify(Arc::clone(&self.disk), self.target.place(), progress)?;
        let inherited = verified.damages.split_off(verified.damages.len() - verified.inherited);
        if let Some(damage) = verified.damages.first() {
            return Err(Error::new(ErrorKind::Corrupt, format!("what has come is damaged: {damage}")));
        }
        // They were found under the temporary name.
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
        Error::new(ErrorKind::Corrupt, format!("the backup's stream at offset {}: {what}", self.done))
    }
}
