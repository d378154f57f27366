//! Defines the options of the memory limit.

use super::{DatabaseSpec, OptionsError};
use todana::{DatabaseKind, EvictionGoal};

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
    /// True if databases in memory store records as they are: without dictionaries and key shapes,
    /// and long values without compression.
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

    /// Returns a warning for each option that affects none of these databases.
    pub(crate) fn without_effect(&self, databases: &[DatabaseSpec]) -> Vec<&'static str> {
        let mut warnings = Vec::new();
        let has = |is_meant: fn(DatabaseKind) -> bool| databases.iter().any(|one| is_meant(one.name.kind));
        if self.evict_for != EvictionGoal::default() && !has(|kind| kind == DatabaseKind::MemHash) {
            warnings.push("--evict-for: has no effect, because no database is a mem:hash");
        }
        if self.stores_plain && !has(DatabaseKind::is_in_memory) {
            warnings.push("--compress: has no effect, because no database is in memory");
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana::DatabaseName;

    #[test]
    fn options_without_a_suitable_database_are_reported() {
        let options =
            MemoryOptions { evict_for: EvictionGoal::Bytes, stores_plain: true, ..MemoryOptions::default() };
        let of = |names: &[&str]| {
            let spec = |name: &&str| DatabaseSpec { name: DatabaseName::parse(name).unwrap(), data: None };
            let databases: Vec<DatabaseSpec> = names.iter().map(spec).collect();
            assert!(MemoryOptions::default().without_effect(&databases).is_empty());
            options.without_effect(&databases)
        };
        let evict_for = "--evict-for: has no effect, because no database is a mem:hash";
        let compress = "--compress: has no effect, because no database is in memory";
        assert_eq!(of(&["./a.hash"]), [evict_for, compress]);
        assert_eq!(of(&["./a.hash", "b=mem:tree"]), [evict_for]);
        assert_eq!(of(&["./a.hash", "b=mem:hash"]), [""; 0]);
    }
}
