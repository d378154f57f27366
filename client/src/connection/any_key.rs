//! Records whose keys may be any bytes: the key goes as it is where a line can carry it, and in base64, by a meta command,
//! where it cannot.

use super::{Connection, unexpected};
use crate::Error;
use std::io::Write;
use todana_core::ArithmeticDirection;
use todana_protocol::memcached::client::{Invalid, KEY_LEN_MAX, Meta, Response, Want};

/// A record as it lies in what the server sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// The value.
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
}

/// Whether a key can only be sent in base64: blank and line end would end its word, and to memcached 1.6.18 a NUL is the
/// end of the whole line (seen: it then takes the value of a `set` for commands).
pub fn needs_base64(key: &[u8]) -> bool {
    key.iter().any(|byte| matches!(byte, b' ' | b'\n' | 0))
}

impl Connection {
    /// Reads records whose keys may be any bytes, and shows each as it arrives, so that one value is held at a time:
    /// `see` is told the index of its key. It is told an [`Error::Invalid`] for a key that no request can carry (one that
    /// needs base64 and is longer than 186 bytes), an [`Error::Refused`] where the server does not take base64, and
    /// nothing of a record that is missing.
    ///
    /// This is for any server. To one that takes meta commands it is a client like others, whose reads keep records alive:
    /// see [`Connection::peek_any`].
    pub fn read_any(
        &mut self,
        keys: &[&[u8]],
        mut see: impl FnMut(usize, Result<Found<'_>, Error>),
    ) -> Result<(), Error> {
        let (in_base64, in_text): (Vec<usize>, _) = (0..keys.len()).partition(|&at| needs_base64(keys[at]));
        self.read_in_text(keys, &in_text, &mut see)?;
        self.peek(keys, &in_base64, &mut see)
    }

    /// As [`Connection::read_any`], by meta commands alone, and such as do not count as access: an expiry that slides stays
    /// where it is, and so does what the server notes in order to evict. Ask [`Connection::takes_meta`] before.
    pub fn peek_any(
        &mut self,
        keys: &[&[u8]],
        mut see: impl FnMut(usize, Result<Found<'_>, Error>),
    ) -> Result<(), Error> {
        let all: Vec<usize> = (0..keys.len()).collect();
        self.peek(keys, &all, &mut see)
    }

    fn read_in_text(
        &mut self,
        keys: &[&[u8]],
        indices: &[usize],
        see: &mut impl FnMut(usize, Result<Found<'_>, Error>),
    ) -> Result<(), Error> {
        let start = self.output.len();
        self.output.extend_from_slice(b"get");
        let mut asked = Vec::with_capacity(indices.len());
        for &at in indices {
            if check_len(keys[at]).is_err() {
                see(at, Err(Invalid::Key.into()));
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
                Response::Line(b"END") => Ok(false),
                Response::Value { key, flags, value, .. } => match asked.find(|&at| keys[at] == key) {
                    Some(at) => {
                        see(at, Ok(Found { value, flags }));
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
        see: &mut impl FnMut(usize, Result<Found<'_>, Error>),
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
                Response::Meta { code: [b'E', b'N'], .. } => Ok(()),
                Response::Meta { code: [b'V', b'A'], flags, value: Some(value) } => {
                    if flags.has(b'W') {
                        won.push(at);
                    }
                    let flags = flags.number(b'f').and_then(|flags| u32::try_from(flags).ok());
                    see(at, Ok(Found { value, flags: flags.ok_or(Error::Malformed)? }));
                    Ok(())
                }
                other => Err(unexpected(other)),
            });
            match outcome {
                Err(refused @ Error::Refused(_)) => see(at, Err(refused)),
                outcome => outcome?,
            }
        }
        won.into_iter().try_for_each(|at| self.hand_back(keys[at]))
    }

    /// Whoever first reads a stale record is told to compute it anew, and nobody else is. This one will not, so the record
    /// is marked as stale once more, for the next reader. (If it has been computed meanwhile, that is done once too often.)
    fn hand_back(&mut self, key: &[u8]) -> Result<(), Error> {
        let Ok(request) = Meta::delete(&mut self.output, key) else { return Ok(()) };
        request.mark_stale().end()?;
        self.flush()?;
        self.response(|response| match response {
            Response::Meta { code: [b'H', b'D'] | [b'N', b'F'], .. } => Ok(()),
            other => Err(unexpected(other)),
        })
    }

    /// Writes a `set` of a key of any bytes, without sending it; its outcome is for `read_outcome`, in order. Ask
    /// [`Connection::takes_meta`] before the first key that [`needs_base64`].
    pub fn write_any(&mut self, key: &[u8], value: &[u8], flags: u32, exptime: i32) -> Result<(), Error> {
        if needs_base64(key) {
            return Ok(Meta::set(&mut self.output, key, value)?.flags(flags).ttl(exptime).end()?);
        }
        check_len(key)?;
        self.output.extend_from_slice(b"set ");
        self.output.extend_from_slice(key);
        write!(self.output, " {flags} {exptime} {}\r\n", value.len())?;
        self.output.extend_from_slice(value);
        self.output.extend_from_slice(b"\r\n");
        Ok(())
    }

    /// As [`Connection::write_any`], of a record that lives for so many seconds after its last access, which memcached does
    /// not know: it refuses.
    pub fn write_sliding(&mut self, key: &[u8], value: &[u8], flags: u32, span_s: u32) -> Result<(), Error> {
        Ok(Meta::set(&mut self.output, key, value)?.flags(flags).sliding(span_s).end()?)
    }

    /// Adds to (or subtracts from) a number, which is created as `initial` if there is no such record. Needs meta commands.
    pub fn count_or_create(&mut self, key: &[u8], delta: u64, up: bool, initial: u64) -> Result<u64, Error> {
        let direction = if up { ArithmeticDirection::Increment } else { ArithmeticDirection::Decrement };
        Meta::arithmetic(&mut self.output, key)?
            .direction(direction)
            .delta(delta)
            .vivify(0)
            .initial(initial)
            .want(Want::Value)
            .end()?;
        self.flush()?;
        self.response(|response| match response {
            Response::Meta { code: [b'V', b'A'], value: Some(value), .. } => {
                let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                number.ok_or(Error::Malformed)
            }
            other => Err(unexpected(other)),
        })
    }

    /// Asks whether the server takes meta commands, and with them keys in base64. One that does not, as memcached before
    /// 1.6, would take the value of such a write for commands. No other reply may be due.
    pub fn takes_meta(&mut self) -> Result<bool, Error> {
        Meta::get(&mut self.output, b" ")?.unnoticed().end()?;
        self.flush()?;
        let outcome = self.response(|response| match response {
            Response::Meta { code: [b'E', b'N'] | [b'H', b'D'], .. } => Ok(true),
            other => Err(unexpected(other)),
        });
        match outcome {
            Err(Error::Refused(_)) => Ok(false),
            outcome => outcome,
        }
    }
}

/// A read of flags and value that is no access.
fn put_peek(out: &mut Vec<u8>, key: &[u8]) -> Result<(), Invalid> {
    if !needs_base64(key) && Meta::get(out, key).is_err() {
        // Control characters, and too many of them for base64.
        check_len(key)?;
        out.extend_from_slice(&[b"mg ", key, b" f v u\r\n"].concat());
        return Ok(());
    }
    Meta::get(out, key)?.want(Want::Flags).want(Want::Value).unnoticed().end()
}

fn check_len(key: &[u8]) -> Result<(), Invalid> {
    if key.is_empty() || key.len() > KEY_LEN_MAX { Err(Invalid::Key) } else { Ok(()) }
}
