//! Where records are: at a server, or in a database on disk that no server has open.
//!
//! ```text
//! PATH.hash  PATH.tree  PATH.kch ...              a database
//! host:port  [v6]:port  unix:path  todana://host  a server, and so is everything else
//! ```

use std::fmt;
use std::str::FromStr;
use todana::{Kind, Name};
use todana_client::Destination;

/// Where records are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    /// At a server.
    Server(Destination),
    /// In a database on disk.
    Database(Name),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let is_address = text.contains("://") || text.starts_with("unix:");
        match Name::parse(text) {
            Ok(name) if !is_address => match name.kind {
                Kind::DiskHash | Kind::DiskTree => Ok(Place::Database(name)),
                Kind::MemHash | Kind::MemTree => Err(format!(
                    "{text} is in the memory of the server that has it: name that server, or a database on disk"
                )),
            },
            _ => text.parse().map(Place::Server).map_err(|error| format!("{error}")),
        }
    }
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
    fn databases_are_told_from_servers() {
        for text in ["x.hash", "./x.tree", "/var/lib/carts.kch#bnum=1", "carts=x.tch", "dir:1/x.tree"] {
            assert!(matches!(text.parse(), Ok(Place::Database(_))), "{text}");
        }
        for text in
            ["127.0.0.1:11211", "cache.hash:11211", "unix:/run/x.hash", "todana://x.hash", "localhost", "::1"]
        {
            assert!(matches!(text.parse(), Ok(Place::Server(_))), "{text}");
        }
        for text in ["mem:hash", "%", "*#capcnt=5"] {
            assert!(text.parse::<Place>().unwrap_err().contains("memory of the server"), "{text}");
        }
    }
}
