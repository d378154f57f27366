//! The text commands: their replies, their errors, and the decoded commands.

use crate::exchange::{assert_commands, assert_replies, send, send_within};
use todana_core::{
    Arithmetic, ArithmeticDirection, Delete, Get, Operation, ReplyNeeds, Store, StoreMode, Touch, Ttl,
};
use todana_protocol::memcached::MemcachedCommand;
use todana_protocol::memcached::MemcachedLimits;

const BAD: &str = "CLIENT_ERROR bad command line format\r\n";
const BAD_CHUNK: &str = "CLIENT_ERROR bad data chunk\r\n";

#[test]
fn storage_replies() {
    for command in ["set", "add", "replace", "append", "prepend"] {
        assert_replies(&[
            (&format!("{command} k 0 0 1\r\na\r\n"), "STORED\r\n"),
            (&format!("{command} k 0 0 0\r\n\r\n"), "STORED\r\n"),
            (&format!("{command} notstored 0 0 1\r\na\r\n"), "NOT_STORED\r\n"),
            (&format!("{command} full 0 0 1\r\na\r\n"), "SERVER_ERROR out of memory storing object\r\n"),
            (&format!("{command} large 0 0 1\r\na\r\n"), "SERVER_ERROR object too large for cache\r\n"),
            (&format!("{command} k 0 0 1 noreply\r\na\r\n"), ""),
            (&format!("{command} full 0 0 1 noreply\r\na\r\n"), ""),
            // Extra words are ignored; the last one may still be noreply.
            (&format!("{command} k 0 0 1 2 3 4\r\na\r\n"), "STORED\r\n"),
            (&format!("{command} k 0 0 1 2 noreply\r\na\r\n"), ""),
            (&format!("{command} k 0 0 1 noreply 2\r\na\r\n"), "STORED\r\n"),
        ]);
    }
    assert_replies(&[
        ("cas k 0 0 1 42\r\na\r\n", "STORED\r\n"),
        ("cas exists 0 0 1 42\r\na\r\n", "EXISTS\r\n"),
        ("cas missing 0 0 1 42\r\na\r\n", "NOT_FOUND\r\n"),
        ("cas missing 0 0 1 42 noreply\r\na\r\n", ""),
        ("cas missing 0 0 1 42 5\r\na\r\n", "NOT_FOUND\r\n"),
    ]);
}

#[test]
fn missing_words_and_bad_lengths_discard_nothing() {
    for command in ["set", "add", "replace", "append", "prepend"] {
        assert_replies(&[
            (&format!("{command}\r\n"), BAD),
            (&format!("{command} k\r\n"), BAD),
            (&format!("{command} k 0\r\n"), BAD),
            (&format!("{command} k 0 0\r\n"), BAD),
            (&format!("{command} k 0 noreply\r\n"), BAD),
            (&format!("{command} k 0 0 noreply\r\n"), BAD),
            (&format!("{command} k 0 0 -1\r\nabcd\r\n"), &format!("{BAD}ERROR\r\n")),
            (&format!("{command} k 0 0 x\r\nabcd\r\n"), &format!("{BAD}ERROR\r\n")),
            (&format!("{command} k 0 0 +1\r\nabcd\r\n"), &format!("{BAD}ERROR\r\n")),
            (&format!("{command} k 0 0 -1 noreply\r\nabcd\r\n"), &format!("{BAD}ERROR\r\n")),
            (&format!("{command} k 0 0 2147483646\r\nabcd\r\n"), &format!("{BAD}ERROR\r\n")),
            (&format!("{command} k 0 0 2147483648\r\nabcd\r\n"), &format!("{BAD}ERROR\r\n")),
            (&format!("{command} k 0 0 99999999999\r\nabcd\r\n"), &format!("{BAD}ERROR\r\n")),
            (&format!("{command} k 0 0 000000000004\r\nabcd\r\n"), &format!("{BAD}ERROR\r\n")),
        ]);
    }
    assert_replies(&[("cas k 0 0 x 5\r\nabcd\r\n", &format!("{BAD}ERROR\r\n"))]);
}

/// memcached's suite sends a `cas` without its last word (cas.t). It was answered twice because its
/// block was read as a command, and each later reply on that connection belonged to the previous
/// request.
#[test]
fn cas_without_version_discards_its_block() {
    for line in ["cas k 0 0 7", "cas k 0 0 7 ", "cas k 0 0 7 x", "cas k 0 0 7 -1"] {
        assert_replies(&[(&format!("{line}\r\nversion\r\n"), BAD)]);
    }
    assert_replies(&[("cas k 0 0 7 noreply\r\nversion\r\n", "")]);
}

#[test]
fn other_errors_of_storage_lines_discard_the_block() {
    let long_key = "k".repeat(251);
    for (line, with_noreply) in [
        (format!("set {long_key} 0 0 4"), true),
        (format!("append {long_key} 0 0 4"), true),
        (format!("cas {long_key} 0 0 4 1"), true),
        ("set k x 0 4".into(), true),
        ("set k -1 0 4".into(), true),
        ("set k 18446744073709551616 0 4".into(), true),
        ("set k 0 x 4".into(), true),
        ("set k 0 9223372036854775808 4".into(), true),
        ("cas k 0 0 4 x".into(), true),
        ("cas k 0 0 4 -1".into(), true),
        ("cas k 0 0 4 18446744073709551616".into(), false),
    ] {
        assert_replies(&[(&format!("{line}\r\nmn\r\n\r\n"), BAD)]);
        if with_noreply {
            assert_replies(&[(&format!("{line} noreply\r\nmn\r\n\r\n"), "")]);
        }
    }
    // The last word is noreply and, as a version, invalid.
    assert_replies(&[("cas k 0 0 4 noreply\r\nmn\r\n\r\n", "")]);
}

#[test]
fn block_with_a_bad_end_is_consumed() {
    assert_replies(&[
        ("set k 0 0 1\r\nabc\r\n", &format!("{BAD_CHUNK}CLIENT_ERROR bad command line format\r\n")),
        ("set k 0 0 2\r\nabcdversion\r\n", &format!("{BAD_CHUNK}VERSION 1.6.45\r\n")),
        ("set k 0 0 2\r\nab\n\nversion\r\n", &format!("{BAD_CHUNK}VERSION 1.6.45\r\n")),
        ("set k 0 0 2\r\na\r\n\nversion\r\n", &format!("{BAD_CHUNK}VERSION 1.6.45\r\n")),
        ("set k 0 0 2 noreply\r\nabcdversion\r\n", "VERSION 1.6.45\r\n"),
        ("cas k 0 0 2 1\r\nabcdversion\r\n", &format!("{BAD_CHUNK}VERSION 1.6.45\r\n")),
    ]);
}

#[test]
fn a_block_may_hold_anything() {
    let value = b"\r\n\0get a\r\nEND\r\n\xff";
    let stream = [b"set k 0 0 16\r\n", &value[..], b"\r\nversion\r\n"].concat();
    let store = Store { key: b"k", value, item_size_max: Some(1 << 20), ..Store::default() };
    assert_commands(
        &stream,
        &[MemcachedCommand::Operation(Operation::Store(store)), MemcachedCommand::Version],
    );
}

#[test]
fn storage_commands() {
    let base = Store { key: b"k", value: b"ab", item_size_max: Some(1 << 20), ..Store::default() };
    assert_commands(
        b"set k 7 0 2\r\nab\r\n",
        &[MemcachedCommand::Operation(Operation::Store(Store { flags: 7, ..base }))],
    );
    for (name, mode) in [
        ("add", StoreMode::Add),
        ("replace", StoreMode::Replace),
        ("append", StoreMode::Append),
        ("prepend", StoreMode::Prepend),
    ] {
        let ttl = Ttl::Seconds(60);
        let stream = format!("{name} k 0 60 2\r\nab\r\n");
        assert_commands(
            stream.as_bytes(),
            &[MemcachedCommand::Operation(Operation::Store(Store { mode, ttl, ..base }))],
        );
    }
    assert_commands(
        b"cas k 0 -1 2 18446744073709551615\r\nab\r\n",
        &[MemcachedCommand::Operation(Operation::Store(Store {
            ttl: Ttl::Expired,
            compare: Some(u64::MAX),
            ..base
        }))],
    );
    assert_commands(
        b"cas k 0 0 2 0\r\nab\r\n",
        &[MemcachedCommand::Operation(Operation::Store(Store { compare: Some(0), ..base }))],
    );
}

#[test]
fn retrieval_replies() {
    assert_replies(&[
        ("get k\r\n", "VALUE k 5 5\r\nvalue\r\nEND\r\n"),
        ("get missing\r\n", "END\r\n"),
        ("gets k\r\n", "VALUE k 5 5 42\r\nvalue\r\nEND\r\n"),
        ("gat 60 k\r\n", "VALUE k 5 5\r\nvalue\r\nEND\r\n"),
        ("gats 60 k\r\n", "VALUE k 5 5 42\r\nvalue\r\nEND\r\n"),
        ("get b missing a b\r\n", &{
            let value = |key| format!("VALUE {key} 5 5\r\nvalue\r\n");
            format!("{}{}{}END\r\n", value("b"), value("a"), value("b"))
        }),
        ("gats 0 a missing b missing\r\n", "VALUE a 5 5 42\r\nvalue\r\nVALUE b 5 5 42\r\nvalue\r\nEND\r\n"),
        ("get missing full missing\r\n", "END\r\n"),
        ("get full\r\n", "END\r\n"),
        // noreply is a key here.
        ("get noreply\r\n", "VALUE noreply 5 5\r\nvalue\r\nEND\r\n"),
        ("gat 0 missing noreply\r\n", "VALUE noreply 5 5\r\nvalue\r\nEND\r\n"),
        ("get\r\n", BAD),
        ("get  \r\n", BAD),
        ("gets\r\n", BAD),
        ("gat\r\n", BAD),
        ("gat 0\r\n", BAD),
        ("gat x\r\n", BAD),
        ("gats 0 \r\n", BAD),
        ("gat x k\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        ("gats 2147483648 k\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
    ]);
}

#[test]
fn one_long_key_invalidates_the_line() {
    let (longest, too_long) = ("k".repeat(250), "k".repeat(251));
    assert_replies(&[
        (&format!("get {longest}\r\n"), &format!("VALUE {longest} 5 5\r\nvalue\r\nEND\r\n")),
        (&format!("get {too_long}\r\n"), BAD),
        (&format!("get {too_long} a\r\n"), BAD),
        (&format!("get a b {too_long}\r\n"), BAD),
        (&format!("gets a {too_long} b\r\n"), BAD),
        (&format!("gat 0 a {too_long}\r\n"), BAD),
        (&format!("gat x {too_long}\r\n"), "CLIENT_ERROR invalid exptime argument\r\n"),
    ]);
    assert_eq!(send(format!("get a b {too_long}\r\n").as_bytes()).requests.len(), 1);
}

#[test]
fn retrieval_commands() {
    let get = |key| Get { key, ..Get::default() };
    assert_commands(b"get a\r\n", &[MemcachedCommand::Operation(Operation::Get(get(b"a")))]);
    assert_commands(
        b"get  a   bb  a \r\n",
        &[
            MemcachedCommand::Operation(Operation::Get(get(b"a"))),
            MemcachedCommand::Operation(Operation::Get(get(b"bb"))),
            MemcachedCommand::Operation(Operation::Get(get(b"a"))),
        ],
    );
    let needs = ReplyNeeds { version: true, access: false };
    assert_commands(
        b"gets a b\n",
        &[
            MemcachedCommand::Operation(Operation::Get(Get { needs, ..get(b"a") })),
            MemcachedCommand::Operation(Operation::Get(Get { needs, ..get(b"b") })),
        ],
    );
    let gat = |key, ttl| Get { touch: Some(ttl), counts_as_touch: true, ..get(key) };
    assert_commands(
        b"gat 30 a b\r\n",
        &[
            MemcachedCommand::Operation(Operation::Get(gat(b"a", Ttl::Seconds(30)))),
            MemcachedCommand::Operation(Operation::Get(gat(b"b", Ttl::Seconds(30)))),
        ],
    );
    assert_commands(b"gat 0 a\r\n", &[MemcachedCommand::Operation(Operation::Get(gat(b"a", Ttl::Never)))]);
    assert_commands(
        b"gats -1 a\r\n",
        &[MemcachedCommand::Operation(Operation::Get(Get { needs, ..gat(b"a", Ttl::Expired) }))],
    );
}

#[test]
fn delete_replies() {
    const USAGE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
    let too_long = "k".repeat(251);
    assert_replies(&[
        ("delete k\r\n", "DELETED\r\n"),
        ("delete missing\r\n", "NOT_FOUND\r\n"),
        ("delete k 0\r\n", "DELETED\r\n"),
        ("delete k noreply\r\n", ""),
        ("delete k 0 noreply\r\n", ""),
        ("delete noreply\r\n", "DELETED\r\n"),
        ("delete noreply noreply\r\n", ""),
        ("delete k b\r\n", USAGE),
        ("delete k 1\r\n", USAGE),
        ("delete k 0 0\r\n", USAGE),
        ("delete k b c d\r\n", USAGE),
        ("delete k noreply x\r\n", USAGE),
        ("delete k b noreply\r\n", ""),
        ("delete\r\n", BAD),
        (&format!("delete {too_long}\r\n"), BAD),
        (&format!("delete {too_long} noreply\r\n"), ""),
    ]);
    assert_commands(
        b"delete k 0\r\n",
        &[MemcachedCommand::Operation(Operation::Delete(Delete { key: b"k", ..Delete::default() }))],
    );
}

#[test]
fn arithmetic_replies() {
    let too_long = "k".repeat(251);
    for command in ["incr", "decr"] {
        assert_replies(&[
            (&format!("{command} n 5\r\n"), "1234\r\n"),
            (&format!("{command} n 5 noreply\r\n"), ""),
            (&format!("{command} n 5 x\r\n"), "1234\r\n"),
            (&format!("{command} n 5 x noreply\r\n"), ""),
            (&format!("{command} noreply 5\r\n"), "1234\r\n"),
            (&format!("{command} missing 5\r\n"), "NOT_FOUND\r\n"),
            (
                &format!("{command} words 5\r\n"),
                "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
            ),
            (&format!("{command} full 5\r\n"), "SERVER_ERROR out of memory\r\n"),
            (&format!("{command} n x\r\n"), "CLIENT_ERROR invalid numeric delta argument\r\n"),
            (&format!("{command} n -1\r\n"), "CLIENT_ERROR invalid numeric delta argument\r\n"),
            (&format!("{command} n +1\r\n"), "CLIENT_ERROR invalid numeric delta argument\r\n"),
            (
                &format!("{command} n 18446744073709551616\r\n"),
                "CLIENT_ERROR invalid numeric delta argument\r\n",
            ),
            (&format!("{command} n x noreply\r\n"), ""),
            (&format!("{command} n noreply\r\n"), ""),
            (&format!("{command}\r\n"), BAD),
            (&format!("{command} n\r\n"), BAD),
            (&format!("{command} noreply\r\n"), BAD),
            (&format!("{command} {too_long} 1\r\n"), BAD),
            (&format!("{command} {too_long} 1 noreply\r\n"), ""),
        ]);
    }
    let arithmetic = Arithmetic { key: b"n", delta: u64::MAX, ..Arithmetic::default() };
    assert_commands(
        b"incr n 18446744073709551615\r\n",
        &[MemcachedCommand::Operation(Operation::Arithmetic(arithmetic))],
    );
    assert_commands(
        b"decr n 007\r\n",
        &[MemcachedCommand::Operation(Operation::Arithmetic(Arithmetic {
            delta: 7,
            direction: ArithmeticDirection::Decrement,
            ..arithmetic
        }))],
    );
}

#[test]
fn touch_replies() {
    let too_long = "k".repeat(251);
    const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument\r\n";
    assert_replies(&[
        ("touch k 60\r\n", "TOUCHED\r\n"),
        ("touch k 60 x\r\n", "TOUCHED\r\n"),
        ("touch k 60 noreply\r\n", ""),
        ("touch missing 60\r\n", "NOT_FOUND\r\n"),
        ("touch noreply 0\r\n", "TOUCHED\r\n"),
        ("touch k x\r\n", BAD_EXPTIME),
        ("touch k +5\r\n", BAD_EXPTIME),
        ("touch k 2147483648\r\n", BAD_EXPTIME),
        ("touch k 000000000005\r\n", BAD_EXPTIME),
        ("touch k x noreply\r\n", ""),
        ("touch k noreply\r\n", ""),
        ("touch\r\n", BAD),
        ("touch k\r\n", BAD),
        (&format!("touch {too_long} 0\r\n"), BAD),
        (&format!("touch {too_long} x noreply\r\n"), ""),
    ]);
    let touch = |ttl| [MemcachedCommand::Operation(Operation::Touch(Touch { key: b"k", ttl }))];
    assert_commands(b"touch k 0\r\n", &touch(Ttl::Never));
    assert_commands(b"touch k -5\r\n", &touch(Ttl::Expired));
    assert_commands(b"touch k 2592000\r\n", &touch(Ttl::Seconds(2_592_000)));
    assert_commands(b"touch k 2592001\r\n", &touch(Ttl::At(2_592_001)));
    assert_commands(b"touch k 00000000005\r\n", &touch(Ttl::Seconds(5)));
}

#[test]
fn flush_replies() {
    assert_replies(&[
        ("flush_all\r\n", "OK\r\n"),
        ("flush_all 0\r\n", "OK\r\n"),
        ("flush_all -1\r\n", "OK\r\n"),
        ("flush_all 10 20\r\n", "OK\r\n"),
        ("flush_all noreply\r\n", ""),
        ("flush_all 10 noreply\r\n", ""),
        ("flush_all x\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        ("flush_all x noreply\r\n", ""),
        ("flush_all noreply 1\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
    ]);
    assert_commands(b"flush_all\r\n", &[MemcachedCommand::Operation(Operation::Flush { at: Ttl::Never })]);
    assert_commands(
        b"flush_all noreply\r\n",
        &[MemcachedCommand::Operation(Operation::Flush { at: Ttl::Never })],
    );
    assert_commands(
        b"flush_all 10\r\n",
        &[MemcachedCommand::Operation(Operation::Flush { at: Ttl::Seconds(10) })],
    );
    assert_commands(
        b"flush_all -1\r\n",
        &[MemcachedCommand::Operation(Operation::Flush { at: Ttl::Expired })],
    );

    let forbidden = MemcachedLimits { flush_allowed: false, ..MemcachedLimits::default() };
    let refusal = b"CLIENT_ERROR flush_all not allowed\r\n";
    for request in ["flush_all\r\n", "flush_all 10\r\n", "flush_all x\r\n"] {
        assert_eq!(send_within(forbidden, request.as_bytes()).replies, refusal);
    }
    assert_eq!(send_within(forbidden, b"flush_all noreply\r\n").replies, b"");
}

#[test]
fn other_text_commands() {
    assert_replies(&[
        ("version\r\n", "VERSION 1.6.45\r\n"),
        ("version noreply\r\n", "VERSION 1.6.45\r\n"),
        ("verbosity 1\r\n", "OK\r\n"),
        ("verbosity 4294967295 x\r\n", "OK\r\n"),
        ("verbosity 1 noreply\r\n", ""),
        ("verbosity\r\n", BAD),
        ("verbosity x\r\n", BAD),
        ("verbosity -1\r\n", BAD),
        ("verbosity 4294967296\r\n", BAD),
        ("cache_memlimit 64\r\n", "OK\r\n"),
        ("cache_memlimit 64 noreply\r\n", ""),
        ("cache_memlimit\r\n", "ERROR\r\n"),
        ("cache_memlimit x\r\n", "ERROR\r\n"),
        ("cache_memlimit 7\r\n", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n"),
        ("cache_memlimit 1000000001\r\n", "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n"),
        ("cache_memlimit 100000\r\n", "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n"),
        ("shutdown\r\n", "SERVER_ERROR: shutdown not enabled\r\n"),
        ("shutdown graceful\r\n", "SERVER_ERROR: shutdown not enabled\r\n"),
        ("shutdown now\r\n", "CLIENT_ERROR invalid shutdown mode\r\n"),
        ("stats\r\n", "STAT pid 1\r\nSTAT curr_items 0\r\nEND\r\n"),
        ("stats  reset \r\n", "RESET\r\n"),
        ("stats nothing\r\n", "ERROR\r\n"),
        ("stats noreply\r\n", "ERROR\r\n"),
    ]);
    assert_commands(b"stats  detail on  \r\n", &[MemcachedCommand::Stats { group: b"detail on" }]);
    assert_commands(b"verbosity 2\r\n", &[MemcachedCommand::Verbosity(2)]);
    assert_commands(b"cache_memlimit 128\r\n", &[MemcachedCommand::MemoryLimit { mebibytes: 128 }]);
    assert_commands(b"shutdown\r\n", &[MemcachedCommand::Shutdown { graceful: false }]);
    assert_commands(b"shutdown graceful\r\n", &[MemcachedCommand::Shutdown { graceful: true }]);
}
