//! Implements message queues for memcached's clients of the plug-in (`opts=q`).
//!
//! ```text
//! set NAME     stores the record `NAME MILLISECONDS SEQUENCE`, and wakes the first waiting consumer
//! get NAME     moves the first record whose key begins with `NAME ` from the database to the
//!              connection, and sends it; if there is none, the connection waits with a ticket of
//!              `signals`
//! delete NAME  deletes the first message of the queue that the connection has taken
//! a close      stores the other taken messages again under their keys, and wakes waiting consumers
//! ```
//!
//! Invariant: a message is in the database or with one connection until it is deleted or expires.
//! Waiting connections check again each second, as in Kyoto Tycoon, so that they find messages that
//! clients have stored through other protocols. Not here: persistence of taken messages. If the
//! process is killed, they are lost, as in Kyoto Tycoon.

use super::call_context::{CallContext, local};
use super::plugin_flags::parts;
use super::signals::SignalPurpose;
use crate::databases::PRIMARY_DATABASE;
use crate::execution::LocalDatabase;
use crate::handle::StopStage;
use crate::options::PluginOptions;
use crate::session::NextAction;
use crate::session::pending_replies::PendingReplies;
use crate::session::wake::WakeTicket;
use crate::session::worker_context::WorkerContext;
use crate::transport::output::ConnectionOutput;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, ControlFlow};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use todana::{Records, ScanDirection};
use todana_core::Result as Outcome;
use todana_protocol::ReplySink;
use todana_protocol::memcached::plugin::{PluginDecoder, PluginRequest, put_plugin_value};

/// The time after which a waiting consumer checks its queue even if nothing has woken it.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// The memory that a message takes in addition to its key and value.
const MESSAGE_LEN: usize = 128;
/// The number of queues whose heads are kept.
const HEADS_MAX: usize = 1024;
/// The longest name of a queue whose head is kept. The limit is needed because the memory of heads
/// is not counted, and a name may be as long as a line.
const HEAD_NAME_MAX: usize = 256;
/// One more than the last sequence number.
const SEQUENCE_END: u32 = 10_000;

/// The state of a connection of the plug-in.
#[derive(Default)]
pub(crate) struct PluginSession {
    pub(super) dialect: PluginDecoder,
    /// The state of the connection as a consumer; `None` until it requests a message.
    consumer: Option<Box<QueueConsumer>>,
    /// The reply that the current request waits for.
    pub(super) pending: PendingReplies,
    /// The key of the message that is being stored.
    pub(super) message_key: Option<Vec<u8>>,
}

#[derive(Default)]
struct QueueConsumer {
    /// The messages that this connection has taken and not deleted, by key.
    taken: BTreeMap<Vec<u8>, TakenMessage>,
    /// The memory of the taken messages.
    taken_len: usize,
    /// The deadline of the current `get` line; set when the first queue of the line is read.
    until: Option<Instant>,
    /// True if the read of the current queue has been counted.
    is_counted: bool,
    wait: Option<QueueWait>,
}

struct TakenMessage {
    /// The length of the queue's name, with which the key of the message begins.
    name_len: usize,
    value: Vec<u8>,
}

struct QueueWait {
    name: Vec<u8>,
    ticket: WakeTicket,
    /// True while the connection waits and serves no further request.
    is_parked: bool,
}

impl PluginSession {
    fn wait(&self) -> Option<&QueueWait> {
        self.consumer.as_ref()?.wait.as_ref()
    }

    /// Returns the ticket of the message that the connection waits for.
    pub(super) fn parked(&self) -> Option<WakeTicket> {
        self.wait().filter(|wait| wait.is_parked).map(|wait| wait.ticket)
    }

    /// Ends the wait, so that the queue is read again. `was_called` is true if the ticket was
    /// signalled.
    pub(super) fn end_wait(&mut self, was_called: bool) {
        let Some(consumer) = self.consumer.as_mut() else { return };
        if let Some(wait) = &mut consumer.wait {
            wait.is_parked = false;
        }
        if was_called {
            consumer.wait = None;
        }
    }

    /// Returns the memory that the session keeps.
    pub(super) fn kept_len(&self) -> usize {
        let name = self.wait().map_or(0, |wait| wait.name.len());
        self.taken_len() + name
    }

    pub(super) fn taken_len(&self) -> usize {
        self.consumer.as_ref().map_or(0, |consumer| consumer.taken_len)
    }
}

/// Generates the keys of messages. Each key is greater than the previous one, even if the system
/// clock is set back.
pub(crate) struct MessageKeys {
    /// The milliseconds and the sequence number of the last key.
    last: Mutex<(u64, u32)>,
}

impl Default for MessageKeys {
    fn default() -> Self {
        // The first sequence number is 0.
        MessageKeys { last: Mutex::new((0, SEQUENCE_END - 1)) }
    }
}

impl MessageKeys {
    pub(super) fn next(&self, name: &[u8]) -> Vec<u8> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (milliseconds, number) = self.place(u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
        [name, format!(" {milliseconds:014} {number:04}").as_bytes()].concat()
    }

    fn place(&self, now: u64) -> (u64, u32) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // As in Kyoto Tycoon, the sequence does not restart with each millisecond.
        let number = (last.1 + 1) % SEQUENCE_END;
        *last = if now > last.0 { (now, number) } else { (last.0 + u64::from(number == 0), number) };
        *last
    }
}

/// The heads of queues. All messages before the head of a queue have been taken. A head saves time
/// because a tree on disk skips removed records one by one until the next checkpoint, so that
/// taking each message would take longer than the one before. 50,000 messages took half a minute of
/// CPU time without heads, and take 0.1 seconds with them.
#[derive(Default)]
pub(crate) struct QueueHeads {
    state: Mutex<QueueHeadsState>,
}

#[derive(Default)]
struct QueueHeadsState {
    version: u64,
    heads: HashMap<Vec<u8>, QueueHead>,
}

struct QueueHead {
    /// No message of the queue has a smaller key, except messages that other protocols have stored
    /// since `checked_at`.
    from: Vec<u8>,
    /// The time when the queue was last read from its start.
    checked_at: Instant,
    /// The version of the last message that was stored in this queue.
    version: u64,
}

impl QueueHeadsState {
    fn version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }
}

impl QueueHeads {
    fn state(&self) -> MutexGuard<'_, QueueHeadsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the key from which to search for the first message of a queue, and the version to
    /// pass to `advance`. Once a second, this key is the start of the queue.
    fn start(&self, name: &[u8], now: Instant) -> (Vec<u8>, u64) {
        if name.len() > HEAD_NAME_MAX {
            return (prefix(name), 0);
        }
        let mut state = self.state();
        if let Some(head) = state.heads.get_mut(name) {
            if now.saturating_duration_since(head.checked_at) < CHECK_INTERVAL {
                return (head.from.clone(), head.version);
            }
            head.checked_at = now;
            return (prefix(name), head.version);
        }
        if state.heads.len() == HEADS_MAX {
            state.heads.clear();
        }
        let version = state.version();
        state.heads.insert(name.to_vec(), QueueHead { from: prefix(name), checked_at: now, version });
        (prefix(name), version)
    }

    /// Notes that the queue has no message before this key. Has no effect if a message was stored
    /// in the queue since `version`.
    fn advance(&self, name: &[u8], version: u64, key: &[u8]) {
        if let Some(head) = self.state().heads.get_mut(name)
            && head.version == version
        {
            head.from.clear();
            head.from.extend_from_slice(key);
        }
    }

    /// Notes that a message was stored under this key.
    fn lower(&self, name: &[u8], key: &[u8]) {
        let mut state = self.state();
        let version = state.version();
        if let Some(head) = state.heads.get_mut(name) {
            head.version = version;
            if key < head.from.as_slice() {
                head.from.clear();
                head.from.extend_from_slice(key);
            }
        }
    }
}

/// The result of searching for a message.
enum FoundMessage {
    Nothing,
    Message {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    /// There is a message, but the connection may not keep more messages.
    NoRoom,
}

impl CallContext {
    /// Executes a request if it concerns a queue, otherwise returns `None`. `room` is the number of
    /// bytes that the connection may keep.
    pub(super) fn queue_request(
        &self,
        session: &mut PluginSession,
        context: &mut WorkerContext,
        port: PluginOptions,
        request: &PluginRequest<'_>,
        room: usize,
        output: &mut ConnectionOutput,
    ) -> Option<NextAction> {
        let longest = port.queue_wait_max?;
        let call_context = self;
        let counters = &call_context.shared.observation.workers[call_context.worker].plugin;
        match *request {
            PluginRequest::Get(name) => {
                let consumer = session.consumer.get_or_insert_default();
                let until = *consumer.until.get_or_insert_with(|| Instant::now() + longest);
                if !std::mem::replace(&mut consumer.is_counted, true) {
                    counters.cmd_get.add(1);
                }
                let room = room.saturating_sub(consumer.taken_len);
                let found = match call_context.take_message(context, name, room) {
                    FoundMessage::Nothing if call_context.may_wait(until) => {
                        if consumer.wait.is_some() {
                            FoundMessage::Nothing
                        } else {
                            let ticket = context.waits.ticket();
                            call_context.shared.kyoto.signals.wait(SignalPurpose::Message, name, ticket);
                            consumer.wait = Some(QueueWait { name: name.to_vec(), ticket, is_parked: false });
                            // A message may have been stored just before the ticket was registered.
                            call_context.take_message(context, name, room)
                        }
                    }
                    FoundMessage::Nothing => {
                        call_context.end_waiting(consumer);
                        counters.get_misses.add(1);
                        return Some(NextAction::Continue);
                    }
                    found => found,
                };
                match found {
                    FoundMessage::Nothing => {
                        let wait = consumer.wait.as_mut().expect("the wait was set before or just above");
                        wait.is_parked = true;
                        let ticket = wait.ticket;
                        context.waits.enter(ticket, Some(until.min(Instant::now() + CHECK_INTERVAL)));
                        return Some(NextAction::Wait);
                    }
                    FoundMessage::Message { key, value } => {
                        call_context.end_waiting(consumer);
                        counters.get_hits.add(1);
                        let (of_client, flags) = parts(port, &value);
                        put_plugin_value(name, flags, of_client, output);
                        consumer.keep(key, TakenMessage { name_len: name.len(), value });
                    }
                    FoundMessage::NoRoom => {
                        tracing::warn!(
                            "queue: a client is disconnected, because it keeps more messages than memory allows"
                        );
                        return Some(NextAction::Close);
                    }
                }
            }
            PluginRequest::GetsEnd => {
                let consumer = session.consumer.get_or_insert_default();
                let has_keys = consumer.until.take().is_some();
                output.put(if has_keys { b"END\r\n" } else { &b"CLIENT_ERROR invalid parameters\r\n"[..] });
            }
            PluginRequest::Delete { key: name, is_silent } => {
                counters.cmd_delete.add(1);
                let consumer = session.consumer.as_deref_mut();
                let is_done = consumer.is_some_and(|consumer| consumer.delete_taken(name));
                let (counter, text) = match is_done {
                    true => (&counters.delete_hits, &b"DELETED\r\n"[..]),
                    false => (&counters.delete_misses, &b"NOT_FOUND\r\n"[..]),
                };
                counter.add(1);
                if !is_silent {
                    output.put(text);
                }
            }
            _ => return None,
        }
        Some(NextAction::Continue)
    }
}

impl PluginSession {
    /// Stores the messages that the connection has taken and not deleted in the database again,
    /// when the connection closes, so that other connections can take them.
    pub(super) fn return_messages(&mut self, context: &mut WorkerContext) {
        let Some(mut consumer) = self.consumer.take() else { return };
        if let Some(wait) = &consumer.wait {
            context.waits.leave(wait.ticket);
        }
        let call_context = CallContext::new(context);
        call_context.end_waiting(&mut consumer);
        for (key, TakenMessage { name_len, value }) in consumer.taken {
            // Queues need a database of this process, because their first record is found by the
            // order of keys.
            let Ok(queues) = local(context, PRIMARY_DATABASE) else { return };
            if let Err(error) = Records::set(queues, &key, &value) {
                tracing::error!("queue: an unacknowledged message is lost: {error}");
            }
            call_context.note_message(&key[..name_len], &key);
        }
    }
}

impl QueueConsumer {
    fn keep(&mut self, key: Vec<u8>, taken: TakenMessage) {
        let len = |key: &[u8], taken: &TakenMessage| MESSAGE_LEN + key.len() + taken.value.len();
        self.taken_len += len(&key, &taken);
        let old = self.taken.get(&key).map_or(0, |old| len(&key, old));
        // The connection had already taken a message with this key: another client has stored a
        // record under the same key meanwhile.
        self.taken_len -= old;
        self.taken.insert(key, taken);
    }

    /// Deletes the first message that was taken from a queue. Returns false if there is none.
    fn delete_taken(&mut self, name: &[u8]) -> bool {
        let prefix = prefix(name);
        let from = (Bound::Included(prefix.as_slice()), Bound::Unbounded);
        let first = self.taken.range::<[u8], _>(from).next();
        let Some(key) = first.map(|(key, _)| key).filter(|key| key.starts_with(&prefix)).cloned() else {
            return false;
        };
        if let Some(taken) = self.taken.remove(&key) {
            self.taken_len -= MESSAGE_LEN + key.len() + taken.value.len();
        }
        true
    }
}

impl CallContext {
    /// Notes a new message and wakes a consumer.
    pub(super) fn note_message(&self, name: &[u8], key: &[u8]) {
        self.shared.kyoto.queue_heads.lower(name, key);
        self.call_consumer(name);
    }

    /// Wakes the connection that has waited longest for a message of this queue.
    fn call_consumer(&self, name: &[u8]) {
        self.shared.kyoto.signals.signal(SignalPurpose::Message, name, false);
    }

    fn may_wait(&self, until: Instant) -> bool {
        self.shared.lifecycle.stopping() == StopStage::No && Instant::now() < until
    }

    /// Ends the wait for a message that has been found or is no longer needed.
    fn end_waiting(&self, consumer: &mut QueueConsumer) {
        consumer.is_counted = false;
        if let Some(QueueWait { name, ticket, .. }) = consumer.wait.take()
            && !self.shared.kyoto.signals.forget(SignalPurpose::Message, &name, ticket)
        {
            // The wake-up was for this connection, which does not need it. Another consumer of the
            // queue may use it.
            self.call_consumer(&name);
        }
    }

    /// Removes the first message of a queue from the database and returns it.
    fn take_message(&self, context: &WorkerContext, name: &[u8], room: usize) -> FoundMessage {
        let Ok(queues) = local(context, PRIMARY_DATABASE) else { return FoundMessage::Nothing };
        take(&self.shared.kyoto.queue_heads, queues, name, room).unwrap_or_else(|error| {
            tracing::warn!("queue: cannot read a message: {error}");
            FoundMessage::Nothing
        })
    }
}

fn take(heads: &QueueHeads, queues: &LocalDatabase, name: &[u8], room: usize) -> Outcome<FoundMessage> {
    let prefix = prefix(name);
    let (mut from, version) = heads.start(name, Instant::now());
    loop {
        let mut first = None;
        queues.walk(ScanDirection::Up, Bound::Included(&from), &mut |key, record| {
            if key.starts_with(&prefix) {
                first = Some((key.to_vec(), record.value.len()));
            }
            ControlFlow::Break(())
        })?;
        let Some((key, value_len)) = first else {
            // This key is after all keys that begin with the name and a blank.
            heads.advance(name, version, &[name, b"!"].concat());
            return Ok(FoundMessage::Nothing);
        };
        if MESSAGE_LEN + key.len() + value_len > room {
            return Ok(FoundMessage::NoRoom);
        }
        if let Some(value) = queues.seize(&key)? {
            heads.advance(name, version, &key);
            return Ok(FoundMessage::Message { key, value });
        }
        // Another connection has taken this message meanwhile.
        from = key;
    }
}

/// Returns the prefix of the keys of a queue's messages.
fn prefix(name: &[u8]) -> Vec<u8> {
    [name, b" "].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_after_the_previous_one() {
        let keys = MessageKeys::default();
        let (mut last, mut seen) = ((0, 0), Vec::new());
        // The clock stops until all sequence numbers are used, goes back, and advances again.
        for now in std::iter::repeat_n(5, 25_000).chain([3, 4]).chain([9, 9, 10]) {
            let place = keys.place(now);
            assert!(place > last, "{place:?} after {last:?}");
            last = place;
            seen.push(place);
        }
        assert_eq!(seen[0], (5, 0));
        assert_eq!((seen[9_999], seen[10_000]), ((5, 9_999), (6, 0)));
        assert_eq!(last.0, 10);
        let key = keys.next(b"jobs");
        let words: Vec<&[u8]> = key.split(|&byte| byte == b' ').collect();
        assert_eq!(words.iter().map(|word| word.len()).collect::<Vec<_>>(), [4, 14, 4]);
    }

    #[test]
    fn queue_is_read_from_its_head() {
        let (heads, now) = (QueueHeads::default(), Instant::now());
        let from = |now| heads.start(b"q", now).0;
        let (start, version) = heads.start(b"q", now);
        assert_eq!(start, b"q ");
        heads.advance(b"q", version, b"q 5");
        assert_eq!((from(now), from(now + CHECK_INTERVAL / 2)), (b"q 5".to_vec(), b"q 5".to_vec()));
        assert_eq!(
            (from(now + CHECK_INTERVAL), from(now + CHECK_INTERVAL)),
            (b"q ".to_vec(), b"q 5".to_vec())
        );
        // A message that is stored before the head is found, even if a reader has searched the
        // queue just before.
        heads.lower(b"q", b"q 3");
        heads.advance(b"q", version, b"q 7");
        assert_eq!(from(now + CHECK_INTERVAL), b"q 3");
        heads.lower(b"q", b"q 9");
        assert_eq!(from(now + CHECK_INTERVAL), b"q 3");
        // The number of heads is limited, and the version of a dropped head is no longer valid.
        let (_, version) = heads.start(b"q", now + CHECK_INTERVAL);
        for number in 0..HEADS_MAX {
            heads.start(number.to_string().as_bytes(), now);
        }
        assert!(heads.state().heads.len() <= HEADS_MAX);
        assert_eq!(from(now), b"q ");
        heads.advance(b"q", version, b"q 9");
        assert_eq!(from(now), b"q ");
    }

    #[test]
    fn queue_with_long_name_keeps_no_head() {
        let (heads, now) = (QueueHeads::default(), Instant::now());
        for (len, is_kept) in [(HEAD_NAME_MAX, true), (HEAD_NAME_MAX + 1, false)] {
            let name = vec![b'q'; len];
            let further = [&name[..], b" 5"].concat();
            let (from, version) = heads.start(&name, now);
            assert_eq!(from, prefix(&name));
            heads.advance(&name, version, &further);
            heads.lower(&name, &further);
            let expected = if is_kept { further } else { prefix(&name) };
            assert_eq!(heads.start(&name, now).0, expected);
        }
        assert_eq!(heads.state().heads.len(), 1);
    }

    #[test]
    fn taken_messages_are_counted_until_deleted() {
        let mut consumer = QueueConsumer::default();
        let taken = |len| TakenMessage { name_len: 1, value: vec![0; len] };
        consumer.keep(b"q 2".to_vec(), taken(10));
        consumer.keep(b"q 1".to_vec(), taken(100));
        consumer.keep(b"q 2".to_vec(), taken(20));
        assert_eq!(consumer.taken_len, 2 * MESSAGE_LEN + 6 + 120);
        assert!(
            !consumer.delete_taken(b"") && !consumer.delete_taken(b"p") && !consumer.delete_taken(b"q 2")
        );
        assert!(consumer.delete_taken(b"q"));
        assert_eq!(consumer.taken.keys().collect::<Vec<_>>(), [b"q 2"]);
        assert!(consumer.delete_taken(b"q") && !consumer.delete_taken(b"q"));
        assert_eq!(consumer.taken_len, 0);
    }
}
