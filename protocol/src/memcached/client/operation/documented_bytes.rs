//! Tests operations against bytes from the documents of memcached and from its servers.

use super::*;
use crate::memcached::client::binary_reply_len;
use todana_core::{Arithmetic, Delete, Inspect, Modify, ReplyNeeds, StoredReply, Touch, Ttl, ValueChange};

const TEXT: ServerDialect = ServerDialect::Text;
const META: ServerDialect = ServerDialect::Meta;
const BINARY: ServerDialect = ServerDialect::Binary;

/// The line that a text server and a meta server get.
type ExpectedLines = [Result<&'static [u8], NotSpoken>; 2];

/// The result of decoding a reply.
type DecodedReply<'a> = Result<ServerReply<'a>, MalformedReply>;

const VERSION: ReplyNeeds = ReplyNeeds { version: true, access: false };

fn get(key: &[u8]) -> Get<'_> {
    Get { key, ..Get::default() }
}

fn counting() -> Arithmetic<'static> {
    Arithmetic { key: b"k", delta: 5, ..Arithmetic::default() }
}

fn put(dialect: ServerDialect, operation: Operation<'_>) -> Result<(AskedReply, Vec<u8>), NotSpoken> {
    let mut out = Vec::new();
    let asked = put_operation(dialect, &operation, &mut out);
    assert!(asked.is_ok() || out.is_empty());
    Ok((asked?, out))
}

/// Returns a packet of a server.
fn packet(opcode: u8, status: u8, parts: [&[u8]; 3], version: u64) -> Vec<u8> {
    let ([extras, key, _], body) = (parts, parts.concat());
    let lengths = [0, key.len() as u8, extras.len() as u8, 0, 0, status, 0, 0, 0, body.len() as u8];
    [&[0x81, opcode][..], &lengths, &[0; 4], &version.to_be_bytes(), &body].concat()
}

#[test]
fn requests_have_the_documented_bytes() {
    let compared = Delete { key: b"k", compare: Some(9), ..Delete::default() };
    let store = Store { key: b"k", value: b"xy", flags: 7, ttl: Ttl::Seconds(60), ..Store::default() };
    let cases: [(Operation<'_>, ExpectedLines); _] = [
        (Operation::Get(get(b"k")), [Ok(b"get k\r\n"), Ok(b"mg k v f\r\n")]),
        (Operation::Get(Get { needs: VERSION, ..get(b"k") }), [Ok(b"gets k\r\n"), Ok(b"mg k v f c\r\n")]),
        (
            Operation::Get(Get { touch: Some(Ttl::Seconds(30)), needs: VERSION, ..get(b"k") }),
            [Ok(b"gats 30 k\r\n"), Ok(b"mg k v f c T30\r\n")],
        ),
        (
            Operation::Get(Get {
                vivify: Some(Ttl::Seconds(5)),
                recache_below_s: Some(10),
                version: Some(3),
                needs: ReplyNeeds { version: false, access: true },
                silent: true,
                ..get(b"k")
            }),
            [Err(NotSpoken::Flag), Ok(b"mg k v f h l u R10 N5 E3\r\n")],
        ),
        // A time after `N` replaces it.
        (
            Operation::Get(Get { touch: Some(Ttl::Sliding(9)), vivify: Some(Ttl::Sliding(9)), ..get(b"k") }),
            [Err(NotSpoken::Flag), Ok(b"mg k v f N0 A9\r\n")],
        ),
        (
            Operation::Get(Get { vivify: Some(Ttl::Sliding(9)), ..get(b"k") }),
            [Err(NotSpoken::Flag), Err(NotSpoken::Flag)],
        ),
        (
            Operation::Get(Get { touch: Some(Ttl::Sliding(9)), ..get(b"k") }),
            [Err(NotSpoken::Flag), Ok(b"mg k v f A9\r\n")],
        ),
        (Operation::Get(get(b"a b")), [Err(NotSpoken::Key), Ok(b"mg YSBi b v f\r\n")]),
        (Operation::Get(get(b"a\r\nflush_all")), [Err(NotSpoken::Key), Ok(b"mg YQ0KZmx1c2hfYWxs b v f\r\n")]),
        (Operation::Get(get(b"")), [Err(NotSpoken::Key), Err(NotSpoken::Key)]),
        (Operation::Get(get(&[b'k'; 251])), [Err(NotSpoken::Key), Err(NotSpoken::Key)]),
        (Operation::Get(get(&[b' '; 187])), [Err(NotSpoken::Key), Err(NotSpoken::Key)]),
        (Operation::Store(store), [Ok(b"set k 7 60 2\r\nxy\r\n"), Ok(b"ms k 2 F7 T60\r\nxy\r\n")]),
        (
            Operation::Store(Store { mode: StoreMode::Append, needs: VERSION, ..store }),
            [Ok(b"append k 7 60 2\r\nxy\r\n"), Ok(b"ms k 2 F7 T60 MA c s\r\nxy\r\n")],
        ),
        (
            Operation::Store(Store { mode: StoreMode::Replace, compare: Some(8), ..store }),
            [Ok(b"cas k 7 60 2 8\r\nxy\r\n"), Ok(b"ms k 2 F7 T60 MR C8\r\nxy\r\n")],
        ),
        (
            Operation::Store(Store { ttl: Ttl::Expired, stale_if_older: true, version: Some(4), ..store }),
            [Err(NotSpoken::Flag), Ok(b"ms k 2 F7 T-1 I E4\r\nxy\r\n")],
        ),
        (
            Operation::Store(Store { ttl: Ttl::Seconds(3_000_000), ..store }),
            [Err(NotSpoken::LongSpan), Err(NotSpoken::LongSpan)],
        ),
        (Operation::Delete(compared), [Err(NotSpoken::Steps), Ok(b"md k C9\r\n")]),
        (Operation::Delete(Delete { compare: None, ..compared }), [Ok(b"delete k\r\n"), Ok(b"md k\r\n")]),
        (
            Operation::Delete(Delete { mark_stale: true, ttl: Some(Ttl::Seconds(30)), ..compared }),
            [Err(NotSpoken::Flag), Ok(b"md k C9 I T30\r\n")],
        ),
        (Operation::Arithmetic(counting()), [Ok(b"incr k 5\r\n"), Ok(b"ma k v D5\r\n")]),
        (
            Operation::Arithmetic(Arithmetic {
                direction: todana_core::ArithmeticDirection::Decrement,
                vivify: Some(Ttl::Seconds(60)),
                initial: 100,
                needs: VERSION,
                ..counting()
            }),
            [Err(NotSpoken::Steps), Ok(b"ma k v c MD D5 N60 J100\r\n")],
        ),
        (
            Operation::Arithmetic(Arithmetic { compare: Some(6), ..counting() }),
            [Err(NotSpoken::Steps), Ok(b"ma k v D5 C6\r\n")],
        ),
        (
            Operation::Touch(Touch { key: b"k", ttl: Ttl::Expired }),
            [Ok(b"touch k -1\r\n"), Ok(b"mg k T-1\r\n")],
        ),
        (Operation::Inspect(Inspect { key: b"k" }), [Err(NotSpoken::Flag), Ok(b"me k\r\n")]),
        (Operation::Flush { at: Ttl::Never }, [Ok(b"flush_all\r\n"), Ok(b"flush_all\r\n")]),
        (Operation::Flush { at: Ttl::Seconds(10) }, [Ok(b"flush_all 10\r\n"), Ok(b"flush_all 10\r\n")]),
        (Operation::Noop, [Ok(b"version\r\n"), Ok(b"mn\r\n")]),
        (
            Operation::Modify(Modify { key: b"k", ttl: None, change: ValueChange::Take }),
            [Err(NotSpoken::Operation), Err(NotSpoken::Operation)],
        ),
    ];
    for (operation, expected) in cases {
        for (dialect, expected) in [TEXT, META].into_iter().zip(expected) {
            let written = put(dialect, operation).map(|(_, bytes)| bytes);
            assert_eq!(written, expected.map(<[u8]>::to_vec), "{operation:?}");
        }
    }
}

#[test]
fn packets_have_the_documented_bytes() {
    let header = |opcode: u8, key_len: u8, extras_len: u8, body_len: u8, version: u8| {
        let lengths = [opcode, 0, key_len, extras_len, 0, 0, 0, 0, 0, 0, body_len, 0, 0, 0, 0];
        [&[0x80][..], &lengths, &[0; 7], &[version]].concat()
    };
    let cases: [(Operation<'_>, Vec<u8>, &[u8]); _] = [
        (Operation::Get(get(b"Hello")), header(0x00, 5, 0, 5, 0), b"Hello"),
        (
            Operation::Get(Get { touch: Some(Ttl::Seconds(300)), ..get(b"k") }),
            header(0x1d, 1, 4, 5, 0),
            b"\0\0\x01\x2ck",
        ),
        // The example of the specification.
        (
            Operation::Store(Store {
                key: b"Hello",
                value: b"World",
                flags: 0xdead_beef,
                ttl: Ttl::Seconds(0x0e10),
                mode: StoreMode::Add,
                ..Store::default()
            }),
            header(0x02, 5, 8, 0x12, 0),
            b"\xde\xad\xbe\xef\0\0\x0e\x10HelloWorld",
        ),
        (
            Operation::Store(Store { key: b"k", value: b"!", mode: StoreMode::Append, ..Store::default() }),
            header(0x0e, 1, 0, 2, 0),
            b"k!",
        ),
        (
            Operation::Delete(Delete { key: b"Hello", compare: Some(9), ..Delete::default() }),
            header(0x04, 5, 0, 5, 9),
            b"Hello",
        ),
        (
            Operation::Arithmetic(Arithmetic {
                key: b"counter",
                delta: 1,
                vivify: Some(Ttl::Seconds(0x0e10)),
                ..Arithmetic::default()
            }),
            header(0x05, 7, 0x14, 0x1b, 0),
            b"\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\x0e\x10counter",
        ),
        (
            Operation::Arithmetic(counting()),
            header(0x05, 1, 20, 21, 0),
            b"\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\0\xff\xff\xff\xffk",
        ),
        (
            Operation::Touch(Touch { key: b"k", ttl: Ttl::Expired }),
            header(0x1c, 1, 4, 5, 0),
            b"\0\x27\x8d\x01k",
        ),
        (Operation::Flush { at: Ttl::Never }, header(0x08, 0, 0, 0, 0), b""),
        (Operation::Flush { at: Ttl::Seconds(10) }, header(0x08, 0, 4, 4, 0), b"\0\0\0\x0a"),
        (Operation::Noop, header(0x0a, 0, 0, 0, 0), b""),
    ];
    for (operation, header, body) in cases {
        assert_eq!(put(BINARY, operation).unwrap().1, [&header, body].concat(), "{operation:?}");
    }
    // No record has version 0, and none must be replaced.
    let never = Store { key: b"k", compare: Some(0), ..Store::default() };
    assert_eq!(put(BINARY, Operation::Store(never)).unwrap().1[16..24], [0xff; 8]);
    for (operation, error) in [
        (Operation::Get(get(&[b'k'; 251])), NotSpoken::Key),
        (Operation::Get(get(b"")), NotSpoken::Key),
        (Operation::Get(Get { vivify: Some(Ttl::Never), ..get(b"k") }), NotSpoken::Flag),
        (Operation::Inspect(Inspect { key: b"k" }), NotSpoken::Flag),
        (Operation::Store(Store { mode: StoreMode::Add, ..never }), NotSpoken::Flag),
    ] {
        assert_eq!(put(BINARY, operation).err(), Some(error), "{operation:?}");
    }
}

#[test]
fn replies_of_memcached_are_understood() {
    let touched = Operation::Get(Get { touch: Some(Ttl::Seconds(9)), ..get(b"k") });
    let set = Operation::Store(Store { key: b"k", value: b"xy", ..Store::default() });
    let append = Operation::Store(Store { key: b"k", mode: StoreMode::Append, ..Store::default() });
    let stored =
        |version, value_len| Ok(ServerReply::Reply(Reply::Stored(StoredReply { version, value_len })));
    let number = |value, version| Ok(ServerReply::Reply(Reply::Number(number_of(value, version))));
    let refused = |refusal| Ok(ServerReply::Reply(Reply::Refused(refusal)));
    let too_large = || refused(RefusalReason::TooLarge);
    let non_numeric = || refused(RefusalReason::NonNumeric);
    let numbers = Operation::Arithmetic(counting());
    let cases: [(ServerDialect, Operation<'_>, &[u8], DecodedReply<'_>); _] = [
        (TEXT, numbers, b"9 \r\n", number(9, 0)),
        (TEXT, numbers, b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n", non_numeric()),
        (TEXT, set, b"NOT_STORED\r\n", Ok(ServerReply::Reply(Reply::NotStored))),
        (TEXT, set, b"SERVER_ERROR object too large for cache\r\n", too_large()),
        (TEXT, set, b"SERVER_ERROR out of memory storing object\r\n", refused(RefusalReason::OutOfMemory)),
        (TEXT, set, b"SERVER_ERROR x y\r\n", Ok(ServerReply::Error(b"SERVER_ERROR x y"))),
        // A read that fails is no miss.
        (
            TEXT,
            touched,
            b"SERVER_ERROR out of memory writing get response\r\n",
            Ok(ServerReply::Error(b"SERVER_ERROR out of memory writing get response")),
        ),
        (
            TEXT,
            touched,
            b"VALUE k 0 1\r\nx\r\nSERVER_ERROR out of memory\r\n",
            Ok(ServerReply::Error(b"SERVER_ERROR out of memory")),
        ),
        (META, set, b"HD\r\n", stored(0, 2)),
        (META, append, b"HD c7 s30\r\n", stored(7, 30)),
        (META, append, b"NS\r\n", Ok(ServerReply::Reply(Reply::NotStored))),
        (META, set, b"SERVER_ERROR object too large for cache\r\n", too_large()),
        (META, numbers, b"VA 2 t30 c5\r\n9 \r\n", {
            let (expiry_before, expiry) = (expiry_in(Some(30)), expiry_in(Some(30)));
            let reply = ArithmeticReply { expiry_before, expiry, ..number_of(9, 5) };
            Ok(ServerReply::Reply(Reply::Number(reply)))
        }),
        (
            META,
            touched,
            b"CLIENT_ERROR invalid flag\r\n",
            Ok(ServerReply::Error(b"CLIENT_ERROR invalid flag")),
        ),
        (META, Operation::Flush { at: Ttl::Never }, b"OK\r\n", Ok(ServerReply::Reply(Reply::Done))),
        (META, Operation::Noop, b"MN\r\n", Ok(ServerReply::Reply(Reply::Done))),
    ];
    for (dialect, operation, reply, expected) in cases {
        let (asked, _) = put(dialect, operation).unwrap();
        assert_eq!(decode_reply_of(asked, reply), expected, "{}", reply.escape_ascii());
    }
    let packets: [(Operation<'_>, Vec<u8>, DecodedReply<'_>); _] = [
        (set, packet(1, 0, [b"", b"", b""], 77), stored(77, 2)),
        (set, packet(1, 3, [b"", b"", b"Too large."], 0), too_large()),
        (set, packet(1, 0x82, [b"", b"", b"Out of memory"], 0), refused(RefusalReason::OutOfMemory)),
        (numbers, packet(5, 0, [b"", b"", &9u64.to_be_bytes()], 5), number(9, 5)),
        (numbers, packet(5, 6, [b"", b"", b"Non-numeric ..."], 0), non_numeric()),
        (
            numbers,
            packet(5, 4, [b"", b"", b""], 0),
            Ok(ServerReply::Error(b"CLIENT_ERROR Invalid arguments")),
        ),
        (set, packet(1, 0x20, [b"", b"", b"x"], 0), Ok(ServerReply::Error(b"CLIENT_ERROR Auth failure."))),
        (
            set,
            packet(1, 7, [b"", b"", b"I'm not responsible for this vbucket"], 0),
            Ok(ServerReply::Error(b"SERVER_ERROR no server has the vbucket of the key")),
        ),
        (
            set,
            packet(1, 0x99, [b"", b"", b"a status of a later version"], 0),
            Ok(ServerReply::Error(b"SERVER_ERROR the server refused the request")),
        ),
        (
            set,
            packet(1, 0x86, [b"", b"", b"SERVER_ERROR server a:1: down"], 0),
            Ok(ServerReply::Error(b"SERVER_ERROR server a:1: down")),
        ),
        // A text that would be several lines is not passed on.
        (
            set,
            packet(1, 0x86, [b"", b"", b"SERVER_ERROR x\r\nVALUE k 0 0"], 0),
            Ok(ServerReply::Error(b"SERVER_ERROR Temporary failure")),
        ),
    ];
    for (operation, reply, expected) in packets {
        let (asked, _) = put(BINARY, operation).unwrap();
        assert_eq!(decode_reply_of(asked, &reply), expected, "{}", reply.escape_ascii());
    }
}

#[test]
fn reply_to_another_request_is_malformed() {
    let numbers = Operation::Arithmetic(counting());
    let set = Operation::Store(Store { key: b"k", value: b"xy", ..Store::default() });
    let delete = Operation::Delete(Delete { key: b"k", ..Delete::default() });
    let read = Operation::Get(get(b"k"));
    let cases: [(ServerDialect, Operation<'_>, &[&[u8]]); _] = [
        (
            TEXT,
            read,
            &[
                b"STORED\r\n",
                b"NOT_FOUND\r\n",
                b"VALUE k 0 1\r\nx\r\n",
                b"VALUE k 0 1 7\r\nx\r\nEND\r\n",
                b"VALUE k 0 1\r\nx\r\nVALUE k 0 1\r\nx\r\nEND\r\n",
                b"END\r\nEND\r\n",
                b"HD\r\n",
                b"VALUE k 0 2\r\nx\r\nEND\r\n",
            ],
        ),
        (TEXT, set, &[b"DELETED\r\n", b"EXISTS\r\n", b"NOT_FOUND\r\n", b"7\r\n", b"END\r\n", b"\r\n"]),
        (TEXT, delete, &[b"STORED\r\n", b"OK\r\n"]),
        (TEXT, numbers, &[b"STORED\r\n", b"-1\r\n", b"18446744073709551616\r\n", b"7 x\r\n"]),
        (TEXT, Operation::Noop, &[b"VERSION\r\n", b"MN\r\n"]),
        (
            META,
            read,
            &[
                b"HD f0\r\n",
                b"VA 1\r\nx\r\n",
                b"VA 1 f4294967296\r\nx\r\n",
                b"NF\r\n",
                b"MN\r\n",
                b"END\r\n",
                b"EN\r\nEN\r\n",
            ],
        ),
        (META, Operation::Get(Get { needs: VERSION, ..get(b"k") }), &[b"VA 1 f0\r\nx\r\n"]),
        (META, set, &[b"VA 1 f0\r\nx\r\n", b"EN\r\n", b"NF\r\n", b"STORED\r\n"]),
        (META, numbers, &[b"HD\r\n", b"VA 0\r\n\r\n", b"VA 1\r\nx\r\n", b"EN\r\n"]),
        (META, Operation::Inspect(Inspect { key: b"k" }), &[b"ME k exp=-1 la=0 cas=1\r\n", b"ME\r\n"]),
    ];
    for (dialect, operation, replies) in cases {
        let (asked, _) = put(dialect, operation).unwrap();
        for reply in replies {
            assert_eq!(decode_reply_of(asked, reply), Err(MalformedReply), "{}", reply.escape_ascii());
        }
    }
    let good = packet(0, 0, [b"\0\0\0\x05", b"", b"xy"], 77);
    let change = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let (asked, _) = put(BINARY, read).unwrap();
    assert!(matches!(decode_reply_of(asked, &good), Ok(ServerReply::Reply(Reply::Hit(_)))));
    for bytes in [
        Vec::new(),
        change(0, 0x80),
        change(1, 1),
        change(3, 200),
        change(4, 3),
        change(11, 5),
        change(11, 7),
        packet(0, 2, [b"", b"", b""], 0),
        packet(0, 5, [b"", b"", b""], 0),
        packet(0, 0, [b"", b"", b"xy"], 0),
    ] {
        assert_eq!(decode_reply_of(asked, &bytes), Err(MalformedReply), "{}", bytes.escape_ascii());
    }
    for (operation, opcode) in [(set, 1), (numbers, 5)] {
        let (asked, _) = put(BINARY, operation).unwrap();
        let status = if opcode == 1 { 1 } else { 0 };
        let reply = packet(opcode, status, [b"", b"", b"abc"], 0);
        assert_eq!(decode_reply_of(asked, &reply), Err(MalformedReply));
    }
}

#[test]
fn time_left_is_that_before_or_after_touch() {
    let touch = Operation::Get(Get { touch: Some(Ttl::Seconds(30)), ..get(b"k") });
    for (time_left, request) in
        [(TimeLeft::Before, &b"mg k v f t T30\r\n"[..]), (TimeLeft::After, b"mg k v f T30 t\r\n")]
    {
        let (fields, mut out) = (RecordFields { time_left, ..RecordFields::default() }, Vec::new());
        let asked = put_operation_for(META, &touch, fields, &mut out).unwrap();
        assert_eq!(out, request);
        for (reply, seconds) in [(&b"VA 0 f0 t12\r\n\r\n"[..], Some(12)), (b"VA 0 f0 t-1\r\n\r\n", None)] {
            let Ok(ServerReply::Reply(Reply::Hit(hit))) = decode_reply_of(asked, reply) else {
                panic!("a hit")
            };
            assert_eq!(hit.record.attributes.expiry.seconds_left(hit.now), seconds);
            assert_eq!(hit.expiry_before.seconds_left(hit.now), seconds);
        }
        for dialect in [TEXT, BINARY] {
            let refused = put_operation_for(dialect, &touch, fields, &mut out);
            assert_eq!((refused, out.len()), (Err(NotSpoken::Flag), request.len()));
        }
    }
}

#[test]
fn read_without_value_becomes_a_touch() {
    let touch = Operation::Get(Get { touch: Some(Ttl::Seconds(30)), needs: VERSION, ..get(b"k") });
    let fields = RecordFields { value: false, ..RecordFields::default() };
    let written = |dialect| {
        let mut out = Vec::new();
        (put_operation_for(dialect, &touch, fields, &mut out).unwrap(), out)
    };
    let hit = |flags, version| {
        let attributes = Attributes { flags, version, ..Attributes::default() };
        Ok(ServerReply::Reply(Reply::Hit(hit_of(b"", attributes))))
    };
    let miss = Ok(ServerReply::Reply(Reply::Miss));
    let (asked, out) = written(TEXT);
    assert_eq!((out.as_slice(), asked.is_values()), (&b"touch k 30\r\n"[..], false));
    assert_eq!(decode_reply_of(asked, b"TOUCHED\r\n"), hit(0, 0));
    assert_eq!(decode_reply_of(asked, b"NOT_FOUND\r\n"), miss);
    let (asked, out) = written(META);
    assert_eq!(out, b"mg k f c T30\r\n");
    assert_eq!(decode_reply_of(asked, b"HD f5 c6\r\n"), hit(5, 6));
    assert_eq!(decode_reply_of(asked, b"EN\r\n"), miss);
    let (asked, out) = written(BINARY);
    assert_eq!(out[1], 0x1c);
    assert_eq!(decode_reply_of(asked, &packet(0x1c, 0, [b"\0\0\0\x05", b"", b""], 6)), hit(5, 6));
    assert_eq!(decode_reply_of(asked, &packet(0x1c, 0, [b"", b"", b""], 0)), hit(0, 0));
    assert_eq!(decode_reply_of(asked, &packet(0x1c, 1, [b"", b"", b"Not found"], 0)), miss);
    // Without a touch, only the meta dialect can omit the value.
    let read = Operation::Get(get(b"k"));
    for dialect in [TEXT, BINARY] {
        let mut out = Vec::new();
        let asked = put_operation_for(dialect, &read, fields, &mut out).unwrap();
        assert_eq!((asked, out), put(dialect, read).unwrap());
    }
}

#[test]
fn reply_of_statistics_ends_with_a_nameless_packet() {
    let parts = [
        packet(0x10, 0, [b"", b"pid", b"7"], 0),
        packet(0x10, 0, [b"", b"uptime", b""], 0),
        packet(0x10, 0, [b"", b"", b""], 0),
    ];
    let reply = parts.concat();
    for cut in 0..reply.len() {
        assert_eq!(binary_reply_len(&reply[..cut], 0, 100), Ok(None));
    }
    assert_eq!(binary_reply_len(&[&reply[..], &reply].concat(), 0, 100), Ok(Some(reply.len())));
    // Each packet has the opaque of the request.
    let mut other = reply.clone();
    other[parts[0].len() + 15] = 1;
    assert_eq!(binary_reply_len(&other, 0, 100), Err(MalformedReply));
    let unknown = packet(0x10, 1, [b"", b"", b"Not found"], 0);
    assert_eq!(binary_reply_len(&unknown, 0, 100), Ok(Some(unknown.len())));
    // A server cannot send statistics without end, nor a value without bound.
    let endless = parts[0].repeat((4 << 20) / parts[0].len() + 1);
    assert_eq!(binary_reply_len(&endless, 0, 100), Err(MalformedReply));
    assert_eq!(
        binary_reply_len(b"\x81\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 0, 100),
        Err(MalformedReply)
    );
    assert_eq!(binary_reply_len(b"S", 0, 100), Err(MalformedReply));
}
