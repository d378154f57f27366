//! Generates records that resemble the contents of caches, each from its number, so that a run can
//! be repeated.

use std::io::Write;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// A kind of record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordShape {
    /// A number of eight digits, and the same number.
    Number,
    /// An address, and a counter.
    Counter,
    /// A random identifier, and 64 random letters and digits.
    Session,
    /// A user's number, and JSON of about 150 bytes.
    Profile,
    /// A path, and 1000 random letters.
    PagePiece,
    /// A user's number, and JSON of about 73 bytes.
    ShortProfile,
    /// A UUID, and JSON of about 428 bytes.
    SessionJson,
    /// The number, and a piece of a file.
    FilePiece(Arc<FilePieces>),
}

/// The shapes that `todana bench memory` measures if none is named.
pub(crate) const SHAPES: [RecordShape; 5] = [
    RecordShape::Number,
    RecordShape::Counter,
    RecordShape::Session,
    RecordShape::Profile,
    RecordShape::PagePiece,
];

impl FromStr for RecordShape {
    type Err = String;

    fn from_str(text: &str) -> Result<RecordShape, String> {
        let pieces = |path: &str, separator| {
            FilePieces::read(path.as_ref(), separator)
                .map(|pieces| RecordShape::FilePiece(Arc::new(pieces)))
                .map_err(|error| format!("{path}: {error}"))
        };
        match text.split_once(':') {
            Some(("lines", path)) => pieces(path, b"\n"),
            Some(("stanzas", path)) => pieces(path, b"\n\n"),
            None if text == "number" => Ok(RecordShape::Number),
            None if text == "counter" => Ok(RecordShape::Counter),
            None if text == "session" => Ok(RecordShape::Session),
            None if text == "profile" => Ok(RecordShape::Profile),
            None if text == "page" => Ok(RecordShape::PagePiece),
            None if text == "short-profile" => Ok(RecordShape::ShortProfile),
            None if text == "session-json" => Ok(RecordShape::SessionJson),
            _ => Err("there are number, counter, session, profile, page, short-profile, session-json, \
                      lines:FILE and stanzas:FILE"
                .into()),
        }
    }
}

impl RecordShape {
    /// Returns false for shapes with very long records. Their bars would make the other bars too
    /// short to compare.
    pub(crate) fn is_drawn(&self) -> bool {
        !matches!(self, RecordShape::PagePiece | RecordShape::FilePiece(_))
    }

    /// Returns a short description.
    pub fn label(&self) -> String {
        let label = match self {
            RecordShape::Number => "8-digit number -> the same number",
            RecordShape::Counter => "rate:198.51.100.7 -> a counter",
            RecordShape::Session => "session:(32 hex digits) -> 64 bytes",
            RecordShape::Profile => "user:123:profile -> JSON of about 150 bytes",
            RecordShape::PagePiece => "page:/articles/123 -> 1000 bytes of text",
            RecordShape::ShortProfile => "user:123:profile -> JSON of about 73 bytes",
            RecordShape::SessionJson => "session:UUID -> JSON of about 428 bytes",
            RecordShape::FilePiece(pieces) => return format!("number -> piece of {}", pieces.name),
        };
        label.into()
    }

    /// Writes the record with this number, which always has the same bytes. Numbers begin at 1.
    pub fn put(&self, number: u64, key: &mut Vec<u8>, value: &mut Vec<u8>) {
        key.clear();
        value.clear();
        self.put_key(number, key);
        self.put_value(number, value);
    }

    /// Appends the key of the record with this number.
    pub(crate) fn put_key(&self, number: u64, key: &mut Vec<u8>) {
        // Writing to a `Vec` cannot fail.
        let _ = match self {
            RecordShape::Number => write!(key, "{number:08}"),
            RecordShape::Counter => {
                let [a, b, c] = [number >> 16 & 255, number >> 8 & 255, number & 255];
                write!(key, "rate:{}.{a}.{b}.{c}", 1 + (number >> 24 & 255))
            }
            RecordShape::Session => write!(key, "session:{:032x}", key_random(number).u128(..)),
            RecordShape::Profile | RecordShape::ShortProfile => write!(key, "user:{number}:profile"),
            RecordShape::PagePiece => write!(key, "page:/articles/{number}"),
            RecordShape::SessionJson => put_uuid(key, key_random(number).u128(..)),
            RecordShape::FilePiece(_) => write!(key, "{number}"),
        };
    }

    /// Appends the value of the record with this number.
    pub(crate) fn put_value(&self, number: u64, value: &mut Vec<u8>) {
        let random = &mut fastrand::Rng::with_seed(number);
        // Writing to a `Vec` cannot fail.
        let _ = match self {
            RecordShape::Number => write!(value, "{number:08}"),
            RecordShape::Counter => write!(value, "{}", random.u32(1..1000)),
            RecordShape::Session => {
                value.extend((0..64).map(|_| random.alphanumeric() as u8));
                Ok(())
            }
            RecordShape::Profile => put_profile(value, number, random),
            RecordShape::PagePiece => {
                value.extend(
                    (0..1000).map(|_| if random.u8(0..6) == 0 { b' ' } else { random.lowercase() as u8 }),
                );
                Ok(())
            }
            RecordShape::ShortProfile => put_short_profile(value, number, random),
            RecordShape::SessionJson => put_session_json(value, random),
            RecordShape::FilePiece(pieces) => {
                pieces.put(value, number);
                Ok(())
            }
        };
    }
}

/// Returns the source of the random part of a key. It is not the one of the value.
fn key_random(number: u64) -> fastrand::Rng {
    fastrand::Rng::with_seed(!number)
}

/// Appends a key with a UUID of version 4.
fn put_uuid(key: &mut Vec<u8>, random: u128) -> std::io::Result<()> {
    let bits = random & !(0xF << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let part = |shift: u32, len: u32| bits >> shift & ((1 << len) - 1);
    write!(
        key,
        "session:{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        part(96, 32),
        part(80, 16),
        part(64, 16),
        part(48, 16),
        part(0, 48)
    )
}

fn pick<'t>(random: &mut fastrand::Rng, list: &[&'t str]) -> &'t str {
    list[random.usize(..list.len())]
}

fn put_profile(value: &mut Vec<u8>, number: u64, random: &mut fastrand::Rng) -> std::io::Result<()> {
    let (first, last) = (pick(random, &FIRST_NAMES[..8]), pick(random, &LAST_NAMES[..8]));
    write!(
        value,
        r#"{{"id":{number},"name":"{first} {last}","email":"{}.{}{}@example.com","created":"20{}-0{}-1{}","visits":{},"language":"{}","plan":"basic","active":true}}"#,
        first.to_lowercase(),
        last.to_lowercase(),
        random.u16(1..1000),
        random.u8(10..27),
        random.u8(1..10),
        random.u8(..10),
        random.u16(..),
        pick(random, &["de", "en", "ja", "ar"]),
    )
}

fn put_short_profile(value: &mut Vec<u8>, number: u64, random: &mut fastrand::Rng) -> std::io::Result<()> {
    let (first, last, city) = (pick(random, &FIRST_NAMES), pick(random, &LAST_NAMES), pick(random, &CITIES));
    let balance = random.u32(..1_000_000);
    write!(value, r#"{{"id":{number},"name":"{first} {last}","location":"{city}","balance":{balance}}}"#)
}

fn put_session_json(value: &mut Vec<u8>, random: &mut fastrand::Rng) -> std::io::Result<()> {
    let (first, last) = (pick(random, &FIRST_NAMES), pick(random, &LAST_NAMES));
    let created = 1_764_000_000 - random.u64(..2_600_000);
    write!(
        value,
        r#"{{"user":{{"id":{},"name":"{first} {last}","email":"{}.{}@example.com"}},"csrf_token":"{:032x}","address":"{}.{}.{}.{}","agent":"Mozilla/5.0 ({}) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/{}.0.0.0 Safari/537.36","locale":"{}","created_at":{created},"last_seen":{},"cart":[{{"article":{},"quantity":{}}},{{"article":{},"quantity":{}}}],"is_admin":false}}"#,
        random.u32(1_000_000..10_000_000),
        first.to_lowercase(),
        last.to_lowercase(),
        random.u128(..),
        random.u8(1..224),
        random.u8(..),
        random.u8(..),
        random.u8(..),
        pick(random, &SYSTEMS),
        random.u8(110..143),
        pick(random, &LOCALES),
        created + random.u64(..10_000),
        random.u32(100_000..1_000_000),
        random.u8(1..6),
        random.u32(100_000..1_000_000),
        random.u8(1..6),
    )
}

const FIRST_NAMES: [&str; 48] = [
    "Maria", "John", "Aiko", "Fatima", "Pedro", "Olga", "Li", "Amara", "Anna", "Carlos", "Chen", "Daniel",
    "Elena", "Emma", "Femi", "Grace", "Hannah", "Hiro", "Ines", "Ivan", "James", "Jana", "Jonas", "Kofi",
    "Lars", "Laura", "Leila", "Lucas", "Mei", "Mohammed", "Nadia", "Nina", "Noah", "Omar", "Paula", "Peter",
    "Priya", "Rafael", "Rosa", "Samuel", "Sara", "Sofia", "Tariq", "Thomas", "Viktor", "Wei", "Yara", "Zoe",
];

const LAST_NAMES: [&str; 60] = [
    "Keller",
    "Smith",
    "Tanaka",
    "Haddad",
    "Silva",
    "Petrova",
    "Wang",
    "Okafor",
    "Adeyemi",
    "Ahmed",
    "Andersson",
    "Becker",
    "Brown",
    "Chowdhury",
    "Costa",
    "Davies",
    "Diaz",
    "Dubois",
    "Eriksen",
    "Evans",
    "Fernandez",
    "Fischer",
    "Garcia",
    "Gupta",
    "Hansen",
    "Hoffmann",
    "Ibrahim",
    "Ivanov",
    "Jensen",
    "Johnson",
    "Kim",
    "Kowalski",
    "Larsen",
    "Lee",
    "Lopez",
    "Martin",
    "Mensah",
    "Meyer",
    "Moreau",
    "Mueller",
    "Nakamura",
    "Nguyen",
    "Novak",
    "Oliveira",
    "Park",
    "Patel",
    "Popescu",
    "Rossi",
    "Sato",
    "Schmidt",
    "Schneider",
    "Singh",
    "Suzuki",
    "Taylor",
    "Virtanen",
    "Weber",
    "Williams",
    "Wilson",
    "Yilmaz",
    "Zhang",
];

const CITIES: [&str; 40] = [
    "Accra",
    "Amsterdam",
    "Athens",
    "Bangkok",
    "Barcelona",
    "Berlin",
    "Bogota",
    "Boston",
    "Brussels",
    "Cairo",
    "Chicago",
    "Copenhagen",
    "Dakar",
    "Delhi",
    "Dublin",
    "Hamburg",
    "Hanoi",
    "Helsinki",
    "Istanbul",
    "Jakarta",
    "Kyoto",
    "Lagos",
    "Lima",
    "Lisbon",
    "London",
    "Madrid",
    "Melbourne",
    "Mexico City",
    "Montreal",
    "Nairobi",
    "Osaka",
    "Oslo",
    "Prague",
    "Rotterdam",
    "San Francisco",
    "Santiago",
    "Seoul",
    "Singapore",
    "Toronto",
    "Vienna",
];

const SYSTEMS: [&str; 6] = [
    "Windows NT 10.0; Win64; x64",
    "Macintosh; Intel Mac OS X 10_15_7",
    "X11; Linux x86_64",
    "Linux; Android 13; Pixel 7",
    "Linux; Android 14; SM-S911B",
    "X11; CrOS x86_64 14541.0.0",
];

const LOCALES: [&str; 12] = [
    "de-DE", "en-GB", "en-US", "es-ES", "fr-FR", "it-IT", "ja-JP", "ko-KR", "nl-NL", "pt-BR", "sv-SE",
    "zh-CN",
];

/// The pieces of a file: its lines, or its stanzas, which empty lines separate.
#[derive(Debug, PartialEq, Eq)]
pub struct FilePieces {
    name: String,
    text: Vec<u8>,
    /// The range of each piece in the text. Empty pieces are left out.
    ranges: Vec<std::ops::Range<usize>>,
}

impl FilePieces {
    fn read(path: &Path, separator: &[u8]) -> Result<FilePieces, String> {
        let text = std::fs::read(path).map_err(|error| error.to_string())?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        FilePieces::divide(name, text, separator).ok_or_else(|| "has no text".into())
    }

    /// Divides a text. Returns `None` if it has no pieces.
    fn divide(name: String, text: Vec<u8>, separator: &[u8]) -> Option<FilePieces> {
        let (mut ranges, mut from) = (Vec::new(), 0);
        while from < text.len() {
            let len = text[from..].windows(separator.len()).position(|window| window == separator);
            let to = len.map_or(text.len(), |len| from + len);
            if to > from {
                ranges.push(from..to);
            }
            from = to + separator.len();
        }
        (!ranges.is_empty()).then_some(FilePieces { name, text, ranges })
    }

    /// Appends the piece for a number. After the last piece, the first one follows again, with
    /// other numbers: the second half of each run of digits becomes random.
    fn put(&self, value: &mut Vec<u8>, number: u64) {
        let count = self.ranges.len() as u64;
        let index = number.saturating_sub(1);
        let from = value.len();
        value.extend_from_slice(&self.text[self.ranges[(index % count) as usize].clone()]);
        if index < count {
            return;
        }
        let mut random = fastrand::Rng::with_seed(number);
        for run in value[from..].chunk_by_mut(|a, b| a.is_ascii_digit() == b.is_ascii_digit()) {
            if run[0].is_ascii_digit() {
                let kept = run.len() / 2;
                run[kept..].iter_mut().for_each(|digit| *digit = random.u8(b'0'..=b'9'));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_unique_keys_and_expected_sizes() {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let json = [RecordShape::ShortProfile, RecordShape::SessionJson];
        // Ids are shorter here than among ten million records.
        let expected = [16.0, 16.46, 104.0, 168.5, 1020.0, 86.3, 44.0 + 428.0];
        for (shape, expected) in SHAPES.into_iter().chain(json).zip(expected) {
            let mut keys = std::collections::HashSet::new();
            let mut total = 0;
            for number in 1..=2000 {
                shape.put(number, &mut key, &mut value);
                total += key.len() + value.len();
                let valid = key.iter().all(|byte| byte.is_ascii_graphic());
                assert!(valid && keys.insert(key.clone()), "{shape:?} {number}");
                let first = value.clone();
                shape.put(number, &mut key, &mut value);
                assert_eq!(first, value, "{shape:?} {number}");
            }
            let mean = total as f64 / 2000.0;
            assert!((mean - expected).abs() < expected * 0.02, "{shape:?}: {mean}");
        }
        for shape in [RecordShape::Profile, RecordShape::ShortProfile, RecordShape::SessionJson] {
            shape.put(7, &mut key, &mut value);
            assert!(serde_json::from_slice::<serde_json::Value>(&value).is_ok(), "{value:?}");
        }
    }

    #[test]
    fn session_key_is_a_uuid() {
        let mut key = Vec::new();
        put_uuid(&mut key, u128::MAX).unwrap();
        assert_eq!(key, b"session:ffffffff-ffff-4fff-bfff-ffffffffffff");
        key.clear();
        put_uuid(&mut key, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef).unwrap();
        assert_eq!(key, b"session:01234567-89ab-4def-8123-456789abcdef");
    }

    #[test]
    fn pieces_repeat_with_other_numbers() {
        let text = b"at 12:34 id 1234567\n\nsecond\n".to_vec();
        let lines = FilePieces::divide("a".into(), text, b"\n").unwrap();
        let put = |number| {
            let mut value = Vec::new();
            lines.put(&mut value, number);
            String::from_utf8(value).unwrap()
        };
        assert_eq!([put(1), put(2), put(4)], ["at 12:34 id 1234567", "second", "second"]);
        let third = put(3);
        assert!(
            third.starts_with("at 1") && third[..9].contains(":3") && third.contains(" id 123"),
            "{third}"
        );
        assert_ne!(third, put(1));
        assert_eq!((third.clone(), third.len()), (put(3), put(1).len()));
    }

    #[test]
    fn empty_lines_separate_stanzas() {
        let divide = |text: &[u8]| FilePieces::divide("a".into(), text.to_vec(), b"\n\n");
        let stanzas = divide(b"a: 1\nb: 2\n\na: 3\n").unwrap();
        assert_eq!(stanzas.ranges, [0..9, 11..16]);
        assert_eq!(divide(b""), None);
        assert_eq!(divide(b"\n\n\n\n"), None);
    }

    #[test]
    fn unknown_shape_and_missing_file_are_refused() {
        assert!("square".parse::<RecordShape>().unwrap_err().starts_with("there are number, "));
        let refusal = "lines:/nonexistent/file".parse::<RecordShape>().unwrap_err();
        assert!(refusal.starts_with("/nonexistent/file: "), "{refusal}");
        assert_eq!("short-profile".parse(), Ok(RecordShape::ShortProfile));
    }
}
