//! Defines memcached's session, which decodes requests in batches, executes them, and continues
//! work that takes several turns.

use super::commands::traced;
use super::listing::ListingProgress;
use super::upload::{AnnouncedValue, ReceivedValue, ValueUpload};
use crate::execution::{Completion, Executor};
use crate::options::TyrantMode;
use crate::session::announced_keys::AnnouncedKeys;
use crate::session::login::{ConnectionLogin, LoginOutcome};
use crate::session::pending_replies::PendingReplies;
use crate::session::wake::{WakeReason, WakeTicket};
use crate::session::worker_context::WorkerContext;
use crate::session::{AnySession, BATCH, NextAction, RetainedMemory, Session, SessionProgress, SessionTurn};
use crate::shared::SharedState;
use crate::transport::output::{ConnectionOutput, OUTPUT_MAX};
use std::time::Instant;
use todana_core::{RefusalReason, Reply};
use todana_protocol::memcached::MemcachedCommand;
use todana_protocol::memcached::{
    DialectChoice, MemcachedDecoder, MemcachedLimits, MemcachedRequest, MemcachedStep as Decoded, ReplyForm,
    encode,
};

/// The length up to which a line is served without a batch. Most requests for a record fit.
const SHORT_LINE: usize = 300;

/// A connection that speaks one of memcached's dialects.
pub(crate) struct MemcachedSession {
    pub(crate) dialect: MemcachedDecoder,
    /// The dialects that the client may speak.
    choice: DialectChoice,
    /// The protocols of Tokyo Tyrant whose requests may come between memcached's.
    tyrant: TyrantMode,
    /// The number of the database that the session uses.
    pub(super) database: usize,
    /// The login of its client.
    pub(super) login: ConnectionLogin,
    /// The login whose password is being checked.
    pub(super) pending_login: Option<Box<PendingLogin>>,
    /// The replies that must arrive before the session continues.
    pub(super) pending: PendingReplies,
    /// The wait for the lock of a key, or for the changes of a master.
    pub(super) lock_wait: LockWait,
    /// The time at which the request that waits for the changes of a master was first seen.
    pub(super) asked_at: Option<Instant>,
    /// The long value that is being received.
    upload: Option<ValueUpload>,
    /// A long value that has been received and whose request is executed, until the reply arrives
    /// or the lock is free.
    uploaded: Option<Box<(ValueUpload, ReceivedValue)>>,
    /// The walk over all records that is in progress.
    pub(crate) listing: Option<Box<ListingProgress>>,
    /// True once the first byte of the connection has selected the dialect.
    is_introduced: bool,
    /// True if a part of the current reply had been sent when the connection began to wait for the
    /// update log.
    is_reply_begun: bool,
}

/// The wait before a request is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LockWait {
    #[default]
    No,
    Waiting(WakeTicket),
    /// The reason may have ended. The request is executed again.
    Over,
}

/// A login whose password is being checked.
pub(super) struct PendingLogin {
    pub(super) ticket: WakeTicket,
    pub(super) form: ReplyForm<'static>,
}

/// The state of a worker for memcached's sessions.
pub(crate) struct MemcachedWorker {
    pub(super) limits: MemcachedLimits,
    scratch: [Vec<u8>; BATCH],
}

impl MemcachedWorker {
    pub(crate) fn new(shared: &SharedState) -> MemcachedWorker {
        MemcachedWorker { limits: shared.limits(), scratch: Default::default() }
    }
}

impl MemcachedSession {
    pub(crate) fn new(choice: DialectChoice) -> MemcachedSession {
        MemcachedSession {
            dialect: MemcachedDecoder::default(),
            choice,
            tyrant: TyrantMode::Off,
            database: 0,
            login: ConnectionLogin::default(),
            pending_login: None,
            pending: PendingReplies::default(),
            lock_wait: LockWait::No,
            asked_at: None,
            upload: None,
            uploaded: None,
            listing: None,
            is_introduced: false,
            is_reply_begun: false,
        }
    }

    /// Creates the session of a connection to a listener of this dialect; `None` is any dialect.
    pub(crate) fn of_listener(shared: &SharedState, of_listener: Option<DialectChoice>) -> MemcachedSession {
        let mut session = MemcachedSession::new(shared.choice(of_listener));
        if shared.speaks_tyrant(of_listener) {
            session.tyrant = shared.options.protocols.tyrant.spoken;
        }
        session
    }

    /// Takes the session out, and leaves a new one in its place.
    pub(crate) fn take(&mut self) -> MemcachedSession {
        std::mem::replace(self, MemcachedSession::new(self.choice))
    }

    /// Returns true if memcached's protocols are a part of Tokyo Tyrant's here.
    #[inline]
    pub(super) fn is_of_tyrant(&self) -> bool {
        self.tyrant == TyrantMode::All
    }

    /// Writes the reply to a login whose password has been checked.
    fn end_login(&mut self, turn: &mut SessionTurn<'_>) {
        let Some(pending) = self.pending_login.take() else { return };
        let form = pending.form;
        let at = turn.output.end();
        let outcome = self.login.decided().unwrap_or(LoginOutcome::Refused);
        self.logged_in(outcome, turn.context, &mut |reply| encode(&form, &reply, turn.output));
        if turn.context.logs_requests {
            let (descriptor, is_binary) = (turn.context.descriptor, self.dialect.is_binary());
            let reply = turn.output.copied_from(at);
            turn.context.shared.observation.log_request(|entry| {
                entry.answer(descriptor, is_binary, form.is_last_of_line(), reply);
            });
        }
    }

    /// Serves the complete requests of the input, up to the connection's share. If the next request
    /// has a long value, returns the announcement of this value.
    fn serve_all(
        &mut self,
        worker: &mut MemcachedWorker,
        turn: &mut SessionTurn<'_>,
        data: &[u8],
        at: &mut usize,
    ) -> Result<NextAction, AnnouncedValue> {
        loop {
            if *turn.budget == 0 {
                // If the input is empty, the turn would have ended anyway. As in memcached, this
                // does not count as a yield.
                return Ok(if *at == data.len() { NextAction::READ } else { NextAction::Yield });
            }
            if turn.output.len() > OUTPUT_MAX {
                return Ok(NextAction::Flush);
            }
            if let Some(next) = self.serve_line(worker, turn, data, at) {
                return Ok(next);
            }
            let mut batch: [Option<MemcachedRequest<'_>>; BATCH] = [const { None }; BATCH];
            // The position before each request is kept, because the peer may not accept all replies
            // of the batch, and the remaining requests are then decoded again.
            let start = (*at, self.dialect);
            let mut after = [start; BATCH];
            let mut len = 0;
            let mut end = None;
            let mut lines = 0;
            for slot in worker.scratch.iter_mut() {
                if lines == *turn.budget {
                    break;
                }
                if self.tyrant != TyrantMode::Off {
                    *at += self.dialect.skip_discarded(&data[*at..]);
                    if self.dialect.is_before_line()
                        && data.get(*at).is_some_and(|&first| turn.context.shared.begins_tyrant(first))
                    {
                        end = Some(Ok(NextAction::Become(Box::new(AnySession::Tyrant(Box::default())))));
                        break;
                    }
                }
                match self.dialect.decode(&worker.limits, &data[*at..], slot) {
                    Decoded::Request { consumed, request } => {
                        *at += consumed;
                        // The keys of one line count as one request.
                        lines += u32::from(request.form.is_last_of_line());
                        let is_last = ends_batch(&request.command);
                        batch[len] = Some(request);
                        after[len] = (*at, self.dialect);
                        len += 1;
                        if is_last {
                            break;
                        }
                    }
                    Decoded::NeedMore { consumed, at_least } => {
                        *at += consumed;
                        end = Some(Ok(NextAction::Read { at_least }));
                        break;
                    }
                    Decoded::Block { consumed, head_len, value_len, end_len } => {
                        *at += consumed;
                        end = Some(Err(AnnouncedValue { head_len, value_len, end_len }));
                        break;
                    }
                    Decoded::Close => {
                        end = Some(Ok(NextAction::Fail));
                        break;
                    }
                }
            }
            let batch = &batch[..len];
            if len > 1 {
                let keys = batch.iter().flatten().filter_map(|request| key_of(&request.command));
                keys.collect::<AnnouncedKeys<'_>>().announce(&turn.context.executor, self.database);
            }
            for (index, request) in batch.iter().flatten().enumerate() {
                let before = || if index == 0 { start } else { after[index - 1] };
                let next = if turn.context.logs_requests {
                    let (from, dialect) = before();
                    let head = dialect.head(&worker.limits, &data[from..]);
                    self.execute_logged(turn.context, head, request, turn.output)
                } else {
                    self.execute(turn.context, request, turn.output)
                };
                match next {
                    NextAction::Continue if turn.output.len() > OUTPUT_MAX && index + 1 < len => {
                        (*at, self.dialect) = after[index];
                        return Ok(NextAction::Flush);
                    }
                    NextAction::Continue => {}
                    NextAction::Wait if self.is_parked() => {
                        // The request is decoded again once its reply has arrived, and is answered
                        // then. If it waits for a lock, it is executed then.
                        (*at, self.dialect) = before();
                        if turn.context.executor.runs_ahead(self.database) {
                            self.run_ahead(turn.context, &batch[index..]);
                        }
                        return Ok(NextAction::Wait);
                    }
                    next => return Ok(next),
                }
            }
            if self.listing.is_some() {
                return Ok(NextAction::Continue);
            }
            *turn.budget -= lines;
            if let Some(end) = end {
                return end;
            }
        }
    }

    /// Serves the rest of the input if it is a short line with a single request, such as a `get`.
    /// Such a request needs no batch. Otherwise changes nothing and returns `None`.
    #[inline]
    fn serve_line(
        &mut self,
        worker: &mut MemcachedWorker,
        turn: &mut SessionTurn<'_>,
        data: &[u8],
        at: &mut usize,
    ) -> Option<NextAction> {
        let line = &data[*at..];
        let (b'\n', before_end) = line.split_last()? else { return None };
        let is_plain = line.len() <= SHORT_LINE && !before_end.contains(&b'\n');
        if !is_plain || turn.context.logs_requests {
            return None;
        }
        let may_be_tyrant = self.tyrant != TyrantMode::Off
            && (!self.dialect.is_before_line() || turn.context.shared.begins_tyrant(line[0]));
        if may_be_tyrant {
            return None;
        }
        let before = self.dialect;
        match self.dialect.decode(&worker.limits, line, &mut worker.scratch[0]) {
            Decoded::Request { consumed, request }
                if consumed == line.len() && request.form.is_last_of_line() =>
            {
                let next = self.execute(turn.context, &request, turn.output);
                if matches!(next, NextAction::Wait) && self.is_parked() {
                    // The request is decoded again once its reply has arrived.
                    self.dialect = before;
                    return Some(next);
                }
                *at += consumed;
                if !matches!(next, NextAction::Continue) || self.listing.is_some() {
                    return Some(next);
                }
                *turn.budget -= 1;
                Some(NextAction::READ)
            }
            _ => {
                self.dialect = before;
                None
            }
        }
    }

    /// Begins the operations that directly follow a pending one, so that the connection waits for
    /// all of them at the same time. Of several operations on one record, the later ones wait.
    #[cold]
    fn run_ahead(&mut self, context: &mut WorkerContext, batch: &[Option<MemcachedRequest<'_>>]) {
        let is_observed = context.logs_requests || context.shared.observation.observers.is_active();
        // Tokyo Tyrant's session checks each request before it is executed.
        if !self.pending.is_waiting() || is_observed || self.is_of_tyrant() {
            return;
        }
        let mut keys = Vec::new();
        for (index, request) in batch.iter().flatten().enumerate() {
            let MemcachedCommand::Operation(operation) = &request.command else { return };
            let Some(key) = operation.key().filter(|key| !keys.contains(key)) else { return };
            if request.form.closes() || request.form.freshness().is_some() {
                return;
            }
            keys.push(key);
            if index == 0 {
                continue;
            }
            if let (Some(spans), Some(traced)) = (&mut context.spans, traced(self.database, request)) {
                spans.begin(context.waits.connection, &traced);
            }
            match context.executor.execute(self.database, operation, &mut |_| ()) {
                Completion::Pending(ticket) => self.pending.add(ticket, &mut context.waits),
                Completion::Done => return,
            }
        }
    }

    /// Answers the requests whose replies have arrived. The first request is at the start of
    /// `data`, or is the head of an upload; the others were run ahead.
    #[cold]
    fn end_pending(
        &mut self,
        worker: &mut MemcachedWorker,
        turn: &mut SessionTurn<'_>,
        data: &[u8],
        at: &mut usize,
    ) -> NextAction {
        loop {
            let next = self.end_first_pending(worker, turn, data, at);
            if !matches!(next, NextAction::Continue) || !self.pending.is_ready() {
                self.pending.abandon(turn.context);
                return next;
            }
        }
    }

    /// Answers the first request whose reply has arrived.
    fn end_first_pending(
        &mut self,
        worker: &mut MemcachedWorker,
        turn: &mut SessionTurn<'_>,
        data: &[u8],
        at: &mut usize,
    ) -> NextAction {
        let uploaded = self.uploaded.take();
        let scratch = &mut worker.scratch[0];
        let decoded = match &uploaded {
            Some(uploaded) => {
                let (upload, received) = &**uploaded;
                self.dialect.decode_block(&worker.limits, upload.head(), received.block(), scratch)
            }
            // The request was complete before, so it may be longer than the memory that is
            // available for incomplete requests now.
            None => {
                let limits = MemcachedLimits { unfinished_len_max: usize::MAX, ..worker.limits };
                self.dialect.decode(&limits, &data[*at..], scratch)
            }
        };
        let next = match decoded {
            Decoded::Request { consumed, request } => {
                if uploaded.is_none() {
                    *at += consumed;
                }
                self.answer_pending(turn.context, &request, turn.output)
            }
            Decoded::NeedMore { .. } | Decoded::Block { .. } | Decoded::Close => NextAction::Close,
        };
        *turn.budget = turn.budget.saturating_sub(1);
        next
    }

    /// Returns true if the session waits with a request that it keeps.
    fn is_parked(&self) -> bool {
        self.pending.is_waiting() || matches!(self.lock_wait, LockWait::Waiting(_))
    }

    /// Executes the request whose long value has been received. Keeps both if the session has to
    /// wait.
    fn end_upload(
        &mut self,
        worker: &mut MemcachedWorker,
        turn: &mut SessionTurn<'_>,
        uploaded: Box<(ValueUpload, ReceivedValue)>,
    ) -> NextAction {
        let dialect = self.dialect;
        let next = self.execute_upload(worker, turn, &uploaded.0, &uploaded.1);
        if self.is_parked() {
            self.dialect = dialect;
            self.uploaded = Some(uploaded);
        } else {
            *turn.budget = turn.budget.saturating_sub(1);
        }
        next
    }

    fn execute_upload(
        &mut self,
        worker: &mut MemcachedWorker,
        turn: &mut SessionTurn<'_>,
        upload: &ValueUpload,
        received: &ReceivedValue,
    ) -> NextAction {
        let head = self.dialect.head(&worker.limits, upload.head());
        let block = received.block();
        match self.dialect.decode_block(&worker.limits, upload.head(), block, &mut worker.scratch[0]) {
            Decoded::Request { request, .. } if turn.context.logs_requests => {
                self.execute_logged(turn.context, head, &request, turn.output)
            }
            Decoded::Request { request, .. } => self.execute(turn.context, &request, turn.output),
            // The head was decoded successfully before, so these results cannot occur.
            Decoded::NeedMore { .. } | Decoded::Block { .. } | Decoded::Close => NextAction::Close,
        }
    }
}

impl Session for MemcachedSession {
    type Worker = MemcachedWorker;

    fn begin_turn(&mut self) {
        self.is_reply_begun = self.listing.is_some() || self.dialect.is_between_keys();
    }

    fn advance(
        &mut self,
        worker: &mut MemcachedWorker,
        turn: &mut SessionTurn<'_>,
        input: &[u8],
    ) -> SessionProgress {
        worker.limits.long_block_len = turn.context.shared.databases[self.database].long_block_len();
        worker.limits.choice = self.choice;
        worker.limits.unfinished_len_max = turn.room;
        if !self.is_introduced && !input.is_empty() {
            self.is_introduced = true;
            if turn.context.logs_requests && self.choice == DialectChoice::Auto {
                let is_binary = self.dialect.begins_binary(&worker.limits, input);
                turn.context
                    .shared
                    .observation
                    .log_request(|entry| entry.chosen(turn.context.descriptor, is_binary));
            }
        }
        if self.pending_login.is_some() {
            self.end_login(turn);
        }
        let mut consumed = 0;
        if self.pending.is_ready() {
            let next = self.end_pending(worker, turn, input, &mut consumed);
            if next.is_last() {
                return SessionProgress { consumed, next };
            }
        }
        if std::mem::take(&mut self.lock_wait) == LockWait::Over
            && let Some(uploaded) = self.uploaded.take()
        {
            let next = self.end_upload(worker, turn, uploaded);
            if next.is_last() || self.is_parked() {
                return SessionProgress { consumed, next };
            }
        }
        let next = loop {
            if let Some(listing) = &mut self.listing {
                let is_over = listing.step(turn.output);
                if is_over {
                    self.listing = None;
                }
                if !is_over || turn.output.len() > OUTPUT_MAX {
                    break NextAction::Flush;
                }
            }
            if let Some(upload) = &mut self.upload {
                let (served, received) =
                    upload.receive(&input[consumed..], self.database, &turn.context.executor);
                consumed += served;
                let Some(received) = received else { break NextAction::Read { at_least: upload.missing() } };
                let upload = self.upload.take().expect("the upload was set above");
                let next = self.end_upload(worker, turn, Box::new((upload, received)));
                if next.is_last() || self.is_parked() {
                    break next;
                }
                continue;
            }
            match self.serve_all(worker, turn, input, &mut consumed) {
                Ok(NextAction::Continue) => {}
                Ok(next) => break next,
                Err(announced) => {
                    let head = &input[consumed..consumed + announced.head_len];
                    consumed += head.len();
                    self.upload =
                        Some(ValueUpload::new(head, announced, self.database, &turn.context.executor));
                }
            }
        };
        SessionProgress { consumed, next }
    }

    fn wake(&mut self, wake: WakeReason, context: &mut WorkerContext) -> bool {
        if self.pending.is_complete_with(wake, &mut context.waits) {
            return true;
        }
        if let LockWait::Waiting(ticket) = self.lock_wait
            && [WakeReason::Ready(ticket), WakeReason::TimedOut(ticket), WakeReason::Cancelled]
                .contains(&wake)
        {
            context.waits.leave(ticket);
            self.lock_wait = LockWait::Over;
            return true;
        }
        match (wake, &self.pending_login) {
            (WakeReason::Ready(ticket), Some(pending)) if ticket == pending.ticket => {
                context.waits.leave(ticket);
                true
            }
            _ => false,
        }
    }

    fn is_waiting(&self) -> bool {
        self.is_parked() || self.login.is_waiting()
    }

    fn ends_with_reset(&self) -> bool {
        self.pending.is_waiting()
    }

    fn has_work(&self) -> bool {
        let is_resumed = self.pending.is_some() || self.lock_wait == LockWait::Over;
        self.listing.is_some() || self.pending_login.is_some() || is_resumed
    }

    fn upload(&mut self) -> Option<(&mut ValueUpload, usize)> {
        self.upload.as_mut().map(|upload| (upload, self.database))
    }

    fn is_receiving(&self) -> bool {
        self.upload.is_some()
    }

    fn refuse(&self, refusal: RefusalReason, output: &mut ConnectionOutput) {
        if !self.dialect.is_binary() && !self.is_reply_begun {
            encode(&ReplyForm::LINE, &Reply::Refused(refusal), output);
        }
    }

    fn retained(&self) -> RetainedMemory {
        let uploaded = || self.uploaded.as_ref().map(|uploaded| &uploaded.0);
        self.upload.as_ref().or_else(uploaded).map_or(RetainedMemory::default(), ValueUpload::retained)
    }

    fn leave(&mut self, context: &mut WorkerContext) {
        self.pending.abandon(context);
        if let LockWait::Waiting(ticket) = self.lock_wait {
            context.waits.leave(ticket);
        }
        if let Some(pending) = &self.pending_login {
            context.waits.leave(pending.ticket);
        }
    }
}

/// Returns true if later requests may be decoded only after this one has been executed. Input after
/// a quit is ignored. Input after a login, or after a command that walks over all records, is
/// served later.
fn ends_batch(command: &MemcachedCommand<'_>) -> bool {
    matches!(
        command,
        MemcachedCommand::Quit
            | MemcachedCommand::List(_)
            | MemcachedCommand::Watch(_)
            | MemcachedCommand::Export(_)
            | MemcachedCommand::UseDatabase(_)
            | MemcachedCommand::Stats { .. }
            | MemcachedCommand::Authenticate(_)
    )
}

/// Returns the key of a command.
#[inline]
fn key_of<'a>(command: &MemcachedCommand<'a>) -> Option<&'a [u8]> {
    if let MemcachedCommand::Operation(operation) = command { operation.key() } else { None }
}
