//! Searches for keys by pattern and by similarity, on each kind of database.

use crate::kinds;

use kinds::on_each_kind;
use std::collections::BTreeSet;
use todana::{ErrorKind, KeySymbols, Records, Ttl};

const KEYS: [&str; 8] = ["user:1", "user:12", "user:x", "uses", "vat", "größe", "grösse", "grosse"];

fn filled(db: &todana::Db) {
    for key in KEYS {
        db.set(key.as_bytes(), b"v").unwrap();
    }
    db.set_with(b"user:dead", b"", Ttl::Expired, 0).unwrap();
    db.set(b"user:\xff", b"v").unwrap();
}

fn set(keys: &[Vec<u8>]) -> BTreeSet<&[u8]> {
    keys.iter().map(Vec::as_slice).collect()
}

#[test]
fn keys_are_found_by_their_beginning() {
    on_each_kind(|db| {
        filled(&db);
        let found = db.match_prefix(b"user:", 10).unwrap();
        assert_eq!(set(&found), BTreeSet::from([&b"user:1"[..], b"user:12", b"user:x", b"user:\xff"]));
        assert_eq!(db.match_prefix(b"user:", 2).unwrap().len(), 2);
        assert_eq!(db.match_prefix(b"", 100).unwrap().len(), KEYS.len() + 1);
        assert!(db.match_prefix(b"user:", 0).unwrap().is_empty());
        assert!(db.match_prefix(b"none", 10).unwrap().is_empty());
        if db.is_ordered() {
            assert_eq!(db.match_prefix(b"user:", 2).unwrap(), [&b"user:1"[..], b"user:12"]);
        }
    });
}

#[test]
fn regular_expression_matches_key_bytes() {
    on_each_kind(|db| {
        filled(&db);
        let found = |pattern| db.match_regex(pattern, 10).unwrap();
        assert_eq!(set(&found(r"^user:\d+$")), BTreeSet::from([&b"user:1"[..], b"user:12"]));
        assert_eq!(found("^gr.ße$"), ["größe".as_bytes()]);
        assert_eq!(found(r"(?-u)^user:\xff$"), [b"user:\xff"]);
        assert_eq!(db.match_regex("s", 3).unwrap().len(), 3);
        let error = db.match_regex("a(b", 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().starts_with("regular expression \"a(b\": "), "{error}");
        assert_eq!(db.match_regex(r"(\w{1000}){1000}", 1).unwrap_err().kind(), ErrorKind::Invalid);
    });
}

#[test]
fn most_similar_keys_come_first() {
    on_each_kind(|db| {
        filled(&db);
        let found = |key: &str, max, symbols, limit| -> Vec<(String, usize)> {
            let similar = db.match_similar(key.as_bytes(), max, symbols, limit).unwrap();
            similar.into_iter().map(|(key, distance)| (String::from_utf8(key).unwrap(), distance)).collect()
        };
        let pairs = |pairs: &[(&str, usize)]| -> Vec<(String, usize)> {
            pairs.iter().map(|&(key, distance)| (key.into(), distance)).collect()
        };
        let by_characters = pairs(&[("grosse", 0), ("grösse", 1), ("größe", 3)]);
        assert_eq!(found("grosse", 3, KeySymbols::Characters, 10), by_characters);
        // The letters ö and ß have two bytes each.
        assert_eq!(found("grosse", 3, KeySymbols::Bytes, 10), pairs(&[("grosse", 0), ("grösse", 2)]));
        assert_eq!(found("grosse", 9, KeySymbols::Characters, 2), by_characters[..2]);
        assert!(found("grosse", 9, KeySymbols::Bytes, 0).is_empty());
        assert!(found("nothing like it", 3, KeySymbols::Bytes, 10).is_empty());
        let all = db.match_similar(b"", usize::MAX, KeySymbols::Characters, 100).unwrap();
        assert_eq!(all.len(), KEYS.len() + 1);
        assert!(all.is_sorted_by_key(|(key, distance)| (*distance, key.clone())));
    });
}
