//! Backups: a checkpoint and the log that goes with it, sent as a stream of bytes, received as a
//! directory (docs/format/backup.md).
//!
//! ```text
//! data directory, open or closed
//!   --Backup::next, a piece at a time--> bytes with checksums
//!   --Receiver::take--> TARGET.partial, read again --Receiver::finish--> TARGET
//! ```
//!
//! Invariants: a directory with the name of a backup was complete and on disk when it got that
//! name. Each piece is checked before any of it is written. Neither side keeps more than one piece
//! in memory.

mod manifest;
mod receiver;
mod sender;
mod stream;

pub use manifest::{BACKUP, BackedUp};
pub(crate) use manifest::{HASH, Kind, Listed, Manifest};
pub use receiver::Receiver;
pub use sender::Backup;
