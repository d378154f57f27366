//! What can be done with records, independent of any protocol.
//!
//! The structs carry the union of what the dialects can say; a codec fills in what its dialect has and
//! leaves the rest at its default. Keys and values borrow from the codec's input.

use crate::{RefusalReason, SharedValue};

/// How long a record shall live, as a client says it: not yet resolved against a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ttl {
    /// It stays.
    #[default]
    Never,
    /// It is dead at once.
    Expired,
    /// So many seconds from now.
    Seconds(u32),
    /// At this Unix time.
    At(u64),
    /// So many seconds after the last access, whenever that will be.
    Sliding(u32),
}

impl Ttl {
    /// memcached's rule for a signed number: 0 never, negative dead at once, up to 30 days relative, above that
    /// a Unix time (protocol.txt, "Expiration times").
    pub fn from_memcached(exptime: i64) -> Ttl {
        const THIRTY_DAYS_S: i64 = 60 * 60 * 24 * 30;
        match exptime {
            0 => Ttl::Never,
            i64::MIN..0 => Ttl::Expired,
            1..=THIRTY_DAYS_S => Ttl::Seconds(exptime as u32),
            _ => Ttl::At(exptime as u64),
        }
    }
}

/// Which family of commands a request belongs to; only the statistics care.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommandFamily {
    /// memcached's text commands, and its binary packets, which are counted with them.
    #[default]
    Text,
    /// memcached's meta commands.
    Meta,
}

/// Which costly parts the reply will show, so that what nobody asked for is not made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyNeeds {
    /// The version: a record that has none gets a fresh one.
    pub version: bool,
    /// Last access and fetched: turns access tracking on.
    pub access: bool,
}

/// Read one record, and perhaps touch it or create it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Get<'a> {
    /// The key.
    pub key: &'a [u8],
    /// New time to live on a hit (`gat`, meta `T`).
    pub touch: Option<Ttl>,
    /// On a miss create an empty record with this time to live; the caller wins (meta `N`).
    pub vivify: Option<Ttl>,
    /// The caller wins if fewer seconds than this are left (meta `R`); records that never expire do not count.
    pub recache_below_s: Option<i64>,
    /// What is left is looked at after `touch` rather than before it (meta `T` stands before `R`).
    pub recache_after_touch: bool,
    /// The version for a record created by `vivify` (meta `E`).
    pub version: Option<u64>,
    /// What the reply shows.
    pub needs: ReplyNeeds,
    /// Does not count as an access (meta `u`).
    pub silent: bool,
    /// It is a `gat`: counted under touch, not under get.
    pub counts_as_touch: bool,
    /// For the statistics.
    pub family: CommandFamily,
}

/// How a store treats what is already there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreMode {
    /// Whatever is there is replaced.
    #[default]
    Set,
    /// Only if nothing is there.
    Add,
    /// Only if something is there.
    Replace,
    /// The value goes behind the old one; flags and expiry stay.
    Append,
    /// The value goes before the old one; flags and expiry stay.
    Prepend,
}

/// Store a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Store<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value, or the piece to append.
    pub value: &'a [u8],
    /// The same bytes in memory of the engine's ([`ValueBuffer`](crate::ValueBuffer)), if they were received into it.
    pub shared: SharedValue<'a>,
    /// The client's flags.
    pub flags: u32,
    /// Time to live.
    pub ttl: Ttl,
    /// What to do with what is there.
    pub mode: StoreMode,
    /// Only if the stored version equals this (`cas`, meta `C`).
    pub compare: Option<u64>,
    /// With `compare`: if it is lower than the stored version, set and replace store all the same, but keep the time to
    /// live and mark the record stale (meta `I`). A record without a version is newer than any that was shown.
    pub stale_if_older: bool,
    /// The version to store (meta `E`); also shown.
    pub version: Option<u64>,
    /// Append or prepend to nothing creates the record with this time to live (meta `N`).
    pub vivify: Option<Ttl>,
    /// What the reply shows.
    pub needs: ReplyNeeds,
    /// The whole item may not be longer than this (memcached's size rule, see the memcached codec); an
    /// append beyond it is not stored.
    pub item_size_max: Option<u64>,
    /// For the statistics.
    pub family: CommandFamily,
}

/// A write whose value was not taken, as it is too long or there is no memory for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedStore<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The announced length of the value.
    pub value_len: usize,
    /// The client's flags.
    pub flags: u32,
    /// What was to be done with what is there.
    pub mode: StoreMode,
    /// Only if a version was equal.
    pub compares: bool,
    /// The old record goes: memcached drops what the client of a set believes replaced.
    pub discards: bool,
    /// Why: `TooLarge` or `OutOfMemory`.
    pub refusal: RefusalReason,
}

/// Remove a record, or empty it, or mark it stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Only if the stored version equals this.
    pub compare: Option<u64>,
    /// Mark it stale, with a new version, instead of removing it (meta `I`).
    pub mark_stale: bool,
    /// Keep the record and its version but drop its value (meta `x`); flags become 0 and the expiry `Never` unless given.
    pub drop_value: bool,
    /// New time to live, with `mark_stale` or `drop_value`.
    pub ttl: Option<Ttl>,
    /// Flags to keep with `drop_value` (meta `F`).
    pub flags: Option<u32>,
    /// The version to store with `mark_stale` or `drop_value` (meta `E`).
    pub version: Option<u64>,
    /// For the statistics.
    pub family: CommandFamily,
}

/// Which way a number goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArithmeticDirection {
    /// Up, wrapping at 2^64.
    #[default]
    Increment,
    /// Down, stopping at 0.
    Decrement,
}

/// Add to or subtract from a decimal number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Up or down.
    pub direction: ArithmeticDirection,
    /// By how much.
    pub delta: u64,
    /// On a miss create the record with `initial` and this time to live (meta `N`).
    pub vivify: Option<Ttl>,
    /// The number that `vivify` creates (meta `J`).
    pub initial: u64,
    /// New time to live on a hit (meta `T`).
    pub touch: Option<Ttl>,
    /// Only if the stored version equals this.
    pub compare: Option<u64>,
    /// The version to store (meta `E`).
    pub version: Option<u64>,
    /// What the reply shows.
    pub needs: ReplyNeeds,
    /// For the statistics.
    pub family: CommandFamily,
}

impl Default for Arithmetic<'_> {
    fn default() -> Self {
        Arithmetic {
            key: b"",
            direction: ArithmeticDirection::Increment,
            delta: 1,
            vivify: None,
            initial: 0,
            touch: None,
            compare: None,
            version: None,
            needs: ReplyNeeds::default(),
            family: CommandFamily::Text,
        }
    }
}

/// Give a record a new time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The new time to live.
    pub ttl: Ttl,
}

/// Show a record's attributes for debugging (`me`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspect<'a> {
    /// The key.
    pub key: &'a [u8],
}

/// What is to be done with records. Words that belong to one protocol alone are that protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Read: [`Reply::Hit`](crate::Reply::Hit) or `Miss`.
    Get(Get<'a>),
    /// Write: `Stored`, `NotStored`, `Exists`, `NotFound` or `Refused`.
    Store(Store<'a>),
    /// A write whose value was not taken. Always answered `Refused` with the same reason.
    RefusedStore(RefusedStore<'a>),
    /// Remove: `Deleted`, `NotFound` or `Exists`.
    Delete(Delete<'a>),
    /// Count: `Number`, `NotFound`, `NotStored`, `Exists` or `Refused`.
    Arithmetic(Arithmetic<'a>),
    /// `Touched` or `NotFound`.
    Touch(Touch<'a>),
    /// `Inspection` or `Miss`.
    Inspect(Inspect<'a>),
    /// Remove everything: now (`Never` or `Expired`), or when that time comes. `Done`.
    Flush {
        /// When.
        at: Ttl,
    },
    /// Nothing. `Done`.
    Noop,
}

impl<'a> Operation<'a> {
    /// Returns the key of the record that it is about.
    #[inline]
    pub fn key(&self) -> Option<&'a [u8]> {
        Some(match self {
            Operation::Get(get) => get.key,
            Operation::Store(store) => store.key,
            Operation::RefusedStore(refused) => refused.key,
            Operation::Delete(delete) => delete.key,
            Operation::Arithmetic(arithmetic) => arithmetic.key,
            Operation::Touch(touch) => touch.key,
            Operation::Inspect(inspect) => inspect.key,
            Operation::Flush { .. } | Operation::Noop => return None,
        })
    }
}
