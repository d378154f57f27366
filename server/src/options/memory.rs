//! Defines the options of the memory limit.

use super::OptionsError;
use todana::EvictionGoal;

/// The lowest memory limit. A process takes about 2 MiB before it stores a record.
const LIMIT_MIN_MIB: u64 = 4;

/// The memory limit and its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// The limit of the anonymous memory of the process (`RssAnon`) in MiB; 0 means no limit.
    pub limit_mib: u64,
    /// True if writes are refused at the limit. False evicts records.
    pub refuse_when_full: bool,
    /// The purpose of evictions from hashes in memory.
    pub evict_for: EvictionGoal,
    /// True if each store fails as it does without free memory, for tests of clients (`-o
    /// emulate_full`).
    pub emulate_full: bool,
    /// True if a hash in memory stores records as they are, without dictionaries and key shapes.
    pub stores_plain: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions {
            limit_mib: 64,
            refuse_when_full: false,
            evict_for: EvictionGoal::default(),
            emulate_full: false,
            stores_plain: false,
        }
    }
}

impl MemoryOptions {
    pub(super) fn validate(&self) -> Result<(), OptionsError> {
        let wrong = |text: &str| Err(OptionsError(text.to_string()));
        if self.limit_mib != 0 && self.limit_mib < LIMIT_MIN_MIB {
            return wrong("the memory limit must be at least 4 MiB, or 0 for none (-m)");
        }
        if self.limit_mib > 1 << 30 {
            return wrong("the memory limit is in MiB, not in bytes (-m)");
        }
        Ok(())
    }
}
