//! The password file for SASL: lines `user:password`, the password hashed (see [`password`](super::password)) or, as in
//! memcached's own file, plain.
//!
//! Whoever has logged in once is known by a digest from then on, so that a client that connects for each request costs
//! one slow check and not thousands. It is forgotten when the file is read again.

use super::LoginError;
use super::digest::{CredentialDigest, DigestKey};
use super::password::{HashedPassword, PREFIX};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

/// What users are known, and how.
pub(crate) struct PasswordFile {
    key: DigestKey,
    users: HashMap<Vec<u8>, PasswordUser>,
    /// What is checked in the place of a user that there is not, or that has no hash.
    decoy: Option<HashedPassword>,
}

struct PasswordUser {
    hashed: Option<HashedPassword>,
    /// Of the password, once it is known.
    digest: OnceLock<CredentialDigest>,
}

/// What a quick look says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuickVerdict {
    Known,
    Unknown,
    /// Only the slow way tells.
    Unsure,
}

impl PasswordFile {
    /// Reads the file. An error names the line.
    pub(super) fn read(path: &Path) -> Result<PasswordFile, LoginError> {
        let shown = path.display();
        let unreadable =
            |error: io::Error| LoginError(format!("cannot read passwords from {shown}: {error}"));
        let text = super::read_file(path).map_err(unreadable)?;
        let key = DigestKey::generate().map_err(unreadable)?;
        let mut users = HashMap::new();
        let mut plain = 0;
        for (index, line) in super::lines(&text).enumerate() {
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let wrong = |what: &str| LoginError(format!("{shown}, line {}: {what}", index + 1));
            let colon = line.iter().position(|&byte| byte == b':');
            let (user, password) = colon
                .map(|at| (&line[..at], &line[at + 1..]))
                .filter(|(user, _)| !user.is_empty())
                .ok_or_else(|| wrong("it should be USER:PASSWORD"))?;
            let digest = OnceLock::new();
            let hashed = if password.starts_with(PREFIX.as_bytes()) {
                let text = std::str::from_utf8(password).map_err(|_| wrong("the hash is not text"))?;
                Some(HashedPassword::read(text.trim_end()).map_err(|error| wrong(&error))?)
            } else {
                plain += 1;
                // memcached's passwords end at the first blank.
                let end = password.iter().position(u8::is_ascii_whitespace).unwrap_or(password.len());
                let _ = digest.set(key.digest(user, &password[..end]));
                None
            };
            if users.insert(user.to_vec(), PasswordUser { hashed, digest }).is_some() {
                return Err(wrong("this user has a line already"));
            }
        }
        if plain > 0 {
            tracing::info!("{shown}: {plain} passwords are not hashed; `todana password USER` hashes one");
        }
        // The dearest, which is that of most users where all were made by one tool.
        let hashes = users.values().filter_map(|user: &PasswordUser| user.hashed.as_ref());
        let decoy = hashes.max_by_key(|hashed| hashed.work_kib()).cloned();
        Ok(PasswordFile { key, users, decoy })
    }

    /// Looks whether a user has this password, as far as that is told in a microsecond.
    pub(super) fn glance(&self, user: &[u8], password: &[u8]) -> QuickVerdict {
        let digest = self.users.get(user).and_then(|user| user.digest.get());
        match (digest, &self.decoy) {
            (Some(digest), _) if self.key.is_of(digest, user, password) => QuickVerdict::Known,
            (_, None) => QuickVerdict::Unknown,
            // Also for who has no hash and who does not exist: all failures shall take the same time.
            (_, Some(_)) => QuickVerdict::Unsure,
        }
    }

    /// Whether a user has this password: the slow way, which takes milliseconds, as many for users that there are not.
    pub(super) fn check(&self, user: &[u8], password: &[u8]) -> bool {
        match self.glance(user, password) {
            // Of many who came at once with the same password, one is enough.
            QuickVerdict::Known => return true,
            QuickVerdict::Unknown => return false,
            QuickVerdict::Unsure => {}
        }
        let found = self.users.get(user).and_then(|user| Some((user, user.hashed.as_ref()?)));
        let Some(hashed) = found.map(|(_, hashed)| hashed).or(self.decoy.as_ref()) else { return false };
        let is_theirs = hashed.is_of(password);
        match found {
            Some((found, _)) if is_theirs => {
                let _ = found.digest.set(self.key.digest(user, password));
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the password `secret`, cheap.
    const HASH: &str = "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$vk+JgWgZGbXHtEqPQPhzXbD+QxxkJR5Fq2AXLhDyYaY";

    fn read(text: &str) -> Result<PasswordFile, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().display().to_string();
        PasswordFile::read(file.path()).map_err(|error| error.to_string().replace(&path, "FILE"))
    }

    #[test]
    fn a_hashed_password_is_checked_slowly_once() {
        let passwords = read(&format!("# users\n\nalice:{HASH}\r\n")).unwrap();
        assert_eq!(passwords.glance(b"alice", b"secret"), QuickVerdict::Unsure);
        assert!(!passwords.check(b"alice", b"wrong"));
        assert_eq!(passwords.glance(b"alice", b"secret"), QuickVerdict::Unsure);
        assert!(passwords.check(b"alice", b"secret"));
        assert_eq!(passwords.glance(b"alice", b"secret"), QuickVerdict::Known);
        assert_eq!(passwords.glance(b"alice", b"wrong"), QuickVerdict::Unsure);
        assert!(!passwords.check(b"alice", b"wrong"));
    }

    #[test]
    fn all_failures_go_the_slow_way_where_there_is_a_hash() {
        let passwords = read(&format!("alice:{HASH}\nbob:plain\n")).unwrap();
        assert_eq!(passwords.glance(b"bob", b"plain"), QuickVerdict::Known);
        for (user, password) in [("alice", "wrong"), ("bob", "secret"), ("nobody", "secret"), ("", "")] {
            let (user, password) = (user.as_bytes(), password.as_bytes());
            assert_eq!(passwords.glance(user, password), QuickVerdict::Unsure);
            // `secret` is the password of the decoy, which helps nobody.
            assert!(!passwords.check(user, password));
        }
    }

    #[test]
    fn plain_passwords_end_at_a_blank_and_are_known_at_once() {
        let passwords = read("alice:secret \nbob:se:cret\nempty:\n").unwrap();
        assert_eq!(passwords.glance(b"alice", b"secret"), QuickVerdict::Known);
        assert_eq!(passwords.glance(b"bob", b"se:cret"), QuickVerdict::Known);
        assert_eq!(passwords.glance(b"empty", b""), QuickVerdict::Known);
        assert_eq!(passwords.glance(b"alice", b"secret "), QuickVerdict::Unknown);
        assert_eq!(passwords.glance(b"nobody", b""), QuickVerdict::Unknown);
        assert!(!passwords.check(b"nobody", b""));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, message) in [
            ("alice:a\nbob\n", "FILE, line 2: it should be USER:PASSWORD"),
            ("\n:a\n", "FILE, line 2: it should be USER:PASSWORD"),
            ("alice:a\nalice:b\n", "FILE, line 2: this user has a line already"),
            ("alice:$argon2id$v=19$m=8,t=1,p=1\n", "FILE, line 1: salt or hash is missing"),
        ] {
            assert_eq!(read(text).err().as_deref(), Some(message));
        }
        let error = PasswordFile::read(Path::new("/nowhere/users")).err().unwrap().to_string();
        assert!(error.starts_with("cannot read passwords from /nowhere/users: "), "{error}");
    }
}
