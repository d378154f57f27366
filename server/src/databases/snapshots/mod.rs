//! Snapshots as Kyoto Tycoon's server makes them: each database in memory as a file, written at an
//! interval and at the end, and read back at the start.
//!
//! ```text
//! writer   records to a file, compressed or not, a megabyte at a time
//! reader   a file to records
//! decompression   the compression formats of Kyoto
//! keeper   the files of a server's databases: when they are written, and which are read back
//! ```
//!
//! A snapshot is not a single moment: each record is as it was when it was written, and changes
//! made meanwhile may be included or not. If there is an update log, replaying it from the file's
//! time stamp on corrects that, because logged values are absolute.
//!
//! Invariant: a file with the name of a snapshot was completely on disk before it got that name.
//! Not here: the format (see `todana_protocol::kyoto::snapshot`).

mod decompression;
mod keeper;
mod reader;
mod writer;

pub use decompression::decompressed;
pub use reader::{SnapshotError, read_snapshot};
pub use writer::{SnapshotCompression, SnapshotWriter};

pub(crate) use keeper::{SnapshotHistory, SnapshotKeeper, prepare, restore};

use std::path::PathBuf;
use std::time::Duration;

/// Directory and interval of snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// The directory of the files, created if it does not exist.
    pub directory: PathBuf,
    /// Time between two snapshots.
    pub interval: Duration,
    /// Compression of new files. Both kinds of files can be read.
    pub packing: SnapshotCompression,
}
