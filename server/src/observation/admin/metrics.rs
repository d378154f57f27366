//! `/metrics`: the names of memcached_exporter, so that existing dashboards and alerts work, and
//! further ones as `todana_*`. They are rows of the measurements; docs/metrics.md lists them.
//!
//! A metric without a current value is omitted, as the exporter does.

use super::exposition::{MetricsText, ShownDifferences};
use crate::observation::measurements::{
    CLASS_TOTALS, DATABASES, DatabaseReadings, ITEMS, REPLICAS, SERVER, SETTINGS, SLABS, ServerReadings,
    classes,
};
use crate::shared::Shared;

/// Writes the answer to `/metrics`, and remembers the counts that must not shrink.
#[derive(Default)]
pub(super) struct MetricsPage {
    shown: ShownDifferences,
}

impl MetricsPage {
    /// Returns all metrics, or all except those of single classes, which are fourteen of fifteen
    /// samples where all classes are in use.
    pub(super) fn text(&mut self, shared: &Shared, with_classes: bool) -> String {
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
        text.into_text()
    }
}
