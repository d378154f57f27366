//! Defines the figures that the server reports about itself, one row for each.
//!
//! ```text
//! server, records, settings, classes, databases, kyoto   the tables
//! readings   counters read once for all rows of an answer
//! page       the generated part of docs/metrics.md
//! ```
//!
//! `stats` (`statistics`), `/metrics` (`admin::metrics`), Kyoto Tycoon's `report` and
//! docs/metrics.md are generated from the same rows, so a new figure needs only a new row.
//!
//! Not here: formats, and lists that are not figures (`stats conns`, `sizes`, `detail`).

mod classes;
mod databases;
mod kyoto;
#[cfg(test)]
mod page;
mod readings;
mod records;
mod server;
mod settings;

pub(crate) use classes::{CLASS_TOTALS, ITEMS, SLABS, classes};
pub(crate) use databases::{DATABASES, DatabaseReadings, REPLICAS, takes_writes};
pub(crate) use readings::ServerReadings;
pub(crate) use records::REPLICATION;
pub(crate) use settings::SETTINGS;

use crate::shared::SharedState;
use std::fmt;
use std::time::Duration;

/// The tables of the server as a whole, in the order of `stats`.
pub(crate) static SERVER: [&MeasurementTable<ServerReadings>; 9] = [
    &server::PROCESS,
    &server::CONNECTIONS,
    &server::COMMANDS,
    &server::LISTENING,
    &server::MAINTENANCE,
    &records::RECORDS,
    &records::KEPT,
    &records::REPLICATION,
    &kyoto::KYOTO,
];

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    /// The value only grows, except at a restart or a reset.
    Counter,
    Gauge,
}

/// A table of rows about one kind of subject. It is a section of docs/metrics.md.
pub(crate) struct MeasurementTable<S: 'static> {
    pub(crate) title: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "only the page needs it"))]
    about: &'static str,
    pub(crate) rows: &'static [MeasurementRow<S>],
}

/// One figure. Its name is empty for each output that does not show the figure.
pub(crate) struct MeasurementRow<S> {
    /// The name in `stats`.
    pub(crate) statistic: &'static str,
    /// The name in Kyoto's `report`.
    pub(crate) report: &'static str,
    /// The name in `/metrics`, with labels as `{name=value}`. A label `{name}` has the value of the
    /// row, and the sample is 1.
    pub(crate) metric: &'static str,
    pub(crate) kind: MetricKind,
    pub(crate) help: &'static str,
    pub(crate) read: fn(&SharedState, &S) -> MeasurementValue,
}

/// The value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MeasurementValue {
    /// The figure does not exist now and is omitted.
    Missing,
    Count(u64),
    /// `yes` or `no`; 1 or 0 in metrics.
    Flag(bool),
    Time(Duration),
    Text(String),
    /// A counter minus the part of it that another counter counts. The other one is read later,
    /// while both grow. In metrics, the difference never decreases.
    Difference {
        all: u64,
        part: u64,
    },
}

impl fmt::Display for MeasurementValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MeasurementValue::Missing => Ok(()),
            MeasurementValue::Count(count) => write!(f, "{count}"),
            MeasurementValue::Flag(flag) => f.write_str(if *flag { "yes" } else { "no" }),
            MeasurementValue::Time(time) => write!(f, "{}.{:06}", time.as_secs(), time.subsec_micros()),
            MeasurementValue::Text(text) => f.write_str(text),
            MeasurementValue::Difference { all, part } => write!(f, "{}", all.saturating_sub(*part)),
        }
    }
}

impl<T> From<Option<T>> for MeasurementValue
where
    MeasurementValue: From<T>,
{
    fn from(value: Option<T>) -> MeasurementValue {
        value.map_or(MeasurementValue::Missing, MeasurementValue::from)
    }
}

macro_rules! values {
    ($($type:ty => |$value:ident| $make:expr;)*) => {
        $(impl From<$type> for MeasurementValue {
            fn from($value: $type) -> MeasurementValue {
                $make
            }
        })*
    };
}

values! {
    u64 => |count| MeasurementValue::Count(count);
    u32 => |count| MeasurementValue::Count(count.into());
    u16 => |count| MeasurementValue::Count(count.into());
    usize => |count| MeasurementValue::Count(count as u64);
    bool => |is_so| MeasurementValue::Count(is_so.into());
    Duration => |time| MeasurementValue::Time(time);
    String => |text| MeasurementValue::Text(text);
    &str => |text| MeasurementValue::Text(text.into());
}

/// Defines a table. A row is `"statistic", "report", "metric", MetricKind, "Help." => value;`, with
/// `_` for each missing name. A row `"statistic" => value;` is a gauge that docs/metrics.md does
/// not list.
macro_rules! table {
    ($name:ident, $title:literal, $about:literal, |$shared:ident, $of:ident: $S:ty| $(
        $statistic:tt $(, $report:tt, $metric:tt, $kind:ident, $help:literal)? => $value:expr;
    )*) => {
        pub(crate) static $name: $crate::observation::measurements::MeasurementTable<$S> =
            $crate::observation::measurements::MeasurementTable {
                title: $title,
                about: $about,
                rows: &[$($crate::observation::measurements::MeasurementRow {
                    read: |$shared: &$crate::shared::SharedState, $of: &$S| {
                        let _ = ($shared, $of);
                        $crate::observation::measurements::MeasurementValue::from($value)
                    },
                    ..table!(@names $statistic $(, $report, $metric, $kind, $help)?)
                },)*],
            };
    };
    (@names $statistic:tt) => { table!(@names $statistic, _, _, Gauge, "") };
    (@names $statistic:tt, $report:tt, $metric:tt, $kind:ident, $help:literal) => {
        $crate::observation::measurements::MeasurementRow {
            statistic: table!(@name $statistic),
            report: table!(@name $report),
            metric: table!(@name $metric),
            kind: $crate::observation::measurements::MetricKind::$kind,
            help: $help,
            read: |_, _| $crate::observation::measurements::MeasurementValue::Missing,
        }
    };
    (@name _) => { "" };
    (@name $name:literal) => { $name };
}
use table;
