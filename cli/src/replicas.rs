//! `todana replicas`: prints the replicas of a server and its master, and their lag.

use crate::CommandFailure;
use crate::command_output::CommandOutput;
use crate::command_target::CommandTarget;
use crate::server_options::ServerOptions;
use clap::Args;
use std::collections::BTreeMap;
use std::io::Write;

pub(crate) const AFTER_HELP: &str = "\
The bytes are those of the update log that a replica has not applied. The time
is that since the replica last had all changes. Replicas in Kyoto Tycoon's or
Tokyo Tyrant's protocol have no bytes.

Example:
  todana replicas 127.0.0.1:11311";

/// The arguments of `todana replicas`.
#[derive(Debug, Args)]
pub(crate) struct ReplicasArguments {
    /// The server: host:port, todana://host:port, todanas://host:port (TLS) or unix:/path; or -S
    /// [default: TODANA_SERVER, or 127.0.0.1:11211]
    #[arg(value_name = "SERVER")]
    place: Option<CommandTarget>,
    #[command(flatten)]
    server: ServerOptions,
}

impl ReplicasArguments {
    /// Returns the arguments of the command in a shell.
    pub(crate) fn within(self, shell: &ServerOptions) -> Self {
        match self.place {
            Some(_) => self,
            None => Self { server: self.server.within(shell), ..self },
        }
    }
}

pub(crate) fn run(arguments: &ReplicasArguments) -> Result<(), CommandFailure> {
    let ReplicasArguments { place, server } = arguments;
    let destination = server.place(place.as_ref())?.server()?;
    let statistics = server.connect(&destination)?.stats("replication")?;
    for line in lines(&statistics) {
        writeln!(CommandOutput::process(), "{line}")?;
    }
    Ok(())
}

/// Returns a line for the master, if there is one, and a line for each replica.
fn lines(statistics: &[(String, String)]) -> Vec<String> {
    let figures: BTreeMap<&str, &str> =
        statistics.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let figure = |name: &str| figures.get(name).copied();
    let mut lines = Vec::new();
    if let Some(master) = figure("todana_replica_master") {
        let state =
            if figure("todana_replica_connected") == Some("1") { "connected" } else { "not connected" };
        let lag = lag(
            figure("todana_replica_position"),
            figure("todana_replica_lag_bytes"),
            figure("todana_replica_delay_seconds"),
        );
        lines.push(format!("master {master}: {state}, {lag}"));
    }
    for number in 0.. {
        let of = |name: &str| figure(&format!("replica:{number}:{name}"));
        let Some(address) = of("address") else { break };
        let lag = lag(of("position"), of("lag_bytes"), of("delay_seconds"));
        lines.push(format!("replica {address}: server ID {}, {lag}", of("server_id").unwrap_or("?")));
    }
    if lines.is_empty() {
        lines.push("no master and no replicas".into());
    }
    lines
}

fn lag(position: Option<&str>, bytes: Option<&str>, seconds: Option<&str>) -> String {
    let ms = seconds.and_then(|text| text.parse::<f64>().ok()).map_or(0.0, |seconds| seconds * 1000.0);
    let bytes = bytes.map_or(String::new(), |bytes| format!("{bytes} bytes, "));
    format!("position {}, lag {bytes}{ms:.0} ms", position.unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn master_and_replicas_have_a_line_each() {
        let statistics = [
            ("todana_replica_connected", "1"),
            ("todana_replica_master", "a:11311"),
            ("todana_replica_position", "513"),
            ("todana_replica_lag_bytes", "0"),
            ("todana_replica_delay_seconds", "0.040"),
            ("replica:0:address", "127.0.0.1:9"),
            ("replica:0:server_id", "3"),
            ("replica:0:delay_seconds", "1.5"),
            ("replica:0:position", "17"),
        ];
        let statistics = statistics.map(|(name, value)| (name.to_string(), value.to_string()));
        assert_eq!(
            lines(&statistics),
            [
                "master a:11311: connected, position 513, lag 0 bytes, 40 ms",
                "replica 127.0.0.1:9: server ID 3, position 17, lag 1500 ms",
            ]
        );
        assert_eq!(lines(&[]), ["no master and no replicas"]);
    }
}
