//! What Kyoto Tycoon writes to files and to replicas, read and written. The bytes are captures of the original's.

mod logs;
mod pieces;
mod replicas;
mod snapshots;
