//! Tests operations against the server's side of the codec: it decodes each request to the same
//! operation, and its reply decodes to the same reply.

use super::*;
use crate::memcached::client::binary_reply_len;
use crate::memcached::{MemcachedCommand, MemcachedDecoder, MemcachedLimits, MemcachedStep, encode};
use fastrand::Rng;
use todana_core::{
    Arithmetic, ArithmeticDirection, CommandSyntax, Delete, Inspect, LastAccess, RecordDetails, ReplyNeeds,
    StoredReply, Touch, Ttl,
};

const DIALECTS: [ServerDialect; 3] = [ServerDialect::Text, ServerDialect::Meta, ServerDialect::Binary];

fn maybe<T>(rng: &mut Rng, value: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    rng.bool().then(|| value(rng))
}

fn any_ttl(rng: &mut Rng) -> Ttl {
    match rng.u8(..4) {
        0 => Ttl::Never,
        1 => Ttl::Expired,
        2 => Ttl::Seconds(rng.u32(1..=2_592_000)),
        _ => Ttl::At(rng.u64(2_592_001..1 << 31)),
    }
}

fn any_mode(rng: &mut Rng) -> StoreMode {
    use StoreMode::{Add, Append, Prepend, Replace, Set};
    rng.choice([Set, Add, Replace, Append, Prepend]).unwrap_or_default()
}

fn any_version(rng: &mut Rng) -> u64 {
    rng.choice([1, 77, u64::MAX]).unwrap_or_default()
}

/// Returns an operation. With `is_plain` it has no options of the meta dialect.
fn any_operation<'a>(rng: &mut Rng, is_plain: bool, key: &'a [u8], value: &'a [u8]) -> Operation<'a> {
    let needs = ReplyNeeds { version: rng.bool(), access: !is_plain && rng.bool() };
    let own = |rng: &mut Rng| if is_plain { None } else { maybe(rng, any_version) };
    let own_ttl = |rng: &mut Rng| if is_plain { None } else { maybe(rng, any_ttl) };
    match rng.u8(..8) {
        0 => {
            let touch = maybe(rng, any_ttl);
            let recache = if is_plain { None } else { maybe(rng, |rng| rng.i32(..).into()) };
            Operation::Get(Get {
                key,
                touch,
                vivify: own_ttl(rng),
                recache_below_s: recache,
                recache_after_touch: recache.is_some() && touch.is_some() && rng.bool(),
                version: own(rng),
                needs,
                silent: !is_plain && rng.bool(),
                counts_as_touch: is_plain && touch.is_some(),
                syntax: CommandSyntax::Classic,
                reads_shared: false,
            })
        }
        1 => {
            let mode = any_mode(rng);
            let extends = matches!(mode, StoreMode::Append | StoreMode::Prepend);
            Operation::Store(Store {
                key,
                value,
                flags: rng.choice([0, 5, u32::MAX]).unwrap_or_default(),
                ttl: any_ttl(rng),
                mode,
                compare: maybe(rng, any_version),
                stale_if_older: !is_plain && rng.bool(),
                version: own(rng),
                vivify: own_ttl(rng).filter(|_| extends),
                needs: ReplyNeeds { access: false, ..needs },
                ..Store::default()
            })
        }
        2 => {
            let (mark_stale, drop_value) = (!is_plain && rng.bool(), !is_plain && rng.bool());
            let keeps_record = mark_stale || drop_value;
            Operation::Delete(Delete {
                key,
                compare: maybe(rng, any_version),
                mark_stale,
                drop_value,
                ttl: own_ttl(rng).filter(|_| keeps_record),
                flags: maybe(rng, |rng| rng.u32(..)).filter(|_| drop_value),
                version: own(rng).filter(|_| keeps_record),
                syntax: CommandSyntax::Classic,
            })
        }
        3 | 4 => {
            let vivify = maybe(rng, any_ttl);
            Operation::Arithmetic(Arithmetic {
                key,
                direction: if rng.bool() {
                    ArithmeticDirection::Increment
                } else {
                    ArithmeticDirection::Decrement
                },
                delta: any_version(rng),
                vivify,
                initial: if vivify.is_some() { rng.u64(..) } else { 0 },
                touch: own_ttl(rng),
                compare: maybe(rng, any_version),
                version: own(rng),
                needs: ReplyNeeds { access: false, ..needs },
                syntax: CommandSyntax::Classic,
            })
        }
        5 => Operation::Touch(Touch { key, ttl: any_ttl(rng) }),
        6 if !is_plain => Operation::Inspect(Inspect { key }),
        6 => Operation::Flush { at: any_ttl(rng) },
        _ => Operation::Noop,
    }
}

/// Returns the operation that the server decodes: without what its dialect does not carry.
fn as_sent<'a>(dialect: ServerDialect, operation: &Operation<'a>) -> Operation<'a> {
    let is_meta = dialect == ServerDialect::Meta;
    let is_binary = dialect == ServerDialect::Binary;
    let ttl = |ttl| if is_binary && ttl == Ttl::Expired { Ttl::At(2_592_001) } else { ttl };
    let syntax = if is_meta { CommandSyntax::Meta } else { CommandSyntax::Classic };
    let reports_version = |needs: ReplyNeeds| ReplyNeeds {
        version: is_binary || (is_meta && needs.version),
        access: is_meta && needs.access,
    };
    match *operation {
        Operation::Get(get) => Operation::Get(Get {
            touch: get.touch.map(ttl),
            counts_as_touch: !is_meta && get.touch.is_some(),
            silent: is_meta && get.silent,
            needs: ReplyNeeds { version: is_binary || get.needs.version, ..get.needs },
            syntax,
            ..get
        }),
        Operation::Store(store) => {
            let extends = matches!(store.mode, StoreMode::Append | StoreMode::Prepend);
            let is_cas = !is_meta && store.compare.is_some();
            let bare = is_binary && extends;
            Operation::Store(Store {
                flags: if bare { 0 } else { store.flags },
                ttl: if bare { Ttl::Never } else { ttl(store.ttl) },
                mode: if is_cas && !extends { StoreMode::Set } else { store.mode },
                item_size_max: Some(MemcachedLimits::default().item_size_max),
                needs: reports_version(store.needs),
                syntax,
                ..store
            })
        }
        Operation::Delete(delete) => {
            let syntax = if is_binary { CommandSyntax::Classic } else { syntax };
            Operation::Delete(Delete { syntax, ..delete })
        }
        Operation::Arithmetic(arithmetic) => Operation::Arithmetic(Arithmetic {
            vivify: arithmetic.vivify.map(ttl),
            needs: reports_version(arithmetic.needs),
            syntax,
            ..arithmetic
        }),
        // A meta server touches with `mg`.
        Operation::Touch(touch) if is_meta => {
            Operation::Get(Get { key: touch.key, touch: Some(touch.ttl), syntax, ..Get::default() })
        }
        Operation::Touch(touch) if is_binary => Operation::Get(Get {
            key: touch.key,
            touch: Some(ttl(touch.ttl)),
            counts_as_touch: true,
            needs: ReplyNeeds { version: true, access: false },
            ..Get::default()
        }),
        Operation::Flush { at: Ttl::Expired } => Operation::Flush { at: Ttl::Never },
        operation => operation,
    }
}

fn any_expiry(rng: &mut Rng) -> Expiry {
    expiry_in(maybe(rng, |rng| rng.u64(1..1 << 31)))
}

fn any_access(rng: &mut Rng) -> LastAccess {
    LastAccess { at: time_ago(rng.u64(..1 << 31)), fetched: rng.bool() }
}

/// Returns a reply that an operation can have, with all fields that some dialect reports.
fn any_reply<'a>(rng: &mut Rng, operation: &Operation<'_>, value: &'a [u8]) -> Reply<'a> {
    let choose = |rng: &mut Rng, replies: &[Reply<'a>]| rng.choice(replies.to_vec()).unwrap_or(Reply::Done);
    let refused = |refusal| Reply::Refused(refusal);
    match operation {
        Operation::Get(_) => {
            let attributes = Attributes {
                flags: rng.u32(..),
                version: rng.u64(1..),
                expiry: any_expiry(rng),
                access: Some(any_access(rng)),
                ..Attributes::default()
            };
            let recache = RecacheState { won: rng.bool(), stale: rng.bool(), token_sent: rng.bool() };
            let hit = Reply::Hit(HitReply { recache, ..hit_of(value, attributes) });
            choose(rng, &[hit, Reply::Miss])
        }
        Operation::Store(store) => {
            let stored = StoredReply { version: rng.u64(1..), value_len: rng.u64(1..1 << 30) };
            let mut replies = vec![
                Reply::Stored(stored),
                refused(RefusalReason::TooLarge),
                refused(RefusalReason::OutOfMemory),
            ];
            match (store.compare, store.mode) {
                (Some(_), StoreMode::Set | StoreMode::Replace) => {
                    replies.extend([Reply::Exists, Reply::NotFound]);
                }
                (Some(_), _) => replies.extend([Reply::Exists, Reply::NotStored]),
                (None, StoreMode::Set) => {}
                (None, _) => replies.push(Reply::NotStored),
            }
            choose(rng, &replies)
        }
        Operation::Delete(delete) => {
            let compared = if delete.compare.is_some() { Reply::Exists } else { Reply::Deleted };
            choose(rng, &[Reply::Deleted, Reply::NotFound, compared])
        }
        Operation::Arithmetic(arithmetic) => {
            let number = Reply::Number(number_of(rng.u64(..), rng.u64(1..)));
            let compared = if arithmetic.compare.is_some() { Reply::Exists } else { number };
            choose(
                rng,
                &[
                    number,
                    Reply::NotFound,
                    compared,
                    refused(RefusalReason::NonNumeric),
                    refused(RefusalReason::OutOfMemory),
                ],
            )
        }
        Operation::Touch(_) => choose(rng, &[Reply::Touched, Reply::NotFound]),
        Operation::Inspect(inspect) => {
            let details = Reply::Inspection(RecordDetails {
                expiry: any_expiry(rng),
                access: Some(any_access(rng)),
                version: rng.u64(..),
                flags: 0,
                key_len: inspect.key.len() as u64,
                value_len: rng.u64(..1 << 30),
                further_values: 0,
                now: REPLY_TIME,
            });
            choose(rng, &[details, Reply::Miss])
        }
        _ => Reply::Done,
    }
}

/// Returns the reply that the client decodes: without what the dialect does not report.
fn as_received<'a>(dialect: ServerDialect, operation: &Operation<'_>, reply: Reply<'a>) -> Reply<'a> {
    let is_meta = dialect == ServerDialect::Meta;
    let is_binary = dialect == ServerDialect::Binary;
    let reported = |needs: ReplyNeeds, version| {
        if is_binary || (is_meta && needs.version) { version } else { 0 }
    };
    match (reply, operation) {
        (Reply::Hit(hit), Operation::Get(get)) => {
            let found = hit.record.attributes;
            let attributes = Attributes {
                flags: found.flags,
                version: if is_binary || get.needs.version { found.version } else { 0 },
                access: found.access.filter(|_| get.needs.access),
                ..Attributes::default()
            };
            let recache = if is_meta { hit.recache } else { RecacheState::default() };
            Reply::Hit(HitReply { recache, ..hit_of(hit.record.value, attributes) })
        }
        (Reply::Stored(stored), Operation::Store(store)) => {
            let extends = matches!(store.mode, StoreMode::Append | StoreMode::Prepend);
            Reply::Stored(StoredReply {
                version: reported(store.needs, stored.version),
                value_len: if is_meta && extends { stored.value_len } else { store.value.len() as u64 },
            })
        }
        (Reply::Number(number), Operation::Arithmetic(arithmetic)) => {
            let version = reported(arithmetic.needs, number.version);
            Reply::Number(ArithmeticReply { version, ..number })
        }
        (reply, _) => reply,
    }
}

/// Returns the reply that the server encodes for a request in its own words.
fn of_server<'a>(asked: &Operation<'_>, reply: Reply<'a>) -> Reply<'a> {
    match (asked, reply) {
        // A touch was sent as a read.
        (Operation::Get(_), Reply::Touched) => {
            Reply::Hit(hit_of(b"", Attributes { version: 1, ..Attributes::default() }))
        }
        (Operation::Get(_), Reply::NotFound) => Reply::Miss,
        (_, reply) => reply,
    }
}

#[test]
fn operation_and_reply_survive_each_dialect() {
    let mut refused = [0; 3];
    for seed in 0..30_000 {
        let rng = &mut Rng::with_seed(seed);
        let dialect = DIALECTS[seed as usize % 3];
        let is_word = dialect == ServerDialect::Text || rng.bool();
        let key: Vec<u8> =
            (0..rng.usize(1..20)).map(|_| rng.u8(if is_word { b'!'..=b'~' } else { 0..=255 })).collect();
        let value: Vec<u8> = (0..rng.usize(..40)).map(|_| rng.u8(..)).collect();
        let is_plain = dialect != ServerDialect::Meta && rng.u8(..8) != 0;
        let operation = any_operation(rng, is_plain, &key, &value);
        let mut request = b"before".to_vec();
        let asked = match put_operation(dialect, &operation, &mut request) {
            Ok(asked) => asked,
            Err(NotSpoken::Flag | NotSpoken::Steps) if dialect != ServerDialect::Meta => {
                refused[seed as usize % 3] += 1;
                assert_eq!(request, b"before");
                continue;
            }
            Err(error) => panic!("{operation:?}: {error}"),
        };
        assert_eq!(asked.dialect(), dialect);
        let request = &request[b"before".len()..];

        let (mut decoder, mut scratch) = (MemcachedDecoder::default(), Vec::new());
        let step = decoder.decode(&MemcachedLimits::default(), request, &mut scratch);
        let MemcachedStep::Request { consumed, request: decoded } = step else {
            panic!("{operation:?}: {} is {step:?}", request.escape_ascii())
        };
        assert_eq!(consumed, request.len());
        let expected = match as_sent(dialect, &operation) {
            // The text dialect has no other command without an effect.
            Operation::Noop if dialect == ServerDialect::Text => MemcachedCommand::Version,
            operation => MemcachedCommand::Operation(operation),
        };
        assert_eq!(decoded.command, expected, "{}", request.escape_ascii());

        let sent = any_reply(rng, &operation, &value);
        let mut reply = Vec::new();
        match &decoded.command {
            MemcachedCommand::Operation(asked) => {
                encode(&decoded.form, &of_server(asked, sent), &mut reply);
            }
            _ => encode(&decoded.form, &Reply::Version("1.6.45"), &mut reply),
        }
        let expected = Ok(ServerReply::Reply(as_received(dialect, &operation, sent)));
        assert_eq!(decode_reply_of(asked, &reply), expected, "{operation:?} {}", reply.escape_ascii());
        for cut in 0..reply.len() {
            assert_eq!(decode_reply_of(asked, &reply[..cut]), Err(MalformedReply));
            if dialect == ServerDialect::Binary {
                assert_eq!(binary_reply_len(&reply[..cut], 0, 40), Ok(None));
            }
        }
        let len = reply.len();
        reply.extend_from_slice(&reply.clone());
        assert_eq!(decode_reply_of(asked, &reply), Err(MalformedReply));
        if dialect == ServerDialect::Binary {
            assert_eq!(binary_reply_len(&reply, 0, 40), Ok(Some(len)));
        }
    }
    assert!(refused[0] > 1000 && refused[1] == 0 && refused[2] > 300, "{refused:?}");
}
