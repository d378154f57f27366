use crate::logs::show;
use crate::pieces::{Read, hex, read_in_any_pieces};
use todana_protocol::kyoto::replication::{
    MasterMessage, ReplicaDecoder, ReplicaStep, format_position, parse_position, put_accepted,
    put_acknowledgement, put_caught_up, put_progress, put_refused, put_update,
};
use todana_protocol::kyoto::{
    KyotoDecoder, KyotoLimits, KyotoRequest, KyotoStep, MapScratch, ReplicaRequest, StoredValue,
    UpdateChange, UpdateMessage, expiry,
};

/// The messages of a master to a replica with server ID 2 and no data: accepted, an update, caught
/// up.
const STREAM: &str = "b1
    b1 18e9d46749a31d80 00000016 0011 0000 a1 05 0a 6a6170616e ffffffffff 746f6b796f
    b0 18e9d4679aff5cc0";

fn read(stream: &[u8]) -> Vec<String> {
    read_in_any_pieces(stream, ReplicaDecoder::default(), |replica, input| match replica.decode(input) {
        ReplicaStep::Message { consumed, master_message } => Read::Item(
            consumed,
            match master_message {
                MasterMessage::Update { timestamp, message } => format!("{timestamp:x} {}", show(&message)),
                MasterMessage::CaughtUp { timestamp } => format!("caught up {timestamp:x}"),
                master_message => format!("{master_message:?}"),
            },
        ),
        ReplicaStep::NeedMore { at_least } => Read::More(at_least),
        ReplicaStep::Malformed => Read::Last("malformed".into()),
    })
}

#[test]
fn replicas_say_hello_as_captured() {
    for (bytes, hello) in [
        (
            "b1 00000000 0000000000000000 0002",
            ReplicaRequest { timestamp: 0, server_id: 2, wants_only: false, takes_lists: false },
        ),
        (
            "b1 00000000 18e9d46ceb7940d0 0009",
            ReplicaRequest {
                timestamp: 0x18e9_d46c_eb79_40d0,
                server_id: 9,
                wants_only: false,
                takes_lists: false,
            },
        ),
        (
            "b1 00000001 0000000000000000 0011",
            ReplicaRequest { timestamp: 0, server_id: 17, wants_only: true, takes_lists: false },
        ),
    ] {
        let mut out = Vec::new();
        hello.put(&mut out);
        assert_eq!(out, hex(bytes));
        let (mut dialect, mut scratch) = (KyotoDecoder::default(), MapScratch::default());
        for cut in 1..out.len() {
            let step = dialect.decode(&KyotoLimits::default(), &out[..cut], &mut scratch);
            assert!(matches!(step, KyotoStep::NeedMore { consumed: 0, .. }), "{step:?}");
        }
        let step = dialect.decode(&KyotoLimits::default(), &out, &mut scratch);
        assert_eq!(step, KyotoStep::Request { consumed: 15, request: KyotoRequest::Replicate(hello) });
        // From here on only acknowledgements are allowed.
        let step = dialect.decode(&KyotoLimits::default(), b"\xB1\xB1", &mut scratch);
        assert_eq!(step, KyotoStep::Request { consumed: 1, request: KyotoRequest::Acknowledged });
        assert_eq!(dialect.decode(&KyotoLimits::default(), b"GET", &mut scratch), KyotoStep::Close);
    }
}

#[test]
fn replica_gets_foreign_updates_or_only_its_own() {
    let all_but = ReplicaRequest { timestamp: 0, server_id: 17, wants_only: false, takes_lists: false };
    assert!(!all_but.wants(17) && all_but.wants(5));
    let only = ReplicaRequest { wants_only: true, ..all_but };
    assert!(only.wants(17) && !only.wants(5));
}

#[test]
fn captured_stream_is_decoded_from_any_pieces() {
    assert_eq!(
        read(&hex(STREAM)),
        [
            "Accepted",
            "18e9d46749a31d80 17 0 set japan \\xff\\xff\\xff\\xff\\xfftokyo",
            "caught up 18e9d4679aff5cc0",
            "... 0"
        ]
    );
}

#[test]
fn the_captured_stream_is_written() {
    let mut out = Vec::new();
    put_accepted(&mut out);
    let change =
        UpdateChange::Set { key: b"japan", stored: StoredValue::with_expiry(expiry::NEVER, b"tokyo") };
    let message = UpdateMessage { server_id: 17, database: 0, change };
    put_update(0x18e9_d467_49a3_1d80, &message, &mut out);
    put_caught_up(0x18e9_d467_9aff_5cc0, &mut out);
    assert_eq!(out, hex(STREAM));
    out.clear();
    put_acknowledgement(&mut out);
    assert_eq!(out, hex("b1"));
}

#[test]
fn empty_update_only_advances_the_position() {
    let mut stream = hex("b1");
    put_progress(7, &mut stream);
    assert_eq!(stream, hex("b1 b1 0000000000000007 00000000"));
    assert_eq!(read(&stream), ["Accepted", "Progress { timestamp: 7 }", "... 0"]);
}

#[test]
fn a_replica_may_be_refused() {
    let mut stream = Vec::new();
    put_refused(&mut stream);
    assert_eq!(stream, hex("bf"));
    assert_eq!(read(&stream), ["Refused", "... 0"]);
}

#[test]
fn invalid_messages_end_the_stream() {
    assert_eq!(read(b"HTTP/1.1 400"), ["malformed"]);
    assert_eq!(read(&hex("b1 ba")), ["Accepted", "malformed"]);
    assert_eq!(read(&hex("b1 b1 0000000000000007 ffffffff")), ["Accepted", "malformed"]);
    assert_eq!(read(&hex("b1 b1 0000000000000007 00000004 00110000")), ["Accepted", "malformed"]);
}

#[test]
fn a_position_is_kept_as_twenty_digits() {
    assert_eq!(format_position(1_793_000_000_000_000_123), "01793000000000000123\n");
    for (text, position) in [
        (&b"01793000000000000123\n"[..], Some(1_793_000_000_000_000_123)),
        (b"0", Some(0)),
        (b"18446744073709551615\n", Some(u64::MAX)),
        (b"18446744073709551616\n", None),
        (b"", None),
        (b"12x", None),
        (b"+12", None),
    ] {
        assert_eq!(parse_position(text), position, "{}", text.escape_ascii());
    }
}
