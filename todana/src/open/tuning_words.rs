//! Words that the name of a database may carry after `#`: those that mean something here, those of the originals that do not, and
//! what is taken for a slip of the pen.

/// They mean something here.
#[rustfmt::skip]
const MEANT: [&str; 25] = [
    "type", "capcnt", "capcount", "cap_count", "ktcapcnt", "ktcapcount", "ktcap_count", "capnum", "capsiz", "capsize",
    "cap_size", "ktcapsiz", "ktcapsize", "ktcap_size", "opts", "options", "ktopts", "ktoptions", "zcomp", "compressor",
    "mode", "rcomp", "comparator", "map", "erase",
];

/// Kyoto Cabinet and Tokyo Cabinet know them; they are about files, pages and caches of those.
#[rustfmt::skip]
const IDLE: [&str; 36] = [
    "apow", "alignment", "bnum", "buckets", "dfunit", "defrag", "fpow", "fbp", "idx", "lcnum", "limsiz", "lmemb", "log",
    "logger", "logkinds", "logkind", "logpx", "lpx", "meta_trigger", "metatrigger", "msiz", "mtpx", "mtrg", "mtrgpx",
    "ncnum", "nmemb", "page", "pccap", "cache", "psiz", "rcnum", "uid", "width", "xmsiz", "cutnum", "rnum",
];

/// They give a key for encryption.
const SECRET: [&str; 3] = ["zkey", "pass", "password"];

/// What a word is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TuningWord {
    Meant,
    Idle,
    Secret,
    /// The nearest one that means something, if one is near.
    Unknown(Option<&'static str>),
}

impl TuningWord {
    pub(super) fn of(word: &str) -> TuningWord {
        match word {
            word if MEANT.contains(&word) => TuningWord::Meant,
            word if IDLE.contains(&word) => TuningWord::Idle,
            word if SECRET.contains(&word) => TuningWord::Secret,
            word => TuningWord::Unknown(nearest(word, MEANT.iter().chain(&IDLE).copied())),
        }
    }
}

/// The nearest of some words, at most two letters away.
pub(super) fn nearest<'w>(word: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let near = words.map(|other| (distance(word.as_bytes(), other.as_bytes()), other));
    near.filter(|&(distance, other)| distance <= 2 && distance < other.len()).min().map(|(_, other)| other)
}

/// The text without the value of a key: names are logged.
pub(super) fn without_secrets(text: &str) -> String {
    let conceal = |word: &str| match word.split_once('=') {
        Some((key, _)) if SECRET.contains(&key) => format!("{key}=..."),
        _ => word.to_owned(),
    };
    text.split('#').map(conceal).collect::<Vec<_>>().join("#")
}

/// Levenshtein's.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, byte) in one.iter().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], above + 1);
        for (column, symbol) in other.iter().enumerate() {
            let replaced = corner + usize::from(byte != symbol);
            corner = row[column + 1];
            row[column + 1] = replaced.min(corner + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}
