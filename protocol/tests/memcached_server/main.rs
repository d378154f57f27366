//! Tests the server side of memcached's text and meta dialects byte by byte.
//!
//! Every exchange in these tests is run in one piece, byte by byte, and in other splits; all must
//! agree.

mod exchange;

mod framing;
mod limits;
mod login;
mod meta;
mod numbers;
mod replies;
mod splits;
mod text;
