//! memcached's text and meta dialects, server side and client side.

mod classes;
pub mod client;
mod server;

pub use classes::{CHUNK_SIZES, ITEM_OVERHEAD_BYTES, item_size, size_class};
pub use server::{Dialect, Form, Limits, Request, Sink, Step, encode};
