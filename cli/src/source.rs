//! Where data is taken from: a directory of no server, or a server at work.

use crate::Failure;
use crate::client_login::ClientLogin;
use crate::client_tls::ClientTls;
use std::ffi::OsStr;
use std::path::PathBuf;
use todana_client::{Connection, Destination, Timeouts};

/// What a word of the command line names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A directory.
    Directory(PathBuf),
    /// A server at work.
    Server(Destination),
}

impl Source {
    /// What is there as a directory is one; what looks like an address else is one.
    pub(crate) fn of(word: &OsStr) -> Result<Source, Failure> {
        let path = PathBuf::from(word);
        let address = word.to_str().filter(|text| {
            let is_named = text.contains("://") || text.starts_with("unix:");
            is_named || !path.exists() && !text.contains('/') && text.contains(':')
        });
        match address {
            Some(text) => {
                text.parse().map(Source::Server).map_err(|error| Failure::usage(format!("{error}")))
            }
            None => Ok(Source::Directory(path)),
        }
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
        let of = |text: &str| Source::of(OsStr::new(text)).ok();
        for text in [
            "todana://host:11211",
            "todana://a:b@h",
            "todanas://h",
            "unix:/run/t",
            "127.0.0.1:11211",
            "[::1]:11211",
        ] {
            assert!(matches!(of(text), Some(Source::Server(_))), "{text}");
        }
        for text in ["/var/lib/todana", "data", "./a:b", "/tmp", "dir/x:1"] {
            assert!(matches!(of(text), Some(Source::Directory(_))), "{text}");
        }
        for text in ["unix:", "host:port", "todana://:1"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
