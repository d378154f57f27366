//! Keeps the spans of one worker, until the replies to their requests have been sent.

use super::Span;
use super::exporter::SpanExporter;
use crate::observation::connection_table::{ConnectionAddress, ConnectionInfo};
use crate::process::unix_time;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};
use todana_protocol::trace_context::TraceContext;

/// The number of bytes of a key, and of a line of a reply, that a span contains.
const SHOWN_MAX: usize = 250;

/// The spans that have begun, by connection.
pub(crate) struct OpenSpans {
    exporter: Arc<SpanExporter>,
    /// The spans of each connection, in the order of its requests.
    spans: HashMap<usize, Vec<OpenSpan>>,
    /// The source of IDs, which differs between workers and processes.
    ids: RandomState,
    begun: u64,
}

struct OpenSpan {
    began: Instant,
    /// True once the reply has been written to the output of the connection.
    is_answered: bool,
    span: Span,
}

/// A request whose span begins.
pub(crate) struct TracedRequest<'r> {
    pub(crate) trace: TraceContext,
    pub(crate) command: &'static str,
    pub(crate) database: usize,
    pub(crate) key: Option<&'r [u8]>,
}

impl OpenSpans {
    pub(crate) fn new(exporter: Arc<SpanExporter>) -> OpenSpans {
        OpenSpans { exporter, spans: HashMap::new(), ids: RandomState::new(), begun: 0 }
    }

    /// Begins the span of a request.
    #[cold]
    pub(crate) fn begin(&mut self, connection: usize, request: &TracedRequest<'_>) {
        self.begun += 1;
        let span_id = self.ids.hash_one(self.begun).max(1).to_be_bytes();
        let key = request.key.filter(|_| self.exporter.has_keys());
        let span = Span {
            trace: request.trace,
            span_id,
            command: request.command,
            database: request.database,
            key: key.map(|key| key[..key.len().min(SHOWN_MAX)].to_vec()),
            started_at: unix_time(),
            time: Duration::ZERO,
            reply: String::new(),
            failure: None,
            peer: ConnectionAddress::Unknown,
            local: ConnectionAddress::Unknown,
        };
        let open = OpenSpan { began: Instant::now(), is_answered: false, span };
        self.spans.entry(connection).or_default().push(open);
    }

    /// Begins the span of the next request of a connection, unless it has begun: the request waits
    /// with its connection, and may be executed again, or was begun before its turn.
    pub(crate) fn resume(&mut self, connection: usize, request: &TracedRequest<'_>) {
        if self.first_unanswered(connection).is_none() {
            self.begin(connection, request);
        }
    }

    /// Notes the reply to the first request of a connection that had none.
    pub(crate) fn note_reply(&mut self, connection: usize, reply: &[u8]) {
        if let Some(open) = self.first_unanswered(connection) {
            open.is_answered = true;
            let line = reply.split(|&byte| byte == b'\r').next().unwrap_or_default();
            open.span.reply = String::from_utf8_lossy(&line[..line.len().min(SHOWN_MAX)]).into();
        }
    }

    fn first_unanswered(&mut self, connection: usize) -> Option<&mut OpenSpan> {
        self.spans.get_mut(&connection)?.iter_mut().find(|open| !open.is_answered)
    }

    /// Notes that the replies of a connection are replaced by an error.
    pub(crate) fn fail(&mut self, connection: usize, failure: &'static str) {
        self.spans.get_mut(&connection).into_iter().flatten().for_each(|open| {
            open.span.failure = Some(failure);
            open.is_answered = true;
        });
    }

    /// Returns true if no span is open.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Ends the spans of a connection whose replies have been sent.
    #[cold]
    pub(crate) fn end_answered(&mut self, connection: usize, info: &ConnectionInfo) {
        let Some(mut spans) = self.spans.remove(&connection) else { return };
        let later = spans.split_off(spans.iter().take_while(|open| open.is_answered).count());
        spans.into_iter().for_each(|open| self.end(open, info));
        if !later.is_empty() {
            self.spans.insert(connection, later);
        }
    }

    /// Ends all spans of a connection that has closed. Replies that were not sent are failures.
    #[cold]
    pub(crate) fn end_closed(&mut self, connection: usize, info: &ConnectionInfo) {
        for mut open in self.spans.remove(&connection).into_iter().flatten() {
            open.span.failure = open.span.failure.or(Some("connection_closed"));
            self.end(open, info);
        }
    }

    fn end(&self, open: OpenSpan, info: &ConnectionInfo) {
        let (peer, local) = (info.peer.clone(), info.local.clone());
        self.exporter.add(Span { time: open.began.elapsed(), peer, local, ..open.span });
    }
}
