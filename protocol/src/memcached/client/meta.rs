//! Requests of the meta dialect.

use super::request::{Invalid, KEY_LEN_MAX, check_key, is_word};
use super::text::put_number;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use todana_core::{ArithmeticDirection, StoreMode};

/// The longest text behind `O`.
const OPAQUE_LEN_MAX: usize = 31;
/// Command and key take two of twenty words.
const FLAGS_MAX: u32 = 18;

/// What a meta reply shall tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// `v`: the value.
    Value,
    /// `k`: the key.
    Key,
    /// `s`: the length of the value.
    Size,
    /// `c`: the version.
    Version,
    /// `t`: seconds to live, -1 for ever.
    TimeLeft,
    /// `f`: the client's flags.
    Flags,
    /// `h`: whether it has been read before.
    Fetched,
    /// `l`: seconds since the last access.
    SinceAccess,
}

/// A meta request on its way into a buffer. Each method adds a flag; [`Meta::end`] ends it. One that is dropped without
/// that, or proves invalid, leaves the buffer as it was.
///
/// A key that the text dialect cannot send goes out in base64 (`b`), which costs a third of its length.
#[derive(Debug)]
#[must_use = "a request is written by `end`"]
pub struct Meta<'o, 'v> {
    out: &'o mut Vec<u8>,
    start: usize,
    value: Option<&'v [u8]>,
    flags: u32,
    invalid: Option<Invalid>,
    is_whole: bool,
}

impl<'o, 'v> Meta<'o, 'v> {
    /// `mg`: read a record.
    pub fn get(out: &'o mut Vec<u8>, key: &[u8]) -> Result<Self, Invalid> {
        Meta::new(out, b"mg ", key, None)
    }

    /// `ms`: store a record.
    pub fn set(out: &'o mut Vec<u8>, key: &[u8], value: &'v [u8]) -> Result<Self, Invalid> {
        Meta::new(out, b"ms ", key, Some(value))
    }

    /// `md`: remove a record, or mark it.
    pub fn delete(out: &'o mut Vec<u8>, key: &[u8]) -> Result<Self, Invalid> {
        Meta::new(out, b"md ", key, None)
    }

    /// `ma`: count; by one, upwards, unless flags say otherwise.
    pub fn arithmetic(out: &'o mut Vec<u8>, key: &[u8]) -> Result<Self, Invalid> {
        Meta::new(out, b"ma ", key, None)
    }

    /// `me`: attributes of a record, for debugging.
    pub fn inspect(out: &'o mut Vec<u8>, key: &[u8]) -> Result<Self, Invalid> {
        Meta::new(out, b"me ", key, None)
    }

    fn new(out: &'o mut Vec<u8>, verb: &[u8], key: &[u8], value: Option<&'v [u8]>) -> Result<Self, Invalid> {
        let is_word = check_key(key).is_ok();
        // The limit is that of the word as it stands on the line.
        if !is_word && (key.is_empty() || key.len().div_ceil(3) * 4 > KEY_LEN_MAX) {
            return Err(Invalid::Key);
        }
        let start = out.len();
        out.extend_from_slice(verb);
        if is_word {
            out.extend_from_slice(key);
        } else {
            let mut text = [0; KEY_LEN_MAX];
            let len = STANDARD.encode_slice(key, &mut text).map_err(|_| Invalid::Key)?;
            out.extend_from_slice(&text[..len]);
        }
        if let Some(value) = value {
            put_number(out, value.len());
        }
        let meta = Meta { out, start, value, flags: 0, invalid: None, is_whole: false };
        Ok(if is_word { meta } else { meta.flag(b'b') })
    }

    fn flag(mut self, letter: u8) -> Self {
        self.out.extend_from_slice(&[b' ', letter]);
        self.flags += 1;
        self
    }

    fn number(self, letter: u8, number: impl itoa::Integer) -> Self {
        let meta = self.flag(letter);
        meta.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        meta
    }

    /// Asks for something. The reply tells in the order of asking.
    pub fn want(self, want: Want) -> Self {
        self.flag(match want {
            Want::Value => b'v',
            Want::Key => b'k',
            Want::Size => b's',
            Want::Version => b'c',
            Want::TimeLeft => b't',
            Want::Flags => b'f',
            Want::Fetched => b'h',
            Want::SinceAccess => b'l',
        })
    }

    /// `O`: the reply repeats this text.
    pub fn opaque(self, text: &str) -> Self {
        let mut meta = self.flag(b'O');
        if text.len() > OPAQUE_LEN_MAX || !is_word(text.as_bytes()) {
            meta.invalid = Some(Invalid::Opaque);
        }
        meta.out.extend_from_slice(text.as_bytes());
        meta
    }

    /// `q`: no reply in the ordinary case (a miss of `mg`, success of the others).
    pub fn quiet(self) -> Self {
        self.flag(b'q')
    }

    /// `u`: reading does not count as an access.
    pub fn unnoticed(self) -> Self {
        self.flag(b'u')
    }

    /// `T`: a new exptime.
    pub fn ttl(self, exptime: i32) -> Self {
        self.number(b'T', exptime)
    }

    /// `A`: it shall live for so many seconds after its last access. Todana's own: memcached refuses it.
    pub fn sliding(self, span_s: u32) -> Self {
        self.number(b'A', span_s)
    }

    /// `N`: a record that is missing is made, with this exptime.
    pub fn vivify(self, exptime: i32) -> Self {
        self.number(b'N', exptime)
    }

    /// `C`: only if the version is this.
    pub fn compare(self, version: u64) -> Self {
        self.number(b'C', version)
    }

    /// `E`: the version to store.
    pub fn version(self, version: u64) -> Self {
        self.number(b'E', version)
    }

    /// `F`: the client's flags to store.
    pub fn flags(self, flags: u32) -> Self {
        self.number(b'F', flags)
    }

    /// `I`: `md` marks the record stale instead of removing it; `ms` stores, marked so, over a newer version.
    pub fn mark_stale(self) -> Self {
        self.flag(b'I')
    }

    /// `x`: `md` drops the value and keeps the record.
    pub fn drop_value(self) -> Self {
        self.flag(b'x')
    }

    /// `M` of `ms`: what to do with what is there.
    pub fn mode(self, mode: StoreMode) -> Self {
        let meta = self.flag(b'M');
        meta.out.push(match mode {
            StoreMode::Set => b'S',
            StoreMode::Add => b'E',
            StoreMode::Replace => b'R',
            StoreMode::Append => b'A',
            StoreMode::Prepend => b'P',
        });
        meta
    }

    /// `M` of `ma`: up or down.
    pub fn direction(self, direction: ArithmeticDirection) -> Self {
        let meta = self.flag(b'M');
        meta.out.push(match direction {
            ArithmeticDirection::Increment => b'I',
            ArithmeticDirection::Decrement => b'D',
        });
        meta
    }

    /// `D`: by how much.
    pub fn delta(self, delta: u64) -> Self {
        self.number(b'D', delta)
    }

    /// `J`: the number that [`Meta::vivify`] makes.
    pub fn initial(self, number: u64) -> Self {
        self.number(b'J', number)
    }

    /// Ends the request.
    pub fn end(mut self) -> Result<(), Invalid> {
        if self.flags > FLAGS_MAX {
            self.invalid = Some(Invalid::TooManyFlags);
        }
        if let Some(invalid) = self.invalid {
            return Err(invalid);
        }
        self.out.extend_from_slice(b"\r\n");
        if let Some(value) = self.value {
            self.out.extend_from_slice(value);
            self.out.extend_from_slice(b"\r\n");
        }
        self.is_whole = true;
        Ok(())
    }
}

impl Drop for Meta<'_, '_> {
    fn drop(&mut self) {
        if !self.is_whole {
            self.out.truncate(self.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_read_as_the_protocol_says() -> Result<(), Invalid> {
        let out = &mut Vec::new();
        Meta::get(out, b"k")?.end()?;
        Meta::get(out, b"a b")?.want(Want::Key).want(Want::Value).opaque("7").quiet().end()?;
        Meta::set(out, b"k", b"xy")?.ttl(-1).flags(u32::MAX).mode(StoreMode::Add).end()?;
        Meta::set(out, b"\n", b"")?.compare(9).mark_stale().end()?;
        Meta::delete(out, b"k")?.drop_value().version(3).end()?;
        Meta::arithmetic(out, b"k")?
            .direction(ArithmeticDirection::Decrement)
            .delta(2)
            .vivify(60)
            .initial(5)
            .end()?;
        Meta::set(out, b"k", b"")?.sliding(300).end()?;
        Meta::inspect(out, b"k")?.end()?;
        let expected = "mg k\r\nmg YSBi b k v O7 q\r\nms k 2 T-1 F4294967295 ME\r\nxy\r\nms Cg== 0 b C9 I\r\n\r\n\
                        md k x E3\r\nma k MD D2 N60 J5\r\nms k 0 A300\r\n\r\nme k\r\n";
        assert_eq!(String::from_utf8_lossy(out), expected);
        Ok(())
    }

    #[test]
    fn what_cannot_be_sent_leaves_the_buffer_as_it_was() {
        let out = &mut b"before".to_vec();
        // 186 bytes are 248 in base64; of text 250 go as they are.
        for key in [&[b'k'; 250][..], &[b' '; 186]] {
            assert!(Meta::get(out, key).is_ok());
        }
        for key in [&b""[..], &[b'k'; 251], &[b' '; 187]] {
            assert_eq!(Meta::set(out, key, b"value").err(), Some(Invalid::Key));
        }
        for text in ["a b", "\r\nflush_all", &"x".repeat(32)] {
            assert_eq!(Meta::get(out, b"k").unwrap().opaque(text).quiet().end(), Err(Invalid::Opaque));
        }
        fn many(out: &mut Vec<u8>, count: u32) -> Result<(), Invalid> {
            (0..count).fold(Meta::get(out, b"k")?, |meta, _| meta.quiet()).end()
        }
        assert_eq!(many(out, 19), Err(Invalid::TooManyFlags));
        let _ = Meta::get(out, b"forgotten");
        assert_eq!(out, b"before");
        assert_eq!(many(out, 18), Ok(()));
    }
}
