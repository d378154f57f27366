//! Backups: a checkpoint and the part of the update log that belongs to it. A backup is sent as a
//! stream of bytes and stored as a directory by the receiver (docs/format/backup.md).
//!
//! ```text
//! data directory of an open or closed database
//!   --BackupSender::next, piece by piece--> bytes with checksums
//!   --BackupReceiver::take--> TARGET.partial --BackupReceiver::finish reads all files again--> TARGET
//! ```
//!
//! Invariants: a directory gets the name of the backup only when the backup is complete and on
//! disk. Each piece is checked before any byte of it is written. Sender and receiver each keep at
//! most one piece in memory.

mod manifest;
mod receiver;
mod sender;
mod stream;

pub use manifest::{BACKUP, BackedUp};
pub(crate) use manifest::{BackupFileKind, BackupManifest, HASH, ListedFile};
pub use receiver::BackupReceiver;
pub use sender::BackupSender;
