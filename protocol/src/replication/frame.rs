//! Frames: the length, the checksum and the content of a message.
//!
//! ```text
//! frame = length of the content(4) | CRC32C of the content(4) | content
//! ```

/// The first byte of a replica's connection. No request of another protocol begins with it.
pub const FIRST_BYTE: u8 = 0xDA;
/// The version of the protocol.
pub const VERSION: u8 = 2;
/// The bytes before the first frame of a replica.
pub const GREETING: [u8; 8] = [FIRST_BYTE, b'T', b'O', b'D', b'A', b'N', b'A', VERSION];
/// The longest content of a frame in bytes.
pub const CONTENT_LEN_MAX: usize = 1 << 20;

const FRAME_LEN: usize = 8;

/// The bytes are not those of a frame, or the frame is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedFrame;

/// Appends a frame whose content `put` appends.
pub(super) fn put_frame(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_LEN]);
    put(out);
    let content = &out[start + FRAME_LEN..];
    debug_assert!(content.len() <= CONTENT_LEN_MAX, "a message is too long");
    let (len, crc) = (content.len() as u32, crc32c::crc32c(content));
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    out[start + 4..start + FRAME_LEN].copy_from_slice(&crc.to_le_bytes());
}

/// Separates frames, whose bytes arrive in pieces of any length. Keeps the bytes of one incomplete
/// frame and of the frames that have not been taken.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    bytes: Vec<u8>,
    /// The number of bytes that have been taken.
    at: usize,
}

impl FrameDecoder {
    /// Appends the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the content of the next frame. Returns `None` if it is incomplete. Fails if its length
    /// or its checksum is wrong.
    pub fn next_content(&mut self) -> Result<Option<&[u8]>, MalformedFrame> {
        let unread = &self.bytes[self.at..];
        let Some((frame, rest)) = unread.split_first_chunk::<FRAME_LEN>() else { return Ok(None) };
        let len = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
        let crc = u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]);
        if len == 0 || len > CONTENT_LEN_MAX {
            return Err(MalformedFrame);
        }
        let Some(content) = rest.get(..len) else { return Ok(None) };
        if crc32c::crc32c(content) != crc {
            return Err(MalformedFrame);
        }
        self.at += FRAME_LEN + len;
        Ok(Some(content))
    }

    /// Returns the number of bytes that are kept.
    pub fn kept_len(&self) -> usize {
        self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_in_any_pieces() {
        let mut bytes = Vec::new();
        for content in [&b"one"[..], &[7; 300], b"x"] {
            put_frame(&mut bytes, |out| out.extend_from_slice(content));
        }
        for len in [1, 5, 1000] {
            let (mut decoder, mut found) = (FrameDecoder::default(), Vec::new());
            for piece in bytes.chunks(len) {
                decoder.push(piece);
                while let Some(content) = decoder.next_content().unwrap() {
                    found.push(content.to_vec());
                }
            }
            assert_eq!(found, [b"one".to_vec(), vec![7; 300], b"x".to_vec()]);
        }
    }

    #[test]
    fn frame_has_the_documented_layout() {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, |out| out.extend_from_slice(b"123456789"));
        assert_eq!(bytes, b"\x09\0\0\0\x83\x92\x06\xe3123456789");
    }

    #[test]
    fn changed_byte_of_a_frame_is_found() {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, |out| out.extend_from_slice(b"content"));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let mut decoder = FrameDecoder::default();
            decoder.push(&damaged);
            assert!(!matches!(decoder.next_content(), Ok(Some(_))), "bit {bit}");
        }
    }
}
