//! The file with the position in a master's log.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use todana_protocol::kyoto::replication::{format_position, parse_position};

/// The most bytes that a position takes.
const LEN_MAX: u64 = 64;

/// Returns the stored position, or 0 if there is no file. Fails if the file cannot be read or is
/// not a position.
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
    parse_position(&text).ok_or_else(|| {
        let message = format!("{}: not a replication position", path.display());
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

/// Stores a position. The length of the file never changes, so a crash leaves either the old
/// position or the new one.
pub(super) fn write(path: &Path, position: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).write(true).truncate(false).open(path)?;
    file.write_all(format_position(position).as_bytes())?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_takes_21_bytes_and_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rts");
        assert_eq!(read(&path).unwrap(), 0);
        write(&path, 1_795_310_640_123_456_789).unwrap();
        write(&path, 42).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"00000000000000000042\n");
        assert_eq!(read(&path).unwrap(), 42);
        std::fs::write(&path, b"").unwrap();
        assert_eq!(read(&path).unwrap(), 0);
        std::fs::write(&path, b"seven\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("not a replication position"));
    }
}
