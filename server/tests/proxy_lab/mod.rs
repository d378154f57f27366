//! Fake memcached servers with faults, and clients that compare each reply with the replies that
//! the servers could have sent directly.
//!
//! ```text
//! fake_request   the bytes of a request, divided into words and a value
//! fake_store     the records of a fake server, and its replies
//! fake_server    a listener whose connections delay, cut and falsify replies
//! key_model      the state of a key, as its only client knows it
//! real_server    a memcached that is killed, stopped and started again
//! text_client    a client with text and meta commands
//! binary_client  a client with the binary protocol
//! ```
//!
//! Each key belongs to one client, and each piece of a value names its key and a number that no
//! other piece of this key has. So a reply that belongs to another request is noticed.

// Each test file uses a part of this module.
#![allow(dead_code)]

pub(crate) mod binary_client;
pub(crate) mod fake_request;
pub(crate) mod fake_server;
pub(crate) mod fake_store;
pub(crate) mod key_model;
pub(crate) mod real_server;
pub(crate) mod text_client;
