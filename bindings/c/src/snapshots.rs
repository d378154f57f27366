//! Exports Kyoto Cabinet's snapshots (.kcss) of a database, as files and as streams.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{ResultPlace, TODANA_OK, answer, invalid, visiting};
use crate::database::{required, with_db};
use crate::open_database::DatabaseHandle;
use crate::raw::{Bytes, CText};
use crate::visitors::there;
use std::ffi::{c_int, c_void};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::path::Path;
use todana::{DumpedValues, Result};

/// Values without expiry, as Kyoto Cabinet writes them.
pub const TODANA_BARE: c_int = 0;
/// Values with their expiry in five bytes before them, as Kyoto Tycoon writes them.
pub const TODANA_TIMED: c_int = 1;

/// Receives the next piece of a stream and returns 0 to continue. Must not call the library.
pub type StreamSink = Option<extern "C" fn(context: *mut c_void, piece: Bytes) -> c_int>;

/// Writes up to `room` bytes of a stream to `piece` and returns their number: 0 at the end, or a
/// negative number on failure. Must not call the library.
pub type StreamSource = Option<extern "C" fn(context: *mut c_void, piece: *mut c_void, room: usize) -> isize>;

/// Writes all records, as of one moment, to a file in the format of Kyoto Cabinet's snapshots.
/// Stores their number in `dumped`, unless it is NULL. `values`: TODANA_BARE or TODANA_TIMED.
/// Replaces an existing file after the snapshot is complete and on disk.
#[unsafe(no_mangle)]
pub extern "C" fn todana_dump_snapshot(
    db: *mut DatabaseHandle,
    path: CText,
    values: c_int,
    dumped: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let (path, values) = (Path::new(required(&path, "path")?), values_of(values)?);
        dumped.put(with_db(db, |db| db.dump_snapshot_file(path, values))?);
        Ok(TODANA_OK)
    })
}

/// Stores the records of a snapshot file, and replaces existing records. Stores their number in
/// `loaded`, unless it is NULL. Skips expired records. TODANA_CORRUPT: the file is damaged or
/// incomplete. The message names the place, and nothing is stored.
#[unsafe(no_mangle)]
pub extern "C" fn todana_load_snapshot(
    db: *mut DatabaseHandle,
    path: CText,
    values: c_int,
    loaded: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let (path, values) = (Path::new(required(&path, "path")?), values_of(values)?);
        loaded.put(with_db(db, |db| db.load_snapshot_file(path, values))?.stored);
        Ok(TODANA_OK)
    })
}

/// Writes a snapshot like todana_dump_snapshot(), but to a stream. TODANA_UNAVAILABLE: `sink` did
/// not return 0.
#[unsafe(no_mangle)]
pub extern "C" fn todana_stream_snapshot(
    db: *mut DatabaseHandle,
    sink: StreamSink,
    context: *mut c_void,
    values: c_int,
    dumped: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let (mut stream, values) = (SinkStream { sink: there(sink)?, context }, values_of(values)?);
        dumped.put(with_db(db, |db| db.dump_snapshot(&mut stream, values))?);
        Ok(TODANA_OK)
    })
}

/// Stores the records of a snapshot like todana_load_snapshot(), but from a stream. If the stream
/// is damaged or fails, the records before that place are stored.
#[unsafe(no_mangle)]
pub extern "C" fn todana_take_snapshot(
    db: *mut DatabaseHandle,
    source: StreamSource,
    context: *mut c_void,
    values: c_int,
    loaded: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let (mut stream, values) = (SourceStream { source: there(source)?, context }, values_of(values)?);
        loaded.put(with_db(db, |db| db.load_snapshot(&mut stream, values))?.stored);
        Ok(TODANA_OK)
    })
}

fn values_of(values: c_int) -> Result<DumpedValues> {
    match values {
        TODANA_BARE => Ok(DumpedValues::Bare),
        TODANA_TIMED => Ok(DumpedValues::Timed),
        other => Err(invalid(format!("there are no values of kind {other}"))),
    }
}

struct SinkStream {
    sink: extern "C" fn(context: *mut c_void, piece: Bytes) -> c_int,
    context: *mut c_void,
}

impl Write for SinkStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match visiting(|| (self.sink)(self.context, Bytes::lend(bytes))) {
            0 => Ok(bytes.len()),
            code => Err(io::Error::other(format!("the function for pieces returned {code}"))),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct SourceStream {
    source: extern "C" fn(context: *mut c_void, piece: *mut c_void, room: usize) -> isize,
    context: *mut c_void,
}

impl Read for SourceStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let room = bytes.len();
        let code = visiting(|| (self.source)(self.context, bytes.as_mut_ptr().cast(), room));
        match usize::try_from(code) {
            Ok(len) if len <= room => Ok(len),
            _ => Err(io::Error::other(format!("the function for pieces returned {code}"))),
        }
    }
}
