//! Calls about records, and the few that are about the server.

use super::answer_memory::Collected;
use super::answers::{Answer, DUPLICATION, Ended, NO_PERMISSION, NO_RECORD, failure};
use super::reach::Reach;
use super::scope::{Scope, records};
use super::session::KyotoSession;
use todana::Records;
use todana::kyoto::{IncrementOrigin, KyotoRecords};
use todana_core::Result as Outcome;
use todana_protocol::kyoto::{self, Call, Failure, Procedure, Trouble, expiry, number};

/// Where something is to be stored, its key, its value and its time.
type ToStore<'r, 'c> = (KyotoRecords<&'r Reach>, &'c [u8], &'c [u8], u64);

const ILLOGICAL: Failure<'static> = Failure::Database(Trouble::LogicalInconsistency);

/// Pairs of an answer that shows a record.
pub(super) fn with_time<T>(
    time: Option<u64>,
    name: &'static str,
    value: &[u8],
    tell: impl FnOnce(&[(&str, &[u8])]) -> T,
) -> T {
    match time {
        None => tell(&[(name, value)]),
        Some(time) => tell(&[(name, value), ("xt", itoa::Buffer::new().format(time).as_bytes())]),
    }
}

fn origin<T: Into<IncrementOrigin<T>>>(asked: kyoto::Origin<T>) -> IncrementOrigin<T> {
    match asked {
        kyoto::Origin::From(number) => number.into(),
        kyoto::Origin::Try => IncrementOrigin::Try,
        kyoto::Origin::Set => IncrementOrigin::Set,
    }
}

/// Whether it may change a record.
fn changes(procedure: Procedure) -> bool {
    matches!(
        procedure,
        Procedure::Set
            | Procedure::Add
            | Procedure::Replace
            | Procedure::Append
            | Procedure::Increment
            | Procedure::IncrementDouble
            | Procedure::Cas
            | Procedure::Remove
            | Procedure::Seize
            | Procedure::SetBulk
            | Procedure::RemoveBulk
            | Procedure::Clear
            | Procedure::CursorSetValue
            | Procedure::CursorRemove
            | Procedure::CursorSeize
    )
}

impl Scope {
    /// Executes a call and answers it.
    pub(super) fn procedure(
        &self,
        session: &mut KyotoSession,
        call: &Call<'_>,
        pairs: &mut kyoto::Output,
        answer: &mut Answer<'_>,
    ) {
        let Some(procedure) = call.procedure else {
            return answer.failed(Failure::NoSuchProcedure(call.name));
        };
        // A cursor has a database of its own, which refuses by itself.
        let is_of_reader =
            || call.cursor().is_none() && self.reach(call.target()).is_ok_and(Reach::is_read_only);
        if changes(procedure) && (self.is_read_only() || is_of_reader()) {
            return answer.failed(NO_PERMISSION);
        }
        let ended = match procedure {
            Procedure::Get => self.get(call, answer),
            Procedure::Set => self.set(call, answer),
            Procedure::Add => self.add(call, answer),
            Procedure::Replace => self.replace(call, answer),
            Procedure::Append => self.append(call, answer),
            Procedure::Increment => self.increment(call, answer),
            Procedure::IncrementDouble => self.increment_double(call, answer),
            Procedure::Cas => self.cas(call, answer),
            Procedure::Remove => self.remove(call, answer),
            Procedure::Check => self.check(call, answer),
            Procedure::Seize => self.seize(call, answer),
            Procedure::SetBulk => self.set_bulk(call, answer),
            Procedure::RemoveBulk => self.remove_bulk(call, answer),
            Procedure::GetBulk => self.get_bulk(call, answer),
            Procedure::Clear => self.clear(call, answer),
            Procedure::Void => {
                answer.done(&[]);
                Ok(())
            }
            Procedure::Echo => {
                pairs.clear();
                call.input.iter().for_each(|(name, value)| pairs.push(name, value));
                answer.done_with(pairs);
                Ok(())
            }
            Procedure::Report => {
                self.report(pairs);
                answer.done_with(pairs);
                Ok(())
            }
            Procedure::Status => self.status(call, pairs, answer),
            Procedure::TuneReplication => self.tune_replication(call, answer),
            Procedure::UlogList => self.list_logs(pairs, answer),
            procedure => self.cursor(session, procedure, call, answer),
        };
        if let Err(failure) = ended {
            answer.failed(failure);
        }
    }

    /// The records that a call is about.
    #[inline]
    pub(super) fn records(&self, call: &Call<'_>) -> Result<KyotoRecords<&Reach>, Failure<'static>> {
        self.reach(call.target()).map(records)
    }

    /// The time that a call gives to what it stores.
    #[inline]
    pub(super) fn time(&self, call: &Call<'_>) -> u64 {
        expiry::resolve(call.xt(), self.now())
    }

    fn get(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let records = self.records(call)?;
        let key = call.required(b"key")?;
        self.counters().get.add(1);
        let mut see = |value: &[u8], time| with_time(time, "value", value, |pairs| answer.done(pairs));
        self.found(records.view(key, &mut see))
    }

    fn check(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let records = self.records(call)?;
        let key = call.required(b"key")?;
        self.counters().get.add(1);
        let mut see = |value: &[u8], time| {
            let mut len = itoa::Buffer::new();
            with_time(time, "vsiz", len.format(value.len()).as_bytes(), |pairs| answer.done(pairs));
        };
        self.found(records.view(key, &mut see))
    }

    /// Whether a record was found; counts it if not.
    fn found(&self, outcome: Outcome<bool>) -> Ended {
        let outcome = outcome.map_err(failure);
        if outcome != Ok(true) {
            self.counters().get_misses.add(1);
        }
        if outcome? { Ok(()) } else { Err(NO_RECORD) }
    }

    fn seize(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let records = self.records(call)?;
        let key = call.required(b"key")?;
        self.counters().get.add(1);
        self.counters().remove.add(1);
        let mut seized = None;
        // Told behind it: it may be looked at more than once before it is gone.
        let outcome = records.seize(key, &mut |value, time| seized = Some((value.to_vec(), time)));
        if !matches!(outcome, Ok(true)) {
            self.counters().remove_misses.add(1);
        }
        self.found(outcome)?;
        let (value, time) = seized.ok_or(NO_RECORD)?;
        with_time(time, "value", &value, |pairs| answer.done(pairs));
        Ok(())
    }

    /// Whether something was stored; counts it if not.
    #[inline]
    fn stored(&self, outcome: Outcome<bool>, otherwise: Failure<'static>, answer: &mut Answer<'_>) -> Ended {
        match outcome {
            Ok(true) => {
                answer.done(&[]);
                Ok(())
            }
            other => {
                self.counters().set_misses.add(1);
                Err(other.map_or_else(failure, |_| otherwise))
            }
        }
    }

    /// What a call stores, and where.
    #[inline]
    fn to_store<'c>(&self, call: &Call<'c>) -> Result<ToStore<'_, 'c>, Failure<'static>> {
        let records = self.records(call)?;
        let (key, value) = (call.required(b"key")?, call.required(b"value")?);
        self.counters().set.add(1);
        Ok((records, key, value, self.time(call)))
    }

    fn set(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let (records, key, value, time) = self.to_store(call)?;
        self.stored(records.set(key, value, time).map(|()| true), NO_RECORD, answer)
    }

    fn add(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let (records, key, value, time) = self.to_store(call)?;
        self.stored(records.add(key, value, time), DUPLICATION, answer)
    }

    fn replace(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let (records, key, value, time) = self.to_store(call)?;
        self.stored(records.replace(key, value, time), NO_RECORD, answer)
    }

    fn append(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let (records, key, value, time) = self.to_store(call)?;
        self.stored(records.append(key, value, time).map(|()| true), NO_RECORD, answer)
    }

    fn increment(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let records = self.records(call)?;
        let key = call.required(b"key")?;
        let delta = number::integer(call.required(b"num")?);
        self.counters().set.add(1);
        let sum = records.increment(key, delta, origin(call.integer_origin()), self.time(call));
        self.summed(sum, answer, |sum| sum.to_string())
    }

    fn increment_double(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let records = self.records(call)?;
        let key = call.required(b"key")?;
        let delta = number::real(call.required(b"num")?);
        self.counters().set.add(1);
        let sum = records.increment_double(key, delta, origin(call.real_origin()), self.time(call));
        self.summed(sum, answer, number::format_real)
    }

    fn summed<T>(
        &self,
        sum: Outcome<Option<T>>,
        answer: &mut Answer<'_>,
        format: impl FnOnce(T) -> String,
    ) -> Ended {
        if !matches!(sum, Ok(Some(_))) {
            self.counters().set_misses.add(1);
        }
        let sum = sum.map_err(failure)?.ok_or(ILLOGICAL)?;
        answer.done(&[("num", format(sum).as_bytes())]);
        Ok(())
    }

    fn cas(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let records = self.records(call)?;
        let key = call.required(b"key")?;
        self.counters().set.add(1);
        let (old, new) = (call.optional(b"oval"), call.optional(b"nval"));
        let outcome = records.compare_and_swap(key, old, new, self.time(call));
        self.stored(outcome, Failure::STATUS_CONFLICT, answer)
    }

    fn remove(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let records = self.records(call)?;
        let key = call.required(b"key")?;
        self.counters().remove.add(1);
        match records.remove(key) {
            Ok(true) => {
                answer.done(&[]);
                Ok(())
            }
            other => {
                self.counters().remove_misses.add(1);
                Err(other.map_or_else(failure, |_| NO_RECORD))
            }
        }
    }

    /// Does something to all of a bulk call, or, if it is to be atomic, to nothing.
    fn together<T>(
        &self,
        call: &Call<'_>,
        mut work: impl FnMut(&dyn Apply) -> Outcome<T>,
    ) -> Result<T, Failure<'static>> {
        let reach = self.reach(call.target())?;
        let is_persistent = reach.served().name.tuning.persistent;
        let outcome = if call.flag(b"atomic") {
            let begin = reach.served().database.begin(reach.worker_counters());
            begin.and_then(|transaction| {
                let outcome = work(&KyotoRecords::new(&transaction, is_persistent))?;
                reach.commit(transaction)?;
                Ok(outcome)
            })
        } else {
            work(&KyotoRecords::new(reach, is_persistent))
        };
        outcome.map_err(failure)
    }

    fn set_bulk(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let time = self.time(call);
        let count = call.records().count() as u64;
        self.counters().set.add(count);
        let outcome = self.together(call, |records| {
            call.records().try_for_each(|(key, value)| records.set(key, value, time))
        });
        if outcome.is_err() {
            self.counters().set_misses.add(count);
        }
        outcome?;
        answer.done(&[("num", itoa::Buffer::new().format(count).as_bytes())]);
        Ok(())
    }

    fn remove_bulk(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let given = call.records().count() as u64;
        self.counters().remove.add(given);
        let outcome = self.together(call, |records| {
            let mut removed = 0u64;
            for (key, _) in call.records() {
                removed += u64::from(records.remove(key)?);
            }
            Ok(removed)
        });
        self.counters().remove_misses.add(given - outcome.as_ref().map_or(0, |&removed| removed));
        answer.done(&[("num", itoa::Buffer::new().format(outcome?).as_bytes())]);
        Ok(())
    }

    fn get_bulk(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let given = call.records().count() as u64;
        self.counters().get.add(given);
        let outcome = self.together(call, |records| {
            let mut pairs = Collected::new(&self.shared);
            for (key, _) in call.records() {
                let mut outcome = Ok(());
                records.view(key, &mut |value| outcome = pairs.push(b"_", key, value, None))?;
                if let Err(lack) = outcome {
                    return Ok(Err(lack));
                }
            }
            Ok(Ok(pairs))
        });
        let found = outcome.as_ref().map_or(0, |found| found.as_ref().map_or(0, Collected::len)) as u64;
        self.counters().get_misses.add(given - found);
        let mut pairs = outcome??;
        pairs.push(b"", b"num", itoa::Buffer::new().format(found).as_bytes(), None)?;
        answer.done_with_many(pairs);
        Ok(())
    }

    fn clear(&self, call: &Call<'_>, answer: &mut Answer<'_>) -> Ended {
        let reach = self.reach(call.target())?;
        self.counters().misc.add(1);
        if !self.shared.options.limits.flush_allowed {
            return Err(NO_PERMISSION);
        }
        reach.clear().map_err(failure)?;
        answer.done(&[]);
        Ok(())
    }
}

/// What bulk calls do, in a transaction or outside of one.
trait Apply {
    fn set(&self, key: &[u8], value: &[u8], time: u64) -> Outcome<()>;
    fn remove(&self, key: &[u8]) -> Outcome<bool>;
    fn view(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool>;
}

impl<R: Records> Apply for KyotoRecords<R> {
    fn set(&self, key: &[u8], value: &[u8], time: u64) -> Outcome<()> {
        KyotoRecords::set(self, key, value, time)
    }

    fn remove(&self, key: &[u8]) -> Outcome<bool> {
        KyotoRecords::remove(self, key)
    }

    fn view(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Outcome<bool> {
        KyotoRecords::view(self, key, &mut |value, _| see(value))
    }
}
