//! The login of the text dialect.

use crate::exchange::{Outcome, send_within};
use todana_protocol::memcached::MemcachedLimits;
use todana_protocol::memcached::{LoginCredentials, MemcachedCommand};

const STRANGER: &str = "CLIENT_ERROR unauthenticated\r\n";

fn send(stream: &[u8]) -> Outcome {
    send_within(MemcachedLimits { text_login: true, ..MemcachedLimits::default() }, stream)
}

#[track_caller]
fn assert_replies(stream: &str, replies: &str) {
    let outcome = send(stream.as_bytes());
    let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
    assert_eq!(shown(&outcome.replies), shown(replies.as_bytes()), "to {stream:?}");
    assert!(!outcome.closed, "closed after {stream:?}");
    assert_eq!(outcome.unread, 0, "unread of {stream:?}");
}

#[test]
fn requests_before_login_are_refused() {
    for line in [
        "get foo",
        "version",
        "quit",
        "stats",
        "foo foo HTTP/1.1",
        "foo noreply",
        "mg key v",
        "ms key 11",
        "add x 0 0 11",
        "set x 0 0",
        "set x 0 0 eleven",
        "set x 0 0 -1",
        "set x 0 0 4294967307",
        "    ",
    ] {
        assert_replies(&format!("{line}\r\n"), STRANGER);
        assert_replies(&format!("{line} \n{line}\r\n"), &STRANGER.repeat(2));
    }
    // Binary packets are refused too: the server disables that dialect, because it would circumvent
    // the login.
    let packet = [b"\x80\x0b".as_slice(), &[0; 22], b"\r\n"].concat();
    let limits = MemcachedLimits {
        text_login: true,
        choice: todana_protocol::memcached::DialectChoice::Text,
        ..MemcachedLimits::default()
    };
    assert_eq!(send_within(limits, &packet).replies, STRANGER.as_bytes());
}

#[test]
fn set_with_credentials_logs_in() {
    for set in [
        "set x 0 0 11\r\nuser secret\r\n",
        "set x a b 11\r\nuser secret\r\n",
        "  set  x  0  0  11  \r\nuser secret\r\n",
        "set x 0 0 11 noreply\r\nuser secret\r\n",
        "set x 0 0 11 and so on\r\nuser secret\r\n",
        "set x 0 0 11\nuser secret\r\n",
    ] {
        assert_replies(
            &format!("get k\r\n{set}version\r\nset k 0 0 1\r\nv\r\nfoo\r\n"),
            &format!("{STRANGER}STORED\r\nVERSION 1.6.45\r\nSTORED\r\nERROR\r\n"),
        );
    }
    let long_key = "k".repeat(300);
    assert_replies(&format!("set {long_key} 0 0 11\r\nuser secret\r\n"), "STORED\r\n");
    let seen = send(b"set x 0 0 11\r\nuser secret\r\n").requests;
    let response = b"user secret";
    let command =
        MemcachedCommand::Authenticate(LoginCredentials { response, ..LoginCredentials::default() });
    assert!(seen[0].starts_with(&format!("{command:?} ")), "{seen:?}");
}

#[test]
fn failed_login_may_be_retried() {
    let right = "set x 0 0 11\r\nuser secret\r\n";
    for (wrong, reply) in [
        ("set x 0 0 14\r\nmissing secret\r\n", "authentication failure"),
        ("set x 0 0 4\r\nuser\r\n", "bad authentication token format"),
        ("set x 0 0 5\r\nuser \r\n", "bad authentication token format"),
        ("set x 0 0 0\r\n\r\n", "bad authentication token format"),
        ("set x 0 0 11\r\nuser secretXY", "bad command line termination"),
    ] {
        assert_replies(
            &format!("{wrong}get foo\r\n{right}version\r\n"),
            &format!("CLIENT_ERROR {reply}\r\n{STRANGER}STORED\r\nVERSION 1.6.45\r\n"),
        );
    }
}

/// An unauthenticated client that announced two gigabytes was awaited; memcached's suite
/// (ascii-auth.t) continues with the next line.
#[test]
fn long_token_is_refused_without_its_block() {
    let right = "set x 0 0 11\r\nuser secret\r\n";
    let token = |len: usize| format!("set x 0 0 {len}\r\nu {}\r\n", "p".repeat(len - 2));
    assert_replies(&token(16384), "STORED\r\n");
    for len in [16385, 2_147_483_646, u64::from(u32::MAX)] {
        let line = format!("set x 0 0 {len}\r\n");
        assert_replies(&format!("{line}{right}"), "CLIENT_ERROR auth token too long\r\nSTORED\r\n");
    }
    assert_replies(&format!("set x 0 0 4294967296\r\n{right}"), &format!("{STRANGER}STORED\r\n"));
}

#[test]
fn short_and_endless_lines_close() {
    for line in ["a\r\n", "\r\n", "\n", "mn\r\n", "get\r\n", "abcd\n"] {
        let outcome = send(line.as_bytes());
        assert_eq!((outcome.replies.as_slice(), outcome.closed), (&b""[..], true), "{line:?}");
    }
    for len in [2048, 5000] {
        // The keys of a get, which may be long after a login, are no exception.
        for start in ["get ", "x"] {
            let outcome = send(format!("{start}{}", "k".repeat(len - start.len())).as_bytes());
            assert_eq!((outcome.replies.as_slice(), outcome.closed), (&b""[..], true), "{len}");
        }
    }
    assert_replies(&format!("{}\r\n", "k".repeat(2046)), STRANGER);
}
