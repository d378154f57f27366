//! The only module of the workspace with `unsafe`: memory from the system, given back to it, files as memory, and hints to
//! the processor.
//! Each file has its entry in SAFETY.md.
#![allow(unsafe_code)]

mod allocator;
mod checksum;
mod lmdb;
mod mapped_file;
mod mapping;
mod prefetch;
mod shared_memory;
mod word_table;
mod words;

pub use allocator::{bound_allocator, trim_allocator};
pub(crate) use checksum::crc32c;
pub(crate) use lmdb::{Lmdb, Snapshot, Table, Writing};
pub use mapped_file::MappedFile;
pub(crate) use mapping::{Mapping, SYSTEM_PAGE};
pub(crate) use prefetch::prefetch;
pub(crate) use shared_memory::FileMemory;
pub(crate) use word_table::{WordTable, free_beside};
pub(crate) use words::{WINDOW, behind, equal, insert};
