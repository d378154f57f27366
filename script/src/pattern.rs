//! Matches Lua 5.1 patterns step by step, so that a call can be ended at its deadline.
//!
//! Lua's own matcher is a C function: no hook runs within it, and `("a-"):rep(8) .. "b"` takes
//! years for a few kilobytes of text. As in Lua, a pattern ends at its first NUL.
//!
//! Source: the reference manual of Lua 5.1, section 5.4.1. Details that the manual leaves open were
//! observed; `tests/patterns.rs` compares both matchers on random patterns.

/// The maximum number of captures in a pattern.
const CAPTURES_MAX: usize = 32;
/// The maximum recursion depth of a match. Each repeated item and each parenthesis adds a level. In
/// Lua 5.1 only the size of the stack limits the depth; later versions of Lua have this limit.
const DEPTH_MAX: usize = 200;
/// The number of steps between two checks of the deadline.
const STEPS: usize = 1 << 14;
/// The number of bytes that count as one step in the comparison of a set or a piece.
const BYTES_A_STEP: usize = 64;

/// The reason why a match ended without a result: the text of Lua's error, or the error of `tick`.
pub(crate) enum MatchError<E> {
    Wrong(&'static str),
    Ended(E),
}

/// The state of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PatternCapture {
    /// The parenthesis at this position is still open.
    Open(usize),
    /// A position, counted from 0.
    Position(usize),
    /// The start and length of a piece.
    Piece(usize, usize),
}

/// A text, a pattern and the state of a match.
pub(crate) struct PatternMatcher<'m, F> {
    text: &'m [u8],
    pattern: &'m [u8],
    captures: Vec<PatternCapture>,
    depth: usize,
    steps: usize,
    tick: F,
}

type MatchOutcome<E> = Result<Option<usize>, MatchError<E>>;

impl<'m, E, F: FnMut() -> Result<(), E>> PatternMatcher<'m, F> {
    /// Creates a matcher. `tick` is called periodically and can end the match. `pattern` must not
    /// contain an anchor.
    pub(crate) fn new(text: &'m [u8], pattern: &'m [u8], tick: F) -> PatternMatcher<'m, F> {
        PatternMatcher { text, pattern: until_nul(pattern), captures: Vec::new(), depth: 0, steps: 0, tick }
    }

    /// Matches at a position of the text, and returns the end of the match.
    pub(crate) fn at(&mut self, start: usize) -> MatchOutcome<E> {
        self.captures.clear();
        self.depth = 0;
        self.run(start, 0)
    }

    /// Returns the number of captures of the last match.
    pub(crate) fn len(&self) -> usize {
        self.captures.len()
    }

    /// Returns a capture of the last match, which extends from `start` to `end`. If the pattern has
    /// no captures, the first capture is the entire match.
    pub(crate) fn capture(
        &self,
        index: usize,
        start: usize,
        end: usize,
    ) -> Result<PatternCapture, &'static str> {
        match self.captures.get(index) {
            Some(PatternCapture::Open(_)) => Err("unfinished capture"),
            Some(&capture) => Ok(capture),
            None if index == 0 => Ok(PatternCapture::Piece(start, end - start)),
            None => Err("invalid capture index"),
        }
    }

    fn step(&mut self) -> Result<(), MatchError<E>> {
        self.step_over(0)
    }

    /// Counts the steps of a comparison of `bytes` bytes, so that the number of steps is in
    /// proportion to the time.
    fn step_over(&mut self, bytes: usize) -> Result<(), MatchError<E>> {
        self.steps += 1 + bytes / BYTES_A_STEP;
        if self.steps >= STEPS {
            self.steps = 0;
            return (self.tick)().map_err(MatchError::Ended);
        }
        Ok(())
    }

    /// Returns the byte at this position of the pattern, or NUL at the end of the pattern.
    fn byte(&self, at: usize) -> u8 {
        self.pattern.get(at).copied().unwrap_or(0)
    }

    /// Matches the pattern from `p` with the text from `s`.
    fn run(&mut self, s: usize, p: usize) -> MatchOutcome<E> {
        if self.depth >= DEPTH_MAX {
            return Err(MatchError::Wrong("pattern too complex"));
        }
        self.depth += 1;
        let outcome = self.items(s, p);
        self.depth -= 1;
        outcome
    }

    fn items(&mut self, mut s: usize, mut p: usize) -> MatchOutcome<E> {
        loop {
            self.step()?;
            if p >= self.pattern.len() {
                return Ok(Some(s));
            }
            match (self.byte(p), self.byte(p + 1)) {
                (b'(', b')') => return self.open(PatternCapture::Position(s), s, p + 2),
                (b'(', _) => return self.open(PatternCapture::Open(s), s, p + 1),
                (b')', _) => return self.close(s, p + 1),
                (b'$', 0) => return Ok((s == self.text.len()).then_some(s)),
                (b'%', b'b') => match self.balance(s, p + 2)? {
                    Some(end) => (s, p) = (end, p + 4),
                    None => return Ok(None),
                },
                (b'%', b'f') => match self.frontier(s, p + 2)? {
                    Some(next) => p = next,
                    None => return Ok(None),
                },
                (b'%', digit) if digit.is_ascii_digit() => match self.again(s, digit)? {
                    Some(end) => (s, p) = (end, p + 2),
                    None => return Ok(None),
                },
                _ => {
                    let end = self.item_end(p)?;
                    self.step_over(end - p)?;
                    let fits = self.fits(s, p, end);
                    match self.byte(end) {
                        b'?' => {
                            if fits && let Some(found) = self.run(s + 1, end + 1)? {
                                return Ok(Some(found));
                            }
                            p = end + 1;
                        }
                        b'*' => return self.most(s, s, p, end),
                        b'+' if fits => return self.most(s, s + 1, p, end),
                        b'-' => return self.fewest(s, p, end),
                        _ if fits && self.byte(end) != b'+' => (s, p) = (s + 1, end),
                        _ => return Ok(None),
                    }
                }
            }
        }
    }

    /// Matches as many repetitions as possible, and then fewer and fewer, until the rest of the
    /// pattern matches. There must be at least `least` repetitions.
    fn most(&mut self, from: usize, least: usize, p: usize, end: usize) -> MatchOutcome<E> {
        let mut s = from;
        while self.fits(s, p, end) {
            self.step_over(end - p)?;
            s += 1;
        }
        loop {
            self.step()?;
            if let Some(found) = self.run(s, end + 1)? {
                return Ok(Some(found));
            }
            if s == least {
                return Ok(None);
            }
            s -= 1;
        }
    }

    fn fewest(&mut self, mut s: usize, p: usize, end: usize) -> MatchOutcome<E> {
        loop {
            self.step_over(end - p)?;
            if let Some(found) = self.run(s, end + 1)? {
                return Ok(Some(found));
            }
            if !self.fits(s, p, end) {
                return Ok(None);
            }
            s += 1;
        }
    }

    fn open(&mut self, capture: PatternCapture, s: usize, p: usize) -> MatchOutcome<E> {
        if self.captures.len() >= CAPTURES_MAX {
            return Err(MatchError::Wrong("too many captures"));
        }
        self.captures.push(capture);
        let found = self.run(s, p)?;
        if found.is_none() {
            self.captures.pop();
        }
        Ok(found)
    }

    fn close(&mut self, s: usize, p: usize) -> MatchOutcome<E> {
        let is_open = |capture: &PatternCapture| matches!(capture, PatternCapture::Open(_));
        let Some(index) = self.captures.iter().rposition(is_open) else {
            return Err(MatchError::Wrong("invalid pattern capture"));
        };
        let PatternCapture::Open(from) = self.captures[index] else { unreachable!("it was found open") };
        self.captures[index] = PatternCapture::Piece(from, s - from);
        let found = self.run(s, p)?;
        if found.is_none() {
            self.captures[index] = PatternCapture::Open(from);
        }
        Ok(found)
    }

    /// Matches the text of an earlier capture again. The capture of a position never matches.
    fn again(&mut self, s: usize, digit: u8) -> MatchOutcome<E> {
        let index = usize::from(digit).wrapping_sub(usize::from(b'1'));
        match self.captures.get(index) {
            None | Some(PatternCapture::Open(_)) => Err(MatchError::Wrong("invalid capture index")),
            Some(PatternCapture::Position(_)) => Ok(None),
            Some(&PatternCapture::Piece(from, len)) => {
                self.step_over(len)?;
                let is_there = self.text[s..].starts_with(&self.text[from..from + len]);
                Ok(is_there.then_some(s + len))
            }
        }
    }

    fn balance(&mut self, s: usize, p: usize) -> MatchOutcome<E> {
        let (opens, closes) = (self.byte(p), self.byte(p + 1));
        if opens == 0 || closes == 0 {
            return Err(MatchError::Wrong("unbalanced pattern"));
        }
        if self.text.get(s) != Some(&opens) {
            return Ok(None);
        }
        let mut depth = 1usize;
        for at in s + 1..self.text.len() {
            self.step()?;
            let byte = self.text[at];
            if byte == closes {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(at + 1));
                }
            } else if byte == opens {
                depth += 1;
            }
        }
        Ok(None)
    }

    /// Matches the frontier pattern `%f[set]`, and returns the position after it. NUL stands for
    /// the bytes before and after the text.
    fn frontier(&mut self, s: usize, p: usize) -> MatchOutcome<E> {
        if self.byte(p) != b'[' {
            return Err(MatchError::Wrong("missing '[' after '%f' in pattern"));
        }
        let end = self.item_end(p)?;
        self.step_over(end - p)?;
        let before = s.checked_sub(1).map_or(0, |before| self.text[before]);
        let here = self.text.get(s).copied().unwrap_or(0);
        let begins = !self.is_in_set(before, p, end) && self.is_in_set(here, p, end);
        Ok(begins.then_some(end))
    }

    /// Returns the end of the single pattern item that begins at `p`.
    fn item_end(&self, p: usize) -> Result<usize, MatchError<E>> {
        match self.byte(p) {
            b'%' if p + 1 >= self.pattern.len() => {
                Err(MatchError::Wrong("malformed pattern (ends with '%')"))
            }
            b'%' => Ok(p + 2),
            b'[' => {
                let mut at = p + 1;
                if self.byte(at) == b'^' {
                    at += 1;
                }
                // The first character of a set may be a closing bracket.
                loop {
                    if at >= self.pattern.len() {
                        return Err(MatchError::Wrong("malformed pattern (missing ']')"));
                    }
                    let is_escape = self.byte(at) == b'%';
                    at += 1;
                    if is_escape && at < self.pattern.len() {
                        at += 1;
                    }
                    if self.byte(at) == b']' {
                        return Ok(at + 1);
                    }
                }
            }
            _ => Ok(p + 1),
        }
    }

    /// Returns true if the byte of the text matches the single item from `p` to `end`.
    fn fits(&self, s: usize, p: usize, end: usize) -> bool {
        let Some(&byte) = self.text.get(s) else { return false };
        match self.byte(p) {
            b'.' => true,
            b'%' => is_of_class(byte, self.byte(p + 1)),
            b'[' => self.is_in_set(byte, p, end),
            other => other == byte,
        }
    }

    /// Returns true if a byte is in the set between the bracket at `p` and the position `end` after
    /// its closing bracket.
    fn is_in_set(&self, byte: u8, p: usize, end: usize) -> bool {
        let last = end - 1;
        let (mut at, is_meant) = if self.byte(p + 1) == b'^' { (p + 2, false) } else { (p + 1, true) };
        while at < last {
            if self.byte(at) == b'%' {
                at += 1;
                if is_of_class(byte, self.byte(at)) {
                    return is_meant;
                }
            } else if self.byte(at + 1) == b'-' && at + 2 < last {
                if (self.byte(at)..=self.byte(at + 2)).contains(&byte) {
                    return is_meant;
                }
                at += 2;
            } else if self.byte(at) == byte {
                return is_meant;
            }
            at += 1;
        }
        !is_meant
    }
}

/// Returns the pattern up to its first NUL, as Lua interprets it.
pub(crate) fn until_nul(pattern: &[u8]) -> &[u8] {
    pattern.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn is_of_class(byte: u8, class: u8) -> bool {
    let is_of = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0B,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        b'z' => byte == 0,
        _ => return byte == class,
    };
    is_of == class.is_ascii_lowercase()
}
