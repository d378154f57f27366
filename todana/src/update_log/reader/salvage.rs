//! Mends the log in a copy of a damaged database.
//!
//! Every position stays what it is: where entries are lost, an entry that says so takes their place, byte for byte. So
//! checkpoints find what they look for. An entry of which one bit has changed is complete again.

use super::{
    Change, Disk, Entry, Error, ErrorKind, FRAME_LEN, File, Found, HEADER_LEN, Header, Identity, Path,
    PathBuf, Position, Result, Segment, Window, entry, name_of, start_of, unreadable,
};
use std::io::{self, IoSlice};
use std::ops::ControlFlow;

/// The shortest entry there is.
const SHORTEST: u64 = FRAME_LEN as u64 + 1;
/// Written at once.
const PIECE: u64 = 1 << 20;
/// So many bytes of entries are marked as lost at one place, at most: they are written, byte for byte. Where more is missing, the
/// files are not parts of one log.
const LOST_MAX: u64 = 64 << 30;

/// Something damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// What is wrong.
    pub what: String,
    /// Bytes of entries that are lost; 0 where it can be mended.
    pub lost: u64,
}

/// The segments of a log once they are mended.
#[derive(Default)]
pub(crate) struct MendedSegments {
    /// What was damaged, in order.
    pub(crate) findings: Vec<Finding>,
    /// Where the log ends.
    pub(crate) end: Position,
    /// Those of the places asked for that are between two entries.
    pub(crate) between: Vec<Position>,
}

/// A stretch of a segment as it is to be.
enum Piece {
    /// As it is.
    Kept { offset: u64, len: u64 },
    /// So many bytes of entries are lost.
    Lost(u64),
    /// These bytes instead.
    Mended(Vec<u8>),
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Piece::Kept { len, .. } | Piece::Lost(len) => *len,
            Piece::Mended(bytes) => bytes.len() as u64,
        }
    }
}

/// Looks through the segments that reach beyond `from`, a position between two entries, in a copy that nobody has open, and writes
/// those that are damaged anew, so that the log can be read again; what is lost stays lost, and later changes of the same records
/// stay. A torn tail is no damage: opening cuts it off. Where a stretch is lost in which one of `places` lies, an entry ends there all
/// the same, so that a checkpoint can go on from it. Fails with `Corrupt` if the log does not go back so far.
pub(crate) fn mend_segments(
    disk: &dyn Disk,
    directory: &Path,
    identity: Identity,
    from: Position,
    places: &[Position],
) -> Result<MendedSegments> {
    let names = disk.list(directory).map_err(|error| unreadable(directory, &error))?;
    let mut starts: Vec<Position> = names.iter().filter_map(|name| start_of(name)).collect();
    starts.sort_unstable();
    let Some(first) = starts.partition_point(|&start| start <= from).checked_sub(1) else {
        if starts.is_empty() && from == Position(0) {
            return Ok(MendedSegments::default());
        }
        let message =
            format!("the update log in {} does not go back to position {}", directory.display(), from.0);
        return Err(Error::new(ErrorKind::Corrupt, message));
    };
    let mut salvage = MendedSegments::default();
    let mut openings = 0;
    for (n, &start) in starts.iter().enumerate().skip(first) {
        let path = directory.join(name_of(start));
        let found_before = salvage.findings.len();
        let (mut segment, header) = enter(disk, path, identity, start, &mut openings, &mut salvage)?;
        let pieces = segment.pieces(starts.get(n + 1).copied(), places, &mut salvage)?;
        salvage.end = Position(start.0 + pieces.iter().map(Piece::len).sum::<u64>());
        if salvage.findings.len() > found_before {
            segment.write_anew(disk, directory, header, &pieces).map_err(|error| {
                let path = segment.path.display();
                Error::new(ErrorKind::Unavailable, format!("cannot mend the copy of {path}: {error}"))
            })?;
        }
    }
    salvage.between.extend(places.iter().filter(|&&place| place == salvage.end));
    Ok(salvage)
}

/// A segment, and the header that it has or is to have.
fn enter(
    disk: &dyn Disk,
    path: PathBuf,
    identity: Identity,
    start: Position,
    openings: &mut u32,
    salvage: &mut MendedSegments,
) -> Result<(Segment, Header)> {
    let file = disk.open(&path, false).map_err(|error| unreadable(&path, &error))?;
    let file_len = file.len().map_err(|error| unreadable(&path, &error))?;
    if start.0.checked_add(file_len).is_none() {
        let message = format!("{} at offset 0: no log is so long", path.display());
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let mut bytes = [0; HEADER_LEN];
    file.read_at(0, &mut bytes).map_err(|error| unreadable(&path, &error))?;
    let header = Header::decode(&bytes).and_then(|header| {
        let is_ours = header.identity.database_id == identity.database_id && header.start == start;
        if is_ours { Ok(header) } else { Err("it belongs elsewhere".into()) }
    });
    let header = header.unwrap_or_else(|what| {
        salvage.findings.push(Finding { path: path.clone(), offset: 0, what, lost: 0 });
        // All but the time is known.
        Header { identity, openings: *openings, start, made_ms: 0 }
    });
    *openings = header.openings.max(*openings);
    let segment = Segment { seed: identity.seed(), path, file, file_len, start, window: Window::default() };
    Ok((segment, header))
}

impl Segment {
    /// What is to stand behind the header. `next`: where the next segment begins.
    fn pieces(
        &mut self,
        next: Option<Position>,
        places: &[Position],
        salvage: &mut MendedSegments,
    ) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut offset = HEADER_LEN as u64;
        let limit =
            next.map_or(self.file_len.max(offset), |next| offset.saturating_add(next.0 - self.start.0));
        while offset < limit {
            let position = Position(self.start.0 + offset - HEADER_LEN as u64);
            salvage.between.extend(places.iter().filter(|&&place| place == position));
            if let Some(len) = self.whole(offset, limit)? {
                match pieces.last_mut() {
                    Some(Piece::Kept { offset: from, len: kept }) if *from + *kept == offset => *kept += len,
                    _ => pieces.push(Piece::Kept { offset, len }),
                }
                offset += len;
                continue;
            }
            let path = self.path.clone();
            if let Some(at) = self.flipped_bit(offset, position)?
                && let Some(bytes) = self.mended(offset, position, at)?
                && offset + bytes.len() as u64 <= limit
            {
                let what = format!("one bit of the byte at offset {at} has changed");
                salvage.findings.push(Finding { path, offset, what, lost: 0 });
                offset += bytes.len() as u64;
                pieces.push(Piece::Mended(bytes));
                continue;
            }
            let Some(end) = self.resume(offset, limit)?.or(next.map(|_| limit)) else {
                // A torn tail, as far as anybody can tell.
                break;
            };
            let within = |place: &Position| place.0.checked_sub(position.0).filter(|&at| at < end - offset);
            let can_be_cut = |&at: &u64| can_be_marked(at) && can_be_marked(end - offset - at);
            let cut = places.iter().filter_map(within).filter(can_be_cut).min();
            let lost = cut.unwrap_or(end - offset);
            if !can_be_marked(lost) {
                let name = self.path.display();
                let what = match lost {
                    0..SHORTEST => format!("{name} at offset {offset}: no entry is so short"),
                    _ => format!(
                        "{name} at offset {offset}: {lost} bytes of entries are missing before the next segment, \
                         too many to be marked as lost; one of both does not belong here"
                    ),
                };
                return Err(Error::new(ErrorKind::Corrupt, what));
            }
            let what = "entries are damaged or missing".into();
            salvage.findings.push(Finding { path, offset, what, lost });
            pieces.push(Piece::Lost(lost));
            offset += lost;
        }
        if next.is_some() && self.file_len > limit {
            let what = "something stands behind the last entry".into();
            salvage.findings.push(Finding { path: self.path.clone(), offset: limit, what, lost: 0 });
        }
        Ok(pieces)
    }

    /// The length of the entry there, if it is whole.
    fn whole(&mut self, offset: u64, limit: u64) -> Result<Option<u64>> {
        if offset >= self.file_len {
            return Ok(None);
        }
        let position = Position(self.start.0 + offset - HEADER_LEN as u64);
        match self.find(offset, position)? {
            Found::Whole(len) if offset + len as u64 <= limit => {
                if entry::decode(&self.window.at(offset)[FRAME_LEN..len]).is_none() {
                    // Nothing is wrong with it but that it was written by a later program.
                    return Err(self.damaged(offset, "an entry that this program does not know"));
                }
                Ok(Some(len as u64))
            }
            _ => Ok(None),
        }
    }

    /// The entry as it was before one bit of the byte at `at` changed.
    fn mended(&mut self, offset: u64, position: Position, at: u64) -> Result<Option<Vec<u8>>> {
        for bit in 0..8 {
            self.load(offset, FRAME_LEN)?;
            let Some(mut frame) = self.window.at(offset).first_chunk::<FRAME_LEN>().copied() else { break };
            let place = (at - offset) as usize;
            if let Some(byte) = frame.get_mut(place) {
                *byte ^= 1 << bit;
            }
            let size = u32::from_le_bytes(frame[..4].try_into().expect("four bytes"));
            let len = FRAME_LEN as u64 + u64::from(size);
            if size == 0 || offset + len > self.file_len {
                continue;
            }
            self.load(offset, len as usize)?;
            let Some(bytes) = self.window.at(offset).get(..len as usize) else { continue };
            let mut bytes = bytes.to_vec();
            let Some(byte) = bytes.get_mut(place) else { continue };
            *byte ^= 1 << bit;
            let crc =
                crc32c::crc32c_append(entry::crc_of_frame(self.seed, position, size), &bytes[FRAME_LEN..]);
            if bytes[4..8] == crc.to_le_bytes() {
                return match entry::decode(&bytes[FRAME_LEN..]) {
                    Some(_) => Ok(Some(bytes)),
                    None => Err(self.damaged(offset, "an entry that this program does not know")),
                };
            }
        }
        Ok(None)
    }

    /// Where whole entries go on behind a bad one: at once if its size is right, else with the next mark.
    fn resume(&mut self, offset: u64, limit: u64) -> Result<Option<u64>> {
        self.load(offset, FRAME_LEN)?;
        if let Some(size) = self.window.at(offset).first_chunk::<4>() {
            let size = u32::from_le_bytes(*size);
            let behind = offset + FRAME_LEN as u64 + u64::from(size);
            if size > 0 && behind < limit && self.whole(behind, limit)?.is_some() {
                return Ok(Some(behind));
            }
        }
        let mut found = None;
        // One that is nearer than any entry is long is found, too: reading finds it.
        self.each_mark(offset + 1, &mut |at, _| {
            found = Some(at);
            ControlFlow::Break(())
        })?;
        Ok(found.filter(|&at| at < limit))
    }

    /// Writes the segment as it is to be.
    fn write_anew(
        &self,
        disk: &dyn Disk,
        directory: &Path,
        header: Header,
        pieces: &[Piece],
    ) -> io::Result<()> {
        let name = name_of(self.start);
        let partial = directory.join(format!("{name}.partial"));
        if let Err(error) = disk.remove(&partial)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let file = disk.create(&partial)?;
        file.write_at(0, &mut [IoSlice::new(&header.encode())])?;
        let mut end = HEADER_LEN as u64;
        for piece in pieces {
            match piece {
                Piece::Kept { offset, len } => copy(&*self.file, *offset, *len, &*file, &mut end)?,
                Piece::Mended(bytes) => {
                    file.write_at(end, &mut [IoSlice::new(bytes)])?;
                    end += bytes.len() as u64;
                }
                Piece::Lost(lost) => write_lost(self.seed, self.start, *lost, &*file, &mut end)?,
            }
        }
        file.sync()?;
        disk.rename(&partial, &directory.join(name))?;
        disk.sync_directory(directory)
    }
}

/// Writes the log's first segment, or one behind a gap, where a log is missing: it begins at a position, and what it had before another
/// one is marked as lost. `openings`: how often the database has been opened at most.
pub(crate) fn begin_anew(
    disk: &dyn Disk,
    directory: &Path,
    identity: Identity,
    openings: u32,
    (start, next): (Position, Position),
) -> io::Result<()> {
    let name = name_of(start);
    let partial = directory.join(format!("{name}.partial"));
    if let Err(error) = disk.remove(&partial)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let file = disk.create(&partial)?;
    let header = Header { identity, openings, start, made_ms: 0 };
    file.write_at(0, &mut [IoSlice::new(&header.encode())])?;
    let mut end = HEADER_LEN as u64;
    write_lost(identity.seed(), start, next.0 - start.0, &*file, &mut end)?;
    file.sync()?;
    disk.rename(&partial, &directory.join(name))?;
    disk.sync_directory(directory)
}

/// Whether entries can say that so many bytes are lost.
pub(crate) fn can_be_marked(lost: u64) -> bool {
    (SHORTEST..=LOST_MAX).contains(&lost)
}

/// Entries that say that so many bytes are lost, into the segment that begins at `start`.
fn write_lost(seed: u32, start: Position, mut lost: u64, to: &dyn File, end: &mut u64) -> io::Result<()> {
    while lost > 0 {
        // What is left over must have room for an entry.
        let len = if lost > PIECE + SHORTEST { PIECE } else { lost };
        let mut bytes = Vec::new();
        let change = Change::Lost { len: len - SHORTEST };
        entry::encode(&Entry { origin: None, change }, false, &mut bytes);
        let position = Position(start.0 + *end - HEADER_LEN as u64);
        let frame = entry::crc_of_frame(seed, position, (len - FRAME_LEN as u64) as u32);
        let crc = crc32c::crc32c_append(frame, &bytes[FRAME_LEN..]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        to.write_at(*end, &mut [IoSlice::new(&bytes)])?;
        *end += len;
        lost -= len;
    }
    Ok(())
}

fn copy(from: &dyn File, offset: u64, len: u64, to: &dyn File, end: &mut u64) -> io::Result<()> {
    let mut bytes = vec![0; len.min(PIECE) as usize];
    let mut done = 0;
    while done < len {
        let wanted = (len - done).min(PIECE) as usize;
        let got = from.read_at(offset + done, &mut bytes[..wanted])?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_at(*end, &mut [IoSlice::new(&bytes[..got])])?;
        *end += got as u64;
        done += got as u64;
    }
    Ok(())
}
