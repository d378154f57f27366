//! VmRSS over time.

use super::node::Node;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const MARGIN: f64 = 60.0;
/// Legible on white and on dark grounds, and told apart by the colour-blind.
const COLOURS: [&str; 5] = ["#2288cc", "#d55e00", "#009e73", "#cc79a7", "#999900"];

/// Samples of all servers.
pub(super) struct Gauge {
    names: Vec<&'static str>,
    /// Seconds, and MiB of each server.
    samples: Vec<(f64, Vec<f64>)>,
}

impl Gauge {
    pub(super) fn new(nodes: &[Arc<Node>]) -> Gauge {
        Gauge { names: nodes.iter().map(|node| node.name).collect(), samples: Vec::new() }
    }

    pub(super) fn sample(&mut self, at: Duration, nodes: &[Arc<Node>]) {
        let all: Option<Vec<f64>> =
            nodes.iter().map(|node| node.resident_kib().map(|kib| kib as f64 / 1024.0)).collect();
        // One that cannot be read would look like memory given back.
        if let Some(all) = all {
            self.samples.push((at.as_secs_f64(), all));
        }
    }

    /// The median of a server's samples between two parts of the time.
    fn median(&self, server: usize, from: f64, to: f64) -> f64 {
        let last = self.samples.last().map_or(0.0, |(at, _)| *at);
        let within = |at: f64| at >= from * last && at <= to * last;
        let mut values: Vec<f64> =
            self.samples.iter().filter(|(at, _)| within(*at)).map(|(_, all)| all[server]).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    }

    /// Medians over a fifth of the time each: long values come and go, and a flush takes all.
    fn middle_and_end(&self, server: usize) -> (f64, f64) {
        (self.median(server, 0.4, 0.6), self.median(server, 0.8, 1.0))
    }

    /// By what part of the middle each differs at the end.
    pub(super) fn drifts(&self) -> Vec<(&'static str, f64)> {
        let drift = |server| {
            let (middle, end) = self.middle_and_end(server);
            (end - middle) / middle.max(1.0)
        };
        self.names.iter().enumerate().map(|(server, name)| (*name, drift(server))).collect()
    }

    pub(super) fn table(&self) -> String {
        let mut text = String::from("VmRSS, MiB   middle      end     most   differs by\n");
        for (server, (name, drift)) in self.drifts().into_iter().enumerate() {
            let (middle, end) = self.middle_and_end(server);
            let most = self.samples.iter().map(|(_, all)| all[server]).fold(0.0, f64::max);
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
             font-size=\"12\" fill=\"#888\">\n<text x=\"{MARGIN}\" y=\"20\" font-size=\"16\">VmRSS of the servers, \
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
        for (server, name) in self.names.iter().enumerate() {
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

    #[test]
    fn the_end_is_compared_with_the_middle() {
        let mut gauge = Gauge { names: vec!["steady", "leaks"], samples: Vec::new() };
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
        assert_eq!(gauge.svg().matches("<polyline").count(), 2);
    }
}
