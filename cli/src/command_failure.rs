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
    /// Returns the failure for a record that is missing or was not stored.
    pub(crate) fn miss() -> CommandFailure {
        CommandFailure { code: 1, message: None }
    }

    /// Returns the failure for an action that the user did not confirm.
    pub(crate) fn declined(message: impl Into<String>) -> CommandFailure {
        CommandFailure { code: 1, message: Some(message.into()) }
    }

    /// Returns the failure for a wrong command line.
    pub(crate) fn usage(message: impl Into<String>) -> CommandFailure {
        CommandFailure { code: 2, message: Some(message.into()) }
    }

    /// Returns the failure for a server that cannot be reached or refuses the command, or for an
    /// error of the system.
    pub(crate) fn trouble(message: impl Into<String>) -> CommandFailure {
        CommandFailure { code: 3, message: Some(message.into()) }
    }

    /// Returns the failure for a file that cannot be read or written. If a pipe was closed by its
    /// reader, the exit code is 0.
    pub(crate) fn of_file(path: &Path, error: io::Error) -> CommandFailure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CommandFailure::from(error),
            _ => CommandFailure::trouble(format!("{}: {error}", path.display())),
        }
    }

    /// Returns the failure of a command that a signal has ended.
    pub(crate) fn interrupted() -> CommandFailure {
        CommandFailure { code: crate::interruption_flag::EXIT_CODE, message: Some("interrupted".into()) }
    }

    /// Returns the same exit code without the message, which is already printed.
    pub(crate) fn silent(self) -> CommandFailure {
        CommandFailure { message: None, ..self }
    }

    /// Returns true if the reader of the output has closed it, which is not a failure.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        self.code == 0
    }

    /// Returns the failure with the place of the command before its message.
    pub(crate) fn at(self, place: &str) -> CommandFailure {
        let message = match self.message {
            Some(message) => format!("{place}: {message}"),
            None => format!("{place}: exit code {}", self.code),
        };
        CommandFailure { message: Some(message), ..self }
    }

    /// Returns the message; empty if there is none.
    pub(crate) fn message(&self) -> &str {
        self.message.as_deref().unwrap_or_default()
    }

    pub(crate) fn report(self) -> ExitCode {
        self.print();
        ExitCode::from(self.code)
    }

    /// Prints the message on standard error.
    pub(crate) fn print(&self) {
        if let Some(message) = &self.message {
            // The message may contain text from the server, so control characters are replaced
            // before they reach the terminal.
            let is_safe = |letter: &char| !letter.is_control() || *letter == '\n';
            let message: String =
                message.chars().map(|letter| if is_safe(&letter) { letter } else { '\u{FFFD}' }).collect();
            eprintln!("todana: {message}");
        }
    }
}

impl From<io::Error> for CommandFailure {
    fn from(error: io::Error) -> Self {
        // The reader of the output closed the pipe, as `head` does in `todana stats | head`. That
        // is not a failure.
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
            // If a login is required over the text protocol, a store is refused with the second
            // text.
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

/// Returns the failure of a request for a checkpoint, a backup or a log. If the server keeps no
/// data on disk, the message says so.
pub(crate) fn no_stored_data(error: todana_client::Error) -> CommandFailure {
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
