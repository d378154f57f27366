//! Writes requests of the meta dialect.

use super::request::{InvalidRequest, KEY_LEN_MAX, check_key, is_word};
use super::text::put_number;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use todana_core::{ArithmeticDirection, StoreMode};

/// The longest text after `O`, in bytes.
const OPAQUE_LEN_MAX: usize = 31;
/// The maximum number of flags. A line has up to twenty words, and the command and the key are two
/// of them.
const FLAGS_MAX: u32 = 18;

/// A field that a meta reply can contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaField {
    /// `v`: the value.
    Value,
    /// `k`: the key.
    Key,
    /// `s`: the length of the value.
    Size,
    /// `c`: the version.
    Version,
    /// `t`: the seconds to live, or -1 for a record that never expires.
    TimeLeft,
    /// `f`: the client's flags.
    Flags,
    /// `h`: 1 if the record was read before, otherwise 0.
    Fetched,
    /// `l`: the seconds since the last access.
    SinceAccess,
}

/// A meta request that is being written into a buffer. Each method adds a flag;
/// [`MetaRequest::end`] ends the request. A request that is invalid, or dropped without `end`,
/// leaves the buffer unchanged.
///
/// A key that the text dialect cannot send is sent in base64 (`b`), which costs a third of its
/// length.
#[derive(Debug)]
#[must_use = "a request is written by `end`"]
pub struct MetaRequest<'o, 'v> {
    out: &'o mut Vec<u8>,
    start: usize,
    value: Option<&'v [u8]>,
    flags: u32,
    invalid: Option<InvalidRequest>,
    is_whole: bool,
}

impl<'o, 'v> MetaRequest<'o, 'v> {
    /// Begins `mg`, which reads a record.
    pub fn get(out: &'o mut Vec<u8>, key: &[u8]) -> Result<Self, InvalidRequest> {
        MetaRequest::new(out, b"mg ", key, None)
    }

    /// Begins `ms`, which stores a record.
    pub fn set(out: &'o mut Vec<u8>, key: &[u8], value: &'v [u8]) -> Result<Self, InvalidRequest> {
        MetaRequest::new(out, b"ms ", key, Some(value))
    }

    /// Begins `md`, which removes a record or marks it stale.
    pub fn delete(out: &'o mut Vec<u8>, key: &[u8]) -> Result<Self, InvalidRequest> {
        MetaRequest::new(out, b"md ", key, None)
    }

    /// Begins `ma`, which increments a number by 1 unless flags state otherwise.
    pub fn arithmetic(out: &'o mut Vec<u8>, key: &[u8]) -> Result<Self, InvalidRequest> {
        MetaRequest::new(out, b"ma ", key, None)
    }

    /// Begins `me`, which shows the attributes of a record for debugging.
    pub fn inspect(out: &'o mut Vec<u8>, key: &[u8]) -> Result<Self, InvalidRequest> {
        MetaRequest::new(out, b"me ", key, None)
    }

    fn new(
        out: &'o mut Vec<u8>,
        verb: &[u8],
        key: &[u8],
        value: Option<&'v [u8]>,
    ) -> Result<Self, InvalidRequest> {
        let is_word = check_key(key).is_ok();
        // The limit applies to the word in the form in which it is sent.
        if !is_word && (key.is_empty() || key.len().div_ceil(3) * 4 > KEY_LEN_MAX) {
            return Err(InvalidRequest::Key);
        }
        let start = out.len();
        out.extend_from_slice(verb);
        if is_word {
            out.extend_from_slice(key);
        } else {
            let mut text = [0; KEY_LEN_MAX];
            let len = STANDARD.encode_slice(key, &mut text).map_err(|_| InvalidRequest::Key)?;
            out.extend_from_slice(&text[..len]);
        }
        if let Some(value) = value {
            put_number(out, value.len());
        }
        let meta = MetaRequest { out, start, value, flags: 0, invalid: None, is_whole: false };
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

    /// Requests a field of the reply. The reply contains the fields in the order in which they were
    /// requested.
    pub fn want(self, want: MetaField) -> Self {
        self.flag(match want {
            MetaField::Value => b'v',
            MetaField::Key => b'k',
            MetaField::Size => b's',
            MetaField::Version => b'c',
            MetaField::TimeLeft => b't',
            MetaField::Flags => b'f',
            MetaField::Fetched => b'h',
            MetaField::SinceAccess => b'l',
        })
    }

    /// Adds `O`, a text that the reply repeats.
    pub fn opaque(self, text: &str) -> Self {
        let mut meta = self.flag(b'O');
        if text.len() > OPAQUE_LEN_MAX || !is_word(text.as_bytes()) {
            meta.invalid = Some(InvalidRequest::Opaque);
        }
        meta.out.extend_from_slice(text.as_bytes());
        meta
    }

    /// Adds `q`, which omits the reply in the ordinary case: a miss of `mg`, or the success of
    /// another command.
    pub fn quiet(self) -> Self {
        self.flag(b'q')
    }

    /// Adds `u`, by which the read does not count as an access.
    pub fn without_access(self) -> Self {
        self.flag(b'u')
    }

    /// Adds `T`, a new exptime.
    pub fn ttl(self, exptime: i32) -> Self {
        self.number(b'T', exptime)
    }

    /// Adds `A`, by which the record expires this number of seconds after its last access.
    /// memcached refuses `A`, which is an extension of Todana.
    pub fn sliding(self, span_s: u32) -> Self {
        self.number(b'A', span_s)
    }

    /// Adds `N`, by which a missing record is created with this exptime.
    pub fn vivify(self, exptime: i32) -> Self {
        self.number(b'N', exptime)
    }

    /// Adds `R`, by which the client is asked to recompute a value that expires in less than this
    /// number of seconds.
    pub fn recache(self, below_s: i32) -> Self {
        self.number(b'R', below_s)
    }

    /// Adds `C`, by which the command takes effect only if the record has this version.
    pub fn compare(self, version: u64) -> Self {
        self.number(b'C', version)
    }

    /// Adds `E`, the version to store.
    pub fn version(self, version: u64) -> Self {
        self.number(b'E', version)
    }

    /// Adds `F`, the client's flags to store.
    pub fn flags(self, flags: u32) -> Self {
        self.number(b'F', flags)
    }

    /// Adds `I`. With it, `md` marks the record stale and does not remove it, and `ms` replaces a
    /// record of a newer version and marks the new record stale.
    pub fn mark_stale(self) -> Self {
        self.flag(b'I')
    }

    /// Adds `x`, by which `md` drops the value and keeps the record.
    pub fn drop_value(self) -> Self {
        self.flag(b'x')
    }

    /// Adds `M` of `ms`, which states how an existing record is treated.
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

    /// Adds `M` of `ma`, which states whether the number goes up or down.
    pub fn direction(self, direction: ArithmeticDirection) -> Self {
        let meta = self.flag(b'M');
        meta.out.push(match direction {
            ArithmeticDirection::Increment => b'I',
            ArithmeticDirection::Decrement => b'D',
        });
        meta
    }

    /// Adds `D`, the amount to add or subtract.
    pub fn delta(self, delta: u64) -> Self {
        self.number(b'D', delta)
    }

    /// Adds `J`, the number of a record that [`MetaRequest::vivify`] creates.
    pub fn initial(self, number: u64) -> Self {
        self.number(b'J', number)
    }

    /// Ends the request.
    pub fn end(mut self) -> Result<(), InvalidRequest> {
        if self.flags > FLAGS_MAX {
            self.invalid = Some(InvalidRequest::TooManyFlags);
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

impl Drop for MetaRequest<'_, '_> {
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
    fn requests_have_the_documented_bytes() -> Result<(), InvalidRequest> {
        let out = &mut Vec::new();
        MetaRequest::get(out, b"k")?.end()?;
        MetaRequest::get(out, b"a b")?
            .want(MetaField::Key)
            .want(MetaField::Value)
            .opaque("7")
            .quiet()
            .end()?;
        MetaRequest::set(out, b"k", b"xy")?.ttl(-1).flags(u32::MAX).mode(StoreMode::Add).end()?;
        MetaRequest::set(out, b"\n", b"")?.compare(9).mark_stale().end()?;
        MetaRequest::delete(out, b"k")?.drop_value().version(3).end()?;
        MetaRequest::arithmetic(out, b"k")?
            .direction(ArithmeticDirection::Decrement)
            .delta(2)
            .vivify(60)
            .initial(5)
            .end()?;
        MetaRequest::set(out, b"k", b"")?.sliding(300).end()?;
        MetaRequest::inspect(out, b"k")?.end()?;
        let expected = "mg k\r\nmg YSBi b k v O7 q\r\nms k 2 T-1 F4294967295 ME\r\nxy\r\nms Cg== 0 b C9 I\r\n\r\n\
                        md k x E3\r\nma k MD D2 N60 J5\r\nms k 0 A300\r\n\r\nme k\r\n";
        assert_eq!(String::from_utf8_lossy(out), expected);
        Ok(())
    }

    #[test]
    fn invalid_request_leaves_the_buffer_unchanged() {
        let out = &mut b"before".to_vec();
        // 186 bytes become 248 bytes in base64. 250 bytes of text are sent as they are.
        for key in [&[b'k'; 250][..], &[b' '; 186]] {
            assert!(MetaRequest::get(out, key).is_ok());
        }
        for key in [&b""[..], &[b'k'; 251], &[b' '; 187]] {
            assert_eq!(MetaRequest::set(out, key, b"value").err(), Some(InvalidRequest::Key));
        }
        for text in ["a b", "\r\nflush_all", &"x".repeat(32)] {
            assert_eq!(
                MetaRequest::get(out, b"k").unwrap().opaque(text).quiet().end(),
                Err(InvalidRequest::Opaque)
            );
        }
        fn many(out: &mut Vec<u8>, count: u32) -> Result<(), InvalidRequest> {
            (0..count).fold(MetaRequest::get(out, b"k")?, |meta, _| meta.quiet()).end()
        }
        assert_eq!(many(out, 19), Err(InvalidRequest::TooManyFlags));
        let _ = MetaRequest::get(out, b"forgotten");
        assert_eq!(out, b"before");
        assert_eq!(many(out, 18), Ok(()));
    }
}
