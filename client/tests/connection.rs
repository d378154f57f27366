//! Tests a connection against a server that follows a script.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;
use todana_client::{
    Address, Connection, Error, ExportFrame, FetchedRecord, FoundRecord, LogFrom, LogHeader, RefusalKind,
    RefusedRequest, SocketTimeouts, StoreVerb, TextFetch, TextStore, WriteOutcome, needs_base64,
};

/// A request that the server expects, and the reply, which is sent in pieces or not at all.
type Turn = (&'static [u8], &'static [&'static [u8]]);

/// Starts a server that plays the script on one connection and closes it. The thread panics if a
/// request differs from the script.
fn play(script: &'static [Turn]) -> (Address, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        for (request, reply) in script {
            let mut received = vec![0; request.len()];
            stream.read_exact(&mut received).unwrap();
            assert_eq!(received.escape_ascii().to_string(), request.escape_ascii().to_string());
            for piece in *reply {
                stream.write_all(piece).unwrap();
            }
            if reply.is_empty() {
                // The server stays silent until the client closes the connection.
                let _ = stream.read(&mut [0]);
            }
        }
    });
    (address, server)
}

/// Runs the client against a server that plays this script to its end.
fn with_script(script: &'static [Turn], client: impl FnOnce(&mut Connection)) {
    let (address, server) = play(script);
    let mut connection = Connection::open(&address).unwrap();
    client(&mut connection);
    drop(connection);
    server.join().expect("the requests were those of the script");
}

fn item(key: &[u8], value: &[u8], flags: u32, version: Option<u64>) -> FetchedRecord {
    FetchedRecord { key: key.to_vec(), value: value.to_vec(), flags, version }
}

fn refused(kind: RefusalKind, line: &str) -> RefusedRequest {
    RefusedRequest { kind, line: line.into() }
}

#[test]
fn records_are_read_in_key_order() {
    let script: &[Turn] = &[
        (b"get a b c\r\n", &[b"VALUE a 5 3\r\nx\r\n\r\nVALUE c 0 0\r\n\r", b"\nEND\r\n"]),
        (b"gets a\r\n", &[b"V", b"ALUE a 0 1 77\r\n", b"x", b"\r\nEND\r", b"\n"]),
        (b"gat 60 a\r\n", &[b"END\r\n"]),
        (b"gats -1 a\r\n", &[b"VALUE a 0 1 78\r\ny\r\nEND\r\n"]),
        (b"get a a\r\n", &[b"VALUE a 0 1\r\ny\r\nVALUE a 0 1\r\ny\r\nEND\r\n"]),
    ];
    with_script(script, |connection| {
        let items = connection.get(&[b"a", b"b", b"c"], false).unwrap();
        assert_eq!(items, [item(b"a", b"x\r\n", 5, None), item(b"c", b"", 0, None)]);
        assert_eq!(connection.get(&[b"a"], true).unwrap(), [item(b"a", b"x", 0, Some(77))]);
        let touch = |versions, exptime| TextFetch { versions, touch: Some(exptime) };
        assert_eq!(connection.fetch(touch(false, 60), &[b"a"]).unwrap(), []);
        assert_eq!(connection.fetch(touch(true, -1), &[b"a"]).unwrap(), [item(b"a", b"y", 0, Some(78))]);
        assert_eq!(connection.get(&[b"a", b"a"], false).unwrap().len(), 2);
    });
}

#[test]
fn store_outcomes_are_distinguished() {
    let script: &[Turn] = &[
        (b"set k 1 60 5\r\nvalue\r\n", &[b"STORED\r\n"]),
        (b"add k 0 0 0\r\n\r\n", &[b"NOT_STORED\r\n"]),
        (b"cas k 0 0 0 7\r\n\r\n", &[b"EXISTS\r\n"]),
        (b"cas k 0 0 0 7\r\n\r\n", &[b"NOT_FOUND\r\n"]),
        (b"delete k\r\n", &[b"DELETED\r\n"]),
        (b"touch k -1\r\n", &[b"TOUCHED\r\n"]),
        (b"touch k 5\r\n", &[b"NOT_FOUND\r\n"]),
        (b"incr k 5\r\n", &[b"12\r\n"]),
        (b"decr k 1\r\n", &[b"9 \r\n"]),
        (b"decr k 1\r\n", &[b"NOT_FOUND\r\n"]),
        (b"flush_all 10\r\n", &[b"OK\r\n"]),
        (b"version\r\n", &[b"VERSION 1.6.45\r\n"]),
    ];
    with_script(script, |connection| {
        let store = TextStore { key: b"k", value: b"value", flags: 1, exptime: 60, ..TextStore::default() };
        assert_eq!(connection.store(&store).unwrap(), WriteOutcome::Done);
        let empty = |verb| TextStore { verb, key: b"k", ..TextStore::default() };
        assert_eq!(connection.store(&empty(StoreVerb::Add)).unwrap(), WriteOutcome::NotStored);
        assert_eq!(connection.store(&empty(StoreVerb::Cas(7))).unwrap(), WriteOutcome::Exists);
        assert_eq!(connection.store(&empty(StoreVerb::Cas(7))).unwrap(), WriteOutcome::NotFound);
        assert_eq!(connection.delete(b"k").unwrap(), WriteOutcome::Done);
        assert_eq!(connection.touch(b"k", -1).unwrap(), WriteOutcome::Done);
        assert_eq!(connection.touch(b"k", 5).unwrap(), WriteOutcome::NotFound);
        assert_eq!(connection.count(b"k", 5, true).unwrap(), Some(12));
        assert_eq!(connection.count(b"k", 1, false).unwrap(), Some(9));
        assert_eq!(connection.count(b"k", 1, false).unwrap(), None);
        assert_eq!(connection.simple("flush_all 10").unwrap(), WriteOutcome::Done);
        assert_eq!(connection.version().unwrap(), "1.6.45");
    });
}

#[test]
fn stores_can_be_sent_before_their_outcomes() {
    let script: &[Turn] = &[(
        b"set a 0 0 1\r\n1\r\nset b 0 0 1\r\n2\r\nset c 0 0 1\r\n3\r\n",
        &[b"STORED\r\nSERVER_ERR", b"OR out of memory storing object\r\nSTORED\r\n"],
    )];
    with_script(script, |connection| {
        for (key, value) in [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")] {
            connection.write_store(&TextStore { key, value, ..TextStore::default() }).unwrap();
        }
        assert_eq!(connection.unsent_len(), 48);
        connection.flush().unwrap();
        assert_eq!(connection.unsent_len(), 0);
        assert_eq!(connection.read_outcome().unwrap(), WriteOutcome::Done);
        let Err(Error::Refused(refusal)) = connection.read_outcome() else { panic!("it was refused") };
        assert_eq!(refusal, refused(RefusalKind::Server, "SERVER_ERROR out of memory storing object"));
        assert_eq!(connection.read_outcome().unwrap(), WriteOutcome::Done);
    });
}

#[test]
fn refused_request_leaves_the_connection_usable() {
    let script: &[Turn] = &[
        (b"get k\r\n", &[b"ERROR\r\n"]),
        (b"incr k 1\r\n", &[b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"]),
        (b"version\r\n", &[b"VERSION 1\r\n"]),
    ];
    with_script(script, |connection| {
        let error = connection.get(&[b"k"], false).unwrap_err();
        assert_eq!(error.to_string(), "the server says: ERROR");
        let Err(Error::Refused(refusal)) = connection.count(b"k", 1, true) else { panic!("it was refused") };
        assert_eq!(refusal.kind, RefusalKind::Client);
        for key in [&b"a b"[..], b"", b"k\r\nflush_all", &[b'k'; 251]] {
            assert!(matches!(connection.get(&[key], false), Err(Error::Invalid(_))));
            assert!(matches!(connection.delete(key), Err(Error::Invalid(_))));
            let store = TextStore { key, value: b"1", ..TextStore::default() };
            assert!(matches!(connection.store(&store), Err(Error::Invalid(_))));
        }
        assert!(matches!(connection.simple("version\nflush_all"), Err(Error::Invalid(_))));
        assert_eq!(connection.version().unwrap(), "1");
    });
}

#[test]
fn statistics_keep_the_server_order() {
    let script: &[Turn] = &[
        (b"stats\r\n", &[b"STAT pid 7\r\nSTAT version 1.6", b".45\r\nEND\r\n"]),
        (b"stats items\r\n", &[b"END\r\n"]),
        (b"stats reset\r\n", &[b"RESET\r\n"]),
        (b"stats detail on\r\n", &[b"OK\r\n"]),
    ];
    with_script(script, |connection| {
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        assert_eq!(connection.stats("").unwrap(), [pair("pid", "7"), pair("version", "1.6.45")]);
        for group in ["items", "reset", "detail on"] {
            assert_eq!(connection.stats(group).unwrap(), []);
        }
    });
}

#[test]
fn dump_lists_every_key_and_ends() {
    const LINES: &[u8] = b"key=a exp=-1 la=0 \nkey=b%20c exp=5 la=0 \nEND\r\n";
    let script: &[Turn] = &[
        (b"lru_crawler metadump all\r\n", &[b"OK\r\n", LINES]),
        (b"lru_crawler metadump all\r\n", &[LINES]),
        (b"lru_crawler metadump all\r\n", &[b"ERROR metadump not allowed\r\n"]),
        (b"lru_crawler metadump all\r\n", &[b"BUSY currently processing crawler request\r\n"]),
    ];
    with_script(script, |connection| {
        for _ in 0..2 {
            let mut seen = Vec::new();
            connection
                .metadump(|line| {
                    seen.push(line.to_string());
                    Ok(())
                })
                .unwrap();
            assert_eq!(seen, ["key=a exp=-1 la=0 ", "key=b%20c exp=5 la=0 "]);
        }
        assert!(matches!(connection.metadump(|_| Ok(())), Err(Error::Refused(_))));
        let error = connection.metadump(|_| Ok(())).unwrap_err();
        assert!(error.to_string().contains("BUSY currently processing crawler request"), "{error}");
    });
}

#[test]
fn binary_keys_are_read_in_base64() {
    let unsendable = [b' '; 188];
    let keys: [&[u8]; 10] = [
        b"a b",
        b"plain",
        b"t\tb\rc\x01\x7f",
        b"n\nl",
        b"gone",
        b"z\0",
        b" ",
        &unsendable,
        &[b'k'; 251],
        b"",
    ];
    let script: &[Turn] = &[
        (
            b"get plain t\tb\rc\x01\x7f gone\r\n",
            &[b"VALUE plain 5 3\r\nx\r\n\r\nVALUE t\tb\rc\x01\x7f 6 0\r\n\r\nEND\r\n"],
        ),
        (
            b"mg YSBi b f v u\r\nmg bgps b f v u\r\nmg egA= b f v u\r\nmg IA== b f v u\r\n",
            &[b"VA 2 f7\r\nhi\r\nEN\r\n", b"CLIENT_ERROR no\r\nVA 0 f4294967295\r\n\r\n"],
        ),
        (b"version\r\n", &[b"VERSION 1\r\n"]),
    ];
    with_script(script, |connection| {
        let mut seen = Vec::new();
        let told = |found: Result<FoundRecord<'_>, Error>| match found {
            Ok(found) => format!("{} {}", found.flags, found.value.escape_ascii()),
            Err(Error::Refused(refusal)) => refusal.line,
            Err(Error::Invalid(_)) => "invalid".into(),
            Err(other) => panic!("{other}"),
        };
        connection.read_any(&keys, |at, found| seen.push((at, told(found)))).unwrap();
        let expected = [
            (8, "invalid"),
            (9, "invalid"),
            (1, "5 x\\r\\n"),
            (2, "6 "),
            (7, "invalid"),
            (0, "7 hi"),
            (5, "CLIENT_ERROR no"),
            (6, "4294967295 "),
        ];
        assert_eq!(seen, expected.map(|(at, told)| (at, told.to_string())));
        assert_eq!(connection.version().unwrap(), "1", "no reply is left over");
    });
    assert!(!needs_base64(&[b'\t'; 250]), "what text can carry must not be lost for its length in base64");
}

#[test]
fn peek_returns_a_won_recache() {
    let long = [b'\t'; 250];
    let keys: [&[u8]; 6] = [b"plain", b"a b", b"t\t", &long, b"stale", &[b' '; 188]];
    // A key that is too long for base64 is sent as it is.
    let peeks = [
        &b"mg plain f v u\r\nmg YSBi b f v u\r\nmg dAk= b f v u\r\nmg "[..],
        &long,
        b" f v u\r\nmg stale f v u\r\n",
    ];
    let script: Vec<Turn> = vec![
        (
            peeks.concat().leak(),
            &[b"VA 1 f5\r\nx\r\nEN\r\nVA 0 f0\r\n\r\n", b"VA 1 f1\r\nl\r\nVA 1 f2 X W\r\ns\r\n"],
        ),
        (b"md stale I\r\n", &[b"HD\r\n"]),
        (b"version\r\n", &[b"VERSION 1\r\n"]),
    ];
    with_script(script.leak(), |connection| {
        let mut seen = Vec::new();
        let told = |found: Result<FoundRecord<'_>, Error>| match found {
            Ok(found) => (found.flags, found.value.to_vec()),
            Err(Error::Invalid(_)) => (u32::MAX, b"invalid".to_vec()),
            Err(other) => panic!("{other}"),
        };
        connection.peek_any(&keys, |at, found| seen.push((at, told(found)))).unwrap();
        let expected = [
            (5, (u32::MAX, b"invalid".to_vec())),
            (0, (5, b"x".to_vec())),
            (2, (0, b"".to_vec())),
            (3, (1, b"l".to_vec())),
            (4, (2, b"s".to_vec())),
        ];
        assert_eq!(seen, expected);
        assert_eq!(connection.version().unwrap(), "1", "no reply is left over");
    });
}

#[test]
fn binary_keys_are_stored_in_base64() {
    let script: &[Turn] = &[
        (b"mg IA== b u\r\n", &[b"EN\r\n"]),
        (
            b"set k 0 0 1\r\n1\r\nset t\tb\x01 7 2000000000 2\r\n\r\n\r\nms YSBi 2 b F9 T60\r\nhi\r\n",
            &[b"STORED\r\nSTORED\r\nHD\r\n"],
        ),
        (b"mg IA== b u\r\n", &[b"HD\r\n"]),
        (b"mg IA== b u\r\n", &[b"ERROR\r\n"]),
        (b"mg IA== b u\r\n", &[b"CLIENT_ERROR invalid flag\r\n"]),
    ];
    with_script(script, |connection| {
        assert!(connection.takes_meta().unwrap());
        connection.write_any(b"k", b"1", 0, 0).unwrap();
        for key in [&b""[..], &[b'k'; 251], &[b' '; 188]] {
            assert!(matches!(connection.write_any(key, b"", 0, 0), Err(Error::Invalid(_))));
        }
        connection.write_any(b"t\tb\x01", b"\r\n", 7, 2_000_000_000).unwrap();
        connection.write_any(b"a b", b"hi", 9, 60).unwrap();
        connection.flush().unwrap();
        for _ in 0..3 {
            assert_eq!(connection.read_outcome().unwrap(), WriteOutcome::Done);
        }
        assert!(connection.takes_meta().unwrap());
        assert!(!connection.takes_meta().unwrap());
        assert!(!connection.takes_meta().unwrap());
    });
}

/// If the connection stayed usable, the reply to the second request would pass for the reply to the
/// third.
#[test]
fn late_reply_is_not_taken_for_another() {
    let (address, server) = play(&[(b"get slow\r\n", &[])]);
    let read = Duration::from_millis(20);
    let mut connection =
        Connection::open_within(&address, SocketTimeouts { read, ..SocketTimeouts::default() }).unwrap();
    let Err(Error::Io(error)) = connection.get(&[b"slow"], false) else { panic!("nobody answers") };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().ends_with(": the server does not answer"), "{error}");
    let Err(Error::Io(error)) = connection.get(&[b"quick"], false) else { panic!("it is lost") };
    assert_eq!(error.kind(), ErrorKind::NotConnected);
    assert!(connection.version().is_err() && connection.flush().is_err());
    drop(connection);
    server.join().unwrap();
}

#[test]
fn invalid_reply_is_shown_and_ends_the_connection() {
    const CASES: [(&[Turn], &str); 4] = [
        (&[(b"get k\r\n", &[b"STORED\r\n"])], "the server's reply \"STORED\" is no answer to the request"),
        (
            &[(b"get k\r\n", &[b"VALUE other 0 1\r\nx\r\nEND\r\n"])],
            "the server's reply \"VALUE other\" is no answer to the request",
        ),
        (&[(b"get k\r\n", &[b"VALUE k 0 x\r\n"])], "the server's reply cannot be understood"),
        (&[(b"get k\r\n", &[b"VALUE k 0 5\r\nx"])], "the server closed the connection"),
    ];
    for (script, expected) in CASES {
        with_script(script, |connection| {
            assert_eq!(connection.get(&[b"k"], false).unwrap_err().to_string(), expected);
            let error = connection.version().unwrap_err().to_string();
            assert_eq!(error, "an earlier request failed on this connection; open another one");
        });
    }
}

#[test]
fn export_frames_are_bounded() {
    const FULL: &[u8] = &[b'x'; 65_536];
    let script: &[Turn] = &[
        (b"todana backup\r\n", &[b"WAIT\r\nDATA 65536\r\n", FULL, b"\r\nEND\r\n"]),
        // The client does not wait for the rest of this reply.
        (
            b"todana log first\r\n",
            &[b"LOG position=5 database=", &[b'0'; 32], b" server=7\r\nDATA 65537\r\n"],
        ),
    ];
    with_script(script, |connection| {
        connection.begin_backup(0, None).unwrap();
        let mut seen = Vec::new();
        while seen.last() != Some(&None) {
            let see = |frame: ExportFrame<'_>| match frame {
                ExportFrame::Data(data) => Some(data.len()),
                ExportFrame::Wait => Some(0),
                ExportFrame::End => None,
            };
            seen.push(connection.next_frame(see).unwrap());
        }
        assert_eq!(seen, [Some(0), Some(65_536), None]);
        let head = LogHeader { position: 5, database_id: [0; 16], server_id: 7 };
        assert_eq!(connection.begin_log(0, LogFrom::First, false).unwrap(), head);
        let error = connection.next_frame(|_| ()).unwrap_err().to_string();
        assert_eq!(error, "the server sends a frame of 65537 bytes, and they have at most 65536");
        assert!(connection.version().is_err());
    });
}

#[test]
fn unreachable_server_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    drop(listener);
    let error = Connection::open(&address).err().unwrap().to_string();
    assert!(error.starts_with(&format!("cannot connect to {address}: ")), "{error}");
    assert!(error.ends_with("; is the server running?"), "{error}");
    let error = Connection::open(&"unix:/nowhere/at/all".parse().unwrap()).err().unwrap().to_string();
    assert!(error.starts_with("cannot connect to unix:/nowhere/at/all: "), "{error}");
    assert!(error.ends_with("; is the server running?"), "{error}");
}
