//! The server's side of memcached's binary protocol, by bytes: what goes in and what must come out.
//!
//! As with the text dialect, every exchange is run whole and one byte at a time, and both must agree.

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
