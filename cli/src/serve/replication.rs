//! The replication options of `serve`.

use super::ServeArguments;
use std::time::Duration;
use todana_server::{MasterAddress, ReplicationOptions};

/// Reads `HOST:PORT`, or `HOST` with Kyoto Tycoon's default port.
pub(super) fn master(text: &str) -> Result<MasterAddress, String> {
    const PORT: u16 = 1978;
    let (host, port) = match text.rsplit_once(':') {
        Some((host, _)) if host.contains(':') && !host.starts_with('[') => (text, Ok(PORT)),
        Some((host, port)) => (host, port.parse()),
        None => (text, Ok(PORT)),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match port {
        Ok(port) if port > 0 && !host.is_empty() => Ok(MasterAddress { host: host.into(), port }),
        _ => Err("must be HOST or HOST:PORT".into()),
    }
}

impl ServeArguments {
    pub(super) fn replication(&self) -> ReplicationOptions {
        ReplicationOptions {
            server_id: self.server_id,
            master: self.replicate.clone(),
            position_file: self.replica_position.clone(),
            interval: Duration::from_millis(self.replica_interval.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn master_is_a_host_with_an_optional_port() {
        let found = |text| master(text).map(|master| (master.host, master.port)).map_err(|_| ());
        assert_eq!(found("a.example"), Ok(("a.example".into(), 1978)));
        assert_eq!(found("10.0.0.1:7000"), Ok(("10.0.0.1".into(), 7000)));
        assert_eq!(found("[::1]:7000"), Ok(("::1".into(), 7000)));
        assert_eq!(found("::1"), Ok(("::1".into(), 1978)));
        for wrong in ["", ":7000", "host:", "host:0", "host:x", "host:70000"] {
            assert_eq!(found(wrong), Err(()), "{wrong}");
        }
    }
}
