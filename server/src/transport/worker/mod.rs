//! Defines a worker: a thread with a loop that owns its connections. `ring_events` is the part that
//! only workers with an io_uring need.

mod ring_events;

use crate::databases::pending_commits::PendingCommits;
use crate::execution::Executor;
use crate::handle::StopStage;
use crate::observation::slow_requests::{FirstRequest, MeasuredTurn};
use crate::observation::spans::open_spans::OpenSpans;
use crate::observation::turn_times::is_measured;
use crate::process::unix_time;
use crate::proxy::{ProxyWorker, ReplyDelivery, RequestTag, SERVER_TOKENS};
use crate::session::dispatch::DialectWorkers;
use crate::session::proxy::RecordRuns;
use crate::session::wake::{WakeReason, WakeTicket};
use crate::session::worker_context::WorkerContext;
use crate::session::{AnySession, NextAction, Session, SessionTurn};
use crate::shared::SharedState;
use crate::transport::client_ring::{ClientRing, Receiving, RingState};
use crate::transport::connection::{CloseCause, Connection, HeldMemory, ReadOutcome};
use crate::transport::idle::IdleTimer;
use crate::transport::listener::ClientStream;
use crate::transport::output::ConnectionOutput;
use crate::transport::served_listener::NewConnection;
use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};
use todana::{Clock, CommitPoint, Database, Durability};
use todana_core::RefusalReason;
use todana_engine::ReceivedBytes;

/// The token of the worker's own wake-up.
pub(crate) const WAKE: Token = Token(usize::MAX);
/// The token of reads from the disk.
const READS: Token = Token(usize::MAX - 1);
/// The number of events that the poll returns at once.
const EVENTS: usize = 256;
/// The length of one read. It is more than a socket usually contains, and small enough for the
/// processor's cache.
const BUFFER: usize = 64 << 10;
/// The length of one read of a long value that a proxy passes on. Longer pieces need fewer system
/// calls, and wake the server less often.
const PASSED_BUFFER: usize = 256 << 10;
/// A reply buffer with a larger capacity is freed after use.
const OUTPUT_KEPT: usize = 64 << 10;
/// The last bit of the 64 bits in which changed databases are noted.
const LAST_BIT: usize = 63;
/// The time for which a stopping worker waits for its peers to accept their replies.
const DRAIN: Duration = Duration::from_secs(5);

pub(crate) struct Worker {
    shared: Arc<SharedState>,
    number: usize,
    poll: Poll,
    /// Receives from most clients and sends to them; `None` if the poll does all of this.
    ring: Option<ClientRing>,
    /// The bytes that the ring has received for the connection that is being served.
    received: Option<ReceivedBytes>,
    arrivals: Receiver<NewConnection>,
    connections: Slab<Connection>,
    /// Connections that have more to do without waiting for their socket.
    ready: VecDeque<usize>,
    context: WorkerContext,
    dialects: DialectWorkers,
    /// Connections whose replies wait for the update log.
    parked: Vec<(usize, Duration)>,
    idle: Option<IdleTimer>,
    /// The time of the last wake-up, in seconds since the start of the server. It is updated only
    /// if idle time is limited.
    now_s: u64,
    wake_ups: u32,
    buffer: Vec<u8>,
    /// The memory for reads of long values that a proxy passes on. It is empty until there is one.
    passed_buffer: Vec<u8>,
    output: ConnectionOutput,
    /// The operations of clients of a proxy that do not speak memcached's dialects.
    records: RecordRuns,
    /// The number of bytes of requests to servers that are counted as memory.
    counted_kept: u64,
    /// Gets whose records have been read from the disk, and whose sessions are not served yet.
    read: Vec<WakeTicket>,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<SharedState>,
        number: usize,
        arrivals: Receiver<NewConnection>,
    ) -> io::Result<(Worker, Arc<Waker>)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        shared.wake_queues.set_waker(number, Arc::clone(&waker));
        let mut context = WorkerContext::new(&shared, number);
        if let Some(live) = &shared.proxy {
            let registry = poll.registry().try_clone()?;
            context.proxy = Some(ProxyWorker::new(Arc::clone(live), registry));
        }
        context.spans = shared.observation.spans.clone().map(OpenSpans::new);
        let dialects = DialectWorkers::new(&context);
        let records = RecordRuns::new(&shared);
        let idle = IdleTimer::new(shared.options.limits.idle_timeout_s);
        let worker = Worker {
            shared,
            number,
            poll,
            ring: None,
            received: None,
            arrivals,
            connections: Slab::new(),
            ready: VecDeque::new(),
            context,
            dialects,
            parked: Vec::new(),
            idle,
            now_s: 0,
            wake_ups: 0,
            buffer: vec![0; BUFFER],
            passed_buffer: Vec::new(),
            output: ConnectionOutput::default(),
            records,
            counted_kept: 0,
            read: Vec::new(),
        };
        Ok((worker, waker))
    }

    /// Runs until the server stops.
    pub(crate) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let mut deadline = None;
        if let Err(error) = self.watch_reads() {
            return self.fail(&error);
        }
        if !self.start_ring() {
            self.shared.lifecycle.handle.stop();
        }
        loop {
            self.context.executor.end_turn();
            self.resume_read();
            let timeout = if !self.ready.is_empty() || !self.read.is_empty() {
                Some(Duration::ZERO)
            } else {
                deadline.map(|deadline: Instant| deadline.saturating_duration_since(Instant::now()))
            };
            let timeout = self.until_first_deadline(self.until_idle_check(timeout));
            let outcome = match &mut self.ring {
                Some(ring) => ring.wait(timeout),
                None => self.poll.poll(&mut events, timeout),
            };
            if let Err(error) = outcome
                && error.kind() != io::ErrorKind::Interrupted
            {
                return self.fail(&error);
            }
            self.shared.clock.tick();
            self.wake_ups = self.wake_ups.wrapping_add(1);
            let measured_from = is_measured(self.wake_ups).then(Instant::now);
            if let Some(proxy) = &mut self.context.proxy {
                proxy.tick();
            }
            if self.idle.is_some() {
                self.now_s = self.shared.observation.started.elapsed().as_secs();
            }
            if self.ring.is_some() {
                if let Err(error) = self.handle_ring_events(&mut events, measured_from) {
                    return self.fail(&error);
                }
            } else {
                events.iter().for_each(|event| self.handle_event(event, measured_from));
            }
            for _ in 0..self.ready.len() {
                if let Some(index) = self.ready.pop_front()
                    && let Some(connection) = self.connections.get_mut(index)
                    // The index may now belong to a new connection, which is not in the queue.
                    && std::mem::take(&mut connection.queued)
                {
                    self.serve(index);
                }
            }
            if self.first_ack_deadline().is_some_and(|deadline| Instant::now() >= deadline) {
                self.resume_durable();
            }
            self.wake_timed_out();
            self.finish_server_turn();
            // Idle connections are closed after the events are handled, so that a connection whose
            // request has just arrived stays open.
            self.close_idle();
            match self.shared.lifecycle.stopping() {
                StopStage::No => {}
                StopStage::Drain => {
                    let first = deadline.is_none();
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + self.drain_time());
                    self.drain(first);
                    if self.connections.is_empty() || Instant::now() >= deadline {
                        break;
                    }
                }
                StopStage::AtOnce => break,
            }
        }
        let left: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
        left.into_iter().for_each(|index| self.close(index));
        self.submit();
        self.context.executor.end_turn();
    }

    /// Stops the server, because this worker cannot wait for events.
    fn fail(&self, error: &io::Error) {
        tracing::error!(%error, "worker {}: cannot wait for events", self.number);
        self.shared.lifecycle.handle.stop();
    }

    /// Makes the poll report complete reads from the disk.
    fn watch_reads(&self) -> io::Result<()> {
        match self.context.executor.reads_descriptor()? {
            Some(fd) => self.poll.registry().register(&mut SourceFd(&fd), READS, Interest::READABLE),
            None => Ok(()),
        }
    }

    /// Handles an event of the poll.
    fn handle_event(&mut self, event: &Event, measured_from: Option<Instant>) {
        match event.token() {
            WAKE => {
                self.register_arrivals();
                self.wake_ready();
                self.resume_durable();
                self.close_stalled();
            }
            // Their sessions are served before the next wait.
            READS => {}
            Token(index) if index >= SERVER_TOKENS => self.on_server_event(event),
            Token(index) => {
                self.on_event(index, event);
                if let Some(began) = measured_from {
                    self.shared.observation.turn_times[self.number].note(began.elapsed());
                }
            }
        }
    }

    /// Returns the time for which a stop waits for replies and for peers that read them.
    fn drain_time(&self) -> Duration {
        self.shared.proxy.as_ref().map_or(DRAIN, |proxy| proxy.state().drain)
    }

    /// Registers new connections.
    fn register_arrivals(&mut self) {
        while let Ok(NewConnection { mut stream, choice, listener, client }) = self.arrivals.try_recv() {
            let entry = self.connections.vacant_entry();
            let token = Token(entry.key());
            let info =
                self.shared.observation.connection_table.insert(&mut stream, self.shared.clock.now().0);
            let session = AnySession::new(&self.shared, choice, listener);
            let mut connection = Connection::new(stream, info, session, (listener, client));
            connection.active_s = self.now_s;
            let outcome = match &mut self.ring {
                Some(ring) => ring.receive(&mut connection, token.0),
                None => connection.stream.register(self.poll.registry(), token),
            };
            if let Err(error) = outcome {
                tracing::warn!(%error, "connection: closed, because it cannot be registered for events");
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

    /// Returns the time for which to wait for events, so that idle connections are found in time.
    fn until_idle_check(&self, timeout: Option<Duration>) -> Option<Duration> {
        let Some(idle) = &self.idle else { return timeout };
        if self.connections.is_empty() {
            return timeout;
        }
        let wait = idle.wait(self.shared.observation.started.elapsed());
        Some(timeout.map_or(wait, |timeout| timeout.min(wait)))
    }

    /// Closes connections whose clients read nothing of a long answer while other answers wait for
    /// memory.
    fn close_stalled(&mut self) {
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
            // The socket reports free space only when a large part of its buffer is free, but
            // accepts bytes before that. So the worker tries to write first.
            if self.connections.contains(index) {
                self.serve(index);
            }
            if !self.connections.get(index).is_some_and(is_stalled) {
                continue;
            }
            tracing::warn!(
                "connection: closed, because its client reads nothing and others wait for the memory of its answer"
            );
            self.shared.observation.workers[self.number].readers_cut_off.add(1);
            self.close(index);
        }
    }

    /// Closes the connections that have been idle for too long, without a message to their clients.
    /// Does so only when a check is due.
    fn close_idle(&mut self) {
        let only_stalled = self.shared.options.limits.idle_between_requests;
        let Some(idle) = &mut self.idle else { return };
        let now = self.shared.observation.started.elapsed();
        if !idle.is_due(now) {
            return;
        }
        let is_timed_out = |connection: &Connection| {
            let is_meant = !only_stalled || connection.has_partial_request();
            is_meant && connection.is_idle() && idle.is_timed_out(connection.active_s, now)
        };
        let over: Vec<usize> = self
            .connections
            .iter()
            .filter_map(|(index, connection)| is_timed_out(connection).then_some(index))
            .collect();
        for index in over {
            self.connections[index].close_cause = Some(CloseCause::Idle);
            self.shared.observation.workers[self.number].idle_kicks.add(1);
            self.close(index);
        }
    }

    /// Serves the connections whose records have been read from the disk, and starts the reads that
    /// were added.
    fn resume_read(&mut self) {
        let mut read = std::mem::take(&mut self.read);
        read.extend(self.context.executor.take_read());
        if read.is_empty() {
            return;
        }
        for ticket in read {
            if let Some(index) = self.context.waits.connection_of(ticket) {
                self.wake(index, WakeReason::Ready(ticket));
            }
        }
        // Other connections have their turn before those whose records have arrived meanwhile.
        self.read = self.context.executor.take_read();
    }

    /// Wakes the sessions whose tickets are ready.
    fn wake_ready(&mut self) {
        for (ticket, index) in self.context.waits.take_ready() {
            self.wake(index, WakeReason::Ready(ticket));
        }
    }

    /// Wakes the sessions whose deadlines have passed.
    fn wake_timed_out(&mut self) {
        if self.context.waits.first_deadline().is_some() {
            for (ticket, index) in self.context.waits.take_timed_out(Instant::now()) {
                self.wake(index, WakeReason::TimedOut(ticket));
            }
        }
    }

    /// Passes a wake-up to a session. Gives its connection a turn if the session wants one and the
    /// connection is not queued already.
    fn wake(&mut self, index: usize, wake: WakeReason) {
        let connection = self.connections.get_mut(index);
        let is_wanted = connection.is_some_and(|connection| connection.session.wake(wake, &mut self.context));
        if is_wanted && !self.connections[index].queued {
            self.serve(index);
        } else if let (false, WakeReason::Ready(ticket)) = (is_wanted, wake) {
            // Another event has served the session meanwhile, and the session no longer waits with
            // this ticket.
            self.context.waits.leave(ticket);
        }
    }

    /// Serves the connections whose replies waited for the update log.
    fn resume_durable(&mut self) {
        for (index, since) in std::mem::take(&mut self.parked) {
            if let Some(connection) = self.connections.get_mut(index)
                && std::mem::take(&mut connection.durability.is_parked)
            {
                self.note_wait(index, since);
                self.serve(index);
            }
        }
    }

    /// Returns the durability of each changed database, with the point up to which the database
    /// must be durable.
    fn awaited<'w>(
        &'w self,
        pending_commits: &'w PendingCommits,
    ) -> impl Iterator<Item = (Durability<'w>, CommitPoint)> {
        let databases = &self.shared.databases;
        pending_commits
            .iter()
            .filter_map(|(number, point)| Some((databases[number].database.durability()?, point)))
    }

    /// Returns true if the pending replies may be sent, because the writes that they acknowledge
    /// are durable. Otherwise parks the connection until the log advances. If the log has failed,
    /// replaces the replies by an error.
    fn await_durable(&mut self, index: usize) -> bool {
        let pending_commits = &self.connections[index].durability.pending_commits;
        if pending_commits.is_empty() {
            return true;
        }
        let is_confirmed =
            || pending_commits.iter().all(|(number, point)| self.shared.acks.is_confirmed(number, point));
        let not_durable =
            || self.awaited(pending_commits).filter(|&(durability, point)| !durability.is_durable(point));
        let is_done = || not_durable().next().is_none() && is_confirmed();
        let is_durable = is_done() || {
            self.shared.wake_queues.awaits_log(self.number);
            // The log may have advanced after the first check, before this worker registered for a
            // wake-up.
            is_done()
        };
        if is_durable {
            self.connections[index].durability.clear_commits();
            return true;
        }
        let refusal =
            not_durable().map(|(durability, _)| durability).find(|durability| !durability.takes_changes());
        let refusal = refusal.map(Durability::refusal);
        if let Some(refusal) = refusal.or_else(|| self.unconfirmed(index)) {
            let mut replies = Vec::new();
            let unsent = match &mut self.connections[index].pending {
                Some(pending) => &mut **pending,
                None => &mut self.output,
            };
            // Writing to a vector does not fail.
            let _ = unsent.write_to(&mut replies);
            self.output.clear(OUTPUT_KEPT);
            self.connections[index].refuse_changes(refusal, &replies);
            if let Some(spans) = &mut self.context.spans {
                spans.fail(index, "change_refused");
            }
        } else {
            self.park(index);
            return false;
        }
        true
    }

    /// Returns the reason for which the changes of a connection will not be confirmed by replicas.
    /// Returns `None` if they may still be.
    fn unconfirmed(&self, index: usize) -> Option<RefusalReason> {
        let durability = &self.connections[index].durability;
        let deadline = durability.ack_deadline.filter(|_| self.shared.acks.is_needed())?;
        let is_superseded =
            |(number, _): (usize, CommitPoint)| self.shared.databases[number].database.is_superseded();
        if durability.pending_commits.iter().any(is_superseded) {
            return Some(RefusalReason::Superseded);
        }
        (Instant::now() >= deadline).then_some(RefusalReason::Unconfirmed)
    }

    /// Returns the first time at which a change is no longer awaited from replicas.
    fn first_ack_deadline(&self) -> Option<Instant> {
        if !self.shared.acks.is_needed() {
            return None;
        }
        // All connections wait for the same time, so the first one that waits has the first
        // deadline.
        let deadline = |&(index, _): &(usize, Duration)| self.connections.get(index)?.durability.ack_deadline;
        self.parked.iter().find_map(deadline)
    }

    /// Returns true if a connection may make more changes although its earlier ones are not
    /// acknowledged yet. Returns false while too many changes wait in memory for the log, and parks
    /// the connection. Nothing else would slow down a client that requests no replies.
    fn await_room_in_log(&mut self, index: usize) -> bool {
        let pending_commits = &self.connections[index].durability.pending_commits;
        // If the log cannot be written, it accepts no more changes anyway.
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

    /// Returns true if memory has space for more changes before the next checkpoint. Otherwise
    /// parks the connection until a checkpoint is complete. If no checkpoint is possible, the
    /// database refuses changes and still serves reads.
    fn await_checkpoint_room(&mut self, index: usize) -> bool {
        let changed = self.connections[index].durability.changed;
        let is_changed = |number: usize| changed >> number.min(LAST_BIT) & 1 == 1;
        let crowded = || {
            let changed = self.shared.databases.iter().enumerate().filter(|&(number, _)| is_changed(number));
            changed.map(|(_, served)| &*served.database).filter(|database| !database.front_has_room())
        };
        let mut has_room = crowded().next().is_none() || {
            self.shared.wake_queues.awaits_log(self.number);
            // A checkpoint may have been completed after the first check, before this worker
            // registered for a wake-up.
            crowded().next().is_none()
        };
        if !has_room && crowded().all(Database::has_stuck_checkpoints) {
            // The database may not have noticed the failed checkpoint yet.
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
            debug_assert!(self.parked.iter().all(|parked| parked.0 != index), "in the list twice");
            self.parked.push((index, self.shared.observation.slow_requests.begin()));
        }
    }

    /// Writes the output of a turn. Bytes that the socket does not accept stay pending.
    fn send(&mut self, index: usize) -> io::Result<()> {
        // Changes without a reply are acknowledged by the next output.
        if self.output.is_empty() {
            return Ok(());
        }
        if !self.connections[index].durability.pending_commits.is_empty() {
            if !self.await_durable(index) {
                self.connections[index].pending = Some(Box::new(std::mem::take(&mut self.output)));
                return Ok(());
            }
            if let Some(instead) = self.connections[index].pending.take() {
                self.output = *instead;
            }
        }
        let connection = &mut self.connections[index];
        if let Some(ring) = &mut self.ring
            && ClientRing::can_send(connection, self.output.len())
            && let Some(bytes) = self.output.plain_bytes()
        {
            ring.send(&mut connection.ring, (index, connection.info.descriptor), bytes)?;
            self.shared.observation.workers[self.number].bytes_written.add(bytes.len() as u64);
            self.output.clear(OUTPUT_KEPT);
            return Ok(());
        }
        let outcome = self.output.write_in_turn(&mut connection.stream);
        let written = *outcome.as_ref().unwrap_or(&0);
        self.shared.observation.workers[self.number].bytes_written.add(written as u64);
        if outcome.is_err() || self.output.is_empty() {
            self.output.clear(OUTPUT_KEPT);
            outcome?;
        } else {
            let pending = connection.pending.insert(Box::new(std::mem::take(&mut self.output)));
            if pending.is_interrupted() && !std::mem::replace(&mut connection.queued, true) {
                self.ready.push_back(index);
            }
        }
        Ok(())
    }

    /// Returns the time for which to wait for events, so that no waiting session exceeds its
    /// deadline, and servers are checked in time.
    fn until_first_deadline(&self, timeout: Option<Duration>) -> Option<Duration> {
        let servers = self.context.proxy.as_ref().and_then(ProxyWorker::next_deadline);
        let all = [self.context.waits.first_deadline(), servers, self.first_ack_deadline()];
        let first = all.into_iter().flatten().min();
        let wait = first.map(|first| first.saturating_duration_since(Instant::now()));
        [timeout, wait].into_iter().flatten().min()
    }

    /// Handles an event of a connection of the proxy to a server.
    fn on_server_event(&mut self, event: &Event) {
        let Worker { context, connections, ready, records, .. } = self;
        if let Some(proxy) = &mut context.proxy {
            proxy.on_event(event.token(), event, &mut |tag, delivery| {
                deliver(connections, ready, records, tag, delivery);
            });
        }
        // The clients of the replies are served before the end of the turn.
        self.count_kept_requests();
    }

    /// Counts the requests that wait for servers as memory of connections.
    fn count_kept_requests(&mut self) {
        let kept = self.context.proxy.as_ref().map_or(0, |proxy| proxy.kept_len() as u64);
        if kept != self.counted_kept {
            self.shared.memory.held_changed(std::mem::replace(&mut self.counted_kept, kept), kept);
        }
    }

    /// Sends the requests of this turn to their servers, and ends those that are overdue.
    fn finish_server_turn(&mut self) {
        loop {
            self.records.advance(&mut self.context);
            let Worker { context, connections, ready, records, .. } = self;
            let Some(proxy) = &mut context.proxy else { return };
            let see = &mut |tag: RequestTag, delivery: ReplyDelivery<'_>| {
                deliver(connections, ready, records, tag, delivery);
            };
            proxy.flush(see);
            proxy.check_deadlines(see);
            self.count_kept_requests();
            if !self.records.has_changed() {
                return;
            }
        }
    }

    fn on_event(&mut self, index: usize, event: &Event) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if connection.ring.receiving != Receiving::Polled {
            // The event is older than the connection's return to the ring.
            return;
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            connection.readable = true;
            // No other event reports the end of the stream. The stream must therefore be read, even
            // if the last read returned fewer bytes than requested.
            connection.ended |= event.is_read_closed() || event.is_error();
            // A peer that sends no more may still read. A peer that has reset the connection
            // accepts neither a reply nor a message that other clients wait for.
            connection.closing |= event.is_error() && connection.session.ends_with_reset();
        }
        // Messages of TLS itself, such as alerts, are sent when the stream is read.
        connection.readable |= connection.stream.kept_lens().1 > 0;
        // A connection that is queued, or that waits for the update log, is not served for each
        // packet that arrives.
        if connection.queued || connection.durability.is_parked {
            return;
        }
        // Most events also report that the socket is writable, although there is nothing to write.
        if connection.readable || connection.pending.is_some() {
            self.serve(index);
            self.return_to_ring(index);
        }
    }

    /// Serves a connection: sends pending output, reads, executes, sends.
    fn serve(&mut self, index: usize) {
        self.finish_send(index);
        let outcome = self.measured_turn(index);
        if outcome.is_ok() {
            self.end_spans(index);
        }
        let connection = &mut self.connections[index];
        connection.show(self.shared.clock.now().0);
        connection.active_s = self.now_s;
        let needs_poll = connection.pending.is_some() && !connection.durability.is_parked;
        self.count_held(index);
        if outcome.is_err() {
            // The peer has closed the connection, memory is missing, or it is unknown whether the
            // replies are correct. The replies must not be sent to the connection that is served
            // next.
            self.output.clear(OUTPUT_KEPT);
            self.connections[index].close_cause = Some(CloseCause::Failed);
            self.close(index);
            return;
        }
        if self.connections[index].closing {
            self.finish_send(index);
        }
        if needs_poll {
            self.continue_receiving(index, true);
        }
        let connection = &self.connections[index];
        if connection.counted.copied > 0 && self.shared.memory.held_bytes() > self.shared.memory.held_max() {
            tracing::warn!(
                "connection: closed, because its client reads too slowly and its replies take too much memory"
            );
            self.shared.observation.workers[self.number].readers_cut_off.add(1);
            self.close(index);
            return;
        }
        if connection.closing && connection.pending.is_none() && !connection.session.has_replies_to_come() {
            self.close(index);
        }
    }

    /// Gives a connection its turn, and logs it if it was slow or large.
    fn measured_turn(&mut self, index: usize) -> io::Result<()> {
        let transferred = |worker: &Worker| {
            let counters = &worker.shared.observation.workers[worker.number];
            let waiting =
                worker.connections[index].pending.as_ref().map_or(0, |pending| pending.len() as u64);
            (counters.bytes_read.get(), counters.bytes_written.get() + waiting)
        };
        let began = self.shared.observation.slow_requests.begin();
        let before = transferred(self);
        let outcome = self.turn(index);
        let after = transferred(self);
        let observation = &self.shared.observation;
        let mut none = FirstRequest::default();
        let first = self.context.executor.first_request().unwrap_or(&mut none);
        let turn = MeasuredTurn {
            time: observation.slow_requests.since(began),
            bytes_received: after.0 - before.0,
            bytes_sent: after.1.saturating_sub(before.1),
            first,
        };
        let client = &self.connections[index].info.peer;
        observation.slow_requests.note_turn(&turn, || (unix_time(), client.to_string()));
        first.clear();
        outcome
    }

    /// Ends the spans of requests whose replies have been sent.
    #[inline]
    fn end_spans(&mut self, index: usize) {
        let connection = &self.connections[index];
        if let Some(spans) = self.context.spans.as_mut().filter(|spans| !spans.is_empty())
            && connection.pending.is_none()
        {
            spans.end_answered(index, &connection.info);
        }
    }

    /// Logs a connection that has been parked since this time, if that was long.
    fn note_wait(&self, index: usize, since: Duration) {
        let observation = &self.shared.observation;
        let client = &self.connections[index].info.peer;
        let time = observation.slow_requests.since(since);
        observation.slow_requests.note_wait(time, || (unix_time(), client.to_string()));
    }

    fn turn(&mut self, index: usize) -> io::Result<()> {
        let connection = &mut self.connections[index];
        if let Some(error) = connection.ring.send_error.take() {
            return Err(error);
        }
        if !connection.durability.pending_commits.is_empty() {
            let may_continue = if connection.pending.is_some() {
                self.await_durable(index)
            } else {
                self.await_room_in_log(index)
            };
            if !may_continue {
                return Ok(());
            }
        }
        let counters = &self.shared.observation.workers[self.number];
        let connection = &mut self.connections[index];
        if let Some(pending) = &mut connection.pending {
            let written = pending.write_in_turn(&mut connection.stream)?;
            counters.bytes_written.add(written as u64);
            if !pending.is_empty() {
                if pending.is_interrupted() && !std::mem::replace(&mut connection.queued, true) {
                    self.ready.push_back(index);
                }
                return Ok(());
            }
            connection.pending = None;
        }
        connection.closing |= connection.is_abandoned();
        let is_over = connection.closing && !connection.session.has_replies_to_come();
        if is_over || connection.session.is_waiting() {
            return Ok(());
        }
        if connection.durability.changed != 0 && !self.await_checkpoint_room(index) {
            // The connection is parked.
            return Ok(());
        }
        let mut budget = self.shared.options.limits.requests_per_event;
        let next = self.read_and_serve(index, &mut budget);
        // This is needed even if the connection has failed, because otherwise its changes would
        // count as those of the next connection.
        self.await_changes(index);
        let next = next?;
        self.send(index)?;
        if self.connections[index].pending.is_some() || !self.await_room_in_log(index) {
            return Ok(());
        }
        let connection = &mut self.connections[index];
        if matches!(next, NextAction::Yield | NextAction::Flush) {
            let counters = &self.shared.observation.workers[self.number];
            counters.connection_yields.add(u64::from(matches!(next, NextAction::Yield) && budget == 0));
            connection.queued = true;
            self.ready.push_back(index);
        }
        Ok(())
    }

    /// Reads from a connection and serves its requests, up to its share of requests for this turn.
    fn read_and_serve(&mut self, index: usize, budget: &mut u32) -> io::Result<NextAction> {
        let counters = &self.shared.observation.workers[self.number];
        let connection = &mut self.connections[index];
        self.context.serve(index, connection.listener, connection.info.descriptor);
        let mut next = NextAction::READ;
        connection.begin_turn();
        let room = self.shared.memory.held_room(connection.counted.sum());
        // The bytes that the connection already has come first: they may contain complete requests,
        // because the previous turn ended at its share.
        if connection.has_work() {
            let (context, output) = (&mut self.context, &mut self.output);
            let mut turn = SessionTurn { context, room, budget, output };
            next = connection.serve(&[], &mut self.dialects, &mut turn)?;
        }
        if next.is_read()
            && let Some(received) = self.received.take()
            && let Some(ring) = &mut self.ring
        {
            let outcome = match connection.stream.plain(ring.bytes(&received), &mut self.buffer) {
                // A part of a record or of a handshake has arrived.
                Ok([]) => Ok(NextAction::READ),
                Ok(plain) => {
                    counters.bytes_read.add(plain.len() as u64);
                    let (context, output) = (&mut self.context, &mut self.output);
                    let mut turn = SessionTurn { context, room, budget, output };
                    connection.serve(plain, &mut self.dialects, &mut turn)
                }
                Err(error) => Err(error),
            };
            ring.give_back(received);
            next = outcome?;
            // The end of the stream is read as without a ring.
            connection.readable |= connection.stream.has_ended();
        }
        while next.is_read() && connection.readable {
            let buffer = match &connection.session {
                AnySession::Proxy(session) if session.is_receiving() => {
                    self.passed_buffer.resize(PASSED_BUFFER, 0);
                    &mut self.passed_buffer
                }
                _ => &mut self.buffer,
            };
            let (got, drained) = match connection.read(buffer, &self.context.executor) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.readable = false;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if got == ReadOutcome::Input(0) {
                // The peer sends no more bytes. The requests that it has sent are still answered.
                if connection.pending.is_none() {
                    connection.session.cut_short(&mut self.dialects, &mut self.output);
                }
                connection.closing = true;
                connection.readable = false;
                break;
            }
            let len = if let ReadOutcome::Input(len) | ReadOutcome::Value(len) = got { len } else { 0 };
            counters.bytes_read.add(len as u64);
            connection.ring.note_read(len);
            if drained && !connection.ended {
                connection.readable = false;
            }
            let input = if let ReadOutcome::Input(len) = got { &buffer[..len] } else { &[] };
            let (context, output) = (&mut self.context, &mut self.output);
            let mut turn = SessionTurn { context, room, budget, output };
            next = connection.serve(input, &mut self.dialects, &mut turn)?;
            // A large request arrives in many pieces. Other connections are served in between.
            if !drained && !connection.ended && next.is_read() {
                next = NextAction::Yield;
            }
        }
        connection.closing |= next.is_last() || connection.is_abandoned();
        if matches!(next, NextAction::Fail) {
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
            if self.shared.acks.is_needed() {
                connection.durability.ack_deadline.get_or_insert_with(|| self.shared.acks.deadline());
            }
        }
    }

    /// Counts the memory that a connection holds now.
    #[inline]
    fn count_held(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let held = connection.held();
        if held != connection.counted {
            let before = std::mem::replace(&mut connection.counted, held);
            self.count(before, held);
        }
    }

    /// Counts a change in the memory that a connection holds.
    fn count(&self, before: HeldMemory, now: HeldMemory) {
        let counters = &self.shared.observation.workers[self.number];
        counters.partial_bytes.add(now.unfinished().wrapping_sub(before.unfinished()));
        counters.pending_bytes.add(now.pending.wrapping_sub(before.pending));
        let is_pending = |held: HeldMemory| u64::from(held.pending > 0);
        counters.pending_outputs.add(is_pending(now).wrapping_sub(is_pending(before)));
        self.shared.memory.held_changed(before.sum(), now.sum());
    }

    /// Closes the connections that are complete; the others continue in their turns. Requests that
    /// have arrived are still answered, so all sockets are read a last time. The first call does
    /// so, but the sockets of the ring are read later, once they have left the ring.
    fn drain(&mut self, first: bool) {
        let all: Vec<usize> = self.connections.iter().map(|(index, _)| index).collect();
        for &index in &all {
            self.wake(index, WakeReason::Cancelled);
            self.leave_ring(index);
            let Some(connection) = self.connections.get_mut(index).filter(|_| first) else { continue };
            connection.readable |= connection.ring.receiving == Receiving::Polled;
            if connection.pending.is_none() {
                self.serve(index);
            }
        }
        self.submit();
        for index in all {
            if self.connections.get(index).is_some_and(Connection::is_done) {
                self.close(index);
            }
        }
    }

    fn close(&mut self, index: usize) {
        // The ring must not use the descriptor any more once it is closed.
        self.finish_send(index);
        let mut connection = self.connections.remove(index);
        self.shared.observation.connection_table.remove(&connection.info);
        if let Some(spans) = &mut self.context.spans {
            spans.end_closed(index, &connection.info);
        }
        if connection.durability.is_parked {
            // The next connection with this index is not parked.
            self.parked.retain(|&(parked, _)| parked != index);
        }
        let hello = connection.session.leave(&mut self.context);
        // The session may change databases when it ends. No connection waits for these changes.
        for (number, point) in self.context.executor.take_commits() {
            self.shared.databases.request_durability(number, point);
        }
        let reason = match self.shared.lifecycle.stopping() {
            StopStage::No if connection.close_cause == Some(CloseCause::Failed) => "error",
            StopStage::No if connection.close_cause == Some(CloseCause::Idle) => "idle_timeout",
            StopStage::No => "normal",
            _ => "shutdown",
        };
        if reason == "error" {
            connection.client.fail();
        }
        self.shared.observation.observers.send_closed(&connection.info, reason);
        self.count(connection.counted, HeldMemory::default());
        self.shared.observation.connection_closed();
        if let Some(hello) = hello.filter(|_| reason == "normal")
            && self.detach(index, &mut connection.stream, &mut connection.ring).is_ok()
        {
            let peer = connection.info.peer.to_string();
            let address =
                peer.strip_prefix("tcp:").or(peer.strip_prefix("tcp6:")).unwrap_or(&peer).to_string();
            self.shared.replicas.start(&self.shared, connection.stream, address, hello);
        }
        if let Some(ring) = &mut self.ring
            && connection.ring.receiving != Receiving::Polled
        {
            // A failure is noticed when the ring is used the next time.
            let _ = ring.leave(&mut connection.ring, index);
        }
        tracing::debug!(worker = self.number, peer = %connection.info.peer, "connection closed");
        if self.shared.observation.logs_requests() {
            self.shared.observation.log_request(|entry| entry.closed(connection.info.descriptor));
        }
        if self.connections.is_empty() {
            // After many connections have closed, the table of connections must not stay large.
            self.connections.shrink_to_fit();
        }
    }

    /// Ends all use of a connection's socket by this worker.
    fn detach(&mut self, index: usize, stream: &mut ClientStream, state: &mut RingState) -> io::Result<()> {
        match &mut self.ring {
            Some(ring) if state.receiving != Receiving::Polled => ring.end(state, index),
            _ => stream.deregister(self.poll.registry()),
        }
    }
}

/// Passes what a server has sent to the session of its request. The session gets a turn if it has
/// replies to send now.
fn deliver(
    connections: &mut Slab<Connection>,
    ready: &mut VecDeque<usize>,
    records: &mut RecordRuns,
    tag: RequestTag,
    delivery: ReplyDelivery<'_>,
) {
    let Some(connection) = connections.get_mut(tag.connection) else {
        return records.receive(tag, delivery);
    };
    if let AnySession::Proxy(session) = &mut connection.session
        && session.receive(tag, delivery)
        && !std::mem::replace(&mut connection.queued, true)
    {
        ready.push_back(tag.connection);
    }
}
