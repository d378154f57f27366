//! Reads the intact records of a damaged tree, entry by entry, without a search.
//!
//! Searches rely on the order of LMDB's keys, which damage may have changed. Here every page is
//! read in the order in which the pages refer to each other, so a damaged key or value costs
//! nothing but its own record or block.

use super::environment::MAP_BYTES_MIN;
use super::pages::KeyOrderCheck;
use super::record_block::BlockRecords;
use super::state::TreeState;
use super::store::{SnapshotReader, TreeStore};
use super::{DiskTreeOptions, long_key_group, place, record};
use crate::disk::{ReadOnlyDisk, SystemDisk};
use std::path::Path;
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Record, Result};

/// The damaged records of a tree.
#[derive(Clone, Debug, Default)]
pub struct TreeDamage {
    /// The number of damaged records, groups of long keys, and blocks of records.
    pub count: u64,
    /// The number of bytes that they have in the file, without their keys in LMDB.
    pub bytes: u64,
    /// True if the first entry of the tree is one of them.
    pub is_at_start: bool,
    /// The first of them, at most [`TreeDamage::PLACES_MAX`].
    pub places: Vec<DamagedPlace>,
}

/// A damaged record, group of long keys, or block of records.
#[derive(Clone, Debug)]
pub struct DamagedPlace {
    /// The key of the record, or the key in LMDB from which the group or block begins.
    pub key: Vec<u8>,
    /// The error that names the place.
    pub error: Error,
}

impl TreeDamage {
    /// The maximum number of places that are listed.
    pub const PLACES_MAX: usize = 16;

    fn add(&mut self, key: &[u8], len: usize, error: Error) {
        self.count += 1;
        self.bytes += len as u64;
        if self.places.len() < TreeDamage::PLACES_MAX {
            self.places.push(DamagedPlace { key: key.to_vec(), error });
        }
    }

    /// Adds the damage if the error reports one. Returns other errors.
    fn add_corrupt(&mut self, key: &[u8], len: usize, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(error) if error.kind() == ErrorKind::Corrupt => self.add(key, len, error),
            outcome => outcome?,
        }
        Ok(())
    }
}

/// An intact record as it is stored, without its checksum.
pub(super) struct IntactRecord<'r> {
    pub(super) stored: &'r [u8],
    pub(super) has_checksum: bool,
}

/// A function that is called with each intact record.
type IntactCallback<'s> = dyn FnMut(&[u8], IntactRecord<'_>) -> Result<()> + 's;

/// A tree that is opened only to read its intact records.
pub struct TreeSalvage {
    store: TreeStore,
    state: TreeState,
}

impl TreeSalvage {
    /// Opens the tree in a directory for reading. Fails with `Corrupt` if pages cannot be read
    /// safely, with `Busy` if the tree is open for writing, and with `Invalid` if there is none.
    pub fn open(directory: &Path) -> Result<TreeSalvage> {
        TreeSalvage::open_with(directory, KeyOrderCheck::Skipped)
    }

    pub(super) fn open_with(directory: &Path, order: KeyOrderCheck) -> Result<TreeSalvage> {
        // Opening the tree checks all pages.
        let options = DiskTreeOptions {
            map_bytes: MAP_BYTES_MIN,
            walked_bytes_max: u64::MAX,
            disk: Arc::new(ReadOnlyDisk::new(Arc::new(SystemDisk))),
            ..DiskTreeOptions::default()
        };
        let (store, state) = TreeStore::open(directory, &options, order)?;
        Ok(TreeSalvage { store, state })
    }

    /// Returns the position in the update log up to which the tree is complete.
    pub fn mark(&self) -> u64 {
        self.state.mark
    }

    /// Returns the ID of the database to whose log the mark refers, if it is known.
    pub fn database_id(&self) -> Option<[u8; 16]> {
        self.store.database_id()
    }

    /// Returns the number of records that the tree had before it was damaged.
    pub fn records(&self) -> u64 {
        self.state.totals.records
    }

    pub(super) fn state(&self) -> TreeState {
        self.state
    }

    pub(super) fn store(&self) -> &TreeStore {
        &self.store
    }

    /// Passes every intact record to `see`, and returns the damage. Fails if `see` fails.
    pub fn for_each(&self, see: &mut dyn FnMut(&[u8], Record<'_>) -> Result<()>) -> Result<TreeDamage> {
        self.for_each_stored(&mut |key, IntactRecord { stored, .. }| match record::decode(stored) {
            Some(record) => see(key, record),
            None => Ok(()),
        })
    }

    pub(super) fn for_each_stored(&self, see: &mut IntactCallback<'_>) -> Result<TreeDamage> {
        let store = &self.store;
        let mut damage = TreeDamage::default();
        store.read(|SnapshotReader { snapshot, records, .. }| {
            let (mut last, mut is_at_start) = (None, true);
            for entry in records.iter(snapshot).map_err(|error| store.lmdb_error(&error))? {
                let (at, value) = entry.map_err(|error| store.lmdb_error(&error))?;
                if store.is_in_blocks() {
                    let outcome = see_block(store, at, value, &mut last, see)?;
                    damage.add_corrupt(at, value.len(), outcome)?;
                } else if at.len() < place::PLACE_LEN_MAX {
                    let (key, checksums) = (place::to_key(at), store.checksums());
                    let has_checksum = checksums.after_mark(value).is_some();
                    match checksums.verified(key, value).filter(|stored| record::decode(stored).is_some()) {
                        Some(stored) => see(key, IntactRecord { stored, has_checksum })?,
                        None => damage.add(key, value.len(), store.damaged(key)),
                    }
                } else {
                    see_group(store, at, value, &mut damage, see)?;
                }
                damage.is_at_start |= is_at_start && damage.count > 0;
                is_at_start = false;
            }
            Ok(())
        })?;
        Ok(damage)
    }
}

/// Passes the records of a block to `see`. `last` is the last key of the blocks before it. Returns
/// the damage of the block as the inner result, and the error of `see` as the outer one.
fn see_block(
    store: &TreeStore,
    fence: &[u8],
    value: &[u8],
    last: &mut Option<Vec<u8>>,
    see: &mut IntactCallback<'_>,
) -> Result<Result<()>> {
    let mut buffer = Vec::new();
    let mut records = match store.block_records(fence, value, &mut buffer) {
        Ok(plain) => BlockRecords::new(plain),
        Err(error) => return Ok(Err(error)),
    };
    loop {
        let stored = match records.next() {
            Ok(None) => return Ok(Ok(())),
            Ok(Some(stored)) if record::decode(stored).is_some() => stored,
            _ => return Ok(Err(store.damaged_block(fence))),
        };
        let key = records.key();
        // Only the first block may contain keys before its fence.
        if last.as_deref().is_some_and(|last| key <= last || key < fence) {
            return Ok(Err(store.damaged_block(fence)));
        }
        see(key, IntactRecord { stored, has_checksum: true })?;
        *last = Some(key.to_vec());
    }
}

fn see_group(
    store: &TreeStore,
    at: &[u8],
    value: &[u8],
    damage: &mut TreeDamage,
    see: &mut IntactCallback<'_>,
) -> Result<()> {
    let group = match store.group(at, value) {
        Ok(group) => group,
        Err(error) => return damage.add_corrupt(at, value.len(), Err(error)),
    };
    for (rest, stored) in &group.records {
        let place = [at, rest].concat();
        let key = place::to_key(&place);
        let verified = long_key_group::verified(group.checksums(), key, stored);
        match verified.filter(|stored| record::decode(stored).is_some()) {
            Some(stored) => see(key, IntactRecord { stored, has_checksum: group.checksums().is_some() })?,
            None => damage.add(key, stored.len(), store.damaged(key)),
        }
    }
    Ok(())
}
