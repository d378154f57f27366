//! What those who look after a server ask for: lists of records, the crawler, exports of what is kept, events as they happen.

use std::num::NonZeroU64;

/// A set of size classes, numbered from 1 to 63 as memcached numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassSet(u64);

impl ClassSet {
    /// All classes.
    pub const ALL: ClassSet = ClassSet(u64::MAX);
    /// None.
    pub const NONE: ClassSet = ClassSet(0);

    /// The set with one class more; unchanged if there is no such number.
    #[must_use]
    pub fn with(self, class: usize) -> ClassSet {
        ClassSet(self.0 | 1u64.checked_shl(class as u32).unwrap_or(0))
    }

    /// Whether a class is in it.
    pub fn contains(self, class: usize) -> bool {
        self.0.checked_shr(class as u32).is_some_and(|rest| rest & 1 == 1)
    }
}

/// A list of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// Those of these classes only.
    pub classes: ClassSet,
    /// Keys alone, in a form that reads them.
    pub keys_only: bool,
}

/// What the crawler, which removes expired records in the background, is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crawler {
    /// Go through these classes now.
    Crawl(ClassSet),
    /// Be there.
    Enable,
    /// Serve no lists, and do nothing when told to.
    Disable,
    /// Rest so many microseconds between two records.
    Sleep(u32),
    /// Look at so many records of a class at most; 0 for all.
    RecordsMax(u32),
}

/// What a server is asked to make of the data that it keeps on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Of which database, by its number.
    pub database: u32,
    /// What.
    pub what: Exported,
}

/// What is made of the data on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exported {
    /// A checkpoint, kept where the data is.
    Checkpoint,
    /// A backup, sent to whoever asks.
    Backup {
        /// Bytes a second at most.
        rate: Option<NonZeroU64>,
    },
    /// The update log, sent to whoever asks.
    Log {
        /// From where on.
        from: LogStart,
        /// What is changed later is sent when it is.
        follows: bool,
    },
}

/// Where an update log is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStart {
    /// As far back as it goes.
    First,
    /// From this position on, which stands between two entries.
    At(u64),
    /// From where it ends now.
    End,
}

/// Kinds of events that a connection may watch: a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams(u16);

impl Streams {
    /// None.
    pub const NONE: Streams = Streams(0);
    /// Reads.
    pub const FETCHERS: Streams = Streams(1);
    /// Stores.
    pub const MUTATIONS: Streams = Streams(2);
    /// Records removed to make room.
    pub const EVICTIONS: Streams = Streams(4);
    /// Connections that come and go.
    pub const CONNECTIONS: Streams = Streams(8);
    /// Records removed by a client.
    pub const DELETIONS: Streams = Streams(16);
    /// What the server does by itself.
    pub const SYSTEM: Streams = Streams(32);
    /// Every request.
    pub const REQUESTS: Streams = Streams(64);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Streams) -> Streams {
        Streams(self.0 | other.0)
    }

    /// Whether they have one in common.
    pub const fn intersects(self, other: Streams) -> bool {
        self.0 & other.0 != 0
    }

    /// As a number, for a flag that many threads look at.
    pub const fn bits(self) -> u16 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_beyond_the_last_is_in_no_set() {
        let some = ClassSet::NONE.with(1).with(63).with(64).with(usize::MAX);
        assert!(some.contains(1) && some.contains(63) && !some.contains(2));
        assert!(!some.contains(64) && !ClassSet::ALL.contains(64) && ClassSet::ALL.contains(63));
    }
}
