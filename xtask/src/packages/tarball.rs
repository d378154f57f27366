//! Tar archives whose bytes depend only on their entries: fixed times and owners.

use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};
use std::io::{self, Write};

/// A file or folder of an archive.
pub(super) struct ArchiveEntry {
    /// Relative to the root of the archive.
    pub(super) path: String,
    pub(super) mode: u32,
    /// The number of the user and of the group.
    pub(super) owner: u32,
    /// `None` for a folder.
    pub(super) content: Option<Vec<u8>>,
}

impl ArchiveEntry {
    pub(super) fn folder(path: &str, mode: u32, owner: u32) -> ArchiveEntry {
        ArchiveEntry { path: path.into(), mode, owner, content: None }
    }

    pub(super) fn file(path: &str, mode: u32, content: Vec<u8>) -> ArchiveEntry {
        ArchiveEntry { path: path.into(), mode, owner: 0, content: Some(content) }
    }
}

/// Returns an archive with the entries in their order. `epoch` is the time of each, in seconds
/// since 1970.
pub(super) fn tar(entries: &[ArchiveEntry], epoch: u64) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        let is_folder = entry.content.is_none();
        let kind = if is_folder { tar::EntryType::Directory } else { tar::EntryType::Regular };
        let content = entry.content.as_deref().unwrap_or_default();
        header.set_entry_type(kind);
        header.set_mode(entry.mode);
        header.set_uid(entry.owner.into());
        header.set_gid(entry.owner.into());
        header.set_mtime(epoch);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, &entry.path, content)?;
    }
    archive.into_inner()
}

/// Compresses bytes; the result has neither a name nor a time.
pub(super) fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// Returns the hash in hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
