//! Requests over HTTP, executed as the commands that they correspond to.

use super::http_call::HttpCall;
use super::operations::{counters, get_shared, is_table};
use super::session_state::{TyrantSession, TyrantWorker};
use super::statistics::statistics;
use crate::databases::PRIMARY_DATABASE;
use crate::session::worker_context::WorkerContext;
use crate::session::{NextAction, SessionTurn};
use crate::shared::SharedState;
use crate::transport::output::ConnectionOutput;
use std::fmt::Write;
use todana_core::Reply;
use todana_protocol::ReplySink;
use todana_protocol::tyrant::{
    FieldBuffer, HttpFunction, HttpStep, TyrantCommand, TyrantForm, TyrantHttpMethod, TyrantHttpRequest,
    TyrantLimits, TyrantPutMode, TyrantRequest, decode_http, put_http_head, put_http_status, reply,
};

impl TyrantSession {
    /// Serves the next request, which may be HTTP.
    pub(super) fn serve_http(
        &mut self,
        worker: &mut TyrantWorker,
        turn: &mut SessionTurn<'_>,
        limits: &TyrantLimits,
        input: &[u8],
        at: &mut usize,
    ) -> NextAction {
        match decode_http(limits, &input[*at..]) {
            HttpStep::NeedMore { at_least } => NextAction::Read { at_least },
            HttpStep::Close => NextAction::Fail,
            HttpStep::Request { consumed, request } => {
                let next = self.execute_http(worker, turn.context, &request, turn.output);
                if self.pending.is_waiting() {
                    return NextAction::Wait;
                }
                self.pending.abandon(turn.context);
                *at += consumed;
                *turn.budget -= 1;
                next
            }
        }
    }

    /// Executes a request, and answers it.
    fn execute_http(
        &mut self,
        worker: &mut TyrantWorker,
        context: &mut WorkerContext,
        request: &TyrantHttpRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let key = &*request.key;
        if let Some(command) = command_of(request) {
            let is_head = request.method == TyrantHttpMethod::Head;
            let is_forbidden =
                context.shared.options.protocols.tyrant.mask.forbids(command, TyrantForm::Http);
            if is_forbidden && is_head {
                output.put(b"HTTP/1.1 403 Forbidden\r\n\r\n");
            } else if is_forbidden {
                put_http_status("403 Forbidden", output);
            }
            if is_forbidden {
                return HttpCall { is_misc: false, keeps_alive: request.keeps_alive }.next();
            }
        }
        match request.method {
            TyrantHttpMethod::Get | TyrantHttpMethod::Head => {
                self.get_http(context, key, request.method == TyrantHttpMethod::Head, output);
            }
            TyrantHttpMethod::Put(mode) => {
                let failure = match mode {
                    TyrantPutMode::Keep => "409 Conflict",
                    _ => "500 Internal Server Error",
                };
                let call = TyrantRequest::Put { mode, key, value: request.body };
                self.change_http(worker, context, &call, ["201 Created", failure], output);
            }
            TyrantHttpMethod::Delete => {
                let statuses = ["200 OK", "404 Not Found"];
                self.change_http(worker, context, &TyrantRequest::Out { key }, statuses, output);
            }
            TyrantHttpMethod::Options => {
                put_options(&context.shared, output);
                counters(context).of(TyrantCommand::Stat).add(1);
            }
            TyrantHttpMethod::Post => return self.call_http(worker, context, request, output),
        }
        HttpCall { is_misc: false, keeps_alive: request.keeps_alive }.next()
    }

    /// Answers the value of a record, or only its length. On a table, the empty key has no record
    /// that clients see.
    fn get_http(
        &mut self,
        context: &mut WorkerContext,
        key: &[u8],
        is_head: bool,
        output: &mut ConnectionOutput,
    ) {
        let mut answer = |reply: Reply<'_>| match reply {
            Reply::Hit(hit) => {
                put_http_head(hit.record.value.len(), output);
                match hit.record.shared {
                    _ if is_head => {}
                    Some(shared) => output.share(shared),
                    None => output.put(hit.record.value),
                }
            }
            _ if is_head => output.put(b"HTTP/1.1 404 Not Found\r\n\r\n"),
            _ => put_http_status("404 Not Found", output),
        };
        if key.is_empty() && is_table(context) {
            answer(Reply::Miss);
        } else {
            self.pending.execute(context, PRIMARY_DATABASE, &get_shared(key), &mut answer);
        }
        if !self.pending.is_waiting() {
            let command = if is_head { TyrantCommand::VSiz } else { TyrantCommand::Get };
            counters(context).of(command).add(1);
        }
    }

    /// Changes a record as the binary protocol does, and answers one of two statuses.
    fn change_http(
        &mut self,
        worker: &mut TyrantWorker,
        context: &mut WorkerContext,
        call: &TyrantRequest<'_>,
        [success, failure]: [&str; 2],
        output: &mut ConnectionOutput,
    ) {
        let mut reply = ConnectionOutput::default();
        self.execute_allowed(worker, context, call, &mut reply);
        if !self.pending.is_waiting() {
            let is_done = reply.copied_from(0) == [reply::SUCCESS];
            put_http_status(if is_done { success } else { failure }, output);
        }
    }

    /// Calls a function.
    fn call_http(
        &mut self,
        worker: &mut TyrantWorker,
        context: &mut WorkerContext,
        request: &TyrantHttpRequest<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        let arguments = match request.function {
            HttpFunction::Misc(..) => request.arguments(),
            _ => Some(FieldBuffer::default()),
        };
        let Some(arguments) = arguments else {
            put_http_status("500 Internal Server Error", output);
            return HttpCall { is_misc: true, keeps_alive: request.keeps_alive }.next();
        };
        let (is_misc, call) = match request.function {
            HttpFunction::None => {
                put_http_status("400 Bad Request", output);
                return HttpCall { is_misc: false, keeps_alive: request.keeps_alive }.next();
            }
            HttpFunction::Script(name, options) => {
                (false, TyrantRequest::Ext { name, options, key: &request.key, value: request.body })
            }
            HttpFunction::Misc(name, options) => {
                (true, TyrantRequest::Misc { name, options, arguments: arguments.list() })
            }
        };
        let http = HttpCall { is_misc, keeps_alive: request.keeps_alive };
        let mut reply = ConnectionOutput::default();
        let next = self.execute_allowed(worker, context, &call, &mut reply);
        if self.pending.is_waiting() {
            return next;
        }
        if matches!(next, NextAction::Wait) {
            // The reply of the job becomes the answer.
            self.http = Some(http);
            return next;
        }
        http.put_answer(&reply.into_bytes(), output);
        http.next()
    }
}

/// Returns the command that a request counts as.
fn command_of(request: &TyrantHttpRequest<'_>) -> Option<TyrantCommand> {
    Some(match request.method {
        TyrantHttpMethod::Get => TyrantCommand::Get,
        TyrantHttpMethod::Head => TyrantCommand::VSiz,
        TyrantHttpMethod::Put(TyrantPutMode::Keep) => TyrantCommand::PutKeep,
        TyrantHttpMethod::Put(TyrantPutMode::Cat) => TyrantCommand::PutCat,
        TyrantHttpMethod::Put(_) => TyrantCommand::Put,
        TyrantHttpMethod::Delete => TyrantCommand::Out,
        TyrantHttpMethod::Options => TyrantCommand::Stat,
        TyrantHttpMethod::Post => match request.function {
            HttpFunction::Script(..) => TyrantCommand::Ext,
            HttpFunction::Misc(..) => TyrantCommand::Misc,
            HttpFunction::None => return None,
        },
    })
}

/// Answers OPTIONS: the allowed methods, and the statistics as headers.
fn put_options(shared: &SharedState, output: &mut ConnectionOutput) {
    let mask = shared.options.protocols.tyrant.mask;
    let mut head = String::from("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nAllow: OPTIONS");
    for (name, command) in [
        ("GET", TyrantCommand::Get),
        ("HEAD", TyrantCommand::VSiz),
        ("PUT", TyrantCommand::Put),
        ("POST", TyrantCommand::Ext),
        ("DELETE", TyrantCommand::Out),
    ] {
        if !mask.forbids(command, TyrantForm::Http) {
            let _ = write!(head, ", {name}");
        }
    }
    head.push_str("\r\n");
    let text = statistics(shared, false);
    let facts = text.lines().take_while(|line| !line.starts_with("cnt_"));
    let (mut facts, mut times): (Vec<&str>, Vec<&str>) = facts.partition(|line| !line.starts_with("ru_"));
    // The time since the start precedes those of the processor here.
    times.rotate_right(1);
    facts.append(&mut times);
    for line in facts {
        let (name, value) = line.split_once('\t').unwrap_or((line, ""));
        let _ = write!(head, "X-TT-{}: {value}\r\n", name.to_ascii_uppercase());
    }
    head.push_str("\r\n");
    output.put(head.as_bytes());
}
