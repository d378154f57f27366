//! Defines engines that keep their records in the order of the keys.

use crate::{Record, Result};
use std::ops::{Bound, ControlFlow};

/// An engine that keeps its records in the byte order of their keys. A key that is a prefix of
/// another key comes first.
///
/// A record that exists during the entire scan is shown exactly once. A record that is created or
/// removed meanwhile may or may not be shown. Locks are held over small groups of records. `see`
/// runs under these locks: it must be brief and must not call the engine.
pub trait OrderedEngine: Send + Sync {
    /// Shows records in ascending order of their keys, beginning with the lowest key that is within
    /// the bound `from`. Ends after the last record, or when `see` breaks.
    fn ascend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Shows records in descending order of their keys, beginning with the highest key that is
    /// within the bound `from`. Ends after the first record of the engine, or when `see` breaks.
    fn descend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()>;
}
