//! Simulates machines that run a server and lose power, and connections between them that are cut
//! or stall.

pub(crate) mod line;
pub(crate) mod site;

use std::time::Duration;

/// The time after which a wait fails, so that a test does not hang for ever. It must be long: of
/// the thousand threads of 32 networks, on two cores that other programs share, one may not run for
/// minutes. With a limit of one minute, a client gave up although nothing was wrong.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(1800);
