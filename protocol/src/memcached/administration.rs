//! Defines the requests of administrators: lists of records, the crawler, exports of stored data,
//! and watching events.

use std::num::NonZeroU64;

/// A set of size classes. The classes have numbers from 1 to 63, as in memcached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSet(u64);

impl ClassSet {
    /// All classes.
    pub const ALL: ClassSet = ClassSet(u64::MAX);
    /// No class.
    pub const NONE: ClassSet = ClassSet(0);

    /// Returns the set with one more class, or the same set if the number is out of range.
    #[must_use]
    pub fn with(self, class: usize) -> ClassSet {
        ClassSet(self.0 | 1u64.checked_shl(class as u32).unwrap_or(0))
    }

    /// Returns true if the set contains the class.
    pub fn contains(self, class: usize) -> bool {
        self.0.checked_shr(class as u32).is_some_and(|rest| rest & 1 == 1)
    }
}

/// A request to list records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordListing {
    /// The classes to list.
    pub classes: ClassSet,
    /// List only the keys, as meta commands that read the records.
    pub keys_only: bool,
}

/// A command for the crawler, which removes expired records in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrawlerCommand {
    /// Scan these classes now.
    Crawl(ClassSet),
    /// Enable the crawler.
    Enable,
    /// Disable the crawler. While it is disabled, lists are refused and commands to scan are
    /// ignored.
    Disable,
    /// Pause for this number of microseconds between two records.
    Sleep(u32),
    /// The maximum number of records to scan in a class; 0 for all.
    RecordsMax(u32),
}

/// A request to export data that the server keeps on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportRequest {
    /// The number of the database.
    pub database: u32,
    /// The kind of the export.
    pub what: ExportKind,
}

/// The kinds of export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportKind {
    /// A checkpoint, which stays in the data directory.
    Checkpoint,
    /// The promotion of the server, which is a replica, to the master. It exports nothing, but may
    /// take as long.
    Promotion {
        /// True if the records need not be complete.
        is_forced: bool,
    },
    /// A backup, which is sent to the client.
    Backup {
        /// The maximum rate in bytes per second.
        rate: Option<NonZeroU64>,
    },
    /// The update log, which is sent to the client.
    Log {
        /// The position at which to start.
        from: LogStart,
        /// True to send later changes, too, as they happen.
        follows: bool,
    },
}

/// The start of an export of the update log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStart {
    /// At the oldest entry that the server still has.
    First,
    /// At this position, which must lie between two entries.
    At(u64),
    /// At the current end of the log.
    End,
}

/// A set of event kinds that a connection can watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchStreams(u16);

impl WatchStreams {
    /// No kind.
    pub const NONE: WatchStreams = WatchStreams(0);
    /// Reads.
    pub const FETCHERS: WatchStreams = WatchStreams(1);
    /// Stores.
    pub const MUTATIONS: WatchStreams = WatchStreams(2);
    /// Records evicted to free memory.
    pub const EVICTIONS: WatchStreams = WatchStreams(4);
    /// Connections that open and close.
    pub const CONNECTIONS: WatchStreams = WatchStreams(8);
    /// Records removed by a client.
    pub const DELETIONS: WatchStreams = WatchStreams(16);
    /// Actions of the server itself.
    pub const SYSTEM: WatchStreams = WatchStreams(32);
    /// All requests.
    pub const REQUESTS: WatchStreams = WatchStreams(64);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, other: WatchStreams) -> WatchStreams {
        WatchStreams(self.0 | other.0)
    }

    /// Returns true if the sets have a kind in common.
    pub const fn intersects(self, other: WatchStreams) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the set as a number, for a flag that many threads read.
    pub const fn bits(self) -> u16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_above_63_is_in_no_set() {
        let some = ClassSet::NONE.with(1).with(63).with(64).with(usize::MAX);
        assert!(some.contains(1) && some.contains(63) && !some.contains(2));
        assert!(!some.contains(64) && !ClassSet::ALL.contains(64) && ClassSet::ALL.contains(63));
    }
}
