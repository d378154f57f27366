//! A database on a cluster of Apache Cassandra or ScyllaDB: executes operations on records there.
//!
//! ```text
//! RemoteDatabase  the handle: submits an operation, whose reply is passed to a callback
//! near_cache      recently read records, in memory, in front of the cluster
//! turn_queue      the operations that wait for a task, and the tasks that wait for operations
//! key_queue       the operations that wait for their turn on the same key
//! record_change   operations that read a record, compute the change, and store it conditionally
//! cluster         the session of the driver: statements, time limits, outcomes
//! schema          the tables of the keyspace
//! row, token      a record as a row, and the token that identifies each attempt to write it
//! scan            all records, or those of a range, page by page
//! ```
//!
//! This is the only crate that knows Tokio, on threads of its own. docs/cassandra.md states what is
//! promised for each operation. Invariants: rows are written by `UPDATE` and never by `INSERT`,
//! whose row marker would outlive the time to live; each attempt to write has a token of its own;
//! an attempt whose outcome is unknown is settled by a serial read, or reported as unknown.
#![forbid(unsafe_code)]

mod cluster;
mod database;
mod key_queue;
mod near_cache;
mod outcome;
mod record_change;
mod row;
mod scan;
mod schema;
mod token;
mod turn_queue;

pub use database::{RemoteDatabase, ReplyCallback};
