//! Todana's own replication protocol (docs/protocol/replication.md).
//!
//! ```text
//! frame    a message with its length and its checksum
//! hello    the greeting of a replica, and the answer of the master
//! message  the messages after that
//! ```
//!
//! The bytes of the update log and of checkpoints travel unchanged; this module does not read them.

mod frame;
mod hello;
mod message;

pub use frame::{CONTENT_LEN_MAX, FIRST_BYTE, FrameDecoder, GREETING, MalformedFrame, VERSION};
pub use hello::{
    AnsweredStart, DATABASES_MAX, DatabaseAnswer, DatabaseRequest, EpochPlace, EpochRecord, LogPlace,
    MasterWelcome, NAME_LEN_MAX, ReplicaHello, RequestedStart,
};
pub use message::{AppliedPosition, LogEnd, MasterMessage, ReplicaMessage};

use hello::{FieldReader, put_some_place};
