//! A worker: one readiness loop that owns its connections.

use crate::databases::pending_commits::PendingCommits;
use crate::execution::Executor;
use crate::handle::Stopping;
use crate::session::context::WorkerContext;
use crate::session::dispatch::DialectWorkers;
use crate::session::wake::Wake;
use crate::session::{AnySession, Next, SessionTurn};
use crate::shared::Shared;
use crate::transport::connection::{CloseCause, Connection, HeldMemory, ReadOutcome};
use crate::transport::idle::IdleWatch;
use crate::transport::listener::NewConnection;
use crate::transport::output::Output;
use mio::event::Event;
use mio::{Events, Poll, Token, Waker};
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use todana::{Clock, CommitPoint, Database, Durability};

/// The token of the worker's own wake-up.
pub(crate) const WAKE: Token = Token(usize::MAX);
/// The length of one read: more than a socket usually holds, and small enough to stay in the cache.
const BUFFER: usize = 64 << 10;
/// A larger reply buffer is freed after use.
const OUTPUT_KEPT: usize = 64 << 10;
/// Changed databases are noted in 64 bits.
const LAST_BIT: usize = 63;
/// How long a stopping worker waits until its peers have taken their replies.
const DRAIN: Duration = Duration::from_secs(5);

pub(crate) struct Worker {
    shared: Arc<Shared>,
    number: usize,
    poll: Poll,
    arrivals: Receiver<NewConnection>,
    connections: Slab<Connection>,
    /// Connections that have more to do without waiting for their socket.
    ready: VecDeque<usize>,
    context: WorkerContext,
    dialects: DialectWorkers,
    /// Connections whose replies wait for the update log.
    parked: Vec<usize>,
    idle: Option<IdleWatch>,
    /// The second of the last wake-up since the start of the server; kept if idle time is limited.
    now_s: u64,
    buffer: Vec<u8>,
    output: Output,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        number: usize,
        arrivals: Receiver<NewConnection>,
    ) -> io::Result<(Worker, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        shared.wake_queues.set_waker(number, Arc::clone(&waker));
        let context = WorkerContext::new(&shared, number);
        let dialects = DialectWorkers::new(&context);
        let idle = IdleWatch::new(shared.options.limits.idle_timeout_s);
        let worker = Worker {
            shared,
            number,
            poll,
            arrivals,
            connections: Slab::new(),
            ready: VecDeque::new(),
            context,
            dialects,
            parked: Vec::new(),
            idle,
            now_s: 0,
            buffer: vec![0; BUFFER],
            output: Output::default(),
        };
        Ok((worker, waker))
    }

    /// Runs until the server stops.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut deadline = None;
        loop {
            let timeout = if !self.ready.is_empty() {
                Some(Duration::ZERO)
            } else {
                deadline.map(|deadline: Instant| deadline.saturating_duration_since(Instant::now()))
            };
            let timeout = self.until_waits_end(self.until_idle_look(timeout));
            if let Err(error) = self.poll.poll(&mut events, timeout)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "worker {}: cannot wait for events", self.number);
                self.shared.lifecycle.handle.stop();
                return;
            }
            self.shared.clock.tick();
            if self.idle.is_some() {
                self.now_s = self.shared.observation.started.elapsed().as_secs();
            }
            for event in &events {
                match event.token() {
                    WAKE => {
                        self.register_arrivals();
                        self.wake_ready();
                        self.resume_durable();
                        self.cut_off_stalled();
                    }
                    Token(index) => self.on_event(index, event),
                }
            }
            for _ in 0..self.ready.len() {
                if let Some(index) = self.ready.pop_front()
                    && let Some(connection) = self.connections.get_mut(index)
                    // A connection that replaced a closed one has not asked for a turn.
                    && std::mem::take(&mut connection.queued)
                {
                    self.serve(index);
                }
            }
            self.wake_timed_out();
            // After the events, so that a connection whose request has just arrived stays open.
            self.close_idle();
            match self.shared.lifecycle.stopping() {
                Stopping::No => {}
                Stopping::Drain => {
                    let first = deadline.is_none();
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + DRAIN);
                    self.drain(first);
                    if self.connections.is_empty() || Instant::now() >= deadline {
                        break;
                    }
                }
                Stopping::AtOnce => break,
            }
        }
        let left: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
        left.into_iter().for_each(|index| self.close(index));
    }

    /// Registers new connections.
    fn register_arrivals(&mut self) {
        while let Ok(NewConnection { mut stream, choice }) = self.arrivals.try_recv() {
            let entry = self.connections.vacant_entry();
            let token = Token(entry.key());
            let info =
                self.shared.observation.connection_table.insert(&mut stream, self.shared.clock.now().0);
            let session = AnySession::new(&self.shared, choice);
            let mut connection = Connection::new(stream, info, session);
            connection.active_s = self.now_s;
            if let Err(error) = connection.stream.register(self.poll.registry(), token) {
                tracing::warn!(%error, "new connection closed: cannot be watched for events");
                self.shared.observation.connection_table.remove(&connection.info);
                self.shared.observation.connection_closed();
                continue;
            }
            tracing::debug!(worker = self.number, peer = %connection.info.peer, "connection opened");
            self.shared.observation.observers.send_opened(&connection.info);
            if self.shared.observation.logs_requests() {
                let (descriptor, choice) = (connection.info.descriptor, self.shared.choice(choice));
                self.shared.observation.log_request(|entry| entry.opened(descriptor, choice));
            }
            entry.insert(connection);
        }
    }

    /// Returns the time to wait for events, so that idle connections are found in time.
    fn until_idle_look(&self, timeout: Option<Duration>) -> Option<Duration> {
        let Some(idle) = &self.idle else { return timeout };
        if self.connections.is_empty() {
            return timeout;
        }
        let wait = idle.wait(self.shared.observation.started.elapsed());
        Some(timeout.map_or(wait, |timeout| timeout.min(wait)))
    }

    /// Closes connections that take nothing of a long answer while others wait for its memory.
    fn cut_off_stalled(&mut self) {
        let Some(stall) = self.shared.stall_limit() else {
            return;
        };
        let is_stalled = |connection: &Connection| {
            let pending = connection.pending.as_ref().filter(|_| !connection.durability.is_parked);
            pending.is_some_and(|pending| pending.is_stalled(stall))
        };
        let stalled: Vec<usize> = self
            .connections
            .iter()
            .filter_map(|(index, connection)| is_stalled(connection).then_some(index))
            .collect();
        for index in stalled {
            // A socket reports free space only after a large part of its buffer has left, but
            // accepts bytes earlier.
            if self.connections.contains(index) {
                self.serve(index);
            }
            if !self.connections.get(index).is_some_and(is_stalled) {
                continue;
            }
            tracing::warn!("stalled reader disconnected: others wait for the memory of its long answer");
            self.shared.observation.workers[self.number].readers_cut_off.add(1);
            self.close(index);
        }
    }

    /// Closes idle connections without a message, if it is time to check.
    fn close_idle(&mut self) {
        let only_stalled = self.shared.options.limits.idle_between_requests;
        let Some(idle) = &mut self.idle else { return };
        let now = self.shared.observation.started.elapsed();
        if !idle.is_due(now) {
            return;
        }
        let is_over = |connection: &Connection| {
            let is_meant = !only_stalled || connection.is_amid_request();
            is_meant && connection.is_idle() && idle.is_over(connection.active_s, now)
        };
        let over: Vec<usize> = self
            .connections
            .iter()
            .filter_map(|(index, connection)| is_over(connection).then_some(index))
            .collect();
        for index in over {
            self.connections[index].close_cause = Some(CloseCause::Idle);
            self.shared.observation.workers[self.number].idle_kicks.add(1);
            self.close(index);
        }
    }

    /// Wakes the sessions whose tickets are ready.
    fn wake_ready(&mut self) {
        for (ticket, index) in self.context.waits.take_ready() {
            self.wake(index, Wake::Ready(ticket));
        }
    }

    /// Wakes the sessions that have waited long enough.
    fn wake_timed_out(&mut self) {
        if self.context.waits.first_deadline().is_some() {
            for (ticket, index) in self.context.waits.take_timed_out(Instant::now()) {
                self.wake(index, Wake::TimedOut(ticket));
            }
        }
    }

    /// Passes a wake-up to a session, and gives its connection a turn if it wants one and has none
    /// yet.
    fn wake(&mut self, index: usize, wake: Wake) {
        let connection = self.connections.get_mut(index);
        let is_wanted = connection.is_some_and(|connection| connection.session.wake(wake, &mut self.context));
        if is_wanted && !self.connections[index].queued {
            self.serve(index);
        } else if let (false, Wake::Ready(ticket)) = (is_wanted, wake) {
            // Another event served the session in between. It no longer waits with this ticket.
            self.context.waits.leave(ticket);
        }
    }

    /// Serves the connections whose replies waited for the update log.
    fn resume_durable(&mut self) {
        for index in std::mem::take(&mut self.parked) {
            if let Some(connection) = self.connections.get_mut(index)
                && std::mem::take(&mut connection.durability.is_parked)
            {
                self.serve(index);
            }
        }
    }

    /// Returns the durability of each changed database, and the point that it has to reach.
    fn awaited<'w>(
        &'w self,
        pending_commits: &'w PendingCommits,
    ) -> impl Iterator<Item = (Durability<'w>, CommitPoint)> {
        let databases = &self.shared.databases;
        pending_commits
            .iter()
            .filter_map(|(number, point)| Some((databases[number].database.durability()?, point)))
    }

    /// Returns true if the pending replies may be sent because the writes that they acknowledge are
    /// durable. Otherwise parks the connection until the log advances. If the log has failed,
    /// replaces the replies by an error.
    fn has_durable_changes(&mut self, index: usize) -> bool {
        let pending_commits = &self.connections[index].durability.pending_commits;
        if pending_commits.is_empty() {
            return true;
        }
        let not_durable =
            || self.awaited(pending_commits).filter(|&(durability, point)| !durability.is_durable(point));
        let has_durable_changes = not_durable().next().is_none() || {
            self.shared.wake_queues.awaits_log(self.number);
            // The log may have advanced just before.
            not_durable().next().is_none()
        };
        if has_durable_changes {
            self.connections[index].durability.pending_commits = PendingCommits::default();
            return true;
        }
        let refusal =
            not_durable().map(|(durability, _)| durability).find(|durability| !durability.takes_changes());
        if let Some(refusal) = refusal.map(Durability::refusal) {
            self.output.clear(OUTPUT_KEPT);
            self.connections[index].refuse_changes(refusal);
        } else {
            self.park(index);
            return false;
        }
        true
    }

    /// Returns true if a connection that has sent no reply to its changes may make more. It may not
    /// while too much waits in memory for the log, because nothing else would slow it down.
    /// Otherwise parks it.
    fn may_go_on(&mut self, index: usize) -> bool {
        let pending_commits = &self.connections[index].durability.pending_commits;
        // A log that cannot be written receives no more changes.
        let is_held_up =
            || self.awaited(pending_commits).any(|(log, _)| log.is_backlogged() && log.takes_changes());
        if pending_commits.is_empty() || !is_held_up() {
            return true;
        }
        self.shared.wake_queues.awaits_log(self.number);
        if !is_held_up() {
            return true;
        }
        self.park(index);
        false
    }

    /// Returns true if there is room for more changes in memory before a checkpoint. Otherwise
    /// parks the connection until a checkpoint is complete. If no checkpoint is possible, the
    /// database refuses changes and reads go on.
    fn front_has_room(&mut self, index: usize) -> bool {
        let changed = self.connections[index].durability.changed;
        let is_changed = |number: usize| changed >> number.min(LAST_BIT) & 1 == 1;
        let crowded = || {
            let changed = self.shared.databases.iter().enumerate().filter(|&(number, _)| is_changed(number));
            changed.map(|(_, served)| &*served.database).filter(|database| !database.front_has_room())
        };
        let mut has_room = crowded().next().is_none() || {
            self.shared.wake_queues.awaits_log(self.number);
            // A checkpoint may have been completed just before.
            crowded().next().is_none()
        };
        if !has_room && crowded().all(Database::has_stuck_checkpoints) {
            // The database may not know of the failure yet.
            crowded().for_each(Database::guard_front);
            has_room = true;
        }
        if has_room {
            self.connections[index].durability.changed = 0;
        } else {
            self.park(index);
        }
        has_room
    }

    fn park(&mut self, index: usize) {
        if !std::mem::replace(&mut self.connections[index].durability.is_parked, true) {
            debug_assert!(!self.parked.contains(&index), "in the list twice");
            self.parked.push(index);
        }
    }

    /// Writes the output of a turn. Bytes that the socket does not take stay pending.
    fn send(&mut self, index: usize) -> io::Result<()> {
        // Silent changes are acknowledged by the next output.
        if self.output.is_empty() {
            return Ok(());
        }
        if !self.connections[index].durability.pending_commits.is_empty() {
            if !self.has_durable_changes(index) {
                self.connections[index].pending = Some(Box::new(std::mem::take(&mut self.output)));
                return Ok(());
            }
            if let Some(instead) = self.connections[index].pending.take() {
                self.output = *instead;
            }
        }
        let connection = &mut self.connections[index];
        let outcome = self.output.write_to(&mut connection.stream);
        let written = *outcome.as_ref().unwrap_or(&0);
        self.shared.observation.workers[self.number].bytes_written.add(written as u64);
        if outcome.is_err() || self.output.is_empty() {
            self.output.clear(OUTPUT_KEPT);
            outcome?;
        } else {
            connection.pending = Some(Box::new(std::mem::take(&mut self.output)));
        }
        Ok(())
    }

    /// Returns the time to wait for events, so that no wait exceeds its deadline.
    fn until_waits_end(&self, timeout: Option<Duration>) -> Option<Duration> {
        let Some(end) = self.context.waits.first_deadline() else { return timeout };
        let wait = end.saturating_duration_since(Instant::now());
        Some(timeout.map_or(wait, |timeout| timeout.min(wait)))
    }

    fn on_event(&mut self, index: usize, event: &Event) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            connection.readable = true;
            // No other event reports the end of the stream: it has to be read, even after a short
            // read.
            connection.ended |= event.is_read_closed() || event.is_error();
            // A peer that sends no more may still read. A reset peer takes neither a reply nor a
            // message that others wait for.
            connection.closing |= event.is_error() && connection.session.ends_with_reset();
        }
        // TLS's own messages are sent when the stream is read.
        connection.readable |= connection.stream.kept_lens().1 > 0;
        // A connection that waits for its turn or for the update log is not served for each packet
        // that arrives.
        if connection.queued || connection.durability.is_parked {
            return;
        }
        // Most events are writable, too, without anything to write.
        if connection.readable || connection.pending.is_some() {
            self.serve(index);
        }
    }

    /// Serves a connection: sends pending output, reads, executes, sends.
    fn serve(&mut self, index: usize) {
        let outcome = self.turn(index);
        let connection = &mut self.connections[index];
        connection.show(self.shared.clock.now().0);
        connection.active_s = self.now_s;
        let held = connection.held();
        if held != connection.counted {
            let before = std::mem::replace(&mut connection.counted, held);
            self.count(before, held);
        }
        if outcome.is_err() {
            // The peer has gone, memory is missing, or it is unknown whether the replies are true.
            // They must not reach the connection that is served next.
            self.output.clear(OUTPUT_KEPT);
            self.connections[index].close_cause = Some(CloseCause::Failed);
            self.close(index);
            return;
        }
        let connection = &self.connections[index];
        if connection.counted.copied > 0 && self.shared.memory.held_bytes() > self.shared.memory.held_max() {
            tracing::warn!("slow reader disconnected: pending replies take too much memory");
            self.shared.observation.workers[self.number].readers_cut_off.add(1);
            self.close(index);
            return;
        }
        if connection.closing && connection.pending.is_none() {
            self.close(index);
        }
    }

    fn turn(&mut self, index: usize) -> io::Result<()> {
        let connection = &self.connections[index];
        if !connection.durability.pending_commits.is_empty() {
            let goes_on = if connection.pending.is_some() {
                self.has_durable_changes(index)
            } else {
                self.may_go_on(index)
            };
            if !goes_on {
                return Ok(());
            }
        }
        let counters = &self.shared.observation.workers[self.number];
        let connection = &mut self.connections[index];
        if let Some(pending) = &mut connection.pending {
            let written = pending.write_to(&mut connection.stream)?;
            counters.bytes_written.add(written as u64);
            if !pending.is_empty() {
                return Ok(());
            }
            connection.pending = None;
        }
        connection.closing |= connection.is_abandoned();
        if connection.closing || connection.session.is_waiting() {
            return Ok(());
        }
        if connection.durability.changed != 0 && !self.front_has_room(index) {
            // It is parked.
            return Ok(());
        }
        let mut budget = self.shared.options.limits.requests_per_event;
        let next = self.read_and_serve(index, &mut budget);
        // Also if the connection has failed: its changes must not count as another connection's.
        self.await_changes(index);
        let next = next?;
        self.send(index)?;
        if self.connections[index].pending.is_some() || !self.may_go_on(index) {
            return Ok(());
        }
        let connection = &mut self.connections[index];
        if matches!(next, Next::Yield | Next::Flush) {
            let counters = &self.shared.observation.workers[self.number];
            counters.connection_yields.add(u64::from(matches!(next, Next::Yield) && budget == 0));
            connection.queued = true;
            self.ready.push_back(index);
        }
        Ok(())
    }

    /// Reads from a connection and serves it, within its share of requests.
    fn read_and_serve(&mut self, index: usize, budget: &mut u32) -> io::Result<Next> {
        let counters = &self.shared.observation.workers[self.number];
        let connection = &mut self.connections[index];
        self.context.serve(index, connection.info.descriptor);
        let mut next = Next::READ;
        connection.begin_turn();
        let room = self.shared.memory.held_room(connection.counted.sum());
        // Kept input comes first: it may hold complete requests from a turn that was cut short.
        if connection.has_work() {
            let (context, output) = (&mut self.context, &mut self.output);
            let mut turn = SessionTurn { context, room, budget, output };
            next = connection.serve(&[], &mut self.dialects, &mut turn)?;
        }
        while next.is_read() && connection.readable {
            let (got, drained) = match connection.read(&mut self.buffer, &self.context.executor) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.readable = false;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if got == ReadOutcome::Input(0) {
                // The peer sends no more. Its requests are still answered.
                if connection.pending.is_none() {
                    connection.session.cut_short(&mut self.dialects, &mut self.output);
                }
                connection.closing = true;
                connection.readable = false;
                break;
            }
            let len = if let ReadOutcome::Input(len) | ReadOutcome::Value(len) = got { len } else { 0 };
            counters.bytes_read.add(len as u64);
            if drained && !connection.ended {
                connection.readable = false;
            }
            let input = if let ReadOutcome::Input(len) = got { &self.buffer[..len] } else { &[] };
            let (context, output) = (&mut self.context, &mut self.output);
            let mut turn = SessionTurn { context, room, budget, output };
            next = connection.serve(input, &mut self.dialects, &mut turn)?;
            // A large request comes in many pieces. The other connections do not wait for all of
            // them.
            if !drained && !connection.ended && next.is_read() {
                next = Next::Yield;
            }
        }
        connection.closing |= next.is_last() || connection.is_abandoned();
        if matches!(next, Next::Fail) {
            connection.close_cause = Some(CloseCause::Failed);
        }
        Ok(next)
    }

    /// Notes the changes of a connection, which must be durable before they are acknowledged.
    fn await_changes(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let own = self.context.executor.take_commits();
        for (number, point) in connection.session.take_changes().into_iter().chain(own) {
            self.shared.databases.request_durability(number, point);
            connection.durability.pending_commits.note(number, point);
            connection.durability.changed |= 1 << number.min(LAST_BIT);
        }
    }

    /// Counts a change of the memory that a connection holds.
    fn count(&self, before: HeldMemory, now: HeldMemory) {
        let counters = &self.shared.observation.workers[self.number];
        counters.partial_bytes.add(now.unfinished().wrapping_sub(before.unfinished()));
        counters.pending_bytes.add(now.pending.wrapping_sub(before.pending));
        let is_pending = |held: HeldMemory| u64::from(held.pending > 0);
        counters.pending_outputs.add(is_pending(now).wrapping_sub(is_pending(before)));
        self.shared.memory.held_changed(before.sum(), now.sum());
    }

    /// Closes the connections that are done; the others continue in their turns. With `first`, the
    /// sockets are read once more, because requests that have arrived are answered.
    fn drain(&mut self, first: bool) {
        let all: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
        for index in all {
            self.wake(index, Wake::Cancelled);
            if !self.connections.contains(index) {
                continue;
            }
            if first {
                self.connections[index].readable = true;
                if self.connections[index].pending.is_none() {
                    self.serve(index);
                }
            }
            if self.connections.get(index).is_some_and(Connection::is_done) {
                self.close(index);
            }
        }
    }

    fn close(&mut self, index: usize) {
        let mut connection = self.connections.remove(index);
        self.shared.observation.connection_table.remove(&connection.info);
        if connection.durability.is_parked {
            // The connection that takes this index has not asked for a turn.
            self.parked.retain(|&parked| parked != index);
        }
        let hello = connection.session.leave(&mut self.context);
        // The session may change databases as it leaves. No connection waits for these changes.
        for (number, point) in self.context.executor.take_commits() {
            self.shared.databases.request_durability(number, point);
        }
        let reason = match self.shared.lifecycle.stopping() {
            Stopping::No if connection.close_cause == Some(CloseCause::Failed) => "error",
            Stopping::No if connection.close_cause == Some(CloseCause::Idle) => "idle_timeout",
            Stopping::No => "normal",
            _ => "shutdown",
        };
        self.shared.observation.observers.send_closed(&connection.info, reason);
        self.count(connection.counted, HeldMemory::default());
        self.shared.observation.connection_closed();
        if let Some(hello) = hello.filter(|_| reason == "normal")
            && connection.stream.deregister(self.poll.registry()).is_ok()
        {
            let peer = connection.info.peer.to_string();
            let address =
                peer.strip_prefix("tcp:").or(peer.strip_prefix("tcp6:")).unwrap_or(&peer).to_string();
            self.shared.replicas.start(&self.shared, connection.stream, address, hello);
        }
        tracing::debug!(worker = self.number, peer = %connection.info.peer, "connection closed");
        if self.shared.observation.logs_requests() {
            self.shared.observation.log_request(|entry| entry.closed(connection.info.descriptor));
        }
        if self.connections.is_empty() {
            // A large number of connections must not leave a large table.
            self.connections.shrink_to_fit();
        }
    }
}
