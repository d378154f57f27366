//! The number formats at their limits.

use crate::exchange::send;
use todana_core::Ttl;

/// Returns one field of the command that a request decodes to.
fn field(stream: &str, name: &str) -> Option<String> {
    let requests = send(stream.as_bytes()).requests;
    let (_, after) = requests[0].split_once(&format!(" {name}: "))?;
    let end = after.find([',', ' ']).unwrap_or(after.len());
    Some(after[..end].to_owned())
}

#[test]
fn flags_of_storage_commands_go_through_strtoul() {
    for (text, flags) in [
        ("0", Some(0u32)),
        ("007", Some(7)),
        ("4294967295", Some(u32::MAX)),
        ("4294967296", Some(0)),
        ("4294967301", Some(5)),
        ("18446744073709551615", Some(u32::MAX)),
        ("18446744073709551616", None),
        ("99999999999999999999999", None),
        ("+5", Some(5)),
        ("\t5", Some(5)),
        ("5\tx", Some(5)),
        ("-5", None),
        ("-0", None),
        ("-18446744073709551615", None),
        ("", None),
        ("+", None),
        ("\t", None),
        ("5x", None),
        ("0x5", None),
    ] {
        let expected = flags.map(|flags| flags.to_string());
        if !text.is_empty() {
            assert_eq!(field(&format!("set k {text} 0 1\r\na\r\n"), "flags"), expected, "{text:?}");
        }
    }
}

#[test]
fn expiry_of_storage_commands_goes_through_strtol() {
    for (text, ttl) in [
        ("0", Some(Ttl::Never)),
        ("-0", Some(Ttl::Never)),
        ("5", Some(Ttl::Seconds(5))),
        ("+5", Some(Ttl::Seconds(5))),
        ("\t5\t", Some(Ttl::Seconds(5))),
        ("-1", Some(Ttl::Expired)),
        ("2592000", Some(Ttl::Seconds(2_592_000))),
        ("2592001", Some(Ttl::At(2_592_001))),
        ("2147483647", Some(Ttl::At(2_147_483_647))),
        ("2147483648", Some(Ttl::Expired)),
        ("4294967296", Some(Ttl::Never)),
        ("4294967301", Some(Ttl::Seconds(5))),
        ("9223372036854775807", Some(Ttl::Expired)),
        ("9223372036854775808", None),
        ("-9223372036854775808", Some(Ttl::Never)),
        ("-9223372036854775809", None),
        ("-4294967291", Some(Ttl::Seconds(5))),
        ("5x", None),
        ("-", None),
        ("--5", None),
    ] {
        let expected = ttl.map(|ttl| format!("{ttl:?}"));
        assert_eq!(field(&format!("set k 0 {text} 1\r\na\r\n"), "ttl"), expected, "{text:?}");
    }
}

#[test]
fn other_times_are_signed_32_bit_numbers() {
    for (text, ttl) in [
        ("0", Some(Ttl::Never)),
        ("-0", Some(Ttl::Never)),
        ("5", Some(Ttl::Seconds(5))),
        ("00000000005", Some(Ttl::Seconds(5))),
        ("000000000005", None),
        ("-2147483648", Some(Ttl::Expired)),
        ("-2147483649", None),
        ("2147483647", Some(Ttl::At(2_147_483_647))),
        ("2147483648", None),
        ("99999999999", None),
        ("+5", None),
        ("-", None),
        ("5x", None),
        ("\t5", None),
    ] {
        let expected = ttl.map(|ttl| format!("{ttl:?}"));
        assert_eq!(field(&format!("touch k {text}\r\n"), "ttl"), expected, "touch {text:?}");
        let some = expected.map(|ttl| format!("Some({ttl}"));
        let gat = field(&format!("gat {text} k\r\n"), "touch").map(|ttl| ttl.replace("))", ")"));
        let close = |ttl: String| ttl.trim_end_matches(')').to_owned();
        assert_eq!(gat.map(close), some.clone().map(close), "gat {text:?}");
        for (flag, name) in [("T", "touch"), ("N", "vivify")] {
            let meta = field(&format!("mg k {flag}{text}\r\n"), name);
            assert_eq!(meta.map(close), some.clone().map(close), "{flag}{text:?}");
        }
    }
    assert_eq!(field("mg k R-5\r\n", "recache_below_s").as_deref(), Some("Some(-5)"));
    assert_eq!(field("mg k R2147483648\r\n", "recache_below_s"), None);
}

/// `ms k 1 F4294967296` used to store flags 0.
#[test]
fn meta_client_flags_are_unsigned_32_bit_numbers() {
    for (text, number) in [
        ("0", Some("0")),
        ("4294967295", Some("4294967295")),
        ("00004294967295", Some("4294967295")),
        ("4294967296", None),
        ("18446744073709551615", None),
        ("-1", None),
        ("+1", None),
        ("1x", None),
        ("\t1", None),
    ] {
        assert_eq!(field(&format!("ms k 1 F{text}\r\na\r\n"), "flags").as_deref(), number, "F{text:?}");
    }
}

#[test]
fn versions_and_deltas_are_unsigned_64_bit_numbers() {
    for (text, number) in [
        ("0", Some(0u64)),
        ("18446744073709551615", Some(u64::MAX)),
        ("00018446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", None),
        ("99999999999999999999", None),
        ("100000000000000000000000000000", None),
        ("-1", None),
        ("+1", None),
        ("1x", None),
        ("\t1", None),
    ] {
        let plain = number.map(|number| number.to_string());
        let some = number.map(|number| format!("Some({number})"));
        assert_eq!(field(&format!("cas k 0 0 1 {text}\r\na\r\n"), "compare"), some, "cas {text:?}");
        assert_eq!(field(&format!("incr k {text}\r\n"), "delta"), plain, "incr {text:?}");
        assert_eq!(field(&format!("ma k D{text}\r\n"), "delta"), plain, "D{text:?}");
        assert_eq!(field(&format!("ma k J{text}\r\n"), "initial"), plain, "J{text:?}");
        assert_eq!(field(&format!("md k C{text}\r\n"), "compare"), some, "C{text:?}");
        assert_eq!(field(&format!("ms k 1 E{text}\r\na\r\n"), "version"), some, "E{text:?}");
    }
}
