//! Reads the password file for SASL. Its lines are `user:password`. The password is hashed (see
//! [`password`](super::password)) or, as in memcached's own file, plain.
//!
//! After a successful login, a digest of the user's password is kept. Later logins compare digests,
//! so a client that connects for each request costs one slow check and not thousands. The digests
//! are dropped when the file is read again.

use super::LoginError;
use super::digest::{CredentialDigest, DigestKey};
use super::password::{HashedPassword, PREFIX};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

/// The known users.
pub(crate) struct PasswordFile {
    key: DigestKey,
    users: HashMap<Vec<u8>, PasswordUser>,
    /// The hash that is checked for users that are unknown or have no hash.
    decoy: Option<HashedPassword>,
}

struct PasswordUser {
    hashed: Option<HashedPassword>,
    /// The digest of the password; set after the first successful check.
    digest: OnceLock<CredentialDigest>,
}

/// The result of a quick check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuickVerdict {
    Known,
    Unknown,
    /// Only a slow check can decide.
    Unsure,
}

impl PasswordFile {
    /// Reads the file. An error names the line.
    pub(super) fn read(path: &Path) -> Result<PasswordFile, LoginError> {
        let shown = path.display();
        let unreadable = |error: io::Error| LoginError(format!("{shown}: passwords cannot be read: {error}"));
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
                .ok_or_else(|| wrong("must be USER:PASSWORD"))?;
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
                return Err(wrong("user has an earlier line"));
            }
        }
        if plain > 0 {
            tracing::info!(
                "{shown}: {plain} passwords are not hashed; hash each with `todana password USER`"
            );
        }
        // The most expensive hash is chosen. It is like the hashes of most users if one tool
        // created all of them.
        let hashes = users.values().filter_map(|user: &PasswordUser| user.hashed.as_ref());
        let decoy = hashes.max_by_key(|hashed| hashed.work_kib()).cloned();
        Ok(PasswordFile { key, users, decoy })
    }

    /// Checks whether a user has this password, without computing a slow hash.
    pub(super) fn check_quickly(&self, user: &[u8], password: &[u8]) -> QuickVerdict {
        let digest = self.users.get(user).and_then(|user| user.digest.get());
        match (digest, &self.decoy) {
            (Some(digest), _) if self.key.is_of(digest, user, password) => QuickVerdict::Known,
            (_, None) => QuickVerdict::Unknown,
            // Unknown users, and users without a hash, get a slow check, too, so that all failures
            // take the same time.
            (_, Some(_)) => QuickVerdict::Unsure,
        }
    }

    /// Checks whether a user has this password. A slow check takes milliseconds, also for unknown
    /// users.
    pub(super) fn check(&self, user: &[u8], password: &[u8]) -> bool {
        match self.check_quickly(user, password) {
            // Another connection may have completed a check with the same password meanwhile.
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

    /// The hash of `secret`, with a low cost.
    const HASH: &str = "$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$vk+JgWgZGbXHtEqPQPhzXbD+QxxkJR5Fq2AXLhDyYaY";

    fn read(text: &str) -> Result<PasswordFile, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().display().to_string();
        PasswordFile::read(file.path()).map_err(|error| error.to_string().replace(&path, "FILE"))
    }

    #[test]
    fn hashed_password_is_checked_slowly_once() {
        let passwords = read(&format!("# users\n\nalice:{HASH}\r\n")).unwrap();
        assert_eq!(passwords.check_quickly(b"alice", b"secret"), QuickVerdict::Unsure);
        assert!(!passwords.check(b"alice", b"wrong"));
        assert_eq!(passwords.check_quickly(b"alice", b"secret"), QuickVerdict::Unsure);
        assert!(passwords.check(b"alice", b"secret"));
        assert_eq!(passwords.check_quickly(b"alice", b"secret"), QuickVerdict::Known);
        assert_eq!(passwords.check_quickly(b"alice", b"wrong"), QuickVerdict::Unsure);
        assert!(!passwords.check(b"alice", b"wrong"));
    }

    #[test]
    fn failures_are_all_checked_slowly() {
        let passwords = read(&format!("alice:{HASH}\nbob:plain\n")).unwrap();
        assert_eq!(passwords.check_quickly(b"bob", b"plain"), QuickVerdict::Known);
        for (user, password) in [("alice", "wrong"), ("bob", "secret"), ("nobody", "secret"), ("", "")] {
            let (user, password) = (user.as_bytes(), password.as_bytes());
            assert_eq!(passwords.check_quickly(user, password), QuickVerdict::Unsure);
            // `secret` is the password of the decoy's hash, and must not admit any user.
            assert!(!passwords.check(user, password));
        }
    }

    #[test]
    fn plain_password_ends_at_a_blank() {
        let passwords = read("alice:secret \nbob:se:cret\nempty:\n").unwrap();
        assert_eq!(passwords.check_quickly(b"alice", b"secret"), QuickVerdict::Known);
        assert_eq!(passwords.check_quickly(b"bob", b"se:cret"), QuickVerdict::Known);
        assert_eq!(passwords.check_quickly(b"empty", b""), QuickVerdict::Known);
        assert_eq!(passwords.check_quickly(b"alice", b"secret "), QuickVerdict::Unknown);
        assert_eq!(passwords.check_quickly(b"nobody", b""), QuickVerdict::Unknown);
        assert!(!passwords.check(b"nobody", b""));
    }

    #[test]
    fn errors_name_the_line() {
        for (text, message) in [
            ("alice:a\nbob\n", "FILE, line 2: must be USER:PASSWORD"),
            ("\n:a\n", "FILE, line 2: must be USER:PASSWORD"),
            ("alice:a\nalice:b\n", "FILE, line 2: user has an earlier line"),
            ("alice:$argon2id$v=19$m=8,t=1,p=1\n", "FILE, line 1: salt or hash is missing"),
        ] {
            assert_eq!(read(text).err().as_deref(), Some(message));
        }
        let error = PasswordFile::read(Path::new("/nowhere/users")).err().unwrap().to_string();
        assert!(error.starts_with("/nowhere/users: passwords cannot be read: "), "{error}");
    }
}
