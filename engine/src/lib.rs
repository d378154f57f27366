//! The local engines. They know records and visitors, not commands, clocks, logs or networks.

mod mem_hash;

pub use mem_hash::{MemHash, MemHashOptions};
