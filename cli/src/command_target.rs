//! The server, database on disk or data directory that a word of the command line names. The first
//! matching line decides:
//!
//! ```text
//! todana://host  unix:path                    a server
//! mem:hash  %  ...                            refused: only its server can reach it
//! a directory that exists                     a database or a data directory, never a host
//! PATH.hash  PATH.tree  PATH.kch ...          a database
//! ./PATH  /PATH                               a data directory: any other word with a slash
//! host:port  [v6]:port  host                  a server
//! ```
//!
//! For a backup or a log ([`DirectoryOrServer`]) a bare word is a directory, even if that does not
//! exist.
//! A directory whose name reads as host:port is refused as ambiguous: `todana://NAME` is the
//! server, `./NAME` the directory.

use crate::CommandFailure;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use todana::{Name, Storage};
use todana_client::Destination;

/// The place of the records that a command works on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CommandTarget {
    /// The records of a server.
    Server(Destination),
    /// The records of a database on disk.
    Database(LocalDatabase),
}

/// A database that the command opens itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LocalDatabase {
    /// A database on disk.
    Named(Name),
    /// The data directory in which a server keeps a database in memory (`--data-dir`).
    Kept(PathBuf),
}

impl LocalDatabase {
    /// Returns the directory of the database.
    pub(crate) fn path(&self) -> &Path {
        match self {
            LocalDatabase::Named(name) => name.path.as_deref().unwrap_or(Path::new("")),
            LocalDatabase::Kept(path) => path,
        }
    }

    /// Returns the name of a database on disk. Fails for a data directory; `what` says what is
    /// expected.
    pub(crate) fn named(&self, what: &str) -> Result<&Name, CommandFailure> {
        match self {
            LocalDatabase::Named(name) => Ok(name),
            LocalDatabase::Kept(path) => Err(CommandFailure::usage(format!(
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
            LocalDatabase::Kept(path) => path.display().fmt(f),
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
        match Name::parse(text) {
            Ok(name) => match name.kind.is_in_memory() {
                false => Ok(CommandTarget::Database(LocalDatabase::Named(name))),
                true => Err(format!(
                    "{text}: is in the memory of its server; name that server, or a database on disk"
                )),
            },
            Err(_) if is_directory || text.contains('/') => {
                Ok(CommandTarget::Database(LocalDatabase::Kept(text.into())))
            }
            Err(_) => address,
        }
    }

    /// Returns the server. Fails for a database on disk.
    pub(crate) fn server(self) -> Result<Destination, CommandFailure> {
        match self {
            CommandTarget::Server(destination) => Ok(destination),
            CommandTarget::Database(local) => Err(CommandFailure::usage(format!(
                "{local}: is a database on disk; this command needs a server"
            ))),
        }
    }
}

/// Returns true if a word can only be a server address, valid or not.
pub(crate) fn is_address(text: &str) -> bool {
    text.contains("://") || text.starts_with("unix:")
}

impl fmt::Display for CommandTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandTarget::Server(destination) => write!(f, "{destination}"),
            CommandTarget::Database(name) => write!(f, "{name}"),
        }
    }
}

/// Returns true if a word names a database or a server. A file is neither, nor is a bare word.
pub(crate) fn names_database(word: &OsStr) -> bool {
    let Some(text) = word.to_str().filter(|_| !Path::new(word).is_file()) else { return false };
    match text.parse() {
        Ok(CommandTarget::Database(_)) | Err(_) => true,
        Ok(CommandTarget::Server(_)) => text.contains(':'),
    }
}

/// The source of a backup or a log: a directory that no server has open, or a running server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryOrServer {
    /// A directory.
    Directory(PathBuf),
    /// A running server.
    Server(Destination),
}

impl DirectoryOrServer {
    /// Returns the source that the word names, or otherwise the options or the environment. Errors
    /// call the word `what`.
    pub(crate) fn of(
        word: Option<&OsStr>,
        named: Option<CommandTarget>,
        what: &str,
    ) -> Result<DirectoryOrServer, CommandFailure> {
        match named {
            Some(CommandTarget::Server(server)) => return Ok(DirectoryOrServer::Server(server)),
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

    /// Reads a word. Without a colon it is a directory, even if that does not exist: a mistyped
    /// path should not become a host name.
    fn read(word: &OsStr) -> Result<DirectoryOrServer, CommandFailure> {
        let directory = DirectoryOrServer::Directory(PathBuf::from(word));
        let Some(text) = word.to_str().filter(|text| text.contains(':')) else { return Ok(directory) };
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(CommandTarget::Server(server)) => Ok(DirectoryOrServer::Server(server)),
            Ok(CommandTarget::Database(_)) => Ok(directory),
            // A name with a colon that cannot be an address.
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

/// Returns the server if a word is its host and port. A path with a slash is not.
fn address(text: &str) -> Option<Destination> {
    text.parse().ok().filter(|_| text.contains(':') && !text.contains('/'))
}

/// Fails unless `path` is an existing directory, which the command or option `what` needs.
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
pub(crate) fn database(path: &Path) -> Option<Name> {
    let Ok(CommandTarget::Database(LocalDatabase::Named(name))) = path.to_str()?.parse() else { return None };
    let is_one = match name.kind.storage() {
        Storage::FilesAndLog => path.join("tree").is_dir(),
        _ => path.is_dir() && !path.join("identity").exists() && !path.join("log").exists(),
    };
    is_one.then_some(name)
}

/// Fails as [`expect_directory`] does, and suggests the port if the word may be the name of a
/// server.
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
                Ok(CommandTarget::Database(LocalDatabase::Kept(text.into()))),
                "{text}"
            );
        }
        for text in ["host:11211", "127.0.0.1:1", "::1"] {
            assert!(CommandTarget::read(text, true).unwrap_err().contains("is ambiguous"), "{text}");
        }
        assert_eq!(
            CommandTarget::read("./host:11211", true),
            Ok(CommandTarget::Database(LocalDatabase::Kept("./host:11211".into())))
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
            assert_eq!(text.parse(), Ok(CommandTarget::Database(LocalDatabase::Kept(text.into()))));
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
