//! Contains all `unsafe` code of the engine: memory mappings, mapped files, the allocator's
//! settings, LMDB, io_uring, and processor instructions, each wrapped in safe types. Each file has
//! an entry in SAFETY.md.
#![allow(unsafe_code)]

mod allocator;
mod checksum;
mod descriptors;
mod file_ring;
mod lmdb;
mod mapped_file;
mod mapping;
mod page_cache;
mod prefetch;
mod shared_memory;
mod socket_ring;
mod word_table;
mod words;

pub use allocator::{bound_allocator, trim_allocator};
pub(crate) use checksum::crc32c;
pub(crate) use descriptors::descriptors_max;
pub(crate) use file_ring::{CompletedRead, FileRing, READ_BUFFERS, READ_LEN, ReadSignal};
pub(crate) use lmdb::{LmdbEnvironment, LmdbSnapshot, LmdbTable, LmdbWriteTransaction};
pub use mapped_file::MappedFile;
pub(crate) use mapping::{MemoryMapping, SYSTEM_PAGE};
pub(crate) use page_cache::cached_pages;
pub(crate) use prefetch::prefetch;
pub(crate) use shared_memory::FileMemory;
pub use socket_ring::{
    RECEIVE_LEN, ReceiveEnd, ReceivedBytes, RingEvent, SEND_LEN_MAX, SocketRing, UnsentBytes,
};
pub(crate) use word_table::{WordTable, share_of_free_bytes};
pub(crate) use words::{WINDOW, equal, greater_or_zero, insert};
