//! Replies of both dialects.

use std::fmt;

/// The longest reply line that is accepted: a key, and whatever flags stand behind it.
const LINE_LEN_MAX: usize = 8 << 10;

/// The longest line of a list of keys: a server that other dialects store to lists longer keys than memcached has.
const LISTED_LINE_LEN_MAX: usize = 1 << 20;

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
        flags: MetaFlags<'a>,
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
    /// Bytes of what is sent in pieces: a backup, the update log.
    Data(&'a [u8]),
    /// A number (incr, decr).
    Number(u64),
    /// The server refused.
    Refused(Refusal<'a>),
    /// Any other line: `STORED`, `END`, `DELETED`, `VERSION 1.6.45` ...
    Line(&'a [u8]),
}

/// The words behind the code of a meta reply: letters with their arguments glued on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaFlags<'a>(&'a [u8]);

impl<'a> MetaFlags<'a> {
    /// The words as they stand. Those of `ME` are none of letters; they are read here.
    pub fn text(self) -> &'a [u8] {
        self.0
    }

    /// Letters and arguments, in order.
    pub fn iter(self) -> impl Iterator<Item = (u8, &'a [u8])> {
        let words = self.0.split(|&byte| byte == b' ');
        words.filter_map(|word| word.split_first()).map(|(letter, argument)| (*letter, argument))
    }

    /// The argument of a letter, empty if it has none; `None` if the letter is not there.
    pub fn get(self, letter: u8) -> Option<&'a [u8]> {
        self.iter().find_map(|(found, argument)| (found == letter).then_some(argument))
    }

    /// Whether a letter is there: `W` (recompute it), `X` (it is stale), `Z` (another client recomputes it) ...
    pub fn has(self, letter: u8) -> bool {
        self.get(letter).is_some()
    }

    /// The argument of a letter as a number; `None` if it is not there or no number.
    pub fn number(self, letter: u8) -> Option<u64> {
        number(self.get(letter)).ok()
    }

    /// `t`: `Some(None)` for a record that never expires.
    pub fn seconds_left(self) -> Option<Option<u64>> {
        match self.get(b't')? {
            b"-1" => Some(None),
            argument => number(Some(argument)).ok().map(Some),
        }
    }
}

/// Whose fault a refusal is, by the server's own word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// `ERROR`: no such command, or (with a text behind it) no such connection.
    Error,
    /// `CLIENT_ERROR`: the request was faulty; the same again will not do.
    Client,
    /// `SERVER_ERROR`: the server cannot; later it may.
    Server,
}

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// Whose fault it is.
    pub kind: RefusalKind,
    /// The whole line, without its end.
    pub line: &'a [u8],
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
    let line_len_max = if input.starts_with(b"key=") { LISTED_LINE_LEN_MAX } else { LINE_LEN_MAX };
    let window = &input[..input.len().min(line_len_max)];
    let Some(newline) = memchr::memchr(b'\n', window) else {
        return if input.len() >= line_len_max { Err(Malformed) } else { Ok(None) };
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
        return Ok(found.map(|(value, end)| {
            (end, Response::Meta { code: *b"VA", flags: MetaFlags(flags), value: Some(value) })
        }));
    }
    if let Some(word) = line.strip_prefix(b"DATA ") {
        let found = block(input, end, number(Some(word))?, value_len_max)?;
        return Ok(found.map(|(value, end)| (end, Response::Data(value))));
    }
    if let Some(words) = line.strip_prefix(b"STAT ") {
        let blank = memchr::memchr(b' ', words).unwrap_or(words.len());
        let value = words.get(blank + 1..).unwrap_or_default();
        return Ok(Some((end, Response::Statistic { name: &words[..blank], value })));
    }
    let refused = |kind| Response::Refused(Refusal { kind, line });
    let response = match line {
        // Two capitals like a meta code, but a word of the text dialect.
        b"OK" => Response::Line(line),
        [b'0'..=b'9', ..] => Response::Number(number(Some(line.trim_ascii_end()))?),
        [b'A'..=b'Z', b'A'..=b'Z'] | [b'A'..=b'Z', b'A'..=b'Z', b' ', ..] => {
            let flags = MetaFlags(line.get(3..).unwrap_or_default());
            Response::Meta { code: [line[0], line[1]], flags, value: None }
        }
        b"ERROR" => refused(RefusalKind::Error),
        _ if line.starts_with(b"ERROR ") => refused(RefusalKind::Error),
        _ if line.starts_with(b"CLIENT_ERROR") => refused(RefusalKind::Client),
        _ if line.starts_with(b"SERVER_ERROR") => refused(RefusalKind::Server),
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
        fn meta<'a>(code: &[u8; 2], flags: &'a [u8], value: Option<&'a [u8]>) -> Response<'a> {
            Response::Meta { code: *code, flags: MetaFlags(flags), value }
        }
        let refused = |kind, line| Response::Refused(Refusal { kind, line });
        let cases: [(&[u8], Response<'_>); _] = [
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
            (b"DATA 3\r\na\r\n\r\n", Response::Data(b"a\r\n")),
            (b"DATA 0\r\n\r\n", Response::Data(b"")),
            (b"STAT a b c\r\n", Response::Statistic { name: b"a", value: b"b c" }),
            (b"HD\r\n", meta(b"HD", b"", None)),
            (b"HD s1 t-1\r\n", meta(b"HD", b"s1 t-1", None)),
            (b"VA 2 f0\r\nhi\r\n", meta(b"VA", b"f0", Some(b"hi"))),
            (b"VA 0\r\n\r\n", meta(b"VA", b"", Some(b""))),
            (b"EN\r\n", meta(b"EN", b"", None)),
            (b"ME k exp=-1 la=0\r\n", meta(b"ME", b"k exp=-1 la=0", None)),
            (b"A: x\r\n", Response::Line(b"A: x")),
            (b"ERROR\r\n", refused(RefusalKind::Error, b"ERROR")),
            (
                b"ERROR Too many open connections\r\n",
                refused(RefusalKind::Error, b"ERROR Too many open connections"),
            ),
            (b"CLIENT_ERROR bad\r\n", refused(RefusalKind::Client, b"CLIENT_ERROR bad")),
            (b"SERVER_ERROR out of memory\r\n", refused(RefusalKind::Server, b"SERVER_ERROR out of memory")),
            (b"\r\n", Response::Line(b"")),
            (b"key=a%20b exp=-1 \n", Response::Line(b"key=a%20b exp=-1 ")),
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
            b"DATA \r\n",
            b"DATA 1001\r\n",
            b"DATA 3\r\nabcde",
            b"VA x\r\n",
            b"99999999999999999999\r\n",
            &[b'a'; LINE_LEN_MAX],
            &[&b"key="[..], &[b'a'; LISTED_LINE_LEN_MAX]].concat(),
        ] {
            assert_eq!(decode(bytes, 1000), Err(Malformed), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn the_flags_of_a_meta_reply_are_found_by_their_letters() {
        let flags = MetaFlags(b"s12 t-1 c18446744073709551615 kcart:1 Otoken W");
        assert_eq!((flags.number(b's'), flags.number(b'c')), (Some(12), Some(u64::MAX)));
        assert_eq!((flags.seconds_left(), MetaFlags(b"t30").seconds_left()), (Some(None), Some(Some(30))));
        assert_eq!((flags.get(b'k'), flags.get(b'O')), (Some(&b"cart:1"[..]), Some(&b"token"[..])));
        assert!(flags.has(b'W') && !flags.has(b'X'));
        assert_eq!(
            (flags.number(b'k'), flags.number(b'f'), MetaFlags(b"s1").seconds_left()),
            (None, None, None)
        );
        assert_eq!(flags.iter().map(|(letter, _)| letter).collect::<Vec<_>>(), b"stckOW");
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_never_goes_beyond_its_input(
            bytes in proptest::collection::vec(prop_oneof![
                any::<u8>(), Just(b' '), Just(b'\r'), Just(b'\n'), b'0'..=b'9'], 0..200),
            prefix in prop_oneof![Just(""), Just("VALUE "), Just("VA "), Just("DATA "), Just("STAT ")],
        ) {
            let input = [prefix.as_bytes(), &bytes].concat();
            if let Ok(Some((len, _))) = decode(&input, 1 << 20) {
                prop_assert!(len > 0 && len <= input.len());
            }
        }
    }
}
