//! The command of each packet.

use crate::exchange::assert_commands;
use crate::packet::{Packet, set};
use todana_core::{
    Arithmetic, ArithmeticDirection, Delete, Get, Operation, ReplyNeeds, Store, StoreMode, Ttl,
};
use todana_protocol::memcached::MemcachedCommand;

const SHOWN: ReplyNeeds = ReplyNeeds { version: true, access: false };

/// Returns the operation of a read: every answer contains a version.
fn read() -> Get<'static> {
    Get { key: b"key", needs: SHOWN, ..Get::default() }
}

#[track_caller]
fn assert_command(packet: &Packet, command: MemcachedCommand<'_>) {
    assert_commands(&packet.request(), &[command]);
}

#[test]
fn a_header_is_read_as_it_is_drawn() {
    let bytes =
        b"\x80\x01\x00\x03\x08\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x2a\x00\x00\x00\x00\x00\x00\x01\x07\
        \x00\x00\x00\x05\x00\x00\x00\x3ckeyvalue";
    let command = MemcachedCommand::Operation(Operation::Store(Store {
        key: b"key",
        value: b"value",
        flags: 5,
        ttl: Ttl::Seconds(60),
        compare: Some(0x107),
        needs: SHOWN,
        item_size_max: Some(1 << 20),
        ..Store::default()
    }));
    assert_commands(bytes, &[command]);
}

#[test]
fn data_type_and_bucket_are_ignored() {
    let mut bytes = Packet::new(0x00).key("key").request();
    bytes[5..8].copy_from_slice(&[9, 8, 7]);
    assert_commands(&bytes, &[MemcachedCommand::Operation(Operation::Get(read()))]);
}

#[test]
fn every_read_shows_a_version() {
    for opcode in [0x00, 0x09, 0x0c, 0x0d] {
        assert_command(&Packet::new(opcode).key("key"), MemcachedCommand::Operation(Operation::Get(read())));
    }
}

#[test]
fn keys_may_hold_any_byte() {
    let key = b"\0\r\n \xff";
    assert_command(
        &Packet::new(0x00).key(key),
        MemcachedCommand::Operation(Operation::Get(Get { key, ..read() })),
    );
}

#[test]
fn touch_and_gat_set_a_time_to_live() {
    for opcode in [0x1c, 0x1d, 0x1e, 0x23, 0x24] {
        let get = Get { touch: Some(Ttl::Seconds(100)), counts_as_touch: true, ..read() };
        assert_command(
            &Packet::new(opcode).u32(100).key("key"),
            MemcachedCommand::Operation(Operation::Get(get)),
        );
    }
}

#[test]
fn expiry_beyond_thirty_days_is_a_unix_time() {
    for (expiry, ttl) in [
        (0, Ttl::Never),
        (1, Ttl::Seconds(1)),
        (2_592_000, Ttl::Seconds(2_592_000)),
        (2_592_001, Ttl::At(2_592_001)),
        (0x8000_0000, Ttl::At(0x8000_0000)),
        (u32::MAX, Ttl::At(u64::from(u32::MAX))),
    ] {
        let get = Get { touch: Some(ttl), counts_as_touch: true, ..read() };
        assert_command(
            &Packet::new(0x1d).u32(expiry).key("key"),
            MemcachedCommand::Operation(Operation::Get(get)),
        );
        let store =
            Store { key: b"key", ttl, needs: SHOWN, item_size_max: Some(1 << 20), ..Store::default() };
        assert_command(
            &Packet::new(0x01).u32(0).u32(expiry).key("key"),
            MemcachedCommand::Operation(Operation::Store(store)),
        );
        assert_command(
            &Packet::new(0x08).u32(expiry),
            MemcachedCommand::Operation(Operation::Flush { at: ttl }),
        );
    }
}

#[test]
fn quiet_stores_need_no_version() {
    for (opcode, mode, quiet) in [
        (0x01, StoreMode::Set, false),
        (0x02, StoreMode::Add, false),
        (0x03, StoreMode::Replace, false),
        (0x11, StoreMode::Set, true),
        (0x12, StoreMode::Add, true),
        (0x13, StoreMode::Replace, true),
    ] {
        let store = Store {
            key: b"key",
            value: b"value",
            flags: 0xdead_beef,
            ttl: Ttl::Seconds(60),
            mode,
            needs: ReplyNeeds { version: !quiet, access: false },
            item_size_max: Some(1 << 20),
            ..Store::default()
        };
        let packet = Packet::new(opcode).u32(0xdead_beef).u32(60).key("key").value("value");
        assert_command(&packet, MemcachedCommand::Operation(Operation::Store(store)));
        // With a version, each of them stores only if the record has this version.
        let store = Store { mode: StoreMode::Set, compare: Some(u64::MAX), ..store };
        assert_command(&packet.cas(u64::MAX), MemcachedCommand::Operation(Operation::Store(store)));
    }
}

#[test]
fn append_and_prepend_keep_their_mode_with_versions() {
    for (opcode, mode, quiet) in [
        (0x0e, StoreMode::Append, false),
        (0x0f, StoreMode::Prepend, false),
        (0x19, StoreMode::Append, true),
        (0x1a, StoreMode::Prepend, true),
    ] {
        for compare in [None, Some(7)] {
            let store = Store {
                key: b"key",
                value: b"value",
                mode,
                compare,
                needs: ReplyNeeds { version: !quiet, access: false },
                item_size_max: Some(1 << 20),
                ..Store::default()
            };
            let packet = Packet::new(opcode).key("key").value("value").cas(compare.unwrap_or(0));
            assert_command(&packet, MemcachedCommand::Operation(Operation::Store(store)));
        }
    }
}

#[test]
fn empty_values_are_values() {
    let store = Store { key: b"key", needs: SHOWN, item_size_max: Some(1 << 20), ..Store::default() };
    assert_command(&set("key", ""), MemcachedCommand::Operation(Operation::Store(store)));
    let append = Store { mode: StoreMode::Append, ..store };
    assert_command(&Packet::new(0x0e).key("key"), MemcachedCommand::Operation(Operation::Store(append)));
}

#[test]
fn delete_compares_a_version_if_there_is_one() {
    for opcode in [0x04, 0x14] {
        for compare in [None, Some(9)] {
            let delete = Delete { key: b"key", compare, ..Delete::default() };
            let packet = Packet::new(opcode).key("key").cas(compare.unwrap_or(0));
            assert_command(&packet, MemcachedCommand::Operation(Operation::Delete(delete)));
        }
    }
}

#[test]
fn counters_are_created_unless_forbidden() {
    for (opcode, direction, quiet) in [
        (0x05, ArithmeticDirection::Increment, false),
        (0x06, ArithmeticDirection::Decrement, false),
        (0x15, ArithmeticDirection::Increment, true),
        (0x16, ArithmeticDirection::Decrement, true),
    ] {
        for (expiry, vivify) in [
            (0, Some(Ttl::Never)),
            (60, Some(Ttl::Seconds(60))),
            (0xffff_fffe, Some(Ttl::At(0xffff_fffe))),
            (0xffff_ffff, None),
        ] {
            let arithmetic = Arithmetic {
                key: b"key",
                direction,
                delta: 1 << 40,
                vivify,
                initial: u64::MAX,
                compare: Some(3),
                needs: ReplyNeeds { version: !quiet, access: false },
                ..Arithmetic::default()
            };
            let packet = Packet::new(opcode).u64(1 << 40).u64(u64::MAX).u32(expiry).key("key").cas(3);
            assert_command(&packet, MemcachedCommand::Operation(Operation::Arithmetic(arithmetic)));
        }
    }
}

#[test]
fn the_commands_without_a_key() {
    for (packet, command) in [
        (Packet::new(0x08), MemcachedCommand::Operation(Operation::Flush { at: Ttl::Never })),
        (Packet::new(0x18), MemcachedCommand::Operation(Operation::Flush { at: Ttl::Never })),
        (Packet::new(0x18).u32(10), MemcachedCommand::Operation(Operation::Flush { at: Ttl::Seconds(10) })),
        (Packet::new(0x0a), MemcachedCommand::Operation(Operation::Noop)),
        (Packet::new(0x0b), MemcachedCommand::Version),
        (Packet::new(0x10), MemcachedCommand::Stats { group: b"" }),
        (Packet::new(0x07), MemcachedCommand::Operation(Operation::Noop)),
        (Packet::new(0x17), MemcachedCommand::Quit),
    ] {
        assert_command(&packet, command);
    }
}

#[test]
fn stat_names_its_group_in_full() {
    for group in ["reset", "settings", "items", "slabs", "sizes", "detail on", "detail off", "detail dump"] {
        let command = MemcachedCommand::Stats { group: group.as_bytes() };
        assert_command(&Packet::new(0x10).key(group), command);
    }
    for group in ["conns", "set", "items ", "cachedump 1 0", "detail", "detail maybe", "\0"] {
        assert_command(&Packet::new(0x10).key(group), MemcachedCommand::Faulty { message: "Not found" });
    }
}

#[test]
fn packets_may_be_pipelined() {
    let stream = [
        Packet::new(0x09).key("a").request(),
        set("b", b"no packet: \x80\x01").request(),
        Packet::new(0x0a).request(),
    ];
    let a = Get { key: b"a", ..read() };
    let b = Store {
        key: b"b",
        value: b"no packet: \x80\x01",
        needs: SHOWN,
        item_size_max: Some(1 << 20),
        ..Store::default()
    };
    assert_commands(
        &stream.concat(),
        &[
            MemcachedCommand::Operation(Operation::Get(a)),
            MemcachedCommand::Operation(Operation::Store(b)),
            MemcachedCommand::Operation(Operation::Noop),
        ],
    );
}
