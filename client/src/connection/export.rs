//! Requests checkpoints, backups and update logs of a server's data on disk
//! (docs/protocol/exports.md).

use super::{Connection, unexpected};
use crate::Error;
use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::str::FromStr;
use todana_protocol::memcached::client::ClientResponse;

/// The largest frame, in bytes.
const FRAME_LEN_MAX: usize = 65_536;

/// A checkpoint that a server has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedCheckpoint {
    /// The position in the update log from which a replay continues.
    pub position: u64,
    /// The number of records.
    pub records: u64,
    /// The length of the checkpoint in bytes.
    pub len: u64,
    /// The time that the checkpoint took.
    pub took_ms: u64,
}

/// The position from which to read an update log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFrom {
    /// The oldest position that the log still has.
    First,
    /// This position.
    At(u64),
    /// The current end of the log.
    End,
}

/// The header of a part of an update log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHeader {
    /// The position of the first byte of data.
    pub position: u64,
    /// The ID of the database.
    pub database_id: [u8; 16],
    /// The ID of the server.
    pub server_id: u32,
}

/// A frame of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportFrame<'a> {
    /// The next bytes.
    Data(&'a [u8]),
    /// The server has no more data yet.
    Wait,
    /// The export is complete, and the connection accepts requests again.
    End,
}

/// The words of a request that select a database. The first database needs no words, so that older
/// servers understand the request.
struct DatabaseSelector(u32);

impl fmt::Display for DatabaseSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, " db {}", self.0) }
    }
}

impl fmt::Display for LogFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogFrom::First => f.write_str("first"),
            LogFrom::At(position) => position.fmt(f),
            LogFrom::End => f.write_str("end"),
        }
    }
}

impl Connection {
    /// Selects the server's database with this number for all further commands on records.
    pub fn use_database(&mut self, number: u32) -> Result<(), Error> {
        self.simple(&format!("todana use {number}")).map(drop)
    }

    /// Asks the server for a checkpoint of the database with this number, and waits until the
    /// checkpoint is on disk.
    pub fn checkpoint(&mut self, database: u32) -> Result<CompletedCheckpoint, Error> {
        self.line(&format!("todana checkpoint{}", DatabaseSelector(database)))?;
        let head = self.head(b"CHECKPOINT")?;
        Ok(CompletedCheckpoint {
            position: head.number("position")?,
            records: head.number("records")?,
            len: head.number("bytes")?,
            took_ms: head.number("ms")?,
        })
    }

    /// Makes the server the master, and waits until it is. With `is_forced`, its records need not
    /// be complete. Returns the number of the epoch.
    pub fn promote(&mut self, is_forced: bool) -> Result<u64, Error> {
        self.line(if is_forced { "todana promote force" } else { "todana promote" })?;
        self.head(b"PROMOTED")?.number("epoch")
    }

    /// Requests a backup of the database with this number. The server sends at most `rate` bytes
    /// per second. [`next_frame`](Self::next_frame) returns the frames.
    pub fn begin_backup(&mut self, database: u32, rate: Option<NonZeroU64>) -> Result<(), Error> {
        let rate = rate.map(|rate| format!(" {rate}")).unwrap_or_default();
        self.line(&format!("todana backup{rate}{}", DatabaseSelector(database)))
    }

    /// Requests the update log of the database with this number, and also future changes if
    /// `follows`. [`next_frame`](Self::next_frame) returns the bytes of the log, which are not
    /// verified.
    pub fn begin_log(&mut self, database: u32, from: LogFrom, follows: bool) -> Result<LogHeader, Error> {
        let follow = if follows { " follow" } else { "" };
        self.line(&format!("todana log {from}{follow}{}", DatabaseSelector(database)))?;
        let head = self.head(b"LOG")?;
        let id = head.field("database")?;
        let id = u128::from_str_radix(id, 16).ok().filter(|_| id.len() == 32).ok_or(Error::MalformedReply)?;
        let (position, server_id) = (head.number("position")?, head.number("server")?);
        Ok(LogHeader { position, database_id: id.to_be_bytes(), server_id })
    }

    /// Passes the next frame of an export to `see`. Refuses a frame of more than 65,536 bytes
    /// before receiving it.
    pub fn next_frame<T>(&mut self, see: impl FnOnce(ExportFrame<'_>) -> T) -> Result<T, Error> {
        self.response_within(FRAME_LEN_MAX, |response| match response {
            ClientResponse::Data(bytes) => Ok(see(ExportFrame::Data(bytes))),
            ClientResponse::Line(b"WAIT") => Ok(see(ExportFrame::Wait)),
            ClientResponse::Line(b"END") => Ok(see(ExportFrame::End)),
            other => Err(unexpected(other)),
        })
        .map_err(|error| match self.frame_too_long() {
            Some(len) if matches!(error, Error::MalformedReply) => {
                let error =
                    format!("the server sends a frame of {len} bytes, and they have at most {FRAME_LEN_MAX}");
                io::Error::new(io::ErrorKind::InvalidData, error).into()
            }
            _ => error,
        })
    }

    /// Returns the length that the next frame announces, if it exceeds the maximum.
    fn frame_too_long(&self) -> Option<u64> {
        let line = self.input.get(self.at..)?.split(|&byte| byte == b'\r').next()?;
        let len = std::str::from_utf8(line.strip_prefix(b"DATA ")?).ok()?.parse().ok()?;
        (len > FRAME_LEN_MAX as u64).then_some(len)
    }

    /// Reads a line that starts with `word` and returns its fields.
    fn head(&mut self, word: &[u8]) -> Result<LineFields, Error> {
        loop {
            let found = self.response_within(FRAME_LEN_MAX, |response| match response {
                ClientResponse::Line(b"WAIT") => Ok(None),
                ClientResponse::Line(line) if line.split(|&byte| byte == b' ').next() == Some(word) => {
                    Ok(Some(String::from_utf8_lossy(line).into_owned()))
                }
                other => Err(unexpected(other)),
            })?;
            if let Some(line) = found {
                return Ok(LineFields(line));
            }
        }
    }
}

/// The fields of a line, each `name=value`.
struct LineFields(String);

impl LineFields {
    fn field(&self, name: &str) -> Result<&str, Error> {
        let found = self.0.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        found.ok_or(Error::MalformedReply)
    }

    fn number<T: FromStr>(&self, name: &str) -> Result<T, Error> {
        self.field(name)?.parse().map_err(|_| Error::MalformedReply)
    }
}
