//! Writes log files in the formats of Kyoto Tycoon and Tokyo Tyrant. The file can be reopened, and
//! each line names one of three kinds.
//!
//! ```text
//! 2026-11-22T01:13:20.973733Z: [SYSTEM]: message key=value
//! 2026-11-22T01:13:20Z<TAB>SYSTEM<TAB>message key=value
//! ```

use parking_lot::Mutex;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// The kinds of lines that are logged. Each variant includes the kinds of the variants before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogKinds {
    /// No lines are logged.
    None,
    /// Failures are logged.
    Errors,
    /// Warnings are logged, and actions of the server that no client requested.
    System,
    /// Connections are logged.
    #[default]
    All,
}

impl LogKinds {
    fn level(self) -> LevelFilter {
        match self {
            LogKinds::None => LevelFilter::OFF,
            LogKinds::Errors => LevelFilter::ERROR,
            LogKinds::System => LevelFilter::INFO,
            LogKinds::All => LevelFilter::DEBUG,
        }
    }
}

/// The destination of log lines: a file to which they are appended, or standard output.
#[derive(Clone, Debug)]
pub struct LogFile {
    path: Option<PathBuf>,
    file: Arc<Mutex<Option<File>>>,
}

impl LogFile {
    /// Opens the file, which is created if it is missing. `None` stands for standard output.
    pub fn open(path: Option<&Path>) -> io::Result<LogFile> {
        let file = path.map(open).transpose()?;
        Ok(LogFile { path: path.map(Path::to_path_buf), file: Arc::new(Mutex::new(file)) })
    }

    /// Opens the path again, for use after the file was renamed. If this fails, lines continue to
    /// go to the old file.
    pub fn reopen(&self) -> io::Result<()> {
        if let Some(path) = &self.path {
            let file = open(path)?;
            *self.file.lock() = Some(file);
        }
        Ok(())
    }

    /// Directs the log lines of this process to the file. A second call has no effect.
    pub fn receive(&self, kinds: LogKinds, style: LogStyle) {
        let lines =
            tracing_subscriber::fmt::layer().with_ansi(false).event_format(style).with_writer(self.clone());
        // If a logger is installed already, by a test or an embedding program, it stays in use.
        let _ = tracing_subscriber::registry().with(kinds.level()).with(lines).try_init();
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Writes to the current destination.
#[derive(Debug)]
pub struct LogWriter(Arc<Mutex<Option<File>>>);

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *self.0.lock() {
            Some(file) => file.write(bytes),
            None => io::stdout().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut *self.0.lock() {
            Some(file) => file.flush(),
            None => io::stdout().flush(),
        }
    }
}

impl MakeWriter<'_> for LogFile {
    type Writer = LogWriter;

    fn make_writer(&self) -> LogWriter {
        LogWriter(Arc::clone(&self.file))
    }
}

/// The format of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStyle {
    /// Kyoto Tycoon's.
    Kyoto,
    /// Tokyo Tyrant's.
    Tyrant,
}

impl<S, N> FormatEvent<S, N> for LogStyle
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let kind = match *event.metadata().level() {
            Level::ERROR => "ERROR",
            Level::WARN | Level::INFO => "SYSTEM",
            Level::DEBUG => "INFO",
            Level::TRACE => "DEBUG",
        };
        match self {
            LogStyle::Kyoto => {
                SystemTime.format_time(&mut line)?;
                write!(line, ": [{kind}]: ")?;
            }
            LogStyle::Tyrant => {
                let mut time = String::new();
                SystemTime.format_time(&mut Writer::new(&mut time))?;
                let seconds = time.split('.').next().unwrap_or_default();
                write!(line, "{seconds}Z\t{kind}\t")?;
            }
        }
        context.format_fields(line.by_ref(), event)?;
        writeln!(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(kinds: LogKinds) -> String {
        lines_in(LogStyle::Kyoto, kinds)
    }

    fn lines_in(style: LogStyle, kinds: LogKinds) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let log = LogFile::open(Some(&path)).unwrap();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).event_format(style);
        let subscriber =
            tracing_subscriber::registry().with(kinds.level()).with(layer.with_writer(log.clone()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::error!(database = ":", "lost");
            tracing::warn!("short");
            std::fs::rename(&path, directory.path().join("old")).unwrap();
            log.reopen().unwrap();
            tracing::info!("begun");
            tracing::debug!("connected");
        });
        let old = std::fs::read_to_string(directory.path().join("old")).unwrap();
        old + "|" + &std::fs::read_to_string(&path).unwrap()
    }

    #[test]
    fn line_has_time_kind_and_message() {
        let text = lines(LogKinds::All);
        let logged: Vec<&str> = text.lines().map(|line| &line[line.find("Z: ").unwrap()..]).collect();
        let expected = [
            "Z: [ERROR]: lost database=\":\"",
            "Z: [SYSTEM]: short",
            "Z: [SYSTEM]: begun",
            "Z: [INFO]: connected",
        ];
        assert_eq!(logged, expected);
        let time = text.lines().next().unwrap().split(": ").next().unwrap();
        let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000000Z");
    }

    #[test]
    fn line_of_tyrant_has_tabs_and_seconds() {
        let text = lines_in(LogStyle::Tyrant, LogKinds::Errors);
        let (time, rest) = text.split_once('\t').unwrap();
        let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!((shape.as_str(), rest), ("0000-00-00T00:00:00Z", "ERROR\tlost database=\":\"\n|"));
    }

    #[test]
    fn lines_of_other_kinds_are_not_logged() {
        let kinds_of = |kinds| lines(kinds).matches('[').count();
        let counts = [LogKinds::None, LogKinds::Errors, LogKinds::System, LogKinds::All].map(kinds_of);
        assert_eq!(counts, [0, 1, 3, 4]);
    }

    #[test]
    fn reopened_file_is_found_by_name() {
        let text = lines(LogKinds::System);
        let (old, new) = text.split_once('|').unwrap();
        assert!(old.ends_with("short\n") && !old.contains("begun"));
        assert!(new.ends_with("begun\n") && !new.contains("short"));
    }

    #[test]
    fn unopenable_file_is_an_error() {
        assert!(LogFile::open(Some(Path::new("/nowhere/log"))).is_err());
    }
}
