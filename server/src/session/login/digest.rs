//! Computes keyed digests of passwords. Digests are compared instead of passwords. The key never
//! leaves the process.
//!
//! Equal digests mean equal passwords. All digests have the same length, and are compared in
//! constant time.

use argon2::password_hash::try_generate_salt;
use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};
use std::io;

pub(super) type CredentialDigest = [u8; 32];

/// The key of the digests. A new one is generated each time a file of users is read.
pub(super) struct DigestKey([u8; 32]);

impl DigestKey {
    /// Generates a key from the system's random numbers.
    pub(super) fn generate() -> io::Result<DigestKey> {
        let mut key = [0; 32];
        for half in key.chunks_exact_mut(16) {
            half.copy_from_slice(&try_generate_salt().map_err(io::Error::other)?);
        }
        Ok(DigestKey(key))
    }

    fn mac(&self, user: &[u8], password: &[u8]) -> Blake2sMac256 {
        let mut mac = Blake2sMac256::new(&self.0.into());
        // The length of the name distinguishes the user `ab` with password `c` from the user `a`
        // with password `bc`.
        mac.update(&(user.len() as u64).to_be_bytes());
        mac.update(user);
        mac.update(password);
        mac
    }

    pub(super) fn digest(&self, user: &[u8], password: &[u8]) -> CredentialDigest {
        self.mac(user, password).finalize().into_bytes().into()
    }

    /// Returns true if this is the digest of the user and the password.
    pub(super) fn is_of(&self, digest: &CredentialDigest, user: &[u8], password: &[u8]) -> bool {
        self.mac(user, password).verify(digest.into()).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_depends_on_user_password_and_key() {
        let (key, other) = (DigestKey::generate().unwrap(), DigestKey::generate().unwrap());
        let digest = key.digest(b"ab", b"c");
        assert!(key.is_of(&digest, b"ab", b"c"));
        for (user, password) in [("a", "bc"), ("abc", ""), ("", "abc"), ("ab", "d"), ("ab", "c ")] {
            assert!(!key.is_of(&digest, user.as_bytes(), password.as_bytes()), "{user} {password}");
        }
        assert!(!other.is_of(&digest, b"ab", b"c"));
    }
}
