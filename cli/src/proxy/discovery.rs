//! Asks a server for the servers of its cluster, as ElastiCache has it: `config get cluster`.
//!
//!     CONFIG cluster 0 LEN
//!     VERSION
//!     HOST|ADDRESS|PORT HOST|ADDRESS|PORT
//!
//!     END

use crate::CommandFailure;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;
use todana_client::Address;
use todana_client::ring::ServerEntry;
use todana_server::{PoolOptions, ProxyOptions, ServerOptions};

/// The longest time to connect, and to wait for bytes.
const TIME_MAX: Duration = Duration::from_secs(2);
/// The longest reply.
const REPLY_LEN_MAX: u64 = 1 << 20;

/// Returns the options with the servers of the pools that have `discover`. Fails if a server does
/// not answer.
pub(super) fn with_servers(mut options: ServerOptions) -> Result<ServerOptions, CommandFailure> {
    options.proxy = options.proxy.map(with_pools).transpose()?;
    Ok(options)
}

/// The same for the options of the proxy.
pub(super) fn with_pools(mut options: ProxyOptions) -> Result<ProxyOptions, CommandFailure> {
    for (name, pool) in &mut options.pools {
        if let Some(place) = &pool.discover {
            let servers = servers_of(place)
                .map_err(|problem| CommandFailure::usage(format!("pool {name}: {problem}")))?;
            *pool = PoolOptions { servers, ..pool.clone() };
        }
    }
    Ok(options)
}

/// Returns the servers that this server lists.
pub(super) fn servers_of(place: &Address) -> Result<Vec<ServerEntry>, String> {
    let wrong = |problem: String| format!("discover: {place}: {problem}");
    let reply = ask(place).map_err(|error| wrong(error.to_string()))?;
    parse(&reply).map_err(wrong)
}

fn ask(place: &Address) -> std::io::Result<Vec<u8>> {
    let (Address::Tcp(host, port) | Address::Tls(host, port)) = place else {
        return Err(std::io::ErrorKind::Unsupported.into());
    };
    let mut failure = std::io::Error::from(std::io::ErrorKind::NotFound);
    for address in (host.as_str(), *port).to_socket_addrs()? {
        let mut stream = match TcpStream::connect_timeout(&address, TIME_MAX) {
            Ok(stream) => stream,
            Err(error) => {
                failure = error;
                continue;
            }
        };
        stream.set_read_timeout(Some(TIME_MAX))?;
        stream.set_write_timeout(Some(TIME_MAX))?;
        stream.write_all(b"config get cluster\r\nquit\r\n")?;
        let mut reply = Vec::new();
        stream.take(REPLY_LEN_MAX).read_to_end(&mut reply)?;
        return Ok(reply);
    }
    Err(failure)
}

fn parse(reply: &[u8]) -> Result<Vec<ServerEntry>, String> {
    let text = String::from_utf8_lossy(reply);
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    if !head.starts_with("CONFIG cluster ") {
        return Err(format!("the reply to config get cluster is {head:?}"));
    }
    let (_version, list) = (lines.next(), lines.next().unwrap_or_default());
    if !text.ends_with("END\r\n") {
        return Err("the list of servers is incomplete".into());
    }
    let servers = list.split_whitespace().map(|server| {
        let mut parts = server.split('|');
        let (host, address) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let port = parts.next().and_then(|port| port.parse().ok()).filter(|port| *port > 0);
        let host = if host.is_empty() { address } else { host };
        let port = port.filter(|_| !host.is_empty() && parts.next().is_none());
        let port = port.ok_or_else(|| format!("{server:?} is not HOST|ADDRESS|PORT"))?;
        Ok(ServerEntry { address: Address::Tcp(host.into(), port), weight: 1, name: None, zone: None })
    });
    let servers = servers.collect::<Result<Vec<_>, String>>()?;
    if servers.is_empty() { Err("the list of servers is empty".into()) } else { Ok(servers) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_names_or_addresses() {
        let reply = |list: &str| format!("CONFIG cluster 0 {}\r\n12\n{list}\n\r\nEND\r\n", list.len() + 4);
        let labels = |list: &str| {
            let servers = parse(reply(list).as_bytes());
            servers.map(|servers| servers.iter().map(|server| server.label().to_string()).collect::<Vec<_>>())
        };
        let two = labels("a.example|10.0.0.1|11211 |10.0.0.2|11212");
        assert_eq!(two, Ok(vec!["a.example:11211".to_string(), "10.0.0.2:11212".to_string()]));
        for (list, problem) in [
            ("", "the list of servers is empty"),
            ("a|b", "\"a|b\" is not"),
            ("||11211", "\"||11211\" is not"),
            ("a|b|0", "\"a|b|0\" is not"),
            ("a|b|1|2", "\"a|b|1|2\" is not"),
        ] {
            let said = labels(list).unwrap_err();
            assert!(said.starts_with(problem), "{said}");
        }
        assert!(parse(b"ERROR\r\n").unwrap_err().contains("\"ERROR\""));
        let cut = reply("a|b|1");
        assert_eq!(parse(&cut.as_bytes()[..cut.len() - 5]), Err("the list of servers is incomplete".into()));
    }
}
