//! The size rule, and discarded blocks.

use crate::exchange::{Connection, assert_commands, send, send_within};
use std::sync::Arc;
use todana_core::{Operation, Reply, SharedBytes, Store};
use todana_protocol::memcached::MemcachedCommand;
use todana_protocol::memcached::{
    LongBlock, MemcachedDecoder, MemcachedLimits, MemcachedRequest, MemcachedStep, encode,
};

const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";

fn set(key_len: usize, flags: u32, value_len: usize) -> Vec<u8> {
    let line = format!("set {} {flags} 0 {value_len}\r\n", "k".repeat(key_len));
    [line.into_bytes(), vec![b'v'; value_len], b"\r\n".to_vec()].concat()
}

/// Sends a stream of a megabyte in one piece; byte by byte it would be a million calls.
fn send_whole(stream: &[u8]) -> Vec<u8> {
    let mut connection = Connection::new(MemcachedLimits::default());
    connection.arrive(stream);
    connection.finish().replies
}

#[test]
fn largest_item_equals_memcached_s() {
    for (key_len, flags, value_len) in
        [(1, 0, 1_048_516), (1, 1, 1_048_512), (250, 0, 1_048_267), (1, 4_294_967_295, 1_048_512)]
    {
        assert_eq!(send_whole(&set(key_len, flags, value_len)), b"STORED\r\n");
        assert_eq!(send_whole(&set(key_len, flags, value_len + 1)), TOO_LARGE);
    }
    let meta = |value_len: usize| {
        [format!("ms k {value_len} F1\r\n").into_bytes(), vec![b'v'; value_len], b"\r\n".to_vec()].concat()
    };
    assert_eq!(send_whole(&meta(1_048_512)), b"HD\r\n");
    assert_eq!(send_whole(&meta(1_048_513)), TOO_LARGE);
}

/// Runs a request whose block exceeds a small limit, followed by another command.
fn refused(line: &str) -> (Vec<String>, String) {
    let limits = MemcachedLimits { item_size_max: 100, ..MemcachedLimits::default() };
    let stream = format!("{line}\r\n{}\r\nversion\r\n", "version\r\n".repeat(6));
    let outcome = crate::exchange::send_within(limits, stream.as_bytes());
    assert_eq!(outcome.requests.len(), 2, "{:?}", outcome.requests);
    (outcome.requests, outcome.replies.escape_ascii().to_string())
}

const REFUSED: &str = "Operation(RefusedStore(RefusedStore { key: [107], ";

/// Returns true if this is a store refused for its size that discards, or keeps, the old record as
/// expected.
fn is_refused(request: &str, discards: bool) -> bool {
    request.starts_with(REFUSED)
        && request.contains(&format!("discards: {discards}, refusal: TooLarge }})) "))
}

#[test]
fn set_over_the_limit_discards_value_and_block() {
    let answered = format!("{}VERSION 1.6.45\\r\\n", TOO_LARGE.escape_ascii());
    for line in
        ["set k 0 0 54", "ms k 54", "ms k 54 q", "ms k 54 ME", "ms k 54 MA", "ms k 54 MP", "ms k 54 MR"]
    {
        let (requests, replies) = refused(line);
        assert!(is_refused(&requests[0], true), "{line}: {}", requests[0]);
        assert_eq!(replies, answered, "{line}");
    }
    for line in ["add k 0 0 54", "replace k 0 0 54", "append k 0 0 54", "prepend k 0 0 54", "cas k 0 0 54 1"]
    {
        let (requests, replies) = refused(line);
        assert!(is_refused(&requests[0], false), "{line}: {}", requests[0]);
        assert_eq!(replies, answered, "{line}");
    }
}

#[test]
fn noreply_set_over_the_limit_discards_silently() {
    let (requests, replies) = refused("set k 0 0 54 noreply");
    assert!(is_refused(&requests[0], true), "{}", requests[0]);
    assert_eq!(replies, "VERSION 1.6.45\\r\\n");
    assert_eq!(refused("add k 0 0 54 noreply").1, "VERSION 1.6.45\\r\\n");
}

#[test]
fn two_gigabytes_are_swallowed_as_they_arrive() {
    let (limits, mut dialect, mut scratch) =
        (MemcachedLimits::default(), MemcachedDecoder::default(), Vec::new());
    let line = b"set k 0 0 2147483645\r\n";
    let step = dialect.decode(&limits, line, &mut scratch);
    assert!(matches!(step, MemcachedStep::Request { consumed, .. } if consumed == line.len()));
    let chunk = vec![b'v'; 1 << 20];
    let mut left = 2_147_483_647;
    while left > chunk.len() {
        // Nothing is kept, and no more bytes are required.
        let step = dialect.decode(&limits, &chunk, &mut scratch);
        assert!(matches!(step, MemcachedStep::NeedMore { consumed, at_least: 1 } if consumed == chunk.len()));
        left -= chunk.len();
    }
    let tail = [&chunk[..left], b"version\r\n"].concat();
    let step = dialect.decode(&limits, &tail, &mut scratch);
    let MemcachedStep::Request { consumed, request } = step else { panic!("{step:?}") };
    assert_eq!(consumed, tail.len());
    assert_eq!(request.command, MemcachedCommand::Version);
}

#[test]
fn missing_bytes_of_a_block_are_exact() {
    let (limits, mut dialect, mut scratch) =
        (MemcachedLimits::default(), MemcachedDecoder::default(), Vec::new());
    let stream = set(1, 0, 100_000);
    let line_len = stream.len() - 100_002;
    for (arrived, missing) in [(line_len, 100_002), (line_len + 2, 100_000), (stream.len() - 1, 1)] {
        let step = dialect.decode(&limits, &stream[..arrived], &mut scratch);
        assert!(
            matches!(step, MemcachedStep::NeedMore { consumed: 0, at_least } if at_least == missing),
            "{missing}: {step:?}"
        );
    }
    let step = dialect.decode(&limits, &stream, &mut scratch);
    assert!(matches!(step, MemcachedStep::Request { consumed, .. } if consumed == stream.len()));
}

#[test]
fn append_carries_the_item_limit() {
    let store = Store { key: b"k", value: b"a", item_size_max: Some(1 << 20), ..Store::default() };
    assert_commands(b"set k 0 0 1\r\na\r\n", &[MemcachedCommand::Operation(Operation::Store(store))]);
}

#[test]
fn an_empty_block_is_a_block() {
    assert_eq!(send(b"set k 0 0 0\r\n\r\nms k 0\r\n\r\n").replies, b"STORED\r\nHD\r\n");
    assert_eq!(send(b"set k 0 0 0\r\nversion\r\n").replies, b"CLIENT_ERROR bad data chunk\r\nERROR\r\n");
}

#[test]
fn block_beyond_available_memory_is_refused() {
    let limits = MemcachedLimits { unfinished_len_max: 1000, ..MemcachedLimits::default() };
    for (line, discards, answer) in [
        ("set k 0 0 5000", true, &b"SERVER_ERROR out of memory storing object\r\n"[..]),
        ("set k 0 0 5000 noreply", true, b""),
        ("ms k 5000 q", true, b"SERVER_ERROR out of memory storing object\r\n"),
        ("add k 0 0 5000", false, b"SERVER_ERROR out of memory storing object\r\n"),
        ("cas k 0 0 5000 7", false, b"SERVER_ERROR out of memory storing object\r\n"),
        ("ms k 5000 C7", false, b"SERVER_ERROR out of memory storing object\r\n"),
    ] {
        let (mut dialect, mut scratch) = (MemcachedDecoder::default(), Vec::new());
        let stream = [line.as_bytes(), b"\r\n", &[b'v'; 5000], b"\r\nversion\r\n"].concat();
        // As long as few bytes have arrived, there is room for more.
        let step = dialect.decode(&limits, &stream[..500], &mut scratch);
        assert!(matches!(step, MemcachedStep::NeedMore { consumed: 0, .. }), "{line}: {step:?}");
        let step = dialect.decode(&limits, &stream[..1001], &mut scratch);
        let MemcachedStep::Request { consumed, request } = step else { panic!("{line}: {step:?}") };
        assert_eq!(consumed, line.len() + 2);
        let mut replies = Vec::new();
        match request.command {
            MemcachedCommand::Operation(Operation::RefusedStore(store))
                if store.key == b"k" && store.discards == discards =>
            {
                encode(&request.form, &Reply::Refused(store.refusal), &mut replies);
            }
            other => panic!("{line}: {other:?}"),
        }
        assert_eq!(replies, answer, "{line}");
        let step = dialect.decode(&limits, &stream[consumed..1001], &mut scratch);
        assert!(matches!(step, MemcachedStep::NeedMore { .. }), "{line}: {step:?}");
        let step = dialect.decode(&limits, &stream[1001..], &mut scratch);
        assert!(matches!(
            step,
            MemcachedStep::Request {
                request: MemcachedRequest { command: MemcachedCommand::Version, .. },
                ..
            }
        ));
    }
    // A block that has arrived in one piece is served, whatever its length.
    let (mut dialect, mut scratch) = (MemcachedDecoder::default(), Vec::new());
    let stream = [b"set k 0 0 5000\r\n", &[b'v'; 5000][..], b"\r\n"].concat();
    let step = dialect.decode(&limits, &stream, &mut scratch);
    assert!(matches!(
        step,
        MemcachedStep::Request {
            request: MemcachedRequest { command: MemcachedCommand::Operation(Operation::Store(_)), .. },
            ..
        }
    ));
}

#[test]
fn get_line_beyond_available_memory_closes() {
    let limits = MemcachedLimits { unfinished_len_max: 10_000, ..MemcachedLimits::default() };
    let (mut dialect, mut scratch) = (MemcachedDecoder::default(), Vec::new());
    let line = ["get ", &"key ".repeat(10_000)].concat();
    let step = dialect.decode(&limits, &line.as_bytes()[..9_000], &mut scratch);
    assert!(matches!(step, MemcachedStep::NeedMore { .. }), "{step:?}");
    let step = dialect.decode(&limits, line.as_bytes(), &mut scratch);
    assert!(matches!(step, MemcachedStep::Close), "{step:?}");
}

/// Returns the announcement of a request, and its result for this outcome of the block.
fn announced(line: &str, value_len: usize, block: LongBlock<'_>) -> (String, Vec<u8>) {
    let limits = MemcachedLimits { long_block_len: 5000, ..MemcachedLimits::default() };
    let (mut dialect, mut scratch) = (MemcachedDecoder::default(), Vec::new());
    let stream = ["mn\r\n", line, "\r\n", "and a part of the value"].concat();
    let step = dialect.decode(&limits, stream.as_bytes(), &mut scratch);
    assert!(matches!(step, MemcachedStep::Request { consumed: 4, .. }), "{step:?}");
    let step = dialect.decode(&limits, &stream.as_bytes()[4..], &mut scratch);
    let MemcachedStep::Block { consumed: 0, head_len, value_len: len, end_len: 2 } = step else {
        panic!("{step:?}")
    };
    assert_eq!((head_len, len), (line.len() + 2, value_len));
    let head = &stream.as_bytes()[4..4 + head_len];
    let mut replies = Vec::new();
    let step = dialect.decode_block(&limits, head, block, &mut scratch);
    let MemcachedStep::Request { request, .. } = step else { panic!("{step:?}") };
    let command = format!("{:?}", request.command);
    match request.command {
        MemcachedCommand::Operation(Operation::RefusedStore(store)) => {
            encode(&request.form, &Reply::Refused(store.refusal), &mut replies)
        }
        MemcachedCommand::Faulty { message } => encode(&request.form, &Reply::Faulty(message), &mut replies),
        _ => {}
    }
    // The rest of the block is discarded, and the next line follows.
    let received = match block {
        LongBlock::Refused { received } => received,
        LongBlock::Whole { .. } => value_len + 2,
    };
    let rest = [&vec![b'v'; value_len + 2 - received][..], b"version\r\n"].concat();
    let step = dialect.decode(&limits, &rest, &mut scratch);
    let MemcachedStep::Request { consumed, request } = step else { panic!("{step:?}") };
    assert_eq!((consumed, request.command), (rest.len(), MemcachedCommand::Version));
    (command, replies)
}

#[test]
fn long_block_may_be_refused_at_any_time() {
    for (line, is_set, is_silent) in [
        ("set k 0 0 5000", true, false),
        ("set k 0 0 5000 noreply", true, true),
        ("ms k 5000 q", true, false),
        ("add k 0 0 5000", false, false),
        ("append k 0 0 5000 noreply", false, true),
        ("cas k 0 0 5000 7", false, false),
        ("ms k 5000 C7", false, false),
        ("ms k 5000 MA", false, false),
    ] {
        for (received, answer) in [
            (0, "SERVER_ERROR out of memory storing object\r\n"),
            (1, "SERVER_ERROR Out of memory during read\r\n"),
            (4999, "SERVER_ERROR Out of memory during read\r\n"),
            (5000, "SERVER_ERROR Out of memory during read\r\n"),
        ] {
            let (command, replies) = announced(line, 5000, LongBlock::Refused { received });
            let end = format!("discards: {is_set}, refusal: OutOfMemory }}))");
            let is_as_expected = command.starts_with(REFUSED) && command.ends_with(&end);
            assert!(is_as_expected, "{line}: {command}");
            let answer = if is_silent { "" } else { answer };
            assert_eq!(String::from_utf8(replies).unwrap(), answer, "{line} after {received}");
        }
    }
}

#[test]
fn complete_long_block_is_passed_unchanged() {
    let value: SharedBytes = Arc::new(vec![b'v'; 5000]);
    let whole = LongBlock::Whole { value: &value, end: b"\r\n" };
    let (command, _) = announced("set k 3 0 5000", 5000, whole);
    let store = Store {
        key: b"k",
        value: value.plain().unwrap(),
        flags: 3,
        item_size_max: Some(1 << 20),
        ..Store::default()
    };
    assert_eq!(command, format!("{:?}", MemcachedCommand::Operation(Operation::Store(store))));
    let unterminated = LongBlock::Whole { value: &value, end: b"\rn" };
    let (_, replies) = announced("ms k 5000", 5000, unterminated);
    assert_eq!(replies, b"CLIENT_ERROR bad data chunk\r\n");
}

#[test]
fn long_and_short_blocks_decode_alike() {
    let stream = [
        &b"set a 1 0 10\r\n0123456789\r\nget a b\r\n"[..],
        b"ms azE= 12 b k c MA N30 Oo\r\n0123456789ab\r\nadd a 0 0 9 noreply\r\n012345678\r\n",
        b"set a 0 0 9\r\n012345678XXset a 0 0 x\r\nset a x 0 10\r\n0123456789\r\ncas a 0 0 9 1\r\n012345678\r\n",
        b"ms a 10 Mx\r\n0123456789\r\nset a 0 0 0\r\n\r\nversion\r\n",
    ]
    .concat();
    let short = send(&stream);
    assert_eq!(short.requests.len(), 12, "{:#?}", short.requests);
    for long_block_len in [0, 1, 10] {
        assert_eq!(
            send_within(MemcachedLimits { long_block_len, ..MemcachedLimits::default() }, &stream),
            short
        );
    }
}
