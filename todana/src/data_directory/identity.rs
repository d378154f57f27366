//! The identity of a database: its random ID and its server ID, in the file `identity`
//! (docs/format/data-directory.md, section 1).

use super::{CHECKPOINTS, LOG, cannot};
use crate::disk::Disk;
use crate::file_header::write_atomically;
use crate::update_log::{DatabaseIdentity, segments};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::Path;
use todana_core::{Error, ErrorKind, Result};

const IDENTITY_LEN: usize = 36;
const MAGIC: &[u8; 8] = b"TODANAID";
const VERSION: u32 = 1;

/// Reads the identity, or creates one for a new directory.
pub(super) fn read_or_create(disk: &dyn Disk, directory: &Path) -> Result<DatabaseIdentity> {
    match read(disk, directory)? {
        Some(identity) => Ok(identity),
        None => make(disk, directory),
    }
}

/// Reads the identity. Returns `None` if the file is missing.
pub(crate) fn read(disk: &dyn Disk, directory: &Path) -> Result<Option<DatabaseIdentity>> {
    let path = directory.join("identity");
    let file = match disk.open(&path, false) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot("read", &path, &error)),
    };
    let mut bytes = [0; IDENTITY_LEN + 1];
    let len = file.read_at(0, &mut bytes).map_err(|error| cannot("read", &path, &error))?;
    decode(&bytes[..len])
        .map(Some)
        .map_err(|why| Error::new(ErrorKind::Corrupt, format!("{} at offset 0: {why}", path.display())))
}

/// Returns the identity that the headers of the log's segments contain. Returns `None` if there are
/// no segments or they disagree.
pub(crate) fn by_segments(disk: &dyn Disk, directory: &Path) -> Option<DatabaseIdentity> {
    let found = segments(disk, &directory.join(LOG)).ok()?;
    let first = found.first()?.identity;
    found.iter().all(|segment| segment.identity == first).then_some(first)
}

/// Returns the error for a missing identity. Its text states whether the directory holds no
/// database at all, or has lost the file.
pub(crate) fn missing(disk: &dyn Disk, directory: &Path) -> Error {
    let has_files = |part| disk.list(&directory.join(part)).is_ok_and(|names| !names.is_empty());
    if [LOG, CHECKPOINTS].into_iter().any(has_files) {
        let path = directory.join("identity");
        return Error::new(
            ErrorKind::Corrupt,
            format!("{} at offset 0: the file is missing", path.display()),
        );
    }
    Error::new(ErrorKind::Unavailable, format!("{}: is not a data directory", directory.display()))
}

fn make(disk: &dyn Disk, directory: &Path) -> Result<DatabaseIdentity> {
    // A directory that contains logs is not new, so the identity has been lost.
    for part in [LOG, CHECKPOINTS] {
        let path = directory.join(part);
        if !disk.list(&path).map_err(|error| cannot("read", &path, &error))?.is_empty() {
            return Err(missing(disk, directory));
        }
    }
    // The directory and its parents may be new, so their names must be on disk first.
    super::sync_above(disk, directory)?;
    let random = || RandomState::new().build_hasher().finish();
    let server_id = (random() as u32).max(1);
    let mut database_id = [0; 16];
    database_id[..8].copy_from_slice(&random().to_le_bytes());
    database_id[8..].copy_from_slice(&random().to_le_bytes());
    let identity = DatabaseIdentity { server_id, database_id };
    write(disk, directory, identity)?;
    Ok(identity)
}

/// Writes the identity atomically.
pub(crate) fn write(disk: &dyn Disk, directory: &Path, identity: DatabaseIdentity) -> Result<()> {
    write_atomically(disk, directory, "identity", &encode(identity))
        .map_err(|error| cannot("write to", &directory.join("identity"), &error))
}

fn encode(identity: DatabaseIdentity) -> [u8; IDENTITY_LEN] {
    let mut bytes = [0; IDENTITY_LEN];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..16].copy_from_slice(&identity.server_id.to_le_bytes());
    bytes[16..32].copy_from_slice(&identity.database_id);
    let crc = crc32c::crc32c(&bytes[..32]);
    bytes[32..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> std::result::Result<DatabaseIdentity, String> {
    let Ok(bytes) = <&[u8; IDENTITY_LEN]>::try_from(bytes) else {
        return Err(format!("the length is not {IDENTITY_LEN}"));
    };
    let four = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    if &bytes[..8] != MAGIC {
        return Err("not an identity".into());
    }
    if crc32c::crc32c(&bytes[..32]) != four(32) {
        return Err("the checksum differs".into());
    }
    if four(8) != VERSION {
        return Err(format!("format version {}; this program knows version {VERSION}", four(8)));
    }
    Ok(DatabaseIdentity {
        server_id: four(12),
        database_id: bytes[16..32].try_into().expect("sixteen bytes"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_round_trips_and_detects_flipped_bits() {
        let identity = DatabaseIdentity { server_id: 7, database_id: *b"0123456789abcdef" };
        let bytes = encode(identity);
        assert_eq!(decode(&bytes), Ok(identity));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err());
        }
        assert!(decode(&[&bytes[..], b"x"].concat()).is_err());
    }
}
