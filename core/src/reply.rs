//! What comes back from a command, independent of any protocol.

use crate::{Expiry, LastAccess, Record, UnixSeconds};

/// A record that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HitReply<'r> {
    /// The record as it is after this request.
    pub record: Record<'r>,
    /// Its expiry before this request touched it.
    pub expiry_before: Expiry,
    /// Its last access before this request; `None` if access times were not tracked.
    pub access_before: Option<LastAccess>,
    /// Who recomputes it.
    pub recache: RecacheState,
    /// The clock, for answers in seconds.
    pub now: UnixSeconds,
}

/// memcached's stale-while-revalidate, as told to one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecacheState {
    /// This client shall recompute the value (`W`).
    pub won: bool,
    /// The value is stale (`X`).
    pub stale: bool,
    /// Another client was told before (`Z`).
    pub token_sent: bool,
}

/// A record that was stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredReply {
    /// Its version if that was asked for, else 0.
    pub version: u64,
    /// The length of the whole value now stored.
    pub value_len: u64,
}

/// The outcome of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArithmeticReply {
    /// The number now stored.
    pub value: u64,
    /// Its version if that was asked for, else 0.
    pub version: u64,
    /// When the record dies, before and after this request.
    pub expiry_before: Expiry,
    /// See `expiry_before`.
    pub expiry: Expiry,
    /// The record was made by this request.
    pub created: bool,
    /// The clock.
    pub now: UnixSeconds,
}

/// A record's attributes for debugging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordDetails {
    /// When it dies.
    pub expiry: Expiry,
    /// Its last access, if tracked.
    pub access: Option<LastAccess>,
    /// Its version.
    pub version: u64,
    /// The client's flags.
    pub flags: u32,
    /// The length of the key.
    pub key_len: u64,
    /// The length of the value.
    pub value_len: u64,
    /// The clock.
    pub now: UnixSeconds,
}

/// What has happened to the keys of one prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixCounters<'r> {
    /// The prefix.
    pub name: &'r [u8],
    /// Reads ...
    pub gets: u64,
    /// ... and those that found something.
    pub hits: u64,
    /// Stores.
    pub sets: u64,
    /// Deletes.
    pub deletes: u64,
}

/// Why something was refused that was well-formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The item is larger than the limit.
    TooLarge,
    /// There is no memory, and nothing may be evicted.
    OutOfMemory,
    /// Arithmetic on what is not a number.
    NonNumeric,
    /// The command is switched off.
    NotEnabled,
    /// A memory limit below the least allowed.
    LimitTooSmall,
    /// A memory limit that looks like bytes where MiB are meant.
    LimitInBytes,
    /// A memory limit that cannot be set.
    LimitNotAdjustable,
    /// Who asks has not said, or not truly, who they are.
    NotAuthenticated,
    /// The update log cannot be written, so that nothing may change.
    LogUnwritable,
    /// The files of the engine itself cannot be written, so that nothing may change.
    FilesUnwritable,
    /// The database was opened for reading: nothing may change.
    ReadOnly,
    /// A flush cannot be planned, as nothing would keep the plan over a restart.
    NoPlans,
    /// The bytes on disk are damaged: what the record is cannot be told.
    Damaged,
    /// The disk cannot be read or written, or the database is closed.
    Unavailable,
    /// A transaction of the same thread is open, which this would have to wait for.
    Busy,
}

/// One reply, or one part of a reply that comes in several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reply<'r> {
    /// Found.
    Hit(HitReply<'r>),
    /// Not found, on a read.
    Miss,
    /// Stored.
    Stored(StoredReply),
    /// The condition of add, replace, append or prepend does not hold.
    NotStored,
    /// The version differs.
    Exists,
    /// Not found, on a write.
    NotFound,
    /// Removed (or marked, or emptied).
    Deleted,
    /// Touched.
    Touched,
    /// The new number.
    Number(ArithmeticReply),
    /// Attributes.
    Inspection(RecordDetails),
    /// Done, nothing to tell.
    Done,
    /// Refused, and why.
    Refused(RefusalReason),
    /// One statistic.
    Statistic {
        /// Its name.
        name: &'r str,
        /// Its value.
        value: &'r str,
    },
    /// The statistics of all prefixes.
    Prefixes(&'r [PrefixCounters<'r>]),
    /// The counters were reset.
    Reset,
    /// One record of a list.
    Listed {
        /// Its key.
        key: &'r [u8],
        /// Its attributes.
        inspection: RecordDetails,
    },
    /// The end of a list.
    End,
    /// The server's version.
    Version(&'r str),
    /// The names of the SASL mechanisms, with a blank between them.
    Mechanisms(&'r str),
    /// It is who it says it is.
    Authenticated,
    /// The mechanism has more to ask.
    Challenge(&'r [u8]),
    /// No such command or group.
    Unknown,
    /// The request was faulty; the text is the reply.
    Faulty(&'r str),
}
