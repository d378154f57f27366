//! How much memory the process takes.

use super::OptionsError;

/// The least memory limit. Some 2 MiB are taken before the first record.
const LIMIT_MIN_MIB: u64 = 4;

/// How much memory is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// The anonymous memory of the process (`RssAnon`) in MiB; 0 for no limit.
    pub limit_mib: u64,
    /// Refuse writes at the limit instead of evicting.
    pub refuse_when_full: bool,
    /// Every store fails for want of memory, to test clients (`-o emulate_full`).
    pub emulate_full: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions { limit_mib: 64, refuse_when_full: false, emulate_full: false }
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
