//! Where a backup or a log is taken from: a directory of no server, or a server at work. What a word names is for `place` to say,
//! but that a word without a colon is a directory, also where none of that name exists: it was mistyped.

use crate::Failure;
use crate::place::{Local, Place, is_address};
use crate::server_options::ServerOptions;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use todana::{Kind, Name};
use todana_client::Destination;

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
        match options.named(word.is_some())? {
            Some(Place::Server(server)) => return Ok(Source::Server(server)),
            Some(Place::Database(local)) => return Ok(Source::Directory(local.path().to_path_buf())),
            None => {}
        }
        let word =
            word.ok_or_else(|| Failure::usage(format!("{what} is missing; or name a server with -S")))?;
        Source::read(word)
    }

    fn read(word: &OsStr) -> Result<Source, Failure> {
        let directory = Source::Directory(PathBuf::from(word));
        let Some(text) = word.to_str().filter(|text| text.contains(':')) else { return Ok(directory) };
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(Place::Server(server)) => Ok(Source::Server(server)),
            Ok(Place::Database(_)) => Ok(directory),
            // A name with a colon that cannot be meant as an address.
            Err(_)
                if !is_address(text)
                    && text.rsplit_once(':').is_some_and(|(_, behind)| !is_number(behind)) =>
            {
                Ok(directory)
            }
            Err(error) => Err(Failure::usage(error)),
        }
    }
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
        todana_client::Error::Refused(refusal)
            if refusal.line.starts_with("SERVER_ERROR no data directory") =>
        {
            Failure::trouble(format!("the server says: {}; `todana dump` copies its records", refusal.line))
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_directories() {
        let of = |text: &str| Source::read(OsStr::new(text)).ok();
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
        for text in ["/var/lib/todana", "data", "./a:1", "./host:11211", "/tmp", "dir/x:1", "host:port"] {
            assert!(matches!(of(text), Some(Source::Directory(_))), "{text}");
        }
        for text in ["unix:", "todana://:1", "a:99999"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
