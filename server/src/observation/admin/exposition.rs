//! Writes the text format of Prometheus: families of samples, each with its help text and type.

use crate::observation::measurements::{MeasurementRow, MeasurementTable, MeasurementValue, MetricKind};
use crate::shared::SharedState;
use std::collections::HashMap;
use std::fmt::Write;

/// The content type of the answer.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The labels of a sample: names and values.
pub(super) type MetricLabels<'a> = &'a [(&'a str, &'a str)];

/// The differences that were last shown, by the name of the sample.
pub(super) type ShownDifferences = HashMap<String, GrowingDifference>;

/// The text under construction. Its families are in the order of their first samples.
pub(super) struct MetricsText<'a> {
    shared: &'a SharedState,
    shown: &'a mut ShownDifferences,
    families: Vec<String>,
    by_name: HashMap<&'static str, usize>,
}

impl<'a> MetricsText<'a> {
    pub(super) fn new(shared: &'a SharedState, shown: &'a mut ShownDifferences) -> MetricsText<'a> {
        MetricsText { shared, shown, families: Vec::new(), by_name: HashMap::new() }
    }

    /// Writes a sample for each row that has a metric and a value.
    pub(super) fn put<S>(&mut self, table: &MeasurementTable<S>, of: &S, labels: MetricLabels<'_>) {
        for row in table.rows.iter().filter(|row| !row.metric.is_empty()) {
            let value = (row.read)(self.shared, of);
            if value != MeasurementValue::Missing {
                self.sample(row, labels, &value);
            }
        }
    }

    fn sample<S>(&mut self, row: &MeasurementRow<S>, labels: MetricLabels<'_>, value: &MeasurementValue) {
        let (family, own) = row.metric.split_once('{').unwrap_or((row.metric, ""));
        let mut labels = labels.to_vec();
        let mut text = value.to_string();
        for label in own.trim_end_matches('}').split(',').filter(|label| !label.is_empty()) {
            labels.push(label.split_once('=').unwrap_or((label, &text)));
        }
        let mut sample = family.to_string();
        put_labels(&mut sample, &labels);
        if own.ends_with('}') && !own.contains('=') {
            text = "1".to_string();
        }
        match value {
            MeasurementValue::Flag(flag) => text = u8::from(*flag).to_string(),
            MeasurementValue::Difference { all, part } => {
                text = self.shown.entry(sample.clone()).or_default().less(*all, *part).to_string();
            }
            _ => {}
        }
        let families = &mut self.families;
        let index = *self.by_name.entry(family).or_insert_with(|| {
            let kind = match row.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
            };
            families.push(format!("# HELP {family} {}\n# TYPE {family} {kind}\n", row.help));
            families.len() - 1
        });
        // Writing to a String does not fail.
        let _ = writeln!(self.families[index], "{sample} {text}");
    }

    pub(super) fn into_text(self) -> String {
        self.families.concat()
    }
}

fn put_labels(text: &mut String, labels: MetricLabels<'_>) {
    for (index, (label, value)) in labels.iter().enumerate() {
        let opening = if index == 0 { '{' } else { ',' };
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = write!(text, "{opening}{label}=\"{value}\"");
    }
    if !labels.is_empty() {
        text.push('}');
    }
}

/// The difference of two counters that are read one after the other while both grow. Without a
/// correction the difference could decrease for a moment. Prometheus interprets a decrease as a
/// restart, and would then add the complete count to the rate.
#[derive(Default)]
pub(super) struct GrowingDifference {
    shown: u64,
    from: u64,
}

impl GrowingDifference {
    fn less(&mut self, from: u64, part: u64) -> u64 {
        // A counter decreases only by `stats reset`.
        let floor = if from < self.from { 0 } else { self.shown };
        self.from = from;
        self.shown = from.saturating_sub(part).max(floor);
        self.shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut text = "a_total".to_string();
        put_labels(&mut text, &[("x", "1"), ("y", "a\\b\"c\nd")]);
        assert_eq!(text, "a_total{x=\"1\",y=\"a\\\\b\\\"c\\nd\"}");
    }

    #[test]
    fn differences_shrink_only_at_a_reset() {
        let mut sets = GrowingDifference::default();
        assert_eq!(sets.less(10, 0), 10);
        assert_eq!(sets.less(10, 3), 10, "the cas ran between the two reads");
        assert_eq!(sets.less(14, 3), 11);
        assert_eq!(sets.less(2, 1), 1, "reset");
        assert_eq!(sets.less(2, 5), 1);
    }
}
