//! Reads and writes records whose keys have any bytes. A key is sent as it is if a text line can
//! carry it, otherwise in base64 by a meta command.

use super::{Connection, unexpected};
use crate::Error;
use std::io::Write;
use todana_core::ArithmeticDirection;
use todana_protocol::memcached::client::{
    ClientResponse, InvalidRequest, KEY_LEN_MAX, MetaField, MetaRequest,
};

/// A record that was found. It borrows from the bytes that the server sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundRecord<'a> {
    /// The value.
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
}

/// Returns true if a key can only be sent in base64. A blank or a line end would end the word. A
/// NUL ends the complete line in memcached 1.6.18, which then reads the value of a `set` as
/// commands.
pub fn needs_base64(key: &[u8]) -> bool {
    key.iter().any(|byte| matches!(byte, b' ' | b'\n' | 0))
}

impl Connection {
    /// Reads records whose keys have any bytes. Passes each record to `see` as it arrives, with the
    /// index of its key, so that only one value is in memory at a time. `see` is not called for
    /// missing records.
    ///
    /// `see` receives [`Error::Invalid`] for a key that no request can carry: one that needs base64
    /// and is longer than 186 bytes. It receives [`Error::Refused`] if the server does not accept
    /// base64.
    ///
    /// Works with any server. A server with meta commands counts these reads as accesses, which
    /// extends sliding expiries. [`Connection::peek_any`] avoids that.
    pub fn read_any(
        &mut self,
        keys: &[&[u8]],
        mut see: impl FnMut(usize, Result<FoundRecord<'_>, Error>),
    ) -> Result<(), Error> {
        let (in_base64, in_text): (Vec<usize>, _) = (0..keys.len()).partition(|&at| needs_base64(keys[at]));
        self.read_in_text(keys, &in_text, &mut see)?;
        self.peek(keys, &in_base64, &mut see)
    }

    /// Reads like [`Connection::read_any`], but only by meta commands that do not count as
    /// accesses, so that sliding expiries and the order of evictions stay unchanged. Call
    /// [`Connection::takes_meta`] first.
    pub fn peek_any(
        &mut self,
        keys: &[&[u8]],
        mut see: impl FnMut(usize, Result<FoundRecord<'_>, Error>),
    ) -> Result<(), Error> {
        let all: Vec<usize> = (0..keys.len()).collect();
        self.peek(keys, &all, &mut see)
    }

    fn read_in_text(
        &mut self,
        keys: &[&[u8]],
        indices: &[usize],
        see: &mut impl FnMut(usize, Result<FoundRecord<'_>, Error>),
    ) -> Result<(), Error> {
        let start = self.output.len();
        self.output.extend_from_slice(b"get");
        let mut asked = Vec::with_capacity(indices.len());
        for &at in indices {
            if check_len(keys[at]).is_err() {
                see(at, Err(InvalidRequest::Key.into()));
                continue;
            }
            self.output.push(b' ');
            self.output.extend_from_slice(keys[at]);
            asked.push(at);
        }
        if asked.is_empty() {
            self.output.truncate(start);
            return Ok(());
        }
        self.output.extend_from_slice(b"\r\n");
        self.flush()?;
        let mut asked = asked.into_iter();
        loop {
            let is_more = self.response(|response| match response {
                ClientResponse::Line(b"END") => Ok(false),
                ClientResponse::Value { key, flags, value, .. } => match asked.find(|&at| keys[at] == key) {
                    Some(at) => {
                        see(at, Ok(FoundRecord { value, flags }));
                        Ok(true)
                    }
                    None => Err(unexpected(response)),
                },
                other => Err(unexpected(other)),
            })?;
            if !is_more {
                return Ok(());
            }
        }
    }

    fn peek(
        &mut self,
        keys: &[&[u8]],
        indices: &[usize],
        see: &mut impl FnMut(usize, Result<FoundRecord<'_>, Error>),
    ) -> Result<(), Error> {
        let mut asked = Vec::with_capacity(indices.len());
        for &at in indices {
            match put_peek(&mut self.output, keys[at]) {
                Ok(()) => asked.push(at),
                Err(invalid) => see(at, Err(invalid.into())),
            }
        }
        if !asked.is_empty() {
            self.flush()?;
        }
        let mut won = Vec::new();
        for at in asked {
            let outcome = self.response(|response| match response {
                ClientResponse::Meta { code: [b'E', b'N'], .. } => Ok(()),
                ClientResponse::Meta { code: [b'V', b'A'], flags, value: Some(value) } => {
                    if flags.has(b'W') {
                        won.push(at);
                    }
                    let flags = flags.number(b'f').and_then(|flags| u32::try_from(flags).ok());
                    see(at, Ok(FoundRecord { value, flags: flags.ok_or(Error::MalformedReply)? }));
                    Ok(())
                }
                other => Err(unexpected(other)),
            });
            match outcome {
                Err(refused @ Error::Refused(_)) => see(at, Err(refused)),
                outcome => outcome?,
            }
        }
        won.into_iter().try_for_each(|at| self.mark_stale_again(keys[at]))
    }

    /// Marks a stale record as stale again. The server asks only the first reader of a stale record
    /// to recompute it. This reader will not do so, and the new mark makes the server ask the next
    /// reader. If another client has recomputed the record meanwhile, the next reader recomputes it
    /// needlessly.
    fn mark_stale_again(&mut self, key: &[u8]) -> Result<(), Error> {
        let Ok(request) = MetaRequest::delete(&mut self.output, key) else { return Ok(()) };
        request.mark_stale().end()?;
        self.flush()?;
        self.response(|response| match response {
            ClientResponse::Meta { code: [b'H', b'D'] | [b'N', b'F'], .. } => Ok(()),
            other => Err(unexpected(other)),
        })
    }

    /// Buffers a `set` of a key of any bytes. `read_outcome` returns the outcomes in order. Call
    /// [`Connection::takes_meta`] before the first key for which [`needs_base64`] returns true.
    pub fn write_any(&mut self, key: &[u8], value: &[u8], flags: u32, exptime: i32) -> Result<(), Error> {
        if needs_base64(key) {
            return Ok(MetaRequest::set(&mut self.output, key, value)?.flags(flags).ttl(exptime).end()?);
        }
        check_len(key)?;
        self.output.extend_from_slice(b"set ");
        self.output.extend_from_slice(key);
        write!(self.output, " {flags} {exptime} {}\r\n", value.len())?;
        self.output.extend_from_slice(value);
        self.output.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// Buffers a `set` like [`Connection::write_any`], for a record that expires `span_s` seconds
    /// after its last access. memcached refuses such a request.
    pub fn write_sliding(&mut self, key: &[u8], value: &[u8], flags: u32, span_s: u32) -> Result<(), Error> {
        Ok(MetaRequest::set(&mut self.output, key, value)?.flags(flags).sliding(span_s).end()?)
    }

    /// Adds to a number or subtracts from it. A missing number is created as `initial`. Needs a
    /// server with meta commands.
    pub fn count_or_create(&mut self, key: &[u8], delta: u64, up: bool, initial: u64) -> Result<u64, Error> {
        let direction = if up { ArithmeticDirection::Increment } else { ArithmeticDirection::Decrement };
        MetaRequest::arithmetic(&mut self.output, key)?
            .direction(direction)
            .delta(delta)
            .vivify(0)
            .initial(initial)
            .want(MetaField::Value)
            .end()?;
        self.flush()?;
        self.response(|response| match response {
            ClientResponse::Meta { code: [b'V', b'A'], value: Some(value), .. } => {
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                number.ok_or(Error::MalformedReply)
            }
            other => Err(unexpected(other)),
        })
    }

    /// Returns true if the server accepts meta commands, and therefore keys in base64. A server
    /// without them, such as memcached before 1.6, would read the value of such a write as
    /// commands. Must not be called while replies are outstanding.
    pub fn takes_meta(&mut self) -> Result<bool, Error> {
        MetaRequest::get(&mut self.output, b" ")?.without_access().end()?;
        self.flush()?;
        let outcome = self.response(|response| match response {
            ClientResponse::Meta { code: [b'E', b'N'] | [b'H', b'D'], .. } => Ok(true),
            other => Err(unexpected(other)),
        });
        match outcome {
            Err(Error::Refused(_)) => Ok(false),
            outcome => outcome,
        }
    }
}

/// Appends a request that reads flags and value and does not count as an access.
fn put_peek(out: &mut Vec<u8>, key: &[u8]) -> Result<(), InvalidRequest> {
    if !needs_base64(key) && MetaRequest::get(out, key).is_err() {
        // The key contains control characters, but is too long for base64.
        check_len(key)?;
        out.extend_from_slice(&[b"mg ", key, b" f v u\r\n"].concat());
        return Ok(());
    }
    MetaRequest::get(out, key)?.want(MetaField::Flags).want(MetaField::Value).without_access().end()
}

fn check_len(key: &[u8]) -> Result<(), InvalidRequest> {
    if key.is_empty() || key.len() > KEY_LEN_MAX { Err(InvalidRequest::Key) } else { Ok(()) }
}
