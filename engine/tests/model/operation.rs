//! Random operations: keys and values of all forms and lengths, attributes of all kinds.

use proptest::prelude::*;
use todana_core::{Attributes, Expiry, LastAccess, StaleMarks, UnixSeconds};

/// One step of a test.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Put(Vec<u8>, Vec<u8>, Attributes),
    Retag(Vec<u8>, Attributes),
    Remove(Vec<u8>),
    Keep(Vec<u8>),
    View(Vec<u8>),
    Maintain,
    /// Scans all records; if the engine is ordered, also walks in both directions.
    Scan,
    ScanInPieces(usize),
    /// Walks over some records from a key on, in both directions, if the engine is ordered. The
    /// flag includes the key itself; the number is the maximum of records.
    Walk(Vec<u8>, bool, usize),
    Clear,
    /// Does an operation by a visitor that needs only the length of the old value.
    Blindly(Box<Operation>),
}

impl Operation {
    pub(crate) fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Operation {
        Operation::Put(key.into(), value.into(), Attributes::default())
    }
}

pub(crate) fn attributes() -> impl Strategy<Value = Attributes> {
    let expiry = prop_oneof![
        4 => Just(Expiry::Never),
        2 => any::<u32>().prop_map(|s| Expiry::At(UnixSeconds(s.into()))),
        1 => any::<u64>().prop_map(|s| Expiry::At(UnixSeconds(s))),
        1 => any::<(u32, u32)>().prop_map(|(s, span_s)| Expiry::Sliding { at: UnixSeconds(s.into()), span_s }),
    ];
    let access = proptest::option::weighted(
        0.1,
        (any::<u32>(), any::<bool>())
            .prop_map(|(at, fetched)| LastAccess { at: UnixSeconds(at.into()), fetched }),
    );
    let marks = prop_oneof![
        5 => Just(StaleMarks::default()),
        1 => any::<(bool, bool)>().prop_map(|(stale, token_sent)| StaleMarks { stale, token_sent }),
    ];
    let flags = prop_oneof![3 => Just(0), 1 => any::<u32>()];
    let version = prop_oneof![3 => Just(0), 1 => any::<u64>()];
    (flags, expiry, version, marks, access).prop_map(|(flags, expiry, version, marks, access)| Attributes {
        flags,
        expiry,
        version,
        marks,
        access,
        has_value_list: false,
    })
}

fn long() -> impl Strategy<Value = String> {
    prop_oneof![Just(2000), Just(70_000)].prop_map(|len| "k".repeat(len))
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => (0u32..400).prop_map(|n| n.to_string().into_bytes()),
        3 => (0u32..100).prop_map(|n| format!("{n:08}").into_bytes()),
        6 => (0u32..400).prop_map(|n| format!("user:{n}:profile").into_bytes()),
        1 => (0u32..20, 0usize..300).prop_map(|(n, len)| format!("{n:x<len$}").into_bytes()),
        1 => (0u32..4, long(), any::<bool>())
            .prop_map(|(n, k, last)| if last { format!("{k}{n}") } else { format!("{n}{k}") }.into_bytes()),
        1 => (0u32..30, 0u32..8, 480usize..510).prop_map(|(n, m, len)| format!("{m}{}{n}", "k".repeat(len)).into_bytes()),
        1 => Just(Vec::new()),
        1 => proptest::collection::vec(any::<u8>(), 0..5),
        1 => proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(b'u'), Just(255)], 0..12),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    let of_len =
        |len: usize, salt: u8| (0..len).map(|i| (i as u8).wrapping_mul(31) ^ salt).collect::<Vec<u8>>();
    prop_oneof![
        6 => "[0-9]{1,22}".prop_map(String::into_bytes),
        6 => (0usize..64, any::<u8>()).prop_map(move |(len, salt)| of_len(len, salt)),
        4 => (64usize..1200, any::<u8>()).prop_map(move |(len, salt)| of_len(len, salt)),
        2 => (1200usize..66_000, any::<u8>()).prop_map(move |(len, salt)| of_len(len, salt)),
        1 => (65_000usize..300_000, any::<u8>()).prop_map(move |(len, salt)| of_len(len, salt)),
    ]
}

pub(crate) fn operations(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Operation>> {
    let changing = prop_oneof![
        40 => (key(), value(), attributes()).prop_map(|(k, v, a)| Operation::Put(k, v, a)),
        20 => (key(), value()).prop_map(|(k, v)| Operation::put(k, v)),
        10 => (key(), attributes()).prop_map(|(k, a)| Operation::Retag(k, a)),
        25 => key().prop_map(Operation::Remove),
        3 => key().prop_map(Operation::Keep),
    ];
    let operation = prop_oneof![
        98 => (changing, any::<bool>()).prop_map(|(operation, blindly)| match blindly {
            true => Operation::Blindly(Box::new(operation)),
            false => operation,
        }),
        20 => key().prop_map(Operation::View),
        5 => (key(), any::<bool>(), 1usize..100).prop_map(|(k, at, len)| Operation::Walk(k, at, len)),
        3 => Just(Operation::Maintain),
        1 => Just(Operation::Scan),
        1 => (1usize..50).prop_map(Operation::ScanInPieces),
    ];
    let clear = (0usize..10).prop_map(|at| (at == 0).then_some(Operation::Clear));
    (proptest::collection::vec(operation, len), clear).prop_map(|(mut operations, clear)| {
        if let Some(clear) = clear {
            let middle = operations.len() / 2;
            operations.insert(middle, clear);
        }
        operations
    })
}
