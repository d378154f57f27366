//! Samples a Kyoto Tycoon by its calls over HTTP.

use super::sample::{RecordSample, SampledRecord, SampledServer};
use crate::CommandFailure;
use std::io::{Read, Write};
use std::net::TcpStream;
use todana_protocol::kyoto::client::{AnswerDecoder, AnswerStep, CallOutcome};
use todana_protocol::kyoto::{AnswerPairs, KyotoLimits, MapScratch};

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
    let keys: Vec<Vec<u8>> =
        keys.into_iter().filter(|(name, _)| name.starts_with(b"_")).map(|(name, _)| name).collect();
    for batch in keys.chunks(KEYS_AT_ONCE) {
        if sample.is_complete() {
            break;
        }
        let pairs: Vec<(&[u8], &[u8])> = batch.iter().map(|name| (name.as_slice(), &b""[..])).collect();
        for (name, value) in call(&mut stream, "get_bulk", &pairs)? {
            let Some(key) = name.strip_prefix(b"_") else { continue };
            sample.add(SampledRecord { key: key.to_vec(), value, flags: 0, expires: None });
        }
    }
    let memory = figure("sys_mem_rss").and_then(|text| text.parse().ok());
    let mut notes =
        vec!["expiry is not part of the sample; docs/replacing-kyoto-tycoon.md keeps it".to_string()];
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
