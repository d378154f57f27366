//! The load generator and the trace replay of `todana bench`. The command line names the servers and logs in; this crate
//! makes the load, measures it and prints the results.
//!
//! ```text
//! load       its options, and its rounds for one server or two
//! workload   which keys, values and operations, from a seed
//! embedded   the same work on a database on disk, without a server
//! driver     threads with a readiness loop each, connections with a pipeline each
//! process    what the server process costs: CPU time, resident memory
//! report     numbers for people and programs
//! chart      curves and bars as SVG
//! plot       the picture of a run
//! trace      recorded requests through the engine itself, beside reference caches
//! replay     the same requests on a live server
//! memory     servers that it starts itself, and their memory per record
//! ```
//!
//! Not here: what a word of the command line names, and exit codes.
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
mod replay;
mod report;
#[cfg(test)]
mod toy_server;
mod trace;
mod workload;

pub use driver::Target;
pub use error::BenchError;
pub use load::LoadOptions;
pub use memory::{MEMORY_AFTER_HELP, MemoryOptions};
pub use replay::ReplayOptions;
pub use trace::{Requests, TRACE_AFTER_HELP, TraceOptions};
pub use workload::Workload;
