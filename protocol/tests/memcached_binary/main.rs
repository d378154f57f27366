//! Tests the server side of memcached's binary protocol byte by byte.
//!
//! As for the text dialect, every exchange is run in one piece and byte by byte, and both must
//! agree.

#[path = "../memcached_server/exchange.rs"]
mod exchange;
mod packet;

mod choice;
mod commands;
mod limits;
mod replies;
mod sasl;
mod shapes;
mod splits;
