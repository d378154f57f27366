//! Decompresses data of Kyoto Tycoon and Kyoto Cabinet piece by piece. A length that the data
//! states reserves no memory.

use flate2::read::{DeflateDecoder, GzDecoder, ZlibDecoder};
use lzma_rust2::XzReader;
use std::io::{self, Cursor, Read};
use todana_protocol::kyoto::compression::Compression;

/// The maximum memory for decompressing an .xz stream, in KiB. The original compresses at level 6,
/// which takes 9 MiB.
const XZ_MEMORY_MAX_KIB: u32 = 64 << 10;
/// The maximum ratio of LZO: the number of bytes that one compressed byte can produce.
const LZO_RATIO_MAX: usize = 255;
const LZO_LEN_MAX: usize = 1 << 30;

/// Returns a reader of the decompressed bytes. Reads fail if `bytes` are damaged.
pub fn decompressed<'a>(compression: Compression, bytes: &'a [u8]) -> Box<dyn Read + 'a> {
    match compression {
        Compression::Deflate => Box::new(DeflateDecoder::new(bytes)),
        Compression::Zlib => Box::new(ZlibDecoder::new(bytes)),
        Compression::Gzip => Box::new(GzDecoder::new(bytes)),
        Compression::Lzma => Box::new(XzReader::new_mem_limit(bytes, false, XZ_MEMORY_MAX_KIB)),
        Compression::Lzo => Box::new(LzoReader { packed: bytes, unpacked: None }),
    }
}

/// A block of LZO1X. The format does not state the length of the decompressed data.
struct LzoReader<'a> {
    packed: &'a [u8],
    unpacked: Option<Cursor<Vec<u8>>>,
}

impl Read for LzoReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.unpacked.is_none() {
            self.unpacked = Some(Cursor::new(lzo_block(self.packed)?));
        }
        self.unpacked.as_mut().map_or(Ok(0), |unpacked| unpacked.read(out))
    }
}

/// Decompresses a block into a buffer that grows only as needed.
fn lzo_block(packed: &[u8]) -> io::Result<Vec<u8>> {
    let len_max = packed.len().saturating_mul(LZO_RATIO_MAX).min(LZO_LEN_MAX);
    let mut len = packed.len().saturating_mul(4).max(64);
    loop {
        match lzo::decompress(packed, len.min(len_max)) {
            Err(lzo::Error::OutputOverrun) if len < len_max => len *= 4,
            outcome => {
                return outcome
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes below are this text as the original's compressors write it.
    const TEXT: &[u8] = b"value value value value value";
    const OF_TEXT: [(Compression, &[u8]); 5] = [
        (Compression::Deflate, &[0x2B, 0x4B, 0xCC, 0x29, 0x4D, 0x55, 0x28, 0xC3, 0x4E, 0x02, 0x00, 0x00]),
        (
            Compression::Zlib,
            &[
                0x78, 0x9C, 0x2B, 0x4B, 0xCC, 0x29, 0x4D, 0x55, 0x28, 0xC3, 0x4E, 0x02, 0x00, 0xA6, 0x62,
                0x0B, 0x12,
            ],
        ),
        (
            Compression::Gzip,
            &[
                0x1F, 0x8B, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x03, 0x2B, 0x4B, 0xCC, 0x29, 0x4D,
                0x55, 0x28, 0xC3, 0x4E, 0x02, 0x00, 0x9D, 0xEE, 0x42, 0x9F, 0x1D, 0x00, 0x00, 0x00,
            ],
        ),
        (
            Compression::Lzo,
            &[
                0x2E, 0x76, 0x61, 0x6C, 0x75, 0x65, 0x20, 0x76, 0x61, 0x6C, 0x75, 0x65, 0x20, 0x76, 0x61,
                0x6C, 0x75, 0x65, 0x20, 0x76, 0x61, 0x6C, 0x75, 0x65, 0x20, 0x76, 0x61, 0x6C, 0x75, 0x65,
                0x11, 0x00, 0x00,
            ],
        ),
        (
            Compression::Lzma,
            &[
                0xFD, 0x37, 0x7A, 0x58, 0x5A, 0x00, 0x00, 0x00, 0xFF, 0x12, 0xD9, 0x41, 0x02, 0x00, 0x21,
                0x01, 0x16, 0x00, 0x00, 0x00, 0x74, 0x2F, 0xE5, 0xA3, 0xE0, 0x00, 0x1C, 0x00, 0x0D, 0x5D,
                0x00, 0x3B, 0x18, 0x49, 0xDC, 0x41, 0xF4, 0xDA, 0x1E, 0xF9, 0x44, 0xC0, 0x00, 0x00, 0x00,
                0x00, 0x00, 0x00, 0x00, 0x01, 0x21, 0x1D, 0x11, 0xCC, 0x1F, 0xCF, 0x06, 0x72, 0x9E, 0x7A,
                0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x59, 0x5A,
            ],
        ),
    ];

    fn read(compression: Compression, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        decompressed(compression, bytes).read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn formats_of_the_original_are_decompressed() {
        for (compression, bytes) in OF_TEXT {
            assert_eq!(read(compression, bytes).unwrap(), TEXT, "{compression:?}");
        }
    }

    #[test]
    fn cut_and_damaged_bytes_are_errors() {
        for (compression, bytes) in OF_TEXT {
            for len in 0..bytes.len() {
                // Deflate has no checksum, and its last byte may contain only the end mark, so the
                // truncated data may still decompress.
                let _ = read(compression, &bytes[..len]).map(|out| assert!(TEXT.starts_with(&out)));
            }
            for at in 0..bytes.len() {
                let mut damaged = bytes.to_vec();
                damaged[at] ^= 0x55;
                let _ = read(compression, &damaged).map(|out| assert!(out.len() < 1 << 20));
            }
        }
    }
}
