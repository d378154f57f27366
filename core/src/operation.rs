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
    /// once, a number of up to 30 days is relative to now, and a greater number is a Unix time
    /// (protocol.txt, "Expiration times").
    pub fn from_exptime(exptime: i64) -> Ttl {
        const THIRTY_DAYS_S: i64 = 60 * 60 * 24 * 30;
        match exptime {
            0 => Ttl::Never,
            i64::MIN..0 => Ttl::Expired,
            1..=THIRTY_DAYS_S => Ttl::Seconds(exptime as u32),
            _ => Ttl::At(exptime as u64),
        }
    }
}

/// The syntax in which a command was sent. Some statistics of memcached depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommandSyntax {
    /// memcached's text commands and its binary packets, which are counted together.
    #[default]
    Classic,
    /// memcached's meta commands.
    Meta,
}

/// The parts of a reply that are costly to compute. A part is computed only if it is requested
/// here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyNeeds {
    /// The version. A record without a version gets a new version.
    pub version: bool,
    /// The last access and the fetched flag. A request for this part turns on access tracking.
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
    /// The client wins if less than this number of seconds remains (meta `R`). Records that never
    /// expire are exempt.
    pub recache_below_s: Option<i64>,
    /// Compute the remaining seconds after `touch` instead of before it (meta `T` precedes `R`).
    pub recache_after_touch: bool,
    /// The version that is stored if `vivify` creates a record (meta `E`).
    pub version: Option<u64>,
    /// The parts that the reply shows.
    pub needs: ReplyNeeds,
    /// Do not count as an access (meta `u`).
    pub silent: bool,
    /// The command is a `gat`, which is counted as a touch and not as a get.
    pub counts_as_touch: bool,
    /// The syntax of the command, for the statistics.
    pub syntax: CommandSyntax,
    /// The caller reads the bytes of a long value only through the shared bytes of the reply, so
    /// that an engine need not decompress them.
    pub reads_shared: bool,
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
    /// Append the value to the old value. Flags and expiry stay.
    Append,
    /// Prepend the value to the old value. Flags and expiry stay.
    Prepend,
}

/// Stores a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Store<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value, or the piece to append.
    pub value: &'a [u8],
    /// The same bytes in memory of the engine ([`ValueBuffer`](crate::ValueBuffer)), if the value
    /// was received into that memory.
    pub shared: SharedValue<'a>,
    /// The client's flags.
    pub flags: u32,
    /// The time to live.
    pub ttl: Ttl,
    /// How to treat an existing record.
    pub mode: StoreMode,
    /// Store only if the stored version equals this version (`cas`, meta `C`).
    pub compare: Option<u64>,
    /// If `compare` is lower than the stored version, set and replace still store the value, but
    /// keep the time to live and mark the record stale (meta `I`). A record without a version
    /// counts as newer than any version that a client has seen.
    pub stale_if_older: bool,
    /// The version to store (meta `E`). The reply shows the same version.
    pub version: Option<u64>,
    /// The time to live of the record that an append or prepend creates if there is no record (meta
    /// `N`).
    pub vivify: Option<Ttl>,
    /// The parts that the reply shows.
    pub needs: ReplyNeeds,
    /// The maximum size of the complete record in bytes, by memcached's size rule (see the
    /// memcached codec). An append that would exceed this size is not stored.
    pub item_size_max: Option<u64>,
    /// The syntax of the command, for the statistics.
    pub syntax: CommandSyntax,
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
    /// Remove the old record. memcached does this after a failed `set`, because the client assumes
    /// that the old record was replaced.
    pub discards: bool,
    /// The reason: `TooLarge` or `OutOfMemory`.
    pub refusal: RefusalReason,
}

/// Removes a record, drops its value, or marks it stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Act only if the stored version equals this version.
    pub compare: Option<u64>,
    /// Mark the record stale, with a new version, instead of removing it (meta `I`).
    pub mark_stale: bool,
    /// Keep the record and its version, but drop its value (meta `x`). The flags become 0 and the
    /// expiry becomes `Never`, unless the request states others.
    pub drop_value: bool,
    /// The new time to live, with `mark_stale` or `drop_value`.
    pub ttl: Option<Ttl>,
    /// The flags to keep with `drop_value` (meta `F`).
    pub flags: Option<u32>,
    /// The version to store with `mark_stale` or `drop_value` (meta `E`).
    pub version: Option<u64>,
    /// The syntax of the command, for the statistics.
    pub syntax: CommandSyntax,
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
    /// Act only if the stored version equals this version.
    pub compare: Option<u64>,
    /// The version to store (meta `E`).
    pub version: Option<u64>,
    /// The parts that the reply shows.
    pub needs: ReplyNeeds,
    /// The syntax of the command, for the statistics.
    pub syntax: CommandSyntax,
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
            syntax: CommandSyntax::Classic,
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

/// Changes a record depending on its value, atomically. The client's flags in the record stay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Modify<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The time to live that comes with a new value. `None` keeps the old expiry.
    pub ttl: Option<Ttl>,
    /// The change.
    pub change: ValueChange<'a>,
}

/// The change of a [`Modify`]. Each variant states the replies to the change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueChange<'a> {
    /// Appends a piece to the value. A missing record gets the piece as its value. The reply is
    /// `Stored`.
    Append(&'a [u8]),
    /// Replaces the value `old` by the value `new`, where `None` means that there is no record. The
    /// reply is `Done`, or `Exists` if the value is not `old`.
    Swap {
        /// The value that the record must have.
        old: Option<&'a [u8]>,
        /// The value that replaces it.
        new: Option<&'a [u8]>,
    },
    /// Adds to an integer of 8 bytes, highest byte first. The reply is `Integer`. It is `NotStored`
    /// if the record is missing and `initial` is `None`, if the value is not such an integer, or if
    /// the sum does not fit in 8 bytes. Adding 0 to an integer only reads it.
    AddInteger {
        /// The number to add.
        delta: i64,
        /// The number to which `delta` is added if the record is missing.
        initial: Option<i64>,
        /// Stores `delta` in place of the old number.
        overwrites: bool,
    },
    /// Adds to a number with a fraction, of 16 bytes, by the rules of `AddInteger`. The reply is
    /// `Real` or `NotStored`.
    AddReal {
        /// The number to add.
        delta: f64,
        /// The number to which `delta` is added if the record is missing.
        initial: Option<f64>,
        /// Stores `delta` in place of the old number.
        overwrites: bool,
    },
    /// Adds to a decimal number with a sign, read up to its last digit. A negative sum becomes 0.
    /// The reply is `Integer` or `NotFound`.
    AddDecimal {
        /// The number to add.
        delta: i64,
        /// The length of the bytes after the number, which stay as they are.
        suffix_len: usize,
    },
    /// Removes the record. The reply is `Hit` with the record as it was, or `Miss`.
    Take,
}

/// Shows the attributes of a record, for debugging (`me`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspect<'a> {
    /// The key.
    pub key: &'a [u8],
}

/// An operation on records. Commands that exist in only one protocol belong to the module of that
/// protocol. Each variant states the replies to the operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Operation<'a> {
    /// Reads a record: [`Reply::Hit`](crate::Reply::Hit) or `Miss`.
    Get(Get<'a>),
    /// Writes a record: `Stored`, `NotStored`, `Exists`, `NotFound` or `Refused`.
    Store(Store<'a>),
    /// Handles a write whose value was not received: always `Refused`, with the same reason.
    RefusedStore(RefusedStore<'a>),
    /// Removes a record: `Deleted`, `NotFound` or `Exists`.
    Delete(Delete<'a>),
    /// Counts up or down: `Number`, `NotFound`, `NotStored`, `Exists` or `Refused`.
    Arithmetic(Arithmetic<'a>),
    /// Changes the expiry: `Touched` or `NotFound`.
    Touch(Touch<'a>),
    /// Changes a record depending on its value: see [`ValueChange`], or `Refused`.
    Modify(Modify<'a>),
    /// Shows the attributes: `Inspection` or `Miss`.
    Inspect(Inspect<'a>),
    /// Removes all records: `Done`.
    Flush {
        /// The time of the removal. `Never` and `Expired` mean now.
        at: Ttl,
    },
    /// Does nothing: `Done`.
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
