//! Requests of the text dialect.

use super::request::{Invalid, check_key};

/// Which storage command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verb {
    /// Whatever is there is replaced.
    #[default]
    Set,
    /// Only if nothing is there.
    Add,
    /// Only if something is there.
    Replace,
    /// Behind the old value.
    Append,
    /// Before the old value.
    Prepend,
    /// Only if the version is this.
    Cas(u64),
}

/// A record to store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Store<'a> {
    /// How.
    pub verb: Verb,
    /// The key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// memcached's exptime: 0 never, up to 30 days in seconds, above that a Unix time.
    pub exptime: i64,
}

/// How records are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetch {
    /// With their versions (`gets`, `gats`).
    pub versions: bool,
    /// They get this exptime (`gat`, `gats`).
    pub touch: Option<i64>,
}

/// Writes `get`, `gets`, `gat` or `gats` of one or more keys.
pub fn put_get(out: &mut Vec<u8>, fetch: Fetch, keys: &[&[u8]]) -> Result<(), Invalid> {
    if keys.is_empty() {
        return Err(Invalid::Key);
    }
    keys.iter().try_for_each(|key| check_key(key))?;
    out.extend_from_slice(match fetch {
        Fetch { versions: false, touch: None } => b"get",
        Fetch { versions: true, touch: None } => b"gets",
        Fetch { versions: false, touch: Some(_) } => b"gat",
        Fetch { versions: true, touch: Some(_) } => b"gats",
    });
    if let Some(exptime) = fetch.touch {
        put_number(out, exptime);
    }
    put_rest(out, keys);
    Ok(())
}

/// Writes a storage command. With `noreply` the server answers nothing, or by an error that nobody awaits: better
/// only where nothing can go wrong.
pub fn put_store(out: &mut Vec<u8>, store: &Store<'_>, noreply: bool) -> Result<(), Invalid> {
    check_key(store.key)?;
    let (verb, version): (&[u8], _) = match store.verb {
        Verb::Set => (b"set ", None),
        Verb::Add => (b"add ", None),
        Verb::Replace => (b"replace ", None),
        Verb::Append => (b"append ", None),
        Verb::Prepend => (b"prepend ", None),
        Verb::Cas(version) => (b"cas ", Some(version)),
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

/// Writes a command and its words: `delete KEY`, `incr KEY 5`, `touch KEY 60`, `version`, `stats items` ... The words are
/// checked as keys are, so what holds for keys holds for the others too.
pub fn put_words(out: &mut Vec<u8>, verb: &str, words: &[&[u8]]) -> Result<(), Invalid> {
    words.iter().try_for_each(|word| check_key(word))?;
    out.extend_from_slice(verb.as_bytes());
    put_rest(out, words);
    Ok(())
}

/// Writes a whole line as it stands, for what has no function of its own: `flush_all 10`, `verbosity 1`, `quit`.
pub fn put_line(out: &mut Vec<u8>, line: &str) -> Result<(), Invalid> {
    if line.is_empty() || line.contains(['\r', '\n']) {
        return Err(Invalid::Line);
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
    fn requests_read_as_the_protocol_says() {
        let mut out = Vec::new();
        let get = |versions, touch| Fetch { versions, touch };
        put_get(&mut out, get(false, None), &[b"a", b"b"]).unwrap();
        put_get(&mut out, get(true, None), &[b"a"]).unwrap();
        put_get(&mut out, get(false, Some(-1)), &[b"a"]).unwrap();
        put_get(&mut out, get(true, Some(60)), &[b"a", b"b"]).unwrap();
        assert_eq!(out, b"get a b\r\ngets a\r\ngat -1 a\r\ngats 60 a b\r\n");
        out.clear();
        let store = Store { verb: Verb::Set, key: b"k", value: b"abc", flags: 7, exptime: -1 };
        put_store(&mut out, &store, false).unwrap();
        let empty = Store { key: b"k", ..Store::default() };
        put_store(&mut out, &Store { verb: Verb::Cas(u64::MAX), ..empty }, true).unwrap();
        assert_eq!(out, b"set k 7 -1 3\r\nabc\r\ncas k 0 0 0 18446744073709551615 noreply\r\n\r\n");
        for (verb, word) in [
            (Verb::Add, &b"add"[..]),
            (Verb::Replace, b"replace"),
            (Verb::Append, b"append"),
            (Verb::Prepend, b"prepend"),
        ] {
            out.clear();
            put_store(&mut out, &Store { verb, ..empty }, false).unwrap();
            assert_eq!(out, [word, b" k 0 0 0\r\n\r\n"].concat());
        }
        out.clear();
        put_words(&mut out, "version", &[]).unwrap();
        put_words(&mut out, "incr", &[b"k", b"5"]).unwrap();
        put_line(&mut out, "verbosity 1").unwrap();
        assert_eq!(out, b"version\r\nincr k 5\r\nverbosity 1\r\n");
    }

    #[test]
    fn what_cannot_be_sent_leaves_the_buffer_as_it_was() {
        let mut out = b"before".to_vec();
        let long = [b'k'; 251];
        for key in [&b""[..], b"a b", b"a\r\nflush_all", b"\0", &long] {
            assert_eq!(put_get(&mut out, Fetch::default(), &[b"fine", key]), Err(Invalid::Key));
            assert_eq!(put_store(&mut out, &Store { key, ..Store::default() }, false), Err(Invalid::Key));
            assert_eq!(put_words(&mut out, "delete", &[key]), Err(Invalid::Key));
        }
        assert_eq!(put_get(&mut out, Fetch::default(), &[]), Err(Invalid::Key));
        for line in ["", "a\nb", "a\r"] {
            assert_eq!(put_line(&mut out, line), Err(Invalid::Line));
        }
        assert_eq!(out, b"before");
    }
}
