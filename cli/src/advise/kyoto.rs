//! Samples a Kyoto Tycoon by its calls over HTTP, and by its binary protocol, whose replies have
//! the expiry of records.

use super::sample::{RecordSample, SampledRecord, SampledServer};
use crate::CommandFailure;
use std::io::{Read, Write};
use std::net::TcpStream;
use todana_protocol::kyoto::client::{
    AnswerDecoder, AnswerStep, BinaryAnswer, BinaryAnswerDecoder, BinaryStep, CallOutcome, put_bulk, put_key,
};
use todana_protocol::kyoto::{AnswerPairs, BulkOperation, KyotoLimits, MapScratch, expiry};

/// The number of keys in one request.
const KEYS_AT_ONCE: usize = 64;
const READ_BYTES: usize = 64 << 10;

/// The names and values of an answer.
type AnswerMap = Vec<(Vec<u8>, Vec<u8>)>;

/// Reads the first records of the first database.
pub(super) fn sample(
    mut stream: TcpStream,
    sample: &mut RecordSample,
) -> Result<SampledServer, CommandFailure> {
    let report = call(&mut stream, "report", &[])?;
    let figure = |name: &str| {
        let found = report.iter().find(|(known, _)| known == name.as_bytes());
        found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    };
    let first = figure("db_0").ok_or_else(unexpected)?;
    let of = |name: &str| first.split(' ').find_map(|word| word.strip_prefix(name)).map(str::to_string);
    let records = of("count=").and_then(|count| count.parse().ok()).unwrap_or(0);
    let max = sample.wanted().to_string();
    let keys = call(&mut stream, "match_prefix", &[(b"prefix", b""), (b"max", max.as_bytes())])?;
    let keys: Vec<&[u8]> = keys.iter().filter_map(|(name, _)| name.strip_prefix(b"_")).collect();
    for batch in keys.chunks(KEYS_AT_ONCE) {
        if sample.is_complete() {
            break;
        }
        read(&mut stream, batch, sample)?;
    }
    let memory = figure("sys_mem_rss").and_then(|text| text.parse().ok());
    let mut notes = Vec::new();
    if figure("db_1").is_some() {
        notes.push("only the first database was sampled; the memory there is that of all".into());
    }
    let path = of("path=").unwrap_or_default();
    if ["%", ".kct", ".kcf"].iter().any(|end| path == *end || path.ends_with(end)) {
        notes.push(
            "the database is a tree; the sample has its first keys, and the memory here is that of a hash"
                .into(),
        );
    }
    Ok(SampledServer {
        name: format!("kyoto tycoon {}", figure("conf_kt_version").unwrap_or_default()),
        records,
        memory: memory.map(|bytes| (bytes, "sys_mem_rss")),
        notes,
    })
}

/// Reads the records of these keys in the first database.
fn read(stream: &mut TcpStream, keys: &[&[u8]], sample: &mut RecordSample) -> Result<(), CommandFailure> {
    let mut request = Vec::new();
    put_bulk(BulkOperation::Get, keys.len() as u32, false, &mut request);
    keys.iter().for_each(|key| put_key(0, key, &mut request));
    stream.write_all(&request)?;
    let (mut answers, mut input, mut at) = (BinaryAnswerDecoder::default(), Vec::new(), 0);
    let mut bytes = vec![0; READ_BYTES];
    loop {
        let remaining = match answers.decode(&input[at..]) {
            BinaryStep::Answer { consumed, answer } => {
                at += consumed;
                match answer {
                    BinaryAnswer::Hits { remaining, .. } => remaining,
                    BinaryAnswer::Record { record, remaining } => {
                        let expires = Some(u64::try_from(record.xt).is_ok_and(|xt| xt < expiry::NEVER));
                        let (key, value) = (record.key.to_vec(), record.value.to_vec());
                        sample.add(SampledRecord { key, value, flags: 0, expires });
                        remaining
                    }
                    _ => return Err(unexpected()),
                }
            }
            BinaryStep::NeedMore { .. } => match stream.read(&mut bytes) {
                Ok(len @ 1..) => {
                    input.extend_from_slice(&bytes[..len]);
                    continue;
                }
                Ok(0) | Err(_) => return Err(unexpected()),
            },
            BinaryStep::Malformed => return Err(unexpected()),
        };
        if remaining == 0 {
            return Ok(());
        }
    }
}

fn unexpected() -> CommandFailure {
    CommandFailure::trouble("the server speaks none of memcached's, Redis's and Kyoto Tycoon's protocols")
}

/// Calls a procedure.
fn call(stream: &mut TcpStream, name: &str, pairs: &[(&[u8], &[u8])]) -> Result<AnswerMap, CommandFailure> {
    let (mut request, mut output) = (Vec::new(), AnswerPairs::default());
    pairs.iter().for_each(|(name, value)| output.push(name, value));
    output.write_call(name, "localhost", &mut request);
    stream.write_all(&request)?;
    let (mut answers, mut scratch, mut input) = (AnswerDecoder::default(), MapScratch::default(), Vec::new());
    let mut bytes = vec![0; READ_BYTES];
    loop {
        match answers.decode(&KyotoLimits::default(), &input, &mut scratch, true) {
            AnswerStep::Answer { answer, .. } if answer.outcome() == CallOutcome::Success => {
                return Ok(answer.map.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect());
            }
            AnswerStep::Answer { answer, .. } => {
                let text = String::from_utf8_lossy(answer.error().unwrap_or_default()).into_owned();
                return Err(CommandFailure::trouble(format!(
                    "{name}: the server says: {} {text}",
                    answer.status
                )));
            }
            AnswerStep::NeedMore { .. } => match stream.read(&mut bytes) {
                Ok(len @ 1..) => input.extend_from_slice(&bytes[..len]),
                Ok(0) | Err(_) => return Err(unexpected()),
            },
            AnswerStep::Malformed => return Err(unexpected()),
        }
    }
}
