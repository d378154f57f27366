//! Lua's patterns, matched within a bound: those of 5.1, step by step, so that a call can be ended.
//!
//! Lua's own matcher is a function of C: no hook runs within it, and `("a-"):rep(8) .. "b"` takes years for a few kilobytes of text.
//! A pattern ends at its first NUL, as there.
//!
//! Source: the reference manual of Lua 5.1, section 5.4.1; what it leaves open, from the machine by trying: `tests/patterns.rs` compares
//! both on random patterns.

/// How many captures a pattern may have.
const CAPTURES_MAX: usize = 32;
/// How deep a match may go into itself: one level for each item that may be repeated, and each parenthesis. 5.1 has only the stack for a
/// bound; later versions of Lua have this one.
const DEPTH_MAX: usize = 200;
/// Steps between two looks at the clock.
const STEPS: usize = 1 << 14;
/// How many bytes of a set or a piece are compared for one more step.
const BYTES_A_STEP: usize = 64;

/// Why there is no result: the words of Lua's error, or what `tick` has said.
pub(crate) enum Stop<E> {
    Wrong(&'static str),
    Ended(E),
}

/// What a capture is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capture {
    /// Its parenthesis is still open.
    Open(usize),
    /// A place, counted from 0.
    Position(usize),
    /// From, and how long.
    Piece(usize, usize),
}

/// A text and a pattern, and how far a match has come.
pub(crate) struct Matcher<'m, F> {
    text: &'m [u8],
    pattern: &'m [u8],
    captures: Vec<Capture>,
    depth: usize,
    steps: usize,
    tick: F,
}

type Outcome<E> = Result<Option<usize>, Stop<E>>;

impl<'m, E, F: FnMut() -> Result<(), E>> Matcher<'m, F> {
    /// Prepares for matching; `tick` is asked now and then whether to go on. `pattern`: without an anchor.
    pub(crate) fn new(text: &'m [u8], pattern: &'m [u8], tick: F) -> Matcher<'m, F> {
        Matcher { text, pattern: until_nul(pattern), captures: Vec::new(), depth: 0, steps: 0, tick }
    }

    /// Matches at a place of the text, and returns where the match ends.
    pub(crate) fn at(&mut self, start: usize) -> Outcome<E> {
        self.captures.clear();
        self.depth = 0;
        self.run(start, 0)
    }

    /// How many captures the last match has.
    pub(crate) fn len(&self) -> usize {
        self.captures.len()
    }

    /// A capture of the last match, from `start` to `end`; without any, the first is all of it.
    pub(crate) fn capture(&self, index: usize, start: usize, end: usize) -> Result<Capture, &'static str> {
        match self.captures.get(index) {
            Some(Capture::Open(_)) => Err("unfinished capture"),
            Some(&capture) => Ok(capture),
            None if index == 0 => Ok(Capture::Piece(start, end - start)),
            None => Err("invalid capture index"),
        }
    }

    fn step(&mut self) -> Result<(), Stop<E>> {
        self.step_over(0)
    }

    /// Counts a step that looks at so many bytes: a long set or piece costs as many steps as it takes time.
    fn step_over(&mut self, bytes: usize) -> Result<(), Stop<E>> {
        self.steps += 1 + bytes / BYTES_A_STEP;
        if self.steps >= STEPS {
            self.steps = 0;
            return (self.tick)().map_err(Stop::Ended);
        }
        Ok(())
    }

    /// A byte of the pattern; NUL at its end.
    fn byte(&self, at: usize) -> u8 {
        self.pattern.get(at).copied().unwrap_or(0)
    }

    /// Matches the pattern from `p` on with the text from `s` on.
    fn run(&mut self, s: usize, p: usize) -> Outcome<E> {
        if self.depth >= DEPTH_MAX {
            return Err(Stop::Wrong("pattern too complex"));
        }
        self.depth += 1;
        let outcome = self.items(s, p);
        self.depth -= 1;
        outcome
    }

    fn items(&mut self, mut s: usize, mut p: usize) -> Outcome<E> {
        loop {
            self.step()?;
            if p >= self.pattern.len() {
                return Ok(Some(s));
            }
            match (self.byte(p), self.byte(p + 1)) {
                (b'(', b')') => return self.open(Capture::Position(s), s, p + 2),
                (b'(', _) => return self.open(Capture::Open(s), s, p + 1),
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

    /// As many as there are, then fewer, down to `least`.
    fn most(&mut self, from: usize, least: usize, p: usize, end: usize) -> Outcome<E> {
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

    fn fewest(&mut self, mut s: usize, p: usize, end: usize) -> Outcome<E> {
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

    fn open(&mut self, capture: Capture, s: usize, p: usize) -> Outcome<E> {
        if self.captures.len() >= CAPTURES_MAX {
            return Err(Stop::Wrong("too many captures"));
        }
        self.captures.push(capture);
        let found = self.run(s, p)?;
        if found.is_none() {
            self.captures.pop();
        }
        Ok(found)
    }

    fn close(&mut self, s: usize, p: usize) -> Outcome<E> {
        let is_open = |capture: &Capture| matches!(capture, Capture::Open(_));
        let Some(index) = self.captures.iter().rposition(is_open) else {
            return Err(Stop::Wrong("invalid pattern capture"));
        };
        let Capture::Open(from) = self.captures[index] else { unreachable!("it was found open") };
        self.captures[index] = Capture::Piece(from, s - from);
        let found = self.run(s, p)?;
        if found.is_none() {
            self.captures[index] = Capture::Open(from);
        }
        Ok(found)
    }

    /// What a capture has, once more. A position is never there again.
    fn again(&mut self, s: usize, digit: u8) -> Outcome<E> {
        let index = usize::from(digit).wrapping_sub(usize::from(b'1'));
        match self.captures.get(index) {
            None | Some(Capture::Open(_)) => Err(Stop::Wrong("invalid capture index")),
            Some(Capture::Position(_)) => Ok(None),
            Some(&Capture::Piece(from, len)) => {
                self.step_over(len)?;
                let is_there = self.text[s..].starts_with(&self.text[from..from + len]);
                Ok(is_there.then_some(s + len))
            }
        }
    }

    fn balance(&mut self, s: usize, p: usize) -> Outcome<E> {
        let (opens, closes) = (self.byte(p), self.byte(p + 1));
        if opens == 0 || closes == 0 {
            return Err(Stop::Wrong("unbalanced pattern"));
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

    /// Where the pattern goes on if a set begins at this place of the text. Beyond both ends of it is NUL.
    fn frontier(&mut self, s: usize, p: usize) -> Outcome<E> {
        if self.byte(p) != b'[' {
            return Err(Stop::Wrong("missing '[' after '%f' in pattern"));
        }
        let end = self.item_end(p)?;
        self.step_over(end - p)?;
        let before = s.checked_sub(1).map_or(0, |before| self.text[before]);
        let here = self.text.get(s).copied().unwrap_or(0);
        let begins = !self.is_in_set(before, p, end) && self.is_in_set(here, p, end);
        Ok(begins.then_some(end))
    }

    /// Where the single item at `p` ends.
    fn item_end(&self, p: usize) -> Result<usize, Stop<E>> {
        match self.byte(p) {
            b'%' if p + 1 >= self.pattern.len() => Err(Stop::Wrong("malformed pattern (ends with '%')")),
            b'%' => Ok(p + 2),
            b'[' => {
                let mut at = p + 1;
                if self.byte(at) == b'^' {
                    at += 1;
                }
                // The first one may be a bracket itself.
                loop {
                    if at >= self.pattern.len() {
                        return Err(Stop::Wrong("malformed pattern (missing ']')"));
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

    /// Whether the byte of the text is the single item from `p` to `end`.
    fn fits(&self, s: usize, p: usize, end: usize) -> bool {
        let Some(&byte) = self.text.get(s) else { return false };
        match self.byte(p) {
            b'.' => true,
            b'%' => is_of_class(byte, self.byte(p + 1)),
            b'[' => self.is_in_set(byte, p, end),
            other => other == byte,
        }
    }

    /// Whether a byte is in the set from the bracket at `p` to `end`, which is behind its last.
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

/// The pattern as Lua's machine sees it.
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
