//! Runs load on one server, or the same load on two servers in turn.

use crate::chart::PlotFile;
use crate::record_shape::RecordShape;
use crate::report::{LoadReport, MeasuredServer};
use crate::workload::{self, GetSetRatio, KeyDistribution, KeyFormat, ValueKind, ValueSize, Workload};
use crate::{BenchError, driver, embedded, plot, process};
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use todana::Db;
use todana_client::LoginDestination;
use todana_protocol::memcached::client;

/// Options of `todana bench`, except the server and how to connect to it.
#[derive(Debug, clap::Args)]
pub struct LoadOptions {
    /// Connections in all
    #[arg(long, default_value_t = 50)]
    connections: usize,
    /// Threads that drive the connections
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Requests that a connection sends before it waits for their replies
    #[arg(long, default_value_t = 1)]
    pipeline: usize,
    /// Number of keys
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Digits of a key: the number of the key with leading zeros; 0 for as many as it needs
    #[arg(long, default_value_t = 8)]
    key_size: usize,
    /// Text before the digits of each key
    #[arg(long, default_value = "")]
    key_prefix: String,
    /// Bytes of a value: N, LO-HI (uniform), zipf:LO-HI[:S] (short values are more frequent),
    /// lognormal:MEDIAN[:SIGMA], or `key` for the key itself
    #[arg(long, default_value = "32")]
    value_size: ValueSize,
    /// Contents of values
    #[arg(long, default_value = "text")]
    value_kind: ValueKind,
    /// Keys and values of a shape instead: number, counter, session, profile, page, short-profile,
    /// session-json, lines:FILE or stanzas:FILE
    #[arg(long, value_name = "SHAPE", conflicts_with_all = ["key_size", "key_prefix", "value_size", "value_kind"])]
    records: Option<RecordShape>,
    /// Distribution of the requested keys: uniform, or zipf:S with exponent S
    #[arg(long, default_value = "uniform")]
    distribution: KeyDistribution,
    /// Ratio of gets to sets
    #[arg(long, default_value = "10:1")]
    ratio: GetSetRatio,
    /// Text or meta commands
    #[arg(long, default_value = "text")]
    protocol: workload::CommandSet,
    /// Requests of each round
    #[arg(long, default_value_t = 1_000_000, conflicts_with = "duration")]
    requests: u64,
    /// Run for this long instead: 10s, 2m
    #[arg(long, value_parser = duration)]
    duration: Option<Duration>,
    /// Do not store all keys before the first round
    #[arg(long)]
    cold: bool,
    /// Only store all keys once, in order
    #[arg(long)]
    load_only: bool,
    /// Store the keys even if the server or the database already holds records
    #[arg(long)]
    pub force: bool,
    /// Check that each value read equals the value stored under its key
    #[arg(long)]
    verify: bool,
    /// Seed of keys and values
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A second server, which gets the same load in turn with the first
    #[arg(long, value_name = "SERVER")]
    pub vs: Option<LoginDestination>,
    /// Rounds for each server; figures are medians over them [default: 1, with --vs 5]
    #[arg(long)]
    rounds: Option<usize>,
    /// Name of the server in tables and charts [default: its address]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Name of the second server in tables and charts
    #[arg(long, value_name = "NAME", requires = "vs")]
    pub vs_name: Option<String>,
    /// Process id of the server: shows its CPU time per request and its memory per record
    #[arg(long, value_parser = process::one)]
    pub pid: Option<u32>,
    /// Process id of the second server
    #[arg(long, requires = "vs", value_parser = process::one)]
    pub vs_pid: Option<u32>,
    /// Write the results as JSON; - means standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the results as an .html page or an .svg picture
    #[arg(long, value_name = "FILE")]
    plot: Option<PlotFile>,
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

impl LoadOptions {
    /// Sends the load to the servers and prints the results. Fails if a server is unreachable or a
    /// reply is wrong.
    pub fn run(&self, workload: &Workload, servers: &[driver::LoadTarget]) -> Result<(), BenchError> {
        measure(self, workload, servers).map_err(|error| BenchError::Failed(error.to_string()))
    }

    /// Runs the load on a database without a server and prints the results.
    pub fn run_embedded(&self, workload: &Workload, db: &Db) -> Result<(), BenchError> {
        embedded::run(db, workload, &self.embedded_plans())
    }

    /// Returns true if the options contain one that has a meaning only for servers.
    pub fn need_server(&self) -> bool {
        self.vs.is_some() || self.pid.is_some() || self.json.is_some() || self.plot.is_some()
    }

    /// Returns the parts of the work on a database without a server.
    fn embedded_plans(&self) -> Vec<embedded::EmbeddedPlan> {
        let load = embedded::EmbeddedPlan {
            threads: self.threads,
            requests: self.keys,
            duration: None,
            stores_all: true,
        };
        let requests = if self.duration.is_some() { u64::MAX } else { self.requests };
        let mix = || embedded::EmbeddedPlan { requests, duration: self.duration, stores_all: false, ..load };
        let mixes = if self.load_only { 0 } else { self.rounds() };
        let mixes: Vec<embedded::EmbeddedPlan> = (0..mixes).map(|_| mix()).collect();
        (self.load_only || !self.cold).then_some(load).into_iter().chain(mixes).collect()
    }

    /// Returns the workload that the options describe. Fails if the options contradict each other.
    pub fn workload(&self) -> Result<Workload, BenchError> {
        self.checked_workload().map_err(BenchError::Usage)
    }

    fn checked_workload(&self) -> Result<Workload, String> {
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
            records: self.records.clone(),
            shape: KeyFormat { prefix: self.key_prefix.clone(), width: self.key_size },
            value_size: self.value_size.clone(),
            value_kind: self.value_kind,
            picker: workload::KeyPicker::new(self.distribution, self.keys),
            ratio: self.ratio,
            protocol: self.protocol,
            seed: self.seed,
            verify: self.verify,
        })
    }

    /// Returns the parameters on which the results depend, except the servers.
    fn work(&self) -> serde_json::Value {
        serde_json::json!({
            "protocol": format!("{:?}", self.protocol).to_lowercase(),
            "connections": self.connections,
            "threads": self.threads,
            "pipeline": self.pipeline,
            "keys": self.keys,
            "records": self.records.as_ref().map(RecordShape::label),
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

    /// Returns the same parameters in words, for the heading of a plot.
    fn description(&self) -> Vec<String> {
        let value = match &self.value_size {
            ValueSize::Key => "value the same as the key".to_string(),
            size => format!("values of {size} bytes ({})", format!("{:?}", self.value_kind).to_lowercase()),
        };
        let digits = self.key_size.max(self.keys.to_string().len());
        let records = match &self.records {
            Some(shape) => format!("{} records, {}", self.keys, shape.label()),
            None => format!("{} keys of {} bytes, {value}", self.keys, self.key_prefix.len() + digits),
        };
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

fn measure(
    arguments: &LoadOptions,
    workload: &Workload,
    servers: &[driver::LoadTarget],
) -> Result<(), Box<dyn Error>> {
    let plan = driver::LoadPlan {
        connections: arguments.connections,
        threads: arguments.threads.min(arguments.connections),
        pipeline: arguments.pipeline,
        requests: if arguments.duration.is_some() { u64::MAX } else { arguments.requests },
        duration: arguments.duration,
    };
    let load = driver::LoadPlan {
        pipeline: arguments.pipeline.max(64),
        requests: arguments.keys,
        duration: None,
        ..plan
    };
    let measured = |target: &driver::LoadTarget| MeasuredServer {
        name: target.name.clone(),
        records: None,
        rounds: Vec::new(),
    };
    let mut report = LoadReport {
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
