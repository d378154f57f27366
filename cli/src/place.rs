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
//! A directory whose name would do as host:port is refused: `todana://NAME` is the server, `./NAME` the directory.

use crate::Failure;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use todana::{Kind, Name};
use todana_client::Destination;

/// Where records are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// At a server.
    Server(Destination),
    /// In a database on disk.
    Database(Local),
}

/// What the command line opens itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Local {
    /// A database on disk.
    Named(Name),
    /// What a server has kept of a database in memory (`--data-dir`).
    Kept(PathBuf),
}

impl Local {
    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Local::Named(name) => name.path.as_deref().unwrap_or(Path::new("")),
            Local::Kept(path) => path,
        }
    }

    /// The name of a database on disk; fails for a data directory, which `what` is not for.
    pub(crate) fn named(&self, what: &str) -> Result<&Name, Failure> {
        match self {
            Local::Named(name) => Ok(name),
            Local::Kept(path) => Err(Failure::usage(format!(
                "{} is a data directory, if anything; {what}, as ./x.hash and ./x.tree are",
                path.display()
            ))),
        }
    }
}

impl fmt::Display for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Local::Named(name) => name.fmt(f),
            Local::Kept(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        Place::read(text, Path::new(text).is_dir())
    }
}

impl Place {
    fn read(text: &str, is_directory: bool) -> Result<Place, String> {
        let address = text.parse().map(Place::Server).map_err(|error| format!("{error}"));
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
            Ok(name) => match name.kind {
                Kind::DiskHash | Kind::DiskTree => Ok(Place::Database(Local::Named(name))),
                Kind::MemHash | Kind::MemTree => Err(format!(
                    "{text} is in the memory of the server that has it: name that server, or a database on disk"
                )),
            },
            Err(_) if is_directory || text.contains('/') => Ok(Place::Database(Local::Kept(text.into()))),
            Err(_) => address,
        }
    }

    /// The server that is named; fails for a database on disk.
    pub(crate) fn server(self) -> Result<Destination, Failure> {
        match self {
            Place::Server(destination) => Ok(destination),
            Place::Database(local) => {
                Err(Failure::usage(format!("{local} is a database on disk; this needs a server")))
            }
        }
    }
}

/// Returns true if a word can be nothing but an address, right or wrong.
pub(crate) fn is_address(text: &str) -> bool {
    text.contains("://") || text.starts_with("unix:")
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Server(destination) => write!(f, "{destination}"),
            Place::Database(name) => write!(f, "{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_directory_is_never_a_host() {
        for text in ["empty", "localhost", "data", "2026-11:monday"] {
            assert_eq!(Place::read(text, true), Ok(Place::Database(Local::Kept(text.into()))), "{text}");
        }
        for text in ["host:11211", "127.0.0.1:1", "::1"] {
            assert!(Place::read(text, true).unwrap_err().contains("is a directory here"), "{text}");
        }
        assert_eq!(
            Place::read("./host:11211", true),
            Ok(Place::Database(Local::Kept("./host:11211".into())))
        );
        assert!(matches!(Place::read("todana://host:11211", true), Ok(Place::Server(_))));
    }

    #[test]
    fn databases_are_told_from_servers() {
        for text in ["x.hash", "./x.tree", "/var/lib/carts.kch#bnum=1", "carts=x.tch", "dir:1/x.tree"] {
            assert!(matches!(text.parse(), Ok(Place::Database(Local::Named(_)))), "{text}");
        }
        for text in
            ["127.0.0.1:11211", "cache.hash:11211", "unix:/run/x.hash", "todana://x.hash", "localhost", "::1"]
        {
            assert!(matches!(text.parse(), Ok(Place::Server(_))), "{text}");
        }
        for text in ["./data", "/var/lib/todana", "data/", "../x:1"] {
            assert_eq!(text.parse(), Ok(Place::Database(Local::Kept(text.into()))));
        }
        for text in ["mem:hash", "%", "*#capcnt=5"] {
            assert!(text.parse::<Place>().unwrap_err().contains("memory of the server"), "{text}");
        }
    }
}
