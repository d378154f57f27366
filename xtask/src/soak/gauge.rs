//! RssAnon over time.

use super::node::{Fullness, Node};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const MARGIN: f64 = 60.0;
/// Legible on white and on dark grounds, and distinguishable by colour-blind readers.
const COLOURS: [&str; 5] = ["#2288cc", "#d55e00", "#009e73", "#cc79a7", "#999900"];

/// By what RssAnon may ever exceed the memory limit.
const EXCESS_MIB: f64 = 4.0;

/// The measured figures of a server.
struct Watched {
    name: &'static str,
    /// Its memory is full before long.
    is_full: bool,
    limit_mib: f64,
}

/// Samples of all servers.
pub(super) struct Gauge {
    servers: Vec<Watched>,
    /// Seconds, and MiB of each server.
    samples: Vec<(f64, Vec<f64>)>,
}

impl Gauge {
    pub(super) fn new(nodes: &[Arc<Node>]) -> Gauge {
        let watched = |node: &Arc<Node>| Watched {
            name: node.name,
            is_full: node.fullness != Fullness::Never,
            limit_mib: node.memory_mib,
        };
        Gauge { servers: nodes.iter().map(watched).collect(), samples: Vec::new() }
    }

    pub(super) fn sample(&mut self, at: Duration, nodes: &[Arc<Node>]) {
        let all: Option<Vec<f64>> =
            nodes.iter().map(|node| node.resident_kib().map(|kib| kib as f64 / 1024.0)).collect();
        // One that cannot be read would look like memory given back.
        if let Some(all) = all {
            self.samples.push((at.as_secs_f64(), all));
        }
    }

    /// A percentile of a server's samples within a part of the time.
    fn quantile(&self, server: usize, quantile: f64, from: f64, to: f64) -> f64 {
        let last = self.samples.last().map_or(0.0, |(at, _)| *at);
        let within = |at: f64| at >= from * last && at <= to * last;
        let mut values: Vec<f64> =
            self.samples.iter().filter(|(at, _)| within(*at)).map(|(_, all)| all[server]).collect();
        values.sort_by(f64::total_cmp);
        values.get((values.len() as f64 * quantile) as usize).copied().unwrap_or(0.0)
    }

    /// Medians over a fifth of the time each: long values come and go, and a flush takes all. Of a
    /// server whose memory is full, what it comes back to, the ninth of ten: its long values are an
    /// eighth of its memory each, and how long it takes to fill the gap that one leaves differs
    /// from minute to minute (medians: 57.6 and 61.5 MiB of 64 in one run, 61.8 and 61.8 in
    /// another; the ninth of ten: 63.3 and 63.4).
    fn middle_and_end(&self, server: usize) -> (f64, f64) {
        let quantile = if self.servers[server].is_full { 0.9 } else { 0.5 };
        (self.quantile(server, quantile, 0.4, 0.6), self.quantile(server, quantile, 0.8, 1.0))
    }

    fn most(&self, server: usize) -> f64 {
        self.samples.iter().map(|(_, all)| all[server]).fold(0.0, f64::max)
    }

    /// The first server that has had more memory than it may.
    pub(super) fn excess(&self) -> Option<String> {
        let exceeds = |&server: &usize| self.most(server) > self.servers[server].limit_mib + EXCESS_MIB;
        let server = (0..self.servers.len()).find(exceeds)?;
        let (Watched { name, limit_mib, .. }, most) = (&self.servers[server], self.most(server));
        Some(format!("RssAnon of {name:?} has been {most:.1} MiB, by a limit of {limit_mib} MiB"))
    }

    /// By what part of the middle each differs at the end.
    pub(super) fn drifts(&self) -> Vec<(&'static str, f64)> {
        let drift = |server| {
            let (middle, end) = self.middle_and_end(server);
            (end - middle) / middle.max(1.0)
        };
        self.servers.iter().enumerate().map(|(server, watched)| (watched.name, drift(server))).collect()
    }

    pub(super) fn table(&self) -> String {
        let mut text = String::from("RssAnon, MiB   middle      end     most   differs by\n");
        for (server, (name, drift)) in self.drifts().into_iter().enumerate() {
            let (middle, end) = self.middle_and_end(server);
            let most = self.most(server);
            // A String takes whatever is written.
            let _ = writeln!(text, "{name:10} {middle:8.1} {end:8.1} {most:8.1}   {:+8.1} %", drift * 100.0);
        }
        text
    }

    /// A picture.
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
        for (server, Watched { name, .. }) in self.servers.iter().enumerate() {
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

    fn watched(name: &'static str, is_full: bool) -> Watched {
        Watched { name, is_full, limit_mib: 146.5 }
    }

    #[test]
    fn a_full_server_is_compared_by_what_it_comes_back_to_and_held_to_its_limit() {
        let mut gauge = Gauge { servers: vec![watched("full", true)], samples: Vec::new() };
        for second in 0..=100 {
            // More and more often below, and as high as ever in between.
            let gap = if second % 5 < second / 25 { 10.0 } else { 0.0 };
            gauge.samples.push((f64::from(second), vec![64.0 - gap]));
        }
        assert_eq!(gauge.drifts(), [("full", 0.0)]);
        assert_eq!(gauge.excess(), None);
        gauge.samples.push((101.0, vec![150.6]));
        assert_eq!(
            gauge.excess().unwrap(),
            "RssAnon of \"full\" has been 150.6 MiB, by a limit of 146.5 MiB"
        );
    }

    #[test]
    fn the_end_is_compared_with_the_middle() {
        let servers = vec![watched("steady", false), watched("leaks", false)];
        let mut gauge = Gauge { servers, samples: Vec::new() };
        for second in 0..=100 {
            gauge.samples.push((f64::from(second), vec![50.0, 50.0 + f64::from(second)]));
        }
        let drifts = gauge.drifts();
        assert_eq!(drifts[0], ("steady", 0.0));
        assert_eq!(drifts[1], ("leaks", 0.4));
        assert!(
            gauge.table().contains("leaks         100.0    140.0    150.0      +40.0 %"),
            "{}",
            gauge.table()
        );
        assert_eq!(gauge.excess(), None);
        assert_eq!(gauge.svg().matches("<polyline").count(), 2);
    }
}
