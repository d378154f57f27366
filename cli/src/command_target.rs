//! What a word of the command line names: a server, a database on disk or a data directory. The first line that fits counts:
//!
//! ```text
//! todana://host  unix:path                    a server
//! mem:hash  %  ...                            refused: only its server has it
//! a directory that exists                     a database or a data directory, never a host
//! PATH.hash  PATH.tree  PATH.kch ...          a database
//! ./PATH  /PATH                               a data directory: anything else with a slash in it
//! host:port  [v6]:port  host                  a server
//! ```
//!
//! Where a directory is as likely (`Source`: backup, log), a bare word is one, also if it does not exist.
//! A directory whose name would do as host:port is refused: `todana://NAME` is the server, `./NAME` the directory.

use crate::CommandFailure;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use todana::{Name, Storage};
use todana_client::Destination;

/// Where records are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CommandTarget {
    /// At a server.
    Server(Destination),
    /// In a database on disk.
    Database(LocalDatabase),
}

/// What the command line opens itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum LocalDatabase {
    /// A database on disk.
    Named(Name),
    /// What a server has kept of a database in memory (`--data-dir`).
    Kept(PathBuf),
}

impl LocalDatabase {
    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        match self {
            LocalDatabase::Named(name) => name.path.as_deref().unwrap_or(Path::new("")),
            LocalDatabase::Kept(path) => path,
        }
    }

    /// The name of a database on disk; fails for a data directory, which `what` is not for.
    pub(crate) fn named(&self, what: &str) -> Result<&Name, CommandFailure> {
        match self {
            LocalDatabase::Named(name) => Ok(name),
            LocalDatabase::Kept(path) => Err(CommandFailure::usage(format!(
                "{} is a data directory, if anything; {what}, as ./x.hash and ./x.tree are",
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
                "{text} may be a server's address, and is a directory here: todana://{text} is the server, ./{text} the directory"
            ));
        }
        match Name::parse(text) {
            Ok(name) => match name.kind.is_in_memory() {
                false => Ok(CommandTarget::Database(LocalDatabase::Named(name))),
                true => Err(format!(
                    "{text} is in the memory of the server that has it: name that server, or a database on disk"
                )),
            },
            Err(_) if is_directory || text.contains('/') => {
                Ok(CommandTarget::Database(LocalDatabase::Kept(text.into())))
            }
            Err(_) => address,
        }
    }

    /// The server that is named; fails for a database on disk.
    pub(crate) fn server(self) -> Result<Destination, CommandFailure> {
        match self {
            CommandTarget::Server(destination) => Ok(destination),
            CommandTarget::Database(local) => {
                Err(CommandFailure::usage(format!("{local} is a database on disk; this needs a server")))
            }
        }
    }
}

/// Returns true if a word can be nothing but an address, right or wrong.
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

/// Returns true if a word stands for a database or a server rather than for a file: what is a file is none, nor is a bare word.
pub(crate) fn names_database(word: &OsStr) -> bool {
    let Some(text) = word.to_str().filter(|_| !Path::new(word).is_file()) else { return false };
    match text.parse() {
        Ok(CommandTarget::Database(_)) | Err(_) => true,
        Ok(CommandTarget::Server(_)) => text.contains(':'),
    }
}

/// Where a backup or a log is taken from: a directory of no server, or a server at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryOrServer {
    /// A directory.
    Directory(PathBuf),
    /// A server at work.
    Server(Destination),
}

impl DirectoryOrServer {
    /// What the word names, or else the options or the environment do; `what` it is called in a message.
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
        let word = word
            .ok_or_else(|| CommandFailure::usage(format!("{what} is missing; or name a server with -S")))?;
        DirectoryOrServer::read(word)
    }

    /// A word without a colon is a directory, also where there is none of that name: it was mistyped.
    fn read(word: &OsStr) -> Result<DirectoryOrServer, CommandFailure> {
        let directory = DirectoryOrServer::Directory(PathBuf::from(word));
        let Some(text) = word.to_str().filter(|text| text.contains(':')) else { return Ok(directory) };
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(CommandTarget::Server(server)) => Ok(DirectoryOrServer::Server(server)),
            Ok(CommandTarget::Database(_)) => Ok(directory),
            // A name with a colon that cannot be meant as an address.
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

/// The server whose address a word is, as host and port; a path with a slash in it is none.
fn address(text: &str) -> Option<Destination> {
    text.parse().ok().filter(|_| text.contains(':') && !text.contains('/'))
}

/// Fails if a directory that is to be read is none, or is not there: `what` wants one. Says what there is instead.
pub(crate) fn expect_directory(path: &Path, what: &str) -> Result<(), CommandFailure> {
    let name = path.display();
    let trouble = |what: String| Err(CommandFailure::trouble(what));
    let error = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => return trouble(format!("{name} is a file; {what} wants a directory")),
        Err(error) => error,
    };
    match path.to_str() {
        Some(text) if is_address(text) || address(text).is_some() => Err(CommandFailure::usage(format!(
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
    let Ok(CommandTarget::Database(LocalDatabase::Named(name))) = path.to_str()?.parse() else { return None };
    let is_one = match name.kind.storage() {
        Storage::FilesAndLog => path.join("tree").is_dir(),
        _ => path.is_dir() && !path.join("identity").exists() && !path.join("log").exists(),
    };
    is_one.then_some(name)
}

/// The same where a server can be named too: whoever left out its port is told.
pub(crate) fn expect_source(path: &Path, what: &str) -> Result<(), CommandFailure> {
    match path.to_str() {
        Some(text) if !text.contains(['/', ':']) && !path.exists() => {
            let hint = format!("a server is named with its port: {text}:11211");
            Err(CommandFailure::trouble(format!("{text} does not exist; {hint}")))
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
            assert!(CommandTarget::read(text, true).unwrap_err().contains("is a directory here"), "{text}");
        }
        assert_eq!(
            CommandTarget::read("./host:11211", true),
            Ok(CommandTarget::Database(LocalDatabase::Kept("./host:11211".into())))
        );
        assert!(matches!(CommandTarget::read("todana://host:11211", true), Ok(CommandTarget::Server(_))));
    }

    #[test]
    fn databases_are_told_from_servers() {
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
            assert!(text.parse::<CommandTarget>().unwrap_err().contains("memory of the server"), "{text}");
        }
    }

    #[test]
    fn addresses_are_told_from_directories() {
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
