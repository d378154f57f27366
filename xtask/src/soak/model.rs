//! The expected records and replies of a server, derived from the protocol, not from the code.
//!
//! An operation is played on what the model believes of its key and gives the reply that must come.
//! Where the server may know less than the model (something was evicted, or refused for want of
//! memory) several replies are right, and the reply that arrives decides the state from then on.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

const THIRTY_DAYS: i64 = 2_592_000;
/// Longer numbers are none.
const NUMBER_ITEM_MAX: usize = 512 << 10;

/// Stands for a version (CAS id) that the server has given or will give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token(usize);

/// The known versions.
#[derive(Default)]
pub(super) struct Versions {
    known: Vec<Known>,
    /// The latest that was given while we looked: they only go up.
    latest: u64,
    /// No two are the same.
    seen: HashSet<u64>,
}

#[derive(Clone, Copy)]
struct Known {
    value: Option<u64>,
    /// Given when it is first shown, so it is above all that were shown before.
    is_given_when_shown: bool,
}

impl Versions {
    /// One that is given when it is shown.
    pub(super) fn shown(&mut self) -> Token {
        self.push(Known { value: None, is_given_when_shown: true })
    }

    /// One that may have been given already.
    pub(super) fn hidden(&mut self) -> Token {
        self.push(Known { value: None, is_given_when_shown: false })
    }

    /// One that a client has chosen.
    pub(super) fn chosen(&mut self, value: u64) -> Token {
        self.push(Known { value: Some(value), is_given_when_shown: false })
    }

    fn push(&mut self, known: Known) -> Token {
        self.known.push(known);
        Token(self.known.len() - 1)
    }

    pub(super) fn value(&self, token: Token) -> Option<u64> {
        self.known[token.0].value
    }

    /// Whether the token may have this value.
    pub(super) fn agrees(&self, token: Token, value: u64) -> bool {
        let known = self.known[token.0];
        match known.value {
            Some(known) => known == value,
            None if known.is_given_when_shown => value > self.latest,
            None => value != 0 && !self.seen.contains(&value),
        }
    }

    /// It has been shown with this value.
    pub(super) fn bind(&mut self, token: Token, value: u64) {
        let known = &mut self.known[token.0];
        if known.value.is_none() {
            known.value = Some(value);
            self.seen.insert(value);
            self.latest = self.latest.max(value);
        }
    }
}

/// Until when a record lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    Never,
    At(u64),
    Sliding { seconds: u64, last: u64 },
}

/// A time to live as it stands in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ttl {
    /// 0, relative or absolute.
    Plain(i64),
    /// Seconds after the last access.
    Sliding(u64),
}

impl Ttl {
    pub(super) fn resolve(self, now: u64) -> Expiry {
        match self {
            Ttl::Plain(0) => Expiry::Never,
            Ttl::Plain(..0) => Expiry::At(0),
            Ttl::Plain(seconds @ 1..=THIRTY_DAYS) => Expiry::At(now + seconds as u64),
            Ttl::Plain(at) => Expiry::At(at as u64),
            Ttl::Sliding(seconds) => Expiry::Sliding { seconds, last: now },
        }
    }
}

impl Expiry {
    pub(super) fn is_over(self, now: u64) -> bool {
        match self {
            Expiry::Never => false,
            Expiry::At(at) => at <= now,
            Expiry::Sliding { seconds, last } => last + seconds <= now,
        }
    }

    pub(super) fn accessed(self, now: u64) -> Expiry {
        match self {
            Expiry::Sliding { seconds, .. } => Expiry::Sliding { seconds, last: now },
            other => other,
        }
    }

    /// As meta flag t shows it.
    pub(super) fn left(self, now: u64) -> i64 {
        match self {
            Expiry::Never => -1,
            Expiry::At(at) => at as i64 - now as i64,
            Expiry::Sliding { seconds, last } => (last + seconds) as i64 - now as i64,
        }
    }
}

/// The record of a key.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) value: Arc<Vec<u8>>,
    pub(super) flags: u32,
    pub(super) expiry: Expiry,
    /// `None`: none that anybody has been shown.
    pub(super) version: Option<Token>,
    pub(super) stale: bool,
    pub(super) token_sent: bool,
}

impl Item {
    pub(super) fn new(value: Arc<Vec<u8>>) -> Item {
        Item { value, flags: 0, expiry: Expiry::Never, version: None, stale: false, token_sent: false }
    }

    pub(super) fn accessed(&self, now: u64) -> Item {
        Item { expiry: self.expiry.accessed(now), ..self.clone() }
    }
}

/// The parts of a reply.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    Bytes(Vec<u8>),
    Value(Arc<Vec<u8>>),
    /// A version in decimal ...
    Version(Token),
    /// ... and in eight bytes.
    Version8(Token),
    /// Some number.
    Digits,
    /// `yes` or `no`.
    Word,
    /// The reply that must not come next.
    Not(Vec<u8>),
    /// A packet with this opaque must not come next.
    NotOpaque(u32),
}

/// The context of an operation: the time, and the known versions.
pub(super) struct Context<'a> {
    pub(super) now: u64,
    pub(super) versions: &'a mut Versions,
}

impl Context<'_> {
    /// The version of an item, which from now on has one.
    pub(super) fn show(&mut self, item: &mut Item) -> Token {
        *item.version.get_or_insert_with(|| self.versions.shown())
    }

    pub(super) fn has_version(&self, item: &Item, version: u64) -> bool {
        version != 0 && item.version.and_then(|token| self.versions.value(token)) == Some(version)
    }
}

/// The reply that must come, and what holds after it.
pub(super) struct Play {
    pub(super) reply: Vec<Piece>,
    pub(super) after: Option<Item>,
}

impl Play {
    pub(super) fn new(reply: Vec<Piece>, after: Option<Item>) -> Play {
        Play { reply, after }
    }

    pub(super) fn text(reply: &str, after: Option<Item>) -> Play {
        Play { reply: vec![Piece::Bytes(reply.into())], after }
    }
}

/// The effect on the record if a request is refused because memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    TheOld,
    /// The request was as good as carried out, or something of the two above.
    Unknown,
}

type Rule = Box<dyn Fn(Option<&Item>, &mut Context<'_>) -> Play + Send>;

/// One operation on one key (or on none), and all that may come back.
pub(super) struct Step {
    pub(super) key: Option<usize>,
    pub(super) rule: Rule,
    /// The alternative reply if memory is full.
    pub(super) refusals: Vec<(Vec<u8>, Left)>,
    /// No reply shows whether the request was refused.
    pub(super) is_silent: bool,
    /// Where its request stands among those that are sent together.
    pub(super) request: Range<usize>,
}

impl Step {
    pub(super) fn on(
        key: usize,
        rule: impl Fn(Option<&Item>, &mut Context<'_>) -> Play + Send + 'static,
    ) -> Step {
        Step { key: Some(key), rule: Box::new(rule), refusals: Vec::new(), is_silent: false, request: 0..0 }
    }

    /// Bytes that must come whatever is stored.
    pub(super) fn fixed(bytes: impl Into<Vec<u8>>) -> Step {
        let bytes = bytes.into();
        let rule =
            move |_: Option<&Item>, _: &mut Context<'_>| Play::new(vec![Piece::Bytes(bytes.clone())], None);
        Step { key: None, rule: Box::new(rule), refusals: Vec::new(), is_silent: false, request: 0..0 }
    }

    pub(super) fn or(mut self, refusal: impl Into<Vec<u8>>, left: Left) -> Step {
        self.refusals.push((refusal.into(), left));
        self
    }

    pub(super) fn silent(mut self, is_silent: bool) -> Step {
        self.is_silent = is_silent;
        self
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
}

/// A store, in any dialect.
#[derive(Clone)]
pub(super) struct Store {
    pub(super) mode: Mode,
    pub(super) value: Arc<Vec<u8>>,
    pub(super) flags: u32,
    pub(super) ttl: Ttl,
    pub(super) compare: Option<u64>,
    /// Its answer shows the version.
    pub(super) shows: bool,
    /// The version that it is to get.
    pub(super) version: Option<u64>,
    /// Append and prepend create with this.
    pub(super) vivify: Option<Ttl>,
    /// An older version stores a stale value.
    pub(super) stale_if_older: bool,
}

/// How a store ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    Yes(Option<Token>, usize),
    No,
    Exists,
    NotFound,
}

impl Store {
    pub(super) fn play(&self, old: Option<&Item>, context: &mut Context<'_>) -> (Stored, Option<Item>) {
        let now = context.now;
        let version = match (self.version, self.shows) {
            (Some(version), _) => context.versions.chosen(version),
            (None, true) => context.versions.shown(),
            (None, false) => context.versions.hidden(),
        };
        let fresh = Item {
            flags: self.flags,
            expiry: self.ttl.resolve(now),
            version: Some(version),
            ..Item::new(Arc::clone(&self.value))
        };
        let yes = |item: Item| (Stored::Yes(item.version, item.value.len()), Some(item));
        let Some(old) = old else {
            return match self.mode {
                Mode::Set | Mode::Replace if self.compare.is_some() => (Stored::NotFound, None),
                Mode::Set | Mode::Add => yes(fresh),
                Mode::Append | Mode::Prepend if self.vivify.is_some() => {
                    yes(Item { expiry: self.vivify.unwrap_or(self.ttl).resolve(now), ..fresh })
                }
                _ => (Stored::No, None),
            };
        };
        if self.mode == Mode::Add {
            return (Stored::No, Some(old.accessed(now)));
        }
        if let Some(asked) = self.compare
            && !context.has_version(old, asked)
        {
            let known = old.version.and_then(|token| context.versions.value(token));
            let is_older = asked != 0 && asked < known.unwrap_or(context.versions.latest + 1);
            if self.stale_if_older && is_older && matches!(self.mode, Mode::Set | Mode::Replace) {
                return yes(Item {
                    expiry: old.expiry.accessed(now),
                    stale: true,
                    token_sent: old.token_sent,
                    ..fresh
                });
            }
            return (Stored::Exists, Some(old.clone()));
        }
        let joined = match self.mode {
            Mode::Append => [&old.value[..], &self.value[..]].concat(),
            Mode::Prepend => [&self.value[..], &old.value[..]].concat(),
            _ => return yes(fresh),
        };
        yes(Item {
            flags: old.flags,
            expiry: old.expiry.accessed(now),
            version: Some(version),
            ..Item::new(Arc::new(joined))
        })
    }
}

/// Arithmetic, in any dialect.
#[derive(Clone, Copy)]
pub(super) struct Count {
    pub(super) up: bool,
    pub(super) delta: u64,
    /// The value with which a missing record is created.
    pub(super) vivify: Option<(u64, Ttl)>,
    pub(super) touch: Option<Ttl>,
    pub(super) compare: Option<u64>,
    pub(super) shows: bool,
}

pub(super) enum Counted {
    Number(u64, Item),
    NotFound,
    Exists,
    NoNumber,
}

fn number(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) || value.len() > NUMBER_ITEM_MAX {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

impl Count {
    pub(super) fn play(&self, old: Option<&Item>, context: &mut Context<'_>) -> Counted {
        let now = context.now;
        let version = Some(if self.shows { context.versions.shown() } else { context.versions.hidden() });
        let Some(old) = old else {
            return match self.vivify {
                None => Counted::NotFound,
                Some((initial, ttl)) => {
                    let value = Arc::new(initial.to_string().into_bytes());
                    let expiry = ttl.resolve(now);
                    Counted::Number(initial, Item { expiry, version, ..Item::new(value) })
                }
            };
        };
        if self.compare.is_some_and(|asked| !context.has_version(old, asked)) {
            return Counted::Exists;
        }
        let Some(before) = number(&old.value) else { return Counted::NoNumber };
        let after = if self.up { before.wrapping_add(self.delta) } else { before.saturating_sub(self.delta) };
        let len = old.value.len();
        // A value that fits stays in place with its marks; a longer value is a new item.
        let in_place = after.to_string().len() <= len;
        let item = Item {
            value: Arc::new(format!("{after:<len$}").into_bytes()),
            flags: old.flags,
            expiry: self.touch.map_or(old.expiry.accessed(now), |ttl| ttl.resolve(now)),
            version,
            stale: in_place && old.stale,
            token_sent: in_place && old.token_sent,
        };
        Counted::Number(after, item)
    }
}
