//! Keeps a database within a number of records or bytes where its engine does not: others go for new ones.
//!
//! A hand goes round over all records in the order of the engine's scans, and what it comes to goes. So which ones go has nothing to do with
//! their use: noting uses on disk would cost a write a read.

use super::{Database, Overwrite};
use crate::{Lane, Name};
use parking_lot::Mutex;
use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use todana_core::{Action, Place, Result};

/// Taken at once.
const VICTIMS_MAX: u64 = 64;
/// Counting is cheap, but not free: done every so many writes where the limit has so much slack.
const WRITES_MAX: u64 = 64;
const BYTES_LARGE: u64 = 64 << 20;

/// Keeps a database within the number of records or bytes that its name says, where its engine does not do so itself.
pub(super) struct Limiter {
    records_max: u64,
    bytes_max: u64,
    /// Writes between two counts.
    every: u64,
    writes: AtomicU64,
    hand: Mutex<Option<Place>>,
}

impl Limiter {
    /// That of a database of this name; `None` where there is nothing to limit, or the engine does it.
    pub(super) fn of(name: &Name) -> Option<Limiter> {
        let records_max = name.tuning.records_max.filter(|_| !name.kind.limits_records());
        let bytes_max = name.tuning.bytes_max.filter(|_| !name.kind.limits_bytes());
        Limiter::new(records_max, bytes_max)
    }

    /// `None` where there is nothing to limit.
    fn new(records_max: Option<u64>, bytes_max: Option<u64>) -> Option<Limiter> {
        if records_max.is_none() && bytes_max.is_none() {
            return None;
        }
        let by_records = records_max.map_or(WRITES_MAX, |max| (max / 1024).clamp(1, WRITES_MAX));
        let every = match bytes_max {
            Some(max) if max < BYTES_LARGE => 1,
            Some(_) => by_records.min(16),
            None => by_records,
        };
        // What comes until the next count fits, too.
        let records_max = records_max.map_or(u64::MAX, |max| max - (every - 1).min(max));
        let bytes_max = bytes_max.unwrap_or(u64::MAX);
        Some(Limiter { records_max, bytes_max, every, writes: AtomicU64::new(0), hand: Mutex::default() })
    }

    /// To be called after each write; `written` stays, unless it is alone and too large. Others go, a few for each write at most times, as soon
    /// as there are too many.
    ///
    /// The write is made all the same. Where nothing can be removed, the next one is refused, or others go with that.
    #[cold]
    pub(super) fn enforce(&self, database: &Database, lane: &Lane, written: &[u8]) {
        if self.writes.fetch_add(1, Ordering::Relaxed) % self.every != self.every - 1 {
            return;
        }
        let _ = self.relieve(database, written, &mut |key| {
            database.visit_in(database.space(&Cell::default()), lane, key, &mut Overwrite(Action::Remove))
        });
    }

    /// The same for what transactions have written, and for what was there before it was limited; to be called again and again. Some tens of
    /// records go at a time. Does not wait for a transaction that is open.
    pub(super) fn keep_house(&self, database: &Database, lane: &Lane) -> Result<()> {
        if self.surplus(database) == 0 {
            return Ok(());
        }
        // The hand first: a writer that has it may wait for a transaction to end, so none must wait for the hand.
        let Some(mut hand) = self.hand.try_lock() else { return Ok(()) };
        let Some(transaction) = database.try_begin(lane) else { return Ok(()) };
        let surplus = self.surplus(database).max(self.heavy(database)).min(VICTIMS_MAX);
        let (victims, gone) = victims(database, &mut hand, surplus, &[])?;
        for key in victims.iter().take(surplus.saturating_sub(gone) as usize) {
            transaction.visit_record(key, &mut Overwrite(Action::Remove))?;
        }
        drop(hand);
        transaction.commit()
    }

    /// At least how many records are too many. Of too many bytes it is known when they are gone.
    fn surplus(&self, database: &Database) -> u64 {
        let status = database.engine().status();
        let too_long = u64::from(status.live_bytes > self.bytes_max && status.records > 1);
        status.records.saturating_sub(self.records_max).max(too_long)
    }

    /// Half as many records as it would take to be rid of too many bytes, were all of one length.
    fn heavy(&self, database: &Database) -> u64 {
        let status = database.engine().status();
        let too_many = u128::from(status.live_bytes.saturating_sub(self.bytes_max));
        let records = too_many * u128::from(status.records) / 2 / u128::from(status.live_bytes.max(1));
        u64::try_from(records).unwrap_or(u64::MAX)
    }

    fn relieve(
        &self,
        database: &Database,
        spared: &[u8],
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        if self.surplus(database) == 0 {
            return Ok(());
        }
        let mut hand = self.hand.lock();
        loop {
            // Others may have taken some meanwhile.
            let surplus = self.surplus(database).min(VICTIMS_MAX);
            if surplus == 0 {
                return Ok(());
            }
            let (victims, gone) = victims(database, &mut hand, surplus, spared)?;
            if victims.is_empty() && gone == 0 {
                return Ok(());
            }
            let left = surplus.saturating_sub(gone) as usize;
            victims.iter().take(left).try_for_each(|key| take(key))?;
        }
    }
}

/// So many keys from the hand on, fewer if there are no more; and how many damaged records went that the hand has come to. Those have no key to
/// go by, and nobody can read them: they go before others do.
fn victims(
    database: &Database,
    hand: &mut Option<Place>,
    count: u64,
    spared: &[u8],
) -> Result<(Vec<Vec<u8>>, u64)> {
    let mut victims = Vec::new();
    for round in 0..2 {
        let outcome = database.engine().scan_whole(hand.take(), &mut |key, _| {
            if key != spared {
                victims.push(key.to_vec());
            }
            if victims.len() as u64 >= count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match outcome {
            Ok(place) => *hand = place,
            Err(error) if victims.is_empty() && round > 0 => return Err(error),
            // What lies before that which cannot be read can go; the hand begins anew.
            Err(_) => {}
        }
        if !victims.is_empty() {
            break;
        }
    }
    // Those that lie together come together.
    victims.truncate(usize::try_from(count).unwrap_or(usize::MAX));
    let gone = database.engine().durable().map_or(Ok(0), |durable| durable.remove_damaged(count))?;
    Ok((victims, gone))
}
