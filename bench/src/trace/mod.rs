//! Implements `todana bench trace`: replays recorded requests on the engine and on reference caches
//! of the same capacity in objects or bytes, and compares their miss ratios. It needs no server and
//! no network.
//!
//! ```text
//! requests   a trace file
//! policy     the interface of a reference cache
//! lru, s3_fifo, sieve (on queue), gdsf   the reference caches, each with one global order of all
//!            objects
//! contest    the replays on reference caches, and on the engine under a database
//! report     results as a table, as JSON and as charts
//! ```

mod contest;
mod gdsf;
mod lru;
mod policy;
mod queue;
mod report;
mod requests;
mod s3_fifo;
mod sieve;

use crate::BenchError;
use crate::chart::PlotFile;
use crate::progress::progress;
use crate::workload::ValueSize;
use contest::{EngineResult, MissRatios, REFERENCES, TracedObjects};
use indicatif::ProgressBar;
use report::{CapacityResult, TraceReport, TraceResult};
pub use requests::TraceRequests;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use todana::EvictionGoal;

/// The end of the help of `todana bench trace`, which is to fit on a screen of 24 lines.
pub const TRACE_AFTER_HELP: &str = "\
FILE is a stream of little-endian u32 object ids, plain or compressed with zstd.
More: docs/benchmarking.md, \"Hit ratio\". Exit codes: 0 done, 2 wrong usage, 3 a
trace cannot be read.";

/// Options of `todana bench trace`.
#[derive(Debug, clap::Args)]
pub struct TraceOptions {
    /// The traces
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Percent of the keys, or of all bytes if sizes differ
    #[arg(long, value_name = "PERCENT", num_args = 1.., value_delimiter = ',', default_values = ["0.1", "1", "3", "10"], value_parser = percent)]
    capacity: Vec<f64>,
    /// Replay only the first N requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// The least digits of a key
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=250))]
    key_size: u8,
    /// N bytes; or lognormal:MEDIAN[:SIGMA]
    #[arg(long, default_value = "8", value_name = "N", value_parser = ValueSize::of_objects)]
    value_size: ValueSize,
    /// objects or bytes, as of a server
    #[arg(long, default_value = "objects", value_name = "GOAL", value_parser = eviction_goal)]
    evict_for: EvictionGoal,
    /// Replays with different hash seeds
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// The first of these seeds
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Replays at a time [default: cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Write the results as JSON; - means standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw an .html page or an .svg picture
    #[arg(long, value_name = "FILE")]
    plot: Option<PlotFile>,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("not a number above 0 and up to 100; files go before --capacity".into()),
    }
}

fn eviction_goal(text: &str) -> Result<EvictionGoal, String> {
    match text {
        "objects" => Ok(EvictionGoal::Objects),
        "bytes" => Ok(EvictionGoal::Bytes),
        _ => Err("must be objects or bytes".into()),
    }
}

/// A replay to run, on a reference cache or on the engine.
#[derive(Clone, Copy)]
enum ReplayJob {
    /// A reference cache: the index of the capacity, and the index of the cache.
    Reference(usize, usize),
    /// The engine: the index of the capacity, and the number of the round.
    Engine(usize, usize),
}

/// Replays one trace at all capacities.
fn replay(options: &TraceOptions, path: &Path, requests: &TraceRequests) -> Result<TraceResult, BenchError> {
    let rounds = usize::from(options.rounds);
    let objects = TracedObjects::new(requests.keys, options.key_size.into(), &options.value_size);
    let mut cells: Vec<CapacityResult> = options
        .capacity
        .iter()
        .map(|&percent| CapacityResult {
            percent,
            capacity: objects.capacity(percent),
            references: vec![MissRatios::default(); REFERENCES.len()],
            rounds: vec![EngineResult::default(); rounds],
        })
        .collect();
    // The replays on the engine come first, because they take longest.
    let mut jobs = Vec::new();
    for cell in 0..cells.len() {
        jobs.extend((0..rounds).map(|round| ReplayJob::Engine(cell, round)));
    }
    for cell in 0..cells.len() {
        jobs.extend((0..REFERENCES.len()).map(|index| ReplayJob::Reference(cell, index)));
    }
    let bar = progress(
        requests.ids.len() as u64 * jobs.len() as u64,
        "{prefix} {wide_bar} {human_pos}/{human_len} requests, {per_sec}, {eta} left",
    )
    .with_prefix(name_of(path));
    let done = run_jobs(options, requests, &objects, &cells, &jobs, &bar);
    bar.finish_and_clear();
    for (job, outcome) in done.map_err(BenchError::Failed)? {
        match job {
            ReplayJob::Reference(cell, index) => cells[cell].references[index] = outcome.missed,
            ReplayJob::Engine(cell, round) => cells[cell].rounds[round] = outcome,
        }
    }
    let (requests, keys) = (requests.ids.len(), requests.keys);
    Ok(TraceResult { name: name_of(path), requests, keys, is_sized: objects.is_sized, cells })
}

/// Runs the jobs in several threads. The first failure ends all threads.
fn run_jobs(
    options: &TraceOptions,
    requests: &TraceRequests,
    objects: &TracedObjects,
    cells: &[CapacityResult],
    jobs: &[ReplayJob],
    bar: &ProgressBar,
) -> Result<Vec<(ReplayJob, EngineResult)>, String> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Ok(Vec::new()));
    let work = || {
        while let Some(&job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = options.carry_out(job, requests, objects, cells, &|more| bar.inc(more));
            let mut done = done.lock().expect("no thread panics with the lock");
            match outcome {
                Ok(outcome) => {
                    let _ = done.as_mut().map(|list: &mut Vec<_>| list.push((job, outcome)));
                }
                Err(error) => {
                    *done = Err(error);
                    next.store(jobs.len(), Ordering::Relaxed);
                }
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = options.threads.map_or(cores, usize::from).min(jobs.len());
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    done.into_inner().expect("no thread panics with the lock")
}

impl TraceOptions {
    /// Replays all traces and prints the results. Fails if a trace cannot be read.
    pub fn run(&self) -> Result<(), BenchError> {
        let mut traces = Vec::new();
        for path in &self.files {
            let requests = TraceRequests::read(path, self.requests)
                .map_err(|error| BenchError::Failed(format!("{}: {error}", path.display())))?;
            traces.push(replay(self, path, &requests)?);
        }
        let report = TraceReport { work: self.work(), traces };
        let json = || report.json().map_err(|error| BenchError::Failed(error.to_string()));
        if self.json.as_deref() == Some(Path::new("-")) {
            write!(std::io::stdout(), "{}", json()?)?;
        } else {
            write!(std::io::stdout(), "{}", report.table())?;
        }
        if let Some(path) = self.json.as_deref().filter(|path| *path != Path::new("-")) {
            std::fs::write(path, json()?)
                .map_err(|error| BenchError::Failed(format!("{}: {error}", path.display())))?;
        }
        if let Some(plot) = &self.plot {
            plot.write(&report.heading(), &report.charts(), &[&report.table()])
                .map_err(BenchError::Failed)?;
        }
        Ok(())
    }

    fn carry_out(
        &self,
        job: ReplayJob,
        requests: &TraceRequests,
        objects: &TracedObjects,
        cells: &[CapacityResult],
        report: &dyn Fn(u64),
    ) -> Result<EngineResult, String> {
        match job {
            ReplayJob::Reference(cell, index) => {
                let missed =
                    contest::replay(REFERENCES[index], requests, objects, cells[cell].capacity, report);
                Ok(EngineResult { missed, ..EngineResult::default() })
            }
            ReplayJob::Engine(cell, round) => {
                let engine = (self.seed.wrapping_add(round as u64), self.evict_for);
                contest::replay_engine(requests, objects, cells[cell].capacity, engine, report)
            }
        }
    }

    /// Returns the parameters on which the results depend, except the traces.
    fn work(&self) -> serde_json::Value {
        serde_json::json!({
            "requests": self.requests,
            "key_size": self.key_size,
            "value_size": match &self.value_size {
                ValueSize::Fixed(size) => serde_json::json!(size),
                sizes => serde_json::json!(sizes.to_string()),
            },
            "rounds": self.rounds,
            "seed": self.seed,
        })
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
