//! Both sides of the codec against each other: what the client writes, the server understands, and back.

use super::{Fetch, Meta, Response, Store, Verb, Want, decode, put_get, put_store, put_words};
use crate::memcached::{Command, Dialect, Limits, Step, encode};
use proptest::collection::vec;
use proptest::prelude::*;
use todana_core::{
    ArithmeticDirection, ArithmeticReply, Attributes, Expiry, HitReply, Operation, RecacheState, Record,
    Reply, StoreMode, StoredReply, Ttl, UnixSeconds,
};

/// A request as the client means it.
#[derive(Clone, Debug)]
enum Request {
    Get(Fetch, Vec<Vec<u8>>),
    Store(Verb, Vec<u8>, Vec<u8>, u32, i64),
    Delete(Vec<u8>),
    Count(Vec<u8>, ArithmeticDirection, u64),
    Touch(Vec<u8>, i32),
    MetaGet(Vec<u8>, Option<i32>),
    MetaSet(Vec<u8>, Vec<u8>, StoreMode, Option<u64>),
    MetaDelete(Vec<u8>, Option<u64>),
    MetaCount(Vec<u8>, ArithmeticDirection, u64),
}

/// What the two sides have to agree on.
#[derive(Clone, Debug, PartialEq)]
enum Gist {
    Get { key: Vec<u8>, versions: bool, touch: Option<Ttl> },
    Store { key: Vec<u8>, value: Vec<u8>, flags: u32, ttl: Ttl, mode: StoreMode, compare: Option<u64> },
    Delete { key: Vec<u8>, compare: Option<u64> },
    Count { key: Vec<u8>, direction: ArithmeticDirection, delta: u64 },
    Touch { key: Vec<u8>, ttl: Ttl },
}

/// What a reply says, be it made or read.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Value { value: Vec<u8>, flags: u32, version: Option<u64> },
    Miss,
    Done,
    ArithmeticReply(u64),
}

impl Request {
    fn put(&self, out: &mut Vec<u8>) {
        let direction = |direction: &ArithmeticDirection| {
            if *direction == ArithmeticDirection::Increment { "incr" } else { "decr" }
        };
        let outcome = match self {
            Request::Get(fetch, keys) => {
                put_get(out, *fetch, &keys.iter().map(Vec::as_slice).collect::<Vec<_>>())
            }
            Request::Store(verb, key, value, flags, exptime) => {
                let store = Store { verb: *verb, key, value, flags: *flags, exptime: *exptime };
                put_store(out, &store, false)
            }
            Request::Delete(key) => put_words(out, "delete", &[key]),
            Request::Count(key, way, delta) => {
                put_words(out, direction(way), &[key, delta.to_string().as_bytes()])
            }
            Request::Touch(key, exptime) => put_words(out, "touch", &[key, exptime.to_string().as_bytes()]),
            Request::MetaGet(key, ttl) => {
                let meta =
                    Meta::get(out, key).unwrap().want(Want::Flags).want(Want::Version).want(Want::Value);
                match ttl {
                    Some(exptime) => meta.ttl(*exptime).end(),
                    None => meta.end(),
                }
            }
            Request::MetaSet(key, value, mode, compare) => {
                let meta = Meta::set(out, key, value).unwrap().mode(*mode).ttl(77).flags(3);
                match compare {
                    Some(version) => meta.compare(*version).end(),
                    None => meta.end(),
                }
            }
            Request::MetaDelete(key, compare) => {
                let meta = Meta::delete(out, key).unwrap();
                match compare {
                    Some(version) => meta.compare(*version).end(),
                    None => meta.end(),
                }
            }
            Request::MetaCount(key, way, delta) => {
                Meta::arithmetic(out, key).unwrap().want(Want::Value).direction(*way).delta(*delta).end()
            }
        };
        outcome.unwrap();
    }

    fn gists(&self) -> Vec<Gist> {
        let exptime = |exptime: i32| Ttl::from_memcached(i64::from(exptime));
        vec![match self.clone() {
            Request::Get(fetch, keys) => {
                let touch = fetch.touch.map(Ttl::from_memcached);
                return keys
                    .into_iter()
                    .map(|key| Gist::Get { key, versions: fetch.versions, touch })
                    .collect();
            }
            Request::Store(verb, key, value, flags, exptime) => {
                let (mode, compare) = match verb {
                    Verb::Set => (StoreMode::Set, None),
                    Verb::Add => (StoreMode::Add, None),
                    Verb::Replace => (StoreMode::Replace, None),
                    Verb::Append => (StoreMode::Append, None),
                    Verb::Prepend => (StoreMode::Prepend, None),
                    Verb::Cas(version) => (StoreMode::Set, Some(version)),
                };
                Gist::Store { key, value, flags, ttl: Ttl::from_memcached(exptime), mode, compare }
            }
            Request::Delete(key) => Gist::Delete { key, compare: None },
            Request::Count(key, direction, delta) | Request::MetaCount(key, direction, delta) => {
                Gist::Count { key, direction, delta }
            }
            Request::Touch(key, ttl) => Gist::Touch { key, ttl: exptime(ttl) },
            Request::MetaGet(key, ttl) => Gist::Get { key, versions: true, touch: ttl.map(exptime) },
            Request::MetaSet(key, value, mode, compare) => {
                Gist::Store { key, value, flags: 3, ttl: Ttl::Seconds(77), mode, compare }
            }
            Request::MetaDelete(key, compare) => Gist::Delete { key, compare },
        }]
    }
}

fn gist(command: &Command<'_>) -> Gist {
    let Command::Operation(operation) = command else { panic!("nobody asked for {command:?}") };
    match *operation {
        Operation::Get(get) => {
            Gist::Get { key: get.key.into(), versions: get.needs.version, touch: get.touch }
        }
        Operation::Store(store) => Gist::Store {
            key: store.key.into(),
            value: store.value.into(),
            flags: store.flags,
            ttl: store.ttl,
            mode: store.mode,
            compare: store.compare,
        },
        Operation::Delete(delete) => Gist::Delete { key: delete.key.into(), compare: delete.compare },
        Operation::Arithmetic(count) => {
            Gist::Count { key: count.key.into(), direction: count.direction, delta: count.delta }
        }
        Operation::Touch(touch) => Gist::Touch { key: touch.key.into(), ttl: touch.ttl },
        ref other => panic!("nobody asked for {other:?}"),
    }
}

/// What the server tells about a command: a key whose length is odd is there, its value is the key again and again.
fn told(gist: &Gist) -> Told {
    match gist {
        Gist::Get { key, versions, .. } if key.len() % 2 == 1 => Told::Value {
            value: key.repeat(key.len() % 5),
            flags: key.len() as u32,
            version: versions.then_some(1000 + key.len() as u64),
        },
        Gist::Get { .. } => Told::Miss,
        Gist::Count { delta, .. } => Told::ArithmeticReply(*delta),
        _ => Told::Done,
    }
}

fn answer(gist: &Gist, reply: &mut dyn FnMut(Reply<'_>)) {
    match (told(gist), gist) {
        (Told::Value { value, flags, version }, _) => {
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
        (Told::Miss, _) => reply(Reply::Miss),
        (Told::ArithmeticReply(value), _) => reply(Reply::Number(ArithmeticReply {
            value,
            version: 0,
            expiry_before: Expiry::Never,
            expiry: Expiry::Never,
            created: false,
            now: UnixSeconds(1000),
        })),
        (Told::Done, Gist::Store { .. }) => reply(Reply::Stored(StoredReply::default())),
        (Told::Done, Gist::Delete { .. }) => reply(Reply::Deleted),
        (Told::Done, _) => reply(Reply::Touched),
    }
}

/// Serves requests that come in pieces: what they were, and the replies.
fn serve(requests: &[u8], cut: usize) -> (Vec<Gist>, Vec<u8>) {
    let (mut dialect, mut scratch, limits) = (Dialect::default(), Vec::new(), Limits::default());
    let (mut gists, mut replies, mut at) = (Vec::new(), Vec::new(), 0);
    for end in [cut, requests.len()] {
        loop {
            match dialect.decode(&limits, &requests[at..end], &mut scratch) {
                Step::Request { consumed, request } => {
                    gists.push(gist(&request.command));
                    answer(&gists[gists.len() - 1], &mut |reply| encode(&request.form, &reply, &mut replies));
                    at += consumed;
                }
                Step::NeedMore { consumed, .. } => {
                    at += consumed;
                    break;
                }
                Step::Block { .. } | Step::Close => panic!("the server hangs up"),
            }
        }
    }
    assert_eq!(at, requests.len());
    (gists, replies)
}

/// Reads the replies to a request from bytes of which `arrived` are there at first, then one more at a time.
fn read(
    request: &Request,
    replies: &[u8],
    at: &mut usize,
    arrived: &mut usize,
) -> Vec<(Option<Vec<u8>>, Told)> {
    let mut told = Vec::new();
    loop {
        let Some((len, response)) = decode(&replies[*at..*arrived], 1 << 20).unwrap() else {
            assert!(*arrived < replies.len(), "{request:?} is not answered");
            *arrived += 1;
            continue;
        };
        *at += len;
        told.push(match response {
            Response::Value { key, flags, version, value } => {
                (Some(key.to_vec()), Told::Value { value: value.to_vec(), flags, version })
            }
            Response::Meta { code: [b'V', b'A'], value: Some(value), .. }
                if matches!(request, Request::MetaCount(..)) =>
            {
                (None, Told::ArithmeticReply(std::str::from_utf8(value).unwrap().parse().unwrap()))
            }
            Response::Meta { code: [b'V', b'A'], value: Some(value), flags } => {
                let (version, client_flags) = (flags.number(b'c'), flags.number(b'f').unwrap() as u32);
                (None, Told::Value { value: value.to_vec(), flags: client_flags, version })
            }
            Response::Meta { code: [b'E', b'N'], .. } => (None, Told::Miss),
            Response::Number(number) => (None, Told::ArithmeticReply(number)),
            Response::Line(b"END") => return told,
            Response::Line(b"STORED" | b"DELETED" | b"TOUCHED") => (None, Told::Done),
            Response::Meta { code: [b'H', b'D'], .. } => (None, Told::Done),
            other => panic!("{request:?} is answered by {other:?}"),
        });
        if !matches!(request, Request::Get(..)) {
            return told;
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

fn request() -> impl Strategy<Value = Request> {
    use StoreMode::{Add, Append, Prepend, Replace, Set};
    let touch = proptest::option::of((-1..i32::MAX).prop_map(i64::from));
    let fetch = (any::<bool>(), touch).prop_map(|(versions, touch)| Fetch { versions, touch });
    let plain = [Verb::Set, Verb::Add, Verb::Replace, Verb::Append, Verb::Prepend];
    let verb = prop_oneof![proptest::sample::select(plain.to_vec()), any::<u64>().prop_map(Verb::Cas)];
    let mode = proptest::sample::select(vec![Set, Add, Replace, Append, Prepend]);
    let value = || vec(any::<u8>(), 0..300);
    prop_oneof![
        (fetch, vec(word(), 1..5)).prop_map(|(fetch, keys)| Request::Get(fetch, keys)),
        (verb, word(), value(), any::<u32>(), -1..i64::from(i32::MAX))
            .prop_map(|(verb, key, value, flags, ttl)| Request::Store(verb, key, value, flags, ttl)),
        word().prop_map(Request::Delete),
        (word(), direction(), any::<u64>()).prop_map(|(key, way, delta)| Request::Count(key, way, delta)),
        (word(), -1..i32::MAX).prop_map(|(key, ttl)| Request::Touch(key, ttl)),
        (any_key(), proptest::option::of(-1..i32::MAX)).prop_map(|(key, ttl)| Request::MetaGet(key, ttl)),
        (any_key(), value(), mode, proptest::option::of(any::<u64>()))
            .prop_map(|(key, value, mode, compare)| Request::MetaSet(key, value, mode, compare)),
        (any_key(), proptest::option::of(any::<u64>()))
            .prop_map(|(key, compare)| Request::MetaDelete(key, compare)),
        (any_key(), direction(), any::<u64>())
            .prop_map(|(key, way, delta)| Request::MetaCount(key, way, delta)),
    ]
}

proptest! {
    #[test]
    fn both_sides_understand_each_other_however_the_stream_is_cut(
        requests in vec(request(), 1..8), cut in any::<proptest::sample::Index>(), one_by_one in any::<bool>(),
    ) {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.put(&mut bytes));
        let expected: Vec<Gist> = requests.iter().flat_map(Request::gists).collect();
        let (gists, replies) = serve(&bytes, cut.index(bytes.len() + 1));
        prop_assert_eq!(gists, expected);

        let (mut at, mut arrived) = (0, if one_by_one { 0 } else { cut.index(replies.len() + 1) });
        for request in &requests {
            let found = read(request, &replies, &mut at, &mut arrived);
            let expected = request.gists().into_iter().map(|gist| {
                // Only the text dialect names the key of a value, and passes over those that are missing.
                let key = match &gist {
                    Gist::Get { key, .. } if matches!(request, Request::Get(..)) => Some(key.clone()),
                    _ => None,
                };
                (key, told(&gist))
            });
            let expected: Vec<_> = match request {
                Request::Get(..) => expected.filter(|(_, told)| *told != Told::Miss).collect(),
                _ => expected.collect(),
            };
            prop_assert_eq!(found, expected);
        }
        prop_assert_eq!(at, replies.len());
    }
}
