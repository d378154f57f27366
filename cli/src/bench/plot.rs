//! Pictures of a run: latency by percentile, throughput over time. Plain SVG, in an HTML page if the name ends so.

use super::report::Round;
use std::error::Error;
use std::fmt::Write;
use std::path::Path;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 80.0;
const BOTTOM: f64 = 50.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 20.0;
/// Legible on white and on dark grounds, and told apart by the colour-blind.
const COLOURS: [&str; 2] = ["#0072b2", "#d55e00"];

struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

struct Axis {
    title: &'static str,
    logarithmic: bool,
    /// Value and label of each tick.
    ticks: Vec<(f64, String)>,
}

/// Draws the last round of each server.
pub(crate) fn write(path: &Path, names: &[String], rounds: &[Vec<Round>]) -> Result<(), Box<dyn Error>> {
    let last: Vec<(&String, &Round)> =
        names.iter().zip(rounds).filter_map(|(name, rounds)| Some((name, rounds.last()?))).collect();
    let latency = latency_chart(&last);
    let throughput = throughput_chart(&last);
    let is_svg = path.extension().is_some_and(|extension| extension == "svg");
    let text = if is_svg {
        let whole = 2.0 * HEIGHT;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {whole}\" font-family=\"sans-serif\">\n\
             {latency}<g transform=\"translate(0 {HEIGHT})\">\n{throughput}</g>\n</svg>\n"
        )
    } else {
        let chart = |chart: &str| {
            format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\">\n{chart}</svg>\n")
        };
        format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>todana bench</title>\n\
             <style>body{{max-width:60rem;margin:2rem auto;font-family:sans-serif}}svg{{width:100%}}</style></head>\n\
             <body><h1>todana bench</h1>\n{}{}</body></html>\n",
            chart(&latency),
            chart(&throughput)
        )
    };
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(())
}

/// Latency against 1 / (1 - percentile), both logarithmic, so that the tail has room.
fn latency_chart(rounds: &[(&String, &Round)]) -> String {
    let curves: Vec<Curve> = rounds
        .iter()
        .map(|(name, round)| {
            let steps = (0..=50).map(|step| 10f64.powf(f64::from(step) / 10.0));
            let points = steps
                .filter(|rarity| *rarity <= round.requests().max(1) as f64)
                .map(|rarity| (rarity, round.latency_us(100.0 * (1.0 - 1.0 / rarity)).max(0.1)))
                .collect();
            Curve { name: (*name).clone(), points }
        })
        .collect();
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
    let high = curves.iter().flat_map(|curve| &curve.points).fold(1.0f64, |high, point| high.max(point.1));
    let low = curves.iter().flat_map(|curve| &curve.points).fold(high, |low, point| low.min(point.1));
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let y = Axis {
        title: "latency, us",
        logarithmic: true,
        ticks: powers.map(|power| (10f64.powi(power), format!("{}", 10f64.powi(power)))).collect(),
    };
    chart("Latency of a request by percentile", &curves, &x, &y)
}

fn throughput_chart(rounds: &[(&String, &Round)]) -> String {
    let curves: Vec<Curve> = rounds
        .iter()
        .map(|(name, round)| {
            let starts = std::iter::once(&(0.0, 0)).chain(&round.samples);
            let points = starts
                .zip(&round.samples)
                .map(|(before, now)| {
                    (now.0, (now.1 - before.1) as f64 / (now.0 - before.0).max(1e-6) / 1000.0)
                })
                .collect();
            Curve { name: (*name).clone(), points }
        })
        .collect();
    let most = |of: fn(&(f64, f64)) -> f64| {
        curves.iter().flat_map(|curve| &curve.points).map(of).fold(0.0f64, f64::max).max(1e-3)
    };
    let (right, high) = (most(|point| point.0), most(|point| point.1));
    let axis = |title, most| Axis { title, logarithmic: false, ticks: even_ticks(most) };
    chart("Throughput over time", &curves, &axis("seconds", right), &axis("thousand requests / s", high))
}

/// Some five round numbers from 0 to at least `most`.
fn even_ticks(most: f64) -> Vec<(f64, String)> {
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

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn chart(title: &str, curves: &[Curve], x: &Axis, y: &Axis) -> String {
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
    put(format!("<text x=\"{LEFT}\" y=\"20\" font-size=\"16\" fill=\"#888\">{title}</text>"));
    for (value, label) in &x.ticks {
        let at = px(*value);
        put(format!(
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"#888\" stroke-opacity=\".3\"/>",
            HEIGHT - BOTTOM
        ));
        put(format!(
            "<text x=\"{at:.1}\" y=\"{:.1}\" font-size=\"12\" fill=\"#888\" text-anchor=\"middle\">{label}</text>",
            HEIGHT - BOTTOM + 16.0
        ));
    }
    for (value, label) in &y.ticks {
        let at = py(*value);
        put(format!(
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#888\" stroke-opacity=\".3\"/>",
            WIDTH - RIGHT
        ));
        put(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"12\" fill=\"#888\" text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            at + 4.0
        ));
    }
    put(format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"13\" fill=\"#888\" text-anchor=\"middle\">{}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        x.title
    ));
    put(format!(
        "<text transform=\"translate(18 {:.1}) rotate(-90)\" font-size=\"13\" fill=\"#888\" text-anchor=\"middle\">{}</text>",
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

    #[test]
    fn a_page_holds_both_charts_and_each_point_of_the_throughput() {
        let mut round = Round::new(Duration::from_secs(1), vec![(0.5, 1000), (1.0, 3000)]);
        (0..3000).for_each(|n| round.latencies.record(1000 + n).unwrap());
        round.gets = 3000;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plot.html");
        write(&path, &["a<b".into()], &[vec![round]]).unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        assert_eq!(page.matches("<polyline").count(), 2);
        assert!(page.contains("a&lt;b") && !page.contains("a<b"));
        // 2 thousand in the first half second, 4 in the second, on axes that end at 1 s and 4 thousand.
        assert!(page.contains("points=\"410.0,175.0 740.0,40.0\""), "{page}");
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    }

    #[test]
    fn ticks_are_round_and_reach_beyond_the_most() {
        let labels = |most| even_ticks(most).into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(4.0), ["0", "1", "2", "3", "4"]);
        assert_eq!(labels(0.9), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(123.0), ["0", "50", "100", "150"]);
    }
}
