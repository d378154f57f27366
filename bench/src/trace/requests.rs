//! A trace file: object ids in the order in which they were asked for, each a little-endian u32, as they are or
//! compressed with zstd.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

/// What a file of zstd begins with.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// More requests (256 MiB in memory) are not read unless their number is given: a small compressed file can hold very many.
pub(crate) const REQUESTS_MAX: u64 = 1 << 26;

/// The requests of a trace.
#[derive(Debug)]
pub struct Requests {
    /// The objects, renumbered from 0 on in the order of their first request.
    pub(crate) ids: Vec<u32>,
    /// How many objects there are.
    pub(crate) keys: usize,
}

impl Requests {
    /// Reads a file, or the first `limit` requests of it.
    pub(crate) fn read(path: &Path, limit: Option<u64>) -> io::Result<Requests> {
        let mut input = BufReader::with_capacity(1 << 16, File::open(path)?);
        let mut start = Vec::new();
        input.by_ref().take(ZSTD_MAGIC.len() as u64).read_to_end(&mut start)?;
        let is_compressed = start == ZSTD_MAGIC;
        let whole = io::Cursor::new(start).chain(input);
        if is_compressed {
            Requests::from_bytes(&mut BufReader::with_capacity(1 << 16, zstd::Decoder::new(whole)?), limit)
        } else {
            Requests::from_bytes(&mut BufReader::with_capacity(1 << 16, whole), limit)
        }
    }

    fn from_bytes(input: &mut dyn Read, limit: Option<u64>) -> io::Result<Requests> {
        let invalid = |message: String| io::Error::new(ErrorKind::InvalidData, message);
        let mut numbers = HashMap::new();
        let mut ids = Vec::new();
        while limit.is_none_or(|limit| (ids.len() as u64) < limit) {
            let mut id = [0; 4];
            match read_up_to(input, &mut id)? {
                0 => break,
                4 => {}
                rest => return Err(invalid(format!("{rest} bytes after the last whole id"))),
            }
            if ids.len() as u64 == REQUESTS_MAX && limit.is_none() {
                return Err(invalid(format!(
                    "more than {REQUESTS_MAX} requests; --requests N replays the first N"
                )));
            }
            let next = numbers.len() as u32;
            ids.push(*numbers.entry(u32::from_le_bytes(id)).or_insert(next));
        }
        if ids.is_empty() {
            return Err(invalid("no requests".into()));
        }
        Ok(Requests { ids, keys: numbers.len() })
    }

    /// Requests for objects of any numbers.
    pub(crate) fn numbered(objects: impl IntoIterator<Item = u32>) -> Requests {
        let mut numbers = HashMap::new();
        let number = |object| {
            let next = numbers.len() as u32;
            *numbers.entry(object).or_insert(next)
        };
        let ids = objects.into_iter().map(number).collect();
        Requests { ids, keys: numbers.len() }
    }

    /// The part of the keys, at least one of them.
    pub(crate) fn capacity(&self, percent: f64) -> usize {
        ((self.keys as f64 * percent / 100.0).round() as usize).max(1)
    }
}

/// Fills the buffer, or as much of it as there is.
fn read_up_to(input: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], limit: Option<u64>) -> io::Result<Requests> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        Requests::read(file.path(), limit)
    }

    fn bytes(ids: &[u32]) -> Vec<u8> {
        ids.iter().flat_map(|id| id.to_le_bytes()).collect()
    }

    #[test]
    fn ids_are_renumbered_by_first_request_compressed_or_not() {
        let plain = bytes(&[700, 5, 700, 4_000_000_000, 5]);
        for content in [plain.clone(), zstd::encode_all(&plain[..], 3).unwrap()] {
            let requests = read(&content, None).unwrap();
            assert_eq!((&requests.ids[..], requests.keys), (&[0, 1, 0, 2, 1][..], 3));
            let first = read(&content, Some(3)).unwrap();
            assert_eq!((&first.ids[..], first.keys), (&[0, 1, 0][..], 2));
        }
    }

    #[test]
    fn a_file_that_is_no_trace_is_refused_with_a_reason() {
        let reason = |bytes: &[u8]| read(bytes, None).unwrap_err().to_string();
        assert_eq!(reason(b""), "no requests");
        assert_eq!(reason(b"abc"), "3 bytes after the last whole id");
        assert_eq!(reason(b"abcdefg"), "3 bytes after the last whole id");
        let mut cut = zstd::encode_all(&bytes(&[1, 2, 3])[..], 3).unwrap();
        cut.pop();
        assert!(read(&cut, None).is_err());
        assert!(read(&[&ZSTD_MAGIC[..], b"nothing of the kind"].concat(), None).is_err());
    }

    #[test]
    fn a_capacity_is_a_rounded_part_of_the_keys_and_never_none() {
        let requests = Requests { ids: vec![0], keys: 13_756 };
        assert_eq!(
            [0.001, 0.1, 1.0, 3.0, 10.0].map(|percent| requests.capacity(percent)),
            [1, 14, 138, 413, 1376]
        );
    }
}
