//! Writes structured logs to standard error.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One line of text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// The target of messages that an operator requested by a signal. They are logged at any verbosity.
pub const NOTICE: &str = "todana::notice";

/// True if notices are logged at any verbosity.
static NOTICES: AtomicBool = AtomicBool::new(false);

/// The handle that changes the level at run time. It is not set if an embedding program has its own
/// logger.
static LEVEL: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

fn levels(verbosity: u32) -> Targets {
    let level = match verbosity {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let notices = if NOTICES.load(Ordering::Relaxed) { level.max(LevelFilter::INFO) } else { level };
    // The driver of Cassandra warns about settings that are intended.
    let of_driver = level.min(LevelFilter::ERROR);
    let of_driver = if verbosity > 2 { level } else { of_driver };
    Targets::new().with_default(level).with_target(NOTICE, notices).with_target("scylla", of_driver)
}

/// Does the same as [`init_logging`], and also logs the effects of signals at any verbosity.
pub fn init_logging_with_notices(format: LogFormat, verbosity: u8) {
    NOTICES.store(true, Ordering::Relaxed);
    init_logging(format, verbosity);
}

/// Directs logs to standard error. Warnings and errors are always logged, and more depending on the
/// verbosity. A second call has no effect.
pub fn init_logging(format: LogFormat, verbosity: u8) {
    let (filter, handle) = reload::Layer::new(levels(verbosity.into()));
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        // Colours are for terminals. Files must not contain their control characters.
        .with_ansi(std::io::stderr().is_terminal());
    let registry = tracing_subscriber::registry().with(filter);
    // If a logger is installed already, by a test or an embedding program, it stays in use.
    let outcome = match format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json()).try_init(),
    };
    if outcome.is_ok() {
        let _ = LEVEL.set(handle);
    }
}

/// Changes the verbosity, for the command `verbosity`.
pub(crate) fn set_verbosity(verbosity: u32) {
    if let Some(handle) = LEVEL.get() {
        // This fails only if the logger no longer exists.
        let _ = handle.reload(levels(verbosity));
    }
}
