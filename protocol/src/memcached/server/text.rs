//! The text commands, and which command a line is.

use super::form::{Form, Shape, ValueForm, Verb};
use super::frame::{Block, Frame, line_body};
use super::words::{Words, ends_in_noreply, last_word, word_len};
use super::{BAD_FORMAT, Dialect, KEY_LEN_MAX, Limits, Mode, Request, Step, administration, meta, number};
use crate::memcached::item_size;
use crate::memcached::{ClockShift, Command};
use todana_core::{
    Arithmetic, ArithmeticDirection, CommandFamily, Delete, Get, Operation, RefusalReason, RefusedStore,
    ReplyNeeds, Store, StoreMode, Touch, Ttl,
};

/// The shortest line that is looked at, its end included.
const LINE_LEN_MIN: usize = 4;

const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";

/// Decodes one line, and the data block that it announces.
#[inline]
pub(super) fn decode<'a>(
    dialect: &mut Dialect,
    limits: &Limits,
    frame: Frame<'a>,
    scratch: &'a mut Vec<u8>,
) -> Step<'a> {
    let line = frame.line();
    let command = &line[..word_len(line)];
    let words = Words::new(&line[command.len()..]);
    // `mn` without `\r` is the one short line that is let through: 1.6.45 refuses it, 1.6.18 does not.
    if frame.line_len < LINE_LEN_MIN && command != b"mn" {
        return frame.fault(BAD_FORMAT, Form::LINE);
    }
    match command {
        b"get" => gets(dialect, frame, words, Retrieval::default()),
        b"set" => store(dialect, limits, frame, words, StoreMode::Set, false),
        b"mg" => meta::decode(dialect, limits, frame, words, Verb::Get, scratch),
        b"ms" => meta::decode(dialect, limits, frame, words, Verb::Store, scratch),
        b"md" => meta::decode(dialect, limits, frame, words, Verb::Delete, scratch),
        b"ma" => meta::decode(dialect, limits, frame, words, Verb::Arithmetic, scratch),
        b"mn" => frame.request(Command::Operation(Operation::Noop), Form(Shape::Noop)),
        b"gets" => gets(dialect, frame, words, Retrieval { with_version: true, ..Retrieval::default() }),
        b"gat" => gats(dialect, limits, frame, words, false),
        b"gats" => gats(dialect, limits, frame, words, true),
        b"delete" => delete(frame, words),
        b"incr" => arithmetic(frame, words, ArithmeticDirection::Increment),
        b"decr" => arithmetic(frame, words, ArithmeticDirection::Decrement),
        b"touch" => touch(limits, frame, words),
        b"add" => store(dialect, limits, frame, words, StoreMode::Add, false),
        b"cas" => store(dialect, limits, frame, words, StoreMode::Set, true),
        b"replace" => store(dialect, limits, frame, words, StoreMode::Replace, false),
        b"append" => store(dialect, limits, frame, words, StoreMode::Append, false),
        b"prepend" => store(dialect, limits, frame, words, StoreMode::Prepend, false),
        b"me" => meta::decode(dialect, limits, frame, words, Verb::Inspect, scratch),
        b"version" => frame.request(Command::Version, Form::LINE),
        b"stats" => frame.request(Command::Stats { group: stats_group(words) }, Form::LINE),
        b"flush_all" => flush_all(limits, frame, words),
        b"verbosity" => verbosity(frame, words),
        b"cache_memlimit" => cache_memlimit(frame, words),
        b"shutdown" => shutdown(frame, words),
        b"refresh_certs" => refresh_certs(frame),
        b"debugtime" if limits.debug_commands => debugtime(frame, words),
        b"lru_crawler" | b"watch" | b"slabs" | b"lru" | b"extstore" | b"todana" => {
            administration::decode(frame, command, words)
        }
        b"quit" => frame.request(Command::Quit, Form::SILENT),
        _ => unknown(frame),
    }
}

/// The time to live that a number asks for.
#[inline]
fn ttl(limits: &Limits, exptime: i32) -> Ttl {
    if exptime < 0 && limits.negative_is_sliding {
        Ttl::Sliding(exptime.unsigned_abs())
    } else {
        Ttl::from_memcached(exptime.into())
    }
}

/// What the keys of one get line have in common.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retrieval {
    /// The new time to live (`gat`, `gats`).
    touch: Option<Ttl>,
    /// `gets`, `gats`.
    with_version: bool,
    /// How many bytes of the line are left, its end included.
    left: usize,
}

/// The keys of a get line. All of them are checked before the first is served: one that is too long spoils
/// the whole reply.
#[inline]
fn gets<'a>(dialect: &mut Dialect, frame: Frame<'a>, words: Words<'a>, retrieval: Retrieval) -> Step<'a> {
    let mut others = words;
    let Some(first) = others.next() else { return frame.fault(BAD_FORMAT, Form::LINE) };
    if first.len() > KEY_LEN_MAX {
        return frame.fault(BAD_FORMAT, Form::LINE);
    }
    if others.is_empty() {
        return frame.request(retrieval.command(first), retrieval.form(first, true));
    }
    if others.any(|key| key.len() > KEY_LEN_MAX) {
        return frame.fault(BAD_FORMAT, Form::LINE);
    }
    let before = frame.line().len() - words.rest().len();
    let keys = &frame.unread[before..];
    let retrieval = Retrieval { left: frame.line_len - before, ..retrieval };
    match next_key(dialect, retrieval, keys) {
        Step::Request { consumed, request } => {
            Step::Request { consumed: frame.skipped + before + consumed, request }
        }
        step => step,
    }
}

/// `gat` and `gats`: a time to live, then as `get`.
fn gats<'a>(
    dialect: &mut Dialect,
    limits: &Limits,
    frame: Frame<'a>,
    mut words: Words<'a>,
    with_version: bool,
) -> Step<'a> {
    let Some(exptime) = words.next() else { return frame.fault(BAD_FORMAT, Form::LINE) };
    if words.is_empty() {
        return frame.fault(BAD_FORMAT, Form::LINE);
    }
    let Some(exptime) = number::signed(exptime) else { return frame.fault(BAD_EXPTIME, Form::LINE) };
    let touch = Some(ttl(limits, exptime));
    gets(dialect, frame, words, Retrieval { touch, with_version, left: 0 })
}

/// The next key of a line that has been checked; `unread` starts in that line, behind the keys before.
pub(super) fn next_key<'a>(dialect: &mut Dialect, retrieval: Retrieval, unread: &'a [u8]) -> Step<'a> {
    let Some(rest_of_line) = unread.get(..retrieval.left) else {
        return Step::NeedMore { consumed: 0, at_least: retrieval.left - unread.len() };
    };
    let line = line_body(rest_of_line);
    let mut words = Words::new(line);
    // There always is one: the line was left standing at a key.
    let key = words.next().unwrap_or_default();
    let is_last = words.is_empty();
    let consumed = if is_last { retrieval.left } else { line.len() - words.rest().len() };
    dialect.mode = if is_last {
        Mode::Line { scanned: 0 }
    } else {
        Mode::Keys(Retrieval { left: retrieval.left - consumed, ..retrieval })
    };
    let request = Request { command: retrieval.command(key), form: retrieval.form(key, is_last) };
    Step::Request { consumed, request }
}

impl Retrieval {
    #[inline]
    fn command<'a>(&self, key: &'a [u8]) -> Command<'a> {
        Command::Operation(Operation::Get(Get {
            key,
            touch: self.touch,
            needs: ReplyNeeds { version: self.with_version, access: false },
            counts_as_touch: self.touch.is_some(),
            family: CommandFamily::Text,
            ..Get::default()
        }))
    }

    #[inline]
    fn form<'a>(&self, key: &'a [u8], is_last: bool) -> Form<'a> {
        Form(Shape::Value(ValueForm { key, with_version: self.with_version, is_last }))
    }
}

/// `set`, `add`, `replace`, `append`, `prepend` and (with `is_cas`) `cas`.
///
/// Until the words are complete and the length is known, nothing is silenced and no block is dropped. After
/// that the block is dropped with whatever else is wrong.
#[inline]
fn store<'a>(
    dialect: &mut Dialect,
    limits: &Limits,
    frame: Frame<'a>,
    mut words: Words<'a>,
    mode: StoreMode,
    is_cas: bool,
) -> Step<'a> {
    let (key, flags, exptime, len) = (words.next(), words.next(), words.next(), words.next());
    let (Some(key), Some(flags), Some(exptime), Some(len)) = (key, flags, exptime, len) else {
        return frame.fault(BAD_FORMAT, Form::LINE);
    };
    let Some(value_len) = number::value_len(len) else { return frame.fault(BAD_FORMAT, Form::LINE) };

    let form = Form::store_line_unless(ends_in_noreply(frame.line()));
    // A missing version is a bad one: clients send the block all the same.
    let unique = if is_cas { words.next().and_then(number::unsigned) } else { Some(0) };
    let numbers = (number::client_flags(flags), number::expiry(exptime), unique);
    let (Some(flags), Some(exptime), Some(unique)) = numbers else {
        return frame.without_block(dialect, value_len, Command::Faulty { message: BAD_FORMAT }, form);
    };
    if key.len() > KEY_LEN_MAX {
        return frame.without_block(dialect, value_len, Command::Faulty { message: BAD_FORMAT }, form);
    }
    // The client of a plain set believes its old value gone; the others have promised nothing.
    let discards = mode == StoreMode::Set && !is_cas;
    let refused = |refusal| {
        let compares = is_cas;
        Command::Operation(Operation::RefusedStore(RefusedStore {
            key,
            value_len,
            flags,
            mode,
            compares,
            discards,
            refusal,
        }))
    };
    if item_size(key.len() as u64, value_len as u64, flags) > limits.item_size_max {
        return frame.without_block(dialect, value_len, refused(RefusalReason::TooLarge), form);
    }
    let (value, shared) = match frame.block(dialect, limits, value_len) {
        Block::Refused { message } => {
            let refused = refused(RefusalReason::OutOfMemory);
            return frame.without_block(dialect, value_len, refused, form.refused_by(message));
        }
        Block::Whole(value, shared) => (value, shared),
        Block::Partial(step) => return step,
        Block::Unterminated => return bad_chunk(frame, value_len, form),
    };
    let command = Command::Operation(Operation::Store(Store {
        key,
        value,
        shared,
        flags,
        ttl: ttl(limits, exptime),
        mode,
        compare: is_cas.then_some(unique),
        item_size_max: Some(limits.item_size_max),
        family: CommandFamily::Text,
        ..Store::default()
    }));
    frame.request_with_block(value_len, command, form)
}

/// A block that does not end where it should. It is gone all the same; what follows is the next command.
#[cold]
pub(super) fn bad_chunk<'a>(frame: Frame<'a>, value_len: usize, form: Form<'a>) -> Step<'a> {
    let message = "CLIENT_ERROR bad data chunk";
    frame.request_with_block(value_len, Command::Faulty { message }, form)
}

fn delete<'a>(frame: Frame<'a>, mut words: Words<'a>) -> Step<'a> {
    let Some(key) = words.next() else { return frame.fault(BAD_FORMAT, Form::LINE) };
    let form = Form::line_unless(!words.is_empty() && ends_in_noreply(frame.line()));
    // 1.6.45 ignores what follows the key; test suites of clients want the older refusal. A `0` (once a hold-off
    // time) is still sent by old clients.
    let is_known = matches!(
        (words.next(), words.next(), words.next()),
        (None, ..) | (Some(b"0" | b"noreply"), None, _) | (Some(b"0"), Some(b"noreply"), None)
    );
    if !is_known {
        return frame.fault("CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]", form);
    }
    if key.len() > KEY_LEN_MAX {
        return frame.fault(BAD_FORMAT, form);
    }
    frame.request(
        Command::Operation(Operation::Delete(Delete {
            key,
            family: CommandFamily::Text,
            ..Delete::default()
        })),
        form,
    )
}

fn arithmetic<'a>(frame: Frame<'a>, mut words: Words<'a>, direction: ArithmeticDirection) -> Step<'a> {
    let (Some(key), Some(delta)) = (words.next(), words.next()) else {
        return frame.fault(BAD_FORMAT, Form::LINE);
    };
    let form = Form::line_unless(ends_in_noreply(frame.line()));
    if key.len() > KEY_LEN_MAX {
        return frame.fault(BAD_FORMAT, form);
    }
    let Some(delta) = number::unsigned(delta) else {
        return frame.fault("CLIENT_ERROR invalid numeric delta argument", form);
    };
    let family = CommandFamily::Text;
    frame.request(
        Command::Operation(Operation::Arithmetic(Arithmetic {
            key,
            direction,
            delta,
            family,
            ..Arithmetic::default()
        })),
        form,
    )
}

fn touch<'a>(limits: &Limits, frame: Frame<'a>, mut words: Words<'a>) -> Step<'a> {
    let (Some(key), Some(exptime)) = (words.next(), words.next()) else {
        return frame.fault(BAD_FORMAT, Form::LINE);
    };
    let form = Form::line_unless(ends_in_noreply(frame.line()));
    if key.len() > KEY_LEN_MAX {
        return frame.fault(BAD_FORMAT, form);
    }
    let Some(exptime) = number::signed(exptime) else { return frame.fault(BAD_EXPTIME, form) };
    frame.request(Command::Operation(Operation::Touch(Touch { key, ttl: ttl(limits, exptime) })), form)
}

fn flush_all<'a>(limits: &Limits, frame: Frame<'a>, mut words: Words<'a>) -> Step<'a> {
    let form = Form::line_unless(ends_in_noreply(frame.line()));
    if !limits.flush_allowed {
        return frame.fault("CLIENT_ERROR flush_all not allowed", form);
    }
    let at = match words.next() {
        None => Some(0),
        Some(b"noreply") if words.is_empty() => Some(0),
        Some(delay) => number::signed(delay),
    };
    let Some(at) = at else { return frame.fault(BAD_EXPTIME, form) };
    frame.request(Command::Operation(Operation::Flush { at: Ttl::from_memcached(at.into()) }), form)
}

fn verbosity<'a>(frame: Frame<'a>, mut words: Words<'a>) -> Step<'a> {
    let form = Form::line_unless(ends_in_noreply(frame.line()));
    let level = words.next().and_then(number::unsigned).and_then(|level| u32::try_from(level).ok());
    match level {
        Some(level) => frame.request(Command::Verbosity(level), form),
        None => frame.fault(BAD_FORMAT, form),
    }
}

/// `debugtime p`, `r`, `SECONDS` or `+SECONDS`.
fn debugtime<'a>(frame: Frame<'a>, mut words: Words<'a>) -> Step<'a> {
    let shift = match words.next() {
        Some(b"p") => Some(ClockShift::Pause),
        Some(b"r") => Some(ClockShift::Resume),
        // memcached's own tests say it without a sign.
        Some([b'+', seconds @ ..] | seconds) => {
            number::unsigned_32(seconds).map(|seconds| ClockShift::Forward { seconds })
        }
        None => None,
    };
    match shift {
        Some(shift) => frame.request(Command::ShiftClock(shift), Form::LINE),
        None => unknown(frame),
    }
}

fn cache_memlimit<'a>(frame: Frame<'a>, mut words: Words<'a>) -> Step<'a> {
    let form = Form::line_unless(ends_in_noreply(frame.line()));
    match words.next().and_then(number::unsigned) {
        Some(mebibytes) => frame.request(Command::MemoryLimit { mebibytes }, form),
        None => frame.fault("ERROR", form),
    }
}

fn shutdown<'a>(frame: Frame<'a>, mut words: Words<'a>) -> Step<'a> {
    match words.next() {
        None => frame.request(Command::Shutdown { graceful: false }, Form::LINE),
        Some(b"graceful") => frame.request(Command::Shutdown { graceful: true }, Form::LINE),
        Some(_) => frame.fault("CLIENT_ERROR invalid shutdown mode", Form::LINE),
    }
}

#[cold]
fn refresh_certs(frame: Frame<'_>) -> Step<'_> {
    frame.request(Command::RefreshCertificates, Form::line_unless(ends_in_noreply(frame.line())))
}

/// The words after `stats`, without the spaces around them.
fn stats_group(words: Words<'_>) -> &[u8] {
    let rest = words.rest();
    let end = rest.iter().rposition(|&byte| byte != b' ').map_or(0, |at| at + 1);
    &rest[..end]
}

fn unknown<'a>(frame: Frame<'a>) -> Step<'a> {
    let line = frame.line();
    // A web page that makes a browser post to this port must not get its body run as commands.
    if last_word(line).starts_with(b"HTTP/") {
        return Step::Close;
    }
    frame.fault("ERROR", Form::line_unless(ends_in_noreply(line)))
}
