//! Parses the replication options of `serve`.

use super::ServeArguments;
use std::time::Duration;
use todana_server::{MasterAddress, MasterProtocol, ReplicationOptions};

/// The prefix of a master that speaks Tokyo Tyrant's protocol.
const TYRANT: &str = "tyrant://";
/// The prefix of a master that speaks Todana's own protocol.
const NATIVE: &str = "todana://";

/// A master as the command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedMaster {
    address: MasterAddress,
    protocol: MasterProtocol,
}

/// Parses `HOST:PORT`, or `HOST` with the default port of the protocol, perhaps with [`TYRANT`] or
/// [`NATIVE`] before it.
pub(super) fn master(text: &str) -> Result<NamedMaster, String> {
    const PORT: u16 = 1978;
    const NATIVE_PORT: u16 = 11211;
    let (protocol, port, text) = match (text.strip_prefix(TYRANT), text.strip_prefix(NATIVE)) {
        (Some(text), _) => (MasterProtocol::Tyrant { checks_outcomes: false }, PORT, text),
        (None, Some(text)) => (MasterProtocol::Native, NATIVE_PORT, text),
        (None, None) => (MasterProtocol::Kyoto, PORT, text),
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, _)) if host.contains(':') && !host.starts_with('[') => (text, Ok(port)),
        Some((host, port)) => (host, port.parse()),
        None => (text, Ok(port)),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match port {
        Ok(port) if port > 0 && !host.is_empty() && !host.contains('/') => {
            Ok(NamedMaster { address: MasterAddress { host: host.into(), port }, protocol })
        }
        _ => Err("must be todana://HOST:PORT, tyrant://HOST:PORT, or HOST:PORT".into()),
    }
}

impl ServeArguments {
    pub(super) fn replication(&self) -> ReplicationOptions {
        let master = self.replicate.as_ref();
        ReplicationOptions {
            server_id: self.server_id,
            master: master.map(|master| master.address.clone()),
            protocol: master.map_or(MasterProtocol::Kyoto, |master| master.protocol),
            position_file: self.replica_position.clone(),
            interval: Duration::from_millis(self.replica_interval.into()),
            accepts_writes: self.replica_writes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn master_is_a_host_with_an_optional_port() {
        let found =
            |text| master(text).map(|master| (master.address.host, master.address.port)).map_err(|_| ());
        assert_eq!(found("a.example"), Ok(("a.example".into(), 1978)));
        assert_eq!(found("10.0.0.1:7000"), Ok(("10.0.0.1".into(), 7000)));
        assert_eq!(found("[::1]:7000"), Ok(("::1".into(), 7000)));
        assert_eq!(found("::1"), Ok(("::1".into(), 1978)));
        assert_eq!(found("tyrant://b.example:1979"), Ok(("b.example".into(), 1979)));
        assert_eq!(master("b.example").unwrap().protocol, MasterProtocol::Kyoto);
        assert_eq!(found("todana://b.example"), Ok(("b.example".into(), 11211)));
        assert_eq!(found("todana://[::1]:7000"), Ok(("::1".into(), 7000)));
        assert_eq!(master("todana://b.example").unwrap().protocol, MasterProtocol::Native);
        let tyrant = MasterProtocol::Tyrant { checks_outcomes: false };
        assert_eq!(master("tyrant://b.example").unwrap().protocol, tyrant);
        for wrong in
            ["", "tyrant://", "http://b.example:80", ":7000", "host:", "host:0", "host:x", "host:70000"]
        {
            assert_eq!(found(wrong), Err(()), "{wrong}");
        }
    }
}
