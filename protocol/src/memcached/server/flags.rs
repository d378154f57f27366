//! Parses the flags of meta commands. A flag is a letter, followed by its argument.

use super::form::MetaVerb;
use super::words::LineWords;
use super::{BAD_FORMAT, number};
use crate::freshness::RequiredFreshness;
use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use todana_core::Ttl;

/// The maximum number of words of a line, including the command, the key and the length.
const WORDS_MAX: usize = 20;

/// The longest text after `O`, in bytes.
const OPAQUE_LEN_MAX: usize = 31;

/// The letters that at least one meta command knows. A letter that has no meaning for the current
/// command is ignored. `A` and `Y` are extensions, which memcached refuses
/// (docs/protocol/memcached.md).
const KNOWN: u64 = letters(b"bkOqvsctfhluTNRCEFIxMJDPLAY");

/// The flags of one request. A number is valid only if [`ParsedFlags::has`] its letter.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParsedFlags<'a> {
    seen: u64,
    /// The time of `T` or `A`. If both are present, the last one counts.
    pub(super) ttl: Option<Ttl>,
    /// The time of `N`. A later `T` or `A` replaces it, except for `ms`.
    pub(super) vivify: Ttl,
    /// The number of `R`.
    pub(super) recache: i32,
    /// The version of `C`.
    pub(super) compare: u64,
    /// The version of `E`.
    pub(super) version: u64,
    /// The client's flags of `F`.
    pub(super) client_flags: u32,
    /// The first letter after `M`.
    pub(super) mode: u8,
    /// The number of `J`.
    pub(super) initial: u64,
    /// The number of `D`.
    pub(super) delta: u64,
    /// The text of `O`.
    pub(super) opaque: &'a [u8],
    /// The argument of `Y`, which is valid.
    pub(super) freshness: &'a [u8],
    /// The fields to return.
    pub(super) returns: ReturnFlags,
    /// True if `t` precedes `T`.
    pub(super) ttl_before: bool,
    /// True if `T` precedes `R`.
    pub(super) recache_after_touch: bool,
}

/// An error in the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagFault {
    /// A word that cannot be a flag. The line then does not count as a command at all.
    Format,
    /// There are too many flags.
    TooMany,
    /// A flag is wrong. The text is the reply.
    Flag(&'static str),
    /// The text after `O` is too long. Other errors are reported before this error.
    OpaqueTooLong,
}

impl FlagFault {
    /// Returns the line that reports the error.
    pub(super) fn message(self) -> &'static str {
        match self {
            FlagFault::Format => BAD_FORMAT,
            FlagFault::TooMany => "CLIENT_ERROR options flags are too long",
            FlagFault::Flag(message) => message,
            FlagFault::OpaqueTooLong => "CLIENT_ERROR opaque token too long",
        }
    }
}

impl<'a> ParsedFlags<'a> {
    /// Parses the flags of a command. `words_before` words precede the flags on the line. If one of
    /// the flags is `b`, also decodes the key into `scratch`.
    ///
    /// If there are several errors, the order of memcached 1.6 (observed) decides which error is
    /// reported: a word that cannot be a flag, then too many flags, then the first unknown or
    /// duplicate flag, then the last bad number.
    #[inline(always)]
    pub(super) fn parse(
        verb: MetaVerb,
        key: &[u8],
        words: LineWords<'a>,
        words_before: usize,
        scratch: &mut Vec<u8>,
    ) -> Result<ParsedFlags<'a>, FlagFault> {
        let mut flags = ParsedFlags {
            seen: 0,
            ttl: None,
            vivify: Ttl::Never,
            recache: 0,
            compare: 0,
            version: 0,
            client_flags: 0,
            mode: 0,
            initial: 0,
            delta: 1,
            opaque: b"",
            freshness: b"",
            returns: ReturnFlags::default(),
            ttl_before: false,
            recache_after_touch: false,
        };
        let (mut count, mut fatal, mut bad_argument) = (words_before, None, None);
        for word in words {
            let (letter, argument) = (word[0], &word[1..]);
            count += 1;
            if !letter.is_ascii_alphanumeric() {
                return Err(FlagFault::Format);
            }
            if fatal.is_some() {
                continue;
            }
            if KNOWN & bit(letter) == 0 {
                fatal = Some("CLIENT_ERROR invalid flag");
            } else if flags.has(letter) {
                fatal = Some("CLIENT_ERROR duplicate flag");
            } else if let Err(message) = flags.set_flag(verb, letter, argument, key, scratch) {
                // A bad argument of `F` has no message of its own, so the message of an earlier
                // error stays.
                if message != BAD_FORMAT || bad_argument.is_none() {
                    bad_argument = Some(message);
                }
            }
        }
        if count > WORDS_MAX {
            return Err(FlagFault::TooMany);
        }
        match fatal.or(bad_argument) {
            Some(message) => Err(FlagFault::Flag(message)),
            None => Ok(flags),
        }
    }

    /// Stores one flag.
    #[inline(always)]
    fn set_flag(
        &mut self,
        verb: MetaVerb,
        letter: u8,
        argument: &'a [u8],
        key: &[u8],
        scratch: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format";
        self.seen |= bit(letter);
        if returnable(verb) & bit(letter) != 0 {
            self.returns.push(letter);
        }
        match letter {
            b'T' => self.set_ttl(verb, ttl(argument).ok_or(BAD_TOKEN)?),
            b'A' => self.set_ttl(verb, Ttl::Sliding(number::span(argument).ok_or(BAD_TOKEN)?)),
            b'N' => self.vivify = ttl(argument).ok_or(BAD_TOKEN)?,
            b'R' => {
                self.recache = number::signed(argument).ok_or(BAD_TOKEN)?;
                self.recache_after_touch = self.ttl.is_some();
            }
            b'C' => self.compare = number::unsigned(argument).ok_or(BAD_TOKEN)?,
            b'E' => self.version = number::unsigned(argument).ok_or(BAD_TOKEN)?,
            b'F' => self.client_flags = number::unsigned_32(argument).ok_or(BAD_FORMAT)?,
            b'J' => {
                self.initial =
                    number::unsigned(argument).ok_or("CLIENT_ERROR invalid numeric initial value")?;
            }
            b'D' => {
                self.delta = number::unsigned(argument).ok_or("CLIENT_ERROR invalid numeric delta value")?;
            }
            b'M' => self.mode = *argument.first().ok_or("CLIENT_ERROR incorrect length for M token")?,
            b'O' => self.opaque = argument,
            b'Y' => {
                RequiredFreshness::parse(argument).ok_or(BAD_TOKEN)?;
                self.freshness = argument;
            }
            b'b' => decode_key(key, scratch).ok_or("CLIENT_ERROR error decoding key")?,
            _ => {}
        }
        Ok(())
    }

    #[inline(always)]
    fn set_ttl(&mut self, verb: MetaVerb, ttl: Ttl) {
        self.ttl = Some(ttl);
        self.ttl_before = self.has(b't');
        // If `N` creates the record, the last of the two times counts.
        if self.has(b'N') && verb != MetaVerb::Store {
            self.vivify = ttl;
        }
    }

    /// Returns true if the letter was present.
    #[inline]
    pub(super) fn has(&self, letter: u8) -> bool {
        self.seen & bit(letter) != 0
    }

    /// Returns the number of a letter, or `None` if the letter was absent.
    #[inline]
    pub(super) fn given<T>(&self, letter: u8, number: T) -> Option<T> {
        self.has(letter).then_some(number)
    }

    /// Checks the length of the opaque text. Must be called after the checks of the mode, to report
    /// errors in memcached's order.
    #[inline]
    pub(super) fn check_opaque(&self) -> Result<(), FlagFault> {
        if self.opaque.len() > OPAQUE_LEN_MAX { Err(FlagFault::OpaqueTooLong) } else { Ok(()) }
    }
}

/// Parses a time to live as in `T` and `N`.
#[inline(always)]
fn ttl(argument: &[u8]) -> Option<Ttl> {
    number::signed(argument).map(|seconds| Ttl::from_exptime(seconds.into()))
}

/// Decodes base64 text. Returns `None` if the text is invalid or empty.
pub(super) fn decode_key(text: &[u8], key: &mut Vec<u8>) -> Option<()> {
    key.clear();
    KEY_BASE64.decode_vec(text, key).ok()?;
    (!key.is_empty()).then_some(())
}

/// The base64 of keys, which must be padded. Excess bits of the last letter are ignored, as in
/// memcached. Replies contain the decoded key in its canonical encoding.
pub(super) const KEY_BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Returns the letters that a command returns.
#[inline]
fn returnable(verb: MetaVerb) -> u64 {
    match verb {
        MetaVerb::Get => const { letters(b"kOsctfhlY") },
        MetaVerb::Store => const { letters(b"kOcsY") },
        MetaVerb::Delete => const { letters(b"kOY") },
        MetaVerb::Arithmetic => const { letters(b"kOtcY") },
        MetaVerb::Inspect => 0,
    }
}

/// Returns the bit of a letter in a set, or no bit for a digit.
#[inline]
const fn bit(letter: u8) -> u64 {
    if letter >= b'A' && letter <= b'z' { 1 << (letter - b'A') } else { 0 }
}

const fn letters(list: &[u8]) -> u64 {
    let (mut set, mut i) = (0, 0);
    while i < list.len() {
        set |= bit(list[i]);
        i += 1;
    }
    set
}

/// The return flags of a request, in the order of the request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReturnFlags {
    // The letters. Nine are enough, because no command returns more letters and none twice.
    letters: [u8; 9],
    len: u8,
}

impl ReturnFlags {
    #[inline]
    fn push(&mut self, letter: u8) {
        self.letters[usize::from(self.len)] = letter;
        self.len += 1;
    }

    /// Returns the letters.
    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.letters[..usize::from(self.len)]
    }
}
