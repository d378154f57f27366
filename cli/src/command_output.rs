//! The standard output of a command. At a terminal, control characters are escaped, because
//! terminals obey them.

use std::io::{self, IsTerminal, Write};

/// Receives the output of a command.
pub(crate) struct CommandOutput<'w> {
    writer: Box<dyn Write + 'w>,
    /// True if a person reads the output.
    pub(crate) is_terminal: bool,
    /// True if each value must fit on a line, escaped as by `list --values`.
    pub(crate) one_line_values: bool,
}

impl<'w> CommandOutput<'w> {
    /// Returns the standard output of the process.
    pub(crate) fn process() -> CommandOutput<'static> {
        let stdout = io::stdout();
        match stdout.is_terminal() {
            true => CommandOutput::terminal(stdout),
            false => CommandOutput::plain(stdout),
        }
    }

    /// Returns an output for people.
    pub(crate) fn terminal(writer: impl Write + 'w) -> CommandOutput<'w> {
        let writer = Box::new(EscapingWriter { inner: writer, pending: Vec::new() });
        CommandOutput { writer, is_terminal: true, one_line_values: false }
    }

    /// Returns an output for programs.
    pub(crate) fn plain(writer: impl Write + 'w) -> CommandOutput<'w> {
        CommandOutput { writer: Box::new(writer), is_terminal: false, one_line_values: false }
    }
}

impl Write for CommandOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// Writes `\xHH` for the bytes of control characters except tab and LF, and for bytes that are not
/// UTF-8.
struct EscapingWriter<W> {
    inner: W,
    /// The beginning of a character whose other bytes have not been written.
    pending: Vec<u8>,
}

impl<W: Write> EscapingWriter<W> {
    fn put_text(&mut self, text: &str) -> io::Result<()> {
        let is_obeyed = |letter: char| letter.is_control() && !matches!(letter, '\t' | '\n');
        let mut rest = text;
        while let Some(at) = rest.find(is_obeyed) {
            let len = rest[at..].chars().next().map_or(1, char::len_utf8);
            self.inner.write_all(&rest.as_bytes()[..at])?;
            self.put_escaped(&rest.as_bytes()[at..at + len])?;
            rest = &rest[at + len..];
        }
        self.inner.write_all(rest.as_bytes())
    }

    fn put_escaped(&mut self, bytes: &[u8]) -> io::Result<()> {
        bytes.iter().try_for_each(|byte| write!(self.inner, "\\x{byte:02x}"))
    }
}

impl<W: Write> Write for EscapingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.pending);
        all.extend_from_slice(bytes);
        let mut rest = all.as_slice();
        while let Err(error) = std::str::from_utf8(rest) {
            let (text, behind) = rest.split_at(error.valid_up_to());
            self.put_text(std::str::from_utf8(text).unwrap_or_default())?;
            let Some(len) = error.error_len() else {
                self.pending = behind.to_vec();
                return Ok(bytes.len());
            };
            self.put_escaped(&behind[..len])?;
            rest = &behind[len..];
        }
        self.put_text(std::str::from_utf8(rest).unwrap_or_default())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        self.put_escaped(&pending)?;
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_receives_no_control_characters() {
        let value = "a\tb\n\x1b[2J\x07é\u{9b}31m\x7f\r".as_bytes();
        let expected = "a\tb\n\\x1b[2J\\x07é\\xc2\\x9b31m\\x7f\\x0d\\xff\\xe2\\x82";
        let value = [value, b"\xff\xe2\x82"].concat();
        // The bytes of a character may be written one at a time.
        for piece_len in [1, 2, value.len()] {
            let mut written = Vec::new();
            let mut out = CommandOutput::terminal(&mut written);
            value.chunks(piece_len).for_each(|piece| out.write_all(piece).unwrap());
            out.flush().unwrap();
            drop(out);
            assert_eq!(String::from_utf8(written).unwrap(), expected, "{piece_len}");
        }
        let mut written = Vec::new();
        CommandOutput::plain(&mut written).write_all(&value).unwrap();
        assert_eq!(written, value);
    }
}
