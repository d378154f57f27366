//! A simple model of a database, whose replies are compared with those of a real one.

use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};
use std::collections::BTreeMap;
use std::sync::Arc;
use todana::{Clock, Database, ManualClock, WorkerCounters};
use todana_core::{
    Arithmetic, ArithmeticDirection, CommandSyntax, Delete, Expiry, Get, RecacheState, RefusalReason, Reply,
    ReplyNeeds, Store, StoreMode, Touch, Ttl, UnixSeconds,
};
use todana_engine::{MemHash, MemHashOptions};

pub(crate) const START: u64 = 1_700_000_000;
/// The first version that requests specify. It is far above the versions that are counted.
pub(crate) const GIVEN: u64 = 1 << 40;
pub(crate) const KEYS: [&[u8]; 6] = [b"a", b"12345", b"user:17:name", b"007", b"\0\xff binary", &[b'k'; 250]];

/// The version with which an operation compares.
#[derive(Clone, Copy, Debug)]
pub(crate) enum VersionChoice {
    /// The version that was shown last for the key.
    Latest,
    /// A version that was shown earlier, for any key.
    Earlier(usize),
    Exactly(u64),
}

/// One step.
#[derive(Clone, Debug)]
#[rustfmt::skip]
pub(crate) enum Operation {
    Get { key: usize, shown: bool, syntax: CommandSyntax, touch: Option<Ttl>, vivify: Option<Ttl>, recache: Option<i64>, given: Option<u64> },
    Store { key: usize, mode: StoreMode, value: Vec<u8>, flags: u32, ttl: Ttl, compare: Option<VersionChoice>, shown: bool, stale_if_older: bool, vivify: Option<Ttl>, given: Option<u64> },
    Delete { key: usize, compare: Option<VersionChoice>, mark_stale: bool, drop_value: bool, ttl: Option<Ttl>, flags: Option<u32>, given: Option<u64> },
    Arithmetic { key: usize, direction: ArithmeticDirection, delta: u64, vivify: Option<Ttl>, initial: u64, touch: Option<Ttl>, compare: Option<VersionChoice>, shown: bool, given: Option<u64> },
    Touch { key: usize, ttl: Ttl },
    Flush { at: Ttl },
    Advance(u64),
    Maintain,
}

/// The version of an item, as far as the model knows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Version {
    /// The version was not shown, so no comparison may succeed.
    Unseen,
    /// A new version that was not shown. The number is its place in the order in which versions
    /// were assigned.
    Fresh(u64),
    Known(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct ModelItem {
    value: Vec<u8>,
    flags: u32,
    life: ItemLife,
    version: Version,
    /// Whether the item is stale, and whether a token was sent. `None` if the protocol does not
    /// define that.
    marks: Option<(bool, bool)>,
}

/// The time at which an item expires, and the span of a sliding expiry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ItemLife {
    /// The second at which the item expires.
    dies: Option<u64>,
    span: Option<u64>,
}

impl ItemLife {
    fn accessed(self, now: u64) -> ItemLife {
        ItemLife { dies: self.span.map(|span| now + span).or(self.dies), ..self }
    }
}

impl ModelItem {
    pub(crate) fn new(value: Vec<u8>) -> ModelItem {
        ModelItem {
            value,
            flags: 0,
            life: ItemLife::default(),
            version: Version::Unseen,
            marks: Some((false, false)),
        }
    }

    fn compares(&self, wanted: u64) -> bool {
        self.version == Version::Known(wanted)
    }
}

/// A reply, in a form that does not borrow.
#[derive(Clone, Debug, PartialEq)]
enum ReplyContents {
    Hit { value: Vec<u8>, flags: u32, expiry: Expiry, before: Expiry, version: u64, recache: RecacheState },
    Stored { version: u64, len: u64 },
    Number { value: u64, version: u64, expiry: Expiry, created: bool },
    Plain(&'static str),
    Refused(RefusalReason),
}

fn said(reply: &Reply<'_>) -> ReplyContents {
    match reply {
        Reply::Hit(hit) => ReplyContents::Hit {
            value: hit.record.value.to_vec(),
            flags: hit.record.attributes.flags,
            expiry: hit.record.attributes.expiry,
            before: hit.expiry_before,
            version: hit.record.attributes.version,
            recache: hit.recache,
        },
        Reply::Stored(stored) => ReplyContents::Stored { version: stored.version, len: stored.value_len },
        Reply::Number(number) => ReplyContents::Number {
            value: number.value,
            version: number.version,
            expiry: number.expiry,
            created: number.created,
        },
        Reply::Refused(refusal) => ReplyContents::Refused(*refusal),
        Reply::Miss => ReplyContents::Plain("miss"),
        Reply::NotStored => ReplyContents::Plain("not stored"),
        Reply::Exists => ReplyContents::Plain("exists"),
        Reply::NotFound => ReplyContents::Plain("not found"),
        Reply::Deleted => ReplyContents::Plain("deleted"),
        Reply::Touched => ReplyContents::Plain("touched"),
        Reply::Done => ReplyContents::Plain("done"),
        other => panic!("not a reply about data: {other:?}"),
    }
}

/// Parses a number as memcached does. Blanks around it and zeros before it are accepted.
fn number(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?.trim_matches(|blank: char| blank.is_ascii_whitespace());
    if text.starts_with('+') {
        return None;
    }
    text.parse().ok()
}

/// Returns true if an item and a record expire at the same time. All times in the past count as
/// equal.
fn same_life(life: ItemLife, expiry: Expiry, now: u64) -> bool {
    match (life.dies, expiry) {
        (None, Expiry::Never) => true,
        (Some(dies), Expiry::At(at)) => life.span.is_none() && dies == at.0 || (dies <= now && at.0 <= now),
        (Some(dies), Expiry::Sliding { at, span_s }) => dies == at.0 && life.span == Some(span_s.into()),
        _ => false,
    }
}

type Outcome = Result<(), TestCaseError>;

/// The model and the real database.
pub(crate) struct DatabaseModel {
    database: Database,
    worker_counters: Arc<WorkerCounters>,
    clock: Arc<ManualClock>,
    pub(crate) items: BTreeMap<usize, ModelItem>,
    flush_at: Option<u64>,
    latest: BTreeMap<usize, u64>,
    history: Vec<u64>,
    /// The place of each shown version in the order in which versions were assigned.
    ranks: BTreeMap<u64, u64>,
    made: u64,
}

impl DatabaseModel {
    pub(crate) fn new() -> DatabaseModel {
        let engine = MemHash::new(MemHashOptions { shards: Some(2), ..MemHashOptions::default() }).unwrap();
        let clock = Arc::new(ManualClock::new(UnixSeconds(START)));
        let database = Database::new(Box::new(engine), Arc::clone(&clock) as Arc<dyn Clock>);
        DatabaseModel {
            worker_counters: database.worker_counters(),
            database,
            clock,
            items: BTreeMap::new(),
            flush_at: None,
            latest: BTreeMap::new(),
            history: Vec::new(),
            ranks: BTreeMap::new(),
            made: 0,
        }
    }

    fn now(&self) -> u64 {
        self.clock.now().0
    }

    fn life(&self, ttl: Ttl) -> ItemLife {
        let dies = match ttl {
            Ttl::Never => None,
            Ttl::Expired => Some(0),
            Ttl::Seconds(seconds) | Ttl::Sliding(seconds) => Some(self.now() + u64::from(seconds)),
            Ttl::At(at) => Some(at),
        };
        let span = if let Ttl::Sliding(seconds) = ttl { Some(seconds.into()) } else { None };
        ItemLife { dies, span }
    }

    /// Removes expired items.
    fn age(&mut self) {
        let now = self.now();
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush_at = None;
            self.items.clear();
        }
        self.items.retain(|_, item| item.life.dies.is_none_or(|dies| dies > now));
    }

    fn wanted(&self, key: usize, pick: VersionChoice) -> u64 {
        match pick {
            VersionChoice::Latest => self.latest.get(&key).copied().unwrap_or(u64::MAX - 1),
            VersionChoice::Earlier(back) => {
                let at = self.history.len().saturating_sub(1 + back);
                self.history.get(at).copied().unwrap_or(u64::MAX - 1)
            }
            VersionChoice::Exactly(version) => version,
        }
    }

    /// Returns the reply to an operation; there is exactly one.
    fn run(&self, command: &todana_core::Operation<'_>) -> ReplyContents {
        let mut replies = Vec::new();
        self.database.execute(&self.worker_counters, command, &mut |reply| replies.push(said(&reply)));
        assert_eq!(replies.len(), 1, "{command:?}: {replies:?}");
        replies.remove(0)
    }

    /// Returns the next place in the order in which versions are assigned.
    fn make(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    fn is_newer(&self, stored: Version, wanted: u64) -> bool {
        let rank = |version: u64| self.ranks.get(&version).copied().unwrap_or(version);
        match stored {
            // A failed store shows 0, which is not a version.
            _ if wanted == 0 => false,
            // The record was written after every counted version that was shown before.
            Version::Unseen => self.ranks.contains_key(&wanted),
            Version::Fresh(place) => place > rank(wanted),
            Version::Known(version) => rank(version) > rank(wanted),
        }
    }

    /// Notes that a version was shown for a key. It must be the known version, or one that was
    /// never shown before.
    fn learn(&mut self, key: usize, version: u64) -> Outcome {
        match self.items[&key].version {
            Version::Known(known) => prop_assert_eq!(version, known),
            unknown => {
                prop_assert!(version != 0 && version < GIVEN, "{version} is not counted up");
                let rank = if let Version::Fresh(rank) = unknown { rank } else { self.make() };
                let other = self.ranks.insert(version, rank);
                prop_assert_eq!(other, None, "{} was shown for something else", version);
            }
        }
        self.latest.insert(key, version);
        self.history.push(version);
        self.items.get_mut(&key).expect("it was there").version = Version::Known(version);
        Ok(())
    }

    #[rustfmt::skip]
    pub(crate) fn check(&mut self, operation: &Operation) -> Outcome {
        self.age();
        match *operation {
            Operation::Get { key, shown, syntax, touch, vivify, recache, given } =>
                self.get(key, shown, syntax, touch, vivify, recache, given),
            Operation::Store { key, mode, ref value, flags, ttl, compare, shown, stale_if_older, vivify, given } => {
                let compare = compare.map(|pick| self.wanted(key, pick));
                let store = Store {
                    key: KEYS[key], value, flags, ttl, mode, compare, stale_if_older, version: given, vivify,
                    needs: ReplyNeeds { version: shown, access: false }, ..Store::default()
                };
                self.store(key, &store)
            }
            Operation::Delete { key, compare, mark_stale, drop_value, ttl, flags, given } => {
                let compare = compare.map(|pick| self.wanted(key, pick));
                let delete = Delete { key: KEYS[key], compare, mark_stale, drop_value, ttl, flags, version: given, syntax: CommandSyntax::Meta };
                self.delete(key, &delete)
            }
            Operation::Arithmetic { key, direction, delta, vivify, initial, touch, compare, shown, given } => {
                let compare = compare.map(|pick| self.wanted(key, pick));
                let needs = ReplyNeeds { version: shown, access: false };
                let arithmetic = Arithmetic { key: KEYS[key], direction, delta, vivify, initial, touch, compare, version: given, needs, syntax: CommandSyntax::Classic };
                self.arithmetic(key, &arithmetic)
            }
            Operation::Touch { key, ttl } => {
                let said = self.run(&todana_core::Operation::Touch(Touch { key: KEYS[key], ttl }));
                let life = self.life(ttl);
                let expected = match self.items.get_mut(&key) {
                    None => "not found",
                    Some(item) => {
                        item.life = life;
                        "touched"
                    }
                };
                prop_assert_eq!(said, ReplyContents::Plain(expected));
                Ok(())
            }
            Operation::Flush { at } => {
                prop_assert_eq!(self.run(&todana_core::Operation::Flush { at }), ReplyContents::Plain("done"));
                self.flush_at = Some(self.life(at).dies.unwrap_or(0));
                self.age();
                Ok(())
            }
            Operation::Advance(seconds) => {
                self.clock.advance(seconds);
                Ok(())
            }
            Operation::Maintain => {
                self.database.maintain();
                Ok(())
            }
        }
    }

    /// Checks that both have the same record for every key, and that the database has no other
    /// records.
    pub(crate) fn check_all(&mut self) -> Outcome {
        for key in 0..KEYS.len() {
            self.age();
            self.get(key, false, CommandSyntax::Classic, None, None, None, None)?;
        }
        let mut listed = Vec::new();
        let end = self.database.list(None, &mut |key, _| {
            listed.push(key.to_vec());
            std::ops::ControlFlow::Continue(())
        });
        prop_assert!(end.unwrap().is_none());
        listed.sort();
        let mut expected: Vec<Vec<u8>> = self.items.keys().map(|&key| KEYS[key].to_vec()).collect();
        expected.sort();
        prop_assert_eq!(listed, expected);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    #[rustfmt::skip]
    fn get(&mut self, key: usize, shown: bool, syntax: CommandSyntax, touch: Option<Ttl>, vivify: Option<Ttl>, recache: Option<i64>, given: Option<u64>) -> Outcome {
        let get = Get {
            key: KEYS[key], touch, vivify, recache_below_s: recache, version: given,
            needs: ReplyNeeds { version: shown, access: false }, syntax, ..Get::default()
        };
        let reply = self.run(&todana_core::Operation::Get(get));
        let now = self.now();
        let touched = touch.map(|ttl| self.life(ttl));
        let created = vivify.map(|ttl| self.life(ttl));
        let Some(item) = self.items.get_mut(&key) else {
            let Some(life) = created else {
                prop_assert_eq!(reply, ReplyContents::Plain("miss"));
                return Ok(());
            };
            let ReplyContents::Hit { value, flags, expiry, version, recache, .. } = reply else {
                return Err(TestCaseError::fail(format!("{reply:?} where a record is made")));
            };
            prop_assert_eq!((value.as_slice(), flags), (&b""[..], 0));
            prop_assert!(same_life(life, expiry, now));
            prop_assert_eq!(recache, RecacheState { won: true, stale: false, token_sent: false });
            let item = ModelItem { life, version: given.map_or(Version::Unseen, Version::Known), marks: Some((false, true)), ..ModelItem::new(Vec::new()) };
            self.items.insert(key, item);
            return if shown { self.learn(key, version) } else { Ok(()) };
        };
        let ReplyContents::Hit { value, flags, expiry, before, version, recache: reported } = reply else {
            return Err(TestCaseError::fail(format!("{reply:?} where there is {item:?}")));
        };
        prop_assert_eq!(&value, &item.value);
        prop_assert_eq!(flags, item.flags);
        // A read that changes nothing shows the same state before and after.
        prop_assert!(same_life(item.life, before, now), "{:?} before, {before:?}", item.life);
        let left = item.life.dies.map(|dies| dies as i64 - now as i64);
        item.life = touched.unwrap_or(item.life.accessed(now));
        prop_assert!(same_life(item.life, expiry, now), "{:?} after, {expiry:?}", item.life);
        let (stale, token_sent) = item.marks.unwrap_or((reported.stale, reported.token_sent));
        let nearly = recache.zip(left).is_some_and(|(below, left)| left < below);
        let won = syntax == CommandSyntax::Meta && !token_sent && (stale || nearly);
        prop_assert_eq!(reported, RecacheState { won, stale, token_sent });
        item.marks = Some((stale, token_sent || won));
        if shown { self.learn(key, version) } else { Ok(()) }
    }

    fn store(&mut self, key: usize, store: &Store<'_>) -> Outcome {
        let reply = self.run(&todana_core::Operation::Store(*store));
        let version = store.version.map_or(Version::Unseen, Version::Known);
        let fresh = ModelItem {
            flags: store.flags,
            life: self.life(store.ttl),
            version,
            ..ModelItem::new(store.value.to_vec())
        };
        let vivified = store.vivify.map(|ttl| self.life(ttl));
        let now = self.now();
        if store.mode == StoreMode::Add
            && let Some(item) = self.items.get_mut(&key)
        {
            item.life = item.life.accessed(now);
        }
        let joins = matches!(store.mode, StoreMode::Append | StoreMode::Prepend);
        let expected: Result<ModelItem, &'static str> = match self.items.get(&key) {
            None => match store.mode {
                StoreMode::Add => Ok(fresh),
                StoreMode::Set | StoreMode::Replace if store.compare.is_some() => Err("not found"),
                StoreMode::Set => Ok(fresh),
                StoreMode::Replace => Err("not stored"),
                StoreMode::Append | StoreMode::Prepend => match vivified {
                    Some(life) => Ok(ModelItem { life, ..fresh }),
                    None => Err("not stored"),
                },
            },
            Some(_) if store.mode == StoreMode::Add => Err("not stored"),
            Some(old) => match store.compare.filter(|&wanted| !old.compares(wanted)) {
                Some(wanted) if store.stale_if_older && !joins && self.is_newer(old.version, wanted) => {
                    let marks = old.marks.map(|(_, token_sent)| (true, token_sent));
                    Ok(ModelItem { life: old.life.accessed(now), marks, ..fresh })
                }
                Some(_) => Err("exists"),
                None if joins => {
                    let pieces = match store.mode {
                        StoreMode::Append => [&old.value, store.value],
                        _ => [store.value, &old.value],
                    };
                    let life = old.life.accessed(now);
                    Ok(ModelItem { flags: old.flags, life, version, ..ModelItem::new(pieces.concat()) })
                }
                None => Ok(fresh),
            },
        };
        match expected {
            Err(text) => prop_assert_eq!(reply, ReplyContents::Plain(text)),
            Ok(item) => {
                let ReplyContents::Stored { version, len } = reply else {
                    return Err(TestCaseError::fail(format!("{reply:?} where {item:?} is stored")));
                };
                prop_assert_eq!(len, item.value.len() as u64);
                self.items.insert(key, item);
                if store.needs.version {
                    self.learn(key, version)?;
                }
            }
        }
        Ok(())
    }

    fn delete(&mut self, key: usize, delete: &Delete<'_>) -> Outcome {
        let reply = self.run(&todana_core::Operation::Delete(*delete));
        let life = delete.ttl.map(|ttl| self.life(ttl));
        let place = self.make();
        let expected = match self.items.get_mut(&key) {
            None => "not found",
            Some(item) if delete.compare.is_some_and(|wanted| !item.compares(wanted)) => "exists",
            Some(item) => {
                if !delete.mark_stale && !delete.drop_value {
                    self.items.remove(&key);
                } else {
                    let given = delete.version.map(Version::Known);
                    if delete.drop_value {
                        let flags = delete.flags.unwrap_or(0);
                        *item = ModelItem {
                            flags,
                            marks: None,
                            version: item.version,
                            ..ModelItem::new(Vec::new())
                        };
                    }
                    item.life = life.unwrap_or(item.life);
                    if delete.mark_stale {
                        item.marks = Some((true, false));
                        item.version = Version::Fresh(place);
                    }
                    item.version = given.unwrap_or(item.version);
                }
                "deleted"
            }
        };
        prop_assert_eq!(reply, ReplyContents::Plain(expected));
        Ok(())
    }

    fn arithmetic(&mut self, key: usize, arithmetic: &Arithmetic<'_>) -> Outcome {
        let reply = self.run(&todana_core::Operation::Arithmetic(*arithmetic));
        let now = self.now();
        let version = arithmetic.version.map_or(Version::Unseen, Version::Known);
        let created = arithmetic.vivify.map(|ttl| self.life(ttl));
        let touched = arithmetic.touch.map(|ttl| self.life(ttl));
        let is_new = !self.items.contains_key(&key);
        let (item, result) = match self.items.get(&key) {
            None => {
                let Some(life) = created else {
                    prop_assert_eq!(reply, ReplyContents::Plain("not found"));
                    return Ok(());
                };
                let item = ModelItem::new(arithmetic.initial.to_string().into_bytes());
                (ModelItem { life, version, ..item }, arithmetic.initial)
            }
            Some(old) if arithmetic.compare.is_some_and(|wanted| !old.compares(wanted)) => {
                prop_assert_eq!(reply, ReplyContents::Plain("exists"));
                return Ok(());
            }
            Some(old) => {
                let Some(stored) = number(&old.value) else {
                    prop_assert_eq!(reply, ReplyContents::Refused(RefusalReason::NonNumeric));
                    return Ok(());
                };
                let result = match arithmetic.direction {
                    ArithmeticDirection::Increment => stored.wrapping_add(arithmetic.delta),
                    ArithmeticDirection::Decrement => stored.saturating_sub(arithmetic.delta),
                };
                let mut value = result.to_string().into_bytes();
                value.resize(value.len().max(old.value.len()), b' ');
                let life = touched.unwrap_or(old.life.accessed(now));
                (ModelItem { value, life, version, marks: None, flags: old.flags }, result)
            }
        };
        let ReplyContents::Number { value, version, expiry, created } = reply else {
            return Err(TestCaseError::fail(format!("{reply:?} where {item:?} is stored")));
        };
        prop_assert_eq!((value, created), (result, is_new));
        prop_assert!(same_life(item.life, expiry, now));
        self.items.insert(key, item);
        if arithmetic.needs.version { self.learn(key, version) } else { Ok(()) }
    }
}
