//! Decodes requests of the binary protocol: a first byte, a command byte, fields.

use super::command::TyrantCommand;
use super::fields::{FieldError, FieldList, FieldReader};
use super::request::{TyrantPutMode, TyrantRequest};
use super::{COUNT_MAX, LEN_MAX, NAME_LEN_MAX, number};

/// The first byte of each binary request.
pub const FIRST_BYTE: u8 = 0xc8;

/// The limits of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TyrantLimits {
    /// The longest key, value, list element, prefix and path, in bytes; at most [`LEN_MAX`].
    pub len_max: usize,
    /// The number of bytes of an incomplete request that may be kept in memory at the moment.
    pub unfinished_len_max: usize,
}

impl Default for TyrantLimits {
    fn default() -> Self {
        TyrantLimits { len_max: LEN_MAX, unfinished_len_max: usize::MAX }
    }
}

/// The result of decoding the unread bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TyrantStep<'a> {
    /// A complete request of `consumed` bytes.
    Request {
        /// The length of the request.
        consumed: usize,
        /// The request.
        request: TyrantRequest<'a>,
    },
    /// The next request does not begin with [`FIRST_BYTE`], so it is a line of text.
    Text,
    /// The request is incomplete, and no bytes of it are consumed.
    NeedMore {
        /// The number of bytes that are missing at least.
        at_least: usize,
    },
    /// The input is not a request, or the request is too long. The connection must be closed
    /// without a reply.
    Close,
}

/// The decoder of a connection. For an incomplete list, it remembers the part that it has examined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TyrantDecoder {
    list: Option<ListPosition>,
}

/// A position in a list, before a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListPosition {
    /// The position in the request, which may be after the end of the input.
    at: usize,
    /// The number of fields that follow the position.
    left: u32,
}

impl TyrantDecoder {
    /// Decodes the next step from `input`, which must contain all unread bytes: the bytes that the
    /// last call did not consume, and the bytes that have arrived since.
    #[inline]
    pub fn decode<'a>(&mut self, limits: &TyrantLimits, input: &'a [u8]) -> TyrantStep<'a> {
        match input {
            [] => return TyrantStep::NeedMore { at_least: 1 },
            [FIRST_BYTE] => return TyrantStep::NeedMore { at_least: 1 },
            [FIRST_BYTE, ..] => {}
            _ => return TyrantStep::Text,
        }
        let Some(command) = TyrantCommand::from_byte(input[1]) else { return TyrantStep::Close };
        let mut reader = FieldReader::new(input, 2);
        match self.fields(command, limits, &mut reader) {
            Ok(request) => {
                self.list = None;
                TyrantStep::Request { consumed: reader.at, request }
            }
            Err(FieldError::Missing(at_least)) if input.len() <= limits.unfinished_len_max => {
                TyrantStep::NeedMore { at_least }
            }
            Err(_) => TyrantStep::Close,
        }
    }

    #[inline]
    fn fields<'a>(
        &mut self,
        command: TyrantCommand,
        limits: &TyrantLimits,
        reader: &mut FieldReader<'a>,
    ) -> Result<TyrantRequest<'a>, FieldError> {
        let len_max = limits.len_max;
        Ok(match command {
            TyrantCommand::Get => TyrantRequest::Get { key: text(reader, len_max)? },
            TyrantCommand::Put => put(TyrantPutMode::Put, reader, len_max)?,
            TyrantCommand::PutKeep => put(TyrantPutMode::Keep, reader, len_max)?,
            TyrantCommand::PutCat => put(TyrantPutMode::Cat, reader, len_max)?,
            TyrantCommand::PutNr => put(TyrantPutMode::NoReply, reader, len_max)?,
            TyrantCommand::PutShl => {
                let (key_len, value_len) = (reader.len(len_max)?, reader.len(len_max)?);
                // A negative width is refused like a negative length.
                let width = reader.len(i32::MAX as usize)? as u32;
                let (key, value) = reader.take_two(key_len, value_len)?;
                TyrantRequest::PutShl { key, value, width }
            }
            TyrantCommand::Out => TyrantRequest::Out { key: text(reader, len_max)? },
            TyrantCommand::VSiz => TyrantRequest::VSiz { key: text(reader, len_max)? },
            TyrantCommand::MGet => {
                let count = reader.len(COUNT_MAX as usize)?;
                TyrantRequest::MGet { keys: self.list(limits, count, reader)? }
            }
            TyrantCommand::IterInit => TyrantRequest::IterInit,
            TyrantCommand::IterNext => TyrantRequest::IterNext,
            TyrantCommand::FwmKeys => {
                let prefix_len = reader.len(len_max)?;
                // A negative number sets no limit.
                let limit = u32::try_from(reader.u32()? as i32).ok();
                TyrantRequest::FwmKeys { prefix: reader.take(prefix_len)?, limit }
            }
            TyrantCommand::AddInt => {
                let key_len = reader.len(len_max)?;
                let delta = reader.u32()? as i32;
                TyrantRequest::AddInt { key: reader.take(key_len)?, delta }
            }
            TyrantCommand::AddDouble => {
                let key_len = reader.len(len_max)?;
                let delta = number::decode(reader.array()?);
                TyrantRequest::AddDouble { key: reader.take(key_len)?, delta }
            }
            TyrantCommand::Ext => {
                let name_len = reader.len(NAME_LEN_MAX)?;
                let options = reader.u32()?;
                let (key_len, value_len) = (reader.len(len_max)?, reader.len(len_max)?);
                let (name, rest) = reader.take_two(name_len, key_len + value_len)?;
                let (key, value) = rest.split_at(key_len);
                TyrantRequest::Ext { name, options, key, value }
            }
            TyrantCommand::Sync => TyrantRequest::Sync,
            TyrantCommand::Optimize => TyrantRequest::Optimize { tuning: text(reader, len_max)? },
            TyrantCommand::Vanish => TyrantRequest::Vanish,
            TyrantCommand::Copy => TyrantRequest::Copy { path: text(reader, len_max)? },
            TyrantCommand::Restore => {
                let path_len = reader.len(len_max)?;
                let (since_micros, options) = (reader.u64()?, reader.u32()?);
                TyrantRequest::Restore { path: reader.take(path_len)?, since_micros, options }
            }
            TyrantCommand::SetMst => {
                let host_len = reader.len(len_max)?;
                let port = reader.u32()?;
                let (since_micros, options) = (reader.u64()?, reader.u32()?);
                TyrantRequest::SetMst { host: reader.take(host_len)?, port, since_micros, options }
            }
            TyrantCommand::RNum => TyrantRequest::RNum,
            TyrantCommand::Size => TyrantRequest::Size,
            TyrantCommand::Stat => TyrantRequest::Stat,
            TyrantCommand::Misc => {
                let name_len = reader.len(NAME_LEN_MAX)?;
                let options = reader.u32()?;
                let count = reader.len(COUNT_MAX as usize)?;
                let name = reader.take(name_len)?;
                TyrantRequest::Misc { name, options, arguments: self.list(limits, count, reader)? }
            }
            TyrantCommand::Repl => {
                TyrantRequest::Repl { since_micros: reader.u64()?, server_id: reader.u32()? }
            }
        })
    }

    /// Reads the fields of a list. The caller has read their number.
    fn list<'a>(
        &mut self,
        limits: &TyrantLimits,
        count: usize,
        reader: &mut FieldReader<'a>,
    ) -> Result<FieldList<'a>, FieldError> {
        let (begin, count) = (reader.at, count as u32);
        let mut position = self.list.unwrap_or(ListPosition { at: begin, left: count });
        while position.left > 0 {
            self.list = Some(position);
            reader.at = position.at;
            let len = reader.len(limits.len_max)?;
            position = ListPosition { at: reader.at + len, left: position.left - 1 };
        }
        self.list = Some(position);
        reader.at = begin;
        Ok(FieldList::new(count, reader.take(position.at - begin)?))
    }
}

/// Reads a length, and the byte string of this length after it.
#[inline]
fn text<'a>(reader: &mut FieldReader<'a>, len_max: usize) -> Result<&'a [u8], FieldError> {
    let len = reader.len(len_max)?;
    reader.take(len)
}

#[inline]
fn put<'a>(
    mode: TyrantPutMode,
    reader: &mut FieldReader<'a>,
    len_max: usize,
) -> Result<TyrantRequest<'a>, FieldError> {
    let (key_len, value_len) = (reader.len(len_max)?, reader.len(len_max)?);
    let (key, value) = reader.take_two(key_len, value_len)?;
    Ok(TyrantRequest::Put { mode, key, value })
}
