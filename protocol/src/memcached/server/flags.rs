//! The one-letter flags of the meta commands, their arguments glued on.

use super::form::Verb;
use super::words::Words;
use super::{BAD_FORMAT, number};
use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use todana_core::Ttl;

/// The most words of a line, the command, the key and the length included.
const WORDS_MAX: usize = 20;

/// The longest text behind `O`.
const OPAQUE_LEN_MAX: usize = 31;

/// Every letter that some meta command knows. One that makes no sense for the command at hand is ignored. `A` is ours:
/// memcached refuses it (docs/protocol/memcached.md).
const KNOWN: u64 = letters(b"bkOqvsctfhluTNRCEFIxMJDPLA");

/// The flags of one request. A number counts only if [`Flags::has`] its letter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flags<'a> {
    seen: u64,
    /// T or A, whichever comes last
    pub(super) ttl: Option<Ttl>,
    /// N; T or A behind it count in its place, but for `ms`
    pub(super) vivify: Ttl,
    /// R
    pub(super) recache: i32,
    /// C
    pub(super) compare: u64,
    /// E
    pub(super) version: u64,
    /// F
    pub(super) client_flags: u32,
    /// The first letter behind M.
    pub(super) mode: u8,
    /// J
    pub(super) initial: u64,
    /// D
    pub(super) delta: u64,
    /// O
    pub(super) opaque: &'a [u8],
    /// What to send back.
    pub(super) returns: Returns,
    /// `t` stands before `T`.
    pub(super) ttl_before: bool,
    /// `T` stands before `R`.
    pub(super) recache_after_touch: bool,
}

/// What is wrong with the flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Something that cannot be a flag; the line is not even taken for a whole command.
    Format,
    /// Too many of them.
    TooMany,
    /// One of them, as the text says.
    Flag(&'static str),
    /// The text behind `O`. Told last.
    OpaqueTooLong,
}

impl Fault {
    /// The reply line.
    pub(super) fn message(self) -> &'static str {
        match self {
            Fault::Format => BAD_FORMAT,
            Fault::TooMany => "CLIENT_ERROR options flags are too long",
            Fault::Flag(message) => message,
            Fault::OpaqueTooLong => "CLIENT_ERROR opaque token too long",
        }
    }
}

impl<'a> Flags<'a> {
    /// Reads the flags of a command of which `words_before` words stand before them. Where one of them is `b`, it
    /// also decodes the key into `scratch`.
    ///
    /// Which of several faults is told follows memcached 1.6 (seen): what cannot be a flag before all else, then
    /// too many, then the first that is unknown or there twice, then the last bad number.
    #[inline(always)]
    pub(super) fn parse(
        verb: Verb,
        key: &[u8],
        words: Words<'a>,
        words_before: usize,
        scratch: &mut Vec<u8>,
    ) -> Result<Flags<'a>, Fault> {
        let mut flags = Flags {
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
            returns: Returns::default(),
            ttl_before: false,
            recache_after_touch: false,
        };
        let (mut count, mut fatal, mut bad_argument) = (words_before, None, None);
        for word in words {
            let (letter, argument) = (word[0], &word[1..]);
            count += 1;
            if !letter.is_ascii_alphanumeric() {
                return Err(Fault::Format);
            }
            if fatal.is_some() {
                continue;
            }
            if KNOWN & bit(letter) == 0 {
                fatal = Some("CLIENT_ERROR invalid flag");
            } else if flags.has(letter) {
                fatal = Some("CLIENT_ERROR duplicate flag");
            } else if let Err(message) = flags.take(verb, letter, argument, key, scratch) {
                // A bad F has no words of its own: it leaves those of an earlier fault alone.
                if message != BAD_FORMAT || bad_argument.is_none() {
                    bad_argument = Some(message);
                }
            }
        }
        if count > WORDS_MAX {
            return Err(Fault::TooMany);
        }
        match fatal.or(bad_argument) {
            Some(message) => Err(Fault::Flag(message)),
            None => Ok(flags),
        }
    }

    /// Takes in one flag.
    #[inline(always)]
    fn take(
        &mut self,
        verb: Verb,
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
            b'T' => self.take_ttl(verb, ttl(argument).ok_or(BAD_TOKEN)?),
            b'A' => self.take_ttl(verb, Ttl::Sliding(number::span(argument).ok_or(BAD_TOKEN)?)),
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
            b'b' => decode_key(key, scratch).ok_or("CLIENT_ERROR error decoding key")?,
            _ => {}
        }
        Ok(())
    }

    #[inline(always)]
    fn take_ttl(&mut self, verb: Verb, ttl: Ttl) {
        self.ttl = Some(ttl);
        self.ttl_before = self.has(b't');
        // A record that `N` creates gets its time like any other: of two, the last counts.
        if self.has(b'N') && verb != Verb::Store {
            self.vivify = ttl;
        }
    }

    /// Whether this letter was there.
    #[inline]
    pub(super) fn has(&self, letter: u8) -> bool {
        self.seen & bit(letter) != 0
    }

    /// The number behind a letter, if the letter was there.
    #[inline]
    pub(super) fn given<T>(&self, letter: u8, number: T) -> Option<T> {
        self.has(letter).then_some(number)
    }

    /// The check that comes after those of the mode.
    #[inline]
    pub(super) fn check_opaque(&self) -> Result<(), Fault> {
        if self.opaque.len() > OPAQUE_LEN_MAX { Err(Fault::OpaqueTooLong) } else { Ok(()) }
    }
}

/// A time to live as `T` and `N` give it.
#[inline(always)]
fn ttl(argument: &[u8]) -> Option<Ttl> {
    number::signed(argument).map(|seconds| Ttl::from_memcached(seconds.into()))
}

/// Decodes base64 text; `None` if it is none, or stands for nothing.
pub(super) fn decode_key(text: &[u8], key: &mut Vec<u8>) -> Option<()> {
    key.clear();
    KEY_BASE64.decode_vec(text, key).ok()?;
    (!key.is_empty()).then_some(())
}

/// The base64 of keys: padded. Bits that the last letter has too many are ignored, as memcached does; what
/// goes back is the canonical text of the decoded key.
pub(super) const KEY_BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// The letters that a command sends back.
#[inline]
fn returnable(verb: Verb) -> u64 {
    match verb {
        Verb::Get => const { letters(b"kOsctfhl") },
        Verb::Store => const { letters(b"kOcs") },
        Verb::Delete => const { letters(b"kO") },
        Verb::Arithmetic => const { letters(b"kOtc") },
        Verb::Inspect => 0,
    }
}

/// The place of a letter in a set; digits have none.
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

/// The return flags of a request, in its order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Returns {
    // No command returns more than eight, and none twice.
    letters: [u8; 8],
    len: u8,
}

impl Returns {
    #[inline]
    fn push(&mut self, letter: u8) {
        self.letters[usize::from(self.len)] = letter;
        self.len += 1;
    }

    /// The letters.
    #[inline]
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.letters[..usize::from(self.len)]
    }
}
