//! A simple model of a database, which compares its replies with those of a real one.

use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};
use std::collections::BTreeMap;
use std::sync::Arc;
use todana::{Clock, Database, ManualClock, WorkerCounters};
use todana_core::{
    Arithmetic, ArithmeticDirection, CommandFamily, Delete, Expiry, Get, RecacheState, RefusalReason, Reply,
    ReplyNeeds, Store, StoreMode, Touch, Ttl, UnixSeconds,
};
use todana_engine::{MemHash, MemHashOptions};

pub(crate) const START: u64 = 1_700_000_000;
/// Versions that requests specify; far above those that are counted.
pub(crate) const GIVEN: u64 = 1 << 40;
pub(crate) const KEYS: [&[u8]; 6] = [b"a", b"12345", b"user:17:name", b"007", b"\0\xff binary", &[b'k'; 250]];

/// The version to compare with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pick {
    /// The version last shown for the key.
    Latest,
    /// A version shown earlier, of any key.
    Earlier(usize),
    Exactly(u64),
}

/// One step.
#[derive(Clone, Debug)]
#[rustfmt::skip]
pub(crate) enum Operation {
    Get { key: usize, shown: bool, family: CommandFamily, touch: Option<Ttl>, vivify: Option<Ttl>, recache: Option<i64>, given: Option<u64> },
    Store { key: usize, mode: StoreMode, value: Vec<u8>, flags: u32, ttl: Ttl, compare: Option<Pick>, shown: bool, stale_if_older: bool, vivify: Option<Ttl>, given: Option<u64> },
    Delete { key: usize, compare: Option<Pick>, mark_stale: bool, drop_value: bool, ttl: Option<Ttl>, flags: Option<u32>, given: Option<u64> },
    Arithmetic { key: usize, direction: ArithmeticDirection, delta: u64, vivify: Option<Ttl>, initial: u64, touch: Option<Ttl>, compare: Option<Pick>, shown: bool, given: Option<u64> },
    Touch { key: usize, ttl: Ttl },
    Flush { at: Ttl },
    Advance(u64),
    Maintain,
}

/// The model's knowledge of a version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Version {
    /// No version was shown, so no comparison may succeed.
    Unseen,
    /// A new version that was not shown; the number is its place in the order in which versions
    /// were assigned.
    Fresh(u64),
    Known(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Item {
    value: Vec<u8>,
    flags: u32,
    life: Life,
    version: Version,
    /// Stale, token sent; `None` if the protocol does not say.
    marks: Option<(bool, bool)>,
}

/// When an item expires, and the seconds that each access adds, if any.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Life {
    /// Missing when the clock shows this second.
    dies: Option<u64>,
    span: Option<u64>,
}

impl Life {
    fn accessed(self, now: u64) -> Life {
        Life { dies: self.span.map(|span| now + span).or(self.dies), ..self }
    }
}

impl Item {
    pub(crate) fn new(value: Vec<u8>) -> Item {
        Item { value, flags: 0, life: Life::default(), version: Version::Unseen, marks: Some((false, false)) }
    }

    fn compares(&self, wanted: u64) -> bool {
        self.version == Version::Known(wanted)
    }
}

/// The contents of a reply, without borrows.
#[derive(Clone, Debug, PartialEq)]
enum Said {
    Hit { value: Vec<u8>, flags: u32, expiry: Expiry, before: Expiry, version: u64, recache: RecacheState },
    Stored { version: u64, len: u64 },
    Number { value: u64, version: u64, expiry: Expiry, created: bool },
    Plain(&'static str),
    Refused(RefusalReason),
}

fn said(reply: &Reply<'_>) -> Said {
    match reply {
        Reply::Hit(hit) => Said::Hit {
            value: hit.record.value.to_vec(),
            flags: hit.record.attributes.flags,
            expiry: hit.record.attributes.expiry,
            before: hit.expiry_before,
            version: hit.record.attributes.version,
            recache: hit.recache,
        },
        Reply::Stored(stored) => Said::Stored { version: stored.version, len: stored.value_len },
        Reply::Number(number) => Said::Number {
            value: number.value,
            version: number.version,
            expiry: number.expiry,
            created: number.created,
        },
        Reply::Refused(refusal) => Said::Refused(*refusal),
        Reply::Miss => Said::Plain("miss"),
        Reply::NotStored => Said::Plain("not stored"),
        Reply::Exists => Said::Plain("exists"),
        Reply::NotFound => Said::Plain("not found"),
        Reply::Deleted => Said::Plain("deleted"),
        Reply::Touched => Said::Plain("touched"),
        Reply::Done => Said::Plain("done"),
        other => panic!("not a reply about data: {other:?}"),
    }
}

/// Parses a number as memcached does, with blanks around and zeros before it.
fn number(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?.trim_matches(|blank: char| blank.is_ascii_whitespace());
    if text.starts_with('+') {
        return None;
    }
    text.parse().ok()
}

/// Returns true if the life of an item equals the expiry of a record; any two past moments are
/// equal.
fn same_life(life: Life, expiry: Expiry, now: u64) -> bool {
    match (life.dies, expiry) {
        (None, Expiry::Never) => true,
        (Some(dies), Expiry::At(at)) => life.span.is_none() && dies == at.0 || (dies <= now && at.0 <= now),
        (Some(dies), Expiry::Sliding { at, span_s }) => dies == at.0 && life.span == Some(span_s.into()),
        _ => false,
    }
}

type Outcome = Result<(), TestCaseError>;

/// Both databases.
pub(crate) struct Model {
    database: Database,
    worker_counters: Arc<WorkerCounters>,
    clock: Arc<ManualClock>,
    pub(crate) items: BTreeMap<usize, Item>,
    flush_at: Option<u64>,
    latest: BTreeMap<usize, u64>,
    history: Vec<u64>,
    /// The place of each version shown in the order in which versions were assigned.
    ranks: BTreeMap<u64, u64>,
    made: u64,
}

impl Model {
    pub(crate) fn new() -> Model {
        let engine = MemHash::new(MemHashOptions { shards: Some(2), ..MemHashOptions::default() }).unwrap();
        let clock = Arc::new(ManualClock::new(UnixSeconds(START)));
        let database = Database::new(Box::new(engine), Arc::clone(&clock) as Arc<dyn Clock>);
        Model {
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

    fn life(&self, ttl: Ttl) -> Life {
        let dies = match ttl {
            Ttl::Never => None,
            Ttl::Expired => Some(0),
            Ttl::Seconds(seconds) | Ttl::Sliding(seconds) => Some(self.now() + u64::from(seconds)),
            Ttl::At(at) => Some(at),
        };
        let span = if let Ttl::Sliding(seconds) = ttl { Some(seconds.into()) } else { None };
        Life { dies, span }
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

    fn wanted(&self, key: usize, pick: Pick) -> u64 {
        match pick {
            Pick::Latest => self.latest.get(&key).copied().unwrap_or(u64::MAX - 1),
            Pick::Earlier(back) => {
                let at = self.history.len().saturating_sub(1 + back);
                self.history.get(at).copied().unwrap_or(u64::MAX - 1)
            }
            Pick::Exactly(version) => version,
        }
    }

    /// Returns the reply to an operation; there is exactly one.
    fn run(&self, command: &todana_core::Operation<'_>) -> Said {
        let mut replies = Vec::new();
        self.database.execute(&self.worker_counters, command, &mut |reply| replies.push(said(&reply)));
        assert_eq!(replies.len(), 1, "{command:?}: {replies:?}");
        replies.remove(0)
    }

    /// Returns the next place in the order of versions.
    fn make(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    fn is_newer(&self, stored: Version, wanted: u64) -> bool {
        let rank = |version: u64| self.ranks.get(&version).copied().unwrap_or(version);
        match stored {
            // Zero is shown by a failed store and is not a version.
            _ if wanted == 0 => false,
            // The record was written after every version that was counted and shown before.
            Version::Unseen => self.ranks.contains_key(&wanted),
            Version::Fresh(place) => place > rank(wanted),
            Version::Known(version) => rank(version) > rank(wanted),
        }
    }

    /// Notes that a version was shown for a key: the known one, or one never shown before.
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
            Operation::Get { key, shown, family, touch, vivify, recache, given } =>
                self.get(key, shown, family, touch, vivify, recache, given),
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
                let delete = Delete { key: KEYS[key], compare, mark_stale, drop_value, ttl, flags, version: given, family: CommandFamily::Meta };
                self.delete(key, &delete)
            }
            Operation::Arithmetic { key, direction, delta, vivify, initial, touch, compare, shown, given } => {
                let compare = compare.map(|pick| self.wanted(key, pick));
                let needs = ReplyNeeds { version: shown, access: false };
                let arithmetic = Arithmetic { key: KEYS[key], direction, delta, vivify, initial, touch, compare, version: given, needs, family: CommandFamily::Text };
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
                prop_assert_eq!(said, Said::Plain(expected));
                Ok(())
            }
            Operation::Flush { at } => {
                prop_assert_eq!(self.run(&todana_core::Operation::Flush { at }), Said::Plain("done"));
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

    /// Checks that every key has the same record, and that the database has no others.
    pub(crate) fn check_all(&mut self) -> Outcome {
        for key in 0..KEYS.len() {
            self.age();
            self.get(key, false, CommandFamily::Text, None, None, None, None)?;
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
    fn get(&mut self, key: usize, shown: bool, family: CommandFamily, touch: Option<Ttl>, vivify: Option<Ttl>, recache: Option<i64>, given: Option<u64>) -> Outcome {
        let get = Get {
            key: KEYS[key], touch, vivify, recache_below_s: recache, version: given,
            needs: ReplyNeeds { version: shown, access: false }, family, ..Get::default()
        };
        let reply = self.run(&todana_core::Operation::Get(get));
        let now = self.now();
        let touched = touch.map(|ttl| self.life(ttl));
        let created = vivify.map(|ttl| self.life(ttl));
        let Some(item) = self.items.get_mut(&key) else {
            let Some(life) = created else {
                prop_assert_eq!(reply, Said::Plain("miss"));
                return Ok(());
            };
            let Said::Hit { value, flags, expiry, version, recache, .. } = reply else {
                return Err(TestCaseError::fail(format!("{reply:?} where a record is made")));
            };
            prop_assert_eq!((value.as_slice(), flags), (&b""[..], 0));
            prop_assert!(same_life(life, expiry, now));
            prop_assert_eq!(recache, RecacheState { won: true, stale: false, token_sent: false });
            let item = Item { life, version: given.map_or(Version::Unseen, Version::Known), marks: Some((false, true)), ..Item::new(Vec::new()) };
            self.items.insert(key, item);
            return if shown { self.learn(key, version) } else { Ok(()) };
        };
        let Said::Hit { value, flags, expiry, before, version, recache: told } = reply else {
            return Err(TestCaseError::fail(format!("{reply:?} where there is {item:?}")));
        };
        prop_assert_eq!(&value, &item.value);
        prop_assert_eq!(flags, item.flags);
        // A read that changes nothing shows the same state before and after.
        prop_assert!(same_life(item.life, before, now), "{:?} before, {before:?}", item.life);
        let left = item.life.dies.map(|dies| dies as i64 - now as i64);
        item.life = touched.unwrap_or(item.life.accessed(now));
        prop_assert!(same_life(item.life, expiry, now), "{:?} after, {expiry:?}", item.life);
        let (stale, token_sent) = item.marks.unwrap_or((told.stale, told.token_sent));
        let nearly = recache.zip(left).is_some_and(|(below, left)| left < below);
        let won = family == CommandFamily::Meta && !token_sent && (stale || nearly);
        prop_assert_eq!(told, RecacheState { won, stale, token_sent });
        item.marks = Some((stale, token_sent || won));
        if shown { self.learn(key, version) } else { Ok(()) }
    }

    fn store(&mut self, key: usize, store: &Store<'_>) -> Outcome {
        let reply = self.run(&todana_core::Operation::Store(*store));
        let version = store.version.map_or(Version::Unseen, Version::Known);
        let fresh = Item {
            flags: store.flags,
            life: self.life(store.ttl),
            version,
            ..Item::new(store.value.to_vec())
        };
        let vivified = store.vivify.map(|ttl| self.life(ttl));
        let now = self.now();
        if store.mode == StoreMode::Add
            && let Some(item) = self.items.get_mut(&key)
        {
            item.life = item.life.accessed(now);
        }
        let joins = matches!(store.mode, StoreMode::Append | StoreMode::Prepend);
        let expected: Result<Item, &'static str> = match self.items.get(&key) {
            None => match store.mode {
                StoreMode::Add => Ok(fresh),
                StoreMode::Set | StoreMode::Replace if store.compare.is_some() => Err("not found"),
                StoreMode::Set => Ok(fresh),
                StoreMode::Replace => Err("not stored"),
                StoreMode::Append | StoreMode::Prepend => match vivified {
                    Some(life) => Ok(Item { life, ..fresh }),
                    None => Err("not stored"),
                },
            },
            Some(_) if store.mode == StoreMode::Add => Err("not stored"),
            Some(old) => match store.compare.filter(|&wanted| !old.compares(wanted)) {
                Some(wanted) if store.stale_if_older && !joins && self.is_newer(old.version, wanted) => {
                    let marks = old.marks.map(|(_, token_sent)| (true, token_sent));
                    Ok(Item { life: old.life.accessed(now), marks, ..fresh })
                }
                Some(_) => Err("exists"),
                None if joins => {
                    let pieces = match store.mode {
                        StoreMode::Append => [&old.value, store.value],
                        _ => [store.value, &old.value],
                    };
                    let life = old.life.accessed(now);
                    Ok(Item { flags: old.flags, life, version, ..Item::new(pieces.concat()) })
                }
                None => Ok(fresh),
            },
        };
        match expected {
            Err(text) => prop_assert_eq!(reply, Said::Plain(text)),
            Ok(item) => {
                let Said::Stored { version, len } = reply else {
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
                        *item = Item { flags, marks: None, version: item.version, ..Item::new(Vec::new()) };
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
        prop_assert_eq!(reply, Said::Plain(expected));
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
                    prop_assert_eq!(reply, Said::Plain("not found"));
                    return Ok(());
                };
                let item = Item::new(arithmetic.initial.to_string().into_bytes());
                (Item { life, version, ..item }, arithmetic.initial)
            }
            Some(old) if arithmetic.compare.is_some_and(|wanted| !old.compares(wanted)) => {
                prop_assert_eq!(reply, Said::Plain("exists"));
                return Ok(());
            }
            Some(old) => {
                let Some(stored) = number(&old.value) else {
                    prop_assert_eq!(reply, Said::Refused(RefusalReason::NonNumeric));
                    return Ok(());
                };
                let result = match arithmetic.direction {
                    ArithmeticDirection::Increment => stored.wrapping_add(arithmetic.delta),
                    ArithmeticDirection::Decrement => stored.saturating_sub(arithmetic.delta),
                };
                let mut value = result.to_string().into_bytes();
                value.resize(value.len().max(old.value.len()), b' ');
                let life = touched.unwrap_or(old.life.accessed(now));
                (Item { value, life, version, marks: None, flags: old.flags }, result)
            }
        };
        let Said::Number { value, version, expiry, created } = reply else {
            return Err(TestCaseError::fail(format!("{reply:?} where {item:?} is stored")));
        };
        prop_assert_eq!((value, created), (result, is_new));
        prop_assert!(same_life(item.life, expiry, now));
        self.items.insert(key, item);
        if arithmetic.needs.version { self.learn(key, version) } else { Ok(()) }
    }
}
