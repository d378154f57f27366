//! `todana bench`: load for one server, or the same load for two in turn.
//!
//! ```text
//! workload   which keys, values and operations, from a seed
//! driver     threads with a readiness loop each, connections with a pipeline each
//! process    what the server process costs: CPU time, resident memory
//! report     numbers for people and programs
//! plot       pictures
//! ```

mod driver;
mod plot;
mod process;
mod report;
mod workload;

use report::Round;
use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;
use todana_client::Address;
use workload::{Distribution, KeyShape, Ratio, ValueKind, ValueSize, Workload};

pub(crate) const AFTER_HELP: &str = "\
Examples:
  todana bench                                         a million requests, 50 connections, 10 gets to 1 set
  todana bench --pipeline 16 --duration 10s            sixteen requests at a time, for ten seconds
  todana bench --distribution zipf:0.99 --keys 1000000
  todana bench --load-only --keys 10000000 --key-size 8 --value-size key --pid 1234
                                                       what do ten million records cost in memory?
  todana bench --vs 127.0.0.1:11212 --pid 1234 --vs-pid 1235
                                                       two servers in turn, with CPU time per request";

/// Options of `todana bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The server: host:port, todana://host:port
    #[arg(default_value = "127.0.0.1:11211", env = "TODANA_SERVER")]
    server: Address,
    /// Connections in all
    #[arg(long, default_value_t = 50)]
    connections: usize,
    /// Threads that drive them
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Requests that a connection sends before it waits for their replies
    #[arg(long, default_value_t = 1)]
    pipeline: usize,
    /// How many keys there are
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Digits of a key: the number of the key with leading zeros; 0 for as many as it needs
    #[arg(long, default_value_t = 8)]
    key_size: usize,
    /// Text before the digits of each key
    #[arg(long, default_value = "")]
    key_prefix: String,
    /// Bytes of a value: N, LO-HI (uniform), or `key` for the key itself
    #[arg(long, default_value = "32")]
    value_size: ValueSize,
    /// What values are made of
    #[arg(long, default_value = "text")]
    value_kind: ValueKind,
    /// Which keys are asked for: uniform, or zipf:S with exponent S
    #[arg(long, default_value = "uniform")]
    distribution: Distribution,
    /// Gets to sets
    #[arg(long, default_value = "10:1")]
    ratio: Ratio,
    /// Text or meta commands
    #[arg(long, default_value = "text")]
    protocol: workload::Protocol,
    /// Requests in all, for each round
    #[arg(long, default_value_t = 1_000_000, conflicts_with = "duration")]
    requests: u64,
    /// Run for this long instead: 10s, 2m
    #[arg(long, value_parser = duration)]
    duration: Option<Duration>,
    /// Do not store all keys first
    #[arg(long)]
    cold: bool,
    /// Only store all keys once, in order
    #[arg(long)]
    load_only: bool,
    /// Check that each value read is the one stored under its key
    #[arg(long)]
    verify: bool,
    /// The seed that keys and values come from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A second server for the same work, in turn with the first
    #[arg(long, value_name = "SERVER")]
    vs: Option<Address>,
    /// Rounds for each server
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Process id of the server: shows its CPU time per request and its memory
    #[arg(long)]
    pid: Option<u32>,
    /// Process id of the second server
    #[arg(long, requires = "vs")]
    vs_pid: Option<u32>,
    /// Write the results as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the results: an HTML page, or a bare .svg
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

fn duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = match text.strip_suffix('s') {
        Some(digits) => (digits, 1.0),
        None => match text.strip_suffix('m') {
            Some(digits) => (digits, 60.0),
            None => (text, 1.0),
        },
    };
    let number: f64 = digits.parse().map_err(|_| "not a time such as 10s or 2m")?;
    if number > 0.0 && number * unit <= 86_400.0 {
        Ok(Duration::from_secs_f64(number * unit))
    } else {
        Err("a time must be more than 0 and at most a day".into())
    }
}

impl Arguments {
    fn workload(&self) -> Result<Workload, Box<dyn Error>> {
        if self.connections == 0
            || self.threads == 0
            || self.pipeline == 0
            || self.keys == 0
            || self.rounds == 0
        {
            return Err("connections, threads, pipeline, keys and rounds must be at least 1".into());
        }
        let digits = self.keys.to_string().len();
        if self.key_size != 0 && self.key_size < digits {
            return Err(
                format!("{} keys need {digits} digits; --key-size is {}", self.keys, self.key_size).into()
            );
        }
        if self.key_prefix.len() + self.key_size.max(digits) > 250 {
            return Err("a key is at most 250 bytes".into());
        }
        Ok(Workload {
            keys: self.keys,
            shape: KeyShape { prefix: self.key_prefix.clone(), width: self.key_size },
            value_size: self.value_size,
            value_kind: self.value_kind,
            picker: workload::Picker::new(self.distribution, self.keys),
            ratio: self.ratio,
            protocol: self.protocol,
            seed: self.seed,
            verify: self.verify,
        })
    }
}

/// Runs the benchmark. Fails when a server cannot be reached, or when replies were wrong.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let workload = arguments.workload()?;
    let mut servers = vec![(&arguments.server, arguments.pid)];
    servers.extend(arguments.vs.as_ref().map(|server| (server, arguments.vs_pid)));
    let plan = driver::Plan {
        connections: arguments.connections,
        threads: arguments.threads.min(arguments.connections),
        pipeline: arguments.pipeline,
        requests: if arguments.duration.is_some() { u64::MAX } else { arguments.requests },
        duration: arguments.duration,
    };
    let load = driver::Plan {
        pipeline: arguments.pipeline.max(64),
        requests: arguments.keys,
        duration: None,
        ..plan
    };
    let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); servers.len()];
    if arguments.load_only || !arguments.cold {
        for (index, (server, pid)) in servers.iter().enumerate() {
            let round = driver::run(server, *pid, &workload, &load, true, &format!("storing on {server}"))?;
            if arguments.load_only {
                rounds[index].push(round);
            }
        }
    }
    if !arguments.load_only {
        for number in 1..=arguments.rounds {
            for (index, (server, pid)) in servers.iter().enumerate() {
                let title = format!("round {number} on {server}");
                rounds[index].push(driver::run(server, *pid, &workload, &plan, false, &title)?);
            }
        }
    }
    let names: Vec<String> = servers.iter().map(|(server, _)| server.to_string()).collect();
    if arguments.json.as_deref() != Some(std::path::Path::new("-")) {
        report::print(&names, &rounds)?;
    }
    if let Some(path) = &arguments.json {
        report::write_json(path, &names, &rounds)?;
    }
    if let Some(path) = &arguments.plot {
        plot::write(path, &names, &rounds)?;
    }
    let wrong: u64 = rounds.iter().flatten().map(|round| round.errors).sum();
    if wrong > 0 {
        return Err(format!("{wrong} replies were wrong").into());
    }
    Ok(())
}
