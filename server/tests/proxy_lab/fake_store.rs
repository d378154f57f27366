//! The records of a fake server, and its replies. Records do not expire.

use super::fake_request::FakeRequest;
use std::collections::HashMap;

#[derive(Clone)]
struct FakeRecord {
    value: Vec<u8>,
    flags: u32,
    cas: u64,
}

#[derive(Default)]
pub(crate) struct FakeStore {
    records: HashMap<String, FakeRecord>,
    last_cas: u64,
}

/// The outcome of a write, as the text and the meta dialect name it.
type WriteOutcome = (&'static str, &'static str);

const STORED: WriteOutcome = ("STORED", "HD");
const NOT_STORED: WriteOutcome = ("NOT_STORED", "NS");
const EXISTS: WriteOutcome = ("EXISTS", "EX");
const NOT_FOUND: WriteOutcome = ("NOT_FOUND", "NF");

impl FakeStore {
    /// Executes a request and appends its reply.
    pub(crate) fn execute(&mut self, request: &FakeRequest, out: &mut Vec<u8>) {
        let key = request.keys().first().cloned().unwrap_or_default();
        match request.name() {
            "get" | "gat" => self.put_values(request.keys(), false, out),
            "gets" | "gats" => self.put_values(request.keys(), true, out),
            "set" | "add" | "replace" | "append" | "prepend" | "cas" => {
                let compare = (request.name() == "cas").then(|| request.number(5));
                let flags = request.number(2) as u32;
                let outcome = self.store(request.name(), &key, &request.value, flags, compare);
                put_line(outcome.0, out);
            }
            "delete" => {
                let was_there = self.records.remove(&key).is_some();
                put_line(if was_there { "DELETED" } else { "NOT_FOUND" }, out);
            }
            "touch" => put_line(if self.records.contains_key(&key) { "TOUCHED" } else { "NOT_FOUND" }, out),
            "incr" | "decr" => match self.count(&key, request.name() == "incr", request.number(2)) {
                Some(Some(number)) => put_line(&number.to_string(), out),
                Some(None) => {
                    put_line("CLIENT_ERROR cannot increment or decrement non-numeric value", out);
                }
                None => put_line("NOT_FOUND", out),
            },
            "mg" => match self.records.get(&key) {
                Some(record) => put_meta("HD", request, &key, Some(record), out),
                None => put_line("EN", out),
            },
            "ms" => self.meta_set(request, &key, out),
            "md" => {
                let outcome = match self.records.get(&key) {
                    None => NOT_FOUND,
                    Some(record) if !is_same(record, compare_of(request)) => EXISTS,
                    Some(_) => {
                        self.records.remove(&key);
                        STORED
                    }
                };
                put_meta(outcome.1, request, &key, None, out);
            }
            "ma" => self.meta_count(request, &key, out),
            "mn" => put_line("MN", out),
            "version" => put_line("VERSION 1.6.45", out),
            "flush_all" => put_line("OK", out),
            _ => put_line("ERROR", out),
        }
    }

    fn put_values(&self, keys: &[String], with_cas: bool, out: &mut Vec<u8>) {
        for key in keys {
            if let Some(FakeRecord { value, flags, cas }) = self.records.get(key) {
                let cas = if with_cas { format!(" {cas}") } else { String::new() };
                put_line(&format!("VALUE {key} {flags} {}{cas}", value.len()), out);
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
        }
        put_line("END", out);
    }

    fn store(
        &mut self,
        mode: &str,
        key: &str,
        value: &[u8],
        flags: u32,
        compare: Option<u64>,
    ) -> WriteOutcome {
        let old = self.records.get(key);
        match (mode, old) {
            ("cas", None) => return NOT_FOUND,
            (_, Some(old)) if !is_same(old, compare) => return EXISTS,
            (_, None) if compare.is_some() => return NOT_FOUND,
            ("add", Some(_)) | ("replace" | "append" | "prepend", None) => return NOT_STORED,
            _ => {}
        }
        let (value, flags) = match (mode, old) {
            ("append", Some(old)) => ([&old.value, value].concat(), old.flags),
            ("prepend", Some(old)) => ([value, &old.value].concat(), old.flags),
            _ => (value.to_vec(), flags),
        };
        self.last_cas += 1;
        self.records.insert(key.into(), FakeRecord { value, flags, cas: self.last_cas });
        STORED
    }

    fn meta_set(&mut self, request: &FakeRequest, key: &str, out: &mut Vec<u8>) {
        let mode = match request.flag('M').map(str::to_ascii_uppercase).as_deref() {
            Some("E" | "ADD") => "add",
            Some("A" | "APPEND") => "append",
            Some("P" | "PREPEND") => "prepend",
            Some("R" | "REPLACE") => "replace",
            _ => "set",
        };
        let flags = request.flag('F').and_then(|word| word.parse().ok()).unwrap_or(0);
        let outcome = self.store(mode, key, &request.value, flags, compare_of(request));
        let record = self.records.get(key).filter(|_| outcome == STORED);
        put_meta(outcome.1, request, key, record, out);
    }

    /// Changes a number. Returns `None` if there is no record, and `Some(None)` if it is no number.
    fn count(&mut self, key: &str, is_up: bool, delta: u64) -> Option<Option<u64>> {
        let record = self.records.get_mut(key)?;
        let text = String::from_utf8_lossy(&record.value).trim_end().to_string();
        let Ok(number) = text.parse::<u64>() else { return Some(None) };
        let number = if is_up { number.wrapping_add(delta) } else { number.saturating_sub(delta) };
        let len = record.value.len();
        record.value = number.to_string().into_bytes();
        if record.value.len() < len && !is_up {
            record.value.resize(len, b' ');
        }
        self.last_cas += 1;
        record.cas = self.last_cas;
        Some(Some(number))
    }

    fn meta_count(&mut self, request: &FakeRequest, key: &str, out: &mut Vec<u8>) {
        let is_up = !matches!(request.flag('M'), Some("D" | "d" | "DECR" | "decr" | "-"));
        let delta = request.flag('D').and_then(|word| word.parse().ok()).unwrap_or(1);
        if self.records.get(key).is_some_and(|old| !is_same(old, compare_of(request))) {
            return put_meta("EX", request, key, None, out);
        }
        match self.count(key, is_up, delta) {
            Some(Some(_)) => put_meta("HD", request, key, self.records.get(key), out),
            Some(None) => put_line("CLIENT_ERROR cannot increment or decrement non-numeric value", out),
            None if request.flag('N').is_some() => {
                let first = request.flag('J').unwrap_or("0").to_string();
                self.store("set", key, first.as_bytes(), 0, None);
                put_meta("HD", request, key, self.records.get(key), out);
            }
            None => put_meta("NF", request, key, None, out),
        }
    }
}

fn compare_of(request: &FakeRequest) -> Option<u64> {
    request.flag('C').and_then(|word| word.parse().ok())
}

fn is_same(record: &FakeRecord, compare: Option<u64>) -> bool {
    compare.is_none_or(|cas| cas == record.cas)
}

fn put_line(line: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(line.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Appends a meta reply with the flags that the request asks for.
fn put_meta(status: &str, request: &FakeRequest, key: &str, record: Option<&FakeRecord>, out: &mut Vec<u8>) {
    let with_value = record.filter(|_| request.name() != "ms" && request.flag('v').is_some());
    let mut line = with_value.map_or(status.to_string(), |record| format!("VA {}", record.value.len()));
    for flag in request.flags() {
        let name = flag.chars().next().unwrap_or_default();
        match (name, record) {
            ('k', _) => line += &format!(" k{key}"),
            ('O' | 'b', _) => line += &format!(" {flag}"),
            ('c', Some(record)) => line += &format!(" c{}", record.cas),
            ('f', Some(record)) => line += &format!(" f{}", record.flags),
            ('s', Some(record)) => line += &format!(" s{}", record.value.len()),
            ('t', Some(_)) => line += " t-1",
            _ => {}
        }
    }
    put_line(&line, out);
    if let Some(record) = with_value {
        out.extend_from_slice(&record.value);
        out.extend_from_slice(b"\r\n");
    }
}
