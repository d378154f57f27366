//! Implements `todana bench trace`: replays recorded requests on the engine and on reference caches
//! of the same capacity in objects, and compares their miss ratios. It needs no server and no
//! network.
//!
//! ```text
//! requests   a trace file
//! policy     the interface of a reference cache
//! lru, s3_fifo, sieve (on queue)   the reference caches, each with one global order of all objects
//! contest    the replays on reference caches, and on the engine under a database
//! report     results as a table, as JSON and as charts
//! ```

mod contest;
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
use contest::{EngineResult, REFERENCES, TracedRecordShape};
use indicatif::ProgressBar;
use report::{CapacityResult, TraceReport, TraceResult};
pub use requests::TraceRequests;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Examples and exit codes of `todana bench trace`.
pub const TRACE_AFTER_HELP: &str = "\
Examples:
  todana bench trace oltp.u32.zst
      miss ratios at 0.1, 1, 3 and 10 % of its keys
  todana bench trace *.u32.zst --plot traces.html
      several traces, a chart for each
  todana bench trace oltp.u32.zst --capacity 1 3 10 --json -
      other capacities; all figures for programs

A trace is a stream of little-endian u32 object ids in the order of the
requests, plain or compressed with zstd. Each request is a get, and on a miss a
set. The engine is bounded by a number of records here, so that it holds as
many objects as the references. A server is bounded by its memory: to compare
servers, give them the same. References: LRU; SIEVE; S3-FIFO with a small queue
of 10 %, as many ghosts as its main queue has entries, and promotion at the
second use.

Exit codes: 0 done, 2 wrong usage, 3 a trace cannot be read.";

/// Options of `todana bench trace`.
#[derive(Debug, clap::Args)]
pub struct TraceOptions {
    /// The traces
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Capacities in percent of the trace's keys; give them after the files
    #[arg(long, value_name = "PERCENT", num_args = 1.., value_delimiter = ',', default_values = ["0.1", "1", "3", "10"], value_parser = percent)]
    capacity: Vec<f64>,
    /// Replay only the first N requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Digits of a key: the number of the object with leading zeros; 0 for as many as it needs
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=250))]
    key_size: u8,
    /// Bytes of a value. Key and value size decide how many records share a bucket and compete for
    /// it
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    value_size: u32,
    /// Replays on the engine, each with another seed of its hash; figures are means
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    rounds: u8,
    /// The first of these seeds
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads, each of which runs one replay at a time [default: number of cores]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Write the results as JSON; - means standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the results as an .html page or an .svg picture
    #[arg(long, value_name = "FILE")]
    plot: Option<PlotFile>,
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("not a number above 0 and up to 100; files go before --capacity".into()),
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
    let mut cells: Vec<CapacityResult> = options
        .capacity
        .iter()
        .map(|&percent| CapacityResult {
            percent,
            capacity: requests.capacity(percent),
            references: vec![0.0; REFERENCES.len()],
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
    let done = run_jobs(options, requests, &cells, &jobs, &bar);
    bar.finish_and_clear();
    for (job, outcome) in done.map_err(BenchError::Failed)? {
        match job {
            ReplayJob::Reference(cell, index) => cells[cell].references[index] = outcome.miss_ratio,
            ReplayJob::Engine(cell, round) => cells[cell].rounds[round] = outcome,
        }
    }
    Ok(TraceResult { name: name_of(path), requests: requests.ids.len(), keys: requests.keys, cells })
}

/// Runs the jobs in several threads. The first failure ends all threads.
fn run_jobs(
    options: &TraceOptions,
    requests: &TraceRequests,
    cells: &[CapacityResult],
    jobs: &[ReplayJob],
    bar: &ProgressBar,
) -> Result<Vec<(ReplayJob, EngineResult)>, String> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Ok(Vec::new()));
    let work = || {
        while let Some(&job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = options.carry_out(job, requests, cells, &|more| bar.inc(more));
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
        cells: &[CapacityResult],
        report: &dyn Fn(u64),
    ) -> Result<EngineResult, String> {
        match job {
            ReplayJob::Reference(cell, index) => {
                let miss_ratio = contest::replay(REFERENCES[index], requests, cells[cell].capacity, report);
                Ok(EngineResult { miss_ratio, ..EngineResult::default() })
            }
            ReplayJob::Engine(cell, round) => {
                let shape = TracedRecordShape {
                    key_size: usize::from(self.key_size),
                    value_size: self.value_size as usize,
                    seed: self.seed.wrapping_add(round as u64),
                };
                contest::replay_engine(requests, cells[cell].capacity, shape, report)
            }
        }
    }

    /// Returns the parameters on which the results depend, except the traces.
    fn work(&self) -> serde_json::Value {
        serde_json::json!({
            "requests": self.requests,
            "key_size": self.key_size,
            "value_size": self.value_size,
            "rounds": self.rounds,
            "seed": self.seed,
        })
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
