//! Defines keys of arbitrary bytes, and clients of all dialects that store and read records with
//! them.

// Each test file uses a part of this module.
#![allow(dead_code)]

use crate::running::Client;
use todana_protocol::kyoto::client::{
    AnswerDecoder, AnswerStep, BinaryAnswer, BinaryAnswerDecoder, BinaryStep, put_bulk, put_key, put_record,
};
use todana_protocol::kyoto::{AnswerPairs, BulkOperation, BulkRecord, KyotoLimits, MapScratch, put_path};
use todana_protocol::memcached::client::{MetaField, MetaRequest};

#[path = "../../../tests/any_key/mod.rs"]
mod keys;

pub(crate) use keys::{Records, records};

/// Returns true if the text dialect can express this key.
pub(crate) fn is_text(key: &[u8]) -> bool {
    let breaks = |byte: &u8| matches!(byte, b' ' | b'\r' | b'\n' | 0);
    !key.is_empty() && key.len() <= 250 && !key.iter().any(breaks)
}

/// Returns true if an `mg` line of `mgdump` can express this key.
pub(crate) fn is_meta(key: &[u8]) -> bool {
    let is_plain = key.iter().all(u8::is_ascii_graphic);
    (1..=250).contains(&if is_plain { key.len() } else { key.len().div_ceil(3) * 4 })
}

/// A dialect that stores and reads records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Text,
    MetaRequest,
    Binary,
    KyotoCall,
    KyotoRest,
    KyotoBinary,
    Plugin,
}

impl Dialect {
    /// The dialects of a port that serves both memcached and Kyoto Tycoon.
    pub(crate) const OF_ONE_PORT: [Dialect; 6] = [
        Dialect::Text,
        Dialect::MetaRequest,
        Dialect::Binary,
        Dialect::KyotoCall,
        Dialect::KyotoRest,
        Dialect::KyotoBinary,
    ];

    /// Returns true if a request of this dialect can contain this key.
    pub(crate) fn carries(self, key: &[u8]) -> bool {
        match self {
            Dialect::Text => is_text(key),
            Dialect::MetaRequest => MetaRequest::get(&mut Vec::new(), key).is_ok(),
            Dialect::Binary => (1..=250).contains(&key.len()),
            Dialect::KyotoCall | Dialect::KyotoBinary => true,
            // An HTTP request line has at most 8 KiB.
            Dialect::KyotoRest => key.len() <= 1000,
            Dialect::Plugin => {
                !key.is_empty() && key.len() < 65_000 && !key.iter().any(|byte| b" \r\n".contains(byte))
            }
        }
    }

    /// Stores a record.
    pub(crate) fn store(self, client: &mut Client, key: &[u8], value: &[u8]) {
        match self {
            Dialect::Text | Dialect::Plugin => client.set(key, value),
            Dialect::MetaRequest => {
                let mut request = Vec::new();
                MetaRequest::set(&mut request, key, value).unwrap().end().unwrap();
                client.send(&request);
                client.expect(b"HD\r\n");
            }
            Dialect::Binary => {
                client.send(&packet(1, &[0; 8], key, value));
                assert_eq!(response(client).0, 0);
            }
            Dialect::KyotoCall => {
                assert_eq!(kyoto_call(client, "set", &[(b"key", key), (b"value", value)]).0, 200);
            }
            Dialect::KyotoRest => {
                let mut request = b"PUT ".to_vec();
                put_path(None, key, &mut request);
                request.extend(format!(" HTTP/1.1\r\nContent-Length: {}\r\n\r\n", value.len()).into_bytes());
                request.extend(value);
                client.send(&request);
                assert_eq!(kyoto_answer(client).0, 201);
            }
            Dialect::KyotoBinary => {
                let mut request = Vec::new();
                put_bulk(BulkOperation::Set, 1, false, &mut request);
                put_record(&BulkRecord { database: 0, key, value, xt: i64::MAX }, &mut request);
                client.send(&request);
                client.expect(b"\xB8\0\0\0\x01");
            }
        }
    }

    /// Reads a record. Returns `None` for a miss.
    pub(crate) fn read(self, client: &mut Client, key: &[u8]) -> Option<Vec<u8>> {
        match self {
            Dialect::Text | Dialect::Plugin => {
                client.send(&[b"get ", key, b"\r\n"].concat());
                let line = client.line_bytes();
                if line == b"END\r\n" {
                    return None;
                }
                let len = number_at_end(&line);
                let value = client.take(len);
                client.expect(b"\r\nEND\r\n");
                Some(value)
            }
            Dialect::MetaRequest => {
                let mut request = Vec::new();
                MetaRequest::get(&mut request, key).unwrap().want(MetaField::Value).end().unwrap();
                meta_get(client, &request)
            }
            Dialect::Binary => {
                client.send(&packet(0x0C, &[], key, &[]));
                let (status, extras_len, key_len, body) = response(client);
                (status == 0).then(|| {
                    assert_eq!(&body[extras_len..extras_len + key_len], key);
                    body[extras_len + key_len..].to_vec()
                })
            }
            Dialect::KyotoCall => {
                let (status, pairs) = kyoto_call(client, "get", &[(b"key", key)]);
                (status == 200).then(|| pairs[&b"value"[..]].clone())
            }
            Dialect::KyotoRest => {
                let mut request = b"GET ".to_vec();
                put_path(None, key, &mut request);
                client.send(&[&request, &b" HTTP/1.1\r\n\r\n"[..]].concat());
                let (status, _, body) = kyoto_answer(client);
                (status == 200).then_some(body)
            }
            Dialect::KyotoBinary => {
                let mut request = Vec::new();
                put_bulk(BulkOperation::Get, 1, false, &mut request);
                put_key(0, key, &mut request);
                client.send(&request);
                bulk_records(client).remove(key)
            }
        }
    }
}

/// Sends an `mg` with `v` and returns the value.
pub(crate) fn meta_get(client: &mut Client, request: &[u8]) -> Option<Vec<u8>> {
    client.send(request);
    let line = client.line_bytes();
    if line == b"EN\r\n" {
        return None;
    }
    let text = String::from_utf8(line).unwrap();
    let len = text.strip_prefix("VA ").unwrap().split([' ', '\r']).next().unwrap().parse().unwrap();
    let value = client.take(len);
    client.expect(b"\r\n");
    Some(value)
}

fn number_at_end(line: &[u8]) -> usize {
    let line = line.trim_ascii_end();
    let digits = line.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&line[line.len() - digits..]).unwrap().parse().unwrap()
}

fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x80, opcode];
    packet.extend((key.len() as u16).to_be_bytes());
    packet.extend([extras.len() as u8, 0, 0, 0]);
    packet.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    packet.extend([0; 12]);
    [&packet, extras, key, value].concat()
}

/// Reads the next packet. Returns the status, the length of the extras, the length of the key, and
/// the body.
fn response(client: &mut Client) -> (u16, usize, usize, Vec<u8>) {
    let head = client.take(24);
    assert_eq!(head[0], 0x81);
    let body_len = u32::from_be_bytes(head[8..12].try_into().unwrap()) as usize;
    let key_len = u16::from_be_bytes([head[2], head[3]]).into();
    (u16::from_be_bytes([head[6], head[7]]), head[4].into(), key_len, client.take(body_len))
}

/// Calls a procedure. Returns the status and the pairs of the answer.
pub(crate) fn kyoto_call(client: &mut Client, name: &str, pairs: &[(&[u8], &[u8])]) -> (u16, Records) {
    let (mut request, mut output) = (Vec::new(), AnswerPairs::default());
    pairs.iter().for_each(|(name, value)| output.push(name, value));
    output.write_call(name, "localhost", &mut request);
    client.send(&request);
    let (status, pairs, _) = kyoto_answer(client);
    (status, pairs)
}

/// Reads the next HTTP response. Returns its status, its pairs, and its body.
fn kyoto_answer(client: &mut Client) -> (u16, Records, Vec<u8>) {
    let (mut answers, mut scratch, mut input) = (AnswerDecoder::default(), MapScratch::default(), Vec::new());
    loop {
        match answers.decode(&KyotoLimits::default(), &input, &mut scratch, true) {
            AnswerStep::Answer { consumed, answer } => {
                assert_eq!(consumed, input.len(), "an answer and no more");
                let pairs = answer.map.iter().map(|(name, value)| (name.to_vec(), value.to_vec()));
                return (answer.status, pairs.collect(), answer.body.to_vec());
            }
            AnswerStep::NeedMore { at_least } => {
                let more = client.take(at_least);
                input.extend(more);
            }
            AnswerStep::Malformed => panic!("no answer: {}", input.escape_ascii()),
        }
    }
}

/// Reads the records of a bulk reply in the binary protocol.
pub(crate) fn bulk_records(client: &mut Client) -> Records {
    let (mut answers, mut input, mut found) = (BinaryAnswerDecoder::default(), Vec::new(), Records::new());
    loop {
        match answers.decode(&input) {
            BinaryStep::Answer { consumed, answer } => {
                let remaining = match answer {
                    BinaryAnswer::Hits { remaining, .. } => remaining,
                    BinaryAnswer::Record { record, remaining } => {
                        found.insert(record.key.to_vec(), record.value.to_vec());
                        remaining
                    }
                    other => panic!("{other:?}"),
                };
                input.drain(..consumed);
                if remaining == 0 {
                    return found;
                }
            }
            BinaryStep::NeedMore { at_least } => input.extend(client.take(at_least)),
            BinaryStep::Malformed => panic!("no answer"),
        }
    }
}

/// Decodes a key that is encoded as in a URI.
pub(crate) fn decode_uri(text: &[u8]) -> Vec<u8> {
    let (mut key, mut rest) = (Vec::new(), text);
    while let [byte, behind @ ..] = rest {
        rest = behind;
        if *byte == b'%' {
            key.push(u8::from_str_radix(std::str::from_utf8(&rest[..2]).unwrap(), 16).unwrap());
            rest = &rest[2..];
        } else {
            key.push(*byte);
        }
    }
    key
}
