//! Sends ended spans to a collector: a bounded queue, and a thread that empties it.
//!
//! The thread starts with the first span. While the collector is unavailable, it tries again for a
//! minute with the same spans, then drops them.

use super::Span;
use super::collector::SendFailure;
use super::otlp;
use crate::options::TraceOptions;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The maximum number of spans that wait, as in OpenTelemetry's libraries. Others are dropped.
const QUEUE_MAX: usize = 2048;
/// The maximum number of spans of one request.
const BATCH_MAX: usize = 512;
/// The time for which a span waits for others.
const BATCH_TIME: Duration = Duration::from_secs(1);
/// The first pause after a failure. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The time after which spans are dropped.
const GIVE_UP: Duration = Duration::from_secs(60);
/// The maximum time for which the server waits at its end for the last spans.
const FINISH_WAIT_MAX: Duration = Duration::from_secs(1);

/// The exporter. Its thread shares it.
pub(crate) struct SpanExporter {
    options: TraceOptions,
    queue: Mutex<SpanQueue>,
    /// Signals every change of the queue.
    changed: Condvar,
    sent: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Default)]
struct SpanQueue {
    spans: Vec<Span>,
    has_thread: bool,
    is_sending: bool,
    is_ending: bool,
}

impl SpanExporter {
    pub(crate) fn new(options: TraceOptions) -> SpanExporter {
        SpanExporter {
            options,
            queue: Mutex::default(),
            changed: Condvar::new(),
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Returns true if spans contain keys.
    pub(crate) fn has_keys(&self) -> bool {
        self.options.with_keys
    }

    /// Returns the number of spans that the collector has accepted.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns the number of spans that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Adds a span to the queue.
    pub(crate) fn add(self: &Arc<Self>, span: Span) {
        let mut queue = self.queue();
        if !queue.has_thread {
            let exporter = Arc::clone(self);
            let thread = std::thread::Builder::new().name("spans".into());
            // If no thread can be created, the next span tries again.
            queue.has_thread = thread.spawn(move || exporter.run()).is_ok();
        }
        if queue.spans.len() >= QUEUE_MAX {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.spans.push(span);
        if [1, BATCH_MAX].contains(&queue.spans.len()) {
            self.changed.notify_all();
        }
    }

    /// Waits until all spans are sent, for at most [`FINISH_WAIT_MAX`], and ends the thread.
    pub(crate) fn finish(&self) {
        self.queue().is_ending = true;
        self.changed.notify_all();
        drop(self.wait(FINISH_WAIT_MAX, |queue| !queue.spans.is_empty() || queue.is_sending));
    }

    fn queue(&self) -> MutexGuard<'_, SpanQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while a condition holds, for at most a time.
    fn wait(
        &self,
        time: Duration,
        condition: impl FnMut(&mut SpanQueue) -> bool,
    ) -> MutexGuard<'_, SpanQueue> {
        self.changed
            .wait_timeout_while(self.queue(), time, condition)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    fn run(&self) {
        while let Some(batch) = self.next_batch() {
            let body = otlp::body(&batch);
            let counter = if self.deliver(&body) { &self.sent } else { &self.dropped };
            counter.fetch_add(batch.len() as u64, Ordering::Relaxed);
            self.queue().is_sending = false;
            self.changed.notify_all();
        }
    }

    /// Returns the next spans; `None` at the end.
    fn next_batch(&self) -> Option<Vec<Span>> {
        let is_idle = |queue: &mut SpanQueue| queue.spans.is_empty() && !queue.is_ending;
        drop(self.changed.wait_while(self.queue(), is_idle));
        let mut queue = self.wait(BATCH_TIME, |queue| queue.spans.len() < BATCH_MAX && !queue.is_ending);
        let len = queue.spans.len().min(BATCH_MAX);
        queue.is_sending = len > 0;
        queue.has_thread = len > 0;
        (len > 0).then(|| queue.spans.drain(..len).collect())
    }

    /// Sends a request, and repeats it while the collector is unavailable. Returns false if the
    /// collector has not accepted it.
    fn deliver(&self, body: &[u8]) -> bool {
        let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            let collector = &self.options.collector;
            let Err(failure) = collector.send(body) else { return true };
            if pause == FIRST_PAUSE {
                tracing::warn!("traces: {collector}: {failure}");
            }
            let may_recover = matches!(failure, SendFailure::Unavailable(_)) && began.elapsed() < GIVE_UP;
            if !may_recover || self.wait(pause, |queue| !queue.is_ending).is_ending {
                return false;
            }
            pause *= 2;
        }
    }
}
