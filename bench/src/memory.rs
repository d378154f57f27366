//! Implements `todana bench memory`: starts servers, fills each with records of one shape at a
//! time, and compares how much memory the idle processes use per record.
//!
//! Each pair of a server and a shape has a process of its own, so that no shape uses memory that
//! another shape has freed. The records are generated from a fixed seed and resemble the contents
//! of caches: numbers, counters, sessions, JSON, pieces of pages. Any server that speaks
//! memcached's text protocol can take part.

use crate::BenchError;
use crate::chart::{self, BarGroup, ChartAxis, PlotFile, PlotHeading};
use crate::process;
use crate::record_shape::{RecordShape, SHAPES};
use serde_json::json;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};
use todana_client::{Address, Connection};

/// The longest time from the start of a server to its first connection.
const START_MAX: Duration = Duration::from_secs(30);
/// The number of successive checks within which the memory must stay within a thousandth before it
/// counts. The last check counts in any case.
const STEADY_CHECKS: usize = 4;
const CHECKS_MAX: usize = 40;
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Examples of `todana bench memory`.
pub const MEMORY_AFTER_HELP: &str = "\
Examples:
  todana bench memory 'Todana=todana serve -m 0 -p {port}' \\
      'memcached=memcached -m 8192 -p {port}' --plot memory.svg
      memory per record of both, as a table and as a chart

A command runs in a shell. {port} is the TCP port on which the server must
listen on 127.0.0.1. Each server is started once for each shape of records, and
killed when its memory has been read. Memory is RssAnon of the idle process.

Exit codes: 0 done, 2 wrong usage, 3 a server does not start, or loses records.";

/// Options of `todana bench memory`.
#[derive(Debug, clap::Args)]
pub struct MemoryOptions {
    /// The servers: NAME=COMMAND, with {port} in the command
    #[arg(required = true, value_name = "NAME=COMMAND")]
    servers: Vec<CandidateServer>,
    /// Number of records of each shape
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=99_999_999))]
    records: u64,
    /// A shape of records, as --records of `todana bench`; one name, and the option may be repeated
    /// [default: number counter session profile page]; further ones are short-profile,
    /// session-json, lines:FILE and stanzas:FILE
    #[arg(long = "shape", value_name = "SHAPE")]
    shapes: Vec<RecordShape>,
    /// Write the results as JSON; - is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the results: an .html page, or an .svg picture
    #[arg(long, value_name = "FILE")]
    plot: Option<PlotFile>,
}

/// A server that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CandidateServer {
    name: String,
    command: String,
}

impl FromStr for CandidateServer {
    type Err = String;

    fn from_str(text: &str) -> Result<CandidateServer, String> {
        match text.split_once('=') {
            Some((name, command)) if !name.is_empty() && command.contains("{port}") => {
                Ok(CandidateServer { name: name.into(), command: command.into() })
            }
            _ => Err("must be NAME=COMMAND, with {port} in the command".into()),
        }
    }
}

/// The bytes per record of one shape.
struct ShapeMeasurement<'s> {
    shape: &'s RecordShape,
    /// The mean length of key and value together.
    payload: f64,
    /// The bytes of memory per record, of each server.
    memory: Vec<f64>,
}

impl MemoryOptions {
    /// Measures all servers, prints the results and draws them. Fails if a server does not start or
    /// loses records.
    pub fn run(&self) -> Result<(), BenchError> {
        let mut measurements = Vec::new();
        let shapes = if self.shapes.is_empty() { &SHAPES[..] } else { &self.shapes };
        for shape in shapes {
            let mut measurement = ShapeMeasurement { shape, payload: 0.0, memory: Vec::new() };
            for candidate in &self.servers {
                let failed = |why: String| BenchError::Failed(format!("{}: {why}", candidate.name));
                let (payload, bytes) = measure(candidate, shape, self.records).map_err(failed)?;
                measurement.payload = payload as f64 / self.records as f64;
                measurement.memory.push(bytes as f64 / self.records as f64);
            }
            measurements.push(measurement);
        }
        self.report(&measurements)
    }

    fn report(&self, measurements: &[ShapeMeasurement<'_>]) -> Result<(), BenchError> {
        let table = self.table(measurements);
        let json = self.json(measurements);
        match self.json.as_deref() {
            Some(path) if path == Path::new("-") => write!(std::io::stdout(), "{json}")?,
            Some(path) => {
                std::fs::write(path, json)
                    .map_err(|error| BenchError::Failed(format!("{}: {error}", path.display())))?;
                write!(std::io::stdout(), "{table}")?;
            }
            None => write!(std::io::stdout(), "{table}")?,
        }
        if let Some(plot) = &self.plot {
            let heading = PlotHeading { title: "Memory per record".into(), lines: vec![self.description()] };
            plot.write(&heading, &[self.chart(measurements)], &[&table]).map_err(BenchError::Failed)?;
        }
        Ok(())
    }

    fn description(&self) -> String {
        format!("Anonymous memory of the idle server process / {} records; less is better", self.records)
    }

    fn table(&self, measurements: &[ShapeMeasurement<'_>]) -> String {
        let mut table = format!("{}\n{:45}{:>12}", self.description(), "bytes per record", "key + value");
        for candidate in &self.servers {
            table.push_str(&format!("{:>20}", candidate.name));
        }
        for ShapeMeasurement { shape, payload, memory } in measurements {
            table.push_str(&format!("\n{:45}{payload:>12.1}", shape.label()));
            for bytes in memory {
                table.push_str(&format!("{bytes:>20.1}"));
            }
        }
        table + "\n"
    }

    fn json(&self, measurements: &[ShapeMeasurement<'_>]) -> String {
        let names: Vec<&str> = self.servers.iter().map(|candidate| candidate.name.as_str()).collect();
        let shapes: Vec<serde_json::Value> = measurements
            .iter()
            .map(|ShapeMeasurement { shape, payload, memory }| {
                let servers: serde_json::Map<String, serde_json::Value> = names
                    .iter()
                    .map(|name| name.to_string())
                    .zip(memory.iter().map(|bytes| json!(bytes)))
                    .collect();
                json!({ "records": shape.label(), "payload_bytes": payload, "memory_bytes": servers })
            })
            .collect();
        format!("{:#}\n", json!({ "records": self.records, "shapes": shapes }))
    }

    fn chart(&self, measurements: &[ShapeMeasurement<'_>]) -> String {
        let names: Vec<&str> = self.servers.iter().map(|candidate| candidate.name.as_str()).collect();
        let groups: Vec<BarGroup> = measurements
            .iter()
            .filter(|measurement| measurement.shape.is_drawn())
            .map(|measurement| BarGroup {
                name: measurement.shape.label(),
                base: measurement.payload,
                bars: measurement.memory.clone(),
            })
            .collect();
        let most = groups.iter().flat_map(|group| &group.bars).fold(1.0f64, |most, bar| most.max(*bar));
        let x = ChartAxis {
            title: "bytes of memory per record",
            logarithmic: false,
            ticks: chart::even_ticks(most),
        };
        chart::grouped_bars("By kind of record", &names, "key and value alone", &groups, &x)
    }
}

/// Returns the bytes of keys and values, and the memory of the server that stores them.
fn measure(candidate: &CandidateServer, shape: &RecordShape, records: u64) -> Result<(u64, u64), String> {
    let mut server = RunningServer::start(candidate)?;
    let payload = server.fill(shape, records).map_err(|error| format!("{}: {error}", shape.label()))?;
    let address: Address =
        format!("127.0.0.1:{}", server.port).parse().map_err(|error| format!("{error}"))?;
    let count = Connection::open(&address).and_then(|mut connection| connection.statistic("curr_items"));
    match count.map_err(|error| error.to_string())? {
        Some(count) if count != records.to_string() => {
            Err(format!("{}: holds {count} of {records} records; give it more memory", shape.label()))
        }
        _ => Ok((payload, server.steady_memory()?)),
    }
}

/// A server that this process has started. Dropping it kills the server.
struct RunningServer {
    child: Child,
    port: u16,
}

impl RunningServer {
    fn start(candidate: &CandidateServer) -> Result<RunningServer, String> {
        let port = free_port()?;
        let command = candidate.command.replace("{port}", &port.to_string());
        let child = Command::new("sh")
            .args(["-c", &format!("exec {command}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("sh: {error}"))?;
        let mut server = RunningServer { child, port };
        let began = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if let Ok(Some(status)) = server.child.try_wait() {
                return Err(format!("{command}: ended with {status}"));
            }
            if began.elapsed() > START_MAX {
                return Err(format!("{command}: does not listen on 127.0.0.1:{port}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Stores all records of a shape, and returns the bytes of their keys and values.
    fn fill(&mut self, shape: &RecordShape, records: u64) -> std::io::Result<u64> {
        const BATCH: usize = 64 << 10;
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        let (mut key, mut value, mut out) = (Vec::new(), Vec::new(), Vec::new());
        let mut payload = 0;
        for number in 1..=records {
            shape.put(number, &mut key, &mut value);
            payload += (key.len() + value.len()) as u64;
            out.extend_from_slice(b"set ");
            out.extend_from_slice(&key);
            write!(out, " 0 0 {} noreply\r\n", value.len())?;
            out.extend_from_slice(&value);
            out.extend_from_slice(b"\r\n");
            if out.len() > BATCH || number == records {
                stream.write_all(&out)?;
                out.clear();
            }
        }
        // The server replies to this request after it has stored all records.
        stream.write_all(b"version\r\n")?;
        let mut reply = String::new();
        BufReader::new(stream).read_line(&mut reply)?;
        match reply.starts_with("VERSION ") {
            true => Ok(payload),
            false => Err(std::io::Error::other(format!("unexpected reply {reply:?}"))),
        }
    }

    /// Returns the memory of the process after it has stopped changing.
    fn steady_memory(&self) -> Result<u64, String> {
        let read = || process::anonymous(self.child.id());
        let (mut last, mut steady) = (read()?, 0);
        for _ in 0..CHECKS_MAX {
            std::thread::sleep(CHECK_INTERVAL);
            let now = read()?;
            steady = if now.abs_diff(last) <= last / 1000 { steady + 1 } else { 0 };
            last = now;
            if steady == STEADY_CHECKS {
                break;
            }
        }
        Ok(last)
    }
}

/// Returns a port on which nothing listens. The system chooses ports above 32767, which ktserver
/// does not accept, so this function searches below.
fn free_port() -> Result<u16, String> {
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let mut candidates = std::iter::repeat_with(|| fastrand::u16(20_000..32_768)).take(1000);
    candidates.find(is_free).ok_or_else(|| "no free port between 20000 and 32767".into())
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // The server holds only records of the benchmark, so it may be killed. Both calls fail only
        // if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(servers: &[&str]) -> MemoryOptions {
        let servers = servers.iter().map(|text| text.parse().unwrap()).collect();
        MemoryOptions { servers, records: 1000, shapes: Vec::new(), json: None, plot: None }
    }

    #[test]
    fn server_needs_name_and_port() {
        let parse =
            |text: &str| text.parse::<CandidateServer>().map(|candidate| (candidate.name, candidate.command));
        assert_eq!(parse("a b=x -p {port} y=z"), Ok(("a b".into(), "x -p {port} y=z".into())));
        for text in ["x -p {port}", "=x {port}", "a=x -p 11211", ""] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn server_that_ends_is_an_error() {
        let refusal = measure(&"a=false {port}".parse().unwrap(), &RecordShape::Number, 1).unwrap_err();
        assert!(refusal.contains("ended with exit status: 1"), "{refusal}");
    }

    #[test]
    fn table_json_and_chart_show_every_figure() {
        let options = options(&["A=a {port}", "B=b {port}"]);
        let measurements = [
            ShapeMeasurement {
                shape: &RecordShape::PagePiece,
                payload: 1020.0,
                memory: vec![1100.0, 1200.0],
            },
            ShapeMeasurement { shape: &RecordShape::Number, payload: 16.0, memory: vec![12.5, 100.0] },
        ];
        let table = options.table(&measurements);
        assert!(table.ends_with("16.0                12.5               100.0\n"), "{table}");
        let json: serde_json::Value = serde_json::from_str(&options.json(&measurements)).unwrap();
        assert_eq!(json["shapes"][1]["memory_bytes"], json!({ "A": 12.5, "B": 100.0 }));
        let chart = options.chart(&measurements);
        assert!(crate::chart::tests::is_well_formed(&chart), "{chart}");
        assert!(chart.contains(">12.5</text>") && chart.contains(">100</text>"), "{chart}");
        assert!(!chart.contains("1000 bytes of text") && table.contains("1000 bytes of text"), "{chart}");
    }
}
