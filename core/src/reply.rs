//! Defines replies to operations, independent of any protocol.

use crate::{Expiry, LastAccess, Record, UnixSeconds};

/// A record that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HitReply<'r> {
    /// The record after this request.
    pub record: Record<'r>,
    /// The expiry of the record before this request.
    pub expiry_before: Expiry,
    /// The last access of the record before this request; `None` if access times were not tracked.
    pub access_before: Option<LastAccess>,
    /// The instruction to the client whether to recompute the value.
    pub recache: RecacheState,
    /// The current time, for replies in seconds.
    pub now: UnixSeconds,
}

/// The state of memcached's stale-while-revalidate, as one client sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecacheState {
    /// This client should recompute the value (`W`).
    pub won: bool,
    /// The value is stale (`X`).
    pub stale: bool,
    /// Another client has already been asked to recompute the value (`Z`).
    pub token_sent: bool,
}

/// A record that was stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredReply {
    /// The version of the record if the request asked for it, otherwise 0.
    pub version: u64,
    /// The length of the complete value that is now stored.
    pub value_len: u64,
}

/// The result of an arithmetic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArithmeticReply {
    /// The number that is now stored.
    pub value: u64,
    /// The version of the record if the request asked for it, otherwise 0.
    pub version: u64,
    /// The expiry of the record before this request.
    pub expiry_before: Expiry,
    /// The expiry of the record after this request.
    pub expiry: Expiry,
    /// True if this request created the record.
    pub created: bool,
    /// The current time.
    pub now: UnixSeconds,
}

/// The attributes of a record, for debugging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordDetails {
    /// The expiry.
    pub expiry: Expiry,
    /// The last access, if access times are tracked.
    pub access: Option<LastAccess>,
    /// The version.
    pub version: u64,
    /// The client's flags.
    pub flags: u32,
    /// The length of the key.
    pub key_len: u64,
    /// The length of the value.
    pub value_len: u64,
    /// The number of values of the key after the first, if a list of records shows the record.
    pub further_values: u64,
    /// The current time.
    pub now: UnixSeconds,
}

/// The counts of requests for keys that begin with one prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixCounters<'r> {
    /// The prefix.
    pub name: &'r [u8],
    /// The number of reads.
    pub gets: u64,
    /// The number of reads that found a record.
    pub hits: u64,
    /// The number of stores.
    pub sets: u64,
    /// The number of deletes.
    pub deletes: u64,
}

/// The reason why a well-formed request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The record would be larger than the limit.
    TooLarge,
    /// There is no memory, and nothing may be evicted.
    OutOfMemory,
    /// The value is not a number, so arithmetic is not possible.
    NonNumeric,
    /// The command is disabled.
    NotEnabled,
    /// The memory limit is below the minimum.
    LimitTooSmall,
    /// The memory limit appears to be in bytes, but MiB are expected.
    LimitInBytes,
    /// The memory limit cannot be changed.
    LimitNotAdjustable,
    /// The client has not authenticated, or its credentials are wrong.
    NotAuthenticated,
    /// The update log cannot be written, so no change is possible.
    LogUnwritable,
    /// The files of the engine cannot be written, so no change is possible.
    FilesUnwritable,
    /// The database was opened read-only.
    ReadOnly,
    /// The server is a replica, so changes belong to its master.
    Replica,
    /// The server is a replica whose records are older than the request allows.
    TooOld,
    /// The request names a position in a log that this server does not follow.
    OtherLog,
    /// Another server has become the master in the place of this one.
    Superseded,
    /// The change was made here, but not enough replicas have confirmed it in time.
    Unconfirmed,
    /// A flush at a later time cannot be scheduled, because the schedule would not survive a
    /// restart.
    NoPlans,
    /// The bytes on disk are damaged, so the record cannot be read.
    Damaged,
    /// The disk cannot be read or written, or the database is closed.
    Unavailable,
    /// The request would have to wait for an open transaction of the same thread.
    Busy,
    /// The cluster that holds the records cannot be reached, and has not executed the request.
    Unreachable,
    /// The cluster has not answered in time. A write may have been executed, or may still be.
    OutcomeUnknown,
    /// Too many requests wait for the cluster. The request was not sent.
    Overloaded,
    /// A database on a cluster cannot execute this request.
    NotOnCluster,
}

/// A reply, or one part of a reply with several parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reply<'r> {
    /// A read found the record.
    Hit(HitReply<'r>),
    /// A read did not find the record.
    Miss,
    /// The record was stored.
    Stored(StoredReply),
    /// The condition of add, replace, append or prepend does not hold.
    NotStored,
    /// The version of the record differs from the version in the request.
    Exists,
    /// A write did not find the record.
    NotFound,
    /// The record was removed, or marked stale, or its value was dropped.
    Deleted,
    /// The expiry was changed.
    Touched,
    /// The new number.
    Number(ArithmeticReply),
    /// The sum of integers.
    Integer(i64),
    /// The sum of numbers with a fraction.
    Real(f64),
    /// The attributes of the record.
    Inspection(RecordDetails),
    /// The request was carried out, and there is nothing to report.
    Done,
    /// The request was refused for this reason.
    Refused(RefusalReason),
    /// One statistic.
    Statistic {
        /// The name of the statistic.
        name: &'r str,
        /// The value of the statistic.
        value: &'r str,
    },
    /// The counts of requests for all prefixes.
    Prefixes(&'r [PrefixCounters<'r>]),
    /// The counters were reset.
    Reset,
    /// One record of a list.
    Listed {
        /// The key of the record.
        key: &'r [u8],
        /// The attributes of the record.
        inspection: RecordDetails,
    },
    /// The end of a list.
    End,
    /// The server's version.
    Version(&'r str),
    /// The names of the SASL mechanisms, separated by blanks.
    Mechanisms(&'r str),
    /// Authentication succeeded.
    Authenticated,
    /// The mechanism sends another challenge.
    Challenge(&'r [u8]),
    /// The command or the group of statistics does not exist.
    Unknown,
    /// The request was malformed. The text is the complete reply.
    Faulty(&'r str),
}
