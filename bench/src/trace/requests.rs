//! Reads a trace file: object IDs in the order of their requests, each a little-endian u32. The
//! file may be compressed with zstd.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

/// The first bytes of a zstd file.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];
/// The maximum number of requests that are read if no limit is stated, because a small compressed
/// file can contain very many requests. They take 256 MiB of memory.
pub(crate) const REQUESTS_MAX: u64 = 1 << 26;

/// The requests of a trace.
#[derive(Debug)]
pub struct TraceRequests {
    /// The objects, renumbered from 0 in the order of their first request.
    pub(crate) ids: Vec<u32>,
    /// The number of distinct objects.
    pub(crate) keys: usize,
}

impl TraceRequests {
    /// Reads the requests of a file, or its first `limit` requests.
    pub(crate) fn read(path: &Path, limit: Option<u64>) -> io::Result<TraceRequests> {
        let mut input = BufReader::with_capacity(1 << 16, File::open(path)?);
        let mut start = Vec::new();
        input.by_ref().take(ZSTD_MAGIC.len() as u64).read_to_end(&mut start)?;
        let is_compressed = start == ZSTD_MAGIC;
        let whole = io::Cursor::new(start).chain(input);
        if is_compressed {
            TraceRequests::from_bytes(
                &mut BufReader::with_capacity(1 << 16, zstd::Decoder::new(whole)?),
                limit,
            )
        } else {
            TraceRequests::from_bytes(&mut BufReader::with_capacity(1 << 16, whole), limit)
        }
    }

    fn from_bytes(input: &mut dyn Read, limit: Option<u64>) -> io::Result<TraceRequests> {
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
        Ok(TraceRequests { ids, keys: numbers.len() })
    }

    /// Renumbers requests for arbitrary object IDs.
    pub(crate) fn numbered(objects: impl IntoIterator<Item = u32>) -> TraceRequests {
        let mut numbers = HashMap::new();
        let number = |object| {
            let next = numbers.len() as u32;
            *numbers.entry(object).or_insert(next)
        };
        let ids = objects.into_iter().map(number).collect();
        TraceRequests { ids, keys: numbers.len() }
    }
}

/// Reads until the buffer is full or the input ends. Returns the number of bytes read.
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

    fn read(bytes: &[u8], limit: Option<u64>) -> io::Result<TraceRequests> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        TraceRequests::read(file.path(), limit)
    }

    fn bytes(ids: &[u32]) -> Vec<u8> {
        ids.iter().flat_map(|id| id.to_le_bytes()).collect()
    }

    #[test]
    fn ids_are_renumbered_by_first_request() {
        let plain = bytes(&[700, 5, 700, 4_000_000_000, 5]);
        for content in [plain.clone(), zstd::encode_all(&plain[..], 3).unwrap()] {
            let requests = read(&content, None).unwrap();
            assert_eq!((&requests.ids[..], requests.keys), (&[0, 1, 0, 2, 1][..], 3));
            let first = read(&content, Some(3)).unwrap();
            assert_eq!((&first.ids[..], first.keys), (&[0, 1, 0][..], 2));
        }
    }

    #[test]
    fn invalid_trace_file_is_refused_with_a_reason() {
        let reason = |bytes: &[u8]| read(bytes, None).unwrap_err().to_string();
        assert_eq!(reason(b""), "no requests");
        assert_eq!(reason(b"abc"), "3 bytes after the last whole id");
        assert_eq!(reason(b"abcdefg"), "3 bytes after the last whole id");
        let mut cut = zstd::encode_all(&bytes(&[1, 2, 3])[..], 3).unwrap();
        cut.pop();
        assert!(read(&cut, None).is_err());
        assert!(read(&[&ZSTD_MAGIC[..], b"nothing of the kind"].concat(), None).is_err());
    }
}
