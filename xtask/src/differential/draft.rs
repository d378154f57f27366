//! Random text and meta requests, most of them valid. They share few keys, so that they affect
//! each other's records.

use super::request::{RandomRequest, RequestPart};
use fastrand::Rng;

/// The lowest version that requests assign to records. Comparisons keep such versions in replies
/// and remove those that a server chose.
pub(super) const VERSION_MIN: u64 = 7_000_000_000_000_000;

const KEYS: [char; 4] = ['a', 'b', 'c', 'd'];
const META_LETTERS: &[u8] = b"bkOqvsctfhluTNRCEFIxMJD";

/// Returns a few requests.
pub(super) fn session(random: &mut Rng) -> Vec<RandomRequest> {
    (0..random.usize(2..25)).map(|_| request(random)).collect()
}

fn request(random: &mut Rng) -> RandomRequest {
    let mut request = match random.u8(0..20) {
        0..=1 => get(random),
        2..=5 => store(random),
        6 => line(random, "delete", &[]),
        7..=8 => arithmetic(random),
        9 => line(random, "touch", &[RequestWord::Time]),
        10..=13 => meta(random, "mg"),
        14..=16 => meta(random, "ms"),
        17 => meta(random, "md"),
        18 => meta(random, "ma"),
        _ => line(random, "me", &[]),
    };
    let has_block = request.parts.iter().any(|part| matches!(part, RequestPart::Block(_)));
    if !has_block && random.u8(0..20) == 0 {
        damage(random, &mut request);
    }
    request
}

/// Replaces, inserts or removes one byte of the request line. Line ends and block lengths stay;
/// otherwise the server would parse the data block as requests.
fn damage(random: &mut Rng, request: &mut RandomRequest) {
    let place = random.usize(..request.parts.len());
    let RequestPart::Text(text) = &mut request.parts[place] else { return };
    let words = text.iter().position(|byte| b"\r\n".contains(byte)).unwrap_or(text.len());
    if words < 2 {
        return;
    }
    let at = random.usize(1..words);
    let byte = *random.choice(b" 0-+z\tk").unwrap_or(&b' ');
    match random.u8(0..3) {
        0 => text[at] = byte,
        1 => text.insert(at, byte),
        _ => drop(text.remove(at)),
    }
}

fn key(random: &mut Rng) -> RequestPart {
    RequestPart::Key(random.choice(KEYS).unwrap_or('a'))
}

enum RequestWord {
    Time,
    Delta,
}

fn time(random: &mut Rng) -> &'static str {
    random.choice(["0", "0", "0", "100", "5000", "-1", "2592000", "-0", "x", "2147483648", ""]).unwrap_or("0")
}

fn number(random: &mut Rng) -> String {
    match random.u8(0..8) {
        0 => "18446744073709551615".into(),
        1 => "18446744073709551616".into(),
        2 => "x".into(),
        3 => "-1".into(),
        4 => String::new(),
        _ => random.u32(0..200).to_string(),
    }
}

fn version(random: &mut Rng) -> String {
    match random.u8(0..8) {
        0 => "x".into(),
        1 => "1".into(),
        _ => (VERSION_MIN + random.u64(1..4)).to_string(),
    }
}

fn value(random: &mut Rng) -> Vec<u8> {
    match random.u8(0..6) {
        0 => Vec::new(),
        1 => vec![b'v'; random.usize(0..300)],
        2 => b"text".to_vec(),
        3 => b"18446744073709551610".to_vec(),
        4 => random.u16(0..100).to_string().into_bytes(),
        _ => random.u16(..).to_string().into_bytes(),
    }
}

fn end(random: &mut Rng, request: &mut RandomRequest) {
    if random.u8(0..15) == 0 {
        request.text(" noreply");
    }
    request.text(if random.u8(0..60) == 0 { "\n" } else { "\r\n" });
}

fn line(random: &mut Rng, command: &str, words: &[RequestWord]) -> RandomRequest {
    let mut request = RandomRequest::default();
    request.text(format!("{command} "));
    request.parts.push(key(random));
    for word in words {
        request.text(match word {
            RequestWord::Time => format!(" {}", time(random)),
            RequestWord::Delta => format!(" {}", number(random)),
        });
    }
    end(random, &mut request);
    request
}

fn get(random: &mut Rng) -> RandomRequest {
    let mut request = RandomRequest::default();
    let command = random.choice(["get", "gets", "gat", "gats"]).unwrap_or("get");
    request.text(command);
    if command.starts_with("gat") {
        request.text(format!(" {}", time(random)));
    }
    for _ in 0..random.u8(0..4) {
        request.text(" ");
        request.parts.push(key(random));
    }
    request.text("\r\n");
    request
}

fn arithmetic(random: &mut Rng) -> RandomRequest {
    let command = random.choice(["incr", "decr"]).unwrap_or("incr");
    line(random, command, &[RequestWord::Delta])
}

/// Appends a data block, nearly always with a valid end.
fn block(random: &mut Rng, request: &mut RandomRequest, value: &[u8]) {
    // After an `ms` with a bad block, memcached assigns the version in its flag E to the next
    // record.
    let is_meta = matches!(request.parts.first(), Some(RequestPart::Text(text)) if text == b"ms ");
    let end: &[u8] = if !is_meta && random.u8(0..60) == 0 { b"!\r\n" } else { b"\r\n" };
    request.parts.push(RequestPart::Block([value, end].concat()));
}

fn store(random: &mut Rng) -> RandomRequest {
    let mut request = RandomRequest::default();
    let command = random
        .choice(["set", "set", "set", "add", "replace", "append", "prepend", "cas", "cas"])
        .unwrap_or("set");
    let value = value(random);
    request.text(format!("{command} "));
    request.parts.push(key(random));
    let flags = random.choice(["0", "0", "7", "4294967295", "4294967296", "+5", "-1", "x"]).unwrap_or("0");
    request.text(format!(" {flags} {} {}", time(random), value.len()));
    if command == "cas" && random.u8(0..10) > 0 {
        request.text(format!(" {}", version(random)));
    }
    end(random, &mut request);
    block(random, &mut request, &value);
    request
}

fn meta(random: &mut Rng, command: &str) -> RandomRequest {
    let mut request = RandomRequest::default();
    let value = value(random);
    let letter = random.choice(KEYS).unwrap_or('a');
    let encoding = random.u8(0..6);
    request.text(format!("{command} "));
    request.parts.push(match encoding {
        // memcached shows a key in base64 if the record was stored so, Todana if the request
        // names it so. Upper-case letters keep encoded and plain keys apart.
        0 => RequestPart::EncodedKey(letter.to_ascii_uppercase()),
        1 => RequestPart::BinaryKey(letter),
        _ => RequestPart::Key(letter),
    });
    if command == "ms" {
        request.text(format!(" {}", value.len()));
    }
    let mut letters: Vec<u8> = META_LETTERS.to_vec();
    random.shuffle(&mut letters);
    letters.truncate(random.usize(0..6));
    // Nearly always, exactly the requests with a base64 key have flag b.
    letters.retain(|&letter| letter != b'b');
    if encoding < 2 && random.u8(0..40) > 0 {
        letters.insert(random.usize(0..=letters.len()), b'b');
    }
    if random.u8(0..60) == 0 {
        letters.push(*random.choice(b"yPL5!qv").unwrap_or(&b'y'));
    }
    for letter in letters {
        let argument = match letter {
            b'T' | b'N' | b'R' => time(random).into(),
            b'C' | b'E' => version(random),
            b'F' => random.choice(["0", "9", "4294967295", "4294967296", ""]).unwrap_or("0").into(),
            b'J' | b'D' => number(random),
            b'M' => random
                .choice(["S", "E", "A", "P", "R", "I", "D", "+", "-", "X", "", "append"])
                .unwrap_or("S")
                .into(),
            b'O' => "o".repeat(random.usize(0..36)),
            _ => String::new(),
        };
        request.text(format!(" {}{argument}", char::from(letter)));
    }
    request.text("\r\n");
    if command == "ms" {
        block(random, &mut request, &value);
    }
    request
}
