//! Replies to operations, in all dialects of memcached: no reply makes the client panic, a
//! truncated reply never counts as complete, an error is one line, and a reply is one that the
//! operation can have.
#![no_main]

use todana_core::{
    Arithmetic, Delete, Get, Inspect, Operation, Reply, ReplyNeeds, Store, StoreMode, Touch, Ttl,
};
use todana_protocol::memcached::client::{
    MalformedReply, RecordFields, ServerDialect, ServerReply, TimeLeft, binary_reply_len, decode_login_reply, packet_opaque,
    decode_reply_of, detected_server, put_operation_for,
};

/// The longest value that is accepted.
const VALUE_LEN_MAX: usize = 1 << 12;

/// Returns the operation with this number.
fn operation(number: u8) -> Operation<'static> {
    let key = b"k".as_slice();
    let needs = ReplyNeeds { version: number & 8 != 0, access: number & 16 != 0 };
    match number % 8 {
        0 => Operation::Get(Get { key, needs, ..Get::default() }),
        1 => Operation::Get(Get { key, touch: Some(Ttl::Seconds(9)), needs, ..Get::default() }),
        2 => {
            let compare = needs.version.then_some(7);
            let mode = if needs.access { StoreMode::Append } else { StoreMode::Set };
            Operation::Store(Store { key, value: b"xy", mode, compare, needs, ..Store::default() })
        }
        3 => Operation::Delete(Delete { key, ..Delete::default() }),
        4 => Operation::Arithmetic(Arithmetic { key, needs, ..Arithmetic::default() }),
        5 => Operation::Touch(Touch { key, ttl: Ttl::Expired }),
        6 => Operation::Inspect(Inspect { key }),
        _ => Operation::Flush { at: Ttl::Never },
    }
}

fn can_have(operation: &Operation<'_>, reply: &Reply<'_>) -> bool {
    match operation {
        Operation::Get(_) => matches!(reply, Reply::Hit(_) | Reply::Miss),
        Operation::Store(store) => match reply {
            Reply::Stored(_) | Reply::Refused(_) | Reply::NotStored => true,
            Reply::Exists | Reply::NotFound => store.compare.is_some() || store.mode != StoreMode::Add,
            _ => false,
        },
        Operation::Delete(_) => {
            matches!(reply, Reply::Deleted | Reply::NotFound | Reply::Exists | Reply::NotStored)
        }
        Operation::Arithmetic(_) => matches!(
            reply,
            Reply::Number(_) | Reply::NotFound | Reply::Exists | Reply::NotStored | Reply::Refused(_)
        ),
        Operation::Touch(_) => matches!(reply, Reply::Touched | Reply::NotFound),
        Operation::Inspect(_) => matches!(reply, Reply::Inspection(_) | Reply::Miss),
        _ => matches!(reply, Reply::Done),
    }
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&choice, bytes)) = input.split_first() else { return };
    let dialect =
        [ServerDialect::Text, ServerDialect::Meta, ServerDialect::Binary][usize::from(choice >> 6) % 3];
    let operation = operation(choice);
    let time_left = match (dialect, choice & 32) {
        (ServerDialect::Meta, 32) => TimeLeft::After,
        _ => TimeLeft::Unread,
    };
    let mut replies = bytes;
    if dialect == ServerDialect::Binary {
        let opaque = packet_opaque(bytes);
        match binary_reply_len(bytes, opaque, VALUE_LEN_MAX) {
            Ok(Some(len)) => {
                assert!(len >= 24 && len <= bytes.len());
                assert_eq!(binary_reply_len(&bytes[..len], opaque, VALUE_LEN_MAX), Ok(Some(len)));
                assert_eq!(binary_reply_len(&bytes[..len - 1], opaque, VALUE_LEN_MAX), Ok(None));
                replies = &bytes[..len];
            }
            Ok(None) => {}
            Err(MalformedReply) => assert!(!bytes.is_empty()),
        }
    }
    for value in [true, false] {
        let (fields, mut out) = (RecordFields { value, time_left }, Vec::new());
        let Ok(asked) = put_operation_for(dialect, &operation, fields, &mut out) else { continue };
        match decode_reply_of(asked, replies) {
            Ok(ServerReply::Reply(reply)) => assert!(can_have(&operation, &reply), "{operation:?} {reply:?}"),
            Ok(ServerReply::Error(line)) => assert!(!line.is_empty() && !line.contains(&b'\n')),
            Err(MalformedReply) => continue,
        }
        assert_eq!(decode_reply_of(asked, &replies[..replies.len() - 1]), Err(MalformedReply));
    }
    let _ = decode_login_reply(dialect, replies);
    if let Ok(Some((len, _))) = detected_server(bytes) {
        assert!(len <= bytes.len());
        assert_eq!(detected_server(&bytes[..len - 1]), Ok(None));
    }
});
