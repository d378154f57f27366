//! Packets of the binary dialect, as a client writes and receives them.

use super::operation::NotSpoken;
use super::reply::MalformedReply;
use super::request::KEY_LEN_MAX;
use crate::memcached::binary::{HEADER_LEN, PacketHeader, PacketStatus, REQUEST_MAGIC, RESPONSE_MAGIC};
use std::ops::Range;

/// The longest body of a packet, in bytes.
const BODY_LEN_MAX: usize = 1 << 30;

/// The longest reply of statistics, in bytes. It bounds the packets that a server can send.
const STATISTICS_LEN_MAX: usize = 4 << 20;

/// The opcode of statistics.
pub(super) const STATISTICS: u8 = 0x10;

/// The place of the vbucket in a header. A reply has its status there.
const VBUCKET: Range<usize> = 6..8;

/// The place of the opaque in a header.
const OPAQUE: Range<usize> = 12..16;

/// A packet to a server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestPacket<'a> {
    pub(super) opcode: u8,
    pub(super) extras: &'a [u8],
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    /// The version that the record must have, or 0.
    pub(super) version: u64,
}

/// Writes a packet.
pub(super) fn put_packet(packet: &RequestPacket<'_>, out: &mut Vec<u8>) -> Result<(), NotSpoken> {
    let RequestPacket { opcode, extras, key, value, version } = *packet;
    if key.len() > KEY_LEN_MAX {
        return Err(NotSpoken::Key);
    }
    let body_len = extras.len() + key.len() + value.len();
    if body_len > BODY_LEN_MAX {
        return Err(NotSpoken::Value);
    }
    let mut header = [0; HEADER_LEN];
    header[0] = REQUEST_MAGIC;
    header[1] = opcode;
    header[2..4].copy_from_slice(&(key.len() as u16).to_be_bytes());
    header[4] = extras.len() as u8;
    header[8..12].copy_from_slice(&(body_len as u32).to_be_bytes());
    header[16..].copy_from_slice(&version.to_be_bytes());
    [&header[..], extras, key, value].iter().for_each(|part| out.extend_from_slice(part));
    Ok(())
}

/// Replaces the opaque of a packet to a server: a number that each packet of the reply repeats.
/// Requests are written with 0. Bytes that are shorter than a header stay as they are.
pub fn set_packet_opaque(packet: &mut [u8], opaque: u32) {
    if let Some(bytes) = packet.get_mut(OPAQUE) {
        bytes.copy_from_slice(&opaque.to_be_bytes());
    }
}

/// Returns the opaque of a packet, or 0 if the bytes are shorter than a header.
pub fn packet_opaque(packet: &[u8]) -> u32 {
    let bytes = packet.get(OPAQUE).and_then(|bytes| bytes.try_into().ok());
    bytes.map_or(0, u32::from_be_bytes)
}

/// Replaces the vbucket of a packet to a server. Requests are written with 0. Bytes that are
/// shorter than a header stay as they are.
pub fn set_packet_vbucket(packet: &mut [u8], vbucket: u16) {
    if let Some(bytes) = packet.get_mut(VBUCKET) {
        bytes.copy_from_slice(&vbucket.to_be_bytes());
    }
}

/// Returns true if a packet of a server says that another server has the vbucket of the request.
pub fn refuses_vbucket(reply: &[u8]) -> bool {
    let header = reply.first_chunk::<HEADER_LEN>().filter(|header| header[0] == RESPONSE_MAGIC);
    let status = header.map(|header| PacketHeader::parse(header).status);
    status.and_then(PacketStatus::of) == Some(PacketStatus::NotMyVbucket)
}

/// A packet of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponsePacket<'a> {
    pub(super) header: PacketHeader,
    pub(super) extras: &'a [u8],
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
}

impl<'a> ResponsePacket<'a> {
    pub(super) fn status(&self) -> Option<PacketStatus> {
        PacketStatus::of(self.header.status)
    }

    /// Returns the line of an error.
    pub(super) fn error_line(&self) -> &'a [u8] {
        const WORDS: [&[u8]; 3] = [b"ERROR", b"CLIENT_ERROR ", b"SERVER_ERROR "];
        let is_line = WORDS.iter().any(|word| self.value.starts_with(word))
            && !self.value.iter().any(u8::is_ascii_control);
        if is_line {
            return self.value;
        }
        match self.status() {
            Some(PacketStatus::Invalid) => b"CLIENT_ERROR Invalid arguments",
            Some(PacketStatus::NotAuthenticated) => b"CLIENT_ERROR Auth failure.",
            Some(PacketStatus::UnknownCommand) => b"CLIENT_ERROR Unknown command",
            Some(PacketStatus::NotSupported) => b"CLIENT_ERROR Not supported",
            Some(PacketStatus::NotMyVbucket) => b"SERVER_ERROR no server has the vbucket of the key",
            Some(PacketStatus::TooLarge) => b"SERVER_ERROR object too large for cache",
            Some(PacketStatus::OutOfMemory) => b"SERVER_ERROR out of memory",
            Some(PacketStatus::TemporaryFailure) => b"SERVER_ERROR Temporary failure",
            Some(PacketStatus::InternalError) => b"SERVER_ERROR Internal error",
            _ => b"SERVER_ERROR the server refused the request",
        }
    }
}

/// Returns the packet at the start of `input`, or `None` if it is incomplete.
pub(super) fn packet(
    input: &[u8],
    body_len_max: usize,
) -> Result<Option<(usize, ResponsePacket<'_>)>, MalformedReply> {
    if input.first().is_some_and(|&magic| magic != RESPONSE_MAGIC) {
        return Err(MalformedReply);
    }
    let Some(header) = input.first_chunk() else { return Ok(None) };
    let header = PacketHeader::parse(header);
    let key_at = HEADER_LEN + header.extras_len;
    let value_at = key_at + header.key_len;
    if value_at > HEADER_LEN + header.body_len || header.body_len > body_len_max {
        return Err(MalformedReply);
    }
    let Some(bytes) = input.get(..HEADER_LEN + header.body_len) else { return Ok(None) };
    let (extras, key) = (&bytes[HEADER_LEN..key_at], &bytes[key_at..value_at]);
    Ok(Some((bytes.len(), ResponsePacket { header, extras, key, value: &bytes[value_at..] })))
}

/// Returns the packet of a complete reply, which must have this opcode.
pub(super) fn sole_packet(reply: &[u8], opcode: u8) -> Result<ResponsePacket<'_>, MalformedReply> {
    match packet(reply, usize::MAX)? {
        Some((len, packet)) if len == reply.len() && packet.header.opcode == opcode => Ok(packet),
        _ => Err(MalformedReply),
    }
}

/// Returns the length of the first reply in `input`, or `None` if it is incomplete. A reply of
/// statistics consists of many packets, up to the first without a name. A value above
/// `value_len_max` is malformed, and so is a reply to a request with another opaque.
pub fn binary_reply_len(
    input: &[u8],
    opaque: u32,
    value_len_max: usize,
) -> Result<Option<usize>, MalformedReply> {
    let body_len_max = value_len_max.saturating_add(KEY_LEN_MAX + usize::from(u8::MAX));
    let mut end = 0;
    loop {
        let rest = &input[end..];
        let header = rest.first_chunk::<HEADER_LEN>();
        if header.is_some_and(|header| packet_opaque(header) != opaque) {
            return Err(MalformedReply);
        }
        let Some((len, packet)) = packet(rest, body_len_max)? else { return Ok(None) };
        end += len;
        let is_statistic = packet.header.opcode == STATISTICS && !packet.key.is_empty();
        if !is_statistic || packet.header.status != 0 {
            return Ok(Some(end));
        }
        if end > STATISTICS_LEN_MAX {
            return Err(MalformedReply);
        }
    }
}
