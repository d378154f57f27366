//! Decodes the text commands, and chooses the decoder of each command line.

use super::form::{FormKind, MetaVerb, ReplyForm, ValueForm};
use super::frame::{DataBlock, LineFrame, line_body};
use super::words::{LineWords, ends_in_noreply, last_word, word_len};
use super::{
    BAD_FORMAT, DecoderState, KEY_LEN_MAX, MemcachedDecoder, MemcachedLimits, MemcachedRequest,
    MemcachedStep, administration, meta, number,
};
use crate::memcached::item_size;
use crate::memcached::{ClockShift, MemcachedCommand};
use todana_core::{
    Arithmetic, ArithmeticDirection, CommandSyntax, Delete, Get, Operation, RefusalReason, RefusedStore,
    ReplyNeeds, Store, StoreMode, Touch, Ttl,
};

/// The shortest line that is parsed, in bytes, including its line end.
const LINE_LEN_MIN: usize = 4;

const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";

/// Decodes one line, and the data block that it announces.
#[inline]
pub(super) fn decode<'a>(
    dialect: &mut MemcachedDecoder,
    limits: &MemcachedLimits,
    frame: LineFrame<'a>,
    scratch: &'a mut Vec<u8>,
) -> MemcachedStep<'a> {
    let line = frame.line();
    let command = &line[..word_len(line)];
    let words = LineWords::new(&line[command.len()..]);
    // `mn` without `\r` is the only shorter line that is accepted. memcached 1.6.45 refuses it,
    // 1.6.18 does not.
    if frame.line_len < LINE_LEN_MIN && command != b"mn" {
        return frame.fault(BAD_FORMAT, ReplyForm::LINE);
    }
    match command {
        b"get" => gets(dialect, frame, words, GetLine::default()),
        b"set" => store(dialect, limits, frame, words, StoreMode::Set, false),
        b"mg" => meta::decode(dialect, limits, frame, words, MetaVerb::Get, scratch),
        b"ms" => meta::decode(dialect, limits, frame, words, MetaVerb::Store, scratch),
        b"md" => meta::decode(dialect, limits, frame, words, MetaVerb::Delete, scratch),
        b"ma" => meta::decode(dialect, limits, frame, words, MetaVerb::Arithmetic, scratch),
        b"mn" => frame.request(MemcachedCommand::Operation(Operation::Noop), ReplyForm(FormKind::Noop)),
        b"gets" => gets(dialect, frame, words, GetLine { with_version: true, ..GetLine::default() }),
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
        b"me" => meta::decode(dialect, limits, frame, words, MetaVerb::Inspect, scratch),
        b"version" => frame.request(MemcachedCommand::Version, ReplyForm::LINE),
        b"stats" => frame.request(MemcachedCommand::Stats { group: stats_group(words) }, ReplyForm::LINE),
        b"flush_all" => flush_all(limits, frame, words),
        b"verbosity" => verbosity(frame, words),
        b"cache_memlimit" => cache_memlimit(frame, words),
        b"shutdown" => shutdown(frame, words),
        b"refresh_certs" => refresh_certs(frame),
        b"debugtime" if limits.debug_commands => debugtime(frame, words),
        b"lru_crawler" | b"watch" | b"slabs" | b"lru" | b"extstore" | b"todana" => {
            administration::decode(frame, command, words)
        }
        b"quit" => frame.request(MemcachedCommand::Quit, ReplyForm::SILENT),
        _ => unknown(frame),
    }
}

/// Converts a number to a time to live.
#[inline]
fn ttl(limits: &MemcachedLimits, exptime: i32) -> Ttl {
    if exptime < 0 && limits.negative_is_sliding {
        Ttl::Sliding(exptime.unsigned_abs())
    } else {
        Ttl::from_exptime(exptime.into())
    }
}

/// The properties that all keys of a `get` line have in common.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GetLine {
    /// The new time to live (`gat`, `gats`).
    touch: Option<Ttl>,
    /// True for `gets` and `gats`.
    with_version: bool,
    /// The number of bytes of the line that remain, including the line end.
    left: usize,
}

/// Decodes the keys of a `get` line. All keys are checked before the first key is served, because a
/// key that is too long invalidates the complete reply.
#[inline]
fn gets<'a>(
    dialect: &mut MemcachedDecoder,
    frame: LineFrame<'a>,
    words: LineWords<'a>,
    retrieval: GetLine,
) -> MemcachedStep<'a> {
    let mut others = words;
    let Some(first) = others.next() else { return frame.fault(BAD_FORMAT, ReplyForm::LINE) };
    if first.len() > KEY_LEN_MAX {
        return frame.fault(BAD_FORMAT, ReplyForm::LINE);
    }
    if others.is_empty() {
        return frame.request(retrieval.command(first), retrieval.form(first, true));
    }
    if others.any(|key| key.len() > KEY_LEN_MAX) {
        return frame.fault(BAD_FORMAT, ReplyForm::LINE);
    }
    let before = frame.line().len() - words.rest().len();
    let keys = &frame.unread[before..];
    let retrieval = GetLine { left: frame.line_len - before, ..retrieval };
    match next_key(dialect, retrieval, keys) {
        MemcachedStep::Request { consumed, request } => {
            MemcachedStep::Request { consumed: frame.skipped + before + consumed, request }
        }
        step => step,
    }
}

/// Decodes `gat` and `gats`, in which a time to live precedes the keys.
fn gats<'a>(
    dialect: &mut MemcachedDecoder,
    limits: &MemcachedLimits,
    frame: LineFrame<'a>,
    mut words: LineWords<'a>,
    with_version: bool,
) -> MemcachedStep<'a> {
    let Some(exptime) = words.next() else { return frame.fault(BAD_FORMAT, ReplyForm::LINE) };
    if words.is_empty() {
        return frame.fault(BAD_FORMAT, ReplyForm::LINE);
    }
    let Some(exptime) = number::signed(exptime) else { return frame.fault(BAD_EXPTIME, ReplyForm::LINE) };
    let touch = Some(ttl(limits, exptime));
    gets(dialect, frame, words, GetLine { touch, with_version, left: 0 })
}

/// Decodes the next key of a line that has been checked. `unread` starts within that line, after
/// the earlier keys.
pub(super) fn next_key<'a>(
    dialect: &mut MemcachedDecoder,
    retrieval: GetLine,
    unread: &'a [u8],
) -> MemcachedStep<'a> {
    let Some(rest_of_line) = unread.get(..retrieval.left) else {
        return MemcachedStep::NeedMore { consumed: 0, at_least: retrieval.left - unread.len() };
    };
    let line = line_body(rest_of_line);
    let mut words = LineWords::new(line);
    // There is always a key, because the position in the line is always before a key.
    let key = words.next().unwrap_or_default();
    let is_last = words.is_empty();
    let consumed = if is_last { retrieval.left } else { line.len() - words.rest().len() };
    dialect.mode = if is_last {
        DecoderState::Line { scanned: 0 }
    } else {
        DecoderState::Keys(GetLine { left: retrieval.left - consumed, ..retrieval })
    };
    let request = MemcachedRequest { command: retrieval.command(key), form: retrieval.form(key, is_last) };
    MemcachedStep::Request { consumed, request }
}

impl GetLine {
    #[inline]
    fn command<'a>(&self, key: &'a [u8]) -> MemcachedCommand<'a> {
        MemcachedCommand::Operation(Operation::Get(Get {
            key,
            touch: self.touch,
            needs: ReplyNeeds { version: self.with_version, access: false },
            counts_as_touch: self.touch.is_some(),
            syntax: CommandSyntax::Classic,
            ..Get::default()
        }))
    }

    #[inline]
    fn form<'a>(&self, key: &'a [u8], is_last: bool) -> ReplyForm<'a> {
        ReplyForm(FormKind::Value(ValueForm { key, with_version: self.with_version, is_last }))
    }
}

/// Decodes `set`, `add`, `replace`, `append`, `prepend` and (with `is_cas`) `cas`.
///
/// If a word is missing or the length is invalid, `noreply` is ignored and no data block is
/// discarded. Any other error discards the data block.
#[inline]
fn store<'a>(
    dialect: &mut MemcachedDecoder,
    limits: &MemcachedLimits,
    frame: LineFrame<'a>,
    mut words: LineWords<'a>,
    mode: StoreMode,
    is_cas: bool,
) -> MemcachedStep<'a> {
    let (key, flags, exptime, len) = (words.next(), words.next(), words.next(), words.next());
    let (Some(key), Some(flags), Some(exptime), Some(len)) = (key, flags, exptime, len) else {
        return frame.fault(BAD_FORMAT, ReplyForm::LINE);
    };
    let Some(value_len) = number::value_len(len) else { return frame.fault(BAD_FORMAT, ReplyForm::LINE) };

    let form = ReplyForm::store_line_unless(ends_in_noreply(frame.line()));
    // A missing version counts as an invalid version, because clients send the data block in any
    // case.
    let unique = if is_cas { words.next().and_then(number::unsigned) } else { Some(0) };
    let numbers = (number::client_flags(flags), number::expiry(exptime), unique);
    let (Some(flags), Some(exptime), Some(unique)) = numbers else {
        return frame.without_block(
            dialect,
            value_len,
            MemcachedCommand::Faulty { message: BAD_FORMAT },
            form,
        );
    };
    if key.len() > KEY_LEN_MAX {
        return frame.without_block(
            dialect,
            value_len,
            MemcachedCommand::Faulty { message: BAD_FORMAT },
            form,
        );
    }
    // The client of a plain set assumes that the old value does not exist any more, so a set
    // removes the old record. The other commands make no such promise.
    let discards = mode == StoreMode::Set && !is_cas;
    let refused = |refusal| {
        let compares = is_cas;
        MemcachedCommand::Operation(Operation::RefusedStore(RefusedStore {
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
        DataBlock::Refused { message } => {
            let refused = refused(RefusalReason::OutOfMemory);
            return frame.without_block(dialect, value_len, refused, form.refused_by(message));
        }
        DataBlock::Whole(value, shared) => (value, shared),
        DataBlock::Partial(step) => return step,
        DataBlock::Unterminated => return bad_chunk(frame, value_len, form),
    };
    let command = MemcachedCommand::Operation(Operation::Store(Store {
        key,
        value,
        shared,
        flags,
        ttl: ttl(limits, exptime),
        mode,
        compare: is_cas.then_some(unique),
        item_size_max: Some(limits.item_size_max),
        syntax: CommandSyntax::Classic,
        ..Store::default()
    }));
    frame.request_with_block(value_len, command, form)
}

/// Reports a data block that does not end correctly. The next command begins after the block.
#[cold]
pub(super) fn bad_chunk<'a>(
    frame: LineFrame<'a>,
    value_len: usize,
    form: ReplyForm<'a>,
) -> MemcachedStep<'a> {
    let message = "CLIENT_ERROR bad data chunk";
    frame.request_with_block(value_len, MemcachedCommand::Faulty { message }, form)
}

fn delete<'a>(frame: LineFrame<'a>, mut words: LineWords<'a>) -> MemcachedStep<'a> {
    let Some(key) = words.next() else { return frame.fault(BAD_FORMAT, ReplyForm::LINE) };
    let form = ReplyForm::line_unless(!words.is_empty() && ends_in_noreply(frame.line()));
    // memcached 1.6.45 ignores the words after the key, but the test suites of clients expect the
    // refusal of earlier versions. Old clients still send a `0`, which was a hold-off time.
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
        MemcachedCommand::Operation(Operation::Delete(Delete {
            key,
            syntax: CommandSyntax::Classic,
            ..Delete::default()
        })),
        form,
    )
}

fn arithmetic<'a>(
    frame: LineFrame<'a>,
    mut words: LineWords<'a>,
    direction: ArithmeticDirection,
) -> MemcachedStep<'a> {
    let (Some(key), Some(delta)) = (words.next(), words.next()) else {
        return frame.fault(BAD_FORMAT, ReplyForm::LINE);
    };
    let form = ReplyForm::line_unless(ends_in_noreply(frame.line()));
    if key.len() > KEY_LEN_MAX {
        return frame.fault(BAD_FORMAT, form);
    }
    let Some(delta) = number::unsigned(delta) else {
        return frame.fault("CLIENT_ERROR invalid numeric delta argument", form);
    };
    let syntax = CommandSyntax::Classic;
    frame.request(
        MemcachedCommand::Operation(Operation::Arithmetic(Arithmetic {
            key,
            direction,
            delta,
            syntax,
            ..Arithmetic::default()
        })),
        form,
    )
}

fn touch<'a>(limits: &MemcachedLimits, frame: LineFrame<'a>, mut words: LineWords<'a>) -> MemcachedStep<'a> {
    let (Some(key), Some(exptime)) = (words.next(), words.next()) else {
        return frame.fault(BAD_FORMAT, ReplyForm::LINE);
    };
    let form = ReplyForm::line_unless(ends_in_noreply(frame.line()));
    if key.len() > KEY_LEN_MAX {
        return frame.fault(BAD_FORMAT, form);
    }
    let Some(exptime) = number::signed(exptime) else { return frame.fault(BAD_EXPTIME, form) };
    frame.request(
        MemcachedCommand::Operation(Operation::Touch(Touch { key, ttl: ttl(limits, exptime) })),
        form,
    )
}

fn flush_all<'a>(
    limits: &MemcachedLimits,
    frame: LineFrame<'a>,
    mut words: LineWords<'a>,
) -> MemcachedStep<'a> {
    let form = ReplyForm::line_unless(ends_in_noreply(frame.line()));
    if !limits.flush_allowed {
        return frame.fault("CLIENT_ERROR flush_all not allowed", form);
    }
    let at = match words.next() {
        None => Some(0),
        Some(b"noreply") if words.is_empty() => Some(0),
        Some(delay) => number::signed(delay),
    };
    let Some(at) = at else { return frame.fault(BAD_EXPTIME, form) };
    frame.request(MemcachedCommand::Operation(Operation::Flush { at: Ttl::from_exptime(at.into()) }), form)
}

fn verbosity<'a>(frame: LineFrame<'a>, mut words: LineWords<'a>) -> MemcachedStep<'a> {
    let form = ReplyForm::line_unless(ends_in_noreply(frame.line()));
    let level = words.next().and_then(number::unsigned).and_then(|level| u32::try_from(level).ok());
    match level {
        Some(level) => frame.request(MemcachedCommand::Verbosity(level), form),
        None => frame.fault(BAD_FORMAT, form),
    }
}

/// Decodes `debugtime p`, `r`, `SECONDS` or `+SECONDS`.
fn debugtime<'a>(frame: LineFrame<'a>, mut words: LineWords<'a>) -> MemcachedStep<'a> {
    let shift = match words.next() {
        Some(b"p") => Some(ClockShift::Pause),
        Some(b"r") => Some(ClockShift::Resume),
        // The tests of memcached omit the sign.
        Some([b'+', seconds @ ..] | seconds) => {
            number::unsigned_32(seconds).map(|seconds| ClockShift::Forward { seconds })
        }
        None => None,
    };
    match shift {
        Some(shift) => frame.request(MemcachedCommand::ShiftClock(shift), ReplyForm::LINE),
        None => unknown(frame),
    }
}

fn cache_memlimit<'a>(frame: LineFrame<'a>, mut words: LineWords<'a>) -> MemcachedStep<'a> {
    let form = ReplyForm::line_unless(ends_in_noreply(frame.line()));
    match words.next().and_then(number::unsigned) {
        Some(mebibytes) => frame.request(MemcachedCommand::MemoryLimit { mebibytes }, form),
        None => frame.fault("ERROR", form),
    }
}

fn shutdown<'a>(frame: LineFrame<'a>, mut words: LineWords<'a>) -> MemcachedStep<'a> {
    match words.next() {
        None => frame.request(MemcachedCommand::Shutdown { graceful: false }, ReplyForm::LINE),
        Some(b"graceful") => frame.request(MemcachedCommand::Shutdown { graceful: true }, ReplyForm::LINE),
        Some(_) => frame.fault("CLIENT_ERROR invalid shutdown mode", ReplyForm::LINE),
    }
}

#[cold]
fn refresh_certs(frame: LineFrame<'_>) -> MemcachedStep<'_> {
    frame
        .request(MemcachedCommand::RefreshCertificates, ReplyForm::line_unless(ends_in_noreply(frame.line())))
}

/// Returns the words after `stats`, without surrounding spaces.
fn stats_group(words: LineWords<'_>) -> &[u8] {
    let rest = words.rest();
    let end = rest.iter().rposition(|&byte| byte != b' ').map_or(0, |at| at + 1);
    &rest[..end]
}

fn unknown<'a>(frame: LineFrame<'a>) -> MemcachedStep<'a> {
    let line = frame.line();
    // A web page can make a browser post to this port. The body of such a request must not be
    // executed as commands.
    if last_word(line).starts_with(b"HTTP/") {
        return MemcachedStep::Close;
    }
    frame.fault("ERROR", ReplyForm::line_unless(ends_in_noreply(line)))
}
