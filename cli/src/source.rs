//! Where data is taken from: a directory of no server, or a server at work.
//!
//! Which of both a word names does not depend on what is there:
//!
//! ```text
//! host:port  [v6]:port  unix:path  todana://host   a server
//! everything else, and whatever begins with ./     a directory
//! ```
//!
//! A word that would do as a server's address and is the name of a directory here is refused: whoever backs up the wrong one
//! of both learns of it too late.

use crate::Failure;
use crate::client_login::ClientLogin;
use crate::client_tls::ClientTls;
use crate::place::{Local, Place};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use todana::{Kind, Name};
use todana_client::{Connection, Destination, Timeouts};

/// The variable that names a server.
const SERVER: &str = "TODANA_SERVER";

/// Which server, and how to get to it: the same words as those of the data commands.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct ServerOptions {
    /// The server, as in the data commands; or else TODANA_SERVER of the environment
    #[arg(short = 'S', long, value_name = "SERVER")]
    server: Option<Destination>,
    /// Which of the server's databases, by its number or its name (`todana stats databases` shows them) [default: the first]
    #[arg(long, value_name = "NAME")]
    database: Option<String>,
    #[command(flatten)]
    login: ClientLogin,
    #[command(flatten)]
    tls: ClientTls,
}

impl ServerOptions {
    /// The server of `-S`, or else of the environment. Fails if there is a place already.
    pub(crate) fn named(&self, has_place: bool) -> Result<Option<Destination>, Failure> {
        match (&self.server, has_place) {
            // What stands there may hold a password.
            (Some(_), true) => {
                Err(Failure::usage("-S names a server, and so does the first word: which one?"))
            }
            (Some(server), false) => Ok(Some(server.clone())),
            (None, true) => Ok(None),
            (None, false) => match std::env::var(SERVER).ok().filter(|text| !text.is_empty()) {
                None => Ok(None),
                Some(text) => {
                    let parsed = text.parse().map(Some);
                    parsed.map_err(|error| Failure::usage(format!("{SERVER}: {error}")))
                }
            },
        }
    }

    /// Fails if a database of a server is named where there is none.
    pub(crate) fn expect_no_database(&self) -> Result<(), Failure> {
        match &self.database {
            Some(_) => Err(Failure::usage("--database is for a server with several databases")),
            None => Ok(()),
        }
    }

    /// The number of the database that is meant.
    pub(crate) fn database_number(&self, connection: &mut Connection) -> Result<u32, Failure> {
        let Some(wanted) = &self.database else { return Ok(0) };
        if let Ok(number) = wanted.parse() {
            return Ok(number);
        }
        let all = connection.stats("databases")?;
        let number = all.iter().find_map(|(name, value)| {
            let number = name.strip_suffix(":name").filter(|_| value == wanted)?;
            number.parse().ok()
        });
        number.ok_or_else(|| Failure::trouble(format!("the server has no database {wanted}")))
    }

    /// Connects, and logs in if the server wants that.
    pub(crate) fn connect(&self, server: &Destination) -> Result<Connection, Failure> {
        connect(server, &self.login, &self.tls)
    }
}

/// What a word of the command line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A directory.
    Directory(PathBuf),
    /// A server at work.
    Server(Destination),
}

impl Source {
    /// What the word names, or else the options or the environment do; `what` it is called in a message.
    pub(crate) fn of(word: Option<&OsStr>, options: &ServerOptions, what: &str) -> Result<Source, Failure> {
        if let Some(server) = options.named(word.is_some())? {
            return Ok(Source::Server(server));
        }
        let word =
            word.ok_or_else(|| Failure::usage(format!("{what} is missing; or name a server with -S")))?;
        Source::read(word, Path::new(word).is_dir())
    }

    fn read(word: &OsStr, is_directory: bool) -> Result<Source, Failure> {
        let directory = Source::Directory(PathBuf::from(word));
        let Some(text) = word.to_str() else { return Ok(directory) };
        if is_address(text) {
            return text.parse().map(Source::Server).map_err(|error| Failure::usage(format!("{error}")));
        }
        let server = address(text);
        match (server, is_directory) {
            (Some(_), true) => Err(Failure::usage(format!(
                "{text} may be a server's address, and is a directory here: todana://{text} is the server, ./{text} the directory"
            ))),
            (Some(server), false) => Ok(Source::Server(server)),
            (None, _) => Ok(directory),
        }
    }
}

/// Whether a word can be nothing but an address, right or wrong.
fn is_address(text: &str) -> bool {
    text.contains("://") || text.starts_with("unix:")
}

/// The server whose address a word is, as host and port; a path with a slash in it is none.
fn address(text: &str) -> Option<Destination> {
    text.parse().ok().filter(|_| text.contains(':') && !text.contains('/'))
}

/// Fails if a directory that is to be read is none, or is not there: `what` wants one. Says what there is instead.
pub(crate) fn expect_directory(path: &Path, what: &str) -> Result<(), Failure> {
    let name = path.display();
    let trouble = |what: String| Err(Failure::trouble(what));
    let error = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => return trouble(format!("{name} is a file; {what} wants a directory")),
        Err(error) => error,
    };
    match path.to_str() {
        Some(text) if is_address(text) || address(text).is_some() => Err(Failure::usage(format!(
            "{name} looks like a server; {what} wants a directory: the server's --data-dir, or a backup of it"
        ))),
        _ if error.kind() == io::ErrorKind::NotFound => trouble(format!("{name} does not exist")),
        _ if error.kind() == io::ErrorKind::NotADirectory => {
            let file = path.ancestors().find(|above| above.is_file()).unwrap_or(path);
            trouble(format!("{name} does not exist: {} is a file", file.display()))
        }
        _ => trouble(format!("cannot read {name}: {error}")),
    }
}

/// The database on disk that a path leads to, if it is one: others may have named a directory so.
pub(crate) fn database(path: &Path) -> Option<Name> {
    let Ok(Place::Database(Local::Named(name))) = path.to_str()?.parse() else { return None };
    let is_one = match name.kind {
        Kind::DiskTree => path.join("tree").is_dir(),
        _ => path.is_dir() && !path.join("identity").exists() && !path.join("log").exists(),
    };
    is_one.then_some(name)
}

/// The same where a server can be named too: whoever left out its port is told.
pub(crate) fn expect_source(path: &Path, what: &str) -> Result<(), Failure> {
    match path.to_str() {
        Some(text) if !text.contains(['/', ':']) && !path.exists() => {
            let hint = format!("a server is named with its port: {text}:11211");
            Err(Failure::trouble(format!("{text} does not exist; {hint}")))
        }
        _ => expect_directory(path, what),
    }
}

/// Why a server makes no checkpoint, and sends neither backup nor log.
pub(crate) fn refusal(error: todana_client::Error) -> Failure {
    match error {
        todana_client::Error::Refused(refusal) if refusal.line == "ERROR" => Failure::trouble(
            "the server says: ERROR: it does not know this command; memcached keeps nothing to make a checkpoint, a backup or a log of",
        ),
        error => error.into(),
    }
}

/// Connects to a server at work, and logs in if it wants that.
pub(crate) fn connect(
    destination: &Destination,
    login: &ClientLogin,
    tls: &ClientTls,
) -> Result<Connection, Failure> {
    let tls = tls.load(&[&destination.address])?;
    let login = login.at(destination)?;
    let mut connection = Connection::open_with(&destination.address, Timeouts::default(), tls.as_ref())?;
    if let Some(login) = login {
        connection.log_in(&login)?;
    }
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_directories() {
        let of = |text: &str| Source::read(OsStr::new(text), false).ok();
        for text in [
            "todana://host:11211",
            "todana://a:b@h",
            "todanas://h",
            "unix:/run/t",
            "127.0.0.1:11211",
            "[::1]:11211",
            "::1",
            "host:1",
        ] {
            assert!(matches!(of(text), Some(Source::Server(_))), "{text}");
        }
        for text in
            ["/var/lib/todana", "data", "./a:1", "./host:11211", "/tmp", "dir/x:1", "host:port", "a:99999"]
        {
            assert!(matches!(of(text), Some(Source::Directory(_))), "{text}");
        }
        for text in ["unix:", "todana://:1"] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn a_directory_that_is_named_as_a_server_is_taken_for_neither() {
        let of = |text: &str| Source::read(OsStr::new(text), true).ok();
        for text in ["host:11211", "127.0.0.1:1", "::1"] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(of("./host:11211"), Some(Source::Directory("./host:11211".into())));
        assert_eq!(of("2026-11:monday"), Some(Source::Directory("2026-11:monday".into())));
        assert!(matches!(of("todana://host:11211"), Some(Source::Server(_))));
    }
}
