//! Visitors: functions of the caller that are shown records, and say what becomes of them.
#![allow(unsafe_code, reason = "no_mangle; nothing here follows a pointer")]

use crate::answer::{Out, TODANA_OK, answer, found, invalid, visiting};
use crate::attributes::{Attributes, Shown};
use crate::home::{self, Database, Home};
use crate::raw::{Bytes, List};
use crate::transactions;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use todana::{OwnedRecord, Record, Records, Result, UpdateAction};

/// The record stays as it is.
pub const TODANA_KEEP: c_int = 0;
/// It gets `change->value`; attributes stay.
pub const TODANA_PUT: c_int = 1;
/// It is replaced by `change->value` and `change->attributes`.
pub const TODANA_PUT_WITH: c_int = 2;
/// It is removed.
pub const TODANA_REMOVE: c_int = 3;

/// What a visitor wants to be put. It is copied at once when the visitor returns.
#[repr(C)]
pub struct Change {
    value: Bytes,
    attributes: Attributes,
}

/// Is shown a record. todana_each() goes on while it returns 0.
pub type See = Option<extern "C" fn(context: *mut c_void, record: &Shown) -> c_int>;

/// Is shown a record, or NULL where there is none, and returns what becomes of it: TODANA_KEEP, TODANA_PUT, TODANA_PUT_WITH or
/// TODANA_REMOVE.
pub type Visit = Option<
    extern "C" fn(context: *mut c_void, key: Bytes, record: Option<&Shown>, change: &mut Change) -> c_int,
>;

/// Shows a record where it lies, without a copy. `see` runs under a lock: it must be brief, and whatever it calls here but todana_free() is
/// refused with TODANA_BUSY. What it returns does not count. TODANA_NONE: there is no record.
#[unsafe(no_mangle)]
pub extern "C" fn todana_view(db: *mut Database, key: Bytes, see: See, context: *mut c_void) -> c_int {
    answer(|| {
        let (see, key) = (there(see)?, key.as_slice()?);
        home::with(db, |home| {
            home.view(key, &mut |record| {
                visiting(|| see(context, &Shown::of(key, record)));
            })
        })
        .map(found)
    })
}

/// Runs `visit` on a record and does as it says, atomically: nobody changes the record in between. It may run more than once, and it runs
/// under a lock: it must be brief, and whatever it calls here but todana_free() is refused with TODANA_BUSY.
#[unsafe(no_mangle)]
pub extern "C" fn todana_update(db: *mut Database, key: Bytes, visit: Visit, context: *mut c_void) -> c_int {
    answer(|| {
        let visit = there(visit)?;
        home::with(db, |home| {
            Visitor { visit, context, home }.update(&**home, key.as_slice()?)?;
            Ok(TODANA_OK)
        })
    })
}

/// Runs `visit` on each of several records, and does as it says with all of them at once: others see all of it or nothing. If it goes wrong
/// nothing is changed, unless it is part of a transaction that this thread has open. What todana_update() says of `visit` holds.
#[unsafe(no_mangle)]
pub extern "C" fn todana_update_many(
    db: *mut Database,
    keys: List,
    visit: Visit,
    context: *mut c_void,
) -> c_int {
    answer(|| {
        let visit = there(visit)?;
        home::with(db, |home| {
            let (keys, visitor) = (keys.as_slices()?, Visitor { visit, context, home });
            if transactions::of_this_thread(home.number).is_some() {
                keys.iter().try_for_each(|key| visitor.update(&**home, key))?;
                return Ok(TODANA_OK);
            }
            home.with_db(|db| {
                let transaction = db.begin()?;
                keys.iter().try_for_each(|key| visitor.update(&transaction, key))?;
                transaction.commit()?;
                Ok(TODANA_OK)
            })
        })
    })
}

/// Runs `visit` on every record and does as it says, each record atomically by itself; reports how many were changed (unless `changed` is
/// NULL). Records that come meanwhile are visited or not. If it goes wrong, what was done before stays, unless this thread has a
/// transaction open and aborts it. What todana_update() says of `visit` holds.
#[unsafe(no_mangle)]
pub extern "C" fn todana_update_each(
    db: *mut Database,
    visit: Visit,
    context: *mut c_void,
    changed: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    answer(|| {
        let visit = there(visit)?;
        home::with(db, |home| {
            let visitor = Visitor { visit, context, home };
            let mut count = 0;
            for key in home.iter().keys() {
                count += u64::from(visitor.update_existing(&key?)?);
            }
            changed.put(count);
            Ok(TODANA_OK)
        })
    })
}

type CalledVisit =
    extern "C" fn(context: *mut c_void, key: Bytes, record: Option<&Shown>, change: &mut Change) -> c_int;

struct Visitor<'h> {
    visit: CalledVisit,
    context: *mut c_void,
    home: &'h Home,
}

impl Visitor<'_> {
    fn update(&self, records: &dyn Records, key: &[u8]) -> Result<()> {
        let mut outcome = Ok(());
        records.update(key, &mut |record| {
            let (update, of_this_run) = match self.run(key, record) {
                Ok(update) => (update, Ok(())),
                Err(error) => (UpdateAction::Keep, Err(error)),
            };
            // Only the last run counts.
            outcome = of_this_run;
            update
        })?;
        outcome
    }

    /// The same for a record that may have gone meanwhile; returns whether it was changed.
    fn update_existing(&self, key: &[u8]) -> Result<bool> {
        let mut outcome = Ok(false);
        self.home.update(key, &mut |record| {
            let decided = record.map_or(Ok(UpdateAction::Keep), |record| self.run(key, Some(record)));
            let update = decided.as_ref().map_or(UpdateAction::Keep, Clone::clone);
            // Only the last run counts.
            outcome = decided.map(|update| update != UpdateAction::Keep);
            update
        })?;
        outcome
    }

    fn run(&self, key: &[u8], record: Option<Record<'_>>) -> Result<UpdateAction> {
        let mut change = Change { value: Bytes::NONE, attributes: Attributes::default() };
        let shown = record.map(|record| Shown::of(key, record));
        let decided = visiting(|| (self.visit)(self.context, Bytes::lend(key), shown.as_ref(), &mut change));
        self.decided(decided, &change)
    }

    fn decided(&self, decided: c_int, change: &Change) -> Result<UpdateAction> {
        Ok(match decided {
            TODANA_KEEP => UpdateAction::Keep,
            TODANA_PUT => UpdateAction::Value(change.value.as_slice()?.to_vec()),
            TODANA_PUT_WITH => UpdateAction::Record(OwnedRecord {
                value: change.value.as_slice()?.to_vec(),
                flags: change.attributes.flags(),
                // As of now: the update may have waited for a transaction.
                expiry: change.attributes.expiry(self.home.now()?)?,
                version: 0,
            }),
            TODANA_REMOVE => UpdateAction::Remove,
            other => return Err(invalid(format!("a visitor cannot return {other}"))),
        })
    }
}

/// A function that must not be NULL.
pub(crate) fn there<F>(function: Option<F>) -> Result<F> {
    function.ok_or_else(|| invalid("the function to call is NULL"))
}
