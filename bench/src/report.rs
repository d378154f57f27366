//! Prints results as a table and as JSON.

use super::driver;
use super::process::CpuTime;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::time::Duration;

/// The percentiles in tables and JSON.
const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

/// The least CPU time of a round for which the CPU time per request is reported. Below this time,
/// the clock ticks of 10 ms and the server's background work would dominate.
const CPU_MIN: Duration = Duration::from_millis(100);

/// A round of load on one server.
#[derive(Clone, Debug)]
pub(crate) struct LoadRound {
    /// The start of the round, counted from the start of the first round.
    pub(crate) began: Duration,
    pub(crate) elapsed: Duration,
    /// The latencies in nanoseconds.
    pub(crate) latencies: Histogram<u64>,
    pub(crate) gets: u64,
    pub(crate) hits: u64,
    pub(crate) sets: u64,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    /// The CPU time of the server process.
    pub(crate) cpu: Option<CpuTime>,
    /// The resident memory of the server process at the end, in bytes.
    pub(crate) resident: Option<u64>,
    /// The anonymous part of the resident memory, which excludes program text and mapped files.
    pub(crate) anonymous: Option<u64>,
    /// Pairs of a time in seconds since the start and the number of requests completed by then. The
    /// last pair is the end.
    pub(crate) samples: Vec<(f64, u64)>,
}

impl LoadRound {
    pub(crate) fn new(began: Duration, elapsed: Duration, samples: Vec<(f64, u64)>) -> LoadRound {
        LoadRound {
            began,
            elapsed,
            latencies: driver::histogram(),
            gets: 0,
            hits: 0,
            sets: 0,
            errors: 0,
            first_error: None,
            cpu: None,
            resident: None,
            anonymous: None,
            samples,
        }
    }

    pub(crate) fn requests(&self) -> u64 {
        self.gets + self.sets
    }

    fn per_second(&self) -> f64 {
        self.requests() as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn latency_us(&self, percentile: f64) -> f64 {
        self.latencies.value_at_percentile(percentile) as f64 / 1000.0
    }

    /// Returns the server's CPU time per request in microseconds, or `None` if the total is too
    /// small to divide.
    fn cpu_us(&self, part: fn(&CpuTime) -> Duration) -> Option<f64> {
        let cpu = self.cpu.filter(|cpu| cpu.total >= CPU_MIN)?;
        Some(part(&cpu).as_secs_f64() * 1e6 / self.requests().max(1) as f64)
    }

    fn json(&self) -> Value {
        let mut latency: Map<String, Value> =
            PERCENTILES.iter().map(|(name, p)| (name.to_string(), self.latency_us(*p).into())).collect();
        latency.insert("mean".into(), (self.latencies.mean() / 1000.0).into());
        latency.insert("max".into(), (self.latencies.max() as f64 / 1000.0).into());
        json!({
            "seconds": self.elapsed.as_secs_f64(),
            "requests": self.requests(),
            "requests_per_second": self.per_second(),
            "gets": self.gets,
            "hits": self.hits,
            "sets": self.sets,
            "errors": self.errors,
            "first_error": self.first_error,
            "latency_us": latency,
            "server_cpu_us_per_request": self.cpu_us(|cpu| cpu.total),
            "server_resident_bytes": self.resident,
            "server_anonymous_bytes": self.anonymous,
            "samples": self.samples,
        })
    }
}

/// A server and its rounds.
#[derive(Debug)]
pub(crate) struct MeasuredServer {
    pub(crate) name: String,
    /// The number of records on the server at the end, if the server's process is measured.
    pub(crate) records: Option<u64>,
    pub(crate) rounds: Vec<LoadRound>,
}

impl MeasuredServer {
    /// Returns the anonymous memory of the server process after the last round, divided by the
    /// number of records.
    pub(crate) fn bytes_per_record(&self) -> Option<f64> {
        let records = self.records.filter(|records| *records > 0)?;
        Some(self.rounds.last()?.anonymous? as f64 / records as f64)
    }
}

/// The rounds of all servers.
#[derive(Debug)]
pub(crate) struct LoadReport {
    /// The parameters of the load, for JSON.
    pub(crate) work: Value,
    /// The parameters of the load in words, one line each.
    pub(crate) description: Vec<String>,
    /// The mean number of bytes of key and value.
    pub(crate) record_bytes: f64,
    pub(crate) servers: Vec<MeasuredServer>,
}

/// One line of the table.
struct TableRow {
    name: String,
    unit: &'static str,
    /// The median over the rounds.
    value: f64,
    /// Half the distance between the lowest and the highest round, relative to the median.
    spread: f64,
}

impl TableRow {
    /// Creates a row from the values of the rounds. Returns `None` if a round has no value.
    fn new(name: &str, unit: &'static str, of: impl Iterator<Item = Option<f64>>) -> Option<TableRow> {
        let values: Vec<f64> = of.collect::<Option<_>>()?;
        let value = median(&values)?;
        let (low, high) =
            values.iter().fold((value, value), |(low, high), value| (low.min(*value), high.max(*value)));
        let spread = if value > 0.0 { (high - low) / 2.0 / value } else { 0.0 };
        Some(TableRow { name: name.to_string(), unit, value, spread })
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    Some(if values.len() % 2 == 1 {
        values[middle]
    } else {
        (values.get(middle.checked_sub(1)?)? + values[middle]) / 2.0
    })
}

/// Returns the results of a server.
fn figures(server: &MeasuredServer) -> Vec<TableRow> {
    let rounds = &server.rounds;
    let over = |name: &str, unit, of: &dyn Fn(&LoadRound) -> Option<f64>| {
        TableRow::new(name, unit, rounds.iter().map(of))
    };
    let mut figures = vec![over("throughput", "req/s", &|round| Some(round.per_second()))];
    for (name, percentile) in PERCENTILES {
        figures.push(over(&format!("latency {name}"), "us", &|round| Some(round.latency_us(percentile))));
    }
    let hits = |round: &LoadRound| (round.gets > 0).then(|| 100.0 * round.hits as f64 / round.gets as f64);
    figures.extend([
        over("latency max", "us", &|round| Some(round.latencies.max() as f64 / 1000.0)),
        over("hits", "%", &hits),
        over("server CPU", "us/req", &|round| round.cpu_us(|cpu| cpu.total)),
        over("server CPU, user", "us/req", &|round| round.cpu_us(|cpu| cpu.user)),
        over("server CPU, system", "us/req", &|round| round.cpu_us(|cpu| cpu.system)),
        over("server VmRSS", "MB", &|round| round.resident.map(|bytes| bytes as f64 / 1e6)),
        over("server RssAnon", "MB", &|round| round.anonymous.map(|bytes| bytes as f64 / 1e6)),
    ]);
    let per_record = server.bytes_per_record().map(|value| TableRow {
        name: "memory per record".into(),
        unit: "bytes",
        value,
        spread: 0.0,
    });
    figures.into_iter().chain([per_record]).flatten().collect()
}

/// Formats a number with three significant digits.
fn digits(value: f64) -> String {
    match value.abs() {
        1000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl LoadReport {
    /// Returns the number of wrong replies of all rounds.
    pub(crate) fn errors(&self) -> u64 {
        self.servers.iter().flat_map(|server| &server.rounds).map(|round| round.errors).sum()
    }

    /// Returns the ratio of the first server's result to the second server's result, by name.
    fn ratios(&self) -> Vec<(String, f64)> {
        let [first, second] = &self.servers[..] else { return Vec::new() };
        let second = figures(second);
        let ratio = |figure: &TableRow| {
            let other = second.iter().find(|other| other.name == figure.name)?;
            let ratio = figure.value / other.value;
            ratio.is_finite().then(|| (figure.name.clone(), ratio))
        };
        figures(first).iter().filter_map(ratio).collect()
    }

    /// Returns a table with the medians, the spread of the rounds and, if there are two servers,
    /// the ratios.
    pub(crate) fn table(&self) -> String {
        const NAME: usize = 27;
        const VALUE: usize = 14;
        const SPREAD: usize = 8;
        let figures: Vec<Vec<TableRow>> = self.servers.iter().map(figures).collect();
        let ratios = self.ratios();
        // The server with more results has every name, in order.
        let empty = Vec::new();
        let names = figures.iter().max_by_key(|figures| figures.len()).unwrap_or(&empty);
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = write!(out, "{:NAME$}", "");
        for MeasuredServer { name, .. } in &self.servers {
            let _ = write!(out, "{name:>width$}", width = VALUE + SPREAD);
        }
        let _ = writeln!(out, "{}", if self.servers.len() == 2 { "   ratio" } else { "" });
        for TableRow { name, unit, .. } in names {
            let _ = write!(out, "{:NAME$}", format!("{name}, {unit}"));
            for (figures, MeasuredServer { rounds, .. }) in figures.iter().zip(&self.servers) {
                let _ = match figures.iter().find(|figure| figure.name == *name) {
                    None => write!(out, "{:>VALUE$}{:SPREAD$}", "-", ""),
                    Some(figure) => {
                        let spread = match rounds.len() {
                            0 | 1 => String::new(),
                            _ => format!(" ±{:.1}%", 100.0 * figure.spread),
                        };
                        write!(out, "{:>VALUE$}{spread:SPREAD$}", digits(figure.value))
                    }
                };
            }
            if let Some((_, ratio)) = ratios.iter().find(|(other, _)| other == name) {
                let _ = write!(out, "{ratio:8.3}");
            }
            out.truncate(out.trim_end().len());
            out.push('\n');
        }
        for MeasuredServer { name, rounds, .. } in &self.servers {
            let errors: u64 = rounds.iter().map(|round| round.errors).sum();
            let requests: u64 = rounds.iter().map(LoadRound::requests).sum();
            let plural = if rounds.len() == 1 { "" } else { "s" };
            let _ = writeln!(
                out,
                "{name}: {requests} requests in {} round{plural}, {errors} errors",
                rounds.len()
            );
            let least = rounds.iter().filter_map(|round| round.cpu).map(|cpu| cpu.total).min();
            if let Some(least) = least.filter(|least| *least < CPU_MIN) {
                let _ = writeln!(
                    out,
                    "{name}: {} ms of server CPU time in a round are too little to measure; use at least {} ms (--requests)",
                    least.as_millis(),
                    CPU_MIN.as_millis()
                );
            }
            if let Some(first) = rounds.iter().find_map(|round| round.first_error.as_ref()) {
                let _ = writeln!(out, "{name}: the first error was: {first}");
            }
        }
        out
    }

    /// Returns the load, all rounds, their medians and, if there are two servers, the ratios.
    pub(crate) fn json(&self) -> Result<String, serde_json::Error> {
        let server = |server: &MeasuredServer| {
            let figure = |figure: TableRow| {
                let value = json!({ "value": figure.value, "unit": figure.unit, "spread": figure.spread });
                (figure.name, value)
            };
            let medians: Map<String, Value> = figures(server).into_iter().map(figure).collect();
            let rounds: Vec<Value> = server.rounds.iter().map(LoadRound::json).collect();
            json!({ "server": server.name, "records": server.records, "medians": medians, "rounds": rounds })
        };
        let mut report = json!({
            "program": concat!("todana ", env!("CARGO_PKG_VERSION")),
            "work": self.work,
            "servers": self.servers.iter().map(server).collect::<Vec<_>>(),
        });
        if self.servers.len() == 2 {
            let ratios: Map<String, Value> =
                self.ratios().into_iter().map(|(name, ratio)| (name, ratio.into())).collect();
            report["ratios"] = ratios.into();
        }
        Ok(format!("{}\n", serde_json::to_string_pretty(&report)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report<const N: usize>(servers: [(&str, Vec<LoadRound>); N]) -> LoadReport {
        let measured =
            |(name, rounds): (&str, _)| MeasuredServer { name: name.into(), records: Some(1000), rounds };
        let servers = servers.map(measured).into();
        LoadReport { work: json!({ "keys": 7 }), description: Vec::new(), record_bytes: 16.0, servers }
    }

    fn round(millis: u64, latency_ns: u64) -> LoadRound {
        let mut round = LoadRound::new(
            Duration::ZERO,
            Duration::from_millis(millis),
            vec![(millis as f64 / 1000.0, 1000)],
        );
        round.latencies.record_n(latency_ns, 1000).unwrap();
        (round.gets, round.hits, round.sets) = (900, 450, 100);
        round
    }

    #[test]
    fn median_is_the_middle_value() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn table_shows_medians_spreads_and_ratios() {
        let mut first = vec![round(100, 50_000), round(125, 60_000), round(200, 70_000)];
        for round in &mut first {
            let millis = Duration::from_millis;
            round.cpu = Some(CpuTime { total: millis(500), user: millis(200), system: millis(300) });
            round.resident = Some(12_345_678);
            round.anonymous = Some(9_000_000);
        }
        first[2].errors = 1;
        first[2].first_error = Some("SERVER_ERROR out of memory".into());
        let second = vec![round(250, 120_000)];
        let report = report([("a:1", first), ("b:2", second)]);
        let expected = "                                              a:1                   b:2   ratio
throughput, req/s                    8000 ±31.2%           4000           2.000
latency p50, us                     60.03 ±16.7%          120.1           0.500
latency p90, us                     60.03 ±16.7%          120.1           0.500
latency p99, us                     60.03 ±16.7%          120.1           0.500
latency p99.9, us                   60.03 ±16.7%          120.1           0.500
latency p99.99, us                  60.03 ±16.7%          120.1           0.500
latency max, us                     60.03 ±16.7%          120.1           0.500
hits, %                             50.00 ±0.0%           50.00           1.000
server CPU, us/req                  500.0 ±0.0%               -
server CPU, user, us/req            200.0 ±0.0%               -
server CPU, system, us/req          300.0 ±0.0%               -
server VmRSS, MB                    12.35 ±0.0%               -
server RssAnon, MB                   9.00 ±0.0%               -
memory per record, bytes             9000 ±0.0%               -
a:1: 3000 requests in 3 rounds, 1 errors
a:1: the first error was: SERVER_ERROR out of memory
b:2: 1000 requests in 1 round, 0 errors
";
        assert_eq!(report.table(), expected);
        assert_eq!(report.errors(), 1);
    }

    #[test]
    fn short_cpu_time_is_not_divided_by_requests() {
        let mut rounds = vec![round(100, 50_000); 2];
        for (round, millis) in rounds.iter_mut().zip([700, 20]) {
            let total = Duration::from_millis(millis);
            round.cpu = Some(CpuTime { total, user: total, system: Duration::ZERO });
        }
        let report = report([("a:1", rounds)]);
        let table = report.table();
        assert!(!table.contains("us/req"), "{table}");
        let text = "a:1: 20 ms of server CPU time in a round are too little to measure; use at least 100 ms (--requests)\n";
        assert!(table.contains(text), "{table}");
        let json: Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        let figures = json["servers"][0]["rounds"].as_array().unwrap();
        let text: Vec<&Value> = figures.iter().map(|round| &round["server_cpu_us_per_request"]).collect();
        assert_eq!(text, [&json!(700.0), &Value::Null]);
    }

    #[test]
    fn json_contains_every_figure_by_name() {
        let report = report([("a:1", vec![round(100, 50_000)]), ("b:2", vec![round(200, 100_000)])]);
        let json: Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        assert_eq!(json["work"]["keys"], 7);
        let server = &json["servers"][0];
        assert_eq!(server["server"], "a:1");
        let names: Vec<&String> = server["rounds"][0].as_object().unwrap().keys().collect();
        assert_eq!(
            names,
            [
                "errors",
                "first_error",
                "gets",
                "hits",
                "latency_us",
                "requests",
                "requests_per_second",
                "samples",
                "seconds",
                "server_anonymous_bytes",
                "server_cpu_us_per_request",
                "server_resident_bytes",
                "sets"
            ]
        );
        let names: Vec<&String> = server["rounds"][0]["latency_us"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["max", "mean", "p50", "p90", "p99", "p99.9", "p99.99"]);
        assert_eq!(server["rounds"][0]["requests"], 1000);
        assert_eq!(server["rounds"][0]["samples"], json!([[0.1, 1000]]));
        assert_eq!(
            server["medians"]["throughput"],
            json!({ "value": 10000.0, "unit": "req/s", "spread": 0.0 })
        );
        assert_eq!(json["ratios"]["throughput"], 2.0);
        assert_eq!(json["servers"][1]["medians"]["server CPU"], Value::Null);
    }
}
