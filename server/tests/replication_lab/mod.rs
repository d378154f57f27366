//! Machines that run a server each and lose their power, and lines between them that are cut and
//! stall.

pub(crate) mod line;
pub(crate) mod site;

use std::time::Duration;

/// Ends only what would hang for ever. Of the thousand threads of 32 networks on two cores that
/// others use, too, one may not run for minutes: a client gave up after one minute, and nothing was
/// wrong.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1800);
