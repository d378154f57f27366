//! What a client of memcached's dialects can ask for: operations on records, and words about the server and the connection.

use super::{CrawlerCommand, ExportRequest, RecordListing, WatchStreams};
use todana_core::Operation;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MemcachedCommand<'a> {
    /// About records: the reply is the operation's.
    Operation(Operation<'a>),
    /// Statistics of a group (empty: the general ones): many `Statistic`, then `End`; or `Unknown`.
    Stats {
        /// The words after `stats`.
        group: &'a [u8],
    },
    /// `Version`.
    Version,
    /// Change how much is logged. `Done`.
    Verbosity(u32),
    /// Change the memory limit (in MiB). `Done` or `Refused`.
    MemoryLimit {
        /// The new limit.
        mebibytes: u64,
    },
    /// Read certificates again, for the connections that come after. `Done`, or `Faulty` with the reason.
    RefreshCertificates,
    /// Pause, resume or move the clock; only where tests are allowed to. `Done`.
    ShiftClock(ClockShift),
    /// Stop the server: nothing, or `Refused(NotEnabled)`.
    Shutdown {
        /// As by SIGUSR1 rather than by SIGINT.
        graceful: bool,
    },
    /// List records: `Done`, a `Listed` for each, then `End`. Takes as long as it takes, in pieces.
    List(RecordListing),
    /// Steer the crawler. `Done`, or `Faulty` with what stands against it.
    Crawler(CrawlerCommand),
    /// Send these kinds of events as they happen, and serve nothing else on this connection. `Done`, or `Faulty`.
    Watch(WatchStreams),
    /// Make something of the data that is kept on disk, and perhaps send it. Takes as long as it takes, in pieces that are written
    /// as they come; `Faulty` if it cannot begin.
    Export(ExportRequest),
    /// Have the connection's further commands on records go to another database, by its number. `Done`, or `Faulty` if there is none.
    UseDatabase(u32),
    /// The codec has found the request faulty and says how. Nothing is executed; the server counts it.
    Faulty {
        /// The reply line, without its line end.
        message: &'a str,
    },
    /// Which SASL mechanisms there are: `Mechanisms`, or `Unknown` where there is no authentication.
    Mechanisms,
    /// Say who one is: `Authenticated`, `Challenge` or `Refused(NotAuthenticated)`; `Unknown` where there is no
    /// authentication.
    Authenticate(Authenticate<'a>),
    /// Close after what is pending has been sent. No reply.
    Quit,
}

impl<'a> From<Operation<'a>> for MemcachedCommand<'a> {
    #[inline]
    fn from(operation: Operation<'a>) -> MemcachedCommand<'a> {
        MemcachedCommand::Operation(operation)
    }
}

/// A client says who it is: one message of a SASL exchange, or the text dialect's token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Authenticate<'a> {
    /// The mechanism's name, as the client writes it; empty for a token.
    pub mechanism: &'a [u8],
    /// What the mechanism has the client say: for PLAIN `authorisation NUL user NUL password`; a token is `user password`.
    pub response: &'a [u8],
    /// It goes on with an exchange instead of beginning one.
    pub continues: bool,
}

impl<'a> Authenticate<'a> {
    /// User and password of a PLAIN response (RFC 4616: whom to act for, who one is, the password, a NUL between them);
    /// `None` if it is none. Whom to act for is left out: nobody here acts for others.
    ///
    /// ```
    /// # use todana_protocol::memcached::Authenticate;
    /// let authenticate = Authenticate { response: b"\0user\0secret", ..Authenticate::default() };
    /// assert_eq!(authenticate.plain(), Some((&b"user"[..], &b"secret"[..])));
    /// ```
    pub fn plain(&self) -> Option<(&'a [u8], &'a [u8])> {
        let mut parts = self.response.split(|&byte| byte == 0);
        let (_, user, password) = (parts.next()?, parts.next()?, parts.next()?);
        parts.next().is_none().then_some((user, password))
    }

    /// User and password of a token: a word, and what stands behind it, without the blanks around the two; `None` if
    /// either is missing.
    ///
    /// ```
    /// # use todana_protocol::memcached::Authenticate;
    /// let authenticate = Authenticate { response: b"user two words", ..Authenticate::default() };
    /// assert_eq!(authenticate.token(), Some((&b"user"[..], &b"two words"[..])));
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

/// What a test wants done to the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockShift {
    /// It stands still.
    Pause,
    /// It goes on from where it stands.
    Resume,
    /// It reads so many seconds more.
    Forward {
        /// How many.
        seconds: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::Authenticate;

    #[test]
    fn a_token_is_a_word_and_what_stands_behind_it() {
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
            let authenticate = Authenticate { response, ..Authenticate::default() };
            assert_eq!(authenticate.token(), parts, "{}", response.escape_ascii());
        }
    }

    #[test]
    fn a_plain_response_has_three_parts() {
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
            let authenticate = Authenticate { response, ..Authenticate::default() };
            assert_eq!(authenticate.plain(), parts, "{}", response.escape_ascii());
        }
    }
}
