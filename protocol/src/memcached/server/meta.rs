//! Decodes the meta commands with a key: `mg`, `ms`, `md`, `ma`, `me`.

use super::flags::{FlagFault, ParsedFlags, ReturnFlags, decode_key};
use super::form::{FormKind, MetaForm, MetaVerb, ReplyForm};
use super::frame::{DataBlock, LineFrame};
use super::text::bad_chunk;
use super::words::LineWords;
use super::{BAD_FORMAT, KEY_LEN_MAX, MemcachedDecoder, MemcachedLimits, MemcachedStep, number};
use crate::memcached::MemcachedCommand;
use crate::memcached::item_size;
use todana_core::{
    Arithmetic, ArithmeticDirection, CommandSyntax, Delete, Get, Inspect, Operation, RefusalReason,
    RefusedStore, ReplyNeeds, SharedValue, Store, StoreMode,
};

/// Decodes a meta command. `words` are the words after its name.
///
/// This function is not inlined, but all functions that it calls are. The flags then stay in
/// registers, which reduces `mg KEY v` from 54 to 38 ns (Nov 2026, 2 busy cores,
/// benches/memcached_server.rs).
#[inline(never)]
pub(super) fn decode<'a>(
    dialect: &mut MemcachedDecoder,
    limits: &MemcachedLimits,
    frame: LineFrame<'a>,
    mut words: LineWords<'a>,
    verb: MetaVerb,
    scratch: &'a mut Vec<u8>,
) -> MemcachedStep<'a> {
    let Some(key) = words.next() else { return frame.fault(BAD_FORMAT, ReplyForm::LINE) };
    if verb == MetaVerb::Inspect {
        return inspect(frame, key, words, scratch);
    }
    let (value_len, words_before) = if verb == MetaVerb::Store {
        let Some(value_len) = words.next().and_then(number::value_len) else {
            return frame.fault(BAD_FORMAT, ReplyForm::LINE);
        };
        (value_len, 3)
    } else {
        (0, 2)
    };
    let parsed = ParsedFlags::parse(verb, key, words, words_before, scratch);
    let request = match parsed {
        // Such a line is not a command at all. A data block after it is read as lines.
        Err(FlagFault::Format) => return frame.fault(BAD_FORMAT, ReplyForm::LINE),
        _ if key.len() > KEY_LEN_MAX => Err(BAD_FORMAT),
        Err(fault) => Err(fault_message(verb, fault)),
        Ok(flags) => request(verb, limits, frame, key, value_len, flags, scratch, dialect),
    };
    match request {
        Ok(step) => step,
        Err(message) if verb == MetaVerb::Store => {
            frame.without_block(dialect, value_len, MemcachedCommand::Faulty { message }, ReplyForm::LINE)
        }
        Err(message) => frame.fault(message, ReplyForm::LINE),
    }
}

/// Returns the message of an error in the flags. `ma` has one message for all errors of a single
/// flag.
#[cold]
fn fault_message(verb: MetaVerb, fault: FlagFault) -> &'static str {
    match (verb, fault) {
        (MetaVerb::Arithmetic, FlagFault::Flag(_)) => "CLIENT_ERROR invalid or duplicate flag",
        _ => fault.message(),
    }
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "they are one request, in one place")]
fn request<'a>(
    verb: MetaVerb,
    limits: &MemcachedLimits,
    frame: LineFrame<'a>,
    key: &'a [u8],
    value_len: usize,
    flags: ParsedFlags<'a>,
    scratch: &'a [u8],
    dialect: &mut MemcachedDecoder,
) -> Result<MemcachedStep<'a>, &'static str> {
    let is_base64 = flags.has(b'b');
    let key = if is_base64 { scratch } else { key };
    let form = ReplyForm(FormKind::Meta(MetaForm {
        verb,
        key,
        is_base64,
        returns: flags.returns,
        opaque: flags.opaque,
        freshness: flags.given(b'Y', flags.freshness),
        is_quiet: flags.has(b'q'),
        with_value: flags.has(b'v'),
        ttl_before: flags.ttl_before,
        known_version: flags.given(b'C', flags.compare),
        value_len,
    }));
    let check_opaque = || flags.check_opaque().map_err(FlagFault::message);
    let command = match verb {
        MetaVerb::Get | MetaVerb::Inspect => {
            check_opaque()?;
            MemcachedCommand::Operation(Operation::Get(get(key, &flags)))
        }
        MetaVerb::Delete => {
            check_opaque()?;
            MemcachedCommand::Operation(Operation::Delete(delete(key, &flags)))
        }
        MetaVerb::Arithmetic => {
            let direction = direction(&flags)?;
            check_opaque()?;
            MemcachedCommand::Operation(Operation::Arithmetic(arithmetic(key, direction, &flags)))
        }
        MetaVerb::Store => {
            let mode = store_mode(&flags)?;
            check_opaque()?;
            let refused = |refusal, discards| {
                let (flags, compares) = (flags.client_flags, flags.has(b'C'));
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
            if item_size(key.len() as u64, value_len as u64, flags.client_flags) > limits.item_size_max {
                let refused = refused(RefusalReason::TooLarge, true);
                return Ok(frame.without_block(dialect, value_len, refused, form));
            }
            let (value, shared) = match frame.block(dialect, limits, value_len) {
                DataBlock::Refused { message } => {
                    let discards = mode == StoreMode::Set && !flags.has(b'C');
                    let (refused, form) =
                        (refused(RefusalReason::OutOfMemory, discards), form.refused_by(message));
                    return Ok(frame.without_block(dialect, value_len, refused, form));
                }
                DataBlock::Whole(value, shared) => (value, shared),
                DataBlock::Partial(step) => return Ok(step),
                DataBlock::Unterminated => return Ok(bad_chunk(frame, value_len, ReplyForm::LINE)),
            };
            let command = MemcachedCommand::Operation(Operation::Store(Store {
                shared,
                ..store(key, value, mode, &flags, limits)
            }));
            return Ok(frame.request_with_block(value_len, command, form));
        }
    };
    Ok(frame.request(command, form))
}

#[inline]
fn get<'a>(key: &'a [u8], flags: &ParsedFlags<'a>) -> Get<'a> {
    Get {
        key,
        touch: flags.ttl,
        vivify: flags.given(b'N', flags.vivify),
        recache_below_s: flags.given(b'R', flags.recache.into()),
        recache_after_touch: flags.recache_after_touch,
        version: flags.given(b'E', flags.version),
        reads_shared: false,
        needs: ReplyNeeds { version: flags.has(b'c'), access: flags.has(b'h') || flags.has(b'l') },
        silent: flags.has(b'u'),
        counts_as_touch: false,
        syntax: CommandSyntax::Meta,
    }
}

fn delete<'a>(key: &'a [u8], flags: &ParsedFlags<'a>) -> Delete<'a> {
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
        syntax: CommandSyntax::Meta,
    }
}

#[inline]
fn arithmetic<'a>(key: &'a [u8], direction: ArithmeticDirection, flags: &ParsedFlags<'a>) -> Arithmetic<'a> {
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
        syntax: CommandSyntax::Meta,
    }
}

fn direction(flags: &ParsedFlags<'_>) -> Result<ArithmeticDirection, &'static str> {
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
    flags: &ParsedFlags<'a>,
    limits: &MemcachedLimits,
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
        syntax: CommandSyntax::Meta,
    }
}

fn store_mode(flags: &ParsedFlags<'_>) -> Result<StoreMode, &'static str> {
    match flags.given(b'M', flags.mode) {
        None | Some(b'S') => Ok(StoreMode::Set),
        Some(b'E') => Ok(StoreMode::Add),
        Some(b'A') => Ok(StoreMode::Append),
        Some(b'P') => Ok(StoreMode::Prepend),
        Some(b'R') => Ok(StoreMode::Replace),
        Some(_) => Err("CLIENT_ERROR invalid mode for ms M token"),
    }
}

/// Decodes `me`, the debugging command. It reads `b` and ignores every other flag.
fn inspect<'a>(
    frame: LineFrame<'a>,
    key: &'a [u8],
    words: LineWords<'a>,
    scratch: &'a mut Vec<u8>,
) -> MemcachedStep<'a> {
    let mut letters = words.map(|word| word[0]);
    let mut others = letters.clone();
    if key.len() > KEY_LEN_MAX || others.any(|letter| !letter.is_ascii_alphanumeric()) {
        return frame.fault(BAD_FORMAT, ReplyForm::LINE);
    }
    let is_base64 = letters.any(|letter| letter == b'b');
    if is_base64 && decode_key(key, scratch).is_none() {
        return frame.fault(BAD_FORMAT, ReplyForm::LINE);
    }
    let key = if is_base64 { scratch } else { key };
    let form = MetaForm {
        verb: MetaVerb::Inspect,
        key,
        is_base64,
        returns: ReturnFlags::default(),
        opaque: b"",
        freshness: None,
        is_quiet: false,
        with_value: false,
        ttl_before: false,
        known_version: None,
        value_len: 0,
    };
    frame.request(
        MemcachedCommand::Operation(Operation::Inspect(Inspect { key })),
        ReplyForm(FormKind::Meta(form)),
    )
}
