//! Parses the replication options of `serve`.

use super::ServeArguments;
use super::native_master::NativeMaster;
use std::time::Duration;
use todana_server::{MasterAddress, MasterProtocol, ReplicationOptions};

/// The prefix of a master that speaks Tokyo Tyrant's protocol.
const TYRANT: &str = "tyrant://";

/// A master as the command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedMaster {
    address: MasterAddress,
    protocol: MasterProtocol,
    native: Option<NativeMaster>,
}

/// Parses `HOST:PORT`, or `HOST` with the default port of Kyoto Tycoon and Tokyo Tyrant, perhaps
/// with [`TYRANT`] before it, or a master of Todana's own protocol.
pub(super) fn master(text: &str) -> Result<NamedMaster, String> {
    const PORT: u16 = 1978;
    if let Some(native) = NativeMaster::parse(text) {
        let (address, native) = native?;
        return Ok(NamedMaster { address, protocol: MasterProtocol::Native, native: Some(native) });
    }
    let (protocol, text) = match text.strip_prefix(TYRANT) {
        Some(text) => (MasterProtocol::Tyrant { checks_outcomes: false }, text),
        None => (MasterProtocol::Kyoto, text),
    };
    let (host, port) = match text.rsplit_once(':') {
        Some((host, _)) if host.contains(':') && !host.starts_with('[') => (text, Ok(PORT)),
        Some((host, port)) => (host, port.parse()),
        None => (text, Ok(PORT)),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match port {
        Ok(port) if port > 0 && !host.is_empty() && !host.contains('/') => {
            let address = MasterAddress { host: host.into(), port };
            Ok(NamedMaster { address, protocol, native: None })
        }
        _ => Err("must be todana://HOST:PORT, tyrant://HOST:PORT, or HOST:PORT".into()),
    }
}

impl ServeArguments {
    /// Returns the options of replication. The error names the wrong option.
    pub(super) fn replication(&self) -> Result<ReplicationOptions, String> {
        let master = self.replicate.as_ref();
        Ok(ReplicationOptions {
            server_id: self.server_id,
            master: master.map(|master| master.address.clone()),
            protocol: master.map_or(MasterProtocol::Kyoto, |master| master.protocol),
            position_file: self.replica_position.clone(),
            interval: Duration::from_millis(self.replica_interval.into()),
            acks: self.ack.into(),
            ack_time_max: Duration::from_millis(self.ack_timeout.into()),
            native: self.native_replica(master.and_then(|master| master.native.as_ref()))?,
        })
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
