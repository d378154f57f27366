//! Reads the keys of a table, and collects the problems of a file.

use super::config_value::{ConfigData, ConfigEntry, ConfigValue};
use crate::suggestions::distance;
use std::cell::RefCell;
use std::fmt::Display;
use std::time::Duration;

/// The longest duration of an option, a year.
const DURATION_MAX_MS: u64 = 366 * 86_400_000;

/// The problems of a file, which prevent its use, and the notes about it, which do not.
#[derive(Debug, Default)]
pub(super) struct ConfigReport {
    problems: RefCell<Vec<(usize, String)>>,
    notes: RefCell<Vec<(usize, String)>>,
}

impl ConfigReport {
    pub(super) fn problem(&self, line: usize, text: impl Into<String>) {
        self.problems.borrow_mut().push((line, text.into()));
    }

    pub(super) fn note(&self, line: usize, text: impl Into<String>) {
        self.notes.borrow_mut().push((line, text.into()));
    }

    /// Returns the problems and the notes, each with its line in front.
    pub(super) fn lines(self, file: &impl Display) -> (Vec<String>, Vec<String>) {
        let sorted = |lines: RefCell<Vec<(usize, String)>>| {
            let mut lines = lines.into_inner();
            lines.sort();
            lines.into_iter().map(|(line, text)| format!("{file}, line {line}: {text}")).collect()
        };
        (sorted(self.problems), sorted(self.notes))
    }
}

/// A table whose keys are taken one after another. Keys that nobody took are unknown.
pub(super) struct TableReader<'r> {
    /// The text in front of problems: empty, or as `pool main: `.
    name: String,
    line: usize,
    entries: Vec<ConfigEntry>,
    known: Vec<&'static str>,
    pub(super) report: &'r ConfigReport,
}

impl<'r> TableReader<'r> {
    /// Returns the reader of a table. Reports a problem for a value that is not a table.
    pub(super) fn new(
        name: &str,
        line: usize,
        value: ConfigValue,
        report: &'r ConfigReport,
    ) -> Option<TableReader<'r>> {
        let name = if name.is_empty() { String::new() } else { format!("{name}: ") };
        let ConfigData::Table(entries) = value.data else {
            report.problem(line, format!("{name}must be a table of keys"));
            return None;
        };
        Some(TableReader { name, line, entries, known: Vec::new(), report })
    }

    /// Reports a problem of the table.
    pub(super) fn problem(&self, line: usize, text: impl Display) {
        self.report.problem(line, format!("{}{text}", self.name));
    }

    /// Reports a problem in the line of the table itself.
    pub(super) fn own_problem(&self, text: impl Display) {
        self.problem(self.line, text);
    }

    /// Returns the line of a key, or that of the table if the key is missing.
    pub(super) fn line_of(&self, key: &str) -> usize {
        self.entries.iter().find(|entry| entry.key == key).map_or(self.line, |entry| entry.line)
    }

    /// Reports a note about the table.
    pub(super) fn note(&self, text: impl Display) {
        self.report.note(self.line, format!("{}{text}", self.name));
    }

    /// Returns the reader of a table in this table.
    pub(super) fn nested(&self, key: &str, entry: ConfigEntry) -> Option<TableReader<'r>> {
        TableReader::new(&format!("{}{key}", self.name), entry.line, entry.value, self.report)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }

    /// Removes a key from the table.
    pub(super) fn take(&mut self, key: &'static str) -> Option<ConfigEntry> {
        self.known.push(key);
        let index = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.swap_remove(index))
    }

    /// Returns the value of a key. Reports a problem if it is invalid.
    pub(super) fn get<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&ConfigValue) -> Result<T, String>,
    ) -> Option<T> {
        let entry = self.take(key)?;
        let parsed = parse(&entry.value);
        parsed.map_err(|problem| self.problem(entry.line, format!("{key}: {problem}"))).ok()
    }

    /// Replaces a default by the value of a key, if there is one.
    pub(super) fn set<T>(
        &mut self,
        key: &'static str,
        field: &mut T,
        parse: impl FnOnce(&ConfigValue) -> Result<T, String>,
    ) {
        if let Some(value) = self.get(key, parse) {
            *field = value;
        }
    }

    /// Returns the value of a key. Reports a problem if it is missing or invalid.
    pub(super) fn required<T>(
        &mut self,
        key: &'static str,
        parse: impl FnOnce(&ConfigValue) -> Result<T, String>,
    ) -> Option<T> {
        if !self.has(key) {
            self.own_problem(format!("{key} is missing"));
        }
        self.get(key, parse)
    }

    /// Returns all remaining keys.
    pub(super) fn rest(&mut self) -> Vec<ConfigEntry> {
        std::mem::take(&mut self.entries)
    }

    /// Reports a problem for each key that was not taken.
    pub(super) fn finish(self) {
        for ConfigEntry { line, key, .. } in &self.entries {
            let near =
                self.known.iter().min_by_key(|known| distance(known, key)).copied().unwrap_or_default();
            self.problem(*line, format!("unknown key {key:?}; did you mean {near:?}?"));
        }
    }
}

pub(super) fn text(value: &ConfigValue) -> Result<String, String> {
    match &value.data {
        ConfigData::Text(text) => Ok(text.clone()),
        _ => Err("must be a text".into()),
    }
}

/// Returns a text that is not empty.
pub(super) fn some_text(value: &ConfigValue) -> Result<String, String> {
    text(value).and_then(|text| if text.is_empty() { Err("must not be empty".into()) } else { Ok(text) })
}

/// Returns the elements of a list, or the value itself if it is not a list.
pub(super) fn elements(value: &ConfigValue) -> &[ConfigValue] {
    match &value.data {
        ConfigData::List(values) => values,
        _ => std::slice::from_ref(value),
    }
}

pub(super) fn some_texts(value: &ConfigValue) -> Result<Vec<String>, String> {
    elements(value).iter().map(some_text).collect()
}

pub(super) fn flag(value: &ConfigValue) -> Result<bool, String> {
    match text(value)?.as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(format!("must be true or false, not {other:?}")),
    }
}

/// Returns a parser of numbers within bounds.
pub(super) fn number(min: u64, max: u64) -> impl Fn(&ConfigValue) -> Result<u64, String> {
    move |value| {
        let text = text(value)?;
        let number = text.parse().ok().filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| format!("must be a number from {min} to {max}, not {text:?}"))
    }
}

/// Returns a parser of counts, from 1.
pub(super) fn count<T: TryFrom<u64>>(max: u32) -> impl Fn(&ConfigValue) -> Result<T, String> {
    move |value| converted(number(1, u64::from(max))(value)?)
}

/// Returns a parser of counts, from 0.
pub(super) fn count_from_0<T: TryFrom<u64>>(max: u32) -> impl Fn(&ConfigValue) -> Result<T, String> {
    move |value| converted(number(0, u64::from(max))(value)?)
}

fn converted<T: TryFrom<u64>>(count: u64) -> Result<T, String> {
    T::try_from(count).map_err(|_| "is too large".into())
}

/// Returns a parser of words.
pub(super) fn word<T: Copy>(known: &[(&str, T)]) -> impl Fn(&ConfigValue) -> Result<T, String> {
    move |value| {
        let text = text(value)?;
        let found = known.iter().find(|(word, _)| *word == text);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
            format!("must be one of {}, not {text:?}", words.join(", "))
        })
    }
}

/// Parses a duration with its unit, at least 1 ms.
pub(super) fn duration(value: &ConfigValue) -> Result<Duration, String> {
    const UNITS: [(&str, u64); 5] =
        [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let text = text(value)?;
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = UNITS.iter().find(|(unit, _)| *unit == &text[digits.len()..]);
    let ms = unit.and_then(|(_, unit_ms)| digits.parse::<u64>().ok()?.checked_mul(*unit_ms));
    let ms = ms.filter(|ms| (1..=DURATION_MAX_MS).contains(ms));
    ms.map(Duration::from_millis).ok_or_else(|| {
        format!("must be a duration from 1ms to 366d, as 250ms, 1s, 5m, 1h or 2d, not {text:?}")
    })
}

/// Parses a duration, or another word that stands for `None`.
pub(super) fn duration_or(other: &'static str) -> impl Fn(&ConfigValue) -> Result<Option<Duration>, String> {
    move |value| match text(value)? {
        text if text == other => Ok(None),
        _ => duration(value).map(Some).map_err(|problem| format!("{problem}; or {other:?}")),
    }
}

/// Parses a size in bytes: `8MB`, `512k`. A kilobyte has 1024 bytes, as everywhere in Todana.
pub(super) fn size(value: &ConfigValue) -> Result<u64, String> {
    let text = text(value)?;
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_lowercase();
    let shift = match unit.strip_suffix('b').unwrap_or(&unit) {
        "" => Some(0),
        "k" => Some(10),
        "m" => Some(20),
        "g" => Some(30),
        _ => None,
    };
    let bytes = shift.and_then(|shift| digits.parse::<u64>().ok()?.checked_mul(1 << shift));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("must be a size, as 8MB, 512k or 1g, not {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> ConfigValue {
        ConfigValue { line: 1, data: ConfigData::Text(text.into()) }
    }

    #[test]
    fn durations_and_sizes_have_units() {
        for (text, ms) in [("250ms", 250), ("1s", 1000), ("5m", 300_000), ("1h", 3_600_000)] {
            assert_eq!(duration(&of(text)), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "1", "0s", "s", "1.5s", "367d", "-1s", "1S", "18446744073709551615d", "1\u{e9}"] {
            assert!(duration(&of(text)).unwrap_err().starts_with("must be a duration"), "{text}");
        }
        assert_eq!(duration_or("keep")(&of("keep")), Ok(None));
        for (text, bytes) in [("8MB", 8 << 20), ("512k", 512 << 10), ("1G", 1 << 30), ("7", 7), ("7b", 7)] {
            assert_eq!(size(&of(text)), Ok(bytes), "{text}");
        }
        for text in ["", "0", "MB", "8MiB", "8t", "18446744073709551615k"] {
            assert!(size(&of(text)).unwrap_err().starts_with("must be a size"), "{text}");
        }
    }
}
