//! Reports figures of the server and its databases, under the names that monitoring programs for
//! Kyoto Tycoon read.

use super::answers::{CallAnswer, CallResult};
use super::call_context::CallContext;
use crate::databases::ServedDatabase;
use crate::observation::measurements::{MeasurementValue, SERVER, ServerReadings};
use todana::DatabaseKind;
use todana_protocol::kyoto::{self, ProcedureCall};

impl CallContext {
    /// Adds the figures of the server.
    pub(super) fn report(&self, pairs: &mut kyoto::AnswerPairs) {
        self.counters().misc.add(1);
        pairs.clear();
        let shared = &*self.shared;
        let (mut records, mut bytes) = (0, 0);
        for (number, served) in shared.databases.iter().enumerate() {
            let (count, size) = extent(served);
            (records, bytes) = (records + count, bytes + size);
            let text = format!("count={count} size={size} path={}", path(served));
            pairs.push(format!("db_{number}").as_bytes(), text.as_bytes());
        }
        pairs.push_number(b"db_total_count", records);
        pairs.push_number(b"db_total_size", bytes);
        let readings = ServerReadings::take(shared);
        for row in SERVER.iter().flat_map(|table| table.rows).filter(|row| !row.report.is_empty()) {
            let value = (row.read)(shared, &readings);
            if value != MeasurementValue::Missing {
                pairs.push(row.report.as_bytes(), value.to_string().as_bytes());
            }
        }
    }

    /// Answers with the figures of the database that the call names.
    pub(super) fn status(
        &self,
        call: &ProcedureCall<'_>,
        pairs: &mut kyoto::AnswerPairs,
        answer: &mut CallAnswer<'_>,
    ) -> CallResult {
        let database = self.database(call.target())?;
        self.counters().misc.add(1);
        pairs.clear();
        for (name, fact) in facts(&self.shared.databases[database]) {
            pairs.push(name.as_bytes(), fact.as_bytes());
        }
        answer.done_with(pairs);
        Ok(())
    }
}

/// Returns the figures of a database. The first two are the numbers of records and of bytes.
pub(super) fn facts(served: &ServedDatabase) -> [(&'static str, String); 8] {
    let (count, size) = extent(served);
    let name = &served.name;
    let capacity = |limit: Option<u64>| limit.map_or_else(|| "-1".to_owned(), |limit| limit.to_string());
    [
        ("count", count.to_string()),
        ("size", size.to_string()),
        ("path", path(served)),
        ("type", kind(served).to_string()),
        ("realtype", kind_by_engine(name.kind).to_string()),
        ("ktopts", if name.tuning.persistent { "2" } else { "0" }.to_owned()),
        ("ktcapcnt", capacity(name.tuning.records_max)),
        ("ktcapsiz", capacity(name.tuning.bytes_max)),
    ]
}

/// Returns the numbers of records and of bytes.
fn extent(served: &ServedDatabase) -> (u64, u64) {
    let status = served.database.status();
    let bytes = match served.disk_bytes() {
        0 => status.committed_bytes,
        on_disk => on_disk,
    };
    (status.records, bytes)
}

/// Returns the path of a database, or its kind if it has none.
pub(super) fn path(served: &ServedDatabase) -> String {
    let name = &served.name;
    match &name.path {
        Some(path) => path.display().to_string(),
        None => name.label().to_owned(),
    }
}

/// Returns Kyoto Tycoon's number for the kind of database that the name requests.
fn kind(served: &ServedDatabase) -> u8 {
    let name = &served.name;
    let base = name.asked();
    match base {
        "-" => 16,
        "+" => 17,
        ":" => 24,
        "*" => 32,
        "%" => 33,
        _ => match base.rsplit_once('.') {
            Some((_, "kcd")) => 64,
            Some((_, "kcf")) => 65,
            _ => kind_by_engine(name.kind),
        },
    }
}

/// Returns Kyoto Tycoon's number for the kind that is most similar to this one.
fn kind_by_engine(kind: DatabaseKind) -> u8 {
    match (kind.is_in_memory(), kind.is_ordered()) {
        (true, false) => 24,
        (true, true) => 33,
        (false, false) => 48,
        (false, true) => 49,
    }
}
