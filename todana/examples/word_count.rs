//! Counts the words of a text by map-reduce: on all cores, and on disk if memory is too small.
//!
//! ```text
//! cargo run -p todana --example word_count [FILE]
//! ```

use todana::{Db, Error, ErrorKind, MapReduce, PairEmitter, Record, Records, Result};

const TEXT: &str = "It was the best of times, it was the worst of times,\nit was the age of wisdom";

pub(crate) fn main() -> Result<()> {
    let text = match std::env::args().nth(1).filter(|path| std::path::Path::new(path).is_file()) {
        Some(path) => std::fs::read_to_string(&path)
            .map_err(|error| Error::new(ErrorKind::Unavailable, format!("{path}: {error}")))?,
        None => TEXT.to_owned(),
    };
    let db = Db::open("mem:hash")?;
    for (number, line) in text.lines().enumerate() {
        db.set(&number.to_be_bytes(), line.as_bytes())?;
    }
    let mut counts = count(&db)?;
    counts.sort_by_key(|(word, count)| (std::cmp::Reverse(*count), word.clone()));
    for (word, count) in counts.iter().take(20) {
        println!("{count:8} {word}");
    }
    if text == TEXT {
        assert_eq!(counts[..2], [("it".to_owned(), 3), ("of".to_owned(), 3)]);
    }
    Ok(())
}

fn count(db: &Db) -> Result<Vec<(String, u64)>> {
    let map = |_: &[u8], line: Record<'_>, emit: &mut PairEmitter<'_>| {
        let line = String::from_utf8_lossy(line.value).to_lowercase();
        for word in line.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()) {
            emit.emit(word.as_bytes(), &1u64.to_le_bytes());
        }
        Ok(())
    };
    // Combines counts early, which saves memory.
    let combine = |_: &[u8], values: &mut dyn Iterator<Item = &[u8]>, sum: &mut Vec<u8>| {
        sum.extend_from_slice(&values.map(number).sum::<u64>().to_le_bytes());
    };
    let mut counts = Vec::new();
    MapReduce::new().combine(&combine).memory_max(256 << 20).run(db, &map, &mut |word, values| {
        let mut count = 0;
        while let Some(value) = values.next()? {
            count += number(value);
        }
        counts.push((String::from_utf8_lossy(word).into_owned(), count));
        Ok(())
    })?;
    Ok(counts)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}
