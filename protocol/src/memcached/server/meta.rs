//! The meta commands with a key: `mg`, `ms`, `md`, `ma`, `me`.

use super::flags::{Fault, Flags, Returns, decode_key};
use super::form::{Form, MetaForm, Shape, Verb};
use super::frame::{Block, Frame};
use super::text::bad_chunk;
use super::words::Words;
use super::{BAD_FORMAT, Dialect, KEY_LEN_MAX, Limits, Step, number};
use crate::memcached::Command;
use crate::memcached::item_size;
use todana_core::{
    Arithmetic, ArithmeticDirection, CommandFamily, Delete, Get, Inspect, Operation, RefusalReason,
    RefusedStore, ReplyNeeds, SharedValue, Store, StoreMode,
};

/// Decodes one meta command; `words` are those behind its name.
///
/// One function of its own with all it calls inlined: the flags then stay where they are parsed, which takes
/// `mg KEY v` from 54 to 38 ns (Nov 2026, 2 busy cores, benches/memcached_server.rs).
#[inline(never)]
pub(super) fn decode<'a>(
    dialect: &mut Dialect,
    limits: &Limits,
    frame: Frame<'a>,
    mut words: Words<'a>,
    verb: Verb,
    scratch: &'a mut Vec<u8>,
) -> Step<'a> {
    let Some(key) = words.next() else { return frame.fault(BAD_FORMAT, Form::LINE) };
    if verb == Verb::Inspect {
        return inspect(frame, key, words, scratch);
    }
    let (value_len, words_before) = if verb == Verb::Store {
        let Some(value_len) = words.next().and_then(number::value_len) else {
            return frame.fault(BAD_FORMAT, Form::LINE);
        };
        (value_len, 3)
    } else {
        (0, 2)
    };
    let parsed = Flags::parse(verb, key, words, words_before, scratch);
    let request = match parsed {
        // Not a command at all: the block, if one follows, is taken for lines.
        Err(Fault::Format) => return frame.fault(BAD_FORMAT, Form::LINE),
        _ if key.len() > KEY_LEN_MAX => Err(BAD_FORMAT),
        Err(fault) => Err(fault_message(verb, fault)),
        Ok(flags) => request(verb, limits, frame, key, value_len, flags, scratch, dialect),
    };
    match request {
        Ok(step) => step,
        Err(message) if verb == Verb::Store => {
            frame.without_block(dialect, value_len, Command::Faulty { message }, Form::LINE)
        }
        Err(message) => frame.fault(message, Form::LINE),
    }
}

/// `ma` has one text for all that can be wrong with a flag.
#[cold]
fn fault_message(verb: Verb, fault: Fault) -> &'static str {
    match (verb, fault) {
        (Verb::Arithmetic, Fault::Flag(_)) => "CLIENT_ERROR invalid or duplicate flag",
        _ => fault.message(),
    }
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "they are one request, in one place")]
fn request<'a>(
    verb: Verb,
    limits: &Limits,
    frame: Frame<'a>,
    key: &'a [u8],
    value_len: usize,
    flags: Flags<'a>,
    scratch: &'a [u8],
    dialect: &mut Dialect,
) -> Result<Step<'a>, &'static str> {
    let is_base64 = flags.has(b'b');
    let key = if is_base64 { scratch } else { key };
    let form = Form(Shape::Meta(MetaForm {
        verb,
        key,
        is_base64,
        returns: flags.returns,
        opaque: flags.opaque,
        is_quiet: flags.has(b'q'),
        with_value: flags.has(b'v'),
        ttl_before: flags.ttl_before,
        known_version: flags.given(b'C', flags.compare),
        value_len,
    }));
    let check_opaque = || flags.check_opaque().map_err(Fault::message);
    let command = match verb {
        Verb::Get | Verb::Inspect => {
            check_opaque()?;
            Command::Operation(Operation::Get(get(key, &flags)))
        }
        Verb::Delete => {
            check_opaque()?;
            Command::Operation(Operation::Delete(delete(key, &flags)))
        }
        Verb::Arithmetic => {
            let direction = direction(&flags)?;
            check_opaque()?;
            Command::Operation(Operation::Arithmetic(arithmetic(key, direction, &flags)))
        }
        Verb::Store => {
            let mode = store_mode(&flags)?;
            check_opaque()?;
            let refused = |refusal, discards| {
                let (flags, compares) = (flags.client_flags, flags.has(b'C'));
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
            if item_size(key.len() as u64, value_len as u64, flags.client_flags) > limits.item_size_max {
                let refused = refused(RefusalReason::TooLarge, true);
                return Ok(frame.without_block(dialect, value_len, refused, form));
            }
            let (value, shared) = match frame.block(dialect, limits, value_len) {
                Block::Refused { message } => {
                    let discards = mode == StoreMode::Set && !flags.has(b'C');
                    let (refused, form) =
                        (refused(RefusalReason::OutOfMemory, discards), form.refused_by(message));
                    return Ok(frame.without_block(dialect, value_len, refused, form));
                }
                Block::Whole(value, shared) => (value, shared),
                Block::Partial(step) => return Ok(step),
                Block::Unterminated => return Ok(bad_chunk(frame, value_len, Form::LINE)),
            };
            let command = Command::Operation(Operation::Store(Store {
                shared,
                ..store(key, value, mode, &flags, limits)
            }));
            return Ok(frame.request_with_block(value_len, command, form));
        }
    };
    Ok(frame.request(command, form))
}

#[inline]
fn get<'a>(key: &'a [u8], flags: &Flags<'a>) -> Get<'a> {
    Get {
        key,
        touch: flags.ttl,
        vivify: flags.given(b'N', flags.vivify),
        recache_below_s: flags.given(b'R', flags.recache.into()),
        recache_after_touch: flags.recache_after_touch,
        version: flags.given(b'E', flags.version),
        needs: ReplyNeeds { version: flags.has(b'c'), access: flags.has(b'h') || flags.has(b'l') },
        silent: flags.has(b'u'),
        counts_as_touch: false,
        family: CommandFamily::Meta,
    }
}

fn delete<'a>(key: &'a [u8], flags: &Flags<'a>) -> Delete<'a> {
    let (mark_stale, drop_value) = (flags.has(b'I'), flags.has(b'x'));
    let keeps_record = mark_stale || drop_value;
    Delete {
        key,
        compare: flags.given(b'C', flags.compare),
        mark_stale,
        drop_value,
        ttl: flags.ttl.filter(|_| keeps_record),
        flags: flags.given(b'F', flags.client_flags).filter(|_| drop_value),
        version: flags.given(b'E', flags.version).filter(|_| keeps_record),
        family: CommandFamily::Meta,
    }
}

#[inline]
fn arithmetic<'a>(key: &'a [u8], direction: ArithmeticDirection, flags: &Flags<'a>) -> Arithmetic<'a> {
    Arithmetic {
        key,
        direction,
        delta: flags.delta,
        vivify: flags.given(b'N', flags.vivify),
        initial: flags.initial,
        touch: flags.ttl,
        compare: flags.given(b'C', flags.compare),
        version: flags.given(b'E', flags.version),
        needs: ReplyNeeds { version: flags.has(b'c'), access: false },
        family: CommandFamily::Meta,
    }
}

fn direction(flags: &Flags<'_>) -> Result<ArithmeticDirection, &'static str> {
    match flags.given(b'M', flags.mode) {
        None | Some(b'I' | b'+') => Ok(ArithmeticDirection::Increment),
        Some(b'D' | b'-') => Ok(ArithmeticDirection::Decrement),
        Some(_) => Err("CLIENT_ERROR invalid mode for ma M token"),
    }
}

#[inline]
fn store<'a>(
    key: &'a [u8],
    value: &'a [u8],
    mode: StoreMode,
    flags: &Flags<'a>,
    limits: &Limits,
) -> Store<'a> {
    let extends = matches!(mode, StoreMode::Append | StoreMode::Prepend);
    Store {
        key,
        value,
        shared: SharedValue(None),
        flags: flags.client_flags,
        ttl: flags.ttl.unwrap_or_default(),
        mode,
        compare: flags.given(b'C', flags.compare),
        stale_if_older: flags.has(b'I'),
        version: flags.given(b'E', flags.version),
        vivify: flags.given(b'N', flags.vivify).filter(|_| extends),
        needs: ReplyNeeds { version: flags.has(b'c'), access: false },
        item_size_max: Some(limits.item_size_max),
        family: CommandFamily::Meta,
    }
}

fn store_mode(flags: &Flags<'_>) -> Result<StoreMode, &'static str> {
    match flags.given(b'M', flags.mode) {
        None | Some(b'S') => Ok(StoreMode::Set),
        Some(b'E') => Ok(StoreMode::Add),
        Some(b'A') => Ok(StoreMode::Append),
        Some(b'P') => Ok(StoreMode::Prepend),
        Some(b'R') => Ok(StoreMode::Replace),
        Some(_) => Err("CLIENT_ERROR invalid mode for ms M token"),
    }
}

/// `me`: the debugging command looks at `b` and lets every other flag pass.
fn inspect<'a>(frame: Frame<'a>, key: &'a [u8], words: Words<'a>, scratch: &'a mut Vec<u8>) -> Step<'a> {
    let mut letters = words.map(|word| word[0]);
    let mut others = letters.clone();
    if key.len() > KEY_LEN_MAX || others.any(|letter| !letter.is_ascii_alphanumeric()) {
        return frame.fault(BAD_FORMAT, Form::LINE);
    }
    let is_base64 = letters.any(|letter| letter == b'b');
    if is_base64 && decode_key(key, scratch).is_none() {
        return frame.fault(BAD_FORMAT, Form::LINE);
    }
    let key = if is_base64 { scratch } else { key };
    let form = MetaForm {
        verb: Verb::Inspect,
        key,
        is_base64,
        returns: Returns::default(),
        opaque: b"",
        is_quiet: false,
        with_value: false,
        ttl_before: false,
        known_version: None,
        value_len: 0,
    };
    frame.request(Command::Operation(Operation::Inspect(Inspect { key })), Form(Shape::Meta(form)))
}
