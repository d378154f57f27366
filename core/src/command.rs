//! What a client can ask for, independent of any protocol.
//!
//! The structs carry the union of what the dialects can say; a codec fills in what its dialect has and
//! leaves the rest at its default. Keys and values borrow from the codec's input.

use crate::{Crawler, Export, List, Refusal, Shared, Streams};

/// How long a record shall live, as a client says it: not yet resolved against a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ttl {
    /// It stays.
    #[default]
    Never,
    /// It is dead at once.
    Expired,
    /// So many seconds from now.
    Seconds(u32),
    /// At this Unix time.
    At(u64),
    /// So many seconds after the last access, whenever that will be.
    Sliding(u32),
}

impl Ttl {
    /// memcached's rule for a signed number: 0 never, negative dead at once, up to 30 days relative, above that
    /// a Unix time (protocol.txt, "Expiration times").
    pub fn from_memcached(exptime: i64) -> Ttl {
        const THIRTY_DAYS_S: i64 = 60 * 60 * 24 * 30;
        match exptime {
            0 => Ttl::Never,
            i64::MIN..0 => Ttl::Expired,
            1..=THIRTY_DAYS_S => Ttl::Seconds(exptime as u32),
            _ => Ttl::At(exptime as u64),
        }
    }
}

/// Which family of commands a request belongs to; only the statistics care.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// memcached's text commands, and its binary packets, which are counted with them.
    #[default]
    Text,
    /// memcached's meta commands.
    Meta,
}

/// Which costly parts the reply will show, so that what nobody asked for is not made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The version: a record that has none gets a fresh one.
    pub version: bool,
    /// Last access and fetched: turns access tracking on.
    pub access: bool,
}

/// Read one record, and perhaps touch it or create it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Get<'a> {
    /// The key.
    pub key: &'a [u8],
    /// New time to live on a hit (`gat`, meta `T`).
    pub touch: Option<Ttl>,
    /// On a miss create an empty record with this time to live; the caller wins (meta `N`).
    pub vivify: Option<Ttl>,
    /// The caller wins if fewer seconds than this are left (meta `R`); records that never expire do not count.
    pub recache_below_s: Option<i64>,
    /// What is left is looked at after `touch` rather than before it (meta `T` stands before `R`).
    pub recache_after_touch: bool,
    /// The version for a record created by `vivify` (meta `E`).
    pub version: Option<u64>,
    /// What the reply shows.
    pub needs: Needs,
    /// Does not count as an access (meta `u`).
    pub silent: bool,
    /// It is a `gat`: counted under touch, not under get.
    pub counts_as_touch: bool,
    /// For the statistics.
    pub family: Family,
}

/// How a store treats what is already there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreMode {
    /// Whatever is there is replaced.
    #[default]
    Set,
    /// Only if nothing is there.
    Add,
    /// Only if something is there.
    Replace,
    /// The value goes behind the old one; flags and expiry stay.
    Append,
    /// The value goes before the old one; flags and expiry stay.
    Prepend,
}

/// Store a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Store<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The value, or the piece to append.
    pub value: &'a [u8],
    /// The same bytes in memory of the engine's ([`Buffer`](crate::Buffer)), if they were received into it.
    pub shared: Shared<'a>,
    /// The client's flags.
    pub flags: u32,
    /// Time to live.
    pub ttl: Ttl,
    /// What to do with what is there.
    pub mode: StoreMode,
    /// Only if the stored version equals this (`cas`, meta `C`).
    pub compare: Option<u64>,
    /// With `compare`: if it is lower than the stored version, set and replace store all the same, but keep the time to
    /// live and mark the record stale (meta `I`). A record without a version is newer than any that was shown.
    pub stale_if_older: bool,
    /// The version to store (meta `E`); also shown.
    pub version: Option<u64>,
    /// Append or prepend to nothing creates the record with this time to live (meta `N`).
    pub vivify: Option<Ttl>,
    /// What the reply shows.
    pub needs: Needs,
    /// The whole item may not be longer than this (memcached's size rule, see the memcached codec); an
    /// append beyond it is not stored.
    pub item_size_max: Option<u64>,
    /// For the statistics.
    pub family: Family,
}

/// A write whose value was not taken, as it is too long or there is no memory for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedStore<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The announced length of the value.
    pub value_len: usize,
    /// The client's flags.
    pub flags: u32,
    /// What was to be done with what is there.
    pub mode: StoreMode,
    /// Only if a version was equal.
    pub compares: bool,
    /// The old record goes: memcached drops what the client of a set believes replaced.
    pub discards: bool,
    /// Why: `TooLarge` or `OutOfMemory`.
    pub refusal: Refusal,
}

/// Remove a record, or empty it, or mark it stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Only if the stored version equals this.
    pub compare: Option<u64>,
    /// Mark it stale, with a new version, instead of removing it (meta `I`).
    pub mark_stale: bool,
    /// Keep the record and its version but drop its value (meta `x`); flags become 0 and the expiry `Never` unless given.
    pub drop_value: bool,
    /// New time to live, with `mark_stale` or `drop_value`.
    pub ttl: Option<Ttl>,
    /// Flags to keep with `drop_value` (meta `F`).
    pub flags: Option<u32>,
    /// The version to store with `mark_stale` or `drop_value` (meta `E`).
    pub version: Option<u64>,
    /// For the statistics.
    pub family: Family,
}

/// Which way a number goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Up, wrapping at 2^64.
    #[default]
    Increment,
    /// Down, stopping at 0.
    Decrement,
}

/// Add to or subtract from a decimal number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Up or down.
    pub direction: Direction,
    /// By how much.
    pub delta: u64,
    /// On a miss create the record with `initial` and this time to live (meta `N`).
    pub vivify: Option<Ttl>,
    /// The number that `vivify` creates (meta `J`).
    pub initial: u64,
    /// New time to live on a hit (meta `T`).
    pub touch: Option<Ttl>,
    /// Only if the stored version equals this.
    pub compare: Option<u64>,
    /// The version to store (meta `E`).
    pub version: Option<u64>,
    /// What the reply shows.
    pub needs: Needs,
    /// For the statistics.
    pub family: Family,
}

impl Default for Arithmetic<'_> {
    fn default() -> Self {
        Arithmetic {
            key: b"",
            direction: Direction::Increment,
            delta: 1,
            vivify: None,
            initial: 0,
            touch: None,
            compare: None,
            version: None,
            needs: Needs::default(),
            family: Family::Text,
        }
    }
}

/// Give a record a new time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The new time to live.
    pub ttl: Ttl,
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
    /// # use todana_core::Authenticate;
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
    /// # use todana_core::Authenticate;
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

/// Show a record's attributes for debugging (`me`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspect<'a> {
    /// The key.
    pub key: &'a [u8],
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

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Read: [`Reply::Hit`](crate::Reply::Hit) or `Miss`.
    Get(Get<'a>),
    /// Write: `Stored`, `NotStored`, `Exists`, `NotFound` or `Refused`.
    Store(Store<'a>),
    /// A write whose value the codec refused. Always answered `Refused` with the same reason.
    RefusedStore(RefusedStore<'a>),
    /// Remove: `Deleted`, `NotFound` or `Exists`.
    Delete(Delete<'a>),
    /// Count: `Number`, `NotFound`, `NotStored`, `Exists` or `Refused`.
    Arithmetic(Arithmetic<'a>),
    /// `Touched` or `NotFound`.
    Touch(Touch<'a>),
    /// `Inspection` or `Miss`.
    Inspect(Inspect<'a>),
    /// Remove everything: now (`Never` or `Expired`), or when that time comes. `Done`.
    Flush {
        /// When.
        at: Ttl,
    },
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
    /// `Done`; flushes what quiet commands have left behind.
    Noop,
    /// List records: `Done`, a `Listed` for each, then `End`. Takes as long as it takes, in pieces.
    List(List),
    /// Steer the crawler. `Done`, or `Faulty` with what stands against it.
    Crawler(Crawler),
    /// Send these kinds of events as they happen, and serve nothing else on this connection. `Done`, or `Faulty`.
    Watch(Streams),
    /// Make something of the data that is kept on disk, and perhaps send it. Takes as long as it takes, in pieces that are written
    /// as they come; `Faulty` if it cannot begin.
    Export(Export),
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
