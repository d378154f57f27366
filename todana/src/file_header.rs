//! The fields that the headers of our files and streams have in common (docs/format/): the first
//! fields and the last one.
//!
//! ```text
//! magic (8) | version (4) | header length (4) | database id (16) | server id (4) | ...
//! ... | crc32c of all bytes before (4)
//! ```

use crate::disk::Disk;
use crate::update_log::DatabaseIdentity;
use std::io::{self, IoSlice};
use std::path::Path;

/// Writes a small file atomically: after a crash it has either its old or its new contents.
pub(crate) fn write_atomically(
    disk: &dyn Disk,
    directory: &Path,
    name: &str,
    bytes: &[u8],
) -> io::Result<()> {
    let (partial, path) = (directory.join(format!("{name}.partial")), directory.join(name));
    if let Err(error) = disk.remove(&partial)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let file = disk.create(&partial)?;
    file.write_at(0, &mut [IoSlice::new(bytes)])?;
    file.sync()?;
    disk.rename(&partial, &path)?;
    disk.sync_directory(directory)
}

/// Describes a header of `LEN` bytes.
pub(crate) struct HeaderFormat<const LEN: usize> {
    pub(crate) magic: [u8; 8],
    /// The version that is written.
    pub(crate) version: u32,
    /// The oldest version that can be read.
    pub(crate) oldest: u32,
    /// The name of the format, for messages.
    pub(crate) what: &'static str,
}

impl<const LEN: usize> HeaderFormat<LEN> {
    /// Returns a header that contains the common first fields, and otherwise zeros.
    pub(crate) fn begin(&self, identity: &DatabaseIdentity) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&self.magic);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&(LEN as u32).to_le_bytes());
        bytes[16..32].copy_from_slice(&identity.database_id);
        bytes[32..36].copy_from_slice(&identity.server_id.to_le_bytes());
        bytes
    }

    /// Checks a header and returns its identity. The error is a text that states the problem.
    /// `zeros` are offsets at each of which four bytes must be zero.
    pub(crate) fn check(&self, bytes: &[u8; LEN], zeros: &[usize]) -> Result<DatabaseIdentity, String> {
        let HeaderFormat { magic, what, .. } = self;
        if bytes[..8] != *magic {
            return Err(format!("not a {what}"));
        }
        if crc32c::crc32c(&bytes[..LEN - 4]) != four(bytes, LEN - 4) {
            return Err("the checksum of the header differs".into());
        }
        self.check_version(bytes)?;
        if four(bytes, 12) as usize != LEN || zeros.iter().any(|&at| four(bytes, at) != 0) {
            return Err(format!("the header is not a valid one of version {}", four(bytes, 8)));
        }
        Ok(identity(bytes))
    }

    /// Checks that a header of at least twelve bytes has a known version.
    pub(crate) fn check_version(&self, bytes: &[u8]) -> Result<(), String> {
        let HeaderFormat { version, oldest, .. } = *self;
        match four(bytes, 8) {
            found if (oldest..=version).contains(&found) => Ok(()),
            found if oldest == version => {
                Err(format!("format version {found}; this program knows version {version}"))
            }
            found => {
                Err(format!("format version {found}; this program knows versions {oldest} to {version}"))
            }
        }
    }
}

/// Returns the header with its checksum in the last four bytes.
pub(crate) fn sealed<const LEN: usize>(mut bytes: [u8; LEN]) -> [u8; LEN] {
    let crc = crc32c::crc32c(&bytes[..LEN - 4]);
    bytes[LEN - 4..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Returns the identity in a header of at least 36 bytes.
pub(crate) fn identity(bytes: &[u8]) -> DatabaseIdentity {
    let database_id = bytes[16..32].try_into().expect("sixteen bytes");
    DatabaseIdentity { server_id: four(bytes, 32), database_id }
}

/// Returns the number in the four bytes at an offset.
pub(crate) fn four(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Returns the number in the eight bytes at an offset.
pub(crate) fn eight(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
