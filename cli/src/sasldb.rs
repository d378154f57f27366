//! Reads the user database of Cyrus SASL (`/etc/sasldb2`), as the command `db_dump -p` of Berkeley
//! DB prints it.
//!
//! ```text
//! HEADER=END
//!  alice\00example.org\00userPassword      a key: user, realm, property
//!  secret                                  the value of this key
//! DATA=END
//! ```

use std::collections::BTreeMap;

/// The names of users as clients send them, each with the password.
type SaslUsers = Vec<(String, Vec<u8>)>;

/// Returns the users of a dump, each with the name `user@realm`. As in Cyrus SASL, clients may also
/// send only `user` for a user in the realm of this host. If no user of this name is in that realm,
/// and only one is in another, `user` means the other one.
pub(crate) fn users(dump: &[u8], host: &str) -> Result<SaslUsers, String> {
    let lines: Vec<&[u8]> = dump.split(|&byte| byte == b'\n').collect();
    let begin = lines.iter().position(|line| line == b"HEADER=END").ok_or(NO_DUMP)? + 1;
    let end = lines.iter().position(|line| line == b"DATA=END").ok_or(NO_DUMP)?;
    let mut realms: BTreeMap<String, BTreeMap<String, Vec<u8>>> = BTreeMap::new();
    for pair in lines.get(begin..end).ok_or(NO_DUMP)?.chunks(2) {
        let &[key, value] = pair else { return Err(NO_DUMP.into()) };
        let key = String::from_utf8(bytes(key)?)
            .map_err(|error| format!("user {:?}: not UTF-8", String::from_utf8_lossy(error.as_bytes())))?;
        if let [user, realm, "userPassword"] = key.split('\0').collect::<Vec<_>>()[..] {
            realms.entry(user.into()).or_default().insert(realm.into(), bytes(value)?);
        }
    }
    let mut users = SaslUsers::new();
    for (user, passwords) in realms {
        let only = passwords.values().next().filter(|_| passwords.len() == 1);
        if let Some(password) = passwords.get(host).or(only) {
            users.push((user.clone(), password.clone()));
        }
        users.extend(passwords.into_iter().map(|(realm, password)| (format!("{user}@{realm}"), password)));
    }
    Ok(users)
}

const NO_DUMP: &str = "standard input: not a complete dump; pipe `db_dump -p /etc/sasldb2` into it";

/// Decodes a line of the dump: `\\` is a backslash, and `\xx` a byte in hexadecimal.
fn bytes(line: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut rest = line.strip_prefix(b" ").ok_or(NO_DUMP)?;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'\\' {
            bytes.push(first);
        } else if let Some(after) = rest.strip_prefix(b"\\") {
            bytes.push(b'\\');
            rest = after;
        } else {
            let hex = rest.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
            bytes.push(hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).ok_or(NO_DUMP)?);
            rest = &rest[2..];
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "VERSION=3\nformat=print\ntype=hash\ndb_pagesize=4096\nHEADER=END\n";

    #[test]
    fn users_have_names_with_and_without_realm() {
        let dump = format!(
            "{HEAD} bob\\00a.org\\00userPassword\n one\n bob\\00b.org\\00userPassword\n two\n \
             alice\\00host\\00userPassword\n s\\5cec\\\\r\\c3\\a9t \n alice\\00host\\00other\n x\n \
             carol\\00a.org\\00userPassword\n a\n carol\\00host\\00userPassword\n h\nDATA=END\n"
        );
        let expected: [(&str, &[u8]); 7] = [
            ("alice", b"s\\ec\\r\xc3\xa9t "),
            ("alice@host", b"s\\ec\\r\xc3\xa9t "),
            ("bob@a.org", b"one"),
            ("bob@b.org", b"two"),
            ("carol", b"h"),
            ("carol@a.org", b"a"),
            ("carol@host", b"h"),
        ];
        let expected = expected.map(|(user, password)| (user.to_string(), password.to_vec()));
        assert_eq!(users(dump.as_bytes(), "host").unwrap(), expected);
    }

    #[test]
    fn incomplete_dump_is_refused() {
        for text in [
            "",
            "alice:secret\n",
            HEAD,
            "DATA=END\nHEADER=END\n",
            &format!("{HEAD} key\nDATA=END\n"),
            &format!("{HEAD} k\\0\n v\nDATA=END\n"),
            &format!("{HEAD}k\nv\nDATA=END\n"),
        ] {
            assert_eq!(users(text.as_bytes(), "host").unwrap_err(), NO_DUMP, "{text}");
        }
        assert_eq!(users(format!("{HEAD}DATA=END\n").as_bytes(), "host").unwrap(), []);
    }
}
