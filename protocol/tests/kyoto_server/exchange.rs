//! Feeds streams of requests, split in any way, to a simplified server that keeps records in a map,
//! so that answers are written too.

use std::collections::BTreeMap;
use todana_protocol::kyoto::{
    AnswerBanner, AnswerPairs, AnswerStatus, BasicCredentials, BulkOperation, BulkRecord, CallFailure,
    DatabaseError, DatabaseTarget, KyotoDecoder, KyotoLimits, KyotoRequest, KyotoStep, MapScratch, Procedure,
    ProcedureCall, RestAction, RestAnswer, RestMode, RestRequest, answer_failure, answer_refusal,
    answer_rest, answer_unauthorized, binary, expiry,
};

/// The time at which all requests are executed.
pub(crate) const NOW: u64 = 1_800_000_000;

/// The result of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The requests as text.
    pub(crate) requests: Vec<String>,
    /// The answers, concatenated.
    pub(crate) answers: Vec<u8>,
    /// True if the decoder has closed the connection.
    pub(crate) is_closed: bool,
}

/// Sends the stream in pieces that end at these offsets.
pub(crate) fn send_in_pieces(limits: &KyotoLimits, stream: &[u8], cuts: &[usize]) -> Outcome {
    let (mut dialect, mut scratch, mut toy) =
        (KyotoDecoder::default(), MapScratch::default(), Toy::default());
    let mut outcome = Outcome::default();
    // The received bytes; consumed bytes are removed.
    let mut input = Vec::new();
    let mut sent = 0;
    // The requested number of bytes must never exceed the number that is sufficient.
    let mut needed = 0;
    for &end in cuts.iter().chain([&stream.len()]) {
        input.extend_from_slice(&stream[sent..end]);
        sent = end;
        loop {
            match dialect.decode(limits, &input, &mut scratch) {
                KyotoStep::Request { consumed, request } => {
                    assert!((1..=input.len()).contains(&consumed), "{consumed} of {}", input.len());
                    assert!(
                        input.len() >= needed || matches!(request, KyotoRequest::Refused(_)),
                        "{request:?}"
                    );
                    needed = 0;
                    outcome.requests.push(format!("{request:?}"));
                    toy.execute(&request, &mut outcome.answers);
                    input.drain(..consumed);
                }
                KyotoStep::Login { consumed, authorization } => {
                    assert!(consumed <= input.len() && input.len() >= needed);
                    needed = 0;
                    if authorization.is_some_and(is_of_alice) {
                        dialect.accept_login();
                    } else {
                        let form = dialect.refuse_login(limits);
                        outcome.requests.push(format!("stranger {form:?}"));
                        answer_unauthorized(&form, &AnswerBanner::new("T", NOW), &mut outcome.answers);
                    }
                    input.drain(..consumed);
                }
                KyotoStep::NeedMore { consumed, at_least } => {
                    assert!(consumed <= input.len() && at_least > 0);
                    input.drain(..consumed);
                    needed = input.len() + at_least;
                    break;
                }
                KyotoStep::Close => {
                    outcome.is_closed = true;
                    return outcome;
                }
            }
        }
    }
    outcome
}

/// The single user's password is `secret`.
fn is_of_alice(authorization: &[u8]) -> bool {
    let said = BasicCredentials::read(authorization);
    said.is_some_and(|said| (said.user(), said.password()) == (b"alice", b"secret"))
}

/// Sends the stream in one piece; returns the answers without the headers that vary.
pub(crate) fn answers(stream: &[u8]) -> String {
    let outcome = send_in_pieces(&KyotoLimits::default(), stream, &[]);
    show(&outcome.answers)
}

/// Returns escaped answers without the headers that vary.
pub(crate) fn show(answers: &[u8]) -> String {
    let banner = b"Server: KyotoTycoon/T\r\nDate: Fri, 15 Jan 2027 08:00:00 GMT\r\n";
    let mut rest = answers;
    let mut shown = Vec::new();
    while let Some(at) = rest.windows(banner.len()).position(|window| window == banner) {
        shown.extend_from_slice(&rest[..at]);
        shown.extend_from_slice(b"...");
        rest = &rest[at + banner.len()..];
    }
    shown.extend_from_slice(rest);
    shown.escape_ascii().to_string()
}

/// A server of one database, whose records keep an expiry that is never reached, and the other
/// features that tests need.
#[derive(Default)]
struct Toy {
    records: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
    output: AnswerPairs,
    /// The answer of a bulk request.
    hits: u32,
    bulk: Vec<u8>,
}

impl Toy {
    fn execute(&mut self, request: &KyotoRequest<'_>, out: &mut Vec<u8>) {
        let banner = AnswerBanner::new("T", NOW);
        match request {
            KyotoRequest::Call(call) => match self.call(call) {
                Ok(()) => self.output.write(&call.form, &banner, AnswerStatus::Ok, out),
                Err(failure) => answer_failure(&call.form, &banner, &failure, out),
            },
            KyotoRequest::Rest(rest) => {
                let found;
                let answer = match self.rest(rest) {
                    Ok(Some(record)) => {
                        found = record;
                        RestAnswer::Found { value: &found.0, xt: Some(found.1) }
                    }
                    Ok(None) => match rest.action {
                        RestAction::Put { .. } => RestAnswer::Stored { port: 19780 },
                        RestAction::Unknown => RestAnswer::Unknown,
                        _ => RestAnswer::Removed,
                    },
                    Err(failure) => RestAnswer::Failed(failure),
                };
                answer_rest(rest, &banner, &answer, out);
            }
            KyotoRequest::Bulk(piece) => {
                match piece.record {
                    None => (self.hits, self.bulk) = (0, Vec::new()),
                    Some(record) => self.bulk_record(piece.operation, record),
                }
                if piece.remaining == 0 && !piece.is_silent {
                    binary::put_hits(piece.operation, self.hits, out);
                    out.append(&mut self.bulk);
                }
            }
            KyotoRequest::Script(script) => match script.name {
                _ if script.is_silent => {}
                b"echo" => binary::put_script_answer(script.input.iter(), out),
                _ => binary::put_error(out),
            },
            KyotoRequest::Replicate(_) => binary::put_accepted(out),
            KyotoRequest::Acknowledged => {}
            KyotoRequest::Refused(refusal) => answer_refusal(&banner, *refusal, out),
        }
    }

    fn call(&mut self, call: &ProcedureCall<'_>) -> Result<(), CallFailure<'static>> {
        self.output.clear();
        if call.target() != DatabaseTarget::Index(0) {
            return Err(CallFailure::NoSuchDatabase);
        }
        match call.procedure {
            Some(Procedure::Echo) => {
                call.input.iter().for_each(|(name, value)| self.output.push(name, value));
            }
            Some(Procedure::Set) => {
                let (key, value) = (call.required(b"key")?, call.required(b"value")?);
                self.records.insert(key.to_vec(), (value.to_vec(), expiry::resolve(call.xt(), NOW)));
            }
            Some(Procedure::Get) => {
                let record = self.records.get(call.required(b"key")?);
                let (value, xt) = record.ok_or(CallFailure::Database(DatabaseError::NoRecord))?;
                self.output.push(b"value", value);
                if *xt < expiry::NEVER {
                    self.output.push_number(b"xt", *xt);
                }
            }
            Some(Procedure::SetBulk) => {
                self.output.push_number(b"num", call.records().count());
            }
            Some(Procedure::Void) => {}
            // The name borrows from the request, but the failure must outlive it here.
            _ => return Err(CallFailure::Other { status: AnswerStatus::NotImplemented, text: "not here" }),
        }
        Ok(())
    }

    fn rest(&mut self, rest: &RestRequest<'_>) -> Result<Option<(Vec<u8>, u64)>, CallFailure<'static>> {
        if rest.target != DatabaseTarget::Index(0) {
            return Err(CallFailure::NoSuchDatabase);
        }
        let missing = CallFailure::Database(DatabaseError::NoRecord);
        match rest.action {
            RestAction::Get => self.records.get(rest.key).cloned().map(Some).ok_or(missing),
            RestAction::Put { value, mode, xt } => {
                match (mode, self.records.contains_key(rest.key)) {
                    (RestMode::Add, true) => return Err(CallFailure::Database(DatabaseError::Duplication)),
                    (RestMode::Replace, false) => return Err(missing),
                    _ => {}
                }
                let record = (value.to_vec(), xt.unwrap_or(expiry::NEVER));
                self.records.insert(rest.key.to_vec(), record);
                Ok(None)
            }
            RestAction::Delete => self.records.remove(rest.key).map(|_| None).ok_or(missing),
            RestAction::Unknown => Ok(None),
        }
    }

    fn bulk_record(&mut self, operation: BulkOperation, record: BulkRecord<'_>) {
        // A persistent database with one record.
        if record.database == 3 {
            self.hits += 1;
            let answer = BulkRecord { value: b"q", xt: expiry::PERSISTENT, ..record };
            return binary::put_record(&answer, &mut self.bulk);
        }
        if record.database != 0 {
            return;
        }
        match operation {
            BulkOperation::Set => {
                let xt = expiry::resolve(Some(record.xt), NOW);
                self.records.insert(record.key.to_vec(), (record.value.to_vec(), xt));
                self.hits += 1;
            }
            BulkOperation::Remove => {
                self.hits += u32::from(self.records.remove(record.key).is_some());
            }
            BulkOperation::Get => {
                let Some((value, xt)) = self.records.get(record.key) else { return };
                self.hits += 1;
                let answer = BulkRecord { value, xt: *xt as i64, ..record };
                binary::put_record(&answer, &mut self.bulk);
            }
        }
    }
}

/// Parses hexadecimal bytes, with blanks anywhere.
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}
