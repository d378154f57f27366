//! The server's side of memcached's text and meta dialects, by bytes: what goes in and what must come out.
//!
//! Every exchange in these tests is run whole, one byte at a time, and cut in other ways; all must agree.

mod exchange;

mod framing;
mod limits;
mod login;
mod meta;
mod numbers;
mod replies;
mod splits;
mod text;
