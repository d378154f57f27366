//! What engines offer that keep their records in the order of the keys.

use crate::{Record, Result};
use std::ops::{Bound, ControlFlow};

/// An engine that keeps its records in the order of their keys' bytes, shorter ones before the longer ones that begin with
/// them.
///
/// A record that is there throughout is shown exactly once; one that comes or goes meanwhile is shown or not. Locks are held
/// over small groups of records; `see` runs under them: it must be brief and must not call the engine.
pub trait OrderedEngine: Send + Sync {
    /// Shows the records from `from` on in ascending order until `see` breaks or all are done.
    fn ascend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Shows the records from `from` on in descending order until `see` breaks or all are done.
    fn descend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()>;
}
