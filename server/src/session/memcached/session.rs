//! memcached's session: its decoder, its login, and what goes on over several turns.

use super::listing::Listing;
use super::upload::Upload;
use crate::databases::exports::Receiving;
use crate::session::flow::{Announced, BATCH, Execute, Flow, Pause};
use crate::session::login::Login;
use crate::transport::output::{OUTPUT_MAX, Output};
use todana_core::Command;
use todana_protocol::memcached::{Choice, Dialect, Limits, Request, Step};

/// A connection that speaks one of memcached's dialects.
pub(crate) struct MemcachedSession {
    dialect: Dialect,
    /// The dialect that it may speak.
    pub(crate) choice: Choice,
    /// The number of the database that its commands go to.
    pub(crate) database: usize,
    /// How far its client has come with saying who they are.
    login: Login,
    /// The long value that is being received.
    pub(crate) upload: Option<Upload>,
    /// A walk over all records is under way; `Some(None)`: it is about to begin.
    listing: Option<Option<Box<Listing>>>,
    /// It has sent its first byte, and so which dialect it speaks.
    is_introduced: bool,
    /// When it began to wait for the update log, a part of the reply that it was in had left already.
    is_amid_reply: bool,
    /// It watches events; its input is read and dropped.
    pub(crate) watches: bool,
    /// An export is under way; further requests of its client come later.
    pub(crate) export: Option<Receiving>,
}

/// What a turn lends its session.
pub(crate) struct Turn<'t, E> {
    pub(crate) limits: &'t Limits,
    /// Requests that are left of its share.
    pub(crate) budget: &'t mut u32,
    pub(crate) scratch: &'t mut [Vec<u8>; BATCH],
    pub(crate) service: &'t mut E,
    pub(crate) output: &'t mut Output,
}

/// How far a session has come with its input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advance {
    /// Bytes that are done with.
    pub(crate) consumed: usize,
    /// Bytes that the next request needs besides, at least.
    pub(crate) wanted: usize,
    pub(crate) pause: Pause,
}

impl MemcachedSession {
    pub(crate) fn new(choice: Choice) -> MemcachedSession {
        MemcachedSession {
            dialect: Dialect::default(),
            choice,
            database: 0,
            login: Login::default(),
            upload: None,
            listing: None,
            is_introduced: false,
            is_amid_reply: false,
            watches: false,
            export: None,
        }
    }

    /// Notes whether a reply has begun to leave.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        self.is_amid_reply = self.listing.is_some() || self.dialect.is_between_keys();
    }

    /// Returns true if an error can be sent outside of any reply.
    pub(crate) fn can_be_told(&self) -> bool {
        !self.dialect.is_binary() && !self.is_amid_reply
    }

    /// Returns true if a password is being checked.
    pub(crate) fn is_waiting(&self) -> bool {
        self.login.is_waiting()
    }

    /// Returns true if there is something to do before anything is read.
    pub(crate) fn has_work(&self) -> bool {
        self.listing.is_some()
    }

    /// Serves `data`, and goes on with what is under way.
    pub(crate) fn advance<E: Execute>(&mut self, data: &[u8], turn: &mut Turn<'_, E>) -> Advance {
        if !self.is_introduced && !data.is_empty() {
            self.is_introduced = true;
            if turn.service.is_aloud() && self.choice == Choice::Auto {
                turn.service.tell_dialect(self.dialect.begins_binary(turn.limits, data));
            }
        }
        let mut consumed = 0;
        let (wanted, pause) = loop {
            if let Some(listing) = self.listing.take() {
                self.listing = turn.service.list(listing, turn.output).map(Some);
                if self.listing.is_some() || turn.output.len() > OUTPUT_MAX {
                    break (0, Pause::Blocked);
                }
            }
            if let Some(upload) = &mut self.upload {
                let (served, received) = upload.receive(&data[consumed..], turn.service);
                consumed += served;
                let Some(block) = received else { break (upload.missing(), Pause::NeedsInput) };
                let upload = self.upload.take().expect("it was here above");
                let flow = upload.execute(
                    block,
                    &mut self.dialect,
                    &mut self.login,
                    turn.limits,
                    &mut turn.scratch[0],
                    turn.service,
                    turn.output,
                );
                *turn.budget = turn.budget.saturating_sub(1);
                if flow == Flow::Close {
                    break (0, Pause::Closes);
                }
                continue;
            }
            let (served, wanted, pause) = self.serve_all(&data[consumed..], turn);
            consumed += served;
            match pause {
                Pause::Lists => self.listing = Some(None),
                Pause::Receives(announced) => {
                    let head = &data[consumed..consumed + announced.head_len];
                    consumed += head.len();
                    self.upload = Some(Upload::new(head, announced, turn.service));
                }
                pause => break (wanted, pause),
            }
        };
        self.watches = pause == Pause::Watches;
        Advance { consumed, wanted, pause }
    }

    /// Serves as many requests as there are, and as its share allows.
    fn serve_all<E: Execute>(&mut self, data: &[u8], turn: &mut Turn<'_, E>) -> (usize, usize, Pause) {
        let mut at = 0;
        loop {
            if *turn.budget == 0 {
                // With nothing left to serve, its turn would have been over anyway: memcached counts no yield for that.
                let pause = if at == data.len() { Pause::NeedsInput } else { Pause::Yields };
                return (at, 0, pause);
            }
            if turn.output.len() > OUTPUT_MAX {
                return (at, 0, Pause::Blocked);
            }
            let mut batch: [Option<Request<'_>>; BATCH] = [const { None }; BATCH];
            // Where the decoder stood behind each request: the reader may turn out too slow for all of them.
            let start = (at, self.dialect);
            let mut behind = [start; BATCH];
            let mut len = 0;
            let mut end = None;
            let mut lines = 0;
            for slot in turn.scratch.iter_mut() {
                if lines == *turn.budget {
                    break;
                }
                match self.dialect.decode(turn.limits, &data[at..], slot) {
                    Step::Request { consumed, request } => {
                        at += consumed;
                        // The keys of one line share its turn.
                        lines += u32::from(request.form.is_last_of_line());
                        // Nothing behind a quit is looked at; what is behind a walk over all records or a login, later.
                        let quits = matches!(
                            request.command,
                            Command::Quit
                                | Command::List(_)
                                | Command::Watch(_)
                                | Command::Export(_)
                                | Command::UseDatabase(_)
                                | Command::Stats { .. }
                                | Command::Authenticate(_)
                        );
                        batch[len] = Some(request);
                        behind[len] = (at, self.dialect);
                        len += 1;
                        if quits {
                            break;
                        }
                    }
                    Step::NeedMore { consumed, at_least } => {
                        at += consumed;
                        end = Some((at_least, Pause::NeedsInput));
                        break;
                    }
                    Step::Block { consumed, head_len, value_len, end_len } => {
                        at += consumed;
                        end = Some((0, Pause::Receives(Announced { head_len, value_len, end_len })));
                        break;
                    }
                    Step::Close => {
                        end = Some((0, Pause::Fails));
                        break;
                    }
                }
            }
            let batch = &batch[..len];
            if len > 1 {
                batch
                    .iter()
                    .flatten()
                    .filter_map(|request| key_of(&request.command))
                    .for_each(|key| turn.service.prefetch(key));
            }
            for (index, request) in batch.iter().flatten().enumerate() {
                let flow = if turn.service.is_aloud() {
                    let (from, before) = if index == 0 { start } else { behind[index - 1] };
                    turn.service.execute_aloud(
                        before.head(turn.limits, &data[from..]),
                        request,
                        &mut self.login,
                        turn.output,
                    )
                } else {
                    turn.service.execute(request, &mut self.login, turn.output)
                };
                match flow {
                    Flow::Continue if turn.output.len() > OUTPUT_MAX && index + 1 < len => {
                        (at, self.dialect) = behind[index];
                        return (at, 0, Pause::Blocked);
                    }
                    Flow::Continue => {}
                    Flow::List => return (at, 0, Pause::Lists),
                    Flow::Watch => return (at, 0, Pause::Watches),
                    Flow::Export => return (at, 0, Pause::Exports),
                    Flow::Use => return (at, 0, Pause::Yields),
                    Flow::Admit => self.dialect.admit(),
                    Flow::Expel => self.dialect.expel(),
                    Flow::Wait => {
                        (at, self.dialect) = if index == 0 { start } else { behind[index - 1] };
                        return (at, 0, Pause::Waits);
                    }
                    Flow::Close => return (at, 0, Pause::Closes),
                }
            }
            *turn.budget -= lines;
            if let Some((wanted, pause)) = end {
                return (at, wanted, pause);
            }
        }
    }
}

/// The key that a command looks for.
#[inline]
fn key_of<'a>(command: &Command<'a>) -> Option<&'a [u8]> {
    match command {
        Command::Get(get) => Some(get.key),
        Command::Store(store) => Some(store.key),
        Command::Delete(delete) => Some(delete.key),
        Command::Arithmetic(arithmetic) => Some(arithmetic.key),
        Command::Touch(touch) => Some(touch.key),
        _ => None,
    }
}
