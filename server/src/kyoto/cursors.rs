//! Calls about a cursor.
//!
//! A cursor whose record is gone moves on to the next before anything is read or done there.

use super::executor::{Answer, Scope, failure, records};
use super::procedures::{Ended, NO_PERMISSION, NO_RECORD, with_time};
use super::reach::Reach;
use super::session::Session;
use todana::kyoto::Kyoto;
use todana::{Cursor, Records};
use todana_core::Result as Outcome;
use todana_protocol::kyoto::{Call, Failure, Procedure, Status, Trouble};

/// How many a connection may have.
const CURSORS_MAX: usize = 1024;

const NOT_HERE: Failure<'static> = Failure::Database(Trouble::NotImplemented);

impl Scope {
    /// Executes a call about a cursor.
    pub(super) fn cursor(
        &self,
        session: &mut Session,
        procedure: Procedure,
        call: &Call<'_>,
        answer: &mut Answer<'_>,
    ) -> Ended {
        let number = call.cursor().ok_or(Failure::NoSuchCursor)?;
        if procedure == Procedure::CursorDelete {
            self.counters().misc.add(1);
            session.cursors.remove(&number).ok_or(Failure::NoSuchProcedure(b"cur_delete"))?;
            answer.done(&[]);
            return Ok(());
        }
        if !self.shared.options.dump_allowed {
            return Err(NO_PERMISSION);
        }
        let is_new = !session.cursors.contains_key(&number);
        if is_new {
            let reach = self.reach(call.target()).map_err(|_| Failure::NoSuchCursor)?;
            if session.cursors.len() == CURSORS_MAX {
                let text = "this connection has too many cursors";
                return Err(Failure::Other { status: Status::BadRequest, text });
            }
            session.cursors.insert(number, Cursor::new(reach.clone()));
        }
        let cursor = session.cursors.get_mut(&number).ok_or(Failure::NoSuchCursor)?;
        // A cursor keeps its database, whatever a later call names.
        let reach = cursor.records().clone();
        let records = records(&reach);
        match procedure {
            Procedure::CursorJump => {
                self.counters().misc.add(1);
                let outcome = match call.optional(b"key") {
                    Some(key) => cursor.jump(key),
                    None => cursor.first(),
                };
                at_record(outcome)?;
                answer.done(&[]);
            }
            Procedure::CursorJumpBack | Procedure::CursorStepBack => {
                self.counters().misc.add(1);
                if !reach.is_ordered() {
                    return Err(NOT_HERE);
                }
                let outcome = match call.optional(b"key") {
                    _ if procedure == Procedure::CursorStepBack => cursor.step_back(),
                    Some(key) => cursor.jump_back(key),
                    None => cursor.last(),
                };
                at_record(outcome)?;
                answer.done(&[]);
            }
            Procedure::CursorStep => {
                self.counters().misc.add(1);
                at_record(cursor.step())?;
                answer.done(&[]);
            }
            Procedure::CursorSetValue => self.set_value(cursor, &records, call, answer)?,
            Procedure::CursorRemove => {
                self.counters().remove.add(1);
                let removed = take(cursor, &records);
                if !matches!(removed, Ok(Some(_))) {
                    self.counters().remove_misses.add(1);
                }
                removed.map_err(failure)?.ok_or(NO_RECORD)?;
                answer.done(&[]);
            }
            Procedure::CursorSeize => {
                self.counters().get.add(1);
                let taken = take(cursor, &records);
                if !matches!(taken, Ok(Some(_))) {
                    self.counters().get_misses.add(1);
                }
                let (key, value, time) = taken.map_err(failure)?.ok_or(NO_RECORD)?;
                tell(&key, &value, time, answer);
            }
            _ => self.look(cursor, &records, procedure, call, answer)?,
        }
        Ok(())
    }

    fn set_value(
        &self,
        cursor: &mut Cursor<Reach>,
        records: &Kyoto<&Reach>,
        call: &Call<'_>,
        answer: &mut Answer<'_>,
    ) -> Ended {
        let value = call.required(b"value")?;
        self.counters().set.add(1);
        let time = self.time(call);
        let stored = each(cursor, |key| Ok(records.replace(key, value, time)?.then_some(())));
        if !matches!(stored, Ok(Some(()))) {
            self.counters().set_misses.add(1);
        }
        stored.map_err(failure)?.ok_or(NO_RECORD)?;
        step_if_asked(cursor, call)?;
        answer.done(&[]);
        Ok(())
    }

    /// `cur_get_key`, `cur_get_value` and `cur_get`.
    fn look(
        &self,
        cursor: &mut Cursor<Reach>,
        records: &Kyoto<&Reach>,
        procedure: Procedure,
        call: &Call<'_>,
        answer: &mut Answer<'_>,
    ) -> Ended {
        self.counters().get.add(1);
        let found = each(cursor, |key| {
            let mut found = None;
            records.view(key, &mut |value, time| found = Some((key.to_vec(), value.to_vec(), time)))?;
            Ok(found)
        });
        if !matches!(found, Ok(Some(_))) {
            self.counters().get_misses.add(1);
        }
        let (key, value, time) = found.map_err(failure)?.ok_or(NO_RECORD)?;
        step_if_asked(cursor, call)?;
        match procedure {
            Procedure::CursorGetKey => answer.done(&[("key", &key)]),
            Procedure::CursorGetValue => answer.done(&[("value", &value)]),
            _ => tell(&key, &value, time, answer),
        }
        Ok(())
    }
}

fn at_record(outcome: Outcome<bool>) -> Ended {
    if outcome.map_err(failure)? { Ok(()) } else { Err(NO_RECORD) }
}

/// Behind what was read there may be nothing: the cursor stands nowhere then.
fn step_if_asked(cursor: &mut Cursor<Reach>, call: &Call<'_>) -> Ended {
    if call.flag(b"step") {
        cursor.step().map_err(failure)?;
    }
    Ok(())
}

fn tell(key: &[u8], value: &[u8], time: Option<u64>, answer: &mut Answer<'_>) {
    with_time(time, "value", value, |pairs| {
        let mut all = vec![("key", key)];
        all.extend_from_slice(pairs);
        answer.done(&all);
    });
}

/// Does something at the record where a cursor stands or, as long as that turns out to be gone, at the next. `None`: there is none.
fn each<T>(
    cursor: &mut Cursor<Reach>,
    mut act: impl FnMut(&[u8]) -> Outcome<Option<T>>,
) -> Outcome<Option<T>> {
    while let Some(key) = cursor.key() {
        let key = key.to_vec();
        if let Some(done) = act(&key)? {
            return Ok(Some(done));
        }
        // A step from a key that is gone goes to the next one.
        cursor.step()?;
    }
    Ok(None)
}

/// A record: key, value, time.
type Taken = (Vec<u8>, Vec<u8>, Option<u64>);

/// Removes the record where a cursor stands, and moves it on.
fn take(cursor: &mut Cursor<Reach>, records: &Kyoto<&Reach>) -> Outcome<Option<Taken>> {
    let taken = each(cursor, |key| {
        let mut taken = None;
        let is_gone =
            records.seize(key, &mut |value, time| taken = Some((key.to_vec(), value.to_vec(), time)))?;
        Ok(taken.filter(|_| is_gone))
    })?;
    if taken.is_some() {
        cursor.step()?;
    }
    Ok(taken)
}
