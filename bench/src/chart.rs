//! Draws charts as SVG: curves between two axes, and bars. Each chart is a fragment that goes into
//! an SVG file or into an HTML page.
//!
//! The colour of text follows the reader's light or dark theme, so the text always contrasts with
//! the background.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 80.0;
const BOTTOM: f64 = 50.0;
/// The height in pixels of the space above the frame, for the title and the legend.
const TOP: f64 = 64.0;
const RIGHT: f64 = 40.0;
/// The height in pixels of the title above all charts, and of each line below the title.
const HEADING: f64 = 30.0;
const HEADING_LINE: f64 = 18.0;
/// Colours that contrast with light and dark backgrounds, and that colour-blind readers can
/// distinguish.
const COLOURS: [&str; 4] = ["#2288cc", "#d55e00", "#009e73", "#cc79a7"];
/// The colour of the length that several bars have in common.
const BASE_COLOUR: &str = "#888888";
/// The colours of background and text, with a contrast of at least 12:1.
const STYLE: &str = ".ground{fill:#fff}text{fill:#222}.line{stroke:#888}\
    @media(prefers-color-scheme:dark){.ground{fill:#121212}text{fill:#e4e4e4}}";
/// The maximum number of points of a curve whose points are marked.
const MARKED_POINTS_MAX: usize = 20;
/// The approximate width of a letter in the legend, which determines the distance between the
/// entries.
const LETTER: f64 = 7.2;

/// The file of a plot: an HTML page or an SVG picture, depending on its extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlotFile {
    path: PathBuf,
    is_page: bool,
}

impl FromStr for PlotFile {
    type Err = String;

    fn from_str(text: &str) -> Result<PlotFile, String> {
        let path = PathBuf::from(text);
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("html" | "htm") => Ok(PlotFile { path, is_page: true }),
            Some("svg") => Ok(PlotFile { path, is_page: false }),
            _ => Err("a plot is an .html page or an .svg picture; name the file so".into()),
        }
    }
}

impl PlotFile {
    /// Writes the charts under `heading`. An HTML page also shows `texts` below the charts. If the
    /// file cannot be written, the error names the file and the reason.
    pub(crate) fn write(
        &self,
        heading: &PlotHeading,
        charts: &[String],
        texts: &[&str],
    ) -> Result<(), String> {
        let svg = stack(heading, charts);
        let text = if self.is_page { page(&heading.title, &svg, texts) } else { svg };
        std::fs::write(&self.path, text).map_err(|error| format!("{}: {error}", self.path().display()))
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// The heading above all charts of a plot.
#[derive(Clone, Debug)]
pub(crate) struct PlotHeading {
    pub(crate) title: String,
    /// The conditions of the measurement, one line each.
    pub(crate) lines: Vec<String>,
}

impl PlotHeading {
    fn height(&self) -> f64 {
        HEADING + HEADING_LINE * self.lines.len() as f64
    }
}

/// A named curve of one or more pieces, with a gap between two pieces.
pub(crate) struct ChartCurve {
    pub(crate) name: String,
    pub(crate) pieces: Vec<Vec<(f64, f64)>>,
}

impl ChartCurve {
    /// Returns a curve of one piece.
    pub(crate) fn whole(name: &str, points: Vec<(f64, f64)>) -> ChartCurve {
        ChartCurve { name: name.into(), pieces: vec![points] }
    }

    pub(crate) fn points(&self) -> impl Iterator<Item = &(f64, f64)> {
        self.pieces.iter().flatten()
    }
}

/// An axis, from its first tick to its last.
pub(crate) struct ChartAxis {
    pub(crate) title: &'static str,
    pub(crate) logarithmic: bool,
    /// The value and the label of each tick.
    pub(crate) ticks: Vec<(f64, String)>,
}

impl ChartAxis {
    /// Returns the position of `value` between the pixels `from` and `to`.
    fn place(&self, value: f64, from: f64, to: f64) -> f64 {
        let scale = |value: f64| if self.logarithmic { value.log10() } else { value };
        let (low, high) = (scale(self.ticks[0].0), scale(self.ticks[self.ticks.len() - 1].0));
        from + (scale(value) - low) / (high - low).max(f64::MIN_POSITIVE) * (to - from)
    }
}

/// A bar of two parts on one scale, such as the bytes of a record and the overhead of the server.
pub(crate) struct ChartBar {
    pub(crate) name: String,
    pub(crate) parts: [f64; 2],
    /// The text at the end of the bar.
    pub(crate) label: String,
}

/// Returns an SVG file with the charts one below the other.
fn stack(heading: &PlotHeading, charts: &[String]) -> String {
    let top = heading.height();
    let height = top + charts.len() as f64 * HEIGHT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\">\n\
         <style>{STYLE}</style>\n<rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\"/>\n"
    );
    put(&mut svg, text(LEFT, 22.0, 18, "start", &heading.title));
    for (index, line) in heading.lines.iter().enumerate() {
        put(&mut svg, text(LEFT, HEADING + 12.0 + HEADING_LINE * index as f64, 13, "start", line));
    }
    for (index, chart) in charts.iter().enumerate() {
        let at = top + index as f64 * HEIGHT;
        put(&mut svg, format!("<g transform=\"translate(0 {at})\">\n{chart}</g>"));
    }
    svg + "</svg>\n"
}

/// Returns an HTML page with a picture and texts.
fn page(title: &str, svg: &str, texts: &[&str]) -> String {
    let title = escape(title);
    let texts: String = texts.iter().map(|text| format!("<pre>{}</pre>\n", escape(text))).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><title>{title}</title>\n\
         <style>:root{{color-scheme:light dark}}body{{max-width:60rem;margin:2rem auto;padding:0 1rem;\
         font-family:sans-serif}}svg{{width:100%}}pre{{overflow-x:auto}}</style></head>\n\
         <body>\n{svg}{texts}</body></html>\n"
    )
}

/// Returns the numbers 1, 2 and 5 times a power of ten, from below `low` to above `high`. If there
/// are too many of them, returns only the powers of ten.
pub(crate) fn round_ticks(low: f64, high: f64) -> Vec<f64> {
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let factors: &[f64] = if powers.clone().count() > 4 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let ticks: Vec<f64> =
        powers.flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power))).collect();
    let first = ticks.iter().rposition(|tick| *tick <= low).unwrap_or(0);
    let last = ticks.iter().position(|tick| *tick >= high && *tick > ticks[first]).unwrap_or(ticks.len() - 1);
    ticks[first..=last].to_vec()
}

/// Returns each tick with its number as its label.
pub(crate) fn numbered(ticks: Vec<f64>) -> Vec<(f64, String)> {
    ticks.into_iter().map(|tick| (tick, format!("{}", (tick * 1000.0).round() / 1000.0))).collect()
}

/// Returns about five round numbers from 0 to at least `most`, with their labels.
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

/// Escapes text for HTML and SVG.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn put(svg: &mut String, line: String) {
    svg.push_str(&line);
    svg.push('\n');
}

fn text(x: f64, y: f64, size: u32, anchor: &str, text: &str) -> String {
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\">{}</text>",
        escape(text)
    )
}

fn swatch(x: f64, y: f64, colour: &str, opacity: f64) -> String {
    format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\" fill-opacity=\"{opacity}\"/>"
    )
}

/// Writes a legend in one line below the title. An entry has a colour, an opacity and a name.
fn legend(svg: &mut String, entries: &[(&str, f64, &str)]) {
    let mut x = LEFT;
    for (colour, opacity, name) in entries {
        put(svg, swatch(x, 36.0, colour, *opacity));
        put(svg, text(x + 18.0, 47.0, 13, "start", name));
        x += 40.0 + LETTER * name.chars().count() as f64;
    }
}

/// Returns a chart of curves.
pub(crate) fn curves(title: &str, curves: &[ChartCurve], x: &ChartAxis, y: &ChartAxis) -> String {
    let px = |value| x.place(value, LEFT, WIDTH - RIGHT);
    let py = |value| y.place(value, HEIGHT - BOTTOM, TOP);
    let mut svg = String::new();
    put(&mut svg, text(LEFT, 22.0, 16, "start", title));
    let entries: Vec<(&str, f64, &str)> = curves
        .iter()
        .enumerate()
        .map(|(index, curve)| (COLOURS[index % COLOURS.len()], 1.0, curve.name.as_str()))
        .collect();
    legend(&mut svg, &entries);
    frame(&mut svg, x, y);
    for (curve, (colour, ..)) in curves.iter().zip(&entries) {
        for piece in &curve.pieces {
            let points: Vec<String> =
                piece.iter().map(|(a, b)| format!("{:.1},{:.1}", px(*a), py(*b))).collect();
            put(
                &mut svg,
                format!(
                    "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                    points.join(" ")
                ),
            );
        }
        if curve.points().count() <= MARKED_POINTS_MAX {
            for (a, b) in curve.points() {
                let (a, b) = (px(*a), py(*b));
                put(&mut svg, format!("<circle cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"3.5\" fill=\"{colour}\"/>"));
            }
        }
    }
    svg
}

/// Writes the lines at the ticks, their labels and the titles of both axes.
fn frame(svg: &mut String, x: &ChartAxis, y: &ChartAxis) {
    let bottom = HEIGHT - BOTTOM;
    for (value, label) in &x.ticks {
        let at = x.place(*value, LEFT, WIDTH - RIGHT);
        put(svg, line(at, at, TOP, bottom));
        put(svg, text(at, bottom + 16.0, 12, "middle", label));
    }
    for (value, label) in &y.ticks {
        let at = y.place(*value, bottom, TOP);
        put(svg, line(LEFT, WIDTH - RIGHT, at, at));
        put(svg, text(LEFT - 6.0, at + 4.0, 12, "end", label));
    }
    put(svg, text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0, 13, "middle", x.title));
    // Writing to a String cannot fail.
    let _ = writeln!(
        svg,
        "<text transform=\"translate(18 {:.1}) rotate(-90)\" font-size=\"13\" text-anchor=\"middle\">{}</text>",
        (TOP + bottom) / 2.0,
        escape(y.title)
    );
}

fn line(x1: f64, x2: f64, y1: f64, y2: f64) -> String {
    format!(
        "<line class=\"line\" x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\" stroke-opacity=\".3\"/>"
    )
}

/// Returns a chart of horizontal bars on a common scale from 0. Each bar has two parts, which
/// `parts` names.
pub(crate) fn bars(title: &str, bars: &[ChartBar], parts: [&str; 2], x: &ChartAxis) -> String {
    const NAME: f64 = 20.0;
    const HEIGHT_MAX: f64 = 44.0;
    let mut svg = String::new();
    put(&mut svg, text(LEFT, 22.0, 16, "start", title));
    legend(&mut svg, &[(COLOURS[0], 1.0, parts[0]), (COLOURS[0], 0.4, parts[1])]);
    let bottom = HEIGHT - BOTTOM;
    for (value, label) in &x.ticks {
        let at = x.place(*value, LEFT, WIDTH - RIGHT);
        put(&mut svg, line(at, at, TOP, bottom));
        put(&mut svg, text(at, bottom + 16.0, 12, "middle", label));
    }
    put(&mut svg, text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 8.0, 13, "middle", x.title));
    let row = (bottom - TOP) / bars.len().max(1) as f64;
    let thickness = (row - NAME - 12.0).min(HEIGHT_MAX);
    for (index, bar) in bars.iter().enumerate() {
        let y = TOP + row * index as f64;
        put(&mut svg, text(LEFT + 6.0, y + 16.0, 13, "start", &format!("{}: {}", bar.name, bar.label)));
        let mut from = 0.0;
        for (part, opacity) in bar.parts.iter().zip([1.0, 0.4]) {
            let (left, right) =
                (x.place(from, LEFT, WIDTH - RIGHT), x.place(from + part.max(0.0), LEFT, WIDTH - RIGHT));
            put(
                &mut svg,
                format!(
                    "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{thickness:.1}\" \
                     fill=\"{}\" fill-opacity=\"{opacity}\"/>",
                    y + NAME + 4.0,
                    right - left,
                    COLOURS[0]
                ),
            );
            from += part.max(0.0);
        }
    }
    svg
}

/// Bars that belong together, one of each series.
pub(crate) struct BarGroup {
    pub(crate) name: String,
    /// The length that all bars have in common. A dark line marks it on each bar.
    pub(crate) base: f64,
    pub(crate) bars: Vec<f64>,
}

/// Returns a chart of groups of horizontal bars on a common scale from 0, with a colour for each
/// series. `base` names the marked length.
pub(crate) fn grouped_bars(
    title: &str,
    series: &[&str],
    base: &str,
    groups: &[BarGroup],
    x: &ChartAxis,
) -> String {
    const NAME: f64 = 18.0;
    const GAP: f64 = 6.0;
    const THICKNESS_MAX: f64 = 26.0;
    let mut svg = String::new();
    put(&mut svg, text(LEFT, 22.0, 16, "start", title));
    let mut entries: Vec<(&str, f64, &str)> =
        series.iter().enumerate().map(|(index, name)| (COLOURS[index % COLOURS.len()], 1.0, *name)).collect();
    entries.push((BASE_COLOUR, 1.0, base));
    legend(&mut svg, &entries);
    // The value at the end of the longest bar needs space on the right.
    let (left, right) = (LEFT, WIDTH - RIGHT - 40.0);
    let bottom = HEIGHT - BOTTOM;
    for (value, label) in &x.ticks {
        let at = x.place(*value, left, right);
        put(&mut svg, line(at, at, TOP, bottom));
        put(&mut svg, text(at, bottom + 16.0, 12, "middle", label));
    }
    put(&mut svg, text((left + right) / 2.0, HEIGHT - 8.0, 13, "middle", x.title));
    let row = (bottom - TOP) / groups.len().max(1) as f64;
    let thickness = ((row - NAME - GAP) / series.len().max(1) as f64).min(THICKNESS_MAX);
    for (index, group) in groups.iter().enumerate() {
        let top = TOP + row * index as f64;
        put(&mut svg, text(left + 6.0, top + 14.0, 13, "start", &group.name));
        for (series, value) in group.bars.iter().enumerate() {
            let y = top + NAME + thickness * series as f64;
            let (width, mark) = (x.place(*value, left, right) - left, x.place(group.base, left, right));
            let colour = COLOURS[series % COLOURS.len()];
            put(
                &mut svg,
                format!(
                    "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
                    thickness - 1.0
                ),
            );
            let label = if *value < 99.95 { format!("{value:.1}") } else { format!("{value:.0}") };
            put(
                &mut svg,
                text(left + width.max(mark - left) + 6.0, y + thickness - 4.0, 12, "start", &label),
            );
            put(
                &mut svg,
                format!(
                    "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"2\" height=\"{:.1}\" fill=\"{BASE_COLOUR}\"/>",
                    mark - 1.0,
                    thickness - 1.0
                ),
            );
        }
    }
    svg
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns true if every opened element is closed, in the right order.
    pub(crate) fn is_well_formed(text: &str) -> bool {
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
    fn plot_needs_an_html_or_svg_extension() {
        let is_page = |text: &str| text.parse::<PlotFile>().map(|file| file.is_page);
        assert_eq!(is_page("run.html"), Ok(true));
        assert_eq!(is_page("a/b.SVG"), Ok(false));
        for name in ["run.png", "run", ".svg", "run.svg.gz", ""] {
            let refusal = is_page(name).unwrap_err();
            assert_eq!(refusal, "a plot is an .html page or an .svg picture; name the file so", "{name}");
        }
    }

    #[test]
    fn gap_separates_the_pieces_of_a_curve() {
        let curve =
            ChartCurve { name: "c".into(), pieces: vec![vec![(0.0, 1.0), (1.0, 1.0)], vec![(3.0, 0.0)]] };
        let axis = |most| ChartAxis { title: "t", logarithmic: false, ticks: even_ticks(most) };
        let chart = curves("title", &[curve], &axis(4.0), &axis(1.0));
        let pieces: Vec<&str> = chart
            .split("points=\"")
            .skip(1)
            .map(|piece| piece.split_once('"').expect("a quote ends the points").0)
            .collect();
        assert_eq!(pieces, ["80.0,64.0 240.0,64.0", "560.0,310.0"]);
        assert_eq!(chart.matches("<circle").count(), 3, "so few points are marked");
        assert!(is_well_formed(&chart), "{chart}");
    }

    #[test]
    fn ticks_are_round_and_cover_the_maximum() {
        let labels = |most| even_ticks(most).into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(labels(4.0), ["0", "1", "2", "3", "4"]);
        assert_eq!(labels(0.9), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(labels(123.0), ["0", "50", "100", "150"]);
        let labels = |low, high| {
            numbered(round_ticks(low, high)).into_iter().map(|(_, label)| label).collect::<Vec<_>>()
        };
        assert_eq!(labels(30.0, 180.0), ["20", "50", "100", "200"]);
        assert_eq!(labels(0.5, 2e5), ["0.1", "1", "10", "100", "1000", "10000", "100000", "1000000"]);
        assert_eq!(labels(1.0, 1.0), ["1", "2"]);
    }
}
