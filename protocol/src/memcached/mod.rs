//! memcached's dialects: text and meta, server side and client side; binary, server side.

mod administration;
mod binary;
mod classes;
pub mod client;
mod command;
pub mod plugin;
mod server;

pub use administration::{ClassSet, Crawler, Export, Exported, List, LogStart, Streams};
pub use classes::{CHUNK_SIZES, ITEM_OVERHEAD_BYTES, item_size, size_class};
pub use command::{Authenticate, ClockShift, Command};
pub use server::{
    Choice, Dialect, Form, Head, Limits, LongBlock, Request, Sink, Step, encode, put_uri_encoded,
};
