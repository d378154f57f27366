//! Encodes a value as a sequence of tokens: pieces of text that occur often.
//!
//! ```text
//! value = code ...
//! code  = byte b < S                      token b
//!       | byte b >= S, byte c             token S + (b - S) * 256 + c
//!       | code of a hex token, n bytes    2n lower-case hexadecimal digits
//! ```
//!
//! S is the number of short codes. The most frequent tokens have the lowest numbers. Every byte is
//! a token, so every value can be encoded.
//!
//! Invariants: decoding an encoded value yields the value. Decoding any other bytes yields some
//! value or fails, and never takes more memory than the caller permits.

use super::hex_run::HexRuns;
use super::matcher::TokenMatcher;
use crate::hex_digits::{pack_hex, unpack_hex};

/// The maximum length of a token.
pub(super) const TOKEN_LEN_MAX: usize = 128;
/// The maximum number of tokens, hex tokens included. The matcher stores 15 bits of a number.
pub(super) const TOKENS_MAX: usize = 16 << 10;
/// The length after which a text must have become shorter, or it is not encoded.
const TRIED_LEN: usize = 64;
/// The number of bytes that are copied at once. The texts of all tokens are followed by this number
/// of bytes, and so is a decoded value in its buffer.
const COPY_LEN: usize = 16;

/// The location of a token's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenSpan {
    pub(super) start: u32,
    pub(super) len: u16,
    /// True for a hex token, which has no text. `len` is then the number of digits.
    is_hex: bool,
}

impl TokenSpan {
    pub(super) fn plain(start: u32, len: u16) -> TokenSpan {
        TokenSpan { start, len, is_hex: false }
    }
}

/// A dictionary of tokens.
#[derive(Debug)]
pub(super) struct TokenDictionary {
    short_codes: usize,
    texts: Box<[u8]>,
    spans: Box<[TokenSpan]>,
    matcher: TokenMatcher,
    hex: HexRuns,
}

impl TokenDictionary {
    /// Creates a dictionary of tokens, the most frequent first. Each single byte must be one of
    /// them. A token that stands for a run of hexadecimal digits is given by the number of its
    /// digits.
    pub(super) fn new(tokens: &[TokenText<'_>]) -> TokenDictionary {
        assert!(tokens.len() <= TOKENS_MAX, "too many tokens for the matcher");
        let (mut texts, mut spans, mut hex) = (Vec::new(), Vec::new(), HexRuns::default());
        for (number, token) in tokens.iter().enumerate() {
            let start = texts.len() as u32;
            spans.push(match *token {
                TokenText::Plain(text) => {
                    texts.extend_from_slice(text);
                    TokenSpan::plain(start, text.len() as u16)
                }
                TokenText::Hex(digits) => {
                    hex.add(digits, number as u16);
                    TokenSpan { start, len: digits as u16, is_hex: true }
                }
            });
        }
        texts.resize(texts.len() + COPY_LEN, 0);
        let plain = spans.iter().enumerate().filter(|(_, span)| !span.is_hex);
        let matcher = TokenMatcher::new(&texts, plain.map(|(number, span)| (number as u16, *span)));
        TokenDictionary {
            short_codes: short_codes(tokens.len()),
            texts: texts.into(),
            spans: spans.into(),
            matcher,
            hex,
        }
    }

    /// Returns the number of tokens.
    pub(super) fn tokens(&self) -> usize {
        self.spans.len()
    }

    /// Returns the memory that the dictionary takes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.texts.len() + size_of_val(&*self.spans) + self.matcher.memory_bytes()
    }

    /// Appends the encoded value if it is at most `len_max` bytes long. Otherwise appends nothing
    /// and returns false. The cost is at most proportional to the length of the value.
    #[inline]
    pub(super) fn encode(&self, value: &[u8], len_max: usize, out: &mut Vec<u8>) -> bool {
        let from = out.len();
        out.reserve(len_max + 2);
        let fits = if self.hex.is_empty() {
            self.encode_text(value, from + len_max, out)
        } else {
            self.encode_with_hex(value, from + len_max, out)
        };
        if !fits {
            out.truncate(from);
        }
        fits
    }

    /// Encodes a text without hex tokens. Returns false once `out` is longer than `end_max`.
    #[inline]
    fn encode_text(&self, text: &[u8], end_max: usize, out: &mut Vec<u8>) -> bool {
        let (mut at, from) = (0, out.len());
        while at < text.len() {
            let (token, len) = self.matcher.longest_at(&self.texts, text, at);
            self.put_code(usize::from(token), out);
            at += len;
            // The rest of a text that is no shorter so far is not worth the time.
            let is_long = at >= TRIED_LEN && out.len() - from > at - at / 16;
            if out.len() > end_max || is_long {
                return false;
            }
        }
        true
    }

    fn encode_with_hex(&self, value: &[u8], end_max: usize, out: &mut Vec<u8>) -> bool {
        let mut at = 0;
        while let Some((run, token)) = self.hex.next(value, at) {
            if !self.encode_text(&value[at..run.start], end_max, out) {
                return false;
            }
            self.put_code(usize::from(token), out);
            pack_hex(&value[run.clone()], out);
            at = run.end;
        }
        // A run at the end may have exceeded the length.
        self.encode_text(&value[at..], end_max, out) && out.len() <= end_max
    }

    #[inline]
    fn put_code(&self, token: usize, out: &mut Vec<u8>) {
        if token < self.short_codes {
            out.push(token as u8);
        } else {
            let long = token - self.short_codes;
            out.extend_from_slice(&[(self.short_codes + (long >> 8)) as u8, long as u8]);
        }
    }

    /// Reads the code at `at` and advances `at`. Returns `None` if there is no such token.
    #[inline]
    fn span_at(&self, codes: &[u8], at: &mut usize) -> Option<TokenSpan> {
        let mut token = usize::from(*codes.get(*at)?);
        *at += 1;
        if token >= self.short_codes {
            token = self.short_codes + (token - self.short_codes) * 256 + usize::from(*codes.get(*at)?);
            *at += 1;
        }
        self.spans.get(token).copied()
    }

    /// Decodes a value into a buffer, which grows as needed, and returns the value. Returns `None`
    /// if the codes are damaged, or if the value is longer than `len_max`.
    #[inline]
    pub(super) fn decode<'b>(
        &self,
        codes: &[u8],
        len_max: usize,
        buffer: &'b mut Vec<u8>,
    ) -> Option<&'b [u8]> {
        let (mut at, mut len) = (0, 0);
        while at < codes.len() {
            let span = self.span_at(codes, &mut at)?;
            let (start, token_len) = (span.start as usize, usize::from(span.len));
            if len + token_len + COPY_LEN > buffer.len() {
                make_room(buffer, len + token_len + COPY_LEN, len_max)?;
            }
            if span.is_hex {
                let packed = codes.get(at..at + token_len / 2)?;
                unpack_hex(packed, &mut buffer[len..len + token_len]);
                at += packed.len();
            } else {
                // Copies of a constant length are the fastest ones.
                let copied = token_len.next_multiple_of(COPY_LEN);
                let from = self.texts[start..start + copied].as_chunks::<COPY_LEN>().0;
                let to = buffer[len..len + copied].as_chunks_mut::<COPY_LEN>().0;
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
            len += token_len;
        }
        (len <= len_max).then(|| &buffer[..len])
    }

    /// Returns the length of the decoded value, or `None` if the codes are damaged.
    #[inline]
    pub(super) fn decoded_len(&self, codes: &[u8]) -> Option<usize> {
        let (mut at, mut len) = (0, 0);
        while at < codes.len() {
            let span = self.span_at(codes, &mut at)?;
            len += usize::from(span.len);
            if span.is_hex {
                at += usize::from(span.len) / 2;
            }
        }
        (at == codes.len()).then_some(len)
    }
}

/// Lengthens a buffer to at least `len` bytes. Returns `None` if a value of at most `len_max` bytes
/// cannot need that many.
#[cold]
fn make_room(buffer: &mut Vec<u8>, len: usize, len_max: usize) -> Option<()> {
    let most = len_max + TOKEN_LEN_MAX + COPY_LEN;
    if len > most {
        return None;
    }
    buffer.resize(len.next_power_of_two().max(1 << 10).min(most.max(len)), 0);
    Some(())
}

/// Returns the number of codes of one byte if there are this many tokens. Each other byte begins
/// 256 longer codes.
pub(super) fn short_codes(tokens: usize) -> usize {
    256 - tokens.saturating_sub(256).div_ceil(255)
}

/// The text of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenText<'t> {
    /// This text.
    Plain(&'t [u8]),
    /// A run of this number of hexadecimal digits.
    Hex(usize),
}
