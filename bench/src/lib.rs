//! The load generator and the trace replay of `todana bench`. The command line resolves server
//! names and logins. This crate generates the load, measures it and prints the results.
//!
//! ```text
//! load       the options, and the rounds for one server or two
//! record_shape   records that resemble the contents of caches
//! workload   keys, values and operations, generated from a seed
//! embedded   the same load on a database on disk, without a server
//! driver     threads with a readiness loop each, connections with a pipeline each
//! process    CPU time and resident memory of the server process
//! report     results as a table and as JSON
//! chart      curves and bars as SVG
//! plot       the picture of a run
//! trace      recorded requests to the engine itself, compared with reference caches
//! replay     the same requests to a live server
//! memory     memory per record of servers that the benchmark starts
//! ```
//!
//! Not here: the meaning of command-line words, and exit codes.
#![forbid(unsafe_code)]

mod chart;
mod driver;
mod embedded;
mod error;
mod load;
mod memory;
mod plot;
mod process;
mod progress;
mod record_shape;
mod replay;
mod report;
#[cfg(test)]
mod toy_server;
mod trace;
mod workload;

pub use driver::LoadTarget;
pub use error::BenchError;
pub use load::LoadOptions;
pub use memory::{MEMORY_AFTER_HELP, MemoryOptions};
pub use record_shape::RecordShape;
pub use replay::ReplayOptions;
pub use trace::{TRACE_AFTER_HELP, TraceOptions, TraceRequests};
pub use workload::Workload;
