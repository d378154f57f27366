//! A model of the server: the expected records and replies, derived from the protocol, not from the
//! code.
//!
//! An operation is applied to the model's record of its key and yields the expected reply. If the
//! server may hold less than the model (it evicted a record, or refused a request because memory
//! was full), several replies are valid, and the one that arrives decides the model's state.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

const THIRTY_DAYS: i64 = 2_592_000;
/// A longer value is not a number for arithmetic commands.
const NUMBER_ITEM_MAX: usize = 512 << 10;

/// Identifies a version (CAS id) that the server has assigned or will assign; its value may still
/// be unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VersionToken(usize);

/// All versions, with those values that replies have shown.
#[derive(Default)]
pub(super) struct VersionTable {
    known: Vec<VersionEntry>,
    /// The highest value that a reply has shown. The server assigns ascending values.
    latest: u64,
    /// All values shown so far. No two versions have the same value.
    seen: HashSet<u64>,
}

#[derive(Clone, Copy)]
struct VersionEntry {
    value: Option<u64>,
    /// The server assigns the value when a reply first shows it, so the value is above all that
    /// were shown before.
    is_given_when_shown: bool,
}

impl VersionTable {
    /// Adds a version that the server assigns when a reply first shows it.
    pub(super) fn new_when_shown(&mut self) -> VersionToken {
        self.push(VersionEntry { value: None, is_given_when_shown: true })
    }

    /// Adds a version that the server may have assigned already.
    pub(super) fn new_unshown(&mut self) -> VersionToken {
        self.push(VersionEntry { value: None, is_given_when_shown: false })
    }

    /// Adds a version that a request assigned.
    pub(super) fn new_chosen(&mut self, value: u64) -> VersionToken {
        self.push(VersionEntry { value: Some(value), is_given_when_shown: false })
    }

    fn push(&mut self, known: VersionEntry) -> VersionToken {
        self.known.push(known);
        VersionToken(self.known.len() - 1)
    }

    pub(super) fn value(&self, token: VersionToken) -> Option<u64> {
        self.known[token.0].value
    }

    /// Returns true if the version may have this value.
    pub(super) fn may_have_value(&self, token: VersionToken, value: u64) -> bool {
        let known = self.known[token.0];
        match known.value {
            Some(known) => known == value,
            None if known.is_given_when_shown => value > self.latest,
            None => value != 0 && !self.seen.contains(&value),
        }
    }

    /// Records the value that a reply showed for the version.
    pub(super) fn record_value(&mut self, token: VersionToken, value: u64) {
        let known = &mut self.known[token.0];
        if known.value.is_none() {
            known.value = Some(value);
            self.seen.insert(value);
            self.latest = self.latest.max(value);
        }
    }
}

/// When a record expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemExpiry {
    Never,
    At(u64),
    Sliding { seconds: u64, last: u64 },
}

/// A time to live in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestTtl {
    /// 0 (never), or seconds from now, or an absolute time.
    Plain(i64),
    /// Seconds after the last access.
    Sliding(u64),
}

impl RequestTtl {
    pub(super) fn resolve(self, now: u64) -> ItemExpiry {
        match self {
            RequestTtl::Plain(0) => ItemExpiry::Never,
            RequestTtl::Plain(..0) => ItemExpiry::At(0),
            RequestTtl::Plain(seconds @ 1..=THIRTY_DAYS) => ItemExpiry::At(now + seconds as u64),
            RequestTtl::Plain(at) => ItemExpiry::At(at as u64),
            RequestTtl::Sliding(seconds) => ItemExpiry::Sliding { seconds, last: now },
        }
    }
}

impl ItemExpiry {
    pub(super) fn is_over(self, now: u64) -> bool {
        match self {
            ItemExpiry::Never => false,
            ItemExpiry::At(at) => at <= now,
            ItemExpiry::Sliding { seconds, last } => last + seconds <= now,
        }
    }

    pub(super) fn accessed(self, now: u64) -> ItemExpiry {
        match self {
            ItemExpiry::Sliding { seconds, .. } => ItemExpiry::Sliding { seconds, last: now },
            other => other,
        }
    }

    /// Returns the remaining seconds as meta flag t shows them.
    pub(super) fn remaining_seconds(self, now: u64) -> i64 {
        match self {
            ItemExpiry::Never => -1,
            ItemExpiry::At(at) => at as i64 - now as i64,
            ItemExpiry::Sliding { seconds, last } => (last + seconds) as i64 - now as i64,
        }
    }
}

/// The expected record of a key.
#[derive(Clone, Debug)]
pub(super) struct ModelItem {
    pub(super) value: Arc<Vec<u8>>,
    pub(super) flags: u32,
    pub(super) expiry: ItemExpiry,
    /// `None` if no reply has shown a version.
    pub(super) version: Option<VersionToken>,
    pub(super) stale: bool,
    pub(super) token_sent: bool,
}

impl ModelItem {
    pub(super) fn new(value: Arc<Vec<u8>>) -> ModelItem {
        ModelItem {
            value,
            flags: 0,
            expiry: ItemExpiry::Never,
            version: None,
            stale: false,
            token_sent: false,
        }
    }

    pub(super) fn accessed(&self, now: u64) -> ModelItem {
        ModelItem { expiry: self.expiry.accessed(now), ..self.clone() }
    }
}

/// The parts of a reply.
#[derive(Clone, Debug)]
pub(super) enum ReplyPiece {
    Bytes(Vec<u8>),
    Value(Arc<Vec<u8>>),
    /// A version in decimal ...
    Version(VersionToken),
    /// ... and in eight bytes.
    Version8(VersionToken),
    /// Any decimal number.
    Digits,
    /// `yes` or `no`.
    Word,
    /// The next reply must not start with these bytes.
    Not(Vec<u8>),
    /// The next packet must not have this opaque.
    NotOpaque(u32),
}

/// The context of an operation: the time and the versions.
pub(super) struct ModelContext<'a> {
    pub(super) now: u64,
    pub(super) versions: &'a mut VersionTable,
}

impl ModelContext<'_> {
    /// Returns the version of an item, which gets a new one if it has none.
    pub(super) fn version_of(&mut self, item: &mut ModelItem) -> VersionToken {
        *item.version.get_or_insert_with(|| self.versions.new_when_shown())
    }

    pub(super) fn has_version(&self, item: &ModelItem, version: u64) -> bool {
        version != 0 && item.version.and_then(|token| self.versions.value(token)) == Some(version)
    }
}

/// An expected reply and the record after it.
pub(super) struct ExpectedReply {
    pub(super) reply: Vec<ReplyPiece>,
    pub(super) after: Option<ModelItem>,
}

impl ExpectedReply {
    pub(super) fn new(reply: Vec<ReplyPiece>, after: Option<ModelItem>) -> ExpectedReply {
        ExpectedReply { reply, after }
    }

    pub(super) fn text(reply: &str, after: Option<ModelItem>) -> ExpectedReply {
        ExpectedReply { reply: vec![ReplyPiece::Bytes(reply.into())], after }
    }
}

/// The record of the key after the server refused a request because memory was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordAfterRefusal {
    Absent,
    Unchanged,
    /// Absent, unchanged, or as if the request had succeeded.
    Unknown,
}

type ReplyRule = Box<dyn Fn(Option<&ModelItem>, &mut ModelContext<'_>) -> ExpectedReply + Send>;

/// One operation on one key (or on none), and its valid replies.
pub(super) struct ModelStep {
    pub(super) key: Option<usize>,
    pub(super) rule: ReplyRule,
    /// The alternative replies if memory is full.
    pub(super) refusals: Vec<(Vec<u8>, RecordAfterRefusal)>,
    /// The server sends no reply, so that a refusal is invisible.
    pub(super) is_silent: bool,
    /// The range of the request's bytes in its batch.
    pub(super) request: Range<usize>,
}

impl ModelStep {
    pub(super) fn for_key(
        key: usize,
        rule: impl Fn(Option<&ModelItem>, &mut ModelContext<'_>) -> ExpectedReply + Send + 'static,
    ) -> ModelStep {
        ModelStep {
            key: Some(key),
            rule: Box::new(rule),
            refusals: Vec::new(),
            is_silent: false,
            request: 0..0,
        }
    }

    /// Returns a step whose reply does not depend on any record.
    pub(super) fn fixed(bytes: impl Into<Vec<u8>>) -> ModelStep {
        let bytes = bytes.into();
        let rule = move |_: Option<&ModelItem>, _: &mut ModelContext<'_>| {
            ExpectedReply::new(vec![ReplyPiece::Bytes(bytes.clone())], None)
        };
        ModelStep { key: None, rule: Box::new(rule), refusals: Vec::new(), is_silent: false, request: 0..0 }
    }

    pub(super) fn or_refusal(mut self, refusal: impl Into<Vec<u8>>, left: RecordAfterRefusal) -> ModelStep {
        self.refusals.push((refusal.into(), left));
        self
    }

    pub(super) fn silent(mut self, is_silent: bool) -> ModelStep {
        self.is_silent = is_silent;
        self
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreMode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
}

/// A store request of any dialect.
#[derive(Clone)]
pub(super) struct StoreOperation {
    pub(super) mode: StoreMode,
    pub(super) value: Arc<Vec<u8>>,
    pub(super) flags: u32,
    pub(super) ttl: RequestTtl,
    pub(super) compare: Option<u64>,
    /// The reply shows the version.
    pub(super) shows: bool,
    /// The version that the request assigns.
    pub(super) version: Option<u64>,
    /// The time to live with which append and prepend create a missing record.
    pub(super) vivify: Option<RequestTtl>,
    /// A compared version older than the record's stores the value as stale.
    pub(super) stale_if_older: bool,
}

/// The outcome of a store. `Yes` has the version and the length of the stored value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreOutcome {
    Yes(Option<VersionToken>, usize),
    No,
    Exists,
    NotFound,
}

impl StoreOperation {
    pub(super) fn apply(
        &self,
        old: Option<&ModelItem>,
        context: &mut ModelContext<'_>,
    ) -> (StoreOutcome, Option<ModelItem>) {
        let now = context.now;
        let version = match (self.version, self.shows) {
            (Some(version), _) => context.versions.new_chosen(version),
            (None, true) => context.versions.new_when_shown(),
            (None, false) => context.versions.new_unshown(),
        };
        let fresh = ModelItem {
            flags: self.flags,
            expiry: self.ttl.resolve(now),
            version: Some(version),
            ..ModelItem::new(Arc::clone(&self.value))
        };
        let yes = |item: ModelItem| (StoreOutcome::Yes(item.version, item.value.len()), Some(item));
        let Some(old) = old else {
            return match self.mode {
                StoreMode::Set | StoreMode::Replace if self.compare.is_some() => {
                    (StoreOutcome::NotFound, None)
                }
                StoreMode::Set | StoreMode::Add => yes(fresh),
                StoreMode::Append | StoreMode::Prepend if self.vivify.is_some() => {
                    yes(ModelItem { expiry: self.vivify.unwrap_or(self.ttl).resolve(now), ..fresh })
                }
                _ => (StoreOutcome::No, None),
            };
        };
        if self.mode == StoreMode::Add {
            return (StoreOutcome::No, Some(old.accessed(now)));
        }
        if let Some(asked) = self.compare
            && !context.has_version(old, asked)
        {
            let known = old.version.and_then(|token| context.versions.value(token));
            let is_older = asked != 0 && asked < known.unwrap_or(context.versions.latest + 1);
            if self.stale_if_older && is_older && matches!(self.mode, StoreMode::Set | StoreMode::Replace) {
                return yes(ModelItem {
                    expiry: old.expiry.accessed(now),
                    stale: true,
                    token_sent: old.token_sent,
                    ..fresh
                });
            }
            return (StoreOutcome::Exists, Some(old.clone()));
        }
        let joined = match self.mode {
            StoreMode::Append => [&old.value[..], &self.value[..]].concat(),
            StoreMode::Prepend => [&self.value[..], &old.value[..]].concat(),
            _ => return yes(fresh),
        };
        yes(ModelItem {
            flags: old.flags,
            expiry: old.expiry.accessed(now),
            version: Some(version),
            ..ModelItem::new(Arc::new(joined))
        })
    }
}

/// An arithmetic request of any dialect.
#[derive(Clone, Copy)]
pub(super) struct CountOperation {
    pub(super) up: bool,
    pub(super) delta: u64,
    /// The value with which a missing record is created.
    pub(super) vivify: Option<(u64, RequestTtl)>,
    pub(super) touch: Option<RequestTtl>,
    pub(super) compare: Option<u64>,
    pub(super) shows: bool,
}

pub(super) enum CountOutcome {
    Number(u64, ModelItem),
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

impl CountOperation {
    pub(super) fn apply(&self, old: Option<&ModelItem>, context: &mut ModelContext<'_>) -> CountOutcome {
        let now = context.now;
        let version =
            Some(if self.shows { context.versions.new_when_shown() } else { context.versions.new_unshown() });
        let Some(old) = old else {
            return match self.vivify {
                None => CountOutcome::NotFound,
                Some((initial, ttl)) => {
                    let value = Arc::new(initial.to_string().into_bytes());
                    let expiry = ttl.resolve(now);
                    CountOutcome::Number(initial, ModelItem { expiry, version, ..ModelItem::new(value) })
                }
            };
        };
        if self.compare.is_some_and(|asked| !context.has_version(old, asked)) {
            return CountOutcome::Exists;
        }
        let Some(before) = number(&old.value) else { return CountOutcome::NoNumber };
        let after = if self.up { before.wrapping_add(self.delta) } else { before.saturating_sub(self.delta) };
        let len = old.value.len();
        // A number that is not longer than the old one is replaced in place and keeps the item's
        // marks; a longer number is a new item.
        let in_place = after.to_string().len() <= len;
        let item = ModelItem {
            value: Arc::new(format!("{after:<len$}").into_bytes()),
            flags: old.flags,
            expiry: self.touch.map_or(old.expiry.accessed(now), |ttl| ttl.resolve(now)),
            version,
            stale: in_place && old.stale,
            token_sent: in_place && old.token_sent,
        };
        CountOutcome::Number(after, item)
    }
}
