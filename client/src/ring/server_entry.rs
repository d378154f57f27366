//! Parses the servers of a ring.

use super::RingError;
use crate::Address;
use std::net::Ipv6Addr;
use std::str::FromStr;

const DEFAULT_PORT: u16 = 11211;

/// The largest number of servers in a list. It bounds the memory of a ring with 160 points for
/// each server to some 20 MB.
pub const SERVERS_MAX: usize = 10_000;

/// A server of a list: `HOST[:PORT]` or `[V6]:PORT`, each also after `tls:`, or `unix:/PATH`, and
/// then words of the form `weight=N`, `name=X` and `zone=Z`. The default port is 11211.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerEntry {
    /// The address, as written: a ring hashes a host name without resolving it.
    pub address: Address,
    /// The weight, at least 1.
    pub weight: u32,
    /// The text that a ring hashes instead of the address.
    pub name: Option<String>,
    /// The place of the server.
    pub zone: Option<String>,
}

impl ServerEntry {
    /// Parses a list of servers with commas between them.
    pub fn parse_list(list: &str) -> Result<Vec<ServerEntry>, RingError> {
        list.split(',').map(str::parse).collect()
    }

    /// Returns the name, or else the address with its port. No two servers of a list have the same
    /// label.
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.address.to_string())
    }

    /// Returns the name, or else `HOST:PORT`, or else `PATH` with a suffix.
    pub(super) fn text_with_port(&self, suffix_of_path: &str) -> String {
        match (&self.name, &self.address) {
            (Some(name), _) => name.clone(),
            (None, Address::Tcp(host, port) | Address::Tls(host, port)) => format!("{host}:{port}"),
            (None, Address::Unix(path)) => format!("{}{suffix_of_path}", path.display()),
        }
    }

    /// Returns the same text, but without a port of 11211.
    pub(super) fn text(&self, suffix_of_path: &str) -> String {
        match (&self.name, &self.address) {
            (None, Address::Tcp(host, DEFAULT_PORT) | Address::Tls(host, DEFAULT_PORT)) => host.clone(),
            _ => self.text_with_port(suffix_of_path),
        }
    }
}

impl FromStr for ServerEntry {
    type Err = RingError;

    fn from_str(text: &str) -> Result<ServerEntry, RingError> {
        let error = |problem: String| RingError(format!("server {:?}: {problem}", text.trim()));
        let mut words = text.split_whitespace();
        let place = words.next().ok_or_else(|| error("no address".into()))?;
        let mut entry =
            ServerEntry { address: address(place).map_err(error)?, weight: 1, name: None, zone: None };
        let mut seen = Vec::new();
        for word in words {
            let known = word.split_once('=').filter(|(name, _)| ["weight", "name", "zone"].contains(name));
            let (name, value) = known
                .ok_or_else(|| error(format!("unknown word {word:?}; known: weight=N name=X zone=Z")))?;
            if seen.contains(&name) {
                return Err(error(format!("{name} occurs twice")));
            }
            if value.is_empty() {
                return Err(error(format!("{name} has no value")));
            }
            seen.push(name);
            match name {
                "weight" => {
                    let weight = value.parse().ok().filter(|weight| *weight > 0);
                    entry.weight = weight
                        .ok_or_else(|| error(format!("weight {value} must be from 1 to {}", u32::MAX)))?;
                }
                "name" => entry.name = Some(value.into()),
                _ => entry.zone = Some(value.into()),
            }
        }
        Ok(entry)
    }
}

fn address(place: &str) -> Result<Address, String> {
    if let Some(path) = place.strip_prefix("unix:") {
        let is_absolute = path.starts_with('/') && path.len() > 1;
        return is_absolute.then(|| Address::Unix(path.into())).ok_or("a path must begin with /".into());
    }
    if let Some(rest) = place.strip_prefix("tls:").filter(|rest| !rest.starts_with("tls:")) {
        return match address(rest)? {
            Address::Tcp(host, port) => Ok(Address::Tls(host, port)),
            Address::Tls(..) | Address::Unix(_) => Err("tls: must be followed by HOST:PORT".into()),
        };
    }
    if place.contains("://") {
        return Err("a server of a list has no scheme; write HOST:PORT".into());
    }
    let (host, port) = if let Some(bracketed) = place.strip_prefix('[') {
        let (host, after) = bracketed.split_once(']').ok_or("] is missing")?;
        is_v6(host).then_some(()).ok_or_else(|| format!("{host:?} is no IPv6 address"))?;
        let port = after.strip_prefix(':');
        (host, port.or(after.is_empty().then_some("11211")).ok_or("a colon must follow ]")?)
    } else if is_v6(place) {
        (place, "11211")
    } else {
        place.split_once(':').unwrap_or((place, "11211"))
    };
    if host.is_empty() || host.contains(['/', '@', ']']) || host.contains(char::is_control) {
        return Err("not an address; examples: cache1, 10.0.0.7:11212, [::1]:11211, unix:/run/m.sock".into());
    }
    match port.split_once([':', '@']) {
        Some((_, weight)) if weight.parse::<u32>().is_ok() => {
            return Err(format!("a weight is written as weight={weight}, after a blank"));
        }
        _ => {}
    }
    let number = port.parse().ok().filter(|port| *port > 0);
    let number = number.ok_or_else(|| format!("port {port:?} must be a number from 1 to 65535"))?;
    Ok(Address::Tcp(host.into(), number))
}

/// Returns true for an IPv6 address, also with the name of an interface, as `fe80::1%eth0`.
fn is_v6(host: &str) -> bool {
    host.split('%').next().is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_parsed() {
        for (text, label, hashed) in [
            ("cache1", "cache1:11211", "cache1"),
            (" Cache1:11211 ", "Cache1:11211", "Cache1"),
            ("10.0.0.1:11212", "10.0.0.1:11212", "10.0.0.1:11212"),
            ("[::1]:11211", "[::1]:11211", "::1"),
            ("[::1]", "[::1]:11211", "::1"),
            ("::1", "[::1]:11211", "::1"),
            ("[fe80::1%eth0]:5", "[fe80::1%eth0]:5", "fe80::1%eth0:5"),
            ("unix:/run/m.sock", "unix:/run/m.sock", "/run/m.sock:0"),
            ("tls:cache1", "todanas://cache1:11211", "cache1"),
            ("tls:[::1]:5", "todanas://[::1]:5", "::1:5"),
            ("a:1 name=x", "x", "x"),
            ("unix:/a zone=b name=x", "x", "x"),
        ] {
            let entry: ServerEntry = text.parse().unwrap();
            assert_eq!((entry.label().as_str(), entry.text(":0").as_str()), (label, hashed), "{text}");
        }
        let list = ServerEntry::parse_list("a weight=3 zone=z, b:7 weight=1").unwrap();
        assert_eq!((list[0].weight, list[0].zone.as_deref()), (3, Some("z")));
        assert_eq!((list[1].weight, list[1].zone.as_deref()), (1, None));
    }

    #[test]
    fn invalid_entries_name_their_problem() {
        for (text, problem) in [
            ("", "no address"),
            ("a,,b", "no address"),
            (":11211", "not an address"),
            ("a:", "port \"\" must be"),
            ("tls:unix:/a", "tls: must be followed by HOST:PORT"),
            ("tls:tls:a", "port \"tls:a\" must be"),
            ("a:0", "port \"0\" must be"),
            ("a:65536", "port \"65536\" must be"),
            ("10.0.0.1:11211:2", "a weight is written as weight=2"),
            ("[::1", "] is missing"),
            ("[::1]5", "a colon must follow"),
            ("[cache1]:5", "no IPv6 address"),
            ("unix:run", "must begin with /"),
            ("unix:/", "must begin with /"),
            ("/run/m.sock", "not an address"),
            ("todanas://a", "has no scheme"),
            ("a weight=0", "weight 0 must be from 1 to 4294967295"),
            ("a weight=-1", "weight -1 must be"),
            ("a weight=1 weight=1", "weight occurs twice"),
            ("a name=", "name has no value"),
            ("a color=red", "unknown word \"color=red\"; known: weight=N name=X zone=Z"),
        ] {
            let error = ServerEntry::parse_list(text).unwrap_err().to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
