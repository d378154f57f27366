//! Compares the maps of requests and answers with a model that is as simple as possible.

use crate::exchange::send_in_pieces;
use std::collections::BTreeMap;
use todana_protocol::kyoto::client::{AnswerDecoder, AnswerStep};
use todana_protocol::kyoto::{KyotoDecoder, KyotoLimits, KyotoRequest, KyotoStep, MapScratch};

/// A pseudo-random generator (xorshift); a failing test prints its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    fn bytes(&mut self, alphabet: &[u8], len_max: usize) -> Vec<u8> {
        (0..self.below(len_max + 1)).map(|_| alphabet[self.below(alphabet.len())]).collect()
    }
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

fn model_of_tsv(body: &[u8], pairs: &mut Pairs) {
    for line in body.split(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some(tab) = line.iter().position(|&byte| byte == b'\t') {
            pairs.insert(line[..tab].to_vec(), line[tab + 1..].to_vec());
        }
    }
}

fn model_of_form(form: &[u8], pairs: &mut Pairs) {
    for pair in form.split(|&byte| byte == b'&' || byte == b';') {
        let blanks = pair.iter().take_while(|&&byte| (1..=32).contains(&byte)).count();
        let pair = &pair[blanks..];
        if !pair.is_empty() {
            let split = pair.iter().position(|&byte| byte == b'=');
            let (name, value) = split.map_or((pair, &b""[..]), |at| (&pair[..at], &pair[at + 1..]));
            pairs.insert(model_of_percent(name), model_of_percent(value));
        }
    }
}

fn model_of_percent(text: &[u8]) -> Vec<u8> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < text.len() {
        match text[at] {
            b'%' if at + 2 < text.len() => {
                let mut byte = 0u8;
                for &digit in &text[at + 1..at + 3] {
                    if let Some(value) = (digit as char).to_digit(16) {
                        byte = byte * 16 + value as u8;
                    }
                }
                found.push(byte);
                at += 2;
            }
            b'%' => break,
            b'+' => found.push(b' '),
            byte if byte <= 32 || byte == 127 => {}
            byte => found.push(byte),
        }
        at += 1;
    }
    found
}

/// Returns the pairs of a call, and the pairs that the simplified server answers.
fn called(stream: &[u8]) -> (Pairs, Pairs) {
    let (mut dialect, mut scratch) = (KyotoDecoder::default(), MapScratch::default());
    let step = dialect.decode(&KyotoLimits::default(), stream, &mut scratch);
    let KyotoStep::Request { consumed, request: KyotoRequest::Call(call) } = step else { panic!("{step:?}") };
    assert_eq!(consumed, stream.len());
    let owned = |(name, value): (&[u8], &[u8])| (name.to_vec(), value.to_vec());
    let given: Pairs = call.input.iter().map(owned).collect();
    assert_eq!(given.len(), call.input.len());
    for (name, value) in &given {
        assert_eq!(call.input.get(name), Some(&value[..]));
    }
    let outcome = send_in_pieces(&KyotoLimits::default(), stream, &[]);
    let mut scratch = MapScratch::default();
    let step = AnswerDecoder::default().decode(&KyotoLimits::default(), &outcome.answers, &mut scratch, true);
    let AnswerStep::Answer { consumed, answer } = step else { panic!("{step:?}") };
    assert_eq!((consumed, answer.status), (outcome.answers.len(), 200));
    (given, answer.map.iter().map(owned).collect())
}

#[test]
fn maps_agree_with_the_model() {
    for seed in 1..3000u64 {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let query = random.bytes(b"ab%4+&;=1\xC3", 20);
        let body = random.bytes(b"ab\t\t\n\n\r%4+&=\xFF\0", 60);
        let mut model = Pairs::new();
        model_of_form(&query, &mut model);
        let content_type =
            ["text/tab-separated-values", "application/x-www-form-urlencoded", "x"][random.below(3)];
        match content_type.as_bytes()[0] {
            b't' => model_of_tsv(&body, &mut model),
            b'a' => model_of_form(body.split(|&byte| byte == 0).next().unwrap(), &mut model),
            _ => {}
        }
        let is_chunked = random.below(2) == 1;
        let mut stream = [&b"POST /rpc/echo?"[..], &query, b" HTTP/1.1\r\nContent-Type: "].concat();
        stream.extend_from_slice(content_type.as_bytes());
        if is_chunked {
            stream.extend_from_slice(b"\r\nTransfer-Encoding: chunked\r\n\r\n");
            for chunk in body.chunks(1 + random.below(9)) {
                stream.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                stream.extend_from_slice(chunk);
                stream.extend_from_slice(b"\r\n");
            }
            stream.extend_from_slice(b"0\r\n\r\n");
        } else {
            stream.extend_from_slice(format!("\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes());
            stream.extend_from_slice(&body);
        }
        let (given, echoed) = called(&stream);
        assert_eq!(given, model, "seed {seed}: {}", stream.escape_ascii());
        assert_eq!(echoed, model, "seed {seed}");
    }
}
