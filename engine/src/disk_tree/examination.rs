//! Examines a tree: checks every page, every record with its checksum, and the totals.

use super::environment::MAP_BYTES_MIN;
use super::record_block::BlockRecords;
use super::state::RecordTotals;
use super::store::{SnapshotReader, TreeStore};
use super::{DiskTreeOptions, long_key_group, place, record};
use crate::disk::{ReadOnlyDisk, SystemDisk};
use std::path::Path;
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// The result of examining an undamaged tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExaminedTree {
    /// The number of records.
    pub records: u64,
    /// The number of records without a checksum. Version 1 of the format wrote such records.
    pub without_checksum: u64,
    /// The position in the update log up to which the tree is complete.
    pub mark: u64,
}

/// Examines the tree in a directory, which must not be open for writing.
pub(super) fn examine(path: &Path) -> Result<ExaminedTree> {
    // Opening the tree checks all pages.
    let options = DiskTreeOptions {
        map_bytes: MAP_BYTES_MIN,
        walked_bytes_max: u64::MAX,
        disk: Arc::new(ReadOnlyDisk::new(Arc::new(SystemDisk))),
        ..DiskTreeOptions::default()
    };
    let (store, state) = TreeStore::open(path, &options)?;
    let mut counts = ExaminationCounts::default();
    store.read(|SnapshotReader { snapshot, records, .. }| {
        let checksums = store.checksums();
        if store.is_in_blocks() {
            let mut last: Option<Vec<u8>> = None;
            for entry in records.iter(snapshot).map_err(|error| store.lmdb_error(&error))? {
                let (fence, value) = entry.map_err(|error| store.lmdb_error(&error))?;
                counts.add_block(&store, fence, value, &mut last);
            }
            return Ok(());
        }
        for entry in records.iter(snapshot).map_err(|error| store.lmdb_error(&error))? {
            let (at, value) = entry.map_err(|error| store.lmdb_error(&error))?;
            if at.len() < place::PLACE_LEN_MAX {
                let key = place::to_key(at);
                counts.add(
                    &store,
                    key,
                    checksums.verified(key, value),
                    checksums.after_mark(value).is_some(),
                );
                continue;
            }
            let group = store.group(at, value)?;
            for (rest, stored) in &group.records {
                let place = [at, rest].concat();
                let key = place::to_key(&place);
                let verified = long_key_group::verified(group.checksums(), key, stored);
                counts.add(&store, key, verified, group.checksums().is_some());
            }
        }
        Ok(())
    })?;
    if let Some(first) = counts.first_damage {
        let message = format!("{} records are damaged; the first: {first}", counts.damaged);
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let found = RecordTotals { with_expiry: state.totals.with_expiry, ..counts.totals };
    if found != state.totals {
        let message = format!(
            "the tree has {} records of {} bytes, but its state says {} of {}",
            found.records, found.bytes, state.totals.records, state.totals.bytes
        );
        return Err(store.named(&Error::new(ErrorKind::Corrupt, message)));
    }
    let ExaminationCounts { without_checksum, .. } = counts;
    Ok(ExaminedTree { records: found.records, without_checksum, mark: state.mark })
}

#[derive(Default)]
struct ExaminationCounts {
    totals: RecordTotals,
    without_checksum: u64,
    damaged: u64,
    first_damage: Option<Error>,
}

impl ExaminationCounts {
    /// Counts the records of a block. `last` is the last key of the blocks before it.
    fn add_block(&mut self, store: &TreeStore, fence: &[u8], value: &[u8], last: &mut Option<Vec<u8>>) {
        let mut buffer = Vec::new();
        let mut add_all = || -> Result<()> {
            let mut records = BlockRecords::new(store.block_records(fence, value, &mut buffer)?);
            while let Some(stored) = records.next()? {
                let key = records.key();
                // Only the first block may contain keys before its fence.
                if last.as_deref().is_some_and(|last| key <= last || key < fence) {
                    return Err(store.damaged_block(fence));
                }
                self.add(store, key, Some(stored), true);
                *last = Some(key.to_vec());
            }
            Ok(())
        };
        if let Err(error) = add_all() {
            self.damaged += 1;
            self.first_damage.get_or_insert(error);
        }
    }

    /// Counts a record. `stored` is the record without its checksum, or `None` if the checksum is
    /// wrong.
    fn add(&mut self, store: &TreeStore, key: &[u8], stored: Option<&[u8]>, has_checksum: bool) {
        let Some((stored, (attributes, _))) =
            stored.and_then(|stored| Some((stored, record::decode_header(stored)?)))
        else {
            self.damaged += 1;
            self.first_damage.get_or_insert_with(|| store.damaged(key));
            return;
        };
        let one = RecordTotals::one(key.len(), stored.len(), attributes.expiry);
        self.totals.records += one.records;
        self.totals.bytes += one.bytes;
        self.without_checksum += u64::from(!has_checksum);
    }
}
