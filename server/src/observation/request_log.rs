//! The log of connections, requests and replies on standard error, as memcached writes it from the
//! second `-v` on.
//!
//! ```text
//! <23 new auto-negotiating client connection
//! 23: Client using the ascii protocol
//! <23 get foo
//! >23 sending key foo
//! >23 END
//! <23 connection closed.
//! ```
//!
//! Invariants: values and the blocks of logins are never shown. Bytes that are not printable are
//! written as `\xNN`, and the length of lines is limited. A reader that is too slow loses lines,
//! which are counted; it never stops a worker, and at most [`WAITING_MAX`] bytes wait for it.
//! Nothing is written, and no thread runs, before the first line.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use todana_protocol::memcached::{DialectChoice, RequestHead};

/// The maximum number of bytes that wait to be written. Entries beyond it are counted and skipped.
const WAITING_MAX: usize = 1 << 20;
/// The maximum number of bytes of a key or a line that are shown. A line with one key of the
/// maximum length is shorter.
const SHOWN_MAX: usize = 1024;
/// A buffer with more capacity than this is freed after use.
const BUFFER_KEPT_MAX: usize = 64 << 10;
/// The maximum time for which the server waits at its end for entries that are not written yet.
const FINISH_WAIT_MAX: Duration = Duration::from_secs(1);

/// The log and its thread.
pub(crate) struct RequestLog(Arc<SharedLog>);

#[derive(Default)]
struct SharedLog {
    state: Mutex<RequestLogBuffer>,
    /// Signals that entries were added, or that all entries are written.
    changed: Condvar,
}

#[derive(Default)]
struct RequestLogBuffer {
    waiting: Vec<u8>,
    /// The number of entries that were skipped since the last entry that fitted.
    skipped: u64,
    is_writing: bool,
    has_thread: bool,
}

impl SharedLog {
    fn state(&self) -> MutexGuard<'_, RequestLogBuffer> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes entries as they arrive, and never returns.
    fn write_all(&self, mut out: impl Write) {
        let mut state = self.state();
        loop {
            while state.waiting.is_empty() {
                state.is_writing = false;
                self.changed.notify_all();
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.is_writing = true;
            let lines = std::mem::take(&mut state.waiting);
            drop(state);
            // The write fails if standard error is closed.
            let _ = out.write_all(&lines);
            state = self.state();
            if state.waiting.is_empty() && lines.capacity() <= BUFFER_KEPT_MAX {
                state.waiting = lines;
                state.waiting.clear();
            }
        }
    }
}

impl RequestLog {
    pub(crate) fn new() -> RequestLog {
        RequestLog(Arc::default())
    }

    /// Logs an entry, which is one or more lines that belong together.
    pub(crate) fn log(&self, write: impl FnOnce(&mut RequestLogEntry<'_>)) {
        let mut state = self.0.state();
        if !state.has_thread {
            let inner = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("request_log".into());
            let outcome = standard_error().and_then(|out| thread.spawn(move || inner.write_all(out)));
            if outcome.is_err() {
                // No descriptors or no memory are left. The next entry tries again to start the
                // thread.
                return;
            }
            state.has_thread = true;
        }
        if state.take(write) {
            self.0.changed.notify_all();
        }
    }

    /// Waits until all entries are written, for at most [`FINISH_WAIT_MAX`].
    pub(crate) fn finish(&self) {
        let is_busy = |state: &mut RequestLogBuffer| !state.waiting.is_empty() || state.is_writing;
        drop(self.0.changed.wait_timeout_while(self.0.state(), FINISH_WAIT_MAX, is_busy));
    }
}

impl RequestLogBuffer {
    /// Appends an entry to the buffer. Returns false if the buffer is full.
    fn take(&mut self, write: impl FnOnce(&mut RequestLogEntry<'_>)) -> bool {
        if self.waiting.len() >= WAITING_MAX {
            self.skipped += 1;
            return false;
        }
        let mut entry = RequestLogEntry(&mut self.waiting);
        let skipped = std::mem::take(&mut self.skipped);
        if skipped > 0 {
            entry.put_text(format_args!("skipped={skipped}: standard error is read too slowly\n"));
        }
        write(&mut entry);
        true
    }
}

/// Opens standard error a second time, so that other code that writes to it does not wait for this
/// log.
fn standard_error() -> io::Result<File> {
    io::stderr().as_fd().try_clone_to_owned().map(File::from)
}

/// Writes the lines of an entry.
pub(crate) struct RequestLogEntry<'e>(&'e mut Vec<u8>);

impl RequestLogEntry<'_> {
    fn put_text(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a Vec does not fail.
        let _ = self.0.write_fmt(text);
    }

    /// Writes bytes of a client, escaped so that they cannot be mistaken for other parts of the
    /// log.
    fn put_bytes(&mut self, bytes: &[u8]) {
        for &byte in &bytes[..bytes.len().min(SHOWN_MAX)] {
            match byte {
                b'\\' => self.0.extend_from_slice(b"\\\\"),
                b' '..=b'~' => self.0.push(byte),
                _ => self.put_text(format_args!("\\x{byte:02x}")),
            }
        }
        if bytes.len() > SHOWN_MAX {
            self.put_text(format_args!("... ({} bytes)", bytes.len()));
        }
    }

    pub(crate) fn listening(&mut self, descriptor: i32, speaks: &str) {
        self.put_text(format_args!("<{descriptor} server listening ({speaks})\n"));
    }

    pub(crate) fn opened(&mut self, descriptor: i32, choice: DialectChoice) {
        // As in memcached, some of these texts end with a full stop and some do not.
        let kind = match choice {
            DialectChoice::Auto => "auto-negotiating client connection",
            DialectChoice::Text => "ascii client connection.",
            DialectChoice::Binary => "binary client connection.",
        };
        self.put_text(format_args!("<{descriptor} new {kind}\n"));
    }

    /// Logs the dialect that the first byte of a connection has selected.
    pub(crate) fn chosen(&mut self, descriptor: i32, is_binary: bool) {
        let dialect = if is_binary { "binary" } else { "ascii" };
        self.put_text(format_args!("{descriptor}: Client using the {dialect} protocol\n"));
    }

    pub(crate) fn closed(&mut self, descriptor: i32) {
        self.put_text(format_args!("<{descriptor} connection closed.\n"));
    }

    /// Logs a request: its line, or its header and key.
    pub(crate) fn request(&mut self, descriptor: i32, head: RequestHead<'_>) {
        match head {
            RequestHead::Continued => {}
            RequestHead::Line(line) => {
                self.put_text(format_args!("<{descriptor} "));
                self.put_bytes(line);
                self.0.push(b'\n');
            }
            RequestHead::Packet { header, name, key, value_len } => {
                self.put_text(format_args!("<{descriptor} Read binary protocol data:\n"));
                self.put_header('<', descriptor, "   ", header);
                if key.is_empty() {
                    return;
                }
                self.put_text(format_args!("<{descriptor} {name} "));
                self.put_bytes(key);
                if let Some(len) = value_len {
                    self.put_text(format_args!(" Value len is {len}"));
                }
                self.0.push(b'\n');
            }
        }
    }

    /// Writes the bytes of a header, four in each line.
    fn put_header(&mut self, mark: char, descriptor: i32, indent: &str, header: &[u8]) {
        for bytes in header.chunks(4) {
            self.put_text(format_args!("{mark}{descriptor} {indent}"));
            for (index, byte) in bytes.iter().enumerate() {
                let blank = if index == 0 { "" } else { " " };
                self.put_text(format_args!("{blank}0x{byte:02x}"));
            }
            self.0.push(b'\n');
        }
    }

    /// Logs the reply to a request: a packet, or a line.
    pub(crate) fn answer(&mut self, descriptor: i32, is_binary: bool, is_last: bool, reply: &[u8]) {
        match is_binary {
            true => self.response(descriptor, reply),
            false => self.reply(descriptor, reply, is_last),
        }
    }

    /// Logs a reply of the text dialect. `is_last` is true if no reply to the same line follows.
    fn reply(&mut self, descriptor: i32, reply: &[u8], is_last: bool) {
        if let Some(rest) = reply.strip_prefix(b"VALUE ") {
            self.put_text(format_args!(">{descriptor} sending key "));
            self.put_bytes(rest.split(|&byte| byte == b' ').next().unwrap_or_default());
            self.0.push(b'\n');
            if is_last {
                self.put_text(format_args!(">{descriptor} END\n"));
            }
            return;
        }
        // Statistics would fill the log.
        if reply.is_empty() || reply.starts_with(b"STAT ") || reply.starts_with(b"PREFIX ") {
            return;
        }
        self.put_text(format_args!(">{descriptor} "));
        self.put_bytes(first_line(reply));
        self.0.push(b'\n');
    }

    /// Logs the last line that was sent of a checkpoint, a backup or an update log.
    pub(crate) fn end_of_export(&mut self, descriptor: i32, sent: &[u8]) {
        let sent = sent.strip_suffix(b"\r\n").unwrap_or(sent);
        let last = sent.rsplit(|&byte| byte == b'\n').next().unwrap_or_default();
        if !last.is_empty() {
            self.put_text(format_args!(">{descriptor} "));
            self.put_bytes(last);
            self.0.push(b'\n');
        }
    }

    /// Logs the reply that a request with `noreply` would otherwise have received.
    pub(crate) fn silenced(&mut self, descriptor: i32, reply: &[u8]) {
        if reply.is_empty() {
            return;
        }
        self.put_text(format_args!(">{descriptor} NOREPLY "));
        self.put_bytes(first_line(reply));
        self.0.push(b'\n');
    }

    /// Logs a reply of the binary dialect.
    fn response(&mut self, descriptor: i32, packet: &[u8]) {
        let Some((header, body)) = packet.split_at_checked(24) else { return };
        if header[6..8] != [0, 0] {
            let len = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
            self.put_text(format_args!(">{descriptor} Writing an error: "));
            self.put_bytes(&body[..len.min(body.len())]);
            self.0.push(b'\n');
        }
        self.put_text(format_args!(">{descriptor} Writing bin response:\n"));
        self.put_header('>', descriptor, "  ", header);
    }
}

fn first_line(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == b'\r' || byte == b'\n').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn written(write: impl FnOnce(&mut RequestLogEntry<'_>)) -> String {
        let mut state = RequestLogBuffer::default();
        assert!(state.take(write));
        String::from_utf8(state.waiting).unwrap()
    }

    #[test]
    fn client_bytes_are_escaped_and_limited() {
        let line = written(|entry| entry.request(7, RequestHead::Line(b"get \x1b[31m\\x\xff\r>7 END")));
        assert_eq!(line, "<7 get \\x1b[31m\\\\x\\xff\\x0d>7 END\n");
        let line = written(|entry| entry.request(7, RequestHead::Line(&[b'a'; 5000])));
        assert_eq!(line, format!("<7 {}... (5000 bytes)\n", "a".repeat(1024)));
    }

    #[test]
    fn replies_are_logged_without_values() {
        let logged = |reply: &[u8], is_last| written(|entry| entry.reply(7, reply, is_last));
        assert_eq!(logged(b"VALUE k 0 6\r\nsecret\r\n", false), ">7 sending key k\n");
        assert_eq!(logged(b"VALUE k 0 6\r\nsecret\r\nEND\r\n", true), ">7 sending key k\n>7 END\n");
        assert_eq!(logged(b"VA 6 t5\r\nsecret\r\n", true), ">7 VA 6 t5\n");
        assert_eq!(logged(b"STORED\r\n", true), ">7 STORED\n");
        assert_eq!(logged(b"STAT pid 5\r\n", true), "");
        let ended = |sent: &[u8]| written(|entry| entry.end_of_export(7, sent));
        assert_eq!(ended(b"WAIT\r\nDATA 3\r\na\nb\r\nEND\r\n"), ">7 END\n");
        assert_eq!(ended(b"CHECKPOINT position=1\r\n"), ">7 CHECKPOINT position=1\n");
    }

    /// A standard error whose reader never reads.
    struct StuckWriter(std::sync::mpsc::Receiver<()>);

    impl Write for StuckWriter {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            // Blocks until the test ends.
            let _ = self.0.recv();
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn stuck_reader_loses_lines_but_costs_no_memory() {
        let log = RequestLog::new();
        log.0.state().has_thread = true;
        let (end, stuck) = channel();
        let inner = Arc::clone(&log.0);
        std::thread::spawn(move || inner.write_all(StuckWriter(stuck)));
        // The entry leaves the buffer as soon as the thread takes it, however late that is.
        log.log(|entry| entry.closed(7));
        while !log.0.state().waiting.is_empty() {
            std::thread::yield_now();
        }
        let key = [b'k'; 250];
        let line_len = "<7 \n".len() + key.len();
        let entries = 2 * WAITING_MAX / line_len;
        for _ in 0..entries {
            log.log(|entry| entry.request(7, RequestHead::Line(&key)));
        }
        let state = log.0.state();
        let kept = WAITING_MAX.div_ceil(line_len);
        assert_eq!((state.waiting.len(), state.skipped as usize), (kept * line_len, entries - kept));
        drop(state);
        let mut state = std::mem::take(&mut *log.0.state());
        state.waiting.clear();
        assert!(state.take(|entry| entry.closed(7)));
        let skipped = String::from_utf8(state.waiting).unwrap();
        assert!(
            skipped.ends_with(": standard error is read too slowly\n<7 connection closed.\n"),
            "{skipped}"
        );
        drop(end);
    }
}
