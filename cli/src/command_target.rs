//! The meaning of a word on the command line: a server, a database on disk, or a data directory.
//! The first line of this table that fits decides:
//!
//! ```text
//! todana://host  unix:path                    a server
//! ring:host,host:port ...                      the servers of a ring
//! cassandra://host/keyspace                    a database on a cluster, only for `todana copy`
//! mem:hash  %  ...                            refused: only its own server can reach it
//! a directory that exists                     a database or a data directory, never a host
//! PATH.hash  PATH.tree  PATH.kch ...          a database
//! ./PATH  /PATH                               a data directory: any other word with a slash
//! host:port  [v6]:port  host                  a server
//! ```
//!
//! As a backup or a log ([`DirectoryOrServer`]), a word without a colon is a directory, even if the
//! directory does not exist.
//!
//! If a directory has a name of the form host:port, the word is refused as ambiguous:
//! `todana://NAME` is the server, and `./NAME` the directory.

use crate::CommandFailure;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use todana::{DatabaseName, DatabaseStorage};
use todana_client::{LoginDestination, RingDestination};

/// The place where a command finds its records.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CommandTarget {
    /// The records of a server.
    Server(LoginDestination),
    /// The records of several servers. Each key has its server.
    Ring(RingDestination),
    /// The records of a database on disk.
    Database(LocalDatabase),
}

/// A database that the command opens in its own process.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LocalDatabase {
    /// A database on disk.
    Named(Box<DatabaseName>),
    /// The data directory (`--data-dir`) of a server whose database is in memory.
    DataDirectory(PathBuf),
}

impl LocalDatabase {
    /// Returns the directory of the database.
    pub(crate) fn path(&self) -> &Path {
        match self {
            LocalDatabase::Named(name) => name.path.as_deref().unwrap_or(Path::new("")),
            LocalDatabase::DataDirectory(path) => path,
        }
    }

    /// Returns the name of a database on disk. Fails for a data directory; `what` is the text that
    /// says what is expected instead.
    pub(crate) fn named(&self, what: &str) -> Result<&DatabaseName, CommandFailure> {
        match self {
            LocalDatabase::Named(name) => Ok(name),
            LocalDatabase::DataDirectory(path) => Err(CommandFailure::usage(format!(
                "{}: is not a database on disk; {what}, such as ./x.hash or ./x.tree",
                path.display()
            ))),
        }
    }
}

impl fmt::Display for LocalDatabase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocalDatabase::Named(name) => name.fmt(f),
            LocalDatabase::DataDirectory(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for CommandTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<CommandTarget, String> {
        CommandTarget::read(text, Path::new(text).is_dir())
    }
}

impl CommandTarget {
    fn read(text: &str, is_directory: bool) -> Result<CommandTarget, String> {
        if RingDestination::is_named(text) {
            return text.parse().map(CommandTarget::Ring).map_err(|error| format!("{error}"));
        }
        if text.contains("cassandra://") {
            let named = |name| CommandTarget::Database(LocalDatabase::Named(Box::new(name)));
            return DatabaseName::parse(text).map(named).map_err(|error| error.to_string());
        }
        let address = text.parse().map(CommandTarget::Server).map_err(|error| format!("{error}"));
        if is_address(text) {
            return address;
        }
        let may_be_server = text.contains(':') && !text.contains('/') && address.is_ok();
        if is_directory && may_be_server {
            return Err(format!(
                "{text} is ambiguous: a directory of that name exists; use todana://{text} for the server, ./{text} for the directory"
            ));
        }
        match DatabaseName::parse(text) {
            Ok(name) => match name.kind.is_in_memory() {
                false => Ok(CommandTarget::Database(LocalDatabase::Named(Box::new(name)))),
                true => Err(format!(
                    "{text}: is in the memory of its server; name that server, or a database on disk"
                )),
            },
            Err(_) if is_directory || text.contains('/') => {
                Ok(CommandTarget::Database(LocalDatabase::DataDirectory(text.into())))
            }
            Err(_) => address,
        }
    }

    /// Returns the server. Fails for a ring and for a database on disk.
    pub(crate) fn server(self) -> Result<LoginDestination, CommandFailure> {
        match self {
            CommandTarget::Server(destination) => Ok(destination),
            CommandTarget::Ring(ring) => Err(needs_one_server(&ring)),
            CommandTarget::Database(local) => Err(CommandFailure::usage(format!(
                "{local}: is a database on disk; this command needs a server"
            ))),
        }
    }
}

/// Returns the failure of a command that works with one server, not with a ring.
pub(crate) fn needs_one_server(ring: &RingDestination) -> CommandFailure {
    CommandFailure::usage(format!("{ring}: is a ring; this command needs one server"))
}

/// Returns true if the word can only be the address of a server, even an invalid one.
pub(crate) fn is_address(text: &str) -> bool {
    text.contains("://") || text.starts_with("unix:")
}

impl fmt::Display for CommandTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandTarget::Server(destination) => write!(f, "{destination}"),
            CommandTarget::Ring(ring) => write!(f, "{ring}"),
            CommandTarget::Database(name) => write!(f, "{name}"),
        }
    }
}

/// Returns true if the word names a database or a server. The name of a file, and any other word
/// without a slash or colon, names neither.
pub(crate) fn names_database(word: &OsStr) -> bool {
    let Some(text) = word.to_str().filter(|_| !Path::new(word).is_file()) else { return false };
    match text.parse() {
        Ok(CommandTarget::Database(_)) | Err(_) => true,
        Ok(CommandTarget::Server(_) | CommandTarget::Ring(_)) => text.contains(':'),
    }
}

/// The source of a backup or a log: a directory that no server has open, or a running server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryOrServer {
    /// A directory.
    Directory(PathBuf),
    /// A running server.
    Server(LoginDestination),
}

impl DirectoryOrServer {
    /// Returns the source that the word names. Without a word, returns the server of the options or
    /// of the environment. Errors call the word `what`.
    pub(crate) fn of(
        word: Option<&OsStr>,
        named: Option<CommandTarget>,
        what: &str,
    ) -> Result<DirectoryOrServer, CommandFailure> {
        match named {
            Some(CommandTarget::Server(server)) => return Ok(DirectoryOrServer::Server(server)),
            Some(CommandTarget::Ring(ring)) => return Err(needs_one_server(&ring)),
            Some(CommandTarget::Database(local)) => {
                return Ok(DirectoryOrServer::Directory(local.path().to_path_buf()));
            }
            None => {}
        }
        let word = word.ok_or_else(|| {
            CommandFailure::usage(format!("{what}: missing; give it, or name a server with -S"))
        })?;
        DirectoryOrServer::read(word)
    }

    /// Interprets a word. A word without a colon is a directory, even if the directory does not
    /// exist, so that a mistyped path is not used as a host name.
    fn read(word: &OsStr) -> Result<DirectoryOrServer, CommandFailure> {
        let directory = DirectoryOrServer::Directory(PathBuf::from(word));
        let Some(text) = word.to_str().filter(|text| text.contains(':')) else { return Ok(directory) };
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(CommandTarget::Server(server)) => Ok(DirectoryOrServer::Server(server)),
            Ok(CommandTarget::Ring(ring)) => Err(needs_one_server(&ring)),
            Ok(CommandTarget::Database(_)) => Ok(directory),
            // The word contains a colon, but cannot be an address.
            Err(_)
                if !is_address(text)
                    && text.rsplit_once(':').is_some_and(|(_, behind)| !is_number(behind)) =>
            {
                Ok(directory)
            }
            Err(error) => Err(CommandFailure::usage(error)),
        }
    }
}

/// Returns the server if the word is host and port. A path that contains a slash is not.
fn address(text: &str) -> Option<LoginDestination> {
    text.parse().ok().filter(|_| text.contains(':') && !text.contains('/'))
}

/// Fails unless `path` is an existing directory. `what` is the command or option that needs the
/// directory.
pub(crate) fn expect_directory(path: &Path, what: &str) -> Result<(), CommandFailure> {
    let name = path.display();
    let trouble = |what: String| Err(CommandFailure::trouble(what));
    let error = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => return trouble(format!("{name}: is a file; {what} needs a directory")),
        Err(error) => error,
    };
    match path.to_str() {
        Some(text) if is_address(text) || address(text).is_some() => Err(CommandFailure::usage(format!(
            "{name}: looks like a server; {what} needs a directory: the server's --data-dir, or a backup of it"
        ))),
        _ if error.kind() == io::ErrorKind::NotFound => trouble(format!("{name}: does not exist")),
        _ if error.kind() == io::ErrorKind::NotADirectory => {
            let file = path.ancestors().find(|above| above.is_file()).unwrap_or(path);
            trouble(format!("{name}: does not exist; {} is a file", file.display()))
        }
        _ => trouble(format!("{name}: cannot read it: {error}")),
    }
}

/// Returns the name of the database on disk at a path, or `None` if the directory holds something
/// else.
pub(crate) fn database(path: &Path) -> Option<DatabaseName> {
    let Ok(CommandTarget::Database(LocalDatabase::Named(name))) = path.to_str()?.parse() else { return None };
    let is_one = match name.kind.storage() {
        DatabaseStorage::FilesAndLog => name.kind.folder().is_some_and(|folder| path.join(folder).is_dir()),
        _ => path.is_dir() && !path.join("identity").exists() && !path.join("log").exists(),
    };
    is_one.then_some(*name)
}

/// Fails as [`expect_directory`] does. If the word could be the name of a server, the error
/// suggests to add the port.
pub(crate) fn expect_source(path: &Path, what: &str) -> Result<(), CommandFailure> {
    match path.to_str() {
        Some(text) if !text.contains(['/', ':']) && !path.exists() => {
            let hint = format!("to name a server, add its port: {text}:11211");
            Err(CommandFailure::trouble(format!("{text}: does not exist; {hint}")))
        }
        _ => expect_directory(path, what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_directory_is_never_a_host() {
        for text in ["empty", "localhost", "data", "2026-11:monday"] {
            assert_eq!(
                CommandTarget::read(text, true),
                Ok(CommandTarget::Database(LocalDatabase::DataDirectory(text.into()))),
                "{text}"
            );
        }
        for text in ["host:11211", "127.0.0.1:1", "::1"] {
            assert!(CommandTarget::read(text, true).unwrap_err().contains("is ambiguous"), "{text}");
        }
        assert_eq!(
            CommandTarget::read("./host:11211", true),
            Ok(CommandTarget::Database(LocalDatabase::DataDirectory("./host:11211".into())))
        );
        assert!(matches!(CommandTarget::read("todana://host:11211", true), Ok(CommandTarget::Server(_))));
    }

    #[test]
    fn databases_are_distinguished_from_servers() {
        for text in ["x.hash", "./x.tree", "/var/lib/carts.kch#bnum=1", "carts=x.tch", "dir:1/x.tree"] {
            assert!(matches!(text.parse(), Ok(CommandTarget::Database(LocalDatabase::Named(_)))), "{text}");
        }
        for text in
            ["127.0.0.1:11211", "cache.hash:11211", "unix:/run/x.hash", "todana://x.hash", "localhost", "::1"]
        {
            assert!(matches!(text.parse(), Ok(CommandTarget::Server(_))), "{text}");
        }
        for text in ["./data", "/var/lib/todana", "data/", "../x:1"] {
            assert_eq!(text.parse(), Ok(CommandTarget::Database(LocalDatabase::DataDirectory(text.into()))));
        }
        for text in ["mem:hash", "%", "*#capcnt=5"] {
            assert!(text.parse::<CommandTarget>().unwrap_err().contains("memory of its server"), "{text}");
        }
    }

    #[test]
    fn addresses_are_distinguished_from_directories() {
        let of = |text: &str| DirectoryOrServer::read(OsStr::new(text)).ok();
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
            assert!(matches!(of(text), Some(DirectoryOrServer::Server(_))), "{text}");
        }
        for text in ["/var/lib/todana", "data", "./a:1", "./host:11211", "/tmp", "dir/x:1", "host:port"] {
            assert!(matches!(of(text), Some(DirectoryOrServer::Directory(_))), "{text}");
        }
        for text in ["unix:", "todana://:1", "a:99999"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
