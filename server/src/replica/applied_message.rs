//! The result of applying a message of the master, in either protocol.

use std::io;
use todana_core::Error;

/// The reason why a master is no longer followed.
pub(super) enum FollowError {
    /// The server stops, or a client has chosen another master.
    Interrupted,
    Lost(String),
    /// A change had another outcome than at the master, and the operator wants to stop then.
    Differs(String),
}

impl From<io::Error> for FollowError {
    fn from(error: io::Error) -> FollowError {
        FollowError::Lost(error.to_string())
    }
}

impl From<Error> for FollowError {
    fn from(error: Error) -> FollowError {
        FollowError::Lost(error.to_string())
    }
}

/// The result of applying the message at the beginning of the unread bytes.
pub(super) enum Applied {
    NeedMore {
        /// The minimum number of missing bytes.
        at_least: usize,
    },
    Message {
        consumed: usize,
        /// The position after the message.
        position: Option<u64>,
        event: MessageEvent,
    },
}

/// The further effect of a message.
pub(super) enum MessageEvent {
    None,
    /// The master has accepted this server.
    Accepted,
    /// This server has all changes of its master.
    CaughtUp,
    /// The position must be stored at once, because applying the change twice would do harm.
    MustStore,
}

/// The reason why a message was not applied.
pub(super) struct ApplyError {
    /// The position with which to continue, if it changes.
    pub(super) position: Option<u64>,
    pub(super) why: FollowError,
}

impl<E: Into<FollowError>> From<E> for ApplyError {
    fn from(error: E) -> ApplyError {
        ApplyError { position: None, why: error.into() }
    }
}
