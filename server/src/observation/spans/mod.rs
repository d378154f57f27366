//! Spans of OpenTelemetry: one for each request whose opaque token names a trace
//! (`todana_protocol::trace_context`). Without `--trace-to`, there are none.
//!
//! ```text
//! open_spans   the spans of one worker, until their replies have been sent
//! exporter     the queue of ended spans, and the thread that sends them to the collector
//! collector    the address of the collector, and one request to it
//! otlp         spans as the body of that request: OTLP in JSON
//! ```
//!
//! A span begins when the server executes a complete request. It ends when the socket has accepted
//! the reply, so it includes waiting for the disk, for replicas and for a cluster. The clock is
//! exact, and is read for traced requests only.
//!
//! Invariants: no worker waits for the collector, and the queue is bounded; spans that do not fit
//! are counted. A span contains a key only if the options say so, and never a value.

pub(crate) mod collector;
pub(crate) mod exporter;
pub(crate) mod open_spans;
mod otlp;

use crate::observation::connection_table::ConnectionAddress;
use std::time::Duration;
use todana_protocol::trace_context::TraceContext;

/// A request that has ended, with its trace.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) trace: TraceContext,
    pub(crate) span_id: [u8; 8],
    /// The name of the command.
    pub(crate) command: &'static str,
    /// The number of the database.
    pub(crate) database: usize,
    /// The key, if spans contain keys.
    pub(crate) key: Option<Vec<u8>>,
    /// The time of the start since 1970.
    pub(crate) started_at: Duration,
    pub(crate) time: Duration,
    /// The first line of the reply. It is empty if the client wanted none.
    pub(crate) reply: String,
    /// The reason why the reply did not arrive.
    pub(crate) failure: Option<&'static str>,
    pub(crate) peer: ConnectionAddress,
    pub(crate) local: ConnectionAddress,
}
