//! Shows output that is longer than the screen in a pager.

use crate::interruption_flag::InterruptionFlag;
use std::io::{self, Write};
use std::process::{Child, Command, Stdio};

/// Output for a terminal. It is held until it is longer than the screen, or complete.
pub(super) struct PagedOutput {
    held: Vec<u8>,
    /// Columns and rows of the screen.
    screen: (usize, usize),
    /// The number of rows that the held output fills.
    rows: usize,
    column: usize,
    reader: OutputReader,
    interruption: InterruptionFlag,
}

/// The receiver of the output.
enum OutputReader {
    /// Not known yet.
    Held,
    /// A pager.
    Pager(Child),
    /// The terminal.
    Terminal,
}

impl PagedOutput {
    /// Returns output for a screen of this number of columns and rows.
    pub(super) fn new(screen: (usize, usize), interruption: InterruptionFlag) -> PagedOutput {
        PagedOutput { held: Vec::new(), screen, rows: 0, column: 0, reader: OutputReader::Held, interruption }
    }

    /// Shows the rest, and waits until the user leaves the pager.
    pub(super) fn finish(self) -> io::Result<()> {
        match self.reader {
            OutputReader::Held => io::stdout().write_all(&self.held)?,
            OutputReader::Pager(mut pager) => {
                drop(pager.stdin.take());
                pager.wait()?;
            }
            OutputReader::Terminal => {}
        }
        io::stdout().flush()
    }

    /// Counts the rows of more output.
    fn measure(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.column += 1;
            if *byte == b'\n' || self.column > self.screen.0 {
                self.rows += 1;
                self.column = 0;
            }
        }
    }

    /// Sends the held output to a pager, or to the terminal if there is none.
    fn choose_reader(&mut self) -> io::Result<()> {
        self.reader = start_pager().map_or(OutputReader::Terminal, OutputReader::Pager);
        let held = std::mem::take(&mut self.held);
        self.send(&held)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.reader {
            OutputReader::Pager(pager) => pager.stdin.as_mut().map_or(Ok(()), |pipe| pipe.write_all(bytes)),
            _ => io::stdout().write_all(bytes),
        }
    }
}

impl Write for PagedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.interruption.check().is_err() {
            return Err(io::Error::other("interrupted"));
        }
        if !matches!(self.reader, OutputReader::Held) {
            self.send(bytes)?;
            return Ok(bytes.len());
        }
        self.held.extend_from_slice(bytes);
        self.measure(bytes);
        if self.rows >= self.screen.1.saturating_sub(1) {
            self.choose_reader()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the program of the variable `PAGER`, or `less`. Returns `None` if there is none.
fn start_pager() -> Option<Child> {
    let program = std::env::var("PAGER").unwrap_or_else(|_| "less".into());
    if program.trim().is_empty() {
        return None;
    }
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("exec {program}")).stdin(Stdio::piped());
    if std::env::var_os("LESS").is_none() {
        // As git does: end if the text fits the screen, and leave it there.
        command.env("LESS", "FX");
    }
    command.spawn().ok()
}
