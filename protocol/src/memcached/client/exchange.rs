//! Tests both sides of the codec against each other: the server's side decodes the requests of the
//! client's side, and the client's side decodes the replies of the server's side.

use super::{
    ClientResponse, MetaField, MetaRequest, StoreVerb, TextFetch, TextStore, decode, put_get, put_store,
    put_words,
};
use crate::memcached::{MemcachedCommand, MemcachedDecoder, MemcachedLimits, MemcachedStep, encode};
use proptest::collection::vec;
use proptest::prelude::*;
use todana_core::{
    ArithmeticDirection, ArithmeticReply, Attributes, Expiry, HitReply, Operation, RecacheState, Record,
    Reply, StoreMode, StoredReply, Ttl, UnixSeconds,
};

/// A request with the methods of the client's side.
#[derive(Clone, Debug)]
enum ClientRequest {
    Get(TextFetch, Vec<Vec<u8>>),
    Store(StoreVerb, Vec<u8>, Vec<u8>, u32, i64),
    Delete(Vec<u8>),
    Count(Vec<u8>, ArithmeticDirection, u64),
    Touch(Vec<u8>, i32),
    MetaGet(Vec<u8>, Option<i32>),
    MetaSet(Vec<u8>, Vec<u8>, StoreMode, Option<u64>),
    MetaDelete(Vec<u8>, Option<u64>),
    MetaCount(Vec<u8>, ArithmeticDirection, u64),
}

/// The content of a request, on which both sides must agree.
#[derive(Clone, Debug, PartialEq)]
enum RequestSummary {
    Get { key: Vec<u8>, versions: bool, touch: Option<Ttl> },
    Store { key: Vec<u8>, value: Vec<u8>, flags: u32, ttl: Ttl, mode: StoreMode, compare: Option<u64> },
    Delete { key: Vec<u8>, compare: Option<u64> },
    Count { key: Vec<u8>, direction: ArithmeticDirection, delta: u64 },
    Touch { key: Vec<u8>, ttl: Ttl },
}

/// The content of a reply, on which both sides must agree.
#[derive(Clone, Debug, PartialEq)]
enum ReplySummary {
    Value { value: Vec<u8>, flags: u32, version: Option<u64> },
    Miss,
    Done,
    ArithmeticReply(u64),
}

impl ClientRequest {
    fn put(&self, out: &mut Vec<u8>) {
        let direction = |direction: &ArithmeticDirection| {
            if *direction == ArithmeticDirection::Increment { "incr" } else { "decr" }
        };
        let outcome = match self {
            ClientRequest::Get(fetch, keys) => {
                put_get(out, *fetch, &keys.iter().map(Vec::as_slice).collect::<Vec<_>>())
            }
            ClientRequest::Store(verb, key, value, flags, exptime) => {
                let store = TextStore { verb: *verb, key, value, flags: *flags, exptime: *exptime };
                put_store(out, &store, false)
            }
            ClientRequest::Delete(key) => put_words(out, "delete", &[key]),
            ClientRequest::Count(key, way, delta) => {
                put_words(out, direction(way), &[key, delta.to_string().as_bytes()])
            }
            ClientRequest::Touch(key, exptime) => {
                put_words(out, "touch", &[key, exptime.to_string().as_bytes()])
            }
            ClientRequest::MetaGet(key, ttl) => {
                let meta = MetaRequest::get(out, key)
                    .unwrap()
                    .want(MetaField::Flags)
                    .want(MetaField::Version)
                    .want(MetaField::Value);
                match ttl {
                    Some(exptime) => meta.ttl(*exptime).end(),
                    None => meta.end(),
                }
            }
            ClientRequest::MetaSet(key, value, mode, compare) => {
                let meta = MetaRequest::set(out, key, value).unwrap().mode(*mode).ttl(77).flags(3);
                match compare {
                    Some(version) => meta.compare(*version).end(),
                    None => meta.end(),
                }
            }
            ClientRequest::MetaDelete(key, compare) => {
                let meta = MetaRequest::delete(out, key).unwrap();
                match compare {
                    Some(version) => meta.compare(*version).end(),
                    None => meta.end(),
                }
            }
            ClientRequest::MetaCount(key, way, delta) => MetaRequest::arithmetic(out, key)
                .unwrap()
                .want(MetaField::Value)
                .direction(*way)
                .delta(*delta)
                .end(),
        };
        outcome.unwrap();
    }

    fn gists(&self) -> Vec<RequestSummary> {
        let exptime = |exptime: i32| Ttl::from_exptime(i64::from(exptime));
        vec![match self.clone() {
            ClientRequest::Get(fetch, keys) => {
                let touch = fetch.touch.map(Ttl::from_exptime);
                return keys
                    .into_iter()
                    .map(|key| RequestSummary::Get { key, versions: fetch.versions, touch })
                    .collect();
            }
            ClientRequest::Store(verb, key, value, flags, exptime) => {
                let (mode, compare) = match verb {
                    StoreVerb::Set => (StoreMode::Set, None),
                    StoreVerb::Add => (StoreMode::Add, None),
                    StoreVerb::Replace => (StoreMode::Replace, None),
                    StoreVerb::Append => (StoreMode::Append, None),
                    StoreVerb::Prepend => (StoreMode::Prepend, None),
                    StoreVerb::Cas(version) => (StoreMode::Set, Some(version)),
                };
                RequestSummary::Store { key, value, flags, ttl: Ttl::from_exptime(exptime), mode, compare }
            }
            ClientRequest::Delete(key) => RequestSummary::Delete { key, compare: None },
            ClientRequest::Count(key, direction, delta) | ClientRequest::MetaCount(key, direction, delta) => {
                RequestSummary::Count { key, direction, delta }
            }
            ClientRequest::Touch(key, ttl) => RequestSummary::Touch { key, ttl: exptime(ttl) },
            ClientRequest::MetaGet(key, ttl) => {
                RequestSummary::Get { key, versions: true, touch: ttl.map(exptime) }
            }
            ClientRequest::MetaSet(key, value, mode, compare) => {
                RequestSummary::Store { key, value, flags: 3, ttl: Ttl::Seconds(77), mode, compare }
            }
            ClientRequest::MetaDelete(key, compare) => RequestSummary::Delete { key, compare },
        }]
    }
}

fn gist(command: &MemcachedCommand<'_>) -> RequestSummary {
    let MemcachedCommand::Operation(operation) = command else { panic!("nobody asked for {command:?}") };
    match *operation {
        Operation::Get(get) => {
            RequestSummary::Get { key: get.key.into(), versions: get.needs.version, touch: get.touch }
        }
        Operation::Store(store) => RequestSummary::Store {
            key: store.key.into(),
            value: store.value.into(),
            flags: store.flags,
            ttl: store.ttl,
            mode: store.mode,
            compare: store.compare,
        },
        Operation::Delete(delete) => {
            RequestSummary::Delete { key: delete.key.into(), compare: delete.compare }
        }
        Operation::Arithmetic(count) => {
            RequestSummary::Count { key: count.key.into(), direction: count.direction, delta: count.delta }
        }
        Operation::Touch(touch) => RequestSummary::Touch { key: touch.key.into(), ttl: touch.ttl },
        ref other => panic!("nobody asked for {other:?}"),
    }
}

/// Returns the reply of a server in which every key of odd length exists, with a repetition of the
/// key as its value.
fn reply_to(gist: &RequestSummary) -> ReplySummary {
    match gist {
        RequestSummary::Get { key, versions, .. } if key.len() % 2 == 1 => ReplySummary::Value {
            value: key.repeat(key.len() % 5),
            flags: key.len() as u32,
            version: versions.then_some(1000 + key.len() as u64),
        },
        RequestSummary::Get { .. } => ReplySummary::Miss,
        RequestSummary::Count { delta, .. } => ReplySummary::ArithmeticReply(*delta),
        _ => ReplySummary::Done,
    }
}

fn answer(gist: &RequestSummary, reply: &mut dyn FnMut(Reply<'_>)) {
    match (reply_to(gist), gist) {
        (ReplySummary::Value { value, flags, version }, _) => {
            let version = version.unwrap_or(0);
            let attributes = Attributes { flags, version, ..Attributes::default() };
            reply(Reply::Hit(HitReply {
                record: Record::new(&value, attributes),
                expiry_before: Expiry::Never,
                access_before: None,
                recache: RecacheState::default(),
                now: UnixSeconds(1000),
            }))
        }
        (ReplySummary::Miss, _) => reply(Reply::Miss),
        (ReplySummary::ArithmeticReply(value), _) => reply(Reply::Number(ArithmeticReply {
            value,
            version: 0,
            expiry_before: Expiry::Never,
            expiry: Expiry::Never,
            created: false,
            now: UnixSeconds(1000),
        })),
        (ReplySummary::Done, RequestSummary::Store { .. }) => reply(Reply::Stored(StoredReply::default())),
        (ReplySummary::Done, RequestSummary::Delete { .. }) => reply(Reply::Deleted),
        (ReplySummary::Done, _) => reply(Reply::Touched),
    }
}

/// Decodes and answers requests that arrive in two pieces. Returns the decoded requests and the
/// replies.
fn serve(requests: &[u8], cut: usize) -> (Vec<RequestSummary>, Vec<u8>) {
    let (mut dialect, mut scratch, limits) =
        (MemcachedDecoder::default(), Vec::new(), MemcachedLimits::default());
    let (mut gists, mut replies, mut at) = (Vec::new(), Vec::new(), 0);
    for end in [cut, requests.len()] {
        loop {
            match dialect.decode(&limits, &requests[at..end], &mut scratch) {
                MemcachedStep::Request { consumed, request } => {
                    gists.push(gist(&request.command));
                    answer(&gists[gists.len() - 1], &mut |reply| encode(&request.form, &reply, &mut replies));
                    at += consumed;
                }
                MemcachedStep::NeedMore { consumed, .. } => {
                    at += consumed;
                    break;
                }
                MemcachedStep::Block { .. } | MemcachedStep::Close => panic!("the server hangs up"),
            }
        }
    }
    assert_eq!(at, requests.len());
    (gists, replies)
}

/// Decodes the replies to a request. At first `arrived` bytes are there, then one byte more at a
/// time.
fn read(
    request: &ClientRequest,
    replies: &[u8],
    at: &mut usize,
    arrived: &mut usize,
) -> Vec<(Option<Vec<u8>>, ReplySummary)> {
    let mut decoded = Vec::new();
    loop {
        let Some((len, response)) = decode(&replies[*at..*arrived], 1 << 20).unwrap() else {
            assert!(*arrived < replies.len(), "{request:?} is not answered");
            *arrived += 1;
            continue;
        };
        *at += len;
        decoded.push(match response {
            ClientResponse::Value { key, flags, version, value } => {
                (Some(key.to_vec()), ReplySummary::Value { value: value.to_vec(), flags, version })
            }
            ClientResponse::Meta { code: [b'V', b'A'], value: Some(value), .. }
                if matches!(request, ClientRequest::MetaCount(..)) =>
            {
                (None, ReplySummary::ArithmeticReply(std::str::from_utf8(value).unwrap().parse().unwrap()))
            }
            ClientResponse::Meta { code: [b'V', b'A'], value: Some(value), flags } => {
                let (version, client_flags) = (flags.number(b'c'), flags.number(b'f').unwrap() as u32);
                (None, ReplySummary::Value { value: value.to_vec(), flags: client_flags, version })
            }
            ClientResponse::Meta { code: [b'E', b'N'], .. } => (None, ReplySummary::Miss),
            ClientResponse::Number(number) => (None, ReplySummary::ArithmeticReply(number)),
            ClientResponse::Line(b"END") => return decoded,
            ClientResponse::Line(b"STORED" | b"DELETED" | b"TOUCHED") => (None, ReplySummary::Done),
            ClientResponse::Meta { code: [b'H', b'D'], .. } => (None, ReplySummary::Done),
            other => panic!("{request:?} is answered by {other:?}"),
        });
        if !matches!(request, ClientRequest::Get(..)) {
            return decoded;
        }
    }
}

fn word() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("ends a word", |byte| *byte > b' ' && *byte != 0x7F);
    prop_oneof![9 => vec(byte.clone(), 1..20), 1 => vec(byte, 240..=250)]
}

fn any_key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![word(), vec(any::<u8>(), 1..30)]
}

fn direction() -> impl Strategy<Value = ArithmeticDirection> {
    prop_oneof![Just(ArithmeticDirection::Increment), Just(ArithmeticDirection::Decrement)]
}

fn request() -> impl Strategy<Value = ClientRequest> {
    use StoreMode::{Add, Append, Prepend, Replace, Set};
    let touch = proptest::option::of((-1..i32::MAX).prop_map(i64::from));
    let fetch = (any::<bool>(), touch).prop_map(|(versions, touch)| TextFetch { versions, touch });
    let plain = [StoreVerb::Set, StoreVerb::Add, StoreVerb::Replace, StoreVerb::Append, StoreVerb::Prepend];
    let verb = prop_oneof![proptest::sample::select(plain.to_vec()), any::<u64>().prop_map(StoreVerb::Cas)];
    let mode = proptest::sample::select(vec![Set, Add, Replace, Append, Prepend]);
    let value = || vec(any::<u8>(), 0..300);
    prop_oneof![
        (fetch, vec(word(), 1..5)).prop_map(|(fetch, keys)| ClientRequest::Get(fetch, keys)),
        (verb, word(), value(), any::<u32>(), -1..i64::from(i32::MAX))
            .prop_map(|(verb, key, value, flags, ttl)| ClientRequest::Store(verb, key, value, flags, ttl)),
        word().prop_map(ClientRequest::Delete),
        (word(), direction(), any::<u64>())
            .prop_map(|(key, way, delta)| ClientRequest::Count(key, way, delta)),
        (word(), -1..i32::MAX).prop_map(|(key, ttl)| ClientRequest::Touch(key, ttl)),
        (any_key(), proptest::option::of(-1..i32::MAX))
            .prop_map(|(key, ttl)| ClientRequest::MetaGet(key, ttl)),
        (any_key(), value(), mode, proptest::option::of(any::<u64>()))
            .prop_map(|(key, value, mode, compare)| ClientRequest::MetaSet(key, value, mode, compare)),
        (any_key(), proptest::option::of(any::<u64>()))
            .prop_map(|(key, compare)| ClientRequest::MetaDelete(key, compare)),
        (any_key(), direction(), any::<u64>())
            .prop_map(|(key, way, delta)| ClientRequest::MetaCount(key, way, delta)),
    ]
}

proptest! {
    #[test]
    fn client_and_server_agree_on_any_split_stream(
        requests in vec(request(), 1..8), cut in any::<proptest::sample::Index>(), one_by_one in any::<bool>(),
    ) {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.put(&mut bytes));
        let expected: Vec<RequestSummary> = requests.iter().flat_map(ClientRequest::gists).collect();
        let (gists, replies) = serve(&bytes, cut.index(bytes.len() + 1));
        prop_assert_eq!(gists, expected);

        let (mut at, mut arrived) = (0, if one_by_one { 0 } else { cut.index(replies.len() + 1) });
        for request in &requests {
            let found = read(request, &replies, &mut at, &mut arrived);
            let expected = request.gists().into_iter().map(|gist| {
                // Only the text dialect names the key of a value, and omits missing keys.
                let key = match &gist {
                    RequestSummary::Get { key, .. } if matches!(request, ClientRequest::Get(..)) => Some(key.clone()),
                    _ => None,
                };
                (key, reply_to(&gist))
            });
            let expected: Vec<_> = match request {
                ClientRequest::Get(..) => expected.filter(|(_, reply_to)| *reply_to != ReplySummary::Miss).collect(),
                _ => expected.collect(),
            };
            prop_assert_eq!(found, expected);
        }
        prop_assert_eq!(at, replies.len());
    }
}
