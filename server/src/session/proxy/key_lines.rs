//! Divides a line with several keys into lines for the servers of the keys, and merges their
//! values in the order of the keys.

use super::route_run::{HeldScope, RouteRun, RoutedReply};
use crate::proxy::{ProxyWorker, RequestTag, ServerPlace};
use std::collections::VecDeque;

/// Values that were passed on are removed from a buffer once they take more bytes.
const BUFFER_KEPT: usize = 64 << 10;
/// The most bytes that a buffer reserves for the values that are expected.
const RESERVED_MAX: usize = 16 << 10;

/// The number of keys for which a line has memory from the start.
const KEYS_EXPECTED: usize = 32;
/// The number of bytes that the line for a server has memory for from the start.
const LINE_LEN_EXPECTED: usize = 256;

/// A line with several keys, of which some are decoded.
#[derive(Debug)]
pub(super) struct KeyLine {
    /// The line up to its first key: `get `, `gat 30 `.
    head: Vec<u8>,
    /// The number of the part of each key.
    key_parts: Vec<u32>,
    parts: Vec<LinePart>,
    /// The numbers of the parts for servers, once there are others. A line may have many others.
    of_servers: Option<Vec<u32>>,
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
        let key_parts = Vec::with_capacity(KEYS_EXPECTED);
        KeyLine { head: head.to_vec(), key_parts, parts: Vec::new(), of_servers: None, error: Vec::new() }
    }

    /// Returns the line up to its first key.
    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// Returns the number of keys that servers are asked for.
    pub(super) fn keys_len(&self) -> usize {
        self.key_parts.len()
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
        let found = match &self.of_servers {
            None => self.parts.iter().position(is_same),
            Some(numbers) => {
                let found = numbers.iter().find(|number| is_same(&self.parts[**number as usize]));
                found.map(|number| *number as usize)
            }
        };
        let number = found.unwrap_or_else(|| {
            let head = self.head.strip_suffix(b" ").unwrap_or(&self.head);
            let mut line = Vec::with_capacity(LINE_LEN_EXPECTED);
            line.extend_from_slice(head);
            if let Some(numbers) = &mut self.of_servers {
                numbers.push(self.parts.len() as u32);
            }
            self.parts.push(LinePart::Server { place, line });
            self.parts.len() - 1
        });
        if let LinePart::Server { line, .. } = &mut self.parts[number] {
            line.push(b' ');
            line.extend_from_slice(key);
        }
        self.key_parts.push(number as u32);
    }

    /// Adds a key that is a part of its own.
    pub(super) fn add_part(&mut self, part: LinePart) {
        self.of_servers.get_or_insert_with(|| (0..self.parts.len() as u32).collect());
        self.parts.push(part);
        self.key_parts.push(self.parts.len() as u32 - 1);
    }

    /// Ends the line. Returns its parts, which must be sent.
    pub(super) fn end(self) -> (MergedValues, Vec<LinePart>) {
        let mut parts = self.parts;
        for part in &mut parts {
            if let LinePart::Server { line, .. } = part {
                line.extend_from_slice(b"\r\n");
            }
        }
        let mut values: Vec<PartValues> = parts.iter().map(|_| PartValues::default()).collect();
        for part in &self.key_parts {
            values[*part as usize].unpassed += 1;
        }
        let merged = MergedValues { key_parts: self.key_parts, next: 0, parts: values, error: self.error };
        (merged, parts)
    }
}

/// The values that servers send for a line with several keys.
#[derive(Debug)]
pub(super) struct MergedValues {
    key_parts: Vec<u32>,
    /// The number of the next key.
    next: usize,
    parts: Vec<PartValues>,
    /// The error line that takes the place of `END`.
    error: Vec<u8>,
}

/// The values of a part that have not been passed on.
#[derive(Debug, Default)]
struct PartValues {
    /// The numbers of keys of the part before the next key and from it on.
    passed: u32,
    unpassed: u32,
    values: VecDeque<ArrivedValue>,
    /// The bytes of the values, one after another. One buffer for all values is much cheaper than
    /// one for each.
    buffer: Vec<u8>,
    /// The position of the first value in `buffer`.
    start: usize,
    is_complete: bool,
    /// The route of the part, until it has its reply.
    run: Option<Box<RouteRun>>,
}

/// A value in the buffer of its part.
#[derive(Debug)]
struct ArrivedValue {
    /// The number of its key among those of the part.
    key_number: u32,
    /// The number of bytes that its server has sent.
    len: usize,
}

impl PartValues {
    fn add(&mut self, key_number: u32, bytes: &[u8]) {
        if self.values.capacity() == 0 {
            // Most keys have values, often of similar lengths.
            self.values.reserve(self.unpassed as usize);
            self.buffer.reserve(bytes.len().saturating_mul(self.unpassed as usize).min(RESERVED_MAX));
        }
        self.buffer.extend_from_slice(bytes);
        self.values.push_back(ArrivedValue { key_number, len: bytes.len() });
    }

    /// Passes the next key of the part.
    #[inline]
    fn pass_key(&mut self) {
        self.passed += 1;
        self.unpassed = self.unpassed.saturating_sub(1);
    }

    /// Removes the first value, after its bytes were passed on.
    fn remove_first(&mut self) {
        if let Some(ArrivedValue { len, .. }) = self.values.pop_front() {
            self.start += len;
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
    #[inline]
    pub(super) fn run(&mut self, part: u32) -> Option<&mut RouteRun> {
        self.parts.get_mut(part as usize)?.run.as_deref_mut()
    }

    /// Returns true if a part will ask a server for one of these records later.
    pub(super) fn holds(&self, scope: HeldScope<'_>) -> bool {
        self.parts.iter().any(|part| part.run.as_ref().is_some_and(|run| run.holds(scope)))
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
            self.add(part, 0, value);
        }
        self.complete(part, b"");
    }

    /// Appends a value to `out` if it is the next one. Returns false otherwise.
    #[inline]
    pub(super) fn pass_on(&mut self, part: u32, key_number: u32, bytes: &[u8], out: &mut Vec<u8>) -> bool {
        let values = &mut self.parts[part as usize];
        let is_next = self.key_parts.get(self.next) == Some(&part) && values.passed == key_number;
        // The value of a route is for the route, which may ask further servers.
        let passes = is_next && values.values.is_empty() && values.run.is_none();
        if passes {
            out.extend_from_slice(bytes);
            values.pass_key();
            self.next += 1;
        }
        passes
    }

    /// Returns true if the value of the next key waits.
    #[inline]
    pub(super) fn has_next(&self) -> bool {
        let part = self.key_parts.get(self.next).map(|part| &self.parts[*part as usize]);
        part.is_some_and(|part| !part.values.is_empty() || part.is_complete)
    }

    /// Keeps a value of a part until it is the next one.
    pub(super) fn add(&mut self, part: u32, key_number: u32, bytes: &[u8]) {
        self.parts[part as usize].add(key_number, bytes);
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
        while let Some(&part) = self.key_parts.get(self.next) {
            let part = &mut self.parts[part as usize];
            match part.values.front() {
                Some(value) if value.key_number == part.passed => {
                    out.extend_from_slice(&part.buffer[part.start..part.start + value.len]);
                    part.remove_first();
                }
                // A later key of the same server has a value, or no more values follow.
                Some(_) => {}
                None if part.is_complete => {}
                None => return false,
            }
            part.pass_key();
            self.next += 1;
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
        merged.add(1, 1, b"D ");
        assert!(!merged.drain(&mut out));
        assert!(merged.pass_on(0, 0, b"A ", &mut out));
        assert!(!merged.pass_on(0, 1, b"C ", &mut out));
        // The servers have no values of b and c.
        merged.add(0, 2, b"A2 ");
        assert!(!merged.drain(&mut out));
        merged.complete(1, b"");
        assert!(!merged.drain(&mut out));
        assert_eq!(out, b"A A2 D ");
        merged.complete(0, b"");
        assert!(merged.drain(&mut out));
        assert_eq!(out, b"A A2 D END\r\n");
    }

    #[test]
    fn keys_of_a_server_share_its_line() {
        for others in [0, 1, 3] {
            let mut line = KeyLine::new(b"get ");
            for (server, key) in [(1, "a"), (0, "b"), (1, "c"), (2, "d"), (0, "e"), (2, "f")] {
                for _ in 0..others {
                    line.add_part(LinePart::Replied(RoutedReply { bytes: Vec::new(), is_error: false }));
                }
                line.add(ServerPlace { pool: 0, server }, key.as_bytes());
            }
            let lines = line.end().1.into_iter().filter_map(|part| match part {
                LinePart::Server { place, line } => Some((place.server, String::from_utf8(line).unwrap())),
                _ => None,
            });
            let lines: Vec<_> = lines.collect();
            let expected = [(1, "get a c\r\n"), (0, "get b e\r\n"), (2, "get d f\r\n")];
            assert_eq!(lines, expected.map(|(server, line)| (server, line.to_string())), "{others}");
        }
    }
}
