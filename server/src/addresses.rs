//! The names of `-l`, and the addresses that they stand for.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// The addresses of each name. Empty names (`-l 'a,'`) are passed over.
pub(crate) fn addresses(names: &[String], port: u16) -> io::Result<Vec<Vec<SocketAddr>>> {
    if names.is_empty() {
        return Ok(vec![vec![SocketAddr::from(([127, 0, 0, 1], port))]]);
    }
    let names = names.iter().flat_map(|list| list.split(',')).map(str::trim).filter(|name| !name.is_empty());
    let groups = names.map(|name| {
        named(name, port)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot find address {name:?}: {error}")))
    });
    let groups: Vec<_> = groups.collect::<io::Result<_>>()?;
    if groups.is_empty() {
        return Err(invalid("there is no address to listen on"));
    }
    Ok(groups)
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
        let groups = addresses(&names, 7)?;
        Ok(groups.iter().map(|group| group.iter().map(ToString::to_string).collect()).collect())
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
