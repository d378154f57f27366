//! What a server makes of the data that it keeps on disk, and sends: docs/protocol/exports.md.

use super::{Connection, unexpected};
use crate::Error;
use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::str::FromStr;
use todana_protocol::memcached::client::Response;

/// What one frame carries at most.
const FRAME_LEN_MAX: usize = 65_536;

/// A checkpoint that a server has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// Where the update log is read from on top of it.
    pub position: u64,
    /// How many records it has.
    pub records: u64,
    /// Its length in bytes.
    pub len: u64,
    /// How long it took.
    pub took_ms: u64,
}

/// Where an update log is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFrom {
    /// As far back as it goes.
    First,
    /// This position.
    At(u64),
    /// Where it ends.
    End,
}

/// What a stretch of an update log begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHead {
    /// The position of the first byte of data.
    pub position: u64,
    /// The database.
    pub database_id: [u8; 16],
    /// The server.
    pub server_id: u32,
}

/// A part of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// The next bytes.
    Data(&'a [u8]),
    /// The server has nothing to say yet.
    Wait,
    /// That was all. The connection is as good as before.
    End,
}

/// The words that say of which database; none for the first, so that older servers understand.
struct Of(u32);

impl fmt::Display for Of {
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
    /// Has all further commands on records go to this database of the server, by its number.
    pub fn use_database(&mut self, number: u32) -> Result<(), Error> {
        self.simple(&format!("todana use {number}")).map(drop)
    }

    /// Has the server make a checkpoint of a database, by its number, and waits until it is on disk.
    pub fn checkpoint(&mut self, database: u32) -> Result<Made, Error> {
        self.line(&format!("todana checkpoint{}", Of(database)))?;
        let head = self.head(b"CHECKPOINT")?;
        Ok(Made {
            position: head.number("position")?,
            records: head.number("records")?,
            len: head.number("bytes")?,
            took_ms: head.number("ms")?,
        })
    }

    /// Asks for a backup of a database, by its number, at so many bytes a second at most; [`next_frame`](Self::next_frame) shows it.
    pub fn begin_backup(&mut self, database: u32, rate: Option<NonZeroU64>) -> Result<(), Error> {
        let rate = rate.map(|rate| format!(" {rate}")).unwrap_or_default();
        self.line(&format!("todana backup{rate}{}", Of(database)))
    }

    /// Asks for the update log of a database, by its number, and for what is changed from now on too if it `follows`; [`next_frame`](Self::next_frame) shows
    /// its bytes, which nobody has checked.
    pub fn begin_log(&mut self, database: u32, from: LogFrom, follows: bool) -> Result<LogHead, Error> {
        let follow = if follows { " follow" } else { "" };
        self.line(&format!("todana log {from}{follow}{}", Of(database)))?;
        let head = self.head(b"LOG")?;
        let id = head.field("database")?;
        let id = u128::from_str_radix(id, 16).ok().filter(|_| id.len() == 32).ok_or(Error::Malformed)?;
        let (position, server_id) = (head.number("position")?, head.number("server")?);
        Ok(LogHead { position, database_id: id.to_be_bytes(), server_id })
    }

    /// Shows the next part of what was asked for. A frame of more than 65,536 bytes is refused before it is taken.
    pub fn next_frame<T>(&mut self, see: impl FnOnce(Frame<'_>) -> T) -> Result<T, Error> {
        self.response_within(FRAME_LEN_MAX, |response| match response {
            Response::Data(bytes) => Ok(see(Frame::Data(bytes))),
            Response::Line(b"WAIT") => Ok(see(Frame::Wait)),
            Response::Line(b"END") => Ok(see(Frame::End)),
            other => Err(unexpected(other)),
        })
        .map_err(|error| match self.frame_too_long() {
            Some(len) if matches!(error, Error::Malformed) => {
                let error =
                    format!("the server sends a frame of {len} bytes, and they have at most {FRAME_LEN_MAX}");
                io::Error::new(io::ErrorKind::InvalidData, error).into()
            }
            _ => error,
        })
    }

    /// The length of the frame that comes next, as its line says, if it is more than a frame has.
    fn frame_too_long(&self) -> Option<u64> {
        let line = self.input.get(self.at..)?.split(|&byte| byte == b'\r').next()?;
        let len = std::str::from_utf8(line.strip_prefix(b"DATA ")?).ok()?.parse().ok()?;
        (len > FRAME_LEN_MAX as u64).then_some(len)
    }

    /// The words of the line that begins with this one.
    fn head(&mut self, word: &[u8]) -> Result<Fields, Error> {
        loop {
            let found = self.response_within(FRAME_LEN_MAX, |response| match response {
                Response::Line(b"WAIT") => Ok(None),
                Response::Line(line) if line.split(|&byte| byte == b' ').next() == Some(word) => {
                    Ok(Some(String::from_utf8_lossy(line).into_owned()))
                }
                other => Err(unexpected(other)),
            })?;
            if let Some(line) = found {
                return Ok(Fields(line));
            }
        }
    }
}

/// Words of a line, `name=value` each.
struct Fields(String);

impl Fields {
    fn field(&self, name: &str) -> Result<&str, Error> {
        let found = self.0.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        found.ok_or(Error::Malformed)
    }

    fn number<T: FromStr>(&self, name: &str) -> Result<T, Error> {
        self.field(name)?.parse().map_err(|_| Error::Malformed)
    }
}
