//! `todana bench`: load for one server, or the same load for two in turn.
//!
//! ```text
//! workload   which keys, values and operations, from a seed
//! embedded   the same work on a database on disk, without a server
//! driver     threads with a readiness loop each, connections with a pipeline each
//! process    what the server process costs: CPU time, resident memory
//! report     numbers for people and programs
//! chart      curves and bars as SVG
//! plot       the picture of a run
//! trace      recorded requests through the engine itself, beside reference caches
//! replay     the same requests on a live server
//! ```

mod chart;
mod driver;
mod embedded;
mod plot;
mod process;
mod replay;
mod report;
#[cfg(test)]
mod toy_server;
mod trace;
mod workload;

use crate::Failure;
use crate::amount::amount;
use crate::place::Place;
use crate::server_options::ServerOptions;
use chart::PlotFile;
use report::{Measured, Report};
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use todana_client::{Address, Destination};
use todana_protocol::memcached::client;
use workload::{Distribution, KeyShape, Ratio, ValueKind, ValueSize, Workload};

pub(crate) const AFTER_HELP: &str = "\
Examples:
  todana bench
      a million requests, 50 connections, 10 gets to 1 set
  todana bench --pipeline 16 --duration 10s
      sixteen requests at a time, for ten seconds
  todana bench --distribution zipf:0.99 --value-size lognormal:300:1 --verify
      few hot keys, sizes as in life, each value checked
  todana bench --plot run.html --json run.json
      a page with charts; all figures for programs
  todana bench --load-only --keys 10000000 --value-size key --pid 1234
      what do ten million records cost in memory?
  todana bench --pid 1234 --name Todana --vs 127.0.0.1:11212 --vs-pid 1235
      --vs-name memcached --plot both.svg
      two servers in turn: CPU time per request, memory per record, charts
  todana bench ./new.hash --threads 4 --value-size 400
      no server: calls to a database on disk
  todana bench trace oltp.u32.zst
      no server: how many recorded requests would miss?
  todana bench replay oltp.u32.zst
      how many of them miss on a live server?

A connection sends a batch (--pipeline), waits for all its replies, and sends
the next; a request's latency counts from the moment its batch is sent. Keys,
values and the order of requests come from --seed: two runs do the same work.

Exit codes: 0 done, 2 wrong usage, 3 a server cannot be reached, refused a
request, or sent what it should not have.";

/// Options of `todana bench`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// The server: host:port, todana://host:port, todanas://host:port (TLS); or a database on disk, which is filled with the
    /// keys; counts before -S
    #[arg(value_name = "SERVER")]
    named: Option<Place>,
    #[command(flatten)]
    server: ServerOptions,
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
    /// Bytes of a value: N, LO-HI (each as likely), zipf:LO-HI[:S] (the shorter the likelier),
    /// lognormal:MEDIAN[:SIGMA], or `key` for the key itself
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
    /// Store the keys even if the server, or the database, holds records already
    #[arg(long)]
    force: bool,
    /// Check that each value read is the one stored under its key
    #[arg(long)]
    verify: bool,
    /// The seed that keys and values come from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A second server for the same work, in turn with the first
    #[arg(long, value_name = "SERVER")]
    vs: Option<Destination>,
    /// Rounds for each server; figures are medians over them [default: 1, with --vs 5]
    #[arg(long)]
    rounds: Option<usize>,
    /// What tables and charts call the server [default: its address]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// What tables and charts call the second server
    #[arg(long, value_name = "NAME", requires = "vs")]
    vs_name: Option<String>,
    /// Process id of the server: shows its CPU time per request and its memory per record
    #[arg(long, value_parser = process::one)]
    pid: Option<u32>,
    /// Process id of the second server
    #[arg(long, requires = "vs", value_parser = process::one)]
    vs_pid: Option<u32>,
    /// Write the results as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the results: an .html page, or an .svg picture
    #[arg(long, value_name = "FILE")]
    plot: Option<PlotFile>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Replay recorded requests through the engine, without a server: miss ratios beside LRU, S3-FIFO and SIEVE
    #[command(after_help = trace::AFTER_HELP)]
    Trace(trace::Arguments),
    /// Replay recorded requests on a live server: a get each, and on a miss a set
    #[command(after_help = replay::AFTER_HELP)]
    Replay(Box<replay::Arguments>),
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
    fn first_place(&self) -> Result<Place, Failure> {
        self.server.expect_no_database()?;
        self.named.clone().map_or_else(|| self.server.place(None), Ok)
    }

    /// What is done to a database without a server.
    fn embedded_plans(&self) -> Vec<embedded::Plan> {
        let load =
            embedded::Plan { threads: self.threads, requests: self.keys, duration: None, stores_all: true };
        let requests = if self.duration.is_some() { u64::MAX } else { self.requests };
        let mix = || embedded::Plan { requests, duration: self.duration, stores_all: false, ..load };
        let mixes = if self.load_only { 0 } else { self.rounds() };
        let mixes: Vec<embedded::Plan> = (0..mixes).map(|_| mix()).collect();
        (self.load_only || !self.cold).then_some(load).into_iter().chain(mixes).collect()
    }

    fn workload(&self) -> Result<Workload, String> {
        if self.connections == 0
            || self.threads == 0
            || self.pipeline == 0
            || self.keys == 0
            || self.rounds == Some(0)
        {
            return Err("connections, threads, pipeline, keys and rounds must be at least 1".into());
        }
        let digits = self.keys.to_string().len();
        if self.key_size != 0 && self.key_size < digits {
            return Err(format!("{} keys need {digits} digits; --key-size is {}", self.keys, self.key_size));
        }
        if self.key_prefix.len() + self.key_size.max(digits) > client::KEY_LEN_MAX {
            return Err(format!("a key is at most {} bytes", client::KEY_LEN_MAX));
        }
        if !self.key_prefix.is_empty() {
            client::check_key(self.key_prefix.as_bytes())
                .map_err(|error| format!("--key-prefix: {error}"))?;
        }
        Ok(Workload {
            keys: self.keys,
            shape: KeyShape { prefix: self.key_prefix.clone(), width: self.key_size },
            value_size: self.value_size.clone(),
            value_kind: self.value_kind,
            picker: workload::Picker::new(self.distribution, self.keys),
            ratio: self.ratio,
            protocol: self.protocol,
            seed: self.seed,
            verify: self.verify,
        })
    }
}

impl Arguments {
    /// What the figures depend on besides the servers.
    fn work(&self) -> serde_json::Value {
        serde_json::json!({
            "protocol": format!("{:?}", self.protocol).to_lowercase(),
            "connections": self.connections,
            "threads": self.threads,
            "pipeline": self.pipeline,
            "keys": self.keys,
            "key_size": self.key_size,
            "key_prefix": self.key_prefix,
            "value_size": self.value_size.to_string(),
            "value_kind": format!("{:?}", self.value_kind).to_lowercase(),
            "distribution": self.distribution.to_string(),
            "ratio": self.ratio.to_string(),
            "requests": self.duration.is_none().then_some(self.requests),
            "duration_seconds": self.duration.map(|duration| duration.as_secs_f64()),
            "cold": self.cold,
            "load_only": self.load_only,
            "verify": self.verify,
            "seed": self.seed,
        })
    }

    /// Says the same in words, for the heading of a picture.
    fn description(&self) -> Vec<String> {
        let value = match &self.value_size {
            ValueSize::Key => "value the same as the key".to_string(),
            size => format!("values of {size} bytes ({})", format!("{:?}", self.value_kind).to_lowercase()),
        };
        let digits = self.key_size.max(self.keys.to_string().len());
        let records = format!("{} keys of {} bytes, {value}", self.keys, self.key_prefix.len() + digits);
        if self.load_only {
            return vec![records];
        }
        let protocol = format!("{:?}", self.protocol).to_lowercase();
        let length = match self.duration {
            Some(duration) => format!("{} s", duration.as_secs_f64()),
            None => format!("{} requests", self.requests),
        };
        let rounds = self.rounds();
        let plural = if rounds == 1 { "" } else { "s" };
        vec![
            format!("{records}; gets to sets {}, keys {}", self.ratio, self.distribution),
            format!(
                "{} connections, pipeline of {}, {protocol} protocol; {rounds} round{plural} of {length}",
                self.connections, self.pipeline
            ),
        ]
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.vs.is_some() { 5 } else { 1 })
    }
}

/// Runs the benchmark. Fails when a server cannot be reached, or when replies were wrong.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Some(Command::Trace(arguments)) => return trace::run(arguments),
        Some(Command::Replay(arguments)) => return replay::run(arguments),
        None => {}
    }
    let first = match &arguments.first_place()? {
        Place::Server(destination) => &destination.clone(),
        Place::Database(name) => {
            if arguments.vs.is_some()
                || arguments.pid.is_some()
                || arguments.json.is_some()
                || arguments.plot.is_some()
            {
                return Err(Failure::usage(format!(
                    "{name} is a database on disk: --vs, --pid, --json and --plot are for servers"
                )));
            }
            let workload = arguments.workload().map_err(Failure::usage)?;
            if !arguments.force && name.path().exists() {
                let records = crate::database::open(name, false)?.count();
                expect_empty(Some(records), name)?;
            }
            return embedded::run(name, &workload, &arguments.embedded_plans());
        }
    };
    process::misplaced(arguments.named.as_ref().map(|_| first), arguments.pid).map_err(Failure::usage)?;
    let workload = arguments.workload().map_err(Failure::usage)?;
    let mut named = vec![(first, &arguments.name, arguments.pid)];
    named.extend(arguments.vs.as_ref().map(|server| (server, &arguments.vs_name, arguments.vs_pid)));
    let addresses: Vec<&Address> = named.iter().map(|(server, ..)| &server.address).collect();
    let tls = arguments.server.tls.load(&addresses)?;
    let mut servers = Vec::new();
    for (destination, name, pid) in named {
        let login = arguments.server.login.at(destination)?;
        let address = destination.address.clone();
        if !arguments.force {
            let connection = &mut arguments.server.connect(destination)?;
            expect_empty(connection.statistic("curr_items")?.and_then(|count| count.parse().ok()), &address)?;
        }
        let name = name.clone().unwrap_or_else(|| address.to_string());
        servers.push(driver::Target { name, address, tls: tls.clone(), login, pid });
    }
    measure(arguments, &workload, &servers).map_err(Failure::from)
}

/// Fails for a server or a database that holds records: somebody may need them.
fn expect_empty(records: Option<u64>, place: &dyn std::fmt::Display) -> Result<(), Failure> {
    match records {
        None | Some(0) => Ok(()),
        Some(count) => Err(Failure::usage(format!(
            "{place}: holds {}, among which the benchmark would store its own; --force does it",
            amount(count, "record")
        ))),
    }
}

fn measure(
    arguments: &Arguments,
    workload: &Workload,
    servers: &[driver::Target],
) -> Result<(), Box<dyn Error>> {
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
    let measured =
        |target: &driver::Target| Measured { name: target.name.clone(), records: None, rounds: Vec::new() };
    let mut report = Report {
        work: arguments.work(),
        description: arguments.description(),
        record_bytes: workload.record_bytes(),
        servers: servers.iter().map(measured).collect(),
    };
    let first_round = Instant::now();
    if arguments.load_only || !arguments.cold {
        for (target, measured) in servers.iter().zip(&mut report.servers) {
            let mut round =
                driver::run(target, workload, &load, true, &format!("storing on {}", target.name))?;
            if arguments.load_only {
                round.began = first_round.elapsed().saturating_sub(round.elapsed);
                measured.rounds.push(round);
            } else if let Some(error) = round.first_error {
                return Err(format!(
                    "{}: {} of {} records: {error}",
                    target.name, round.errors, workload.keys
                )
                .into());
            }
        }
    }
    if !arguments.load_only {
        let first_round = Instant::now();
        for number in 1..=arguments.rounds() {
            for (target, measured) in servers.iter().zip(&mut report.servers) {
                let title = format!("round {number} on {}", target.name);
                let mut round = driver::run(target, workload, &plan, false, &title)?;
                round.began = first_round.elapsed().saturating_sub(round.elapsed);
                measured.rounds.push(round);
            }
        }
    }
    for (target, measured) in
        servers.iter().zip(&mut report.servers).filter(|(target, _)| target.pid.is_some())
    {
        measured.records = target.records()?;
    }
    if arguments.json.as_deref() == Some(Path::new("-")) {
        write!(std::io::stdout(), "{}", report.json()?)?;
    } else {
        write!(std::io::stdout(), "{}", report.table())?;
    }
    if let Some(path) = arguments.json.as_deref().filter(|path| *path != Path::new("-")) {
        std::fs::write(path, report.json()?).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if let Some(plot) = &arguments.plot {
        plot.write(&plot::heading(&report), &plot::charts(&report), &[&report.table()])?;
    }
    match report.errors() {
        0 => Ok(()),
        wrong => Err(format!("{wrong} replies were wrong").into()),
    }
}
