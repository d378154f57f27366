//! The codecs of memcached's dialects: text and meta for servers and clients, binary for servers.

mod administration;
mod binary;
mod classes;
pub mod client;
mod command;
pub mod plugin;
mod server;

pub use administration::{
    ClassSet, CrawlerCommand, ExportKind, ExportRequest, LogStart, RecordListing, WatchStreams,
};
pub use classes::{CHUNK_SIZES, ITEM_OVERHEAD_BYTES, item_size, size_class};
pub use command::{ClockShift, LoginCredentials, MemcachedCommand};
pub use server::{
    DialectChoice, HiddenReplies, LongBlock, MemcachedDecoder, MemcachedLimits, MemcachedRequest,
    MemcachedStep, ReplyForm, ReplySink, RequestHead, encode, put_uri_encoded, refusal_text,
};
