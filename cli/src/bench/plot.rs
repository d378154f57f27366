//! Pictures of a run: latency by percentile, throughput over time. Plain SVG, for itself or in an HTML page.

use super::driver;
use super::report::{Report, Round};
use std::fmt::Write;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 80.0;
const BOTTOM: f64 = 50.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 20.0;
/// Legible on white and on dark grounds, and told apart by the colour-blind.
const COLOURS: [&str; 4] = ["#2288cc", "#d55e00", "#009e73", "#cc79a7"];
/// Of all that is not a curve.
const GREY: &str = "#888";

/// A curve and its name.
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// An axis, from its first tick to its last.
pub(crate) struct Axis {
    pub(crate) title: &'static str,
    pub(crate) logarithmic: bool,
    /// Value and label of each tick.
    pub(crate) ticks: Vec<(f64, String)>,
}

/// Both charts, one below the other.
pub(crate) fn svg(report: &Report) -> String {
    stack(&[latency_chart(report), throughput_chart(report)])
}

/// A page of its own with both charts and the table.
pub(crate) fn page(report: &Report) -> String {
    page_of("todana bench", &svg(report), &[&report.table(), &report.work.to_string()])
}

/// Charts one below the other, as an SVG file.
pub(crate) fn stack(charts: &[String]) -> String {
    let whole = charts.len() as f64 * HEIGHT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {whole}\" font-family=\"sans-serif\">\n"
    );
    for (index, chart) in charts.iter().enumerate() {
        // A String takes whatever is written.
        let _ = write!(svg, "<g transform=\"translate(0 {})\">\n{chart}</g>\n", index as f64 * HEIGHT);
    }
    svg + "</svg>\n"
}

/// A page of its own with a picture and texts. It takes its colours from the reader's light or dark theme.
pub(crate) fn page_of(title: &str, svg: &str, texts: &[&str]) -> String {
    let texts: String = texts.iter().map(|text| format!("<pre>{}</pre>\n", escape(text))).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>{title}</title>\n\
         <style>:root{{color-scheme:light dark}}body{{max-width:60rem;margin:2rem auto;padding:0 1rem;\
         font-family:sans-serif}}svg{{width:100%}}pre{{overflow-x:auto}}</style></head>\n\
         <body><h1>{title}</h1>\n{svg}{texts}</body></html>\n"
    )
}

/// Latency against 1 / (1 - percentile), both logarithmic, so that the tail has room. All rounds together.
fn latency_chart(report: &Report) -> String {
    let curve = |(name, rounds): &(String, Vec<Round>)| {
        let mut latencies = driver::histogram();
        for round in rounds {
            // They have the same bounds.
            let _ = latencies.add(&round.latencies);
        }
        let most = (latencies.len().max(1) as f64).log10().min(5.0);
        let steps = (0..=(most * 10.0) as u32).map(|step| 10f64.powf(f64::from(step) / 10.0));
        let latency_us =
            |rarity: f64| latencies.value_at_percentile(100.0 * (1.0 - 1.0 / rarity)) as f64 / 1000.0;
        let points = steps.map(|rarity| (rarity, latency_us(rarity).max(0.1))).collect();
        Curve { name: name.clone(), points }
    };
    let curves: Vec<Curve> = report.servers.iter().map(curve).collect();
    let x = Axis {
        title: "percentile",
        logarithmic: true,
        ticks: [
            (1.0, "0"),
            (2.0, "50"),
            (10.0, "90"),
            (100.0, "99"),
            (1e3, "99.9"),
            (1e4, "99.99"),
            (1e5, "99.999"),
        ]
        .map(|(value, label)| (value, label.to_string()))
        .into(),
    };
    let latencies = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1);
    let high = latencies.clone().fold(1.0, f64::max);
    let low = latencies.fold(high, f64::min);
    let y = Axis { title: "latency, us", logarithmic: true, ticks: round_ticks(low, high) };
    chart("Latency of a request by percentile", &curves, &x, &y)
}

/// Requests a second between the samples, round after round: what a server did while it was its turn.
fn throughput_chart(report: &Report) -> String {
    let curve = |(name, rounds): &(String, Vec<Round>)| {
        let (mut points, mut start) = (Vec::new(), 0.0);
        for round in rounds {
            let before = std::iter::once(&(0.0, 0)).chain(&round.samples);
            for ((from, less), (to, more)) in before.zip(&round.samples) {
                // The last piece of a round may be too short to say anything.
                if to - from > 0.01 || *from == 0.0 {
                    points.push((start + to, (more - less) as f64 / (to - from).max(1e-6) / 1000.0));
                }
            }
            start += round.elapsed.as_secs_f64();
        }
        Curve { name: name.clone(), points }
    };
    let curves: Vec<Curve> = report.servers.iter().map(curve).collect();
    let most = |of: fn(&(f64, f64)) -> f64| {
        curves.iter().flat_map(|curve| &curve.points).map(of).fold(0.0f64, f64::max).max(1e-3)
    };
    let (right, high) = (most(|point| point.0), most(|point| point.1));
    let axis = |title, most| Axis { title, logarithmic: false, ticks: even_ticks(most) };
    chart("Throughput over time", &curves, &axis("seconds", right), &axis("thousand requests / s", high))
}

/// The numbers 1, 2 and 5 times a power of ten from below `low` to above `high`; of many powers only themselves.
pub(crate) fn round_ticks(low: f64, high: f64) -> Vec<(f64, String)> {
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let factors: &[f64] = if powers.clone().count() > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let ticks: Vec<f64> =
        powers.flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power))).collect();
    let first = ticks.iter().rposition(|tick| *tick <= low).unwrap_or(0);
    let last = ticks.iter().position(|tick| *tick >= high && *tick > ticks[first]).unwrap_or(ticks.len() - 1);
    let label = |tick: &f64| format!("{}", (tick * 1000.0).round() / 1000.0);
    ticks[first..=last].iter().map(|tick| (*tick, label(tick))).collect()
}

/// Some five round numbers from 0 to at least `most`.
pub(crate) fn even_ticks(most: f64) -> Vec<(f64, String)> {
    let raw = most / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| *step >= raw)
        .unwrap_or(raw);
    let decimals = (-step.log10().floor()).max(0.0) as usize;
    let count = (most / step).ceil() as i32;
    (0..=count).map(|n| (f64::from(n) * step, format!("{:.decimals$}", f64::from(n) * step))).collect()
}

/// Text that may stand in HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A chart without an `<svg>` of its own.
pub(crate) fn chart(title: &str, curves: &[Curve], x: &Axis, y: &Axis) -> String {
    let place = |axis: &Axis, value: f64, from: f64, to: f64| {
        let scale = |value: f64| if axis.logarithmic { value.log10() } else { value };
        let (low, high) = (scale(axis.ticks[0].0), scale(axis.ticks[axis.ticks.len() - 1].0));
        from + (scale(value) - low) / (high - low).max(f64::MIN_POSITIVE) * (to - from)
    };
    let px = |value| place(x, value, LEFT, WIDTH - RIGHT);
    let py = |value| place(y, value, HEIGHT - BOTTOM, TOP);
    let mut svg = String::new();
    // A String takes whatever is written.
    let mut put = |text: String| {
        let _ = writeln!(svg, "{text}");
    };
    put(format!("<text x=\"{LEFT}\" y=\"20\" font-size=\"16\" fill=\"{GREY}\">{}</text>", escape(title)));
    for (value, label) in &x.ticks {
        let at = px(*value);
        put(format!(
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"{GREY}\" stroke-opacity=\".3\"/>",
            HEIGHT - BOTTOM
        ));
        put(format!(
            "<text x=\"{at:.1}\" y=\"{:.1}\" font-size=\"12\" fill=\"{GREY}\" text-anchor=\"middle\">{label}</text>",
            HEIGHT - BOTTOM + 16.0
        ));
    }
    for (value, label) in &y.ticks {
        let at = py(*value);
        put(format!(
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{GREY}\" stroke-opacity=\".3\"/>",
            WIDTH - RIGHT
        ));
        put(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"12\" fill=\"{GREY}\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        ));
    }
    put(format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\" fill=\"{GREY}\" text-anchor=\"middle\">{}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        x.title
    ));
    put(format!(
        "<text transform=\"translate(18 {:.1}) rotate(-90)\" font-size=\"13\" fill=\"{GREY}\" text-anchor=\"middle\">{}</text>",
        HEIGHT / 2.0,
        y.title
    ));
    for (index, curve) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<String> =
            curve.points.iter().map(|(a, b)| format!("{:.1},{:.1}", px(*a), py(*b))).collect();
        put(format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.join(" ")
        ));
        put(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\" fill=\"{colour}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT - 6.0,
            20.0 + 16.0 * index as f64,
            escape(&curve.name)
        ));
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn report(name: &str) -> Report {
        let mut round = Round::new(Duration::from_secs(1), vec![(0.5, 1000), (1.0, 3000)]);
        (0..3000).for_each(|n| round.latencies.record(1000 + n).unwrap());
        round.gets = 3000;
        Report { work: serde_json::json!({}), servers: vec![(name.into(), vec![round])] }
    }

    /// Whether each element is closed where it should be.
    fn is_well_formed(text: &str) -> bool {
        let mut open = Vec::new();
        for piece in text.split('<').skip(1) {
            let Some((tag, _)) = piece.split_once('>') else { return false };
            let name = tag.split([' ', '\n']).next().unwrap_or_default();
            if let Some(name) = name.strip_prefix('/') {
                if open.pop() != Some(name) {
                    return false;
                }
            } else if !tag.ends_with('/') && !tag.starts_with('!') {
                if tag.matches('"').count() % 2 == 1 {
                    return false;
                }
                open.push(name);
            }
        }
        open.is_empty()
    }

    #[test]
    fn a_page_holds_both_charts_and_each_point_of_the_throughput() {
        let report = report("a<b&c");
        for text in [page(&report), svg(&report)] {
            assert!(is_well_formed(&text), "{text}");
            assert_eq!(text.matches("<polyline").count(), 2);
            assert!(text.contains("a&lt;b&amp;c") && !text.contains("a<b"));
            // 2 thousand in the first half second, 4 in the second, on axes that end at 1 s and 4 thousand.
            assert!(text.contains("points=\"410.0,175.0 740.0,40.0\""), "{text}");
        }
        assert!(page(&report).contains("<pre>                  "));
    }

    #[test]
    fn the_latency_curve_ends_with_the_rarest_that_was_seen() {
        let chart = latency_chart(&report("s"));
        let points = chart.split_once("points=\"").unwrap().1.split_once('"').unwrap().0;
        // 3000 requests show one in 10^3.4. From 1 us (the bottom) to almost 4 us of 5 us (the top).
        let points: Vec<&str> = points.split(' ').collect();
        assert_eq!(points.len(), 35);
        assert_eq!(points[0], "80.0,310.0");
        let (x, y) = points[34].split_once(',').unwrap();
        assert_eq!(x, format!("{:.1}", LEFT + 3.4 / 5.0 * (WIDTH - RIGHT - LEFT)));
        let expected = (HEIGHT - BOTTOM) - 4f64.log10() / 5f64.log10() * (HEIGHT - BOTTOM - TOP);
        assert!((y.parse::<f64>().unwrap() - expected).abs() < 1.0, "{y} {expected}");
    }

    #[test]
    fn ticks_are_round_and_reach_beyond_the_most() {
        let labels = |most| even_ticks(most).into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(4.0), ["0", "1", "2", "3", "4"]);
        assert_eq!(labels(0.9), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(123.0), ["0", "50", "100", "150"]);
        let labels =
            |low, high| round_ticks(low, high).into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(30.0, 180.0), ["20", "50", "100", "200"]);
        assert_eq!(labels(0.5, 2e5), ["0.1", "1", "10", "100", "1000", "10000", "100000", "1000000"]);
        assert_eq!(labels(1.0, 1.0), ["1", "2"]);
    }
}
