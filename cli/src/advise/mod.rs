//! `todana advise`: samples the records of a running memcached, Redis or Kyoto Tycoon, and reports
//! the memory that the same records would take here. Only reads are sent to the sampled server.
//!
//! ```text
//! sample     the sampled records, and the limits of the sampling
//! memcached  keys by `lru_crawler metadump` of each slab class, values by meta commands
//! redis      SCAN, TYPE, GET, PTTL
//! kyoto      /rpc/match_prefix, and bulk reads in the binary protocol
//! estimate   the memory that the records take in a database of this process
//! ```

mod estimate;
mod kyoto;
mod memcached;
mod redis;
mod sample;

use crate::CommandFailure;
use crate::command_output::CommandOutput;
use crate::command_target::CommandTarget;
use crate::server_options::{ServerOptions, ServerTarget};
use crate::time_to_live::seconds;
use clap::{Args, ValueEnum};
use estimate::MemoryEstimate;
use indicatif::{BinaryBytes, HumanCount};
use sample::{RecordSample, SampledServer};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;
use todana_client::Address;

pub(crate) const AFTER_HELP: &str = "\
Nothing is written to the server; reads may count as accesses there.
Example: todana advise cache1:6379 --sample 50000";

/// The time that a server may take to reply.
const REPLY_TIME: Duration = Duration::from_secs(5);
/// The time that a server may take to reply while its kind is found out.
const GREETING_TIME: Duration = Duration::from_secs(1);

/// The arguments of `todana advise`.
#[derive(Debug, Args)]
pub(crate) struct AdviseArguments {
    /// The server to sample: host:port; or -S
    #[arg(value_name = "SERVER")]
    place: Option<CommandTarget>,
    /// memcached, redis or kyoto [default: found out by a request]
    #[arg(long, hide_possible_values = true)]
    kind: Option<ServerKind>,
    /// The most records to sample
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    sample: u64,
    /// The most time to sample
    #[arg(long, default_value = "30", value_parser = seconds, value_name = "TIME")]
    time: i64,
    #[command(flatten)]
    server: ServerOptions,
}

/// The servers that can be sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ServerKind {
    /// memcached, or a server with its text protocol
    Memcached,
    /// Redis, Valkey
    Redis,
    /// Kyoto Tycoon
    Kyoto,
}

pub(crate) fn run(arguments: &AdviseArguments) -> Result<(), CommandFailure> {
    let AdviseArguments { place, kind, sample, time, server } = arguments;
    let destination = server.place(place.as_ref())?.server()?;
    let target = server.at(destination);
    let kind = match kind {
        Some(kind) => *kind,
        None => kind_of(&target.destination.address)?,
    };
    let mut records = RecordSample::new((*sample).max(1), Duration::from_secs(time.max(&1).unsigned_abs()));
    let sampled = match kind {
        ServerKind::Memcached => memcached::sample(&target, &mut records)?,
        ServerKind::Redis => {
            let login = server.login.at(&target.destination)?;
            redis::sample(&connect(&target)?, login.as_ref(), &mut records)?
        }
        ServerKind::Kyoto => kyoto::sample(connect(&target)?, &mut records)?,
    };
    records.finish();
    if records.all.is_empty() {
        return Err(CommandFailure::trouble(format!(
            "{}: no record could be read from {}, which has {}",
            target.destination,
            sampled.name,
            HumanCount(sampled.records)
        )));
    }
    let estimate = MemoryEstimate::of(&records, sampled.records)?;
    let mut out = CommandOutput::process();
    out.write_all(report(&target, &sampled, &records, &estimate).as_bytes())?;
    Ok(out.flush()?)
}

/// Opens a connection for a protocol that has no client library here.
fn connect(target: &ServerTarget) -> Result<TcpStream, CommandFailure> {
    open(&target.destination.address, REPLY_TIME)
}

fn open(address: &Address, reply_time: Duration) -> Result<TcpStream, CommandFailure> {
    let failed = |error: io::Error| {
        CommandFailure::trouble(todana_client::cannot_connect(address, &error).to_string())
    };
    let Address::Tcp(host, port) = address else {
        return Err(CommandFailure::usage(format!(
            "{address}: only host:port can be sampled in this protocol"
        )));
    };
    let mut places = (host.as_str(), *port).to_socket_addrs().map_err(failed)?;
    let place = places.next().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let stream = TcpStream::connect_timeout(&place, REPLY_TIME).map_err(failed)?;
    stream.set_read_timeout(Some(reply_time))?;
    stream.set_write_timeout(Some(REPLY_TIME))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Finds out the kind of a server by its reply to `version`, which only memcached knows.
fn kind_of(address: &Address) -> Result<ServerKind, CommandFailure> {
    if !matches!(address, Address::Tcp(..)) {
        return Ok(ServerKind::Memcached);
    }
    let mut stream = open(address, GREETING_TIME)?;
    let mut reply = [0; 64];
    let len = stream.write_all(b"version\r\n").and_then(|()| stream.read(&mut reply)).unwrap_or(0);
    Ok(match &reply[..len] {
        [b'-', ..] => ServerKind::Redis,
        // Kyoto Tycoon waits for the rest of a request, or refuses it.
        [] | [b'H', b'T', b'T', b'P', ..] => ServerKind::Kyoto,
        _ => ServerKind::Memcached,
    })
}

/// Returns the lines of the report.
fn report(
    target: &ServerTarget,
    sampled: &SampledServer,
    sample: &RecordSample,
    estimate: &MemoryEstimate,
) -> String {
    let each = |bytes: f64| format!("{:.1} bytes a record", bytes / sampled.records.max(1) as f64);
    let mut lines = vec![
        ("server", format!("{} at {}", sampled.name, target.destination)),
        ("records", HumanCount(sampled.records).to_string()),
        ("sample", format!("{} in {:.1} s", HumanCount(sample.len()), sample.took.as_secs_f64())),
        ("average key", format!("{:.1} bytes", sample.average_key())),
        ("average value", format!("{:.1} bytes", sample.average_value())),
    ];
    if let Some(percent) = sample.expiring_percent() {
        lines.push(("with expiry", format!("{percent:.0} %")));
    }
    if let Some((bytes, what)) = &sampled.memory {
        let size = BinaryBytes(*bytes).to_string();
        lines.push(("memory there", format!("{size:<12} {} ({what})", each(*bytes as f64))));
    }
    let size = BinaryBytes(estimate.bytes as u64).to_string();
    lines.push(("memory here", format!("{size:<12} {}", each(estimate.bytes))));
    if let Some((bytes, _)) = sampled.memory.as_ref().filter(|(bytes, _)| *bytes > 0) {
        lines.push(("ratio", format!("{:.2}", estimate.bytes / *bytes as f64)));
    }
    lines.push(("confidence", estimate.confidence()));
    for note in sampled.notes.iter().chain(&sample.notes()) {
        lines.push(("note", note.clone()));
    }
    lines.push(("try", format!("todana serve -m {}", estimate.limit_mib())));
    lines.iter().map(|(name, text)| format!("{name:<14} {text}\n")).collect()
}
