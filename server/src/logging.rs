//! Structured logs on standard error.

use tracing_subscriber::filter::LevelFilter;

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One line of text.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Sends logs to standard error: errors and notices always, more by verbosity. Does nothing the second time.
pub fn init_logging(format: LogFormat, verbosity: u8) {
    let level = match verbosity {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let builder =
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level).with_target(false);
    // A second initialisation (tests, an embedder's own logger) keeps the first.
    let _ = match format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}
