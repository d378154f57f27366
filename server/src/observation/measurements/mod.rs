//! Measurements: one row for each figure that the server reports about itself.
//!
//! ```text
//! server, records, settings, classes, databases, kyoto   the tables
//! readings   counters read once for all rows of an answer
//! page       the generated part of docs/metrics.md
//! ```
//!
//! `stats` (`statistics`), `/metrics` (`admin::metrics`), Kyoto's `report` and docs/metrics.md are made of the same rows: a
//! new figure is one new row.
//! Not here: formats, and lists that are no figures (`stats conns`, `sizes`, `detail`).

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
pub(crate) use databases::{DATABASES, OfDatabase, REPLICAS, takes_writes};
pub(crate) use readings::Readings;
pub(crate) use settings::SETTINGS;

use crate::shared::Shared;
use std::fmt;
use std::time::Duration;

/// The tables of the server as a whole, in the order of `stats`.
pub(crate) static SERVER: [&Table<Readings>; 9] = [
    &server::PROCESS,
    &server::CONNECTIONS,
    &server::COMMANDS,
    &server::LISTENING,
    &server::HOUSEKEEPING,
    &records::RECORDS,
    &records::KEPT,
    &records::REPLICATION,
    &kyoto::KYOTO,
];

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only grows, except for a restart or a reset.
    Counter,
    Gauge,
}

/// Rows about one kind of subject, and their section of docs/metrics.md.
pub(crate) struct Table<S: 'static> {
    #[cfg_attr(not(test), expect(dead_code, reason = "only the page needs it"))]
    title: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "only the page needs it"))]
    about: &'static str,
    pub(crate) rows: &'static [Row<S>],
}

/// One figure. A name that it does not have is empty.
pub(crate) struct Row<S> {
    /// In `stats`.
    pub(crate) statistic: &'static str,
    /// In Kyoto's `report`.
    pub(crate) report: &'static str,
    /// In `/metrics`, with labels as `{name=value}`. A label `{name}` has the value of the row, and the sample is 1.
    pub(crate) metric: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
    pub(crate) read: fn(&Shared, &S) -> Value,
}

/// The value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// There is no such figure now: it is left out.
    Missing,
    Count(u64),
    /// `yes` or `no`, in metrics 1 or 0.
    Flag(bool),
    Time(Duration),
    Text(String),
    /// A counter less a part of it, which is read later while both grow. Metrics never show less than before.
    Difference {
        all: u64,
        part: u64,
    },
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Missing => Ok(()),
            Value::Count(count) => write!(f, "{count}"),
            Value::Flag(flag) => f.write_str(if *flag { "yes" } else { "no" }),
            Value::Time(time) => write!(f, "{}.{:06}", time.as_secs(), time.subsec_micros()),
            Value::Text(text) => f.write_str(text),
            Value::Difference { all, part } => write!(f, "{}", all.saturating_sub(*part)),
        }
    }
}

impl<T> From<Option<T>> for Value
where
    Value: From<T>,
{
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Missing, Value::from)
    }
}

macro_rules! values {
    ($($type:ty => |$value:ident| $make:expr;)*) => {
        $(impl From<$type> for Value {
            fn from($value: $type) -> Value {
                $make
            }
        })*
    };
}

values! {
    u64 => |count| Value::Count(count);
    u32 => |count| Value::Count(count.into());
    u16 => |count| Value::Count(count.into());
    usize => |count| Value::Count(count as u64);
    bool => |is_so| Value::Count(is_so.into());
    Duration => |time| Value::Time(time);
    String => |text| Value::Text(text);
    &str => |text| Value::Text(text.into());
}

/// Defines a table. A row is `"statistic", "report", "metric", Kind, "Help." => value;`, with `_` for a name that it does
/// not have; or `"statistic" => value;`, which is a gauge, and not on the page.
macro_rules! table {
    ($name:ident, $title:literal, $about:literal, |$shared:ident, $of:ident: $S:ty| $(
        $statistic:tt $(, $report:tt, $metric:tt, $kind:ident, $help:literal)? => $value:expr;
    )*) => {
        pub(crate) static $name: $crate::observation::measurements::Table<$S> =
            $crate::observation::measurements::Table {
                title: $title,
                about: $about,
                rows: &[$($crate::observation::measurements::Row {
                    read: |$shared: &$crate::shared::Shared, $of: &$S| {
                        let _ = ($shared, $of);
                        $crate::observation::measurements::Value::from($value)
                    },
                    ..table!(@names $statistic $(, $report, $metric, $kind, $help)?)
                },)*],
            };
    };
    (@names $statistic:tt) => { table!(@names $statistic, _, _, Gauge, "") };
    (@names $statistic:tt, $report:tt, $metric:tt, $kind:ident, $help:literal) => {
        $crate::observation::measurements::Row {
            statistic: table!(@name $statistic),
            report: table!(@name $report),
            metric: table!(@name $metric),
            kind: $crate::observation::measurements::Kind::$kind,
            help: $help,
            read: |_, _| $crate::observation::measurements::Value::Missing,
        }
    };
    (@name _) => { "" };
    (@name $name:literal) => { $name };
}
use table;
