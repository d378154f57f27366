//! Encodes and decodes messages over UDP. Each datagram, of a request or a reply, has a header of 8
//! bytes.
//!
//! ```text
//! offset  0           2         4      6
//!         request id  sequence  count  0         highest byte first
//! ```
//!
//! A request is one datagram. A reply is one or more datagrams, numbered from 0.

/// The length of the header.
const HEADER_LEN: usize = 8;
/// The length of the longest datagram that is sent. Nearly every network transports a datagram of
/// this length in one piece.
const DATAGRAM_LEN_MAX: usize = 1400;
/// The length of the payload of a datagram.
const PAYLOAD_LEN_MAX: usize = DATAGRAM_LEN_MAX - HEADER_LEN;

/// The length of the longest message. The header has 16 bits for the number of its datagrams.
pub(crate) const MESSAGE_LEN_MAX: usize = PAYLOAD_LEN_MAX * u16::MAX as usize;

/// The number of a request, which its replies repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestId([u8; 2]);

/// Returns the ID and the payload of a request that consists of one datagram. Its sequence number
/// is ignored, as in memcached. Returns `None` for other datagrams.
pub(super) fn request(datagram: &[u8]) -> Option<(RequestId, &[u8])> {
    let (header, payload) = datagram.split_first_chunk::<HEADER_LEN>()?;
    let [id0, id1, _, _, count0, count1, _, _] = *header;
    (u16::from_be_bytes([count0, count1]) == 1).then_some((RequestId([id0, id1]), payload))
}

/// Splits a message into datagrams. Stops when `send` returns false.
pub(super) fn send(id: RequestId, message: &[u8], mut send: impl FnMut(&[u8]) -> bool) {
    let count = u16::try_from(message.len().div_ceil(PAYLOAD_LEN_MAX)).unwrap_or(u16::MAX);
    let mut datagram = [0; DATAGRAM_LEN_MAX];
    datagram[..2].copy_from_slice(&id.0);
    datagram[4..6].copy_from_slice(&count.to_be_bytes());
    for (sequence, payload) in (0..count).zip(message.chunks(PAYLOAD_LEN_MAX)) {
        datagram[2..4].copy_from_slice(&sequence.to_be_bytes());
        datagram[HEADER_LEN..][..payload.len()].copy_from_slice(payload);
        if !send(&datagram[..HEADER_LEN + payload.len()]) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_one_datagram() {
        let id = RequestId([0x12, 0x34]);
        assert_eq!(request(b"\x12\x34\0\0\0\x01\0\0get k\r\n"), Some((id, &b"get k\r\n"[..])));
        assert_eq!(request(b"\x12\x34\xff\x07\0\x01\x55\xaa"), Some((id, &b""[..])));
        for datagram in [
            &b""[..],
            b"\0\0\0\0\0\x01\0",
            b"\0\0\0\0\0\0\0\0mn\r\n",
            b"\0\0\0\0\0\x02\0\0mn\r\n",
            b"\0\0\0\0\x01\x01\0\0mn\r\n",
        ] {
            assert_eq!(request(datagram), None, "{}", datagram.escape_ascii());
        }
    }

    #[test]
    fn message_is_split_into_numbered_datagrams() {
        let message: Vec<u8> = (0..3000u32).map(|n| n as u8).collect();
        for (len, counts) in
            [(0, &[][..]), (1, &[1]), (1392, &[1392]), (1393, &[1392, 1]), (3000, &[1392, 1392, 216])]
        {
            let mut sent = Vec::new();
            send(RequestId([7, 8]), &message[..len], |datagram| {
                sent.push(datagram.to_vec());
                true
            });
            let lens: Vec<usize> = sent.iter().map(|datagram| datagram.len() - 8).collect();
            assert_eq!(lens, counts);
            for (sequence, datagram) in sent.iter().enumerate() {
                assert_eq!(datagram[..8], [7, 8, 0, sequence as u8, 0, counts.len() as u8, 0, 0]);
            }
            let whole: Vec<u8> = sent.iter().flat_map(|datagram| &datagram[8..]).copied().collect();
            assert_eq!(whole, message[..len]);
        }
    }

    #[test]
    fn longest_message_fills_the_datagram_count() {
        let message = vec![0; MESSAGE_LEN_MAX];
        let mut last = Vec::new();
        let mut count = 0;
        send(RequestId([0, 0]), &message, |datagram| {
            last = datagram[..8].to_vec();
            count += 1;
            true
        });
        assert_eq!((count, last), (65535, vec![0, 0, 0xff, 0xfe, 0xff, 0xff, 0, 0]));
    }
}
