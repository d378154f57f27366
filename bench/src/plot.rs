//! Draws the plot of a run: latency by percentile, throughput over time, and memory per record if
//! it is known.

use super::chart::{self, ChartAxis, ChartBar, ChartCurve, PlotHeading};
use super::driver;
use super::report::{LoadReport, LoadRound, MeasuredServer};

/// Returns the heading, which describes the load of all servers.
pub(crate) fn heading(report: &LoadReport) -> PlotHeading {
    PlotHeading { title: "todana bench".into(), lines: report.description.clone() }
}

/// Returns the charts. If there is a chart of memory, it comes first.
pub(crate) fn charts(report: &LoadReport) -> Vec<String> {
    let memory = memory_chart(report);
    let has_requests =
        report.servers.iter().flat_map(|server| &server.rounds).any(|round| round.requests() > 0);
    let speed = has_requests.then(|| [latency_chart(report), throughput_chart(report)]);
    memory.into_iter().chain(speed.into_iter().flatten()).collect()
}

/// Returns a bar with the bytes of memory per record for each server whose process is known. The
/// bar is divided into the bytes of key and value, and the overhead.
fn memory_chart(report: &LoadReport) -> Option<String> {
    let bar = |server: &MeasuredServer| {
        let total = server.bytes_per_record()?;
        let payload = report.record_bytes.min(total);
        let label = format!("{total:.1} bytes per record, {payload:.1} of them key and value");
        Some(ChartBar { name: server.name.clone(), parts: [payload, total - payload], label })
    };
    let bars: Vec<ChartBar> = report.servers.iter().filter_map(bar).collect();
    let most = bars.iter().map(|bar| bar.parts.iter().sum()).fold(0.0f64, f64::max);
    let x = ChartAxis {
        title: "bytes of memory per record (anonymous memory of the process / records)",
        logarithmic: false,
        ticks: chart::even_ticks(most.max(1.0)),
    };
    (!bars.is_empty())
        .then(|| chart::bars("Memory per record", &bars, ["key and value", "everything else"], &x))
}

/// Returns a chart of latency against 1 / (1 - percentile) over all rounds. Both axes are
/// logarithmic, so that the tail is as wide as the rest.
fn latency_chart(report: &LoadReport) -> String {
    let curve = |server: &MeasuredServer| {
        let mut latencies = driver::histogram();
        for round in &server.rounds {
            // All histograms have the same bounds, so this cannot fail.
            let _ = latencies.add(&round.latencies);
        }
        let most = (latencies.len().max(1) as f64).log10().min(5.0);
        let steps = (0..=(most * 10.0) as u32).map(|step| 10f64.powf(f64::from(step) / 10.0));
        let latency_us =
            |rarity: f64| latencies.value_at_percentile(100.0 * (1.0 - 1.0 / rarity)) as f64 / 1000.0;
        let points = steps.map(|rarity| (rarity, latency_us(rarity).max(0.1))).collect();
        ChartCurve::whole(&server.name, points)
    };
    let curves: Vec<ChartCurve> = report.servers.iter().map(curve).collect();
    let x = ChartAxis {
        title: "percentile of the requests",
        logarithmic: true,
        ticks: [
            (1.0, "0 %"),
            (2.0, "50 %"),
            (10.0, "90 %"),
            (100.0, "99 %"),
            (1e3, "99.9 %"),
            (1e4, "99.99 %"),
            (1e5, "99.999 %"),
        ]
        .map(|(value, label)| (value, label.to_string()))
        .into(),
    };
    let latencies = || curves.iter().flat_map(ChartCurve::points).map(|point| point.1);
    let high = latencies().fold(1.0, f64::max);
    let low = latencies().fold(high, f64::min);
    let ticks = chart::round_ticks(low, high).into_iter().map(|tick| (tick, latency_label(tick))).collect();
    let y = ChartAxis { title: "latency", logarithmic: true, ticks };
    chart::curves("Latency of a request by percentile", &curves, &x, &y)
}

/// Formats microseconds in a suitable unit.
fn latency_label(us: f64) -> String {
    let (value, unit) = match us {
        1e6.. => (us / 1e6, "s"),
        1e3.. => (us / 1e3, "ms"),
        _ => (us, "us"),
    };
    format!("{} {unit}", (value * 1000.0).round() / 1000.0)
}

/// Returns a chart of requests per second over time. The time is that since the first round, so the
/// curves of servers and rounds lie side by side, with gaps between them.
fn throughput_chart(report: &LoadReport) -> String {
    let curve = |server: &MeasuredServer| ChartCurve {
        name: server.name.clone(),
        pieces: server.rounds.iter().map(throughput).collect(),
    };
    let curves: Vec<ChartCurve> = report.servers.iter().map(curve).collect();
    let most = |of: fn(&(f64, f64)) -> f64| {
        curves.iter().flat_map(ChartCurve::points).map(of).fold(0.0f64, f64::max).max(1e-3)
    };
    let (right, high) = (most(|point| point.0), most(|point| point.1));
    let axis = |title, most| ChartAxis { title, logarithmic: false, ticks: chart::even_ticks(most) };
    let (x, y) = (axis("seconds since the first round began", right), axis("thousand requests / s", high));
    chart::curves("Throughput over time, one server at a time", &curves, &x, &y)
}

/// Returns time and thousands of requests per second between the samples of a round.
fn throughput(round: &LoadRound) -> Vec<(f64, f64)> {
    let before = std::iter::once(&(0.0, 0)).chain(&round.samples);
    let pairs = before.zip(&round.samples);
    // Intervals of 10 ms or less are skipped, because they are too short for a rate. Such intervals
    // occur at the end of a round. The first interval counts in any case.
    let counted = pairs.filter(|((from, _), (to, _))| to - from > 0.01 || *from == 0.0);
    let rate = |((from, less), (to, more)): (&(f64, u64), &(f64, u64))| {
        (round.began.as_secs_f64() + to, (more - less) as f64 / (to - from).max(1e-6) / 1000.0)
    };
    counted.map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::super::chart::PlotFile;
    use super::super::chart::tests::is_well_formed;
    use super::*;
    use std::time::Duration;

    fn round(began: Duration) -> LoadRound {
        let mut round = LoadRound::new(began, Duration::from_secs(1), vec![(0.5, 1000), (1.0, 3000)]);
        (0..3000).for_each(|n| round.latencies.record(1000 + n).unwrap());
        round.gets = 3000;
        round
    }

    fn report(name: &str, rounds: Vec<LoadRound>) -> LoadReport {
        let servers = vec![MeasuredServer { name: name.into(), records: Some(100), rounds }];
        let description = vec!["7 keys".into()];
        LoadReport { work: serde_json::json!({}), description, record_bytes: 16.0, servers }
    }

    fn written(report: &LoadReport, name: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let file: PlotFile = directory.path().join(name).to_str().unwrap().parse().unwrap();
        file.write(&heading(report), &charts(report), &["a <table>"]).unwrap();
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn plot_contains_every_point_of_the_throughput() {
        let report = report("a<b&c", vec![round(Duration::ZERO)]);
        for text in [written(&report, "run.html"), written(&report, "run.svg")] {
            assert!(is_well_formed(&text), "{text}");
            assert_eq!(text.matches("<polyline").count(), 2);
            assert!(text.contains("a&lt;b&amp;c") && !text.contains("a<b"));
            assert!(text.contains(">7 keys</text>"), "the heading says what was measured: {text}");
            // 2,000 requests in the first half second and 4,000 in the second, on axes that end at
            // 1 s and 4,000.
            assert!(text.contains("points=\"400.0,187.0 720.0,64.0\""), "{text}");
        }
        assert!(written(&report, "run.html").contains("<pre>a &lt;table&gt;</pre>"));
        assert!(!written(&report, "run.svg").contains("<pre>"));
    }

    #[test]
    fn rounds_are_plotted_with_a_gap_between_them() {
        let chart =
            throughput_chart(&report("s", vec![round(Duration::ZERO), round(Duration::from_secs(3))]));
        // On an axis of 4 s the second round begins at 3 s, and no line connects it to the first.
        assert!(chart.contains("points=\"160.0,187.0 240.0,64.0\""), "{chart}");
        assert!(chart.contains("points=\"640.0,187.0 720.0,64.0\""), "{chart}");
    }

    #[test]
    fn latency_curve_ends_at_the_maximum() {
        let chart = latency_chart(&report("s", vec![round(Duration::ZERO)]));
        let points = chart.split_once("points=\"").unwrap().1.split_once('"').unwrap().0;
        // 3,000 requests reach 10^3.4 on the x axis. The curve goes from 1 us (the bottom) to
        // almost 4 us of 5 us (the top).
        let points: Vec<&str> = points.split(' ').collect();
        assert_eq!(points.len(), 35);
        assert_eq!(points[0], "80.0,310.0");
        let (x, y) = points[34].split_once(',').unwrap();
        assert_eq!(x, format!("{:.1}", 80.0 + 3.4 / 5.0 * 640.0));
        let expected = 310.0 - 4f64.log10() / 5f64.log10() * 246.0;
        assert!((y.parse::<f64>().unwrap() - expected).abs() < 1.0, "{y} {expected}");
    }

    #[test]
    fn latency_labels_use_a_suitable_unit() {
        let labels: Vec<String> = [0.1, 5.0, 100.0, 1000.0, 20_000.0, 1e6].map(latency_label).into();
        assert_eq!(labels, ["0.1 us", "5 us", "100 us", "1 ms", "20 ms", "1 s"]);
    }

    #[test]
    fn memory_chart_shows_bytes_per_record() {
        let mut measured = round(Duration::ZERO);
        measured.anonymous = Some(5000);
        let text = written(&report("s", vec![measured]), "run.svg");
        assert!(text.contains(">s: 50.0 bytes per record, 16.0 of them key and value</text>"), "{text}");
        // 16 of 50 bytes, then the other 34, on 640 pixels.
        assert!(text.contains("<rect x=\"80.0\" y=\"88.0\" width=\"204.8\""), "{text}");
        assert!(text.contains("<rect x=\"284.8\" y=\"88.0\" width=\"435.2\""), "{text}");
        let without = written(&report("s", vec![round(Duration::ZERO)]), "run.svg");
        assert!(!without.contains("Memory per record"), "without a process nothing is known of its memory");
    }
}
