//! Exports visitors: functions of the caller that receive records and decide on changes.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{ResultPlace, TODANA_OK, answer, found, invalid, visiting};
use crate::attributes::{RecordAttributes, ShownRecord};
use crate::open_database::{self, DatabaseHandle, RegisteredDatabase};
use crate::raw::{Bytes, BytesList};
use crate::transactions;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use todana::{OwnedRecord, Record, Records, Result, UpdateAction};

/// Keeps the record.
pub const TODANA_KEEP: c_int = 0;
/// Stores `change->value` and keeps the attributes.
pub const TODANA_PUT: c_int = 1;
/// Stores `change->value` and `change->attributes`.
pub const TODANA_PUT_WITH: c_int = 2;
/// Removes the record.
pub const TODANA_REMOVE: c_int = 3;

/// The change that a visitor requests. The library copies it when the visitor returns.
#[repr(C)]
pub struct RecordChange {
    value: Bytes,
    attributes: RecordAttributes,
}

/// Receives a record. todana_each() continues while the function returns 0.
pub type ViewFunction = Option<extern "C" fn(context: *mut c_void, record: &ShownRecord) -> c_int>;

/// Receives a record, or NULL if there is no record. Returns TODANA_KEEP, TODANA_PUT,
/// TODANA_PUT_WITH or TODANA_REMOVE.
pub type VisitFunction = Option<
    extern "C" fn(
        context: *mut c_void,
        key: Bytes,
        record: Option<&ShownRecord>,
        change: &mut RecordChange,
    ) -> c_int,
>;

/// Shows a record in its place, without a copy. `see` runs under a lock: it must be brief, and all
/// calls of the library except todana_free() fail with TODANA_BUSY. The result of `see` is ignored.
/// TODANA_NONE: there is no record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_view(
    db: *mut DatabaseHandle,
    key: Bytes,
    see: ViewFunction,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        let (see, key) = (there(see)?, key.as_slice()?);
        open_database::with(db, |open_database| {
            open_database.view(key, &mut |record| {
                visiting(|| see(context, &ShownRecord::of(key, record)));
            })
        })
        .map(found)
    })
}

/// Runs `visit` on a record and applies its decision atomically: no other thread changes the record
/// in between. `visit` may run more than once. It runs under a lock: it must be brief, and all
/// calls of the library except todana_free() fail with TODANA_BUSY.
#[unsafe(no_mangle)]
pub extern "C" fn todana_update(
    db: *mut DatabaseHandle,
    key: Bytes,
    visit: VisitFunction,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        let visit = there(visit)?;
        open_database::with(db, |open_database| {
            CVisitor { visit, context, open_database }.update(&**open_database, key.as_slice()?)?;
            Ok(TODANA_OK)
        })
    })
}

/// Runs `visit` on each of several records and applies all decisions at once: other threads see all
/// changes or none. An error discards all changes, unless they belong to an open transaction of
/// this thread. `visit` must obey the rules of todana_update().
#[unsafe(no_mangle)]
pub extern "C" fn todana_update_many(
    db: *mut DatabaseHandle,
    keys: BytesList,
    visit: VisitFunction,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        let visit = there(visit)?;
        open_database::with(db, |open_database| {
            let (keys, visitor) = (keys.as_slices()?, CVisitor { visit, context, open_database });
            if transactions::of_this_thread(open_database.number).is_some() {
                keys.iter().try_for_each(|key| visitor.update(&**open_database, key))?;
                return Ok(TODANA_OK);
            }
            open_database.with_db(|db| {
                let transaction = db.begin()?;
                keys.iter().try_for_each(|key| visitor.update(&transaction, key))?;
                transaction.commit()?;
                Ok(TODANA_OK)
            })
        })
    })
}

/// Runs `visit` on every record and applies each decision atomically. Stores the number of changed
/// records in `changed`, unless it is NULL. Records that are added meanwhile may or may not be
/// visited. After an error the earlier changes stay, unless this thread has an open transaction and
/// aborts it. `visit` must obey the rules of todana_update().
#[unsafe(no_mangle)]
pub extern "C" fn todana_update_each(
    db: *mut DatabaseHandle,
    visit: VisitFunction,
    context: *mut c_void,
    changed: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let visit = there(visit)?;
        open_database::with(db, |open_database| {
            let visitor = CVisitor { visit, context, open_database };
            let mut count = 0;
            for key in open_database.iter().keys() {
                count += u64::from(visitor.update_existing(&key?)?);
            }
            changed.put(count);
            Ok(TODANA_OK)
        })
    })
}

type RequiredVisitFunction = extern "C" fn(
    context: *mut c_void,
    key: Bytes,
    record: Option<&ShownRecord>,
    change: &mut RecordChange,
) -> c_int;

struct CVisitor<'h> {
    visit: RequiredVisitFunction,
    context: *mut c_void,
    open_database: &'h RegisteredDatabase,
}

impl CVisitor<'_> {
    fn update(&self, records: &dyn Records, key: &[u8]) -> Result<()> {
        let mut outcome = Ok(());
        records.update(key, &mut |record| {
            let (update, of_this_run) = match self.run(key, record) {
                Ok(update) => (update, Ok(())),
                Err(error) => (UpdateAction::Keep, Err(error)),
            };
            // If the visitor ran more than once, only the last run counts.
            outcome = of_this_run;
            update
        })?;
        outcome
    }

    /// Runs `visit` on a record that may have been removed meanwhile. Returns true if the record
    /// was changed.
    fn update_existing(&self, key: &[u8]) -> Result<bool> {
        let mut outcome = Ok(false);
        self.open_database.update(key, &mut |record| {
            let decided = record.map_or(Ok(UpdateAction::Keep), |record| self.run(key, Some(record)));
            let update = decided.as_ref().map_or(UpdateAction::Keep, Clone::clone);
            // If the visitor ran more than once, only the last run counts.
            outcome = decided.map(|update| update != UpdateAction::Keep);
            update
        })?;
        outcome
    }

    fn run(&self, key: &[u8], record: Option<Record<'_>>) -> Result<UpdateAction> {
        let mut change = RecordChange { value: Bytes::NONE, attributes: RecordAttributes::default() };
        let shown = record.map(|record| ShownRecord::of(key, record));
        let decided = visiting(|| (self.visit)(self.context, Bytes::lend(key), shown.as_ref(), &mut change));
        self.decided(decided, &change)
    }

    fn decided(&self, decided: c_int, change: &RecordChange) -> Result<UpdateAction> {
        Ok(match decided {
            TODANA_KEEP => UpdateAction::Keep,
            TODANA_PUT => UpdateAction::Value(change.value.as_slice()?.to_vec()),
            TODANA_PUT_WITH => UpdateAction::Record(OwnedRecord {
                value: change.value.as_slice()?.to_vec(),
                flags: change.attributes.flags(),
                // The seconds count from now and not from the call, because the update may have
                // waited for a transaction.
                expiry: change.attributes.expiry(self.open_database.now()?)?,
                version: 0,
            }),
            TODANA_REMOVE => UpdateAction::Remove,
            other => return Err(invalid(format!("a visitor cannot return {other}"))),
        })
    }
}

/// Returns a function, or an error if it is NULL.
pub(crate) fn there<F>(function: Option<F>) -> Result<F> {
    function.ok_or_else(|| invalid("the function to call is NULL"))
}
