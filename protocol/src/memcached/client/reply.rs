//! Decodes the replies of the text and meta dialects.

use std::fmt;

/// The longest reply line that is accepted, in bytes: a key and the flags after it.
const LINE_LEN_MAX: usize = 8 << 10;

/// The longest line of a list of keys, in bytes. Such a line may be longer than in memcached,
/// because other dialects can store longer keys.
const LISTED_LINE_LEN_MAX: usize = 1 << 20;

/// A reply, or one line of a reply with several lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientResponse<'a> {
    /// A record in the reply to a `get` of the text dialect.
    Value {
        /// The key.
        key: &'a [u8],
        /// The client's flags.
        flags: u32,
        /// The version, in the reply to `gets` and `gats`.
        version: Option<u64>,
        /// The value.
        value: &'a [u8],
    },
    /// A meta reply: a code such as `HD`, `EN` or `VA`, its flags, and the value after `VA`.
    Meta {
        /// The code.
        code: [u8; 2],
        /// The words after the code.
        flags: MetaFlags<'a>,
        /// The value of a `VA`.
        value: Option<&'a [u8]>,
    },
    /// A line of `stats`.
    Statistic {
        /// The name of the statistic.
        name: &'a [u8],
        /// The value of the statistic.
        value: &'a [u8],
    },
    /// A piece of a stream. A backup and the update log are sent as streams.
    Data(&'a [u8]),
    /// The new number after `incr` or `decr`.
    Number(u64),
    /// The server refused the request.
    Refused(ServerRefusal<'a>),
    /// Any other line: `STORED`, `END`, `DELETED`, `VERSION 1.6.45` ...
    Line(&'a [u8]),
}

/// The words after the code of a meta reply. Each word is a letter, followed by its argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaFlags<'a>(&'a [u8]);

impl<'a> MetaFlags<'a> {
    /// Returns the words as received. The words of `ME` have another form and must be read from
    /// this text.
    pub fn text(self) -> &'a [u8] {
        self.0
    }

    /// Returns the letters and their arguments, in order.
    pub fn iter(self) -> impl Iterator<Item = (u8, &'a [u8])> {
        let words = self.0.split(|&byte| byte == b' ');
        words.filter_map(|word| word.split_first()).map(|(letter, argument)| (*letter, argument))
    }

    /// Returns the argument of a letter, which may be empty, or `None` if the letter is absent.
    pub fn get(self, letter: u8) -> Option<&'a [u8]> {
        self.iter().find_map(|(found, argument)| (found == letter).then_some(argument))
    }

    /// Returns true if a letter is present. `W` asks the client to recompute the value, `X` means
    /// that the value is stale, and `Z` means that another client recomputes it.
    pub fn has(self, letter: u8) -> bool {
        self.get(letter).is_some()
    }

    /// Returns the argument of a letter as a number, or `None` if the letter is absent or its
    /// argument is not a number.
    pub fn number(self, letter: u8) -> Option<u64> {
        number(self.get(letter)).ok()
    }

    /// Returns the seconds of `t`: `None` if `t` is absent, `Some(None)` if the record never
    /// expires.
    pub fn seconds_left(self) -> Option<Option<u64>> {
        match self.get(b't')? {
            b"-1" => Some(None),
            argument => number(Some(argument)).ok().map(Some),
        }
    }
}

/// The cause of a refusal, which the first word of the line states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// `ERROR`: the command does not exist, or the connection was refused if a text follows the
    /// word.
    Error,
    /// `CLIENT_ERROR`: the request was malformed. The same request will fail again.
    Client,
    /// `SERVER_ERROR`: the server failed. A later attempt may succeed.
    Server,
}

/// A refusal by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerRefusal<'a> {
    /// The cause.
    pub kind: RefusalKind,
    /// The complete line, without its line end.
    pub line: &'a [u8],
}

/// The error for bytes that are not a valid reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedReply;

impl fmt::Display for MalformedReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server's reply cannot be understood")
    }
}

impl std::error::Error for MalformedReply {}

/// Decodes the first reply in `input`. Returns the length of the reply and the reply, or `None` if
/// it is incomplete. A value above `value_len_max` is malformed, so that a server cannot make its
/// client use unbounded memory.
pub fn decode(
    input: &[u8],
    value_len_max: usize,
) -> Result<Option<(usize, ClientResponse<'_>)>, MalformedReply> {
    let line_len_max = if input.starts_with(b"key=") { LISTED_LINE_LEN_MAX } else { LINE_LEN_MAX };
    let window = &input[..input.len().min(line_len_max)];
    let Some(newline) = memchr::memchr(b'\n', window) else {
        return if input.len() >= line_len_max { Err(MalformedReply) } else { Ok(None) };
    };
    let line = input[..newline].strip_suffix(b"\r").unwrap_or(&input[..newline]);
    let end = newline + 1;
    if let Some(words) = line.strip_prefix(b"VALUE ") {
        let mut words = words.split(|&byte| byte == b' ');
        let key = words.next().filter(|key| !key.is_empty()).ok_or(MalformedReply)?;
        let flags = number(words.next())?;
        let len = number(words.next())?;
        let version = words.next().map(|word| number(Some(word))).transpose()?;
        let flags = u32::try_from(flags).map_err(|_| MalformedReply)?;
        return Ok(block(input, end, len, value_len_max)?
            .map(|(value, end)| (end, ClientResponse::Value { key, flags, version, value })));
    }
    if let Some(words) = line.strip_prefix(b"VA ") {
        let (len, flags) = match memchr::memchr(b' ', words) {
            Some(blank) => (&words[..blank], &words[blank + 1..]),
            None => (words, &words[words.len()..]),
        };
        let found = block(input, end, number(Some(len))?, value_len_max)?;
        return Ok(found.map(|(value, end)| {
            (end, ClientResponse::Meta { code: *b"VA", flags: MetaFlags(flags), value: Some(value) })
        }));
    }
    if let Some(word) = line.strip_prefix(b"DATA ") {
        let found = block(input, end, number(Some(word))?, value_len_max)?;
        return Ok(found.map(|(value, end)| (end, ClientResponse::Data(value))));
    }
    if let Some(words) = line.strip_prefix(b"STAT ") {
        let blank = memchr::memchr(b' ', words).unwrap_or(words.len());
        let value = words.get(blank + 1..).unwrap_or_default();
        return Ok(Some((end, ClientResponse::Statistic { name: &words[..blank], value })));
    }
    let refused = |kind| ClientResponse::Refused(ServerRefusal { kind, line });
    let response = match line {
        // `OK` has two capitals like the code of a meta reply, but is a reply of the text dialect.
        b"OK" => ClientResponse::Line(line),
        // A value without its length.
        b"VA" => return Err(MalformedReply),
        [b'0'..=b'9', ..] => ClientResponse::Number(number(Some(line.trim_ascii_end()))?),
        [b'A'..=b'Z', b'A'..=b'Z'] | [b'A'..=b'Z', b'A'..=b'Z', b' ', ..] => {
            let flags = MetaFlags(line.get(3..).unwrap_or_default());
            ClientResponse::Meta { code: [line[0], line[1]], flags, value: None }
        }
        b"ERROR" => refused(RefusalKind::Error),
        _ if line.starts_with(b"ERROR ") => refused(RefusalKind::Error),
        _ if line.starts_with(b"CLIENT_ERROR") => refused(RefusalKind::Client),
        _ if line.starts_with(b"SERVER_ERROR") => refused(RefusalKind::Server),
        _ => ClientResponse::Line(line),
    };
    Ok(Some((end, response)))
}

/// Parses the digits of a number.
pub(super) fn number(word: Option<&[u8]>) -> Result<u64, MalformedReply> {
    let word = word.filter(|word| !word.is_empty() && word.len() <= 20).ok_or(MalformedReply)?;
    word.iter().try_fold(0u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(MalformedReply);
        }
        number.checked_mul(10).and_then(|number| number.checked_add(u64::from(digit))).ok_or(MalformedReply)
    })
}

/// Returns the data block of `len` bytes that begins at `at`, and the offset after the block.
fn block(input: &[u8], at: usize, len: u64, max: usize) -> Result<Option<(&[u8], usize)>, MalformedReply> {
    let len = usize::try_from(len).ok().filter(|&len| len <= max).ok_or(MalformedReply)?;
    let Some(whole) = input.get(at..at + len + 2) else { return Ok(None) };
    match whole.strip_suffix(b"\r\n") {
        Some(value) => Ok(Some((value, at + len + 2))),
        None => Err(MalformedReply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn replies_of_each_kind_are_recognised() {
        fn meta<'a>(code: &[u8; 2], flags: &'a [u8], value: Option<&'a [u8]>) -> ClientResponse<'a> {
            ClientResponse::Meta { code: *code, flags: MetaFlags(flags), value }
        }
        let refused = |kind, line| ClientResponse::Refused(ServerRefusal { kind, line });
        let cases: [(&[u8], ClientResponse<'_>); _] = [
            (
                b"VALUE k 5 3\r\nabc\r\n",
                ClientResponse::Value { key: b"k", flags: 5, version: None, value: b"abc" },
            ),
            (
                b"VALUE k 0 0 77\r\n\r\n",
                ClientResponse::Value { key: b"k", flags: 0, version: Some(77), value: b"" },
            ),
            (b"END\r\n", ClientResponse::Line(b"END")),
            (b"STORED\r\n", ClientResponse::Line(b"STORED")),
            (b"OK\r\n", ClientResponse::Line(b"OK")),
            (b"12 \r\n", ClientResponse::Number(12)),
            (b"DATA 3\r\na\r\n\r\n", ClientResponse::Data(b"a\r\n")),
            (b"DATA 0\r\n\r\n", ClientResponse::Data(b"")),
            (b"STAT a b c\r\n", ClientResponse::Statistic { name: b"a", value: b"b c" }),
            (b"HD\r\n", meta(b"HD", b"", None)),
            (b"HD s1 t-1\r\n", meta(b"HD", b"s1 t-1", None)),
            (b"VA 2 f0\r\nhi\r\n", meta(b"VA", b"f0", Some(b"hi"))),
            (b"VA 0\r\n\r\n", meta(b"VA", b"", Some(b""))),
            (b"EN\r\n", meta(b"EN", b"", None)),
            (b"ME k exp=-1 la=0\r\n", meta(b"ME", b"k exp=-1 la=0", None)),
            (b"A: x\r\n", ClientResponse::Line(b"A: x")),
            (b"ERROR\r\n", refused(RefusalKind::Error, b"ERROR")),
            (
                b"ERROR Too many open connections\r\n",
                refused(RefusalKind::Error, b"ERROR Too many open connections"),
            ),
            (b"CLIENT_ERROR bad\r\n", refused(RefusalKind::Client, b"CLIENT_ERROR bad")),
            (b"SERVER_ERROR out of memory\r\n", refused(RefusalKind::Server, b"SERVER_ERROR out of memory")),
            (b"\r\n", ClientResponse::Line(b"")),
            (b"key=a%20b exp=-1 \n", ClientResponse::Line(b"key=a%20b exp=-1 ")),
        ];
        for (bytes, expected) in cases {
            assert_eq!(decode(bytes, 1000), Ok(Some((bytes.len(), expected))));
            for cut in 0..bytes.len() {
                assert_eq!(decode(&bytes[..cut], 1000), Ok(None), "cut at {cut}");
            }
        }
    }

    #[test]
    fn invalid_replies_are_malformed() {
        for bytes in [
            &b"VALUE k 0 3\r\nabcde"[..],
            b"VALUE k 0\r\n",
            b"VALUE  0 1\r\na\r\n",
            b"VA\r\n",
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
            assert_eq!(decode(bytes, 1000), Err(MalformedReply), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn meta_reply_flags_are_found_by_letter() {
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
        fn garbage_never_panics_or_overruns_its_input(
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
