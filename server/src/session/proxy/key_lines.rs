//! Divides a line with several keys into lines for the servers of the keys, and merges their
//! values in the order of the keys.

use std::collections::VecDeque;

/// A line with several keys, of which some are decoded.
#[derive(Debug)]
pub(super) struct KeyLine {
    /// The line up to its first key: `get `, `gat 30 `.
    head: Vec<u8>,
    keys: Vec<u8>,
    /// For each key: its end in `keys`, and the number of its part.
    ends: Vec<(u32, u32)>,
    /// The pool, the server and the line of each part.
    parts: Vec<(usize, usize, Vec<u8>)>,
    error: Vec<u8>,
}

impl KeyLine {
    pub(super) fn new(head: &[u8]) -> KeyLine {
        KeyLine {
            head: head.to_vec(),
            keys: Vec::new(),
            ends: Vec::new(),
            parts: Vec::new(),
            error: Vec::new(),
        }
    }

    /// Notes that a key is refused: this error takes the place of `END`.
    pub(super) fn refuse(&mut self, error: &str) {
        self.error = format!("{error}\r\n").into_bytes();
    }

    /// Adds a key and its server.
    pub(super) fn add(&mut self, pool: usize, server: usize, key: &[u8]) {
        let found = self.parts.iter().position(|part| (part.0, part.1) == (pool, server));
        let number = found.unwrap_or_else(|| {
            let head = self.head.strip_suffix(b" ").unwrap_or(&self.head);
            self.parts.push((pool, server, head.to_vec()));
            self.parts.len() - 1
        });
        let line = &mut self.parts[number].2;
        line.push(b' ');
        line.extend_from_slice(key);
        self.keys.extend_from_slice(key);
        self.ends.push((self.keys.len() as u32, number as u32));
    }

    /// Ends the line. Returns the parts to send: the pool, the server, and the line.
    pub(super) fn end(self) -> (MergedValues, Vec<(usize, usize, Vec<u8>)>) {
        let mut parts = self.parts;
        parts.iter_mut().for_each(|(_, _, line)| line.extend_from_slice(b"\r\n"));
        let values = parts.iter().map(|_| PartValues::default()).collect();
        (
            MergedValues {
                keys: self.keys,
                ends: self.ends,
                next: 0,
                start: 0,
                parts: values,
                error: self.error,
            },
            parts,
        )
    }
}

/// The values that servers send for a line with several keys.
#[derive(Debug)]
pub(super) struct MergedValues {
    keys: Vec<u8>,
    ends: Vec<(u32, u32)>,
    /// The number of the next key, and its start in `keys`.
    next: usize,
    start: usize,
    parts: Vec<PartValues>,
    /// The error line that takes the place of `END`.
    error: Vec<u8>,
}

/// The values of a server that have not been passed on.
#[derive(Debug, Default)]
struct PartValues {
    values: VecDeque<ArrivedValue>,
    is_complete: bool,
}

/// A value as its server has sent it.
#[derive(Debug)]
struct ArrivedValue {
    key: Box<[u8]>,
    bytes: Box<[u8]>,
}

impl MergedValues {
    /// Adds a value of a part.
    pub(super) fn add(&mut self, part: u32, key: &[u8], bytes: &[u8]) {
        self.parts[part as usize].values.push_back(ArrivedValue { key: key.into(), bytes: bytes.into() });
    }

    /// Notes that a part has no more values. The first error of all parts ends the line.
    pub(super) fn complete(&mut self, part: u32, error: &[u8]) {
        self.parts[part as usize].is_complete = true;
        if self.error.is_empty() {
            self.error.extend_from_slice(error);
        }
    }

    /// Appends the values that come next. Returns true if the line is complete.
    pub(super) fn drain(&mut self, out: &mut Vec<u8>) -> bool {
        while let Some(&(end, part)) = self.ends.get(self.next) {
            let key = &self.keys[self.start..end as usize];
            let part = &mut self.parts[part as usize];
            match part.values.front() {
                Some(value) if *value.key == *key => {
                    out.extend_from_slice(&value.bytes);
                    part.values.pop_front();
                }
                // A later key of the same server has a value, or no more values follow.
                Some(_) => {}
                None if part.is_complete => {}
                None => return false,
            }
            (self.next, self.start) = (self.next + 1, end as usize);
        }
        if !self.parts.iter().all(|part| part.is_complete) {
            return false;
        }
        out.extend_from_slice(if self.error.is_empty() { b"END\r\n" } else { &self.error });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_in_the_order_of_the_keys() {
        let mut line = KeyLine::new(b"gat 30 ");
        for (server, key) in [(1, "a"), (0, "b"), (1, "c"), (1, "a"), (0, "d")] {
            line.add(0, server, key.as_bytes());
        }
        let (mut merged, parts) = line.end();
        let sent: Vec<_> = parts.iter().map(|(_, server, line)| (*server, line.as_slice())).collect();
        assert_eq!(sent, [(1, &b"gat 30 a c a\r\n"[..]), (0, b"gat 30 b d\r\n")]);
        let mut out = Vec::new();
        merged.add(1, b"d", b"D ");
        assert!(!merged.drain(&mut out));
        merged.add(0, b"a", b"A ");
        assert!(!merged.drain(&mut out));
        // The server has no value of b and c.
        merged.add(0, b"a", b"A2 ");
        assert!(!merged.drain(&mut out));
        merged.complete(1, b"");
        assert!(!merged.drain(&mut out));
        assert_eq!(out, b"A A2 D ");
        merged.complete(0, b"");
        assert!(merged.drain(&mut out));
        assert_eq!(out, b"A A2 D END\r\n");
    }
}
