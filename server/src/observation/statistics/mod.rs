//! Answers `stats` under the names that memcached's tools read.
//!
//! ```text
//! general, settings, items, slabs, databases, replicas   rows of the measurements
//! sizes     the number of records by size, on request (`-o track_sizes`)
//! conns     the state of each connection
//! detail    reads and stores by prefix of the key
//! cachedump some keys of a class
//! ```
//!
//! Names and order are those of memcached 1.6 (protocol.txt and the documentation in its source
//! tree). A statistic without a counterpart in this server has the value of the nearest equivalent,
//! or 0; docs/protocol/memcached.md, "Statistics", lists these.

mod cachedump;
mod conns;
mod detail;

use crate::observation::measurements::{
    CLASS_TOTALS, DATABASES, DatabaseReadings, ITEMS, MeasurementTable, MeasurementValue, REPLICAS,
    REPLICATION, SERVER, SETTINGS, SLABS, ServerReadings, classes,
};
use crate::session::memcached::listing::{ListingKind, SizeHistogram};
use crate::shared::SharedState;
use std::fmt::{Display, Write};
use todana::Database;
use todana_core::Reply;

/// Writes statistics, with one buffer for all names and values.
struct StatisticsWriter<'a, 'b> {
    shared: &'a SharedState,
    out: &'a mut (dyn FnMut(Reply<'_>) + 'b),
    value: String,
    name: String,
}

impl StatisticsWriter<'_, '_> {
    /// Writes one statistic.
    fn put(&mut self, prefix: impl Display, name: &str, value: impl Display) {
        self.name.clear();
        self.value.clear();
        // Writing to a String does not fail.
        let _ = write!(self.name, "{prefix}{name}");
        let _ = write!(self.value, "{value}");
        (self.out)(Reply::Statistic { name: &self.name, value: &self.value });
    }

    /// Writes each row of a table that has a statistic and a value.
    fn rows<S>(&mut self, prefix: impl Display, table: &MeasurementTable<S>, of: &S) {
        for row in table.rows.iter().filter(|row| !row.statistic.is_empty()) {
            let value = (row.read)(self.shared, of);
            if value != MeasurementValue::Missing {
                self.put(&prefix, row.statistic, value);
            }
        }
    }
}

/// Answers `stats GROUP` for the connection with this descriptor. If the group needs a walk over
/// all records, returns this walk, which continues the answer.
pub(crate) fn answer(
    shared: &SharedState,
    group: &[u8],
    asker: i32,
    out: &mut dyn FnMut(Reply<'_>),
) -> Option<ListingKind> {
    let mut words = group.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let word = words.next().unwrap_or_default();
    // As in memcached, a group may be given by any prefix of its name.
    let is = |name: &str| !word.is_empty() && name.as_bytes().starts_with(word);
    let mut writer = StatisticsWriter { shared, out, value: String::new(), name: String::new() };
    match word {
        b"" => {
            let readings = ServerReadings::take(shared);
            SERVER.iter().for_each(|table| writer.rows("", table, &readings));
        }
        b"items" => {
            for class in classes(shared).iter().filter(|class| class.has_items()) {
                writer.rows(format_args!("items:{}:", class.number), &ITEMS, class);
            }
        }
        b"slabs" => {
            let classes = classes(shared);
            for class in &classes {
                writer.rows(format_args!("{}:", class.number), &SLABS, class);
            }
            writer.rows("", &CLASS_TOTALS, &classes);
        }
        b"sizes" if shared.options.observation.track_sizes => {
            return Some(ListingKind::Sizes(SizeHistogram::default()));
        }
        b"sizes" => writer.put("", "sizes_status", "disabled"),
        _ if is("reset") => {
            reset(shared);
            out(Reply::Reset);
            return None;
        }
        _ if is("detail") => {
            detail::answer(shared, words.next(), out);
            return None;
        }
        _ if is("databases") => databases(words.next(), &mut writer),
        b"replication" => {
            writer.rows("", &REPLICATION, &ServerReadings::take(shared));
            for (number, replica) in shared.replicas.connected().iter().enumerate() {
                writer.rows(format_args!("replica:{number}:"), &REPLICAS, replica);
            }
        }
        b"replicas" => {
            for (number, replica) in shared.replicas.connected().iter().enumerate() {
                writer.rows(format_args!("{number}:"), &REPLICAS, replica);
            }
        }
        _ if is("settings") => writer.rows("", &SETTINGS, &ServerReadings::take(shared)),
        _ if is("cachedump") => match cachedump::walk(shared, words.next(), words.next()) {
            Ok(walk) => return Some(walk),
            Err(message) => {
                out(Reply::Faulty(message));
                return None;
            }
        },
        _ if is("conns") => conns::put(asker, &mut writer),
        // There is no external storage, so the group is empty.
        _ if is("extstore") => {}
        _ => {
            out(Reply::Unknown);
            return None;
        }
    }
    out(Reply::End);
    None
}

/// Writes the statistics of all databases, or of the database with this name.
fn databases(name: Option<&[u8]>, writer: &mut StatisticsWriter<'_, '_>) {
    let shared = writer.shared;
    let wanted =
        name.map(|name| std::str::from_utf8(name).ok().and_then(|name| shared.databases.number(name)));
    for database in DatabaseReadings::all(shared) {
        if wanted.is_none_or(|wanted| wanted == Some(database.number)) {
            writer.rows(format_args!("{}:", database.number), &DATABASES, &database);
        }
    }
}

fn reset(shared: &SharedState) {
    shared.databases.each(Database::reset_counters);
    shared.observation.crawler.reset();
    shared.observation.reset_sums();
    shared.observation.observers.prefixes.clear();
    shared.observation.observers.classes.reset();
}
