//! Prints the results of `todana bench trace` as a table, as JSON and as charts.

use super::contest::{EngineResult, MissRatios, REFERENCES};
use crate::chart::{self, ChartAxis, ChartCurve, PlotHeading};
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// The least capacity that the summary includes. Smaller capacities are not meaningful.
const SUMMARY_FROM_PERCENT: f64 = 1.0;
/// The name of the engine in tables and charts.
const ENGINE: &str = "todana";

/// Selects the ratio of objects or that of bytes.
type MissUnit = fn(&MissRatios) -> f64;
const OBJECTS: MissUnit = |missed| missed.objects;
const BYTES: MissUnit = |missed| missed.bytes;

/// The miss ratios of all caches at one capacity.
#[derive(Clone, Debug)]
pub(crate) struct CapacityResult {
    pub(crate) percent: f64,
    /// The capacity in records or in bytes.
    pub(crate) capacity: u64,
    /// The miss ratios of the reference caches, in the order of [`REFERENCES`].
    pub(crate) references: Vec<MissRatios>,
    /// The rounds of the engine, each with another hash seed.
    pub(crate) rounds: Vec<EngineResult>,
}

impl CapacityResult {
    fn mean(&self, of: fn(&EngineResult) -> f64) -> f64 {
        self.rounds.iter().map(of).sum::<f64>() / self.rounds.len().max(1) as f64
    }

    /// Returns the engine's miss ratio.
    fn missed(&self, of: MissUnit) -> f64 {
        self.rounds.iter().map(|round| of(&round.missed)).sum::<f64>() / self.rounds.len().max(1) as f64
    }

    fn held_max(&self) -> u64 {
        self.rounds.iter().map(|round| round.held_max).max().unwrap_or(0)
    }

    /// Returns the engine's miss ratio divided by that of a reference cache.
    fn relative_to(&self, reference: &str, of: MissUnit) -> f64 {
        let index = REFERENCES.iter().position(|name| *name == reference).expect("one of REFERENCES");
        self.missed(of) / of(&self.references[index])
    }
}

/// The results of one trace.
#[derive(Clone, Debug)]
pub(crate) struct TraceResult {
    pub(crate) name: String,
    pub(crate) requests: usize,
    pub(crate) keys: usize,
    /// True if the capacities are in bytes.
    pub(crate) is_sized: bool,
    pub(crate) cells: Vec<CapacityResult>,
}

impl TraceResult {
    /// Returns the rows of the table with these ratios, after its head.
    fn rows(&self, of: MissUnit) -> Vec<String> {
        let names: String = REFERENCES.iter().map(|name| format!("{name:>9}")).collect();
        let (share, capacity) = if self.is_sized { ("bytes, %", "bytes") } else { ("keys, %", "records") };
        let head = format!(
            "{share:>8}{capacity:>11}{names}{ENGINE:>9}{:>9}{:>11}   held mean, max",
            "/ LRU", "/ S3-FIFO"
        );
        let row = |cell: &CapacityResult| {
            let references: String =
                cell.references.iter().map(|missed| format!("{:9.2}", 100.0 * of(missed))).collect();
            format!(
                "{:>8}{:>11}{references}{:9.2}{:9.3}{:11.3}{:>12.1}, {}",
                cell.percent,
                cell.capacity,
                100.0 * cell.missed(of),
                cell.relative_to("LRU", of),
                cell.relative_to("S3-FIFO", of),
                cell.mean(|round| round.held_mean),
                cell.held_max()
            )
        };
        std::iter::once(head).chain(self.cells.iter().map(row)).collect()
    }
}

/// The results of all traces.
#[derive(Debug)]
pub(crate) struct TraceReport {
    /// The parameters on which the results depend, except the traces.
    pub(crate) work: Value,
    pub(crate) traces: Vec<TraceResult>,
}

impl TraceReport {
    /// Returns the engine's miss ratio divided by that of a reference cache, for each capacity in
    /// the summary.
    fn ratios(&self, reference: &str, of: MissUnit) -> Vec<f64> {
        let cells = self.traces.iter().flat_map(|trace| &trace.cells);
        let counting = cells.filter(|cell| cell.percent >= SUMMARY_FROM_PERCENT);
        counting.map(|cell| cell.relative_to(reference, of)).collect()
    }

    /// Returns the mean and the maximum of these ratios, or `None` if there are none.
    fn summary(&self, reference: &str, of: MissUnit) -> Option<(f64, f64)> {
        let ratios = self.ratios(reference, of);
        let greatest = ratios.iter().copied().reduce(f64::max)?;
        Some((ratios.iter().sum::<f64>() / ratios.len() as f64, greatest))
    }

    /// Returns the ratios that are of interest, and their names.
    fn units(&self) -> &'static [(&'static str, MissUnit)] {
        let is_sized = self.traces.iter().any(|trace| trace.is_sized);
        let units = &[("miss ratios", OBJECTS), ("bytes missed", BYTES)];
        if is_sized { units } else { &units[..1] }
    }

    /// Returns tables for each trace, and a summary.
    pub(crate) fn table(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let mut put = |line: String| {
            let _ = writeln!(out, "{}", line.trim_end());
        };
        for trace in &self.traces {
            for &(what, of) in self.units() {
                put(format!("{}: {} requests, {} keys; {what} in %", trace.name, trace.requests, trace.keys));
                trace.rows(of).into_iter().for_each(&mut put);
                put(String::new());
            }
        }
        for &(what, of) in self.units() {
            for reference in REFERENCES {
                if let Some((mean, greatest)) = self.summary(reference, of) {
                    put(format!(
                        "{ENGINE} / {reference}, {what}, capacities of {SUMMARY_FROM_PERCENT} % and more: mean {mean:.3}, greatest {greatest:.3}"
                    ));
                }
            }
        }
        out
    }

    /// Returns all results as JSON.
    pub(crate) fn json(&self) -> Result<String, serde_json::Error> {
        let cell = |cell: &CapacityResult, is_sized: bool| {
            let references: Map<String, Value> = REFERENCES
                .iter()
                .zip(&cell.references)
                .map(|(name, missed)| (name.to_string(), missed.objects.into()))
                .collect();
            let reference_bytes: Map<String, Value> = REFERENCES
                .iter()
                .zip(&cell.references)
                .map(|(name, missed)| (name.to_string(), missed.bytes.into()))
                .collect();
            let round = |round: &EngineResult| {
                json!({
                    "miss_ratio": round.missed.objects,
                    "byte_miss_ratio": round.missed.bytes,
                    "held_mean": round.held_mean,
                    "held_max": round.held_max,
                    "evictions": round.evictions,
                })
            };
            json!({
                "percent": cell.percent,
                (if is_sized { "capacity_bytes" } else { "capacity_records" }): cell.capacity,
                "references": references,
                "reference_bytes": reference_bytes,
                "miss_ratio": cell.missed(OBJECTS),
                "byte_miss_ratio": cell.missed(BYTES),
                "relative_to_lru": cell.relative_to("LRU", OBJECTS),
                "relative_to_s3_fifo": cell.relative_to("S3-FIFO", OBJECTS),
                "rounds": cell.rounds.iter().map(round).collect::<Vec<_>>(),
            })
        };
        let trace = |trace: &TraceResult| {
            json!({
                "file": trace.name,
                "requests": trace.requests,
                "keys": trace.keys,
                "capacities": trace.cells.iter().map(|of| cell(of, trace.is_sized)).collect::<Vec<_>>(),
            })
        };
        let summary = |reference| {
            self.summary(reference, OBJECTS)
                .map(|(mean, greatest)| json!({ "mean": mean, "greatest": greatest }))
        };
        let whole = json!({
            "work": self.work,
            "traces": self.traces.iter().map(trace).collect::<Vec<_>>(),
            "summary": {
                "from_percent": SUMMARY_FROM_PERCENT,
                "relative_to_lru": summary("LRU"),
                "relative_to_s3_fifo": summary("S3-FIFO"),
                "relative_to_sieve": summary("SIEVE"),
                "relative_to_gdsf": summary("GDSF"),
            },
        });
        serde_json::to_string_pretty(&whole).map(|text| text + "\n")
    }

    /// Returns a chart of miss ratio by capacity for each trace.
    pub(crate) fn charts(&self) -> Vec<String> {
        let chart = |trace: &TraceResult| {
            let curve = |name: &str, of: &dyn Fn(&CapacityResult) -> f64| {
                let points = trace.cells.iter().map(|cell| (cell.percent, 100.0 * of(cell)));
                ChartCurve::whole(name, points.collect())
            };
            let mut curves = vec![curve(ENGINE, &|cell| cell.missed(OBJECTS))];
            for (index, name) in REFERENCES.iter().enumerate() {
                curves.push(curve(name, &|cell| cell.references[index].objects));
            }
            let percents = || trace.cells.iter().map(|cell| cell.percent);
            let (low, high) = (percents().fold(100.0, f64::min), percents().fold(0.0, f64::max));
            let most = curves.iter().flat_map(ChartCurve::points).map(|point| point.1).fold(0.1, f64::max);
            let x = ChartAxis {
                title: if trace.is_sized { "capacity, % of the bytes" } else { "capacity, % of the keys" },
                logarithmic: true,
                ticks: chart::numbered(chart::round_ticks(low, high)),
            };
            let y = ChartAxis { title: "miss ratio, %", logarithmic: false, ticks: chart::even_ticks(most) };
            chart::curves(&trace.name, &curves, &x, &y)
        };
        self.traces.iter().map(chart).collect()
    }

    /// Returns the heading of the charts.
    pub(crate) fn heading(&self) -> PlotHeading {
        let line = "misses of caches that hold the same number of objects, or of bytes; lower is better";
        PlotHeading { title: "todana bench trace".into(), lines: vec![line.into()] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> TraceReport {
        let missed = |objects| MissRatios { objects, bytes: objects / 2.0 };
        let round =
            |objects| EngineResult { missed: missed(objects), held_mean: 9.5, held_max: 10, evictions: 3 };
        let cell = |percent, lru, rounds: [f64; 2]| CapacityResult {
            percent,
            capacity: percent as u64,
            references: [lru, 0.4, 0.45, 0.5].map(missed).into(),
            rounds: rounds.map(round).into(),
        };
        let cells =
            vec![cell(0.1, 0.9, [0.9, 0.9]), cell(1.0, 0.5, [0.42, 0.38]), cell(10.0, 0.4, [0.44, 0.44])];
        TraceReport {
            work: json!({ "seed": 1 }),
            traces: vec![TraceResult {
                name: "a<b".into(),
                requests: 1000,
                keys: 100,
                is_sized: false,
                cells,
            }],
        }
    }

    #[test]
    fn summary_compares_means_from_one_percent_capacity() {
        assert_eq!(
            report().summary("S3-FIFO", OBJECTS).map(|(mean, most)| (round(mean), round(most))),
            Some((1.05, 1.1))
        );
        assert_eq!(
            report().summary("LRU", BYTES).map(|(mean, most)| (round(mean), round(most))),
            Some((0.95, 1.1))
        );
        let mut small = report();
        small.traces[0].cells.truncate(1);
        assert_eq!(small.summary("LRU", OBJECTS), None);
    }

    fn round(value: f64) -> f64 {
        (value * 1e6).round() / 1e6
    }

    #[test]
    fn table_shows_capacities_and_records_held() {
        let table = report().table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "a<b: 1000 requests, 100 keys; miss ratios in %");
        let words: Vec<&str> = lines[3].split_whitespace().collect();
        assert_eq!(
            words,
            ["1", "1", "50.00", "40.00", "45.00", "50.00", "40.00", "0.800", "1.000", "9.5,", "10"]
        );
        assert_eq!(
            lines[6],
            "todana / LRU, miss ratios, capacities of 1 % and more: mean 0.950, greatest 1.100"
        );
        assert_eq!(lines[1].find(", max"), lines[3].find(", 10"), "{table}");
    }

    #[test]
    fn sized_objects_have_a_table_of_bytes() {
        let mut report = report();
        report.traces[0].is_sized = true;
        let table = report.table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[6], "a<b: 1000 requests, 100 keys; bytes missed in %");
        let words: Vec<&str> = lines[9].split_whitespace().collect();
        assert_eq!(words[..7], ["1", "1", "25.00", "20.00", "22.50", "25.00", "20.00"]);
        assert_eq!(table.matches("capacities of 1 % and more").count(), 8);
        let json: Value = serde_json::from_str(&report.json().unwrap()).unwrap();
        let cell = &json["traces"][0]["capacities"][1];
        assert_eq!((&cell["capacity_bytes"], &cell["byte_miss_ratio"]), (&1.into(), &0.2.into()));
        assert_eq!(cell["reference_bytes"]["GDSF"], 0.25);
    }

    #[test]
    fn chart_has_a_curve_for_each_cache() {
        let charts = report().charts();
        assert_eq!(charts.len(), 1);
        assert_eq!(charts[0].matches("<polyline").count(), 5);
        // The curve goes from 90 % at a capacity of 0.1 % to 44 % at 10 %, on an axis that ends at
        // 100 %, and each point is marked.
        assert!(charts[0].contains("points=\"80.0,88.6 400.0,211.6 720.0,201.8\""), "{charts:?}");
        assert_eq!(charts[0].matches("<circle").count(), 15);
        assert!(charts[0].contains("a&lt;b") && !charts[0].contains("a<b"));
    }
}
