//! Lines, words, short lines, long lines, and the conditions that close a connection.

use crate::exchange::{assert_commands, assert_replies, send, send_within};
use todana_core::{Get, Operation};
use todana_protocol::memcached::MemcachedCommand;
use todana_protocol::memcached::MemcachedLimits;

const BAD: &str = "CLIENT_ERROR bad command line format\r\n";

#[test]
fn lines_end_at_lf_or_crlf() {
    assert_replies(&[
        ("get missing\n", "END\r\n"),
        ("get missing\r\n", "END\r\n"),
        ("verbosity 1\n", "OK\r\n"),
        ("set k 0 0 1\na\r\n", "STORED\r\n"),
        // A second carriage return, and one in the middle, are ordinary bytes.
        ("version\r\r\n", "ERROR\r\n"),
        ("get a\rb\r\n", "VALUE a\rb 5 5\r\nvalue\r\nEND\r\n"),
    ]);
}

#[test]
fn words_are_parted_by_spaces_only() {
    assert_replies(&[
        ("get  missing   missing  \r\n", "END\r\n"),
        ("set  k  0  0  1  \r\na\r\n", "STORED\r\n"),
        ("  get foo\r\n", "ERROR\r\n"),
        ("\tget foo\r\n", "ERROR\r\n"),
        ("get\tfoo\r\n", "ERROR\r\n"),
        ("get a\tb\r\n", "VALUE a\tb 5 5\r\nvalue\r\nEND\r\n"),
    ]);
}

#[test]
fn keys_may_contain_control_and_high_bytes() {
    let key = b"\0\x01\x7f\x80\xff\xe6\x88\xb8";
    assert_commands(
        &[b"get ", &key[..], b"\r\n"].concat(),
        &[MemcachedCommand::Operation(Operation::Get(Get { key, ..Get::default() }))],
    );
}

#[test]
fn commands_are_lower_case() {
    assert_replies(&[
        ("GET foo\r\n", "ERROR\r\n"),
        ("getx foo\r\n", "ERROR\r\n"),
        ("ge foo\r\n", "ERROR\r\n"),
        ("misbehave\r\n", "ERROR\r\n"),
        ("mx foo\r\n", "ERROR\r\n"),
        ("mnx\r\n", "ERROR\r\n"),
        ("refresh_certs\r\n", "Error TLS not enabled\r\n"),
        ("refresh_cert\r\n", "ERROR\r\n"),
        ("lru_crawler_crawl all\r\n", "ERROR\r\n"),
        ("watcher\r\n", "ERROR\r\n"),
        ("foo bar\r\n", "ERROR\r\n"),
        ("foo noreply\r\n", ""),
        ("foo bar noreply\r\n", ""),
        ("foo bar noreply \r\n", ""),
        ("noreply\r\n", "ERROR\r\n"),
        ("foo xnoreply\r\n", "ERROR\r\n"),
        ("foo noreply x\r\n", "ERROR\r\n"),
    ]);
}

#[test]
fn lines_under_four_bytes_are_bad_except_mn() {
    assert_replies(&[
        ("\n", BAD),
        ("\r\n", BAD),
        ("a\r\n", BAD),
        ("\r\r\n", BAD),
        ("ab\n", BAD),
        ("mg\n", BAD),
        ("me\n", BAD),
        ("mn\n", "MN\r\n"),
        ("mn\r\n", "MN\r\n"),
        ("mn extra\r\n", "MN\r\n"),
        ("ab\r\n", "ERROR\r\n"),
        ("abc\n", "ERROR\r\n"),
        ("   \n", "ERROR\r\n"),
    ]);
}

#[test]
fn http_closes_silently() {
    for request in
        ["GET / HTTP/1.1\r\n", "POST /x HTTP/1.0\n", "HTTP/1.1\r\n", "foo HTTP/\r\n", "GET / HTTP/1.1  \r\n"]
    {
        let outcome = send(format!("{request}get a\r\n").as_bytes());
        assert!(outcome.closed, "{request:?}");
        assert_eq!(outcome.replies, b"", "{request:?}");
    }
    assert_replies(&[
        ("foo xHTTP/1.1\r\n", "ERROR\r\n"),
        ("foo HTTP/1.1 x\r\n", "ERROR\r\n"),
        // Known commands are not affected.
        ("delete HTTP/1.1\r\n", "DELETED\r\n"),
    ]);
}

#[test]
fn quit_drops_what_follows() {
    let outcome = send(b"version\r\nquit\r\nversion\r\n");
    assert!(outcome.closed);
    assert_eq!(outcome.replies, b"VERSION 1.6.45\r\n");
    assert!(send(b"quit now noreply\r\n").closed);
}

#[test]
fn line_must_end_within_2048_bytes() {
    let line = |len: usize| [vec![b'x'; len - 2], b"\r\n".to_vec()].concat();
    assert_eq!(send(&line(2048)).replies, b"ERROR\r\n");
    for too_long in [line(2049), line(5000), vec![b'x'; 2048], vec![b'x'; 9000]] {
        let outcome = send(&too_long);
        assert!(outcome.closed, "{} bytes", too_long.len());
        assert_eq!(outcome.replies, b"");
    }
    let outcome = send(&[b'x'; 2047]);
    assert!(!outcome.closed, "the line may still end");
    assert_eq!(outcome.unread, 2047);
}

#[test]
fn only_lists_of_keys_may_grow() {
    let long = |command: &str| format!("{command} {}\r\n", "missing ".repeat(1000));
    for command in ["get", "gets", "gat 0", "gats 0"] {
        let outcome = send(long(command).as_bytes());
        assert_eq!(outcome.requests.len(), 1000);
        assert_eq!(outcome.replies, b"END\r\n");
    }
    for command in ["gat\t0", "gatss 0", "mg", "ms", "set", "delete", "stats", "GET", "getx", "get\t"] {
        let outcome = send(long(command).as_bytes());
        assert!(outcome.closed, "{command}");
        assert_eq!(outcome.replies, b"", "{command}");
    }
}

#[test]
fn up_to_100_leading_spaces_allow_long_gets() {
    let line = |spaces: usize| format!("{}get {}\r\n", " ".repeat(spaces), "k ".repeat(2000));
    // The line may grow, but it is not a command.
    assert_eq!(send(line(1).as_bytes()).replies, b"ERROR\r\n");
    assert_eq!(send(line(100).as_bytes()).replies, b"ERROR\r\n");
    assert!(send(line(101).as_bytes()).closed);
}

#[test]
fn get_lines_are_bounded_too() {
    let limits = MemcachedLimits { get_line_len_max: 4096, ..MemcachedLimits::default() };
    let line = |len: usize| format!("get {:<width$}\r\n", "missing", width = len - 6);
    assert_eq!(send_within(limits, line(4096).as_bytes()).replies, b"END\r\n");
    assert!(send_within(limits, line(4097).as_bytes()).closed);
    assert!(send_within(limits, &line(5000).as_bytes()[..4096]).closed);
}

#[test]
fn small_line_limit_ignores_the_split() {
    let limits = MemcachedLimits { line_len_max: 1, ..MemcachedLimits::default() };
    let line = |len: usize| [vec![b'x'; len - 2], b"\r\n".to_vec()].concat();
    assert_eq!(send_within(limits, &line(128)).replies, b"ERROR\r\n");
    assert!(send_within(limits, &line(129)).closed);
    assert_eq!(
        send_within(limits, format!("get {}\r\n", "missing ".repeat(40)).as_bytes()).replies,
        b"END\r\n"
    );
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let outcome =
        send(b"set a 0 0 1\r\nx\r\nget b missing c\r\nincr n 1\r\nmg a v\r\nfoo\r\ndelete missing\r\nmn\r\n");
    assert_eq!(
        outcome.replies.escape_ascii().to_string(),
        b"STORED\r\nVALUE b 5 5\r\nvalue\r\nVALUE c 5 5\r\nvalue\r\nEND\r\n1234\r\nVA 5\r\nvalue\r\n\
          ERROR\r\nNOT_FOUND\r\nMN\r\n"
            .escape_ascii()
            .to_string()
    );
}
