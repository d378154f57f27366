//! The failure of a command: an exit code and an optional message.

use std::io;
use std::path::Path;
use std::process::ExitCode;

/// The reason why the program ends without success.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    code: u8,
    message: Option<String>,
}

impl CommandFailure {
    /// A record is missing, or was not stored.
    pub(crate) fn miss() -> CommandFailure {
        CommandFailure { code: 1, message: None }
    }

    /// The user declined the action.
    pub(crate) fn declined(message: impl Into<String>) -> CommandFailure {
        CommandFailure { code: 1, message: Some(message.into()) }
    }

    /// The command line is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> CommandFailure {
        CommandFailure { code: 2, message: Some(message.into()) }
    }

    /// The server cannot be reached or refuses, or the system reports an error.
    pub(crate) fn trouble(message: impl Into<String>) -> CommandFailure {
        CommandFailure { code: 3, message: Some(message.into()) }
    }

    /// Reports that a file cannot be read or written. A closed output pipe is no failure.
    pub(crate) fn of_file(path: &Path, error: io::Error) -> CommandFailure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CommandFailure::from(error),
            _ => CommandFailure::trouble(format!("{}: {error}", path.display())),
        }
    }

    /// A signal ended the command.
    pub(crate) fn interrupted() -> CommandFailure {
        CommandFailure { code: crate::interruption_flag::EXIT_CODE, message: Some("interrupted".into()) }
    }

    /// Returns the same exit code without the message, which is already printed.
    pub(crate) fn silent(self) -> CommandFailure {
        CommandFailure { message: None, ..self }
    }

    pub(crate) fn report(self) -> ExitCode {
        self.print();
        ExitCode::from(self.code)
    }

    /// Prints the message on standard error.
    pub(crate) fn print(&self) {
        if let Some(message) = &self.message {
            // The message may quote the server: control characters must not reach the terminal.
            let is_safe = |letter: &char| !letter.is_control() || *letter == '\n';
            let message: String =
                message.chars().map(|letter| if is_safe(&letter) { letter } else { '\u{FFFD}' }).collect();
            eprintln!("todana: {message}");
        }
    }
}

impl From<io::Error> for CommandFailure {
    fn from(error: io::Error) -> Self {
        // The reader closed the pipe, as in `todana stats | head`. That is no failure.
        if error.kind() == io::ErrorKind::BrokenPipe {
            return CommandFailure { code: 0, message: None };
        }
        CommandFailure::trouble(error.to_string())
    }
}

impl From<todana_client::Error> for CommandFailure {
    fn from(error: todana_client::Error) -> Self {
        match error {
            todana_client::Error::Invalid(_) => CommandFailure::usage(error.to_string()),
            // A server that expects a login over the text protocol answers a store with the second.
            todana_client::Error::Refused(refusal)
                if refusal.line == "CLIENT_ERROR unauthenticated"
                    || refusal.line == "CLIENT_ERROR bad authentication token format" =>
            {
                CommandFailure::trouble(
                    "the server requires a login; use --user NAME and --password-file FILE, or TODANA_USER and TODANA_PASSWORD",
                )
            }
            todana_client::Error::Refused(ref refusal)
                if refusal.line.starts_with("ERROR ") && refusal.line.ends_with(" not allowed") =>
            {
                CommandFailure::trouble(format!(
                    "{error}: the server was started with -X, which forbids listing keys"
                ))
            }
            todana_client::Error::Refused(ref refusal)
                if refusal.line.contains("object too large for cache") =>
            {
                CommandFailure::trouble(format!(
                    "{error}; `todana stats settings` shows the limit (item_size_max), and `serve -I SIZE` raises it"
                ))
            }
            todana_client::Error::Unexpected(ref line) if line.starts_with("HTTP/") => {
                CommandFailure::trouble(
                    "the server speaks HTTP; this may be the port of the monitoring pages, and the data port is 10000 below it",
                )
            }
            _ => CommandFailure::trouble(error.to_string()),
        }
    }
}

impl From<todana_core::Error> for CommandFailure {
    fn from(error: todana_core::Error) -> Self {
        match error.kind() {
            todana_core::ErrorKind::Invalid => CommandFailure::usage(error.to_string()),
            _ => CommandFailure::trouble(error.to_string()),
        }
    }
}

impl From<Box<dyn std::error::Error>> for CommandFailure {
    fn from(error: Box<dyn std::error::Error>) -> Self {
        CommandFailure::trouble(error.to_string())
    }
}

/// Explains why a server sends no checkpoint, backup or log.
pub(crate) fn kept_nothing(error: todana_client::Error) -> CommandFailure {
    match error {
        todana_client::Error::Refused(refusal) if refusal.line == "ERROR" => CommandFailure::trouble(
            "the server says: ERROR: unknown command; memcached has no checkpoints, backups or update log",
        ),
        todana_client::Error::Refused(refusal)
            if refusal.line.starts_with("SERVER_ERROR no data directory") =>
        {
            CommandFailure::trouble(format!(
                "the server says: {}; `todana dump` copies its records",
                refusal.line
            ))
        }
        error => error.into(),
    }
}
