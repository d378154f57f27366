//! Reads and writes the data that Kyoto Tycoon writes to files and replicas. The bytes are captures
//! of the original's output.

mod logs;
mod pieces;
mod replicas;
mod snapshots;
