//! Snapshots as Kyoto Tycoon's server makes them: each database in memory as a file, made every now and then and at the end, read back
//! at the start.
//!
//! ```text
//! writer   records to a file, packed or not, a megabyte at a time
//! reader   a file to records
//! decompression   what Kyoto compresses
//! keeping  the files of a server's databases: when they are made, and which are read back
//! ```
//!
//! A snapshot is no moment: each record is as it was when its turn came, and what was changed meanwhile may be there or not. Where there
//! is an update log, what it tells from the file's time stamp on makes up for that, as values are absolute.
//!
//! Always true: a file with the name of a snapshot was on disk as a whole when it got that name.
//! Not here: bytes, which `todana_protocol::kyoto::snapshot` knows.

mod decompression;
mod keeping;
mod reader;
mod writer;

pub use decompression::decompressed;
pub use reader::{SnapshotError, read_snapshot};
pub use writer::{Packing, SnapshotWriter};

pub(crate) use keeping::{History, Keeper, prepare, restore};

use std::path::PathBuf;
use std::time::Duration;

/// Where and how often snapshots are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// The directory of the files; it is made if it is not there.
    pub directory: PathBuf,
    /// From one to the next.
    pub interval: Duration,
    /// How they are packed. Files of either packing are read.
    pub packing: Packing,
}
