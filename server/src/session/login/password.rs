//! Reads, creates and checks hashed passwords of a file. They are hashed with Argon2id, in the
//! usual notation (`$argon2id$v=19$m=7168,t=5,p=1$SALT$HASH`).

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use std::io;

/// The cost of a new hash: 7 MiB of memory, five passes, one lane. Of OWASP's recommended settings
/// (2023), this one needs the least memory, because a cache may have only 64 MiB. A check takes
/// about 10 ms (November 2026, 2 cores of a cloud machine).
const MEMORY_KIB: u32 = 7 << 10;
const PASSES: u32 = 5;

/// The maximum cost of a hash in a file, so that a typing error can neither use all memory nor take
/// hours.
const MEMORY_KIB_MAX: u32 = 256 << 10;
const WORK_KIB_MAX: u64 = 4 << 20;

/// The beginning of a hashed password.
pub(super) const PREFIX: &str = "$argon2";

/// A hashed password.
#[derive(Clone, Debug)]
pub(super) struct HashedPassword {
    hash: PasswordHash,
    /// The cost of a check: the product of its memory in KiB and its passes.
    work_kib: u64,
}

/// Hashes a password with a new salt. Takes as long as a check.
pub(super) fn hash(password: &[u8]) -> io::Result<String> {
    let params = Params::new(MEMORY_KIB, PASSES, 1, None).map_err(io::Error::other)?;
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let hash: PasswordHash = argon2.hash_password(password).map_err(io::Error::other)?;
    Ok(hash.to_string())
}

impl HashedPassword {
    /// Parses a hash; the error names the problem.
    pub(super) fn read(text: &str) -> Result<HashedPassword, String> {
        let hash = PasswordHash::new(text).map_err(|error| error.to_string())?;
        if hash.salt.is_none() || hash.hash.is_none() {
            return Err("salt or hash is missing".into());
        }
        Algorithm::try_from(hash.algorithm.as_str()).map_err(|_| "hash is not Argon2")?;
        hash.version.map_or(Ok(Version::default()), Version::try_from).map_err(|error| error.to_string())?;
        let params = Params::try_from(&hash).map_err(|error| error.to_string())?;
        let work_kib = u64::from(params.m_cost()) * u64::from(params.t_cost());
        if params.m_cost() > MEMORY_KIB_MAX || work_kib > WORK_KIB_MAX {
            return Err(format!(
                "hash with m={} and t={} is too expensive; use at most {MEMORY_KIB_MAX} KiB, and {WORK_KIB_MAX} KiB over all passes",
                params.m_cost(),
                params.t_cost(),
            ));
        }
        Ok(HashedPassword { hash, work_kib })
    }

    /// Returns true if this is the hash of `password`. Takes milliseconds and memory, depending on
    /// the parameters of the hash.
    pub(super) fn is_of(&self, password: &[u8]) -> bool {
        Argon2::default().verify_password(password, &self.hash).is_ok()
    }

    /// Returns the cost of a check: the product of its memory in KiB and its passes.
    pub(super) fn work_kib(&self) -> u64 {
        self.work_kib
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_salted_and_fits_one_password() {
        let (first, second) = (hash(b"secret").unwrap(), hash(b"secret").unwrap());
        assert!(first.starts_with("$argon2id$v=19$m=7168,t=5,p=1$"), "{first}");
        assert_ne!(first, second);
        let hashed = HashedPassword::read(&first).unwrap();
        assert!(hashed.is_of(b"secret"));
        assert!(!hashed.is_of(b"Secret") && !hashed.is_of(b"") && !hashed.is_of(b"secret\0"));
    }

    #[test]
    fn hash_by_another_tool_is_accepted() {
        // The hash was created by Python's argon2-cffi: PasswordHasher(time_cost=2, memory_cost=64,
        // parallelism=2, salt_len=8).
        let text = "$argon2id$v=19$m=64,t=2,p=2$c2FsdHNhbHQ$lpUkiWjHnXtDFt/D+q2Fh/Qb5zkgFeDCaryaiBgnU0o";
        let hashed = HashedPassword::read(text).unwrap();
        assert_eq!(hashed.work_kib(), 128);
        assert!(hashed.is_of(b"secret"));
    }

    #[test]
    fn invalid_or_expensive_hash_is_refused() {
        let salt_and_hash = "c2FsdHNhbHQ$lpUkiWjHnXtDFt/D+q2Fh/Qb5zkgFeDCaryaiBgnU0o";
        for head in [
            "$argon2id$v=19$m=4194304,t=1,p=1",
            "$argon2id$v=19$m=65536,t=4000,p=1",
            "$argon2id$v=19$m=0,t=1,p=1",
            "$argon2x$v=19$m=64,t=1,p=1",
            "$argon2id$v=7$m=64,t=1,p=1",
            "$scrypt$ln=4,r=8,p=1",
        ] {
            assert!(HashedPassword::read(&format!("{head}${salt_and_hash}")).is_err(), "{head}");
        }
        for text in
            ["", "$", "$argon2id", "$argon2id$v=19$m=64,t=1,p=1", "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ"]
        {
            assert!(HashedPassword::read(text).is_err(), "{text}");
        }
    }
}
