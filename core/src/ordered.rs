//! Engines that keep their records in the order of the keys.

use crate::{Record, Result};
use std::ops::{Bound, ControlFlow};

/// An engine that keeps its records in the byte order of their keys. A key that is a prefix of
/// another one comes first.
///
/// A record that exists during the entire scan is shown exactly once. A record that is created or
/// removed meanwhile may or may not be shown. Locks are held over small groups of records. `see`
/// runs under these locks: it must be brief and must not call the engine.
pub trait OrderedEngine: Send + Sync {
    /// Shows the records from `from` on in ascending order, until `see` breaks or no record is
    /// left.
    fn ascend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Shows the records from `from` on in descending order, until `see` breaks or no record is
    /// left.
    fn descend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()>;
}
