//! The receiving side: a stream as a directory.

use super::manifest::{BACKUP, BackedUp, FILE_LEN, FILES_MAX, HASH, Kind, Listed, Manifest};
use super::stream::{self, FRAME_LEN, HEADER_LEN, Header};
use crate::data_directory::{CHECKPOINTS, LOG, StagedDirectory, cannot, verify};
use crate::disk::{Disk, File};
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// What waits to be synced is bounded, so that other syncs on the same disk do not wait for all of
/// it at once.
const UNSYNCED_MAX: u64 = 8 << 20;

/// Writes a backup as it comes in. Its directory gets its name only when
/// [`finish`](Receiver::finish) has found all of it right; if it is dropped before, nothing stays.
pub struct Receiver {
    disk: Arc<dyn Disk>,
    target: StagedDirectory,
    state: State,
    /// Of the piece that is coming in, or of the header.
    bytes: Vec<u8>,
    /// Of the last piece.
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
    /// As announced, with the CRC of what has come.
    listed: Listed,
    len: u64,
    synced: u64,
}

/// The directories in a backup.
fn parts(is_hash: bool) -> &'static [&'static str] {
    if is_hash { &[HASH] } else { &[LOG, CHECKPOINTS] }
}

impl Receiver {
    /// Makes `<target>.partial`. Fails with `Invalid` if there is something at the target already,
    /// with `Busy` if another process is writing the same one, with `Unavailable` if it cannot be
    /// made.
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

    /// Takes the next bytes of the stream, as many or as few as they come. Keeps at most a piece (1
    /// MiB) of them in memory. Fails with `Corrupt` if they are not what was sent, with
    /// `Unavailable` if they cannot be written; nothing is taken then any more.
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

    /// The length of the piece that is coming in, as far as it is known yet.
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

    /// By the first file it is known what it is a backup of.
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

    /// Bytes of the stream that have been taken, and those that are likely to follow.
    pub fn progress(&self) -> crate::Progress {
        let likely = self.header.map_or(0, |header| header.likely);
        let remaining = if self.state == State::Over { 0 } else { likely.saturating_sub(self.done) };
        crate::Progress { done: self.done, remaining }
    }

    /// Whether all of it has come. Whoever reads from a connection may close it then.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Ends: reads again what was written, checks every checksum, and gives the directory its name.
    /// `progress` is told the bytes read so far, now and then. Fails with `Corrupt` if the stream
    /// is cut off or holds what is damaged, with `Unavailable` if it cannot be written. Of a hash
    /// on disk, what was damaged in its files before is received as it is, and told in
    /// [`BackedUp::damages`]: one entry must not keep all the others from being backed up.
    pub fn finish(self, progress: &mut dyn FnMut(u64)) -> Result<BackedUp> {
        let Some(manifest) = self.manifest.as_ref().filter(|_| self.state == State::Over) else {
            return Err(self.wrong("the backup is cut off"));
        };
        let mut verified = verify(Arc::clone(&self.disk), self.target.place(), progress)?;
        let inherited = verified.damages.split_off(verified.damages.len() - verified.inherited);
        if let Some(damage) = verified.damages.first() {
            return Err(Error::new(ErrorKind::Corrupt, format!("what has come is damaged: {damage}")));
        }
        // They have been found under the name that goes now.
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
