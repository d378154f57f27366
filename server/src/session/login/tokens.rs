//! Reads the file of users for the text dialect (`-Y`). Its lines are `user:password`; only the
//! first eight count.

use super::LoginError;
use super::digest::{CredentialDigest, DigestKey};
use std::io;
use std::path::Path;

/// The maximum number of users. Further lines are ignored, as in memcached.
const USERS_MAX: usize = 8;

/// The known names and passwords.
pub(crate) struct LoginTokens {
    key: DigestKey,
    digests: Vec<CredentialDigest>,
}

impl LoginTokens {
    /// Reads the file. Errors have memcached's texts.
    pub(super) fn read(path: &Path) -> Result<LoginTokens, LoginError> {
        let shown = path.display();
        let unreadable = |error: io::Error| {
            // The text is that of the system, without the number that Rust appends.
            let text = error.to_string();
            let reason = text.split(" (os error").next().unwrap_or_default();
            LoginError(format!("Could not open authfile [{shown}] for reading, error {reason}"))
        };
        let text = super::read_file(path).map_err(unreadable)?;
        let key = DigestKey::generate().map_err(unreadable)?;
        let mut digests = Vec::new();
        for (index, line) in super::lines(&text).enumerate() {
            if index == USERS_MAX {
                tracing::warn!(
                    "{shown}: only the first {USERS_MAX} users can log in; the others are ignored"
                );
                break;
            }
            let parts = line.iter().position(|&byte| byte == b':').map(|at| (&line[..at], &line[at + 1..]));
            // A client's token consists of both words, so a user with an empty name or password
            // could never log in.
            let Some((user, password)) =
                parts.filter(|(user, password)| !user.is_empty() && !password.is_empty())
            else {
                let text = format!("Authfile [{shown}] has a malformed entry. Should be 'user:password'");
                return Err(LoginError(text));
            };
            digests.push(key.digest(user, password));
        }
        Ok(LoginTokens { key, digests })
    }

    /// Returns true if a user has this password. Takes the same time for all unknown users.
    pub(super) fn admits(&self, user: &[u8], password: &[u8]) -> bool {
        let is_of = |digest| self.key.is_of(digest, user, password);
        // All digests are compared, so that the time does not reveal which one matches.
        self.digests.iter().map(is_of).fold(false, |any, is| any | is)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<LoginTokens, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().display().to_string();
        LoginTokens::read(file.path()).map_err(|error| error.to_string().replace(&path, "FILE"))
    }

    #[test]
    fn users_have_the_passwords_of_their_lines() {
        let tokens = read("alice:secret\r\nbob:with:colon\ncarol:two words\ncarol:other").unwrap();
        for (user, password, known) in [
            ("alice", "secret", true),
            ("bob", "with:colon", true),
            ("carol", "two words", true),
            ("carol", "other", true),
            ("alice", "secre", false),
            ("alice", "secrets", false),
            ("alice", "", false),
            ("bob", "secret", false),
            ("nobody", "secret", false),
            ("", "", false),
        ] {
            assert_eq!(tokens.admits(user.as_bytes(), password.as_bytes()), known, "{user} {password}");
        }
        assert!(!read("").unwrap().admits(b"", b""));
    }

    #[test]
    fn first_eight_lines_count() {
        let text: String = (0..10).map(|user| format!("u{user}:p\n")).collect();
        let tokens = read(&text).unwrap();
        assert!(tokens.admits(b"u7", b"p"));
        assert!(!tokens.admits(b"u8", b"p"));
    }

    #[test]
    fn errors_are_in_memcached_words() {
        for text in
            ["alice", "alice:secret\n\nbob:secret\n", "# users\nalice:secret\n", ":secret", "alice:\n"]
        {
            let error = read(text).err();
            assert_eq!(
                error.as_deref(),
                Some("Authfile [FILE] has a malformed entry. Should be 'user:password'"),
                "{text:?}"
            );
        }
        let error = LoginTokens::read(Path::new("/nowhere/users")).err().unwrap();
        assert_eq!(
            error.to_string(),
            "Could not open authfile [/nowhere/users] for reading, error No such file or directory"
        );
    }
}
