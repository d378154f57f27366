//! Reads and writes the file with the position in a master's log.

use super::options::MasterProtocol;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use todana::disk::Disk;
use todana_protocol::kyoto::replication::parse_position;
use todana_protocol::{kyoto, tyrant};

/// The maximum length of the file in bytes.
const LEN_MAX: u64 = 64;

/// Returns the stored position, or 0 if the file does not exist. Fails if the file cannot be read
/// or does not contain a position.
pub(super) fn read(path: &Path) -> io::Result<u64> {
    let mut text = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        file => file.and_then(|file| file.take(LEN_MAX).read_to_end(&mut text)).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: cannot read: {error}", path.display()))
        })?,
    };
    if text.trim_ascii().is_empty() {
        return Ok(0);
    }
    // A longer position of the other protocol may follow in further lines.
    let first = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
    parse_position(first).ok_or_else(|| {
        let message = format!("{}: not a replication position", path.display());
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// Returns the path of the undo log beside a position file.
pub(super) fn undo_path_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".undo");
    PathBuf::from(name)
}

/// Stores a position. The length of the file only changes with the protocol, so a crash leaves
/// either the old position or the new one. The name of a new file is on disk before the position.
pub(super) fn write(disk: &dyn Disk, path: &Path, protocol: MasterProtocol, position: u64) -> io::Result<()> {
    let text = match protocol {
        MasterProtocol::Kyoto | MasterProtocol::Native => kyoto::replication::format_position(position),
        MasterProtocol::Tyrant { .. } => tyrant::replication::format_position(position),
    };
    let mut file = OpenOptions::new().create(true).write(true).truncate(false).open(path)?;
    if file.metadata()?.len() == 0
        && let Some(directory) = path.canonicalize()?.parent()
    {
        disk.sync_directory(directory)?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana::disk::SystemDisk;

    /// A disk that syncs no directory.
    struct StuckDisk;

    impl Disk for StuckDisk {}

    /// The sync of the file does not cover its name: a new file was once lost with the power.
    #[test]
    fn name_of_new_position_file_is_synced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rts");
        let store = |disk: &dyn Disk, position| write(disk, &path, MasterProtocol::Kyoto, position);
        store(&StuckDisk, 41).unwrap_err();
        store(&StuckDisk, 42).unwrap_err();
        assert_eq!(read(&path).unwrap(), 0);
        store(&SystemDisk, 43).unwrap();
        store(&StuckDisk, 44).unwrap();
        assert_eq!(read(&path).unwrap(), 44);
    }

    #[test]
    fn position_has_digits_of_its_protocol() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rts");
        assert_eq!(read(&path).unwrap(), 0);
        write(&SystemDisk, &path, MasterProtocol::Kyoto, 1_795_310_640_123_456_789).unwrap();
        write(&SystemDisk, &path, MasterProtocol::Kyoto, 42).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"00000000000000000042\n");
        assert_eq!(read(&path).unwrap(), 42);
        let tyrant = MasterProtocol::Tyrant { checks_outcomes: false };
        write(&SystemDisk, &path, tyrant, 1_700_000_000_000_003).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"1700000000000003\n042\n");
        assert_eq!(read(&path).unwrap(), 1_700_000_000_000_003);
        std::fs::write(&path, b"1700000000000004\n").unwrap();
        assert_eq!(read(&path).unwrap(), 1_700_000_000_000_004);
        std::fs::write(&path, b"").unwrap();
        assert_eq!(read(&path).unwrap(), 0);
        std::fs::write(&path, b"seven\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("not a replication position"));
    }
}
