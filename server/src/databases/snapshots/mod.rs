//! Writes and reads snapshots like those of Kyoto Tycoon's server. Each database in memory is
//! written to a file at intervals and when the server stops, and loaded from this file when the
//! server starts.
//!
//! ```text
//! writer          records to a file, compressed or not, a megabyte at a time
//! reader          a file to records
//! decompression   the compression formats of Kyoto
//! keeper          the files of a server's databases: when they are written, and which are loaded
//! ```
//!
//! A snapshot does not show a single moment. Each record has the state in which the writer found
//! it, and changes made meanwhile may be included or not. If there is an update log, its changes
//! from the time stamp of the file on correct that: logged values are absolute, so they can be
//! applied again.
//!
//! Invariant: a file gets the name of a snapshot only after it is completely on disk. Not here: the
//! format (see `todana_protocol::kyoto::snapshot`).

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

/// The directory, interval and compression of snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// The directory of the files. It is created if it does not exist.
    pub directory: PathBuf,
    /// The time between two snapshots.
    pub interval: Duration,
    /// The compression of new files. The server reads files with and without compression.
    pub packing: SnapshotCompression,
}
