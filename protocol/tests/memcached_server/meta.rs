//! The meta commands: their replies, their errors and the choice among several errors, and the
//! decoded commands.

use crate::exchange::{assert_commands, assert_replies, send};
use todana_core::{
    Arithmetic, ArithmeticDirection, CommandSyntax, Delete, Get, Inspect, Operation, ReplyNeeds, Store,
    StoreMode, Ttl,
};
use todana_protocol::memcached::MemcachedCommand;

const BAD: &str = "CLIENT_ERROR bad command line format\r\n";
const BAD_TOKEN: &str = "CLIENT_ERROR bad token in command line format\r\n";
const INVALID: &str = "CLIENT_ERROR invalid flag\r\n";
const DUPLICATE: &str = "CLIENT_ERROR duplicate flag\r\n";
const MA_INVALID: &str = "CLIENT_ERROR invalid or duplicate flag\r\n";
const TOO_MANY: &str = "CLIENT_ERROR options flags are too long\r\n";
const BAD_KEY: &str = "CLIENT_ERROR error decoding key\r\n";
const LONG_OPAQUE: &str = "CLIENT_ERROR opaque token too long\r\n";
const BAD_MS_MODE: &str = "CLIENT_ERROR invalid mode for ms M token\r\n";
const BAD_MA_MODE: &str = "CLIENT_ERROR invalid mode for ma M token\r\n";

/// Returns a line of each command, with the block that `ms` needs.
fn of_each(key: &str, flags: &str) -> [String; 4] {
    [
        format!("mg {key} {flags}\r\n"),
        format!("ms {key} 2 {flags}\r\nab\r\n"),
        format!("md {key} {flags}\r\n"),
        format!("ma {key} {flags}\r\n"),
    ]
}

#[test]
fn mg_replies() {
    assert_replies(&[
        ("mg k\r\n", "HD\r\n"),
        ("mg k v\r\n", "VA 5\r\nvalue\r\n"),
        ("mg missing v\r\n", "EN\r\n"),
        ("mg missing q v\r\n", ""),
        ("mg k q v\r\n", "VA 5\r\nvalue\r\n"),
        ("mg k q\r\n", "HD\r\n"),
        ("mg k s c t f h l k O123\r\n", "HD s5 c42 t100 f5 h1 l9 kk O123\r\n"),
        ("mg k O123 k l h f t c s v\r\n", "VA 5 O123 kk l9 h1 f5 t100 c42 s5\r\nvalue\r\n"),
        ("mg bare v s c t f h l\r\n", "VA 5 s5 c0 t-1 f0 h0 l0\r\nvalue\r\n"),
        ("mg missing s c t f h l k O123\r\n", "EN kmissing O123\r\n"),
        ("mg missing k O q\r\n", ""),
        ("mg missing O\r\n", "EN O\r\n"),
        ("mg  k   v  \r\n", "VA 5\r\nvalue\r\n"),
        ("mg full N30\r\n", "SERVER_ERROR out of memory\r\n"),
    ]);
}

#[test]
fn position_of_t_selects_old_or_new_time() {
    assert_replies(&[
        ("mg k t\r\n", "HD t100\r\n"),
        ("mg k T100 t\r\n", "HD t100\r\n"),
        ("mg k t T100\r\n", "HD t60\r\n"),
        ("mg forever t\r\n", "HD t-1\r\n"),
        ("mg past T-1 t\r\n", "HD t4294967295\r\n"),
        ("ma k t\r\n", "HD t100\r\n"),
        ("ma k T100 t\r\n", "HD t100\r\n"),
        ("ma k t T100\r\n", "HD t60\r\n"),
    ]);
}

#[test]
fn marks_follow_the_requested_flags() {
    assert_replies(&[
        ("mg won s v\r\n", "VA 5 s5 W\r\nvalue\r\n"),
        ("mg stale s\r\n", "HD s5 X\r\n"),
        ("mg told s\r\n", "HD s5 Z\r\n"),
    ]);
    assert_replies(&[("mg YWxsIG1hcmtz b k\r\n", "HD kYWxsIG1hcmtz b Z X W\r\n")]);
}

#[test]
fn c_omits_a_value_that_the_client_has() {
    assert_replies(&[
        ("mg k v s C42\r\n", "HD s5\r\n"),
        ("mg k v s C41\r\n", "VA 5 s5\r\nvalue\r\n"),
        // No client knows the version of a record whose version was never shown.
        ("mg bare v C0\r\n", "VA 5\r\nvalue\r\n"),
    ]);
}

#[test]
fn ms_replies() {
    assert_replies(&[
        ("ms k 2\r\nab\r\n", "HD\r\n"),
        ("ms k 2 k O1 c s\r\nab\r\n", "HD kk O1 c42 s2\r\n"),
        ("ms k 2 s c O1 k b\r\nab\r\n", BAD_KEY),
        ("ms k 2 v t f h l\r\nab\r\n", "HD\r\n"),
        ("ms notstored 2 k O1 c s\r\nab\r\n", "NS knotstored O1 c0 s2\r\n"),
        ("ms exists 2 k O1 c s\r\nab\r\n", "EX kexists O1 c0 s2\r\n"),
        ("ms missing 2 k O1 c s\r\nab\r\n", "NF kmissing O1 c0 s2\r\n"),
        ("ms k 2 q k\r\nab\r\n", ""),
        ("ms notstored 2 q\r\nab\r\n", "NS\r\n"),
        ("ms exists 2 q\r\nab\r\n", "EX\r\n"),
        ("ms missing 2 q\r\nab\r\n", "NF\r\n"),
        ("ms full 2 q k\r\nab\r\n", "SERVER_ERROR out of memory storing object\r\n"),
        ("ms large 2 q k\r\nab\r\n", "SERVER_ERROR object too large for cache\r\n"),
        ("ms k 2 q\r\nabcd", "CLIENT_ERROR bad data chunk\r\n"),
        ("ms k 2 k O1\r\nab\n\nversion\r\n", "CLIENT_ERROR bad data chunk\r\nVERSION 1.6.45\r\n"),
        ("ms k 0\r\n\r\n", "HD\r\n"),
    ]);
}

#[test]
fn md_and_ma_replies() {
    assert_replies(&[
        ("md k\r\n", "HD\r\n"),
        ("md k k O1 q\r\n", ""),
        ("md k k O1 v s t c f h l u\r\n", "HD kk O1\r\n"),
        ("md missing k O1\r\n", "NF kmissing O1\r\n"),
        ("md missing q\r\n", "NF\r\n"),
        ("md exists q O1 C5\r\n", "EX O1\r\n"),
        ("ma k\r\n", "HD\r\n"),
        ("ma k v\r\n", "VA 4\r\n1234\r\n"),
        ("ma k O1 v c k t s f h l\r\n", "VA 4 O1 c42 kk t100\r\n1234\r\n"),
        ("ma k q\r\n", ""),
        ("ma k q v\r\n", ""),
        ("ma missing q k t\r\n", "NF kmissing\r\n"),
        ("ma exists q O1\r\n", "EX O1\r\n"),
        ("ma notstored k\r\n", "NS knotstored\r\n"),
        ("ma words q\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
        ("ma full q\r\n", "SERVER_ERROR out of memory\r\n"),
        ("ma large q\r\n", "SERVER_ERROR object too large for cache\r\n"),
    ]);
}

#[test]
fn me_replies() {
    assert_replies(&[
        ("me k\r\n", "ME k exp=60 la=9 cas=42 fetch=yes cls=1 size=65\r\n"),
        ("me forever\r\n", "ME forever exp=-1 la=9 cas=42 fetch=yes cls=1 size=71\r\n"),
        ("me untracked\r\n", "ME untracked exp=60 la=0 cas=42 fetch=no cls=1 size=73\r\n"),
        ("me missing\r\n", "EN\r\n"),
        ("me Zm9v b\r\n", "ME Zm9v exp=60 la=9 cas=42 fetch=yes cls=1 size=67\r\n"),
        ("me Zm9v k y b\r\n", "ME Zm9v exp=60 la=9 cas=42 fetch=yes cls=1 size=67\r\n"),
        ("me\r\n", BAD),
        ("me \r\n", BAD),
        ("me kk b\r\n", BAD),
        ("me k !\r\n", BAD),
        (&format!("me {}\r\n", "k".repeat(251)), BAD),
    ]);
    assert_commands(b"me k\r\n", &[MemcachedCommand::Operation(Operation::Inspect(Inspect { key: b"k" }))]);
    assert_commands(
        b"me Zm9v b\r\n",
        &[MemcachedCommand::Operation(Operation::Inspect(Inspect { key: b"foo" }))],
    );
}

#[test]
fn key_is_required_with_at_most_250_bytes() {
    let (longest, too_long) = ("k".repeat(250), "k".repeat(251));
    assert_replies(&[
        ("mg\r\n", BAD),
        ("mg \r\n", BAD),
        ("ms\r\n", BAD),
        ("md\r\n", BAD),
        ("ma  \r\n", BAD),
        (&format!("mg {longest}\r\n"), "HD\r\n"),
        (&format!("mg {longest} k\r\n"), &format!("HD k{longest}\r\n")),
    ]);
    for request in of_each(&too_long, "v v y Tx") {
        assert_replies(&[(&request, BAD)]);
    }
}

#[test]
fn block_after_a_bad_length_is_parsed() {
    for line in
        ["ms k", "ms k x", "ms k -1", "ms k 2147483646", "ms k +4", "ms k S4", "ms k x v v", "ms kk x b"]
    {
        assert_replies(&[(&format!("{line}\r\nabcd\r\n"), &format!("{BAD}ERROR\r\n"))]);
    }
    for flag in ["!", "-", "_", "[", "~", "\x7f", "\u{e9}", "v v !", "y !", "Tx - v"] {
        assert_replies(&[(&format!("ms k 4 {flag}\r\nabcd\r\n"), &format!("{BAD}ERROR\r\n"))]);
        assert_replies(&[(&format!("mg k {flag}\r\n"), BAD)]);
        assert_replies(&[(&format!("ma k {flag}\r\n"), BAD)]);
    }
}

#[test]
fn every_letter_and_digit_is_known_or_refused() {
    let known = "bkOqvsctfhluTNRCEFIxMJDPLAY";
    for letter in ('a'..='z').chain('A'..='Z').chain('0'..='9') {
        let argument = match letter {
            'M' => "I",
            'T' | 'N' | 'R' | 'C' | 'E' | 'F' | 'J' | 'D' | 'A' => "5",
            _ => "",
        };
        for (request, i) in of_each("Zm9v", &format!("{letter}{argument}")).iter().zip(0..) {
            let replies = String::from_utf8(send(request.as_bytes()).replies).unwrap();
            let refused = if i == 3 { MA_INVALID } else { INVALID };
            match (known.contains(letter), letter, i) {
                // I is a mode of ma, not of ms.
                (_, 'M', 1) => assert_eq!(replies, BAD_MS_MODE),
                (true, ..) => assert!(!replies.contains("ERROR"), "{request:?} -> {replies:?}"),
                (false, ..) => assert_eq!(replies, refused, "{request:?}"),
            }
        }
    }
}

#[test]
fn flag_faults() {
    let opaque = "O".repeat(32);
    let long_opaque = "O".repeat(33);
    for (flags, fault, ma_fault) in [
        ("v v", DUPLICATE, MA_INVALID),
        ("k v k", DUPLICATE, MA_INVALID),
        ("T1 T2", DUPLICATE, MA_INVALID),
        ("P1 L2 P3", DUPLICATE, MA_INVALID),
        ("Oa Ob", DUPLICATE, MA_INVALID),
        ("y", INVALID, MA_INVALID),
        ("W", INVALID, MA_INVALID),
        ("S2", INVALID, MA_INVALID),
        ("5", INVALID, MA_INVALID),
        ("T", BAD_TOKEN, MA_INVALID),
        ("Tx", BAD_TOKEN, MA_INVALID),
        ("N", BAD_TOKEN, MA_INVALID),
        ("R+1", BAD_TOKEN, MA_INVALID),
        ("C-1", BAD_TOKEN, MA_INVALID),
        ("C", BAD_TOKEN, MA_INVALID),
        ("Ex", BAD_TOKEN, MA_INVALID),
        ("F", BAD, MA_INVALID),
        ("Fx", BAD, MA_INVALID),
        ("F-1", BAD, MA_INVALID),
        ("Dx", "CLIENT_ERROR invalid numeric delta value\r\n", MA_INVALID),
        ("J", "CLIENT_ERROR invalid numeric initial value\r\n", MA_INVALID),
        ("M", "CLIENT_ERROR incorrect length for M token\r\n", MA_INVALID),
        (&long_opaque, LONG_OPAQUE, LONG_OPAQUE),
        (&format!("q {long_opaque} k"), LONG_OPAQUE, LONG_OPAQUE),
        // Among several errors: unknown or duplicate flags in order, before any bad number; of bad
        // numbers the last, except F.
        ("v v y", DUPLICATE, MA_INVALID),
        ("y v v", INVALID, MA_INVALID),
        ("Tx y", INVALID, MA_INVALID),
        ("Tx v v", DUPLICATE, MA_INVALID),
        ("Tx M", "CLIENT_ERROR incorrect length for M token\r\n", MA_INVALID),
        ("Jx Dx", "CLIENT_ERROR invalid numeric delta value\r\n", MA_INVALID),
        ("Tx Fx", BAD_TOKEN, MA_INVALID),
        ("Fx Tx", BAD_TOKEN, MA_INVALID),
        (&format!("{long_opaque} y"), INVALID, MA_INVALID),
        (&format!("{long_opaque} Tx"), BAD_TOKEN, MA_INVALID),
    ] {
        let [mg, ms, md, ma] = of_each("k", flags);
        assert_replies(&[(&mg, fault), (&ms, fault), (&md, fault), (&ma, ma_fault)]);
    }
    assert_replies(&[(&format!("mg k {opaque}\r\n"), &format!("HD {opaque}\r\n"))]);
}

#[test]
fn at_most_twenty_words() {
    let flags = |count: usize| {
        let all = [
            "k", "O", "q", "v", "s", "c", "t", "f", "h", "l", "u", "T1", "N1", "R1", "C1", "E1", "F1", "P",
            "L",
        ];
        all[..count].join(" ")
    };
    assert_replies(&[
        (&format!("mg missing {}\r\n", flags(18)), ""),
        (&format!("mg missing {}\r\n", flags(19)), TOO_MANY),
        (&format!("ms k 2 {}\r\nab\r\n", flags(17)), ""),
        (&format!("ms k 2 {}\r\nab\r\n", flags(18)), TOO_MANY),
        (&format!("md k {}\r\n", flags(18)), ""),
        (&format!("md k {}\r\n", flags(19)), TOO_MANY),
        (&format!("ma k {}\r\n", flags(18)), ""),
        (&format!("ma k {}\r\n", flags(19)), TOO_MANY),
        // Reported before all errors of single flags.
        (&format!("mg k {}\r\n", "v ".repeat(30)), TOO_MANY),
        (&format!("ma k {}\r\n", "y ".repeat(30)), TOO_MANY),
    ]);
}

#[test]
fn modes_of_ms() {
    for (flag, mode) in [
        ("", StoreMode::Set),
        ("MS", StoreMode::Set),
        ("ME", StoreMode::Add),
        ("MA", StoreMode::Append),
        ("MP", StoreMode::Prepend),
        ("MR", StoreMode::Replace),
        ("MReplace", StoreMode::Replace),
    ] {
        let base = Store { syntax: CommandSyntax::Meta, item_size_max: Some(1 << 20), ..Store::default() };
        let store = Store { key: b"k", value: b"ab", mode, ..base };
        assert_commands(
            format!("ms k 2 {flag}\r\nab\r\n").as_bytes(),
            &[MemcachedCommand::Operation(Operation::Store(store))],
        );
    }
    let long_opaque = "O".repeat(33);
    assert_replies(&[
        ("ms k 2 MX\r\nab\r\n", BAD_MS_MODE),
        ("ms k 2 Ms\r\nab\r\n", BAD_MS_MODE),
        ("ms k 2 q Ma\r\nab\r\n", BAD_MS_MODE),
        (&format!("ms k 2 {long_opaque} MX\r\nab\r\n"), BAD_MS_MODE),
        ("ms kk 2 b MX\r\nab\r\n", BAD_KEY),
        ("ms k 2 MX Tx\r\nab\r\n", BAD_TOKEN),
        ("mg k MX\r\n", "HD\r\n"),
        ("md k MX\r\n", "HD\r\n"),
    ]);
}

#[test]
fn modes_of_ma() {
    for (flag, direction) in [
        ("", ArithmeticDirection::Increment),
        ("MI", ArithmeticDirection::Increment),
        ("M+", ArithmeticDirection::Increment),
        ("MD", ArithmeticDirection::Decrement),
        ("M-", ArithmeticDirection::Decrement),
        ("MDecr", ArithmeticDirection::Decrement),
    ] {
        let arithmetic =
            Arithmetic { key: b"k", direction, syntax: CommandSyntax::Meta, ..Arithmetic::default() };
        assert_commands(
            format!("ma k {flag}\r\n").as_bytes(),
            &[MemcachedCommand::Operation(Operation::Arithmetic(arithmetic))],
        );
    }
    let long_opaque = "O".repeat(33);
    assert_replies(&[
        ("ma k MX\r\n", BAD_MA_MODE),
        ("ma k Mi\r\n", BAD_MA_MODE),
        (&format!("ma k {long_opaque} MX\r\n"), BAD_MA_MODE),
        ("ma k MX Dx\r\n", MA_INVALID),
        ("ma kk b MX\r\n", MA_INVALID),
    ]);
}

#[test]
fn base64_keys() {
    assert_replies(&[
        ("mg Zm9v b v k O1\r\n", "VA 5 kZm9v b O1\r\nvalue\r\n"),
        ("mg bWlzc2luZw== b k\r\n", "EN kbWlzc2luZw== b\r\n"),
        ("ms Zm9v 2 k b\r\nab\r\n", "HD kZm9v b\r\n"),
        ("md Zm9v b k\r\n", "HD kZm9v b\r\n"),
        ("ma Zm9v b k\r\n", "HD kZm9v b\r\n"),
        // `b` alone returns nothing.
        ("mg Zm9v b\r\n", "HD\r\n"),
        // Excess bits are ignored, and the returned key does not contain them.
        ("mg Zh== b k\r\n", "HD kZg== b\r\n"),
        ("mg Z b\r\n", BAD_KEY),
        ("mg Zg b\r\n", BAD_KEY),
        ("mg Zg= b\r\n", BAD_KEY),
        ("mg ==== b\r\n", BAD_KEY),
        ("mg !!!! b\r\n", BAD_KEY),
        ("mg Zm-_ b\r\n", BAD_KEY),
        ("mg Zg==Z b\r\n", BAD_KEY),
        ("mg kk b y\r\n", INVALID),
        // An invalid base64 key is reported at the position of its `b`.
        ("mg kk b Tx\r\n", BAD_TOKEN),
        ("mg kk Tx b\r\n", BAD_KEY),
        ("ma kk Tx b\r\n", MA_INVALID),
        (&format!("mg kk b {}\r\n", "O".repeat(33)), BAD_KEY),
        ("md kk b\r\n", BAD_KEY),
        ("ms kk 2 b\r\nab\r\n", BAD_KEY),
    ]);
    let get = |key| {
        MemcachedCommand::Operation(Operation::Get(Get {
            key,
            syntax: CommandSyntax::Meta,
            ..Get::default()
        }))
    };
    assert_commands(b"mg Zm9v b\r\nmg AAEC b\r\n", &[get(b"foo"), get(b"\0\x01\x02")]);
    // The limit of 250 bytes applies to the text, not to the decoded key.
    let longest = "QUFB".repeat(62);
    assert_replies(&[
        (&format!("mg {longest} b k\r\n"), &format!("HD k{longest} b\r\n")),
        (&format!("mg {longest}QUFB b k\r\n"), BAD),
    ]);
}

#[test]
fn mg_commands() {
    let base = Get { key: b"k", syntax: CommandSyntax::Meta, ..Get::default() };
    let check = |flags: &str, get| {
        assert_commands(
            format!("mg k {flags}\r\n").as_bytes(),
            &[MemcachedCommand::Operation(Operation::Get(get))],
        );
    };
    check("", base);
    check("v s t f k q O1 I x P L", base);
    check("c", Get { needs: ReplyNeeds { version: true, access: false }, ..base });
    check("h", Get { needs: ReplyNeeds { version: false, access: true }, ..base });
    check("l", Get { needs: ReplyNeeds { version: false, access: true }, ..base });
    check("u", Get { silent: true, ..base });
    check("T30", Get { touch: Some(Ttl::Seconds(30)), ..base });
    check("N0", Get { vivify: Some(Ttl::Never), ..base });
    check("R30", Get { recache_below_s: Some(30), ..base });
    check("E99", Get { version: Some(99), ..base });
    check("C42", base);
}

#[test]
fn ms_commands() {
    let base = Store {
        key: b"k",
        value: b"ab",
        syntax: CommandSyntax::Meta,
        item_size_max: Some(1 << 20),
        ..Store::default()
    };
    let check = |flags: &str, store| {
        assert_commands(
            format!("ms k 2 {flags}\r\nab\r\n").as_bytes(),
            &[MemcachedCommand::Operation(Operation::Store(store))],
        );
    };
    check("v s t f k q O1 h l u x R5 J5 D5 P L", base);
    check("c", Store { needs: ReplyNeeds { version: true, access: false }, ..base });
    check("T30 F7", Store { ttl: Ttl::Seconds(30), flags: 7, ..base });
    check("T-1", Store { ttl: Ttl::Expired, ..base });
    check("C5", Store { compare: Some(5), ..base });
    check("C5 I E9", Store { compare: Some(5), stale_if_older: true, version: Some(9), ..base });
    check("MA N60", Store { mode: StoreMode::Append, vivify: Some(Ttl::Seconds(60)), ..base });
    check("MP N0", Store { mode: StoreMode::Prepend, vivify: Some(Ttl::Never), ..base });
    check("N60", base);
}

#[test]
fn md_commands() {
    let base = Delete { key: b"k", syntax: CommandSyntax::Meta, ..Delete::default() };
    let check = |flags: &str, delete| {
        assert_commands(
            format!("md k {flags}\r\n").as_bytes(),
            &[MemcachedCommand::Operation(Operation::Delete(delete))],
        );
    };
    check("q k O1 v s T30 F7 E9", base);
    check("C5", Delete { compare: Some(5), ..base });
    check("I T30", Delete { mark_stale: true, ttl: Some(Ttl::Seconds(30)), ..base });
    check("I E9 F7", Delete { mark_stale: true, version: Some(9), ..base });
    check("x", Delete { drop_value: true, ..base });
    check(
        "x F7 T0 E9",
        Delete { drop_value: true, flags: Some(7), ttl: Some(Ttl::Never), version: Some(9), ..base },
    );
}

#[test]
fn ma_commands() {
    let base = Arithmetic { key: b"k", syntax: CommandSyntax::Meta, ..Arithmetic::default() };
    let check = |flags: &str, arithmetic| {
        assert_commands(
            format!("ma k {flags}\r\n").as_bytes(),
            &[MemcachedCommand::Operation(Operation::Arithmetic(arithmetic))],
        );
    };
    check("v t s f q", base);
    check("c", Arithmetic { needs: ReplyNeeds { version: true, access: false }, ..base });
    check("D5", Arithmetic { delta: 5, ..base });
    check("D0", Arithmetic { delta: 0, ..base });
    check("N60 J13", Arithmetic { vivify: Some(Ttl::Seconds(60)), initial: 13, ..base });
    check("T30", Arithmetic { touch: Some(Ttl::Seconds(30)), ..base });
    check("C5 E9", Arithmetic { compare: Some(5), version: Some(9), ..base });
}
