//! How the program fails: an exit code, and perhaps a line for people.

use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Why the program ends without success.
#[derive(Debug)]
pub(crate) struct CommandFailure {
    code: u8,
    message: Option<String>,
}

impl CommandFailure {
    /// No such record, or not stored.
    pub(crate) fn miss() -> CommandFailure {
        CommandFailure { code: 1, message: None }
    }

    /// Not done, for a reason that is no error.
    pub(crate) fn declined(message: impl Into<String>) -> CommandFailure {
        CommandFailure { code: 1, message: Some(message.into()) }
    }

    /// Wrong usage.
    pub(crate) fn usage(message: impl Into<String>) -> CommandFailure {
        CommandFailure { code: 2, message: Some(message.into()) }
    }

    /// The server cannot be reached or refuses, or the system does.
    pub(crate) fn trouble(message: impl Into<String>) -> CommandFailure {
        CommandFailure { code: 3, message: Some(message.into()) }
    }

    /// Reports that a file cannot be read or written; nothing if the reader of our output has gone.
    pub(crate) fn of_file(path: &Path, error: io::Error) -> CommandFailure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CommandFailure::from(error),
            _ => CommandFailure::trouble(format!("{}: {error}", path.display())),
        }
    }

    /// A signal has ended it.
    pub(crate) fn interrupted() -> CommandFailure {
        CommandFailure { code: crate::interruption_flag::EXIT_CODE, message: Some("interrupted".into()) }
    }

    /// The same, told already.
    pub(crate) fn silent(self) -> CommandFailure {
        CommandFailure { message: None, ..self }
    }

    pub(crate) fn report(self) -> ExitCode {
        self.tell();
        ExitCode::from(self.code)
    }

    /// Prints the line for people.
    pub(crate) fn tell(&self) {
        if let Some(message) = &self.message {
            // It may repeat what a server has said, which is not to steer the terminal.
            let is_safe = |letter: &char| !letter.is_control() || *letter == '\n';
            let message: String =
                message.chars().map(|letter| if is_safe(&letter) { letter } else { '\u{FFFD}' }).collect();
            eprintln!("todana: {message}");
        }
    }
}

impl From<io::Error> for CommandFailure {
    fn from(error: io::Error) -> Self {
        // Whoever reads our output has enough (`todana stats | head`): nothing to complain about.
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
            // The second is what a store is taken for where a login is expected.
            todana_client::Error::Refused(refusal)
                if refusal.line == "CLIENT_ERROR unauthenticated"
                    || refusal.line == "CLIENT_ERROR bad authentication token format" =>
            {
                CommandFailure::trouble(
                    "the server wants a login: --user NAME and --password-file FILE (or TODANA_USER and TODANA_PASSWORD)",
                )
            }
            todana_client::Error::Refused(ref refusal)
                if refusal.line.starts_with("ERROR ") && refusal.line.ends_with(" not allowed") =>
            {
                CommandFailure::trouble(format!(
                    "{error}: it was started with -X, and does not show its records"
                ))
            }
            todana_client::Error::Refused(ref refusal)
                if refusal.line.contains("object too large for cache") =>
            {
                CommandFailure::trouble(format!(
                    "{error}; its limit is item_size_max of `todana stats settings`, and `serve -I SIZE` raises it"
                ))
            }
            todana_client::Error::Unexpected(ref line) if line.starts_with("HTTP/") => {
                CommandFailure::trouble(
                    "the server speaks HTTP: that is the port of the pages for monitoring, or not a Todana; the data port is 10000 below",
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

/// Why a server makes no checkpoint, and sends neither backup nor log.
pub(crate) fn kept_nothing(error: todana_client::Error) -> CommandFailure {
    match error {
        todana_client::Error::Refused(refusal) if refusal.line == "ERROR" => CommandFailure::trouble(
            "the server says: ERROR: it does not know this command; memcached keeps nothing to make a checkpoint, a backup or a log of",
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
