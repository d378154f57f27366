//! Indexes on existing rows: built in steps, and removed in steps.

use super::definitions::{Index, IndexState};
use super::{ENTRY, PutValue, ROW, RemoveRecord, TableEngine, row_key};
use std::ops::{Bound, ControlFlow};
use todana_core::Result;

/// The rows or entries of one step.
const STEP: usize = 128;
/// The most dropped indexes whose entries are left to the background.
const DROPPED_MAX: usize = 64;

impl TableEngine {
    /// Does a step of the work on an index that is not complete. Returns true if there is more.
    pub(super) fn build_step(&self) -> Result<bool> {
        let unfinished = {
            let indexes = self.indexes.read();
            indexes.0.iter().find(|index| index.state != IndexState::Complete).cloned()
        };
        match unfinished {
            None => Ok(false),
            Some(index) => match &index.state {
                IndexState::Building(last) => self.add_entries(&index, last),
                _ => self.remove_entries(&index),
            },
        }
    }

    /// Removes the entries of dropped indexes until few of them are left, before the definitions
    /// change.
    pub(super) fn limit_dropped(&self) -> Result<()> {
        loop {
            let next = {
                let indexes = self.indexes.read();
                let mut dropped = indexes.0.iter().filter(|index| index.state == IndexState::Dropped);
                let next = dropped.next().cloned();
                next.filter(|_| dropped.count() >= DROPPED_MAX)
            };
            match next {
                Some(index) => self.remove_entries(&index)?,
                None => return Ok(()),
            };
        }
    }

    /// Adds the entries of the rows that follow a key.
    fn add_entries(&self, index: &Index, last: &[u8]) -> Result<bool> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        // The row with the empty key, the definitions, is not indexed.
        self.rows_in_order().ascend(Bound::Excluded(&row_key(last)), &mut |key, _| {
            match key.split_first() {
                Some((&ROW, key)) => keys.push(key.to_vec()),
                _ => return ControlFlow::Break(()),
            }
            if keys.len() == STEP { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        for key in &keys {
            let indexes = self.indexes.read();
            if !indexes.0.iter().any(|now| now.number == index.number && now.state == index.state) {
                return Ok(true);
            }
            let _alone = self.stripe(key).lock();
            let mut entries = Vec::new();
            self.peek_row(key, &mut |row| {
                index.entry_keys(key, index.text(key, row), &mut |entry| entries.push(entry));
            })?;
            for entry in entries {
                self.inner.visit(&entry, &mut PutValue(b""))?;
            }
        }
        let mut indexes = self.indexes.write();
        let now = indexes.0.iter_mut().find(|now| now.number == index.number && now.state == index.state);
        if let Some(now) = now {
            match keys.pop() {
                Some(last) if keys.len() + 1 == STEP => now.state = IndexState::Building(last),
                _ => {
                    now.state = IndexState::Complete;
                    now.save(&*self.inner)?;
                }
            }
        }
        Ok(true)
    }

    /// Removes entries of an index that is no longer defined.
    fn remove_entries(&self, index: &Index) -> Result<bool> {
        // Otherwise another thread could finish the removal, and the number could be used again.
        let _alone = self.removing.lock();
        let indexes = self.indexes.read();
        if !indexes.0.iter().any(|now| now.number == index.number && now.state == IndexState::Dropped) {
            return Ok(true);
        }
        let [high, low] = index.number.to_be_bytes();
        let start = [ENTRY, high, low];
        let mut entries: Vec<Vec<u8>> = Vec::new();
        self.rows_in_order().ascend(Bound::Included(&start), &mut |key, _| {
            if !key.starts_with(&start) || entries.len() == STEP {
                return ControlFlow::Break(());
            }
            entries.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        for entry in &entries {
            self.inner.visit(entry, &mut RemoveRecord)?;
        }
        drop(indexes);
        if entries.len() < STEP {
            let mut indexes = self.indexes.write();
            index.forget(&*self.inner)?;
            indexes.0.retain(|now| now.number != index.number || now.state != IndexState::Dropped);
        }
        Ok(true)
    }
}
