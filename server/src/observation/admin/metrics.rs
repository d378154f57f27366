//! Writes `/metrics`. The names are those of memcached_exporter, so that existing dashboards and
//! alerts work. Further names begin with `todana_`. All metrics are rows of the measurements;
//! docs/metrics.md lists them.
//!
//! As in the exporter, a metric without a current value is omitted.

use super::exposition::{MetricsText, ShownDifferences};
use crate::observation::measurements::{
    CLASS_TOTALS, DATABASES, DatabaseReadings, ITEMS, REPLICAS, SERVER, SETTINGS, SLABS, ServerReadings,
    classes,
};
use crate::shared::SharedState;

/// Writes the answer to `/metrics`, and keeps the counts that must not decrease.
#[derive(Default)]
pub(super) struct MetricsPage {
    shown: ShownDifferences,
}

impl MetricsPage {
    /// Returns all metrics. Without `with_classes`, omits the metrics of single size classes, which
    /// are 14 of 15 samples if all classes are in use.
    pub(super) fn text(&mut self, shared: &SharedState, with_classes: bool) -> String {
        let readings = ServerReadings::take(shared);
        let mut text = MetricsText::new(shared, &mut self.shown);
        SERVER.iter().chain([&&SETTINGS]).for_each(|table| text.put(table, &readings, &[]));
        for database in DatabaseReadings::all(shared) {
            text.put(&DATABASES, &database, &[("db", database.served(shared).name.label())]);
        }
        for replica in shared.replicas.connected() {
            let server_id = replica.server_id.to_string();
            text.put(&REPLICAS, &replica, &[("address", &replica.address), ("server_id", &server_id)]);
        }
        let classes = classes(shared);
        text.put(&CLASS_TOTALS, &classes, &[]);
        for class in classes.iter().filter(|_| with_classes) {
            let slab = class.number.to_string();
            let labels = [("slab", &*slab)];
            if class.has_items() {
                text.put(&ITEMS, class, &labels);
            }
            text.put(&SLABS, class, &labels);
        }
        let text = text.into_text();
        let Some(proxy) = &shared.proxy else { return text };
        text + &proxy.metrics(readings.sums.readers_cut_off, shared.memory.held_bytes())
    }
}
