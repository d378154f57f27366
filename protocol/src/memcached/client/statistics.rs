//! Requests for statistics, and their replies.

use super::operation::{NotSpoken, ServerDialect};
use super::packet::{RequestPacket, ResponsePacket, STATISTICS, packet, put_packet};
use super::reply::{ClientResponse, MalformedReply, decode};
use super::text::put_words;

/// Writes the request for a group of statistics. An empty name means the general group, and `reset`
/// sets the counters to 0.
pub fn put_statistics(dialect: ServerDialect, group: &[u8], out: &mut Vec<u8>) -> Result<(), NotSpoken> {
    if dialect == ServerDialect::Binary {
        return put_packet(
            &RequestPacket { opcode: STATISTICS, key: group, ..RequestPacket::default() },
            out,
        );
    }
    let words: &[&[u8]] = if group.is_empty() { &[] } else { &[group] };
    Ok(put_words(out, "stats", words)?)
}

/// A statistic of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerStatistic<'a> {
    /// The name.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// Returns the statistics of a complete reply to [`put_statistics`]. Fails if the server refused
/// the request, too.
///
/// ```
/// # use todana_protocol::memcached::client::{ServerDialect, statistics_of};
/// let found = statistics_of(ServerDialect::Text, b"STAT version 1.6.45\r\nEND\r\n").unwrap();
/// assert_eq!((found[0].name, found[0].value), (&b"version"[..], &b"1.6.45"[..]));
/// ```
pub fn statistics_of(
    dialect: ServerDialect,
    reply: &[u8],
) -> Result<Vec<ServerStatistic<'_>>, MalformedReply> {
    let (mut found, mut rest) = (Vec::new(), reply);
    loop {
        let (len, next) = match dialect {
            ServerDialect::Binary => packet_statistic(rest)?,
            ServerDialect::Text | ServerDialect::Meta => line_statistic(rest)?,
        };
        rest = &rest[len..];
        match next {
            Some(statistic) => found.push(statistic),
            None if rest.is_empty() => return Ok(found),
            None => return Err(MalformedReply),
        }
    }
}

/// Returns the length of a line and its statistic, or `None` for the last line.
fn line_statistic(input: &[u8]) -> Result<(usize, Option<ServerStatistic<'_>>), MalformedReply> {
    let (len, response) = decode(input, 0)?.ok_or(MalformedReply)?;
    match response {
        ClientResponse::Statistic { name, value } => Ok((len, Some(ServerStatistic { name, value }))),
        ClientResponse::Line(b"END" | b"RESET") => Ok((len, None)),
        _ => Err(MalformedReply),
    }
}

/// Returns the length of a packet and its statistic, or `None` for the last packet.
fn packet_statistic(input: &[u8]) -> Result<(usize, Option<ServerStatistic<'_>>), MalformedReply> {
    let (len, ResponsePacket { header, key: name, value, .. }) =
        packet(input, usize::MAX)?.ok_or(MalformedReply)?;
    if header.opcode != STATISTICS || header.status != 0 {
        return Err(MalformedReply);
    }
    Ok((len, (!name.is_empty()).then_some(ServerStatistic { name, value })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memcached::{MemcachedCommand, MemcachedDecoder, MemcachedLimits, MemcachedStep, encode};
    use todana_core::Reply;

    #[test]
    fn statistics_survive_each_dialect() {
        for (dialect, group) in [
            (ServerDialect::Text, "items"),
            (ServerDialect::Meta, ""),
            (ServerDialect::Binary, "items"),
            (ServerDialect::Binary, ""),
        ] {
            let mut request = Vec::new();
            put_statistics(dialect, group.as_bytes(), &mut request).unwrap();
            let (mut decoder, mut scratch) = (MemcachedDecoder::default(), Vec::new());
            let step = decoder.decode(&MemcachedLimits::default(), &request, &mut scratch);
            let MemcachedStep::Request { consumed, request: decoded } = step else { panic!("{step:?}") };
            assert_eq!(consumed, request.len());
            assert_eq!(decoded.command, MemcachedCommand::Stats { group: group.as_bytes() });
            let mut reply = Vec::new();
            for (name, value) in [("pid", "7"), ("empty", ""), ("version", "1.6.45")] {
                encode(&decoded.form, &Reply::Statistic { name, value }, &mut reply);
            }
            encode(&decoded.form, &Reply::End, &mut reply);
            let found = statistics_of(dialect, &reply).unwrap();
            let found: Vec<_> = found.iter().map(|found| (found.name, found.value)).collect();
            assert_eq!(found, [(&b"pid"[..], &b"7"[..]), (b"empty", b""), (b"version", b"1.6.45")]);
            for cut in 0..reply.len() {
                assert_eq!(statistics_of(dialect, &reply[..cut]), Err(MalformedReply));
            }
            assert_eq!(statistics_of(dialect, &[&reply[..], &reply].concat()), Err(MalformedReply));
            reply.clear();
            encode(&decoded.form, &Reply::Unknown, &mut reply);
            assert_eq!(statistics_of(dialect, &reply), Err(MalformedReply));
        }
        let mut out = Vec::new();
        assert_eq!(put_statistics(ServerDialect::Text, b"a\r\nb", &mut out), Err(NotSpoken::Key));
        assert_eq!((statistics_of(ServerDialect::Text, b"RESET\r\n"), out), (Ok(Vec::new()), Vec::new()));
    }
}
