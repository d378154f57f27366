//! The names of `-l`, and the addresses that they stand for.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// What one name of `-l` stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) tls: PlaceTls,
}

/// Whether TLS is spoken at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceTls {
    /// As everywhere.
    Default,
    /// Not here (`notls:`).
    Off,
    /// Without asking for client certificates (`btls:`).
    Basic,
    /// With client certificates (`mtls:`).
    Mutual,
}

const PREFIXES: [(&str, PlaceTls); 3] =
    [("notls:", PlaceTls::Off), ("btls:", PlaceTls::Basic), ("mtls:", PlaceTls::Mutual)];

impl PlaceTls {
    /// What the prefix of a name says, and the name without it.
    pub(crate) fn of(name: &str) -> (PlaceTls, &str) {
        let prefixed = PREFIXES.iter().find_map(|(prefix, tls)| Some((*tls, name.strip_prefix(prefix)?)));
        prefixed.unwrap_or((PlaceTls::Default, name))
    }
}

/// The addresses of each name. Empty names (`-l 'a,'`) are passed over.
pub(crate) fn places(names: &[String], port: u16) -> io::Result<Vec<Place>> {
    if names.is_empty() {
        let addresses = vec![SocketAddr::from(([127, 0, 0, 1], port))];
        return Ok(vec![Place { addresses, tls: PlaceTls::Default }]);
    }
    let names = names.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|name| !name.is_empty());
    let places = names.map(|name| {
        let (tls, place) = PlaceTls::of(name);
        let addresses = named(place, port).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot find address {name:?}: {error}"))
        })?;
        Ok(Place { addresses, tls })
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
    // `fe80::1` is an address as a whole, not `fe80:` and a port.
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
    fn prefixes_say_whether_tls_is_spoken() {
        for (name, tls, address) in [
            ("127.0.0.1", PlaceTls::Default, "127.0.0.1:7"),
            ("notls:127.0.0.1:5", PlaceTls::Off, "127.0.0.1:5"),
            ("btls:::1", PlaceTls::Basic, "[::1]:7"),
            ("mtls:[::1]:5", PlaceTls::Mutual, "[::1]:5"),
        ] {
            let place = Place { addresses: vec![address.parse().unwrap()], tls };
            assert_eq!(places(&[name.to_string()], 7).unwrap(), [place], "{name}");
        }
    }

    #[test]
    fn names_stand_for_addresses_with_the_port_or_their_own() {
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
        for name in ["*:", "*:http", "*:70000", "*.1", "10.0.0.1:x", "[::1]x"] {
            let error = read(&[name]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("cannot find address {name:?}: ")), "{error}");
        }
        assert_eq!(read(&["", " ,"]).unwrap_err().to_string(), "there is no address to listen on");
    }
}
