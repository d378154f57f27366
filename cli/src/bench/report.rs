//! Results, for people and for programs.

use hdrhistogram::Histogram;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// The percentiles that are shown.
const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

/// One round on one server.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    pub(crate) elapsed: Duration,
    pub(crate) latencies: Histogram<u64>,
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    pub(crate) sets: u64,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    /// CPU time of the server process.
    pub(crate) cpu: Option<Duration>,
    /// Its resident memory at the end, in bytes.
    pub(crate) resident: Option<u64>,
    /// Seconds since the start, requests done by then.
    pub(crate) samples: Vec<(f64, u64)>,
}

impl Round {
    pub(crate) fn new(elapsed: Duration, samples: Vec<(f64, u64)>) -> Round {
        Round {
            elapsed,
            latencies: Histogram::new_with_bounds(1, 60_000_000_000, 3)
                .expect("the bounds are constants that fit"),
            gets: 0,
            hits: 0,
            sets: 0,
            errors: 0,
            first_error: None,
            cpu: None,
            resident: None,
            samples,
        }
    }

    pub(crate) fn requests(&self) -> u64 {
        self.gets + self.sets
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.requests() as f64 / self.elapsed.as_secs_f64()
    }

    pub(crate) fn latency_us(&self, percentile: f64) -> f64 {
        self.latencies.value_at_percentile(percentile) as f64 / 1000.0
    }

    /// CPU time of the server for a request, in microseconds.
    pub(crate) fn cpu_us(&self) -> Option<f64> {
        self.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / self.requests().max(1) as f64)
    }
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => values[len / 2],
        len => (values[len / 2 - 1] + values[len / 2]) / 2.0,
    }
}

/// The figures of a server: name, unit, median over its rounds.
fn figures(rounds: &[Round]) -> Vec<(String, &'static str, f64)> {
    let over = |of: &dyn Fn(&Round) -> f64| median(rounds.iter().map(of));
    let mut figures = vec![("throughput".to_string(), "req/s", over(&Round::per_second))];
    for (name, percentile) in PERCENTILES {
        figures.push((format!("latency {name}"), "us", over(&|round| round.latency_us(percentile))));
    }
    figures.push(("latency max".into(), "us", over(&|round| round.latencies.max() as f64 / 1000.0)));
    if rounds.iter().any(|round| round.gets > 0) {
        figures.push((
            "hits".into(),
            "%",
            over(&|round| 100.0 * round.hits as f64 / round.gets.max(1) as f64),
        ));
    }
    if rounds.iter().all(|round| round.cpu.is_some()) {
        figures.push(("server CPU".into(), "us/req", over(&|round| round.cpu_us().unwrap_or(f64::NAN))));
    }
    if rounds.iter().all(|round| round.resident.is_some()) {
        figures.push(("server VmRSS".into(), "MB", over(&|round| round.resident.unwrap_or(0) as f64 / 1e6)));
    }
    figures
}

/// Prints a table; with two servers their ratios too.
pub(crate) fn print(names: &[String], rounds: &[Vec<Round>]) -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let all: Vec<_> = rounds.iter().map(|rounds| figures(rounds)).collect();
    write!(out, "{:24}", "")?;
    names.iter().try_for_each(|name| write!(out, "{name:>24}"))?;
    writeln!(out, "{}", if names.len() == 2 { "   first / second" } else { "" })?;
    for (index, (name, unit, value)) in all[0].iter().enumerate() {
        write!(out, "{:24}{value:24.2}", format!("{name}, {unit}"))?;
        if let Some(second) = all.get(1) {
            // A figure that only one of them has (no pid given) has no ratio.
            match second.iter().find(|(other, ..)| other == name) {
                Some((.., other)) => write!(out, "{other:24.2}{:17.3}", value / other)?,
                None => write!(out, "{:>24}", "-")?,
            }
        }
        writeln!(out)?;
        let _ = index;
    }
    for (name, rounds) in names.iter().zip(rounds) {
        let errors: u64 = rounds.iter().map(|round| round.errors).sum();
        let requests: u64 = rounds.iter().map(Round::requests).sum();
        writeln!(out, "{name}: {requests} requests in {} rounds, {errors} errors", rounds.len())?;
        if let Some(first) = rounds.iter().find_map(|round| round.first_error.as_ref()) {
            writeln!(out, "{name}: the first error was: {first}")?;
        }
    }
    Ok(())
}

/// Writes all rounds and the medians as JSON.
pub(crate) fn write_json(path: &Path, names: &[String], rounds: &[Vec<Round>]) -> Result<(), Box<dyn Error>> {
    let servers: Vec<serde_json::Value> = names
        .iter()
        .zip(rounds)
        .map(|(name, rounds)| {
            let medians: serde_json::Map<String, serde_json::Value> = figures(rounds)
                .into_iter()
                .map(|(name, unit, value)| (name, serde_json::json!({ "value": value, "unit": unit })))
                .collect();
            let rounds: Vec<serde_json::Value> = rounds
                .iter()
                .map(|round| {
                    serde_json::json!({
                        "seconds": round.elapsed.as_secs_f64(),
                        "requests": round.requests(),
                        "gets": round.gets,
                        "hits": round.hits,
                        "sets": round.sets,
                        "errors": round.errors,
                        "latency_us": PERCENTILES.map(|(name, percentile)| (name, round.latency_us(percentile)))
                            .into_iter().collect::<std::collections::BTreeMap<_, _>>(),
                        "server_cpu_us_per_request": round.cpu_us(),
                        "server_resident_bytes": round.resident,
                    })
                })
                .collect();
            serde_json::json!({ "server": name, "medians": medians, "rounds": rounds })
        })
        .collect();
    let text = format!("{}\n", serde_json::to_string_pretty(&serde_json::json!({ "servers": servers }))?);
    if path == Path::new("-") {
        std::io::stdout().write_all(text.as_bytes())?;
    } else {
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
    }
}
