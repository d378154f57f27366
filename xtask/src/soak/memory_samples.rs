//! Samples of the servers' memory (RssAnon) over time.

use super::server::{FullMemoryPolicy, SoakServer};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const MARGIN: f64 = 60.0;
/// Legible on white and on dark grounds, and distinguishable by colour-blind readers.
const COLOURS: [&str; 5] = ["#2288cc", "#d55e00", "#009e73", "#cc79a7", "#999900"];

/// Maximum excess of RssAnon over the memory limit.
const EXCESS_MIB: f64 = 4.0;

/// A server whose memory is sampled.
struct SampledServer {
    name: &'static str,
    /// The server's memory becomes full early in the run.
    is_full: bool,
    limit_mib: f64,
}

/// Samples of all servers.
pub(super) struct MemorySamples {
    servers: Vec<SampledServer>,
    /// The time in seconds and the MiB of each server.
    samples: Vec<(f64, Vec<f64>)>,
}

impl MemorySamples {
    pub(super) fn new(servers: &[Arc<SoakServer>]) -> MemorySamples {
        let watched = |server: &Arc<SoakServer>| SampledServer {
            name: server.name,
            is_full: server.fullness != FullMemoryPolicy::Never,
            limit_mib: server.memory_mib,
        };
        MemorySamples { servers: servers.iter().map(watched).collect(), samples: Vec::new() }
    }

    pub(super) fn sample(&mut self, at: Duration, servers: &[Arc<SoakServer>]) {
        let all: Option<Vec<f64>> =
            servers.iter().map(|server| server.resident_kib().map(|kib| kib as f64 / 1024.0)).collect();
        // A missing value would look like released memory, so the sample is dropped.
        if let Some(all) = all {
            self.samples.push((at.as_secs_f64(), all));
        }
    }

    /// Returns a quantile of a server's samples within a part of the run.
    fn quantile(&self, server: usize, quantile: f64, from: f64, to: f64) -> f64 {
        let last = self.samples.last().map_or(0.0, |(at, _)| *at);
        let within = |at: f64| at >= from * last && at <= to * last;
        let mut values: Vec<f64> =
            self.samples.iter().filter(|(at, _)| within(*at)).map(|(_, all)| all[server]).collect();
        values.sort_by(f64::total_cmp);
        values.get((values.len() as f64 * quantile) as usize).copied().unwrap_or(0.0)
    }

    /// Returns a server's memory in the middle and at the end, each over a fifth of the run.
    ///
    /// The median is used because long values come and go, and a flush empties the server. For a
    /// server whose memory is full, the 90th percentile is used: each of its long values takes an
    /// eighth of its memory, and the time until the gap of an evicted one is filled varies from
    /// minute to minute. Medians were 57.6 and 61.5 MiB of 64 in one run, 61.8 and 61.8 in another;
    /// 90th percentiles 63.3 and 63.4.
    fn middle_and_end(&self, server: usize) -> (f64, f64) {
        let quantile = if self.servers[server].is_full { 0.9 } else { 0.5 };
        (self.quantile(server, quantile, 0.4, 0.6), self.quantile(server, quantile, 0.8, 1.0))
    }

    fn maximum(&self, server: usize) -> f64 {
        self.samples.iter().map(|(_, all)| all[server]).fold(0.0, f64::max)
    }

    /// Returns an error for the first server that exceeded its memory limit.
    pub(super) fn excess(&self) -> Option<String> {
        let exceeds = |&server: &usize| self.maximum(server) > self.servers[server].limit_mib + EXCESS_MIB;
        let server = (0..self.servers.len()).find(exceeds)?;
        let (SampledServer { name, limit_mib, .. }, most) = (&self.servers[server], self.maximum(server));
        Some(format!("server {name:?}: RssAnon reached {most:.1} MiB, the limit is {limit_mib} MiB"))
    }

    /// Returns each server's relative growth from the middle to the end.
    pub(super) fn drifts(&self) -> Vec<(&'static str, f64)> {
        let drift = |server| {
            let (middle, end) = self.middle_and_end(server);
            (end - middle) / middle.max(1.0)
        };
        self.servers.iter().enumerate().map(|(server, watched)| (watched.name, drift(server))).collect()
    }

    pub(super) fn table(&self) -> String {
        let mut text = String::from("RssAnon, MiB   middle      end  maximum       growth\n");
        for (server, (name, drift)) in self.drifts().into_iter().enumerate() {
            let (middle, end) = self.middle_and_end(server);
            let most = self.maximum(server);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name:10} {middle:8.1} {end:8.1} {most:8.1}   {:+8.1} %", drift * 100.0);
        }
        text
    }

    /// Returns a chart of the samples.
    pub(super) fn svg(&self) -> String {
        let last = self.samples.last().map_or(1.0, |(at, _)| at.max(1.0));
        let most = self.samples.iter().flat_map(|(_, all)| all).fold(1.0f64, |most, value| most.max(*value));
        let x = |at: f64| MARGIN + at / last * (WIDTH - 2.0 * MARGIN);
        let y = |mib: f64| HEIGHT - MARGIN - mib / most * (HEIGHT - 2.0 * MARGIN);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\" fill=\"#888\">\n<text x=\"{MARGIN}\" y=\"20\" font-size=\"16\">RssAnon of the servers, \
             MiB over seconds</text>\n"
        );
        for part in 0..=4 {
            let part = f64::from(part) / 4.0;
            let (at, mib) = (x(last * part), y(most * part));
            let _ = writeln!(
                svg,
                "<line x1=\"{MARGIN}\" x2=\"{:.1}\" y1=\"{mib:.1}\" y2=\"{mib:.1}\" stroke=\"#888\" \
                 stroke-opacity=\".3\"/>\n<text x=\"{:.1}\" y=\"{mib:.1}\" text-anchor=\"end\">{:.0}</text>\n\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.0}</text>",
                WIDTH - MARGIN,
                MARGIN - 6.0,
                most * part,
                HEIGHT - MARGIN + 18.0,
                last * part
            );
        }
        for (server, SampledServer { name, .. }) in self.servers.iter().enumerate() {
            let colour = COLOURS[server % COLOURS.len()];
            let points: Vec<String> =
                self.samples.iter().map(|(at, all)| format!("{:.1},{:.1}", x(*at), y(all[server]))).collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" text-anchor=\"end\">{name}</text>",
                points.join(" "),
                WIDTH - 6.0,
                20.0 + 16.0 * server as f64
            );
        }
        svg + "</svg>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(name: &'static str, is_full: bool) -> SampledServer {
        SampledServer { name, is_full, limit_mib: 146.5 }
    }

    #[test]
    fn full_server_is_compared_by_its_90th_percentile() {
        let mut memory = MemorySamples { servers: vec![watched("full", true)], samples: Vec::new() };
        for second in 0..=100 {
            // The memory drops more and more often, but returns to the same height.
            let gap = if second % 5 < second / 25 { 10.0 } else { 0.0 };
            memory.samples.push((f64::from(second), vec![64.0 - gap]));
        }
        assert_eq!(memory.drifts(), [("full", 0.0)]);
        assert_eq!(memory.excess(), None);
        memory.samples.push((101.0, vec![150.6]));
        assert_eq!(
            memory.excess().unwrap(),
            "server \"full\": RssAnon reached 150.6 MiB, the limit is 146.5 MiB"
        );
    }

    #[test]
    fn memory_growth_is_relative_to_the_middle() {
        let servers = vec![watched("steady", false), watched("leaks", false)];
        let mut memory = MemorySamples { servers, samples: Vec::new() };
        for second in 0..=100 {
            memory.samples.push((f64::from(second), vec![50.0, 50.0 + f64::from(second)]));
        }
        let drifts = memory.drifts();
        assert_eq!(drifts[0], ("steady", 0.0));
        assert_eq!(drifts[1], ("leaks", 0.4));
        assert!(
            memory.table().contains("leaks         100.0    140.0    150.0      +40.0 %"),
            "{}",
            memory.table()
        );
        assert_eq!(memory.excess(), None);
        assert_eq!(memory.svg().matches("<polyline").count(), 2);
    }
}
