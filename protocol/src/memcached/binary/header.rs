//! Encodes and decodes the header of packets.
//!
//! ```text
//! offset  size
//!    0     1  magic: 0x80 in a request, 0x81 in a response
//!    1     1  opcode
//!    2     2  length of the key
//!    4     1  length of the extras
//!    5     1  data type
//!    6     2  bucket in a request, status in a response
//!    8     4  length of the body
//!   12     4  opaque
//!   16     8  version
//! ```
//!
//! All numbers are big-endian. The body consists of the extras, the key and the value, in this
//! order. The data type and the bucket of a request are ignored.

use super::status::PacketStatus;

/// The first byte of a request. No text command begins with this byte.
pub(in crate::memcached) const REQUEST_MAGIC: u8 = 0x80;
/// The first byte of a response.
pub(in crate::memcached) const RESPONSE_MAGIC: u8 = 0x81;

/// The length of a header, in bytes.
pub(in crate::memcached) const HEADER_LEN: usize = 24;

/// The header of a request, or of a response as a client receives it.
#[derive(Clone, Copy, Debug)]
pub(in crate::memcached) struct PacketHeader {
    pub(in crate::memcached) opcode: u8,
    pub(in crate::memcached) key_len: usize,
    pub(in crate::memcached) extras_len: usize,
    /// The status of a response. A request has the number of its bucket here.
    pub(in crate::memcached) status: u16,
    /// The length of extras, key and value together.
    pub(in crate::memcached) body_len: usize,
    /// Four bytes of the client's choice. The response contains the same bytes.
    pub(in crate::memcached) opaque: [u8; 4],
    /// The version (CAS ID) that the record must have, or 0 for any version. In a
    /// response: the version of the record, or 0.
    pub(in crate::memcached) version: u64,
}

impl PacketHeader {
    /// Parses a header whose first byte has been checked.
    #[inline]
    pub(in crate::memcached) fn parse(bytes: &[u8; HEADER_LEN]) -> PacketHeader {
        let [_, opcode, k0, k1, extras_len, _, s0, s1, b0, b1, b2, b3, o0, o1, o2, o3, version @ ..] = *bytes;
        PacketHeader {
            opcode,
            key_len: usize::from(u16::from_be_bytes([k0, k1])),
            extras_len: usize::from(extras_len),
            status: u16::from_be_bytes([s0, s1]),
            // A usize has at least 32 bits on all supported platforms.
            body_len: u32::from_be_bytes([b0, b1, b2, b3]) as usize,
            opaque: [o0, o1, o2, o3],
            version: u64::from_be_bytes(version),
        }
    }
}

/// The header of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseHeader {
    pub(super) opcode: u8,
    pub(super) status: PacketStatus,
    pub(super) key_len: usize,
    pub(super) extras_len: usize,
    pub(super) body_len: usize,
    pub(super) opaque: [u8; 4],
    pub(super) version: u64,
}

impl ResponseHeader {
    #[inline]
    pub(super) fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = RESPONSE_MAGIC;
        bytes[1] = self.opcode;
        // The lengths fit: keys and extras are at most as long as those of a request, and values
        // are limited to 1 GiB.
        bytes[2..4].copy_from_slice(&(self.key_len as u16).to_be_bytes());
        bytes[4] = self.extras_len as u8;
        bytes[6..8].copy_from_slice(&self.status.code().to_be_bytes());
        bytes[8..12].copy_from_slice(&(self.body_len as u32).to_be_bytes());
        bytes[12..16].copy_from_slice(&self.opaque);
        bytes[16..24].copy_from_slice(&self.version.to_be_bytes());
        bytes
    }
}
