//! Defines the commands of memcached's dialects: operations on records, and commands about the
//! server and the connection.

use super::{CrawlerCommand, ExportRequest, RecordListing, WatchStreams};
use todana_core::Operation;

/// A request. The documentation of each variant names the replies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemcachedCommand<'a> {
    /// An operation on records. Answered by the reply of the operation.
    Operation(Operation<'a>),
    /// Reads a group of statistics; the empty name means the general group. Answered by a
    /// `Statistic` for each, then `End`, or by `Unknown`.
    Stats {
        /// The words after `stats`.
        group: &'a [u8],
    },
    /// Reads the server's version. Answered by `Version`.
    Version,
    /// Changes the log level. Answered by `Done`.
    Verbosity(u32),
    /// Changes the memory limit. Answered by `Done` or `Refused`.
    MemoryLimit {
        /// The new limit, in MiB.
        mebibytes: u64,
    },
    /// Reads the certificates again, for later connections. Answered by `Done`, or by `Faulty` with
    /// the reason.
    RefreshCertificates,
    /// Stops, resumes or advances the clock, if debug commands are enabled. Answered by `Done`.
    ShiftClock(ClockShift),
    /// Stops the server. Not answered, or answered by `Refused(NotEnabled)`.
    Shutdown {
        /// Stop as after SIGUSR1 and not as after SIGINT.
        graceful: bool,
    },
    /// Lists records. Answered by `Done`, a `Listed` for each record, then `End`. The server
    /// produces the list in pieces, which may take long.
    List(RecordListing),
    /// Controls the crawler. Answered by `Done`, or by `Faulty` with the reason.
    Crawler(CrawlerCommand),
    /// Sends events of these kinds as they happen. The connection serves no further commands.
    /// Answered by `Done` or `Faulty`.
    Watch(WatchStreams),
    /// Exports data on disk, and sends it if the export is a stream. The export is written in
    /// pieces, which may take long. Answered by `Faulty` if it cannot begin.
    Export(ExportRequest),
    /// Selects the database of the later operations on this connection, by its number. Answered by
    /// `Done`, or by `Faulty` if the database does not exist.
    UseDatabase(u32),
    /// A malformed request. The server executes nothing and counts the error.
    Faulty {
        /// The reply line, without its line end.
        message: &'a str,
    },
    /// Lists the SASL mechanisms. Answered by `Mechanisms`, or by `Unknown` if the server has no
    /// logins.
    Mechanisms,
    /// Authenticates the client. Answered by `Authenticated`, `Challenge` or
    /// `Refused(NotAuthenticated)`, or by `Unknown` if the server has no logins.
    Authenticate(LoginCredentials<'a>),
    /// Closes the connection after pending replies have been sent. Not answered.
    Quit,
}

impl<'a> From<Operation<'a>> for MemcachedCommand<'a> {
    #[inline]
    fn from(operation: Operation<'a>) -> MemcachedCommand<'a> {
        MemcachedCommand::Operation(operation)
    }
}

/// The credentials of a client: one message of a SASL exchange, or the token of the text dialect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoginCredentials<'a> {
    /// The name of the mechanism as the client sent it; empty for a token.
    pub mechanism: &'a [u8],
    /// The client's response: `authorisation NUL user NUL password` for PLAIN, `user password` for
    /// a token.
    pub response: &'a [u8],
    /// True if the message continues an exchange, false if it begins one.
    pub continues: bool,
}

impl<'a> LoginCredentials<'a> {
    /// Returns the user and password of a PLAIN response (RFC 4616: authorisation, user and
    /// password, separated by NUL), or `None` if the response has another form. The authorisation
    /// is ignored, because no user can act for another user.
    ///
    /// ```
    /// # use todana_protocol::memcached::LoginCredentials;
    /// let credentials =
    ///     LoginCredentials { response: b"\0user\0secret", ..LoginCredentials::default() };
    /// assert_eq!(credentials.plain(), Some((&b"user"[..], &b"secret"[..])));
    /// ```
    pub fn plain(&self) -> Option<(&'a [u8], &'a [u8])> {
        let mut parts = self.response.split(|&byte| byte == 0);
        let (_, user, password) = (parts.next()?, parts.next()?, parts.next()?);
        parts.next().is_none().then_some((user, password))
    }

    /// Returns the user and password of a token: the first word, and the text after it without
    /// surrounding blanks. Returns `None` if one of them is missing.
    ///
    /// ```
    /// # use todana_protocol::memcached::LoginCredentials;
    /// let credentials =
    ///     LoginCredentials { response: b"user two words", ..LoginCredentials::default() };
    /// assert_eq!(credentials.token(), Some((&b"user"[..], &b"two words"[..])));
    /// ```
    pub fn token(&self) -> Option<(&'a [u8], &'a [u8])> {
        let is_blank = |&byte: &u8| byte == b' ';
        let not_blank = |byte: &u8| !is_blank(byte);
        let from = self.response.iter().position(not_blank)?;
        let to = self.response.iter().rposition(not_blank)? + 1;
        let token = &self.response[from..to];
        let (user, rest) = token.split_at(token.iter().position(is_blank)?);
        let password = &rest[rest.iter().position(not_blank)?..];
        Some((user, password))
    }
}

/// A change of the server's clock, for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockShift {
    /// The clock stops.
    Pause,
    /// The clock continues from its current time.
    Resume,
    /// The clock advances.
    Forward {
        /// The number of seconds.
        seconds: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::LoginCredentials;

    #[test]
    fn token_is_a_word_and_the_rest() {
        let cases: [(&[u8], _); 9] = [
            (b"user secret", Some((&b"user"[..], &b"secret"[..]))),
            (b"  user  secret ", Some((b"user", b"secret"))),
            (b"user two  words", Some((b"user", b"two  words"))),
            (b"user\tx secret", Some((b"user\tx", b"secret"))),
            (b"user", None),
            (b"user ", None),
            (b" user", None),
            (b"  ", None),
            (b"", None),
        ];
        for (response, parts) in cases {
            let credentials = LoginCredentials { response, ..LoginCredentials::default() };
            assert_eq!(credentials.token(), parts, "{}", response.escape_ascii());
        }
    }

    #[test]
    fn plain_response_has_three_parts() {
        let cases: [(&[u8], _); 7] = [
            (b"\0user\0secret", Some((&b"user"[..], &b"secret"[..]))),
            (b"other\0user\0secret", Some((b"user", b"secret"))),
            (b"\0\0", Some((b"", b""))),
            (b"", None),
            (b"user\0secret", None),
            (b"\0user\0secret\0", None),
            (b"\0user\0sec\0ret", None),
        ];
        for (response, parts) in cases {
            let credentials = LoginCredentials { response, ..LoginCredentials::default() };
            assert_eq!(credentials.plain(), parts, "{}", response.escape_ascii());
        }
    }
}
