//! Writes requests of the text dialect.

use super::request::{InvalidRequest, check_key};

/// A storage command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreVerb {
    /// Stores always.
    #[default]
    Set,
    /// Stores only if no record exists.
    Add,
    /// Stores only if a record exists.
    Replace,
    /// Appends to the old value.
    Append,
    /// Prepends to the old value.
    Prepend,
    /// Stores only if the record has this version.
    Cas(u64),
}

/// A record to store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextStore<'a> {
    /// The storage command.
    pub verb: StoreVerb,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// memcached's exptime: 0 for no expiry, a number of seconds up to 30 days, or a Unix time if
    /// the number is greater.
    pub exptime: i64,
}

/// The options of a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextFetch {
    /// Include the versions (`gets`, `gats`).
    pub versions: bool,
    /// Set this exptime (`gat`, `gats`).
    pub touch: Option<i64>,
}

/// Writes `get`, `gets`, `gat` or `gats` of one or more keys.
pub fn put_get(out: &mut Vec<u8>, fetch: TextFetch, keys: &[&[u8]]) -> Result<(), InvalidRequest> {
    if keys.is_empty() {
        return Err(InvalidRequest::Key);
    }
    keys.iter().try_for_each(|key| check_key(key))?;
    out.extend_from_slice(match fetch {
        TextFetch { versions: false, touch: None } => b"get",
        TextFetch { versions: true, touch: None } => b"gets",
        TextFetch { versions: false, touch: Some(_) } => b"gat",
        TextFetch { versions: true, touch: Some(_) } => b"gats",
    });
    if let Some(exptime) = fetch.touch {
        put_number(out, exptime);
    }
    put_rest(out, keys);
    Ok(())
}

/// Writes a storage command. With `noreply` the server sends no reply, but may send an error that
/// the client does not expect. Use `noreply` only where no error can occur.
pub fn put_store(out: &mut Vec<u8>, store: &TextStore<'_>, noreply: bool) -> Result<(), InvalidRequest> {
    check_key(store.key)?;
    let (verb, version): (&[u8], _) = match store.verb {
        StoreVerb::Set => (b"set ", None),
        StoreVerb::Add => (b"add ", None),
        StoreVerb::Replace => (b"replace ", None),
        StoreVerb::Append => (b"append ", None),
        StoreVerb::Prepend => (b"prepend ", None),
        StoreVerb::Cas(version) => (b"cas ", Some(version)),
    };
    out.extend_from_slice(verb);
    out.extend_from_slice(store.key);
    put_number(out, store.flags);
    put_number(out, store.exptime);
    put_number(out, store.value.len());
    if let Some(version) = version {
        put_number(out, version);
    }
    out.extend_from_slice(if noreply { b" noreply\r\n" as &[u8] } else { b"\r\n" });
    out.extend_from_slice(store.value);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Writes a command and its words: `delete KEY`, `incr KEY 5`, `touch KEY 60`, `version`, `stats
/// items` ... Checks all words by the rules for keys.
pub fn put_words(out: &mut Vec<u8>, verb: &str, words: &[&[u8]]) -> Result<(), InvalidRequest> {
    words.iter().try_for_each(|word| check_key(word))?;
    out.extend_from_slice(verb.as_bytes());
    put_rest(out, words);
    Ok(())
}

/// Writes a complete line as it is, for commands that have no function here: `flush_all 10`,
/// `verbosity 1`, `quit`.
pub fn put_line(out: &mut Vec<u8>, line: &str) -> Result<(), InvalidRequest> {
    if line.is_empty() || line.contains(['\r', '\n']) {
        return Err(InvalidRequest::Line);
    }
    out.extend_from_slice(line.as_bytes());
    out.extend_from_slice(b"\r\n");
    Ok(())
}

fn put_rest(out: &mut Vec<u8>, words: &[&[u8]]) {
    for word in words {
        out.push(b' ');
        out.extend_from_slice(word);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes a blank and a number.
pub(super) fn put_number(out: &mut Vec<u8>, number: impl itoa::Integer) {
    out.push(b' ');
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_documented_bytes() {
        let mut out = Vec::new();
        let get = |versions, touch| TextFetch { versions, touch };
        put_get(&mut out, get(false, None), &[b"a", b"b"]).unwrap();
        put_get(&mut out, get(true, None), &[b"a"]).unwrap();
        put_get(&mut out, get(false, Some(-1)), &[b"a"]).unwrap();
        put_get(&mut out, get(true, Some(60)), &[b"a", b"b"]).unwrap();
        assert_eq!(out, b"get a b\r\ngets a\r\ngat -1 a\r\ngats 60 a b\r\n");
        out.clear();
        let store = TextStore { verb: StoreVerb::Set, key: b"k", value: b"abc", flags: 7, exptime: -1 };
        put_store(&mut out, &store, false).unwrap();
        let empty = TextStore { key: b"k", ..TextStore::default() };
        put_store(&mut out, &TextStore { verb: StoreVerb::Cas(u64::MAX), ..empty }, true).unwrap();
        assert_eq!(out, b"set k 7 -1 3\r\nabc\r\ncas k 0 0 0 18446744073709551615 noreply\r\n\r\n");
        for (verb, word) in [
            (StoreVerb::Add, &b"add"[..]),
            (StoreVerb::Replace, b"replace"),
            (StoreVerb::Append, b"append"),
            (StoreVerb::Prepend, b"prepend"),
        ] {
            out.clear();
            put_store(&mut out, &TextStore { verb, ..empty }, false).unwrap();
            assert_eq!(out, [word, b" k 0 0 0\r\n\r\n"].concat());
        }
        out.clear();
        put_words(&mut out, "version", &[]).unwrap();
        put_words(&mut out, "incr", &[b"k", b"5"]).unwrap();
        put_line(&mut out, "verbosity 1").unwrap();
        assert_eq!(out, b"version\r\nincr k 5\r\nverbosity 1\r\n");
    }

    #[test]
    fn invalid_request_leaves_the_buffer_unchanged() {
        let mut out = b"before".to_vec();
        let long = [b'k'; 251];
        for key in [&b""[..], b"a b", b"a\r\nflush_all", b"\0", &long] {
            assert_eq!(put_get(&mut out, TextFetch::default(), &[b"fine", key]), Err(InvalidRequest::Key));
            assert_eq!(
                put_store(&mut out, &TextStore { key, ..TextStore::default() }, false),
                Err(InvalidRequest::Key)
            );
            assert_eq!(put_words(&mut out, "delete", &[key]), Err(InvalidRequest::Key));
        }
        assert_eq!(put_get(&mut out, TextFetch::default(), &[]), Err(InvalidRequest::Key));
        for line in ["", "a\nb", "a\r"] {
            assert_eq!(put_line(&mut out, line), Err(InvalidRequest::Line));
        }
        assert_eq!(out, b"before");
    }
}
