//! Decodes and answers memcached's text protocol as Kyoto Tycoon's plug-in server implements it: a
//! few commands with rules of their own. memcached's own dialect is stricter and has more commands
//! (see `memcached::server`).
//!
//! ```text
//! set|add|replace KEY FLAGS EXPTIME LEN [noreply] LF  DATA [CR] LF
//! get|gets KEY...      delete KEY      incr|decr KEY NUMBER      stats  flush_all  version  quit
//! ```
//!
//! Invariants:
//! - A decoder is one word of state and has no buffer.
//! - A `get` line is decoded key by key, so that the server can pause between two keys if the
//!   client reads slowly.
//! - An announced length reserves no memory.
//! - Numbers are read up to the first invalid byte, and keys may be as long as a line.
//!
//! Not here: the meaning of flags and times (see the server).

use super::ReplySink;

/// The longest line, in bytes. A `get` line of this length has room for hundreds of keys. A longer
/// line closes the connection.
const LINE_LEN_MAX: usize = 64 << 10;

/// The condition of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginMode {
    /// Store always.
    Set,
    /// Store only if no record exists.
    Add,
    /// Store only if a record exists.
    Replace,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginRequest<'a> {
    /// Stores a record.
    Store {
        /// The condition.
        mode: PluginMode,
        /// The key.
        key: &'a [u8],
        /// The flags, reduced to the lower 32 bits.
        flags: u32,
        /// The exptime as the client sent it.
        exptime: i64,
        /// The value.
        value: &'a [u8],
        /// True if no reply is sent.
        is_silent: bool,
    },
    /// One key of a `get` line.
    Get(&'a [u8]),
    /// The end of a `get` line.
    GetsEnd,
    /// Removes a record.
    Delete {
        /// The key.
        key: &'a [u8],
        /// True if no reply is sent.
        is_silent: bool,
    },
    /// Changes a number.
    Arithmetic {
        /// The key.
        key: &'a [u8],
        /// The amount to add or subtract.
        amount: i64,
        /// True to subtract.
        is_decrement: bool,
        /// True if no reply is sent.
        is_silent: bool,
    },
    /// Removes all records.
    Flush {
        /// True if no reply is sent.
        is_silent: bool,
    },
    /// Requests statistics.
    Stats,
    /// Requests the version.
    Version,
    /// Closes the connection.
    Quit,
    /// A command with missing words.
    TooFew,
    /// An unknown command.
    Unknown,
}

/// The result of decoding the unread bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginStep<'a> {
    /// A complete request.
    Request {
        /// The consumed bytes of the input.
        consumed: usize,
        /// The request.
        request: PluginRequest<'a>,
    },
    /// The request is incomplete.
    NeedMore {
        /// The number of bytes that are missing at least.
        at_least: usize,
    },
    /// The input is not a valid request, so the connection must be closed.
    Close,
}

/// The decoder of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PluginDecoder {
    /// True if the input begins within a `get` line that has arrived completely.
    is_between_keys: bool,
    /// The number of bytes of an incomplete line that are known to contain no line end.
    seen: usize,
}

impl PluginDecoder {
    /// Decodes the next request. A value longer than `value_len_max` bytes closes the connection.
    pub fn decode<'a>(&mut self, value_len_max: u64, input: &'a [u8]) -> PluginStep<'a> {
        if self.is_between_keys {
            return self.next_key(input);
        }
        let Some(end) = input[self.seen..].iter().position(|&byte| byte == b'\n') else {
            self.seen = input.len();
            return if input.len() > LINE_LEN_MAX {
                PluginStep::Close
            } else {
                PluginStep::NeedMore { at_least: 1 }
            };
        };
        let end = self.seen + end;
        if end > LINE_LEN_MAX {
            return PluginStep::Close;
        }
        let line = &input[..end];
        let behind = end + 1;
        let mut words = words(line);
        let request = match words.next().unwrap_or_default() {
            name @ (b"set" | b"add" | b"replace") => {
                let (Some(key), Some(flags), Some(exptime), Some(len)) =
                    (words.next(), words.next(), words.next(), words.next())
                else {
                    self.seen = 0;
                    return PluginStep::Request { consumed: behind, request: PluginRequest::TooFew };
                };
                let len = number(len);
                if len < 0 || len as u64 > value_len_max {
                    return PluginStep::Close;
                }
                // When the data has arrived, the line is parsed again. Its end is known and need
                // not be searched.
                self.seen = end;
                let data = &input[behind..];
                let len = len as usize;
                let Some(rest) = data.get(len..).filter(|rest| !rest.is_empty() && *rest != b"\r") else {
                    return PluginStep::NeedMore { at_least: len + 1 - data.len().min(len) };
                };
                let rest_len = match rest {
                    [b'\n', ..] => 1,
                    [b'\r', b'\n', ..] => 2,
                    _ => return PluginStep::Close,
                };
                self.seen = 0;
                let mode = match name {
                    b"set" => PluginMode::Set,
                    b"add" => PluginMode::Add,
                    _ => PluginMode::Replace,
                };
                let request = PluginRequest::Store {
                    mode,
                    key,
                    flags: number(flags) as u32,
                    exptime: number(exptime),
                    value: &data[..len],
                    is_silent: is_silent(words),
                };
                return PluginStep::Request { consumed: behind + len + rest_len, request };
            }
            name @ (b"get" | b"gets") => {
                self.seen = 0;
                self.is_between_keys = true;
                let blanks = line.iter().take_while(|&&byte| byte == b' ').count();
                let head = blanks + name.len();
                return match self.next_key(&input[head..]) {
                    PluginStep::Request { consumed, request } => {
                        PluginStep::Request { consumed: head + consumed, request }
                    }
                    other => other,
                };
            }
            b"delete" => match words.next() {
                Some(key) => PluginRequest::Delete { key, is_silent: is_silent(words) },
                None => PluginRequest::TooFew,
            },
            name @ (b"incr" | b"decr") => match (words.next(), words.next()) {
                (Some(key), Some(amount)) => PluginRequest::Arithmetic {
                    key,
                    amount: number(amount),
                    is_decrement: name == b"decr",
                    is_silent: is_silent(words),
                },
                _ => PluginRequest::TooFew,
            },
            b"flush_all" => PluginRequest::Flush { is_silent: is_silent(words) },
            b"stats" => PluginRequest::Stats,
            b"version" => PluginRequest::Version,
            b"quit" => PluginRequest::Quit,
            _ => PluginRequest::Unknown,
        };
        self.seen = 0;
        PluginStep::Request { consumed: behind, request }
    }

    /// Decodes the next key of a `get` line that has arrived completely.
    fn next_key<'a>(&mut self, input: &'a [u8]) -> PluginStep<'a> {
        let is_blank = |byte: u8| matches!(byte, b' ' | b'\r');
        let at = input.iter().position(|&byte| !is_blank(byte)).unwrap_or(input.len());
        match input.get(at) {
            // This cannot happen, because the end of the line was seen before.
            None => PluginStep::NeedMore { at_least: 1 },
            Some(b'\n') => {
                self.is_between_keys = false;
                PluginStep::Request { consumed: at + 1, request: PluginRequest::GetsEnd }
            }
            Some(_) => {
                let len = input[at..].iter().position(|&byte| is_blank(byte) || byte == b'\n');
                let end = at + len.unwrap_or(input.len() - at);
                PluginStep::Request { consumed: end, request: PluginRequest::Get(&input[at..end]) }
            }
        }
    }
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| matches!(byte, b' ' | b'\r')).filter(|word| !word.is_empty())
}

fn is_silent<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> bool {
    words.any(|word| word == b"noreply")
}

/// Parses the integer at the beginning of a text. Returns 0 if there is none.
pub fn number(text: &[u8]) -> i64 {
    let text = text.trim_ascii_start();
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let mut number = 0i64;
    for digit in digits.iter().take_while(|byte| byte.is_ascii_digit()) {
        number = number.saturating_mul(10).saturating_add(i64::from(digit - b'0'));
    }
    if is_negative { -number } else { number }
}

/// Writes a record that a `get` has found.
pub fn put_plugin_value(key: &[u8], flags: u32, value: &[u8], out: &mut impl ReplySink) {
    out.put(b"VALUE ");
    out.put(key);
    out.put(format!(" {flags} {}\r\n", value.len()).as_bytes());
    out.put(value);
    out.put(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all requests of an input as texts, and the state of the decoder after the last
    /// request.
    fn requests(input: &[u8], piece: usize) -> Vec<String> {
        let (mut dialect, mut requests_as_text) = (PluginDecoder::default(), Vec::new());
        let (mut at, mut end) = (0, 0);
        loop {
            match dialect.decode(100, &input[at..end]) {
                PluginStep::Request { consumed, request } => {
                    assert!(consumed > 0 && at + consumed <= end);
                    at += consumed;
                    requests_as_text.push(format!("{request:?}"));
                }
                PluginStep::NeedMore { at_least } => {
                    assert!(at_least > 0);
                    if end == input.len() {
                        requests_as_text.push(format!("{} left", end - at));
                        return requests_as_text;
                    }
                    end = (end + piece).min(input.len());
                }
                PluginStep::Close => {
                    requests_as_text.push("closed".into());
                    return requests_as_text;
                }
            }
        }
    }

    #[test]
    fn requests_do_not_depend_on_the_split() {
        let inputs: [&[u8]; 8] = [
            b"set k 5 0 3\r\nabc\r\nget k  nix\r\n  gets k\r\nget\r\n",
            b"set k 0 0 5x\r\nab\r\nc\r\nadd k 1 2 0 noreply\n\nreplace k -1 -5 2 x noreply\r\nab\n",
            b"incr k 5\r\ndecr k x noreply\r\nincr k\r\ndelete\r\ndelete k 0 noreply\r\n",
            b"append k 0 0 1\r\nx\r\nstats\r\nflush_all 10\r\nflush_all noreply\r\nversion\r\nquit\r\nGET k\r\n\r\n",
            b"set k 0 0 3\r\nabcd\r\nget k\r\n",
            b"set k 0 0 -1\r\n",
            b"set k 0 0 101\r\n",
            b"set k 0 0 3\r\nab",
        ];
        for input in inputs {
            let whole = requests(input, input.len());
            for piece in 1..input.len() {
                assert_eq!(requests(input, piece), whole, "{piece}");
            }
        }
        let last = |input| requests(input, 1).pop().unwrap();
        assert_eq!(last(inputs[4]), "closed");
        assert_eq!(last(inputs[5]), "closed");
        assert_eq!(last(inputs[6]), "closed");
        assert_eq!(last(inputs[7]), format!("{} left", inputs[7].len()));
    }

    #[test]
    fn requests_are_decoded_with_all_fields() {
        let one = |input: &'static [u8]| match PluginDecoder::default().decode(100, input) {
            PluginStep::Request { request, .. } => request,
            other => panic!("{other:?}"),
        };
        let stored = PluginRequest::Store {
            mode: PluginMode::Replace,
            key: b"k",
            flags: u32::MAX,
            exptime: -5,
            value: b"a\nb",
            is_silent: true,
        };
        assert_eq!(one(b"replace k -1 -5 3 0 noreply\r\na\nb\r\n"), stored);
        let taken = PluginRequest::Arithmetic { key: b"k", amount: 5, is_decrement: true, is_silent: false };
        assert_eq!(one(b"decr k 5\r\n"), taken);
        assert_eq!(one(b"set k 0 0\r\n"), PluginRequest::TooFew);
        assert_eq!(one(b"verbosity 1\r\n"), PluginRequest::Unknown);
        assert_eq!(one(b"get a b\r\n"), PluginRequest::Get(b"a"));
    }

    #[test]
    fn line_without_an_end_closes_the_connection() {
        let mut dialect = PluginDecoder::default();
        assert_eq!(dialect.decode(1, &vec![b'x'; LINE_LEN_MAX]), PluginStep::NeedMore { at_least: 1 });
        assert_eq!(dialect.decode(1, &vec![b'x'; LINE_LEN_MAX + 1]), PluginStep::Close);
    }

    #[test]
    fn numbers_end_at_the_first_invalid_byte() {
        for (text, value) in
            [("12x", 12), (" 12", 12), ("-5", -5), ("x", 0), ("", 0), ("99999999999999999999", i64::MAX)]
        {
            assert_eq!(number(text.as_bytes()), value, "{text:?}");
        }
    }
}
