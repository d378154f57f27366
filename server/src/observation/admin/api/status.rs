//! The figures of the server as JSON. Each is a row of the measurements.

use crate::observation::measurements::{
    DATABASES, DatabaseReadings, MeasurementRow, MeasurementTable, MeasurementValue, MetricKind, REPLICAS,
    SERVER, ServerReadings,
};
use crate::observation::turn_times::TurnTimeSums;
use crate::shared::SharedState;
use serde_json::{Map, Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns all figures of the server, of each database and of each replica. `times` are the times
/// of requests to show.
pub(super) fn status(shared: &SharedState, times: &TurnTimeSums) -> Value {
    let readings = ServerReadings::take(shared);
    let mut figures = Map::new();
    SERVER.iter().for_each(|table| put(shared, table, &readings, &mut figures));
    let databases = DatabaseReadings::all(shared).map(|database| rows(shared, &DATABASES, &database));
    let replicas = shared.replicas.connected();
    let replicas = replicas.iter().map(|replica| rows(shared, &REPLICAS, replica));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    json!({
        "time_ms": now.as_millis() as u64,
        "is_proxy": shared.is_proxy(),
        "listening": shared.listening.names,
        "figures": figures,
        "times_us": times_us(times),
        "databases": databases.collect::<Vec<_>>(),
        "replicas": replicas.collect::<Vec<_>>(),
    })
}

/// Returns the times of requests of all workers since the start.
pub(super) fn turn_times(shared: &SharedState) -> TurnTimeSums {
    TurnTimeSums::of(shared.observation.turn_times.iter())
}

fn times_us(times: &TurnTimeSums) -> Value {
    let us = |thousandths| times.quantile(thousandths).map(|time| time.as_secs_f64() * 1e6);
    json!({ "p50": us(500), "p90": us(900), "p99": us(990), "p999": us(999) })
}

/// Returns the names and meanings of all figures.
pub(super) fn figures() -> Value {
    let mut all = Vec::new();
    SERVER.iter().for_each(|table| describe(table, &mut all));
    describe(&DATABASES, &mut all);
    describe(&REPLICAS, &mut all);
    Value::Array(all)
}

fn describe<S>(table: &MeasurementTable<S>, all: &mut Vec<Value>) {
    for row in table.rows.iter().filter(|row| !row.help.is_empty()) {
        let kind = match row.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        };
        all.push(json!({
            "table": table.title, "name": name(row), "metric": row.metric, "kind": kind, "meaning": row.help,
        }));
    }
}

fn rows<S>(shared: &SharedState, table: &MeasurementTable<S>, of: &S) -> Value {
    let mut figures = Map::new();
    put(shared, table, of, &mut figures);
    Value::Object(figures)
}

fn put<S>(shared: &SharedState, table: &MeasurementTable<S>, of: &S, figures: &mut Map<String, Value>) {
    for row in table.rows {
        let value = match (row.read)(shared, of) {
            MeasurementValue::Missing => continue,
            MeasurementValue::Count(count) => count.into(),
            MeasurementValue::Flag(flag) => flag.into(),
            MeasurementValue::Time(time) => time.as_secs_f64().into(),
            MeasurementValue::Text(text) => text.into(),
            MeasurementValue::Difference { all, part } => all.saturating_sub(part).into(),
        };
        figures.insert(name(row).to_string(), value);
    }
}

/// Returns the name of a figure in JSON: that in `stats`, or else that in `/metrics` or `report`.
fn name<S>(row: &MeasurementRow<S>) -> &'static str {
    [row.statistic, row.metric, row.report].into_iter().find(|name| !name.is_empty()).unwrap_or_default()
}
