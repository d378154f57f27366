//! The errors in place of replies to changes that replicas have not confirmed, in each dialect.
//!
//! The replies have been encoded and are discarded. Each of them is an acknowledgement, or stands
//! after one, so the client learns that it cannot rely on any of them. The connection then closes.

use crate::transport::output::ConnectionOutput;
use todana_core::RefusalReason;
use todana_protocol::ReplySink;

/// The form of the replies of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyDialect {
    /// memcached's text protocol.
    Lines,
    /// memcached's binary protocol.
    Packets,
    /// Kyoto Tycoon's protocols: HTTP or binary.
    Kyoto,
    /// Tokyo Tyrant's protocols, with HTTP and memcached's text protocol beside them.
    Tyrant,
}

/// The length of the header of a memcached packet.
const HEADER_LEN: usize = 24;
/// The first byte of a response packet.
const RESPONSE: u8 = 0x81;
/// The status of a packet: the request may succeed if it is repeated.
const TEMPORARY_FAILURE: [u8; 2] = [0, 0x86];
/// The first byte of an error in Kyoto Tycoon's binary protocol.
const KYOTO_ERROR: u8 = 0xBF;
/// The code of a miscellaneous error in Tokyo Tyrant's binary protocol.
const TYRANT_ERROR: u8 = 1;

/// Writes errors in place of these replies. Writes nothing if they do not begin with the first byte
/// of a reply.
pub(crate) fn put_errors(
    dialect: ReplyDialect,
    refusal: RefusalReason,
    replies: &[u8],
    output: &mut ConnectionOutput,
) {
    let text = match refusal {
        RefusalReason::Superseded => "another server has become the master; send changes to it",
        _ => "the changes were made here, but may not be on a replica",
    };
    match (dialect, replies.first()) {
        (_, None) => {}
        (ReplyDialect::Packets, Some(&RESPONSE)) => put_packets(text, replies, output),
        (ReplyDialect::Kyoto | ReplyDialect::Tyrant, _) if replies.starts_with(b"HTTP/") => {
            let body = format!("ERROR\t{text}\n");
            let head = format!(
                "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/tab-separated-values\r\nContent-Length: \
                 {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            output.put(head.as_bytes());
            output.put(body.as_bytes());
        }
        (ReplyDialect::Kyoto, Some(0xB0..=0xBF)) => output.put(&[KYOTO_ERROR]),
        (ReplyDialect::Lines | ReplyDialect::Tyrant, Some(b'A'..=b'Z' | b'0'..=b'9')) => {
            output.put(format!("SERVER_ERROR {text}\r\n").as_bytes());
        }
        (ReplyDialect::Tyrant, Some(_)) => output.put(&[TYRANT_ERROR]),
        _ => {}
    }
}

/// Writes an error packet for each complete packet.
fn put_packets(text: &str, mut packets: &[u8], output: &mut ConnectionOutput) {
    while let Some((header, rest)) = packets.split_first_chunk::<HEADER_LEN>() {
        let body_len = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let mut error = [0; HEADER_LEN];
        (error[0], error[1]) = (RESPONSE, header[1]);
        error[6..8].copy_from_slice(&TEMPORARY_FAILURE);
        error[8..12].copy_from_slice(&(text.len() as u32).to_be_bytes());
        error[12..16].copy_from_slice(&header[12..16]);
        output.put(&error);
        output.put(text.as_bytes());
        let Some(next) = rest.get(body_len..) else { return };
        packets = next;
    }
}
