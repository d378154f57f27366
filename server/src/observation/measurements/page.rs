//! Generates the second part of docs/metrics.md from the tables.

use super::{
    CLASS_TOTALS, DATABASES, ITEMS, MeasurementTable, MetricKind, REPLICAS, SERVER, SETTINGS, SLABS,
};
use std::collections::BTreeSet;
use std::fmt::Write;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
/// The comment before the generated part.
const MARK: &str = "<!-- Generated from server/src/observation/measurements: \
    `WRITE_DOCS=1 cargo test -p todana-server --lib page` writes it again. -->
";

/// Writes the section of a table. `labels` are the labels of each of its metrics.
fn section<S>(page: &mut String, table: &MeasurementTable<S>, labels: &str) {
    let _ = write!(page, "\n### {}\n\n", table.title);
    if !table.about.is_empty() {
        let _ = write!(page, "{}\n\n", table.about);
    }
    page.push_str("| metric | type | `stats` | `report` | meaning |\n|---|---|---|---|---|\n");
    for row in table.rows.iter().filter(|row| !row.help.is_empty()) {
        let (family, own) = row.metric.split_once('{').unwrap_or((row.metric, ""));
        let own = own.trim_end_matches('}');
        let labels: Vec<&str> = [labels, own].into_iter().filter(|labels| !labels.is_empty()).collect();
        let metric = match labels.is_empty() {
            _ if family.is_empty() => "-".to_string(),
            true => format!("`{family}`"),
            false => format!("`{family}{{{}}}`", labels.join(",")),
        };
        let kind = match row.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        };
        let name = |name: &str| if name.is_empty() { "-".to_string() } else { format!("`{name}`") };
        let (statistic, report) = (name(row.statistic), name(row.report));
        let _ = writeln!(page, "| {metric} | {kind} | {statistic} | {report} | {} |", row.help);
    }
}

#[test]
fn page_has_each_row_of_the_tables() {
    let mut generated = MARK.to_string();
    SERVER.iter().for_each(|table| section(&mut generated, table, ""));
    section(&mut generated, &SETTINGS, "");
    section(&mut generated, &DATABASES, "db");
    section(&mut generated, &REPLICAS, "address,server_id");
    section(&mut generated, &ITEMS, "slab");
    section(&mut generated, &SLABS, "slab");
    section(&mut generated, &CLASS_TOTALS, "");
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (written, old) = page.split_at(page.find(MARK).expect("the page contains the mark"));
    if std::env::var_os("WRITE_DOCS").is_some() {
        std::fs::write(PAGE, format!("{written}{generated}")).unwrap();
    } else {
        assert!(old == generated, "docs/metrics.md: not as the tables; {MARK}");
    }
}

#[test]
fn rows_of_a_family_have_one_kind() {
    let mut samples = BTreeSet::new();
    let mut kinds = std::collections::BTreeMap::new();
    let mut check = |metric: &'static str, kind: MetricKind, help: &str| {
        if metric.is_empty() {
            return;
        }
        assert!(!help.is_empty() && samples.insert(metric), "{metric}");
        let family = metric.split('{').next().unwrap_or_default();
        assert_eq!(*kinds.entry(family).or_insert(kind), kind, "{metric}");
    };
    for rows in SERVER.iter().chain([&&SETTINGS]) {
        rows.rows.iter().for_each(|row| check(row.metric, row.kind, row.help));
    }
    ITEMS.rows.iter().chain(SLABS.rows).for_each(|row| check(row.metric, row.kind, row.help));
    CLASS_TOTALS.rows.iter().for_each(|row| check(row.metric, row.kind, row.help));
    DATABASES.rows.iter().for_each(|row| check(row.metric, row.kind, row.help));
    REPLICAS.rows.iter().for_each(|row| check(row.metric, row.kind, row.help));
}
