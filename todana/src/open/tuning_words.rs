//! The words that may follow `#` in the name of a database. Some have an effect, some are words of
//! the original servers and have no effect here, and the others are mistakes, for which the most
//! similar word is suggested.

/// Words with an effect.
#[rustfmt::skip]
const MEANT: [&str; 29] = [
    "type", "capcnt", "capcount", "cap_count", "ktcapcnt", "ktcapcount", "ktcap_count", "capnum", "capsiz", "capsize",
    "cap_size", "ktcapsiz", "ktcapsize", "ktcap_size", "opts", "options", "ktopts", "ktoptions", "zcomp", "compressor",
    "mode", "rcomp", "comparator", "map", "erase", "width", "limsiz",
    "idx", "memory",
];

/// Words without effect here: they tune the files, pages and caches of Kyoto Cabinet and Tokyo
/// Cabinet.
#[rustfmt::skip]
const IDLE: [&str; 33] = [
    "apow", "alignment", "bnum", "buckets", "dfunit", "defrag", "fpow", "fbp", "lcnum", "lmemb", "log",
    "logger", "logkinds", "logkind", "logpx", "lpx", "meta_trigger", "metatrigger", "msiz", "mtpx", "mtrg", "mtrgpx",
    "ncnum", "nmemb", "page", "pccap", "cache", "psiz", "rcnum", "uid", "xmsiz", "cutnum", "rnum",
];

/// Words whose value is a key for encryption.
const SECRET: [&str; 3] = ["zkey", "pass", "password"];

/// The meaning of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TuningWord {
    Meant,
    Idle,
    Secret,
    /// An unknown word, with the most similar word that has an effect, if one is similar.
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

/// Returns the most similar of these words, if it differs by at most two letters.
pub(super) fn nearest<'w>(word: &str, words: impl Iterator<Item = &'w str>) -> Option<&'w str> {
    let near = words.map(|other| (distance(word.as_bytes(), other.as_bytes()), other));
    near.filter(|&(distance, other)| distance <= 2 && distance < other.len()).min().map(|(_, other)| other)
}

/// Returns the name without encryption keys, because names are logged.
pub(super) fn without_secrets(text: &str) -> String {
    let conceal = |word: &str| match word.split_once('=') {
        Some((key, _)) if SECRET.contains(&key) => format!("{key}=..."),
        _ => word.to_owned(),
    };
    text.split('#').map(conceal).collect::<Vec<_>>().join("#")
}

/// Returns the Levenshtein distance between two words.
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
