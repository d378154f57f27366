//! Parses the names of `-l` and finds their addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use todana_protocol::memcached::DialectChoice;

/// The addresses of one name of `-l`, and its dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenName {
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) mode: ListenMode,
}

/// The dialect and TLS of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListenMode {
    pub(crate) tls: ListenTlsMode,
    /// The dialect (`proto[ascii]:`, `proto[binary]:`, `proto[auto]:`); `None` means the dialect of
    /// the server.
    pub(crate) choice: Option<DialectChoice>,
}

/// TLS at a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListenTlsMode {
    /// The setting of the server applies.
    #[default]
    Default,
    /// TLS is off (`notls:`).
    Off,
    /// TLS is on, and the server requests no client certificates (`btls:`).
    Basic,
    /// TLS is on, and clients must show certificates (`mtls:`).
    Mutual,
}

const TLS_PREFIXES: [(&str, ListenTlsMode); 3] =
    [("notls:", ListenTlsMode::Off), ("btls:", ListenTlsMode::Basic), ("mtls:", ListenTlsMode::Mutual)];
const CHOICE_PREFIXES: [(&str, DialectChoice); 3] = [
    ("proto[ascii]:", DialectChoice::Text),
    ("proto[binary]:", DialectChoice::Binary),
    ("proto[auto]:", DialectChoice::Auto),
];

impl ListenMode {
    /// Parses the prefixes of a name, which may be in any order. Returns them, and the name without
    /// them.
    pub(crate) fn of(mut name: &str) -> (ListenMode, &str) {
        let mut mode = ListenMode::default();
        loop {
            if let Some((tls, rest)) = strip_any_prefix(&TLS_PREFIXES, name) {
                (mode.tls, name) = (tls, rest);
            } else if let Some((choice, rest)) = strip_any_prefix(&CHOICE_PREFIXES, name) {
                (mode.choice, name) = (Some(choice), rest);
            } else {
                return (mode, name);
            }
        }
    }
}

fn strip_any_prefix<'n, T: Copy>(prefixes: &[(&str, T)], name: &'n str) -> Option<(T, &'n str)> {
    prefixes.iter().find_map(|(prefix, meaning)| Some((*meaning, name.strip_prefix(prefix)?)))
}

/// Returns the addresses of each name. Empty names (`-l 'a,'`) are skipped.
pub(crate) fn places(names: &[String], port: u16) -> io::Result<Vec<ListenName>> {
    if names.is_empty() {
        let addresses = vec![SocketAddr::from(([127, 0, 0, 1], port))];
        return Ok(vec![ListenName { addresses, mode: ListenMode::default() }]);
    }
    let names = names.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|name| !name.is_empty());
    let places = names.map(|name| {
        let (mode, place) = ListenMode::of(name);
        let addresses = named(place, port).map_err(|error| {
            io::Error::new(error.kind(), format!("address {name:?}: cannot be resolved: {error}"))
        })?;
        Ok(ListenName { addresses, mode })
    });
    let places: Vec<_> = places.collect::<io::Result<_>>()?;
    if places.is_empty() {
        return Err(invalid("the list of addresses is empty"));
    }
    Ok(places)
}

fn named(name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Some(rest) = name.strip_prefix('*') {
        let port = match rest.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| invalid("the text after the colon is not a port"))?,
            None if rest.is_empty() => port,
            None => return Err(invalid("only a colon and a port may follow *")),
        };
        return Ok(vec![(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()]);
    }
    // `fe80::1` is a complete address. It must not be parsed as `fe80:` and a port.
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    // The name may contain a port. A name such as `fe80::1%eth0` contains none, and only the system
    // can parse it.
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
    fn prefixes_select_tls_and_dialect() {
        for (name, tls, choice, address) in [
            ("127.0.0.1", ListenTlsMode::Default, None, "127.0.0.1:7"),
            ("notls:127.0.0.1:5", ListenTlsMode::Off, None, "127.0.0.1:5"),
            ("btls:::1", ListenTlsMode::Basic, None, "[::1]:7"),
            ("mtls:[::1]:5", ListenTlsMode::Mutual, None, "[::1]:5"),
            ("proto[binary]:127.0.0.1", ListenTlsMode::Default, Some(DialectChoice::Binary), "127.0.0.1:7"),
            ("proto[auto]:[::1]:5", ListenTlsMode::Default, Some(DialectChoice::Auto), "[::1]:5"),
            ("notls:proto[ascii]:::1", ListenTlsMode::Off, Some(DialectChoice::Text), "[::1]:7"),
            ("proto[ascii]:notls:::1", ListenTlsMode::Off, Some(DialectChoice::Text), "[::1]:7"),
        ] {
            let mode = ListenMode { tls, choice };
            let place = ListenName { addresses: vec![address.parse().unwrap()], mode };
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
    fn empty_names_are_skipped() {
        assert_eq!(read(&["127.0.0.1,"]).unwrap(), [["127.0.0.1:7"]]);
        assert_eq!(read(&["", " 127.0.0.1 "]).unwrap(), [["127.0.0.1:7"]]);
    }

    #[test]
    fn invalid_names_are_shown_in_errors() {
        for name in ["proto[x]:127.0.0.1", "*:", "*:http", "*:70000", "*.1", "10.0.0.1:x", "[::1]x"] {
            let error = read(&[name]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("address {name:?}: cannot be resolved: ")), "{error}");
        }
        assert_eq!(read(&["", " ,"]).unwrap_err().to_string(), "the list of addresses is empty");
    }
}
