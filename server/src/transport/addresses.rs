//! The names of `-l` and their addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use todana_protocol::memcached::DialectChoice;

/// The addresses of one name of `-l`, and its dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenPlace {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) speech: ListenDialect,
}

/// The dialect and TLS of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListenDialect {
    pub(crate) tls: PlaceTls,
    /// The dialect (`proto[ascii]:`, `proto[binary]:`, `proto[auto]:`); `None` is the server's.
    pub(crate) choice: Option<DialectChoice>,
}

/// TLS at a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PlaceTls {
    /// As for the server.
    #[default]
    Default,
    /// Off (`notls:`).
    Off,
    /// Without asking for client certificates (`btls:`).
    Basic,
    /// With client certificates (`mtls:`).
    Mutual,
}

const TLS_PREFIXES: [(&str, PlaceTls); 3] =
    [("notls:", PlaceTls::Off), ("btls:", PlaceTls::Basic), ("mtls:", PlaceTls::Mutual)];
const CHOICE_PREFIXES: [(&str, DialectChoice); 3] = [
    ("proto[ascii]:", DialectChoice::Text),
    ("proto[binary]:", DialectChoice::Binary),
    ("proto[auto]:", DialectChoice::Auto),
];

impl ListenDialect {
    /// Parses the prefixes of a name, in any order; also returns the name without them.
    pub(crate) fn of(mut name: &str) -> (ListenDialect, &str) {
        let mut speech = ListenDialect::default();
        loop {
            if let Some((tls, rest)) = behind_prefix(&TLS_PREFIXES, name) {
                (speech.tls, name) = (tls, rest);
            } else if let Some((choice, rest)) = behind_prefix(&CHOICE_PREFIXES, name) {
                (speech.choice, name) = (Some(choice), rest);
            } else {
                return (speech, name);
            }
        }
    }
}

fn behind_prefix<'n, T: Copy>(prefixes: &[(&str, T)], name: &'n str) -> Option<(T, &'n str)> {
    prefixes.iter().find_map(|(prefix, meaning)| Some((*meaning, name.strip_prefix(prefix)?)))
}

/// Returns the addresses of each name. Empty names (`-l 'a,'`) are skipped.
pub(crate) fn places(names: &[String], port: u16) -> io::Result<Vec<ListenPlace>> {
    if names.is_empty() {
        let addresses = vec![SocketAddr::from(([127, 0, 0, 1], port))];
        return Ok(vec![ListenPlace { addresses, speech: ListenDialect::default() }]);
    }
    let names = names.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|name| !name.is_empty());
    let places = names.map(|name| {
        let (speech, place) = ListenDialect::of(name);
        let addresses = named(place, port).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot find address {name:?}: {error}"))
        })?;
        Ok(ListenPlace { addresses, speech })
    });
    let places: Vec<_> = places.collect::<io::Result<_>>()?;
    if places.is_empty() {
        return Err(invalid("there is no address to listen on"));
    }
    Ok(places)
}

fn named(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Some(rest) = name.strip_prefix('*') {
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| invalid("what stands behind the colon is no port"))?,
            None if rest.is_empty() => port,
            None => return Err(invalid("behind * there may be a colon and a port")),
        };
        return Ok(vec![(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]);
    }
    // `fe80::1` is a complete address, not `fe80:` and a port.
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    // With a port, or a name alone; also `fe80::1%eth0`, which only the system can read.
    let found = name.to_socket_addrs().or_else(|_| (bare, port).to_socket_addrs())?;
    Ok(found.collect())
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(names: &[&str]) -> io::Result<Vec<Vec<String>>> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let places = places(&names, 7)?;
        Ok(places.iter().map(|place| place.addresses.iter().map(ToString::to_string).collect()).collect())
    }

    #[test]
    fn prefixes_say_what_is_spoken() {
        for (name, tls, choice, address) in [
            ("127.0.0.1", PlaceTls::Default, None, "127.0.0.1:7"),
            ("notls:127.0.0.1:5", PlaceTls::Off, None, "127.0.0.1:5"),
            ("btls:::1", PlaceTls::Basic, None, "[::1]:7"),
            ("mtls:[::1]:5", PlaceTls::Mutual, None, "[::1]:5"),
            ("proto[binary]:127.0.0.1", PlaceTls::Default, Some(DialectChoice::Binary), "127.0.0.1:7"),
            ("proto[auto]:[::1]:5", PlaceTls::Default, Some(DialectChoice::Auto), "[::1]:5"),
            ("notls:proto[ascii]:::1", PlaceTls::Off, Some(DialectChoice::Text), "[::1]:7"),
            ("proto[ascii]:notls:::1", PlaceTls::Off, Some(DialectChoice::Text), "[::1]:7"),
        ] {
            let speech = ListenDialect { tls, choice };
            let place = ListenPlace { addresses: vec![address.parse().unwrap()], speech };
            assert_eq!(places(&[name.to_string()], 7).unwrap(), [place], "{name}");
        }
    }

    #[test]
    fn names_resolve_to_addresses_with_ports() {
        for (name, expected) in [
            ("*", &["0.0.0.0:7", "[::]:7"][..]),
            ("*:21312", &["0.0.0.0:21312", "[::]:21312"]),
            ("10.0.0.1", &["10.0.0.1:7"]),
            ("10.0.0.1:9", &["10.0.0.1:9"]),
            ("::1", &["[::1]:7"]),
            ("fe80::9", &["[fe80::9]:7"]),
            ("[::1]", &["[::1]:7"]),
            ("[::1]:9", &["[::1]:9"]),
        ] {
            assert_eq!(read(&[name]).unwrap(), [expected], "{name}");
        }
        assert_eq!(read(&[]).unwrap(), [["127.0.0.1:7"]]);
    }

    #[test]
    fn empty_names_are_passed_over() {
        assert_eq!(read(&["127.0.0.1,"]).unwrap(), [["127.0.0.1:7"]]);
        assert_eq!(read(&["", " 127.0.0.1 "]).unwrap(), [["127.0.0.1:7"]]);
    }

    #[test]
    fn names_that_cannot_be_are_shown() {
        for name in ["proto[x]:127.0.0.1", "*:", "*:http", "*:70000", "*.1", "10.0.0.1:x", "[::1]x"] {
            let error = read(&[name]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("cannot find address {name:?}: ")), "{error}");
        }
        assert_eq!(read(&["", " ,"]).unwrap_err().to_string(), "there is no address to listen on");
    }
}
