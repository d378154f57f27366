//! Operations on records, independent of any protocol.
//!
//! The structs hold the union of the options of all dialects. A codec fills in the options of its
//! dialect and leaves the others at their default. Keys and values borrow from the codec's input.

use crate::{RefusalReason, SharedValue};

/// A time to live as a client sends it, not yet resolved against a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ttl {
    /// The record never expires.
    #[default]
    Never,
    /// The record expires at once.
    Expired,
    /// The record expires this number of seconds from now.
    Seconds(u32),
    /// The record expires at this Unix time.
    At(u64),
    /// The record expires this number of seconds after its last access.
    Sliding(u32),
}

impl Ttl {
    /// Converts a signed number by memcached's rule: 0 never expires, a negative number expires at
    /// once, up to 30 days is relative, and more is a Unix time (protocol.txt, "Expiration times").
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

/// The family of commands that a request belongs to, for the statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommandFamily {
    /// memcached's text commands and its binary packets, which are counted together.
    #[default]
    Text,
    /// memcached's meta commands.
    Meta,
}

/// The costly parts that the reply will show. Parts that are not needed are not computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyNeeds {
    /// The version: a record without one gets a new one.
    pub version: bool,
    /// The last access and the fetched flag: asking for them turns on access tracking.
    pub access: bool,
}

/// Reads one record, and optionally touches or creates it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Get<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The new time to live on a hit (`gat`, meta `T`).
    pub touch: Option<Ttl>,
    /// On a miss, create an empty record with this time to live; the client wins (meta `N`).
    pub vivify: Option<Ttl>,
    /// The client wins if fewer seconds than this remain (meta `R`). Records that never expire are
    /// exempt.
    pub recache_below_s: Option<i64>,
    /// Compute the remaining seconds after `touch` instead of before it (meta `T` precedes `R`).
    pub recache_after_touch: bool,
    /// The version of a record that `vivify` creates (meta `E`).
    pub version: Option<u64>,
    /// The parts that the reply shows.
    pub needs: ReplyNeeds,
    /// Do not count as an access (meta `u`).
    pub silent: bool,
    /// The command is a `gat`, which is counted as a touch and not as a get.
    pub counts_as_touch: bool,
    /// The family, for the statistics.
    pub family: CommandFamily,
}

/// How a store treats an existing record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreMode {
    /// Store always.
    #[default]
    Set,
    /// Store only if no record exists.
    Add,
    /// Store only if a record exists.
    Replace,
    /// Append the value to the old one; flags and expiry stay.
    Append,
    /// Prepend the value to the old one; flags and expiry stay.
    Prepend,
}

/// Stores a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Store<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value, or the piece to append.
    pub value: &'a [u8],
    /// The same bytes in memory of the engine ([`ValueBuffer`](crate::ValueBuffer)), if they were
    /// received into it.
    pub shared: SharedValue<'a>,
    /// The client's flags.
    pub flags: u32,
    /// The time to live.
    pub ttl: Ttl,
    /// How to treat an existing record.
    pub mode: StoreMode,
    /// Store only if the stored version equals this one (`cas`, meta `C`).
    pub compare: Option<u64>,
    /// If `compare` is lower than the stored version, set and replace still store the value, but
    /// keep the time to live and mark the record stale (meta `I`). A record without a version
    /// counts as newer than any version that a client has seen.
    pub stale_if_older: bool,
    /// The version to store (meta `E`); the reply shows it too.
    pub version: Option<u64>,
    /// Append or prepend without an existing record creates the record with this time to live (meta
    /// `N`).
    pub vivify: Option<Ttl>,
    /// The parts that the reply shows.
    pub needs: ReplyNeeds,
    /// The maximum size of the complete item (memcached's size rule, see the memcached codec). An
    /// append beyond it is not stored.
    pub item_size_max: Option<u64>,
    /// The family, for the statistics.
    pub family: CommandFamily,
}

/// A write whose value was not received, because it is too long or no memory is available for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedStore<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The announced length of the value.
    pub value_len: usize,
    /// The client's flags.
    pub flags: u32,
    /// How the store would have treated an existing record.
    pub mode: StoreMode,
    /// True if the store depended on a version.
    pub compares: bool,
    /// Remove the old record: memcached does so if the client of a set assumes that it was
    /// replaced.
    pub discards: bool,
    /// The reason: `TooLarge` or `OutOfMemory`.
    pub refusal: RefusalReason,
}

/// Removes a record, drops its value, or marks it stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Act only if the stored version equals this one.
    pub compare: Option<u64>,
    /// Mark the record stale, with a new version, instead of removing it (meta `I`).
    pub mark_stale: bool,
    /// Keep the record and its version but drop its value (meta `x`). Flags become 0 and the expiry
    /// `Never` unless given.
    pub drop_value: bool,
    /// The new time to live, with `mark_stale` or `drop_value`.
    pub ttl: Option<Ttl>,
    /// The flags to keep with `drop_value` (meta `F`).
    pub flags: Option<u32>,
    /// The version to store with `mark_stale` or `drop_value` (meta `E`).
    pub version: Option<u64>,
    /// The family, for the statistics.
    pub family: CommandFamily,
}

/// The direction of an arithmetic operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArithmeticDirection {
    /// Up, wrapping at 2^64.
    #[default]
    Increment,
    /// Down, stopping at 0.
    Decrement,
}

/// Adds to or subtracts from a decimal number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Up or down.
    pub direction: ArithmeticDirection,
    /// The amount.
    pub delta: u64,
    /// On a miss, create the record with `initial` and this time to live (meta `N`).
    pub vivify: Option<Ttl>,
    /// The number that `vivify` creates (meta `J`).
    pub initial: u64,
    /// The new time to live on a hit (meta `T`).
    pub touch: Option<Ttl>,
    /// Act only if the stored version equals this one.
    pub compare: Option<u64>,
    /// The version to store (meta `E`).
    pub version: Option<u64>,
    /// The parts that the reply shows.
    pub needs: ReplyNeeds,
    /// The family, for the statistics.
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

/// Gives a record a new time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The new time to live.
    pub ttl: Ttl,
}

/// Changes a record by its value, atomically. The client flags of the record stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Modify<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The time to live that comes with a new value; `None` keeps the old one.
    pub ttl: Option<Ttl>,
    /// The change.
    pub change: Modification<'a>,
}

/// The change of a [`Modify`], and its reply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Modification<'a> {
    /// Appends a piece to the value; a missing record gets the piece as its value. `Stored`.
    Append(&'a [u8]),
    /// Replaces the value `old` by the value `new`, where `None` is a missing record. `Done`, or
    /// `Exists` if the value is not `old`.
    Swap {
        /// The value that must be there.
        old: Option<&'a [u8]>,
        /// The value that takes its place.
        new: Option<&'a [u8]>,
    },
    /// Adds to an integer of 8 bytes, highest byte first. `Integer`, or `NotStored` if the record
    /// is missing without `initial`, is no such number, or the sum would need more bytes. Adding 0
    /// to a number only reads it.
    AddInteger {
        /// The number to add.
        delta: i64,
        /// The number that a missing record begins with.
        initial: Option<i64>,
        /// Stores `delta` in place of the number that is there.
        overwrites: bool,
    },
    /// The same for a number with a fraction, of 16 bytes. `Real` or `NotStored`.
    AddReal {
        /// The number to add.
        delta: f64,
        /// The number that a missing record begins with.
        initial: Option<f64>,
        /// Stores `delta` in place of the number that is there.
        overwrites: bool,
    },
    /// Adds to a decimal number with a sign, read up to its last digit; a negative sum becomes 0.
    /// `Integer` or `NotFound`.
    AddDecimal {
        /// The number to add.
        delta: i64,
        /// The length of what follows the number, which stays.
        suffix_len: usize,
    },
    /// Removes the record. `Hit` with the record as it was, or `Miss`.
    Take,
}

/// Shows the attributes of a record, for debugging (`me`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspect<'a> {
    /// The key.
    pub key: &'a [u8],
}

/// An operation on records. Commands that exist in one protocol only belong to that protocol's
/// module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation<'a> {
    /// Read: [`Reply::Hit`](crate::Reply::Hit) or `Miss`.
    Get(Get<'a>),
    /// Write: `Stored`, `NotStored`, `Exists`, `NotFound` or `Refused`.
    Store(Store<'a>),
    /// A write whose value was not received. The reply is always `Refused` with the same reason.
    RefusedStore(RefusedStore<'a>),
    /// Remove: `Deleted`, `NotFound` or `Exists`.
    Delete(Delete<'a>),
    /// Count: `Number`, `NotFound`, `NotStored`, `Exists` or `Refused`.
    Arithmetic(Arithmetic<'a>),
    /// Change the expiry: `Touched` or `NotFound`.
    Touch(Touch<'a>),
    /// Change by value: see [`Modification`], or `Refused`.
    Modify(Modify<'a>),
    /// Show the attributes: `Inspection` or `Miss`.
    Inspect(Inspect<'a>),
    /// Remove all records, now (`Never` or `Expired`) or at the given time: `Done`.
    Flush {
        /// The time.
        at: Ttl,
    },
    /// Do nothing: `Done`.
    Noop,
}

impl<'a> Operation<'a> {
    /// Returns the key of the record that the operation concerns.
    #[inline]
    pub fn key(&self) -> Option<&'a [u8]> {
        Some(match self {
            Operation::Get(get) => get.key,
            Operation::Store(store) => store.key,
            Operation::RefusedStore(refused) => refused.key,
            Operation::Delete(delete) => delete.key,
            Operation::Arithmetic(arithmetic) => arithmetic.key,
            Operation::Touch(touch) => touch.key,
            Operation::Modify(modify) => modify.key,
            Operation::Inspect(inspect) => inspect.key,
            Operation::Flush { .. } | Operation::Noop => return None,
        })
    }
}
