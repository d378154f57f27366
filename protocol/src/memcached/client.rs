//! The client's side of memcached's text and meta dialects: requests out, replies in.
//!
//! Requests are written by plain functions into a buffer; replies are told apart by their first word alone, so one
//! decoder serves both dialects. Nothing here waits: feed what has come, however cut.

use std::fmt;

/// The longest key that servers take.
pub const KEY_LEN_MAX: usize = 250;
/// The longest reply line that is accepted: a key, and whatever flags stand behind it.
const LINE_LEN_MAX: usize = 8 << 10;

/// A key that cannot be sent in the text protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidKey;

impl fmt::Display for InvalidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key is 1 to 250 bytes without blanks or control characters")
    }
}

impl std::error::Error for InvalidKey {}

/// Checks a key: what is sent as it is must not end its word.
pub fn check_key(key: &[u8]) -> Result<(), InvalidKey> {
    let fits = !key.is_empty() && key.len() <= KEY_LEN_MAX;
    // Control characters would pass most servers, but not all proxies on the way.
    if fits && key.iter().all(|&byte| byte > b' ' && byte != 0x7F) { Ok(()) } else { Err(InvalidKey) }
}

/// Writes `VERB key key ...`: get, gets, delete, mn and others that take words only. The keys are the caller's to check.
pub fn put_words(out: &mut Vec<u8>, verb: &str, words: &[&[u8]]) {
    out.extend_from_slice(verb.as_bytes());
    for word in words {
        out.push(b' ');
        out.extend_from_slice(word);
    }
    out.extend_from_slice(b"\r\n");
}

/// What a storage command says besides its key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreWords {
    /// The client's flags.
    pub flags: u32,
    /// memcached's exptime.
    pub exptime: i64,
    /// For `cas`: the version it must have.
    pub version: Option<u64>,
    /// No reply is wanted.
    pub noreply: bool,
}

/// Writes a storage command of the text protocol. The key is the caller's to check.
pub fn put_store(out: &mut Vec<u8>, verb: &str, key: &[u8], value: &[u8], words: StoreWords) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(verb.as_bytes());
    out.push(b' ');
    out.extend_from_slice(key);
    let mut number = |out: &mut Vec<u8>, number: i128| {
        out.push(b' ');
        out.extend_from_slice(digits.format(number).as_bytes());
    };
    number(out, i128::from(words.flags));
    number(out, i128::from(words.exptime));
    number(out, value.len() as i128);
    if let Some(version) = words.version {
        number(out, i128::from(version));
    }
    out.extend_from_slice(if words.noreply { b" noreply\r\n" as &[u8] } else { b"\r\n" });
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes a meta set. The key is the caller's to check.
pub fn put_meta_set(out: &mut Vec<u8>, key: &[u8], value: &[u8], flags: &str) {
    let mut digits = itoa::Buffer::new();
    put_meta_head(out, "ms", key);
    out.push(b' ');
    out.extend_from_slice(digits.format(value.len()).as_bytes());
    put_meta_flags(out, flags);
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes `mg key flags` and its likes. The key is the caller's to check.
pub fn put_meta(out: &mut Vec<u8>, verb: &str, key: &[u8], flags: &str) {
    put_meta_head(out, verb, key);
    put_meta_flags(out, flags);
}

fn put_meta_head(out: &mut Vec<u8>, verb: &str, key: &[u8]) {
    out.extend_from_slice(verb.as_bytes());
    out.push(b' ');
    out.extend_from_slice(key);
}

fn put_meta_flags(out: &mut Vec<u8>, flags: &str) {
    if !flags.is_empty() {
        out.push(b' ');
        out.extend_from_slice(flags.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// One reply, or one line of a reply that has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response<'a> {
    /// A record of a text get.
    Value {
        /// The key.
        key: &'a [u8],
        /// The client's flags.
        flags: u32,
        /// Its version, after `gets` and `gats`.
        version: Option<u64>,
        /// The value.
        value: &'a [u8],
    },
    /// A meta reply: `HD`, `EN`, `VA` ... with its flags and, after `VA`, a value.
    Meta {
        /// The code.
        code: [u8; 2],
        /// The words behind it.
        flags: &'a [u8],
        /// The value of a `VA`.
        value: Option<&'a [u8]>,
    },
    /// A line of `stats`.
    Statistic {
        /// Its name.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// A number (incr, decr).
    Number(u64),
    /// `ERROR`, `CLIENT_ERROR ...`, `SERVER_ERROR ...`, whole.
    Error(&'a [u8]),
    /// Any other line: `STORED`, `END`, `DELETED`, `VERSION 1.6.45` ...
    Line(&'a [u8]),
}

/// A reply that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server's reply cannot be understood")
    }
}

impl std::error::Error for Malformed {}

/// The first reply in `input` and its length, or `None` if it is not whole yet. Values above `value_len_max` are
/// malformed, so that a server cannot make its client hold without bound.
pub fn decode(input: &[u8], value_len_max: usize) -> Result<Option<(usize, Response<'_>)>, Malformed> {
    let window = &input[..input.len().min(LINE_LEN_MAX)];
    let Some(newline) = memchr::memchr(b'\n', window) else {
        return if input.len() >= LINE_LEN_MAX { Err(Malformed) } else { Ok(None) };
    };
    let line = input[..newline].strip_suffix(b"\r").unwrap_or(&input[..newline]);
    let end = newline + 1;
    if let Some(words) = line.strip_prefix(b"VALUE ") {
        let mut words = words.split(|&byte| byte == b' ');
        let key = words.next().ok_or(Malformed)?;
        let flags = number(words.next())?;
        let len = number(words.next())?;
        let version = words.next().map(|word| number(Some(word))).transpose()?;
        let flags = u32::try_from(flags).map_err(|_| Malformed)?;
        return Ok(block(input, end, len, value_len_max)?
            .map(|(value, end)| (end, Response::Value { key, flags, version, value })));
    }
    if let Some(words) = line.strip_prefix(b"VA ") {
        let (len, flags) = match memchr::memchr(b' ', words) {
            Some(blank) => (&words[..blank], &words[blank + 1..]),
            None => (words, &words[words.len()..]),
        };
        let found = block(input, end, number(Some(len))?, value_len_max)?;
        return Ok(
            found.map(|(value, end)| (end, Response::Meta { code: *b"VA", flags, value: Some(value) }))
        );
    }
    if let Some(words) = line.strip_prefix(b"STAT ") {
        let blank = memchr::memchr(b' ', words).unwrap_or(words.len());
        let value = words.get(blank + 1..).unwrap_or_default();
        return Ok(Some((end, Response::Statistic { name: &words[..blank], value })));
    }
    let response = match line {
        // Two capitals like a meta code, but a word of the text dialect.
        b"OK" => Response::Line(line),
        [b'0'..=b'9', ..] => Response::Number(number(Some(line.trim_ascii_end()))?),
        [first, second] | [first, second, b' ', ..] if first.is_ascii_uppercase() => {
            Response::Meta { code: [*first, *second], flags: line.get(3..).unwrap_or_default(), value: None }
        }
        _ if line == b"ERROR"
            || line.starts_with(b"ERROR ")
            || line.starts_with(b"CLIENT_ERROR")
            || line.starts_with(b"SERVER_ERROR") =>
        {
            Response::Error(line)
        }
        _ => Response::Line(line),
    };
    Ok(Some((end, response)))
}

fn number(word: Option<&[u8]>) -> Result<u64, Malformed> {
    let word = word.filter(|word| !word.is_empty() && word.len() <= 20).ok_or(Malformed)?;
    word.iter().try_fold(0u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Malformed);
        }
        number.checked_mul(10).and_then(|number| number.checked_add(u64::from(digit))).ok_or(Malformed)
    })
}

/// The data block of `len` bytes from `at` on, and where it ends.
fn block(input: &[u8], at: usize, len: u64, max: usize) -> Result<Option<(&[u8], usize)>, Malformed> {
    let len = usize::try_from(len).ok().filter(|&len| len <= max).ok_or(Malformed)?;
    let Some(whole) = input.get(at..at + len + 2) else { return Ok(None) };
    match whole.strip_suffix(b"\r\n") {
        Some(value) => Ok(Some((value, at + len + 2))),
        None => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn replies_are_told_apart() {
        let cases: [(&[u8], Response<'_>); 13] = [
            (
                b"VALUE k 5 3\r\nabc\r\n",
                Response::Value { key: b"k", flags: 5, version: None, value: b"abc" },
            ),
            (
                b"VALUE k 0 0 77\r\n\r\n",
                Response::Value { key: b"k", flags: 0, version: Some(77), value: b"" },
            ),
            (b"END\r\n", Response::Line(b"END")),
            (b"STORED\r\n", Response::Line(b"STORED")),
            (b"OK\r\n", Response::Line(b"OK")),
            (b"12 \r\n", Response::Number(12)),
            (b"STAT a b c\r\n", Response::Statistic { name: b"a", value: b"b c" }),
            (b"HD\r\n", Response::Meta { code: *b"HD", flags: b"", value: None }),
            (b"HD s1 t-1\r\n", Response::Meta { code: *b"HD", flags: b"s1 t-1", value: None }),
            (b"VA 2 f0\r\nhi\r\n", Response::Meta { code: *b"VA", flags: b"f0", value: Some(b"hi") }),
            (b"EN\r\n", Response::Meta { code: *b"EN", flags: b"", value: None }),
            (b"ERROR\r\n", Response::Error(b"ERROR")),
            (b"SERVER_ERROR out of memory\r\n", Response::Error(b"SERVER_ERROR out of memory")),
        ];
        for (bytes, expected) in cases {
            assert_eq!(decode(bytes, 1000), Ok(Some((bytes.len(), expected))));
            for cut in 0..bytes.len() {
                assert_eq!(decode(&bytes[..cut], 1000), Ok(None), "cut at {cut}");
            }
        }
    }

    #[test]
    fn what_is_no_reply_is_malformed() {
        for bytes in [
            &b"VALUE k 0 3\r\nabcde"[..],
            b"VALUE k 0\r\n",
            b"VALUE k 0 -1\r\n",
            b"VALUE k 4294967296 1\r\na\r\n",
            b"VALUE k 0 1001\r\n",
            b"VA x\r\n",
            b"99999999999999999999\r\n",
            &[b'a'; LINE_LEN_MAX],
        ] {
            assert_eq!(decode(bytes, 1000), Err(Malformed), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn requests_read_as_the_protocol_says() {
        let mut out = Vec::new();
        put_words(&mut out, "get", &[b"a", b"b"]);
        put_store(&mut out, "set", b"k", b"abc", StoreWords { flags: 7, exptime: -1, ..Default::default() });
        let cas = StoreWords { version: Some(9), noreply: true, ..Default::default() };
        put_store(&mut out, "cas", b"k", b"", cas);
        put_meta(&mut out, "mg", b"k", "v");
        put_meta_set(&mut out, b"k", b"xy", "T9");
        assert_eq!(
            out,
            b"get a b\r\nset k 7 -1 3\r\nabc\r\ncas k 0 0 0 9 noreply\r\n\r\nmg k v\r\nms k 2 T9\r\nxy\r\n"
        );
        assert_eq!(check_key(b"ok:1"), Ok(()));
        for key in [&b""[..], b"a b", b"a\n", b"\x7f", &[b'k'; 251]] {
            assert_eq!(check_key(key), Err(InvalidKey));
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_never_goes_beyond_its_input(
            bytes in proptest::collection::vec(prop_oneof![
                any::<u8>(), Just(b' '), Just(b'\r'), Just(b'\n'), b'0'..=b'9'], 0..200),
            prefix in prop_oneof![Just(""), Just("VALUE "), Just("VA "), Just("STAT ")],
        ) {
            let input = [prefix.as_bytes(), &bytes].concat();
            if let Ok(Some((len, _))) = decode(&input, 1 << 20) {
                prop_assert!(len > 0 && len <= input.len());
            }
        }
    }
}
