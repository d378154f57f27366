//! The error for a ring that cannot be built.

use std::fmt;

/// The reason why a ring, a list of servers or a map of vbuckets is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingError(pub(super) String);

impl RingError {
    pub(crate) fn new(problem: String) -> RingError {
        RingError(problem)
    }

    /// Returns the value of a name, or an error that lists the known names.
    pub(super) fn find<T: Copy>(noun: &str, name: &str, known: &[(&str, T)]) -> Result<T, RingError> {
        let found = known.iter().find(|(candidate, _)| *candidate == name);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
            RingError(format!("{name:?}: unknown {noun}; known: {}", names.join(" ")))
        })
    }
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RingError {}
