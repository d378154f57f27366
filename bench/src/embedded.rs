//! Runs the load on a database on disk without a server. The threads call the library.

use super::process;
use super::workload::{Workload, WorkloadOperation};
use crate::BenchError;
use crate::progress::progress;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use todana::{Db, Records};

/// The amount of work, and the number of threads that share it.
pub(super) struct EmbeddedPlan {
    pub(super) threads: usize,
    pub(super) requests: u64,
    pub(super) duration: Option<Duration>,
    /// True to store every key once, in order, instead of the random mix.
    pub(super) stores_all: bool,
}

/// The cost of a run.
pub(super) struct EmbeddedCost {
    requests: u64,
    misses: u64,
    took: Duration,
    cpu: Duration,
}

/// Stores all keys and then runs the mix, as the plans state.
pub(super) fn run(db: &Db, workload: &Workload, plans: &[EmbeddedPlan]) -> Result<(), BenchError> {
    for plan in plans {
        let cost = measure(db, workload, plan)?;
        let what = if plan.stores_all { "store all keys" } else { "mix" };
        let seconds = cost.took.as_secs_f64().max(1e-9);
        let each_us = cost.cpu.as_secs_f64() * 1e6 / cost.requests.max(1) as f64;
        writeln!(
            std::io::stdout(),
            "{what}: {} requests in {seconds:.2} s, {:.0}/s, {each_us:.2} us of CPU time each, {} misses",
            cost.requests,
            cost.requests as f64 / seconds,
            cost.misses,
        )?;
    }
    Ok(())
}

fn measure(db: &Db, workload: &Workload, plan: &EmbeddedPlan) -> Result<EmbeddedCost, BenchError> {
    let cpu = || process::cpu_time(std::process::id()).map(|time| time.total).map_err(BenchError::Failed);
    let bar = progress(
        if plan.duration.is_some() { 0 } else { plan.requests },
        "{wide_bar} {pos}/{len} requests {per_sec} eta {eta}",
    );
    let (next, misses, stops) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let (cpu_before, began) = (cpu()?, Instant::now());
    let is_over = || plan.duration.is_some_and(|duration| began.elapsed() >= duration);
    /// The number of requests that a thread takes at a time.
    const SHARE: u64 = 256;
    let work = &|number: u64| -> Result<(), todana::Error> {
        let mut random = fastrand::Rng::with_seed(workload.seed.wrapping_add(number));
        let (mut key, mut value) = (Vec::new(), Vec::new());
        while !stops.load(Ordering::Relaxed) && !is_over() {
            let from = next.fetch_add(SHARE, Ordering::Relaxed);
            if from >= plan.requests {
                break;
            }
            let to = (from + SHARE).min(plan.requests);
            for request in from..to {
                let operation = if plan.stores_all {
                    WorkloadOperation::Set(request + 1)
                } else {
                    workload.next(&mut random)
                };
                key.clear();
                value.clear();
                match operation {
                    WorkloadOperation::Get(number) => {
                        workload.put_key(&mut key, number);
                        if !db.view(&key, &mut |record| {
                            std::hint::black_box(record.value);
                        })? {
                            misses.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    WorkloadOperation::Set(number) => {
                        workload.put_key(&mut key, number);
                        workload.put_value(&mut value, number);
                        db.set(&key, &value)?;
                    }
                }
            }
            bar.inc(to - from);
        }
        Ok(())
    };
    let outcome = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..plan.threads as u64).map(|number| scope.spawn(move || work(number))).collect();
        let mut outcome = Ok(());
        for thread in threads {
            let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome = outcome.and(ended);
        }
        outcome
    });
    outcome?;
    db.sync()?;
    let (took, cpu) = (began.elapsed(), cpu()?.saturating_sub(cpu_before));
    bar.finish_and_clear();
    let requests = bar.position();
    Ok(EmbeddedCost { requests, misses: misses.into_inner(), took, cpu })
}
