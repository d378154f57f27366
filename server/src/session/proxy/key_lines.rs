//! Divides a line with several keys into lines for the servers of the keys, and merges their
//! values in the order of the keys.

use super::route_run::{RouteRun, RoutedReply};
use crate::proxy::{ProxyWorker, RequestTag, ServerPlace};
use std::collections::VecDeque;

/// Values that were passed on are removed from a buffer once they take more bytes.
const BUFFER_KEPT: usize = 64 << 10;

/// A line with several keys, of which some are decoded.
#[derive(Debug)]
pub(super) struct KeyLine {
    /// The line up to its first key: `get `, `gat 30 `.
    head: Vec<u8>,
    keys: Vec<u8>,
    /// For each key: its end in `keys`, and the number of its part.
    ends: Vec<(u32, u32)>,
    parts: Vec<LinePart>,
    error: Vec<u8>,
}

/// A part of a line.
#[derive(Debug)]
pub(super) enum LinePart {
    /// The keys of one server, as a line for it.
    Server { place: ServerPlace, line: Vec<u8> },
    /// One key with a route of its own.
    Routed(Box<RouteRun>),
    /// One key with its reply.
    Replied(RoutedReply),
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

    /// Returns the line up to its first key.
    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Notes that a key is refused: this error takes the place of `END`.
    pub(super) fn refuse(&mut self, error: &str) {
        self.error = format!("{error}\r\n").into_bytes();
    }

    /// Returns the line for a single key.
    pub(super) fn line_of(&self, key: &[u8]) -> Vec<u8> {
        [&self.head, key, b"\r\n"].concat()
    }

    /// Adds a key and its server.
    pub(super) fn add(&mut self, place: ServerPlace, key: &[u8]) {
        let is_same = |part: &LinePart| matches!(part, LinePart::Server { place: of, .. } if *of == place);
        let number = self.parts.iter().position(is_same).unwrap_or_else(|| {
            let head = self.head.strip_suffix(b" ").unwrap_or(&self.head);
            self.parts.push(LinePart::Server { place, line: head.to_vec() });
            self.parts.len() - 1
        });
        if let LinePart::Server { line, .. } = &mut self.parts[number] {
            line.push(b' ');
            line.extend_from_slice(key);
        }
        self.end_key(key, number);
    }

    /// Adds a key that is a part of its own.
    pub(super) fn add_part(&mut self, part: LinePart, key: &[u8]) {
        self.parts.push(part);
        self.end_key(key, self.parts.len() - 1);
    }

    fn end_key(&mut self, key: &[u8], part: usize) {
        self.keys.extend_from_slice(key);
        self.ends.push((self.keys.len() as u32, part as u32));
    }

    /// Ends the line. Returns its parts, which must be sent.
    pub(super) fn end(self) -> (MergedValues, Vec<LinePart>) {
        let mut parts = self.parts;
        for part in &mut parts {
            if let LinePart::Server { line, .. } = part {
                line.extend_from_slice(b"\r\n");
            }
        }
        let values = parts.iter().map(|_| PartValues::default()).collect();
        let merged = MergedValues {
            keys: self.keys,
            ends: self.ends,
            next: 0,
            start: 0,
            parts: values,
            error: self.error,
        };
        (merged, parts)
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

/// The values of a part that have not been passed on.
#[derive(Debug, Default)]
struct PartValues {
    values: VecDeque<ArrivedValue>,
    /// The key and the bytes of each value, one after another. One buffer for all values is much
    /// cheaper than two for each.
    buffer: Vec<u8>,
    /// The position of the first value in `buffer`.
    start: usize,
    is_complete: bool,
    /// The route of the part, until it has its reply.
    run: Option<Box<RouteRun>>,
}

/// The lengths of a value in the buffer of its part: of its key, and of the bytes that its server
/// has sent.
#[derive(Debug)]
struct ArrivedValue {
    key_len: usize,
    len: usize,
}

impl PartValues {
    fn add(&mut self, key: &[u8], bytes: &[u8]) {
        self.buffer.extend_from_slice(key);
        self.buffer.extend_from_slice(bytes);
        self.values.push_back(ArrivedValue { key_len: key.len(), len: bytes.len() });
    }

    /// Returns the key and the bytes of the first value.
    fn first(&self) -> Option<(&[u8], &[u8])> {
        let ArrivedValue { key_len, len } = *self.values.front()?;
        Some(self.buffer[self.start..self.start + key_len + len].split_at(key_len))
    }

    fn remove_first(&mut self) {
        if let Some(ArrivedValue { key_len, len }) = self.values.pop_front() {
            self.start += key_len + len;
        }
        if self.values.is_empty() {
            self.buffer.clear();
            self.start = 0;
        } else if self.start > BUFFER_KEPT && self.start > self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
    }
}

impl MergedValues {
    /// Lets a part wait for its route.
    pub(super) fn await_run(&mut self, part: u32, run: Box<RouteRun>) {
        self.parts[part as usize].run = Some(run);
    }

    /// Returns the route of a part.
    pub(super) fn run(&mut self, part: u32) -> Option<&mut RouteRun> {
        self.parts.get_mut(part as usize)?.run.as_deref_mut()
    }

    /// Returns true if a part will ask a server for this key later.
    pub(super) fn holds(&self, key: &[u8]) -> bool {
        self.parts.iter().any(|part| part.run.as_ref().is_some_and(|run| run.holds(key)))
    }

    /// Lets the route of a part continue.
    pub(super) fn advance(&mut self, proxy: &mut ProxyWorker, tag: RequestTag) {
        if let Some(reply) = self.run(tag.part).and_then(|run| run.advance(proxy, tag)) {
            self.parts[tag.part as usize].run = None;
            self.complete_with(tag.part, &reply);
        }
    }

    /// Notes the reply to a part with one key.
    pub(super) fn complete_with(&mut self, part: u32, reply: &RoutedReply) {
        if reply.is_error {
            return self.complete(part, &reply.bytes);
        }
        if let Some(value) = reply.bytes.strip_suffix(b"END\r\n").filter(|value| !value.is_empty()) {
            let number = self.ends.iter().position(|(_, of)| *of == part).unwrap_or_default();
            let start = number.checked_sub(1).map_or(0, |before| self.ends[before].0 as usize);
            let key = self.keys[start..self.ends[number].0 as usize].to_vec();
            self.add(part, &key, value);
        }
        self.complete(part, b"");
    }

    /// Adds a value of a part.
    pub(super) fn add(&mut self, part: u32, key: &[u8], bytes: &[u8]) {
        self.parts[part as usize].add(key, bytes);
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
            match part.first() {
                Some((found, bytes)) if found == key => {
                    out.extend_from_slice(bytes);
                    part.remove_first();
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
            line.add(ServerPlace { pool: 0, server }, key.as_bytes());
        }
        let (mut merged, parts) = line.end();
        let sent = parts.iter().map(|part| match part {
            LinePart::Server { place, line } => (place.server, line.as_slice()),
            other => panic!("{other:?}"),
        });
        let sent: Vec<_> = sent.collect();
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
