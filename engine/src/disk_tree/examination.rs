//! Reads all of a tree: every page, every record with its checksum, and whether there are as many as the state says.

use super::environment::MAP_BYTES_MIN;
use super::state::Totals;
use super::store::Store;
use super::{DiskTreeOptions, place, record, sheaf};
use crate::disk::{ReadOnlyDisk, SystemDisk};
use std::path::Path;
use std::sync::Arc;
use todana_core::{Error, ErrorKind, Result};

/// What an examination of a tree that is not damaged has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExaminedTree {
    /// How many records it has.
    pub records: u64,
    /// Those among them that version 1 of the format has written, without a checksum.
    pub without_checksum: u64,
    /// The position up to which the tree has what its update log has.
    pub mark: u64,
}

/// Examines the tree in a directory, which nobody may have open for writing.
pub(super) fn examine(path: &Path) -> Result<ExaminedTree> {
    // Opening it walks all pages.
    let options = DiskTreeOptions {
        map_bytes: MAP_BYTES_MIN,
        walked_bytes_max: u64::MAX,
        disk: Arc::new(ReadOnlyDisk::new(Arc::new(SystemDisk))),
        ..DiskTreeOptions::default()
    };
    let (store, state) = Store::open(path, &options)?;
    let mut counts = Counts::default();
    store.read(|snapshot, records| {
        let checksums = store.checksums();
        for entry in records.iter(snapshot).map_err(|error| store.trouble(&error))? {
            let (at, value) = entry.map_err(|error| store.trouble(&error))?;
            if at.len() < place::PLACE_LEN_MAX {
                let key = place::to_key(at);
                counts.add(
                    &store,
                    key,
                    checksums.verified(key, value),
                    checksums.behind_mark(value).is_some(),
                );
                continue;
            }
            let sheaf = store.sheaf(at, value)?;
            for (rest, stored) in &sheaf.stalks {
                let place = [at, rest].concat();
                let key = place::to_key(&place);
                let verified = sheaf::verified(sheaf.checksums(), key, stored);
                counts.add(&store, key, verified, sheaf.checksums().is_some());
            }
        }
        Ok(())
    })?;
    if let Some(first) = counts.first_damage {
        let message = format!("{} records are damaged; the first: {first}", counts.damaged);
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let found = Totals { perishable: state.totals.perishable, ..counts.totals };
    if found != state.totals {
        let message = format!(
            "it has {} records of {} bytes, and its state says {} of {}",
            found.records, found.bytes, state.totals.records, state.totals.bytes
        );
        return Err(store.named(&Error::new(ErrorKind::Corrupt, message)));
    }
    let Counts { without_checksum, .. } = counts;
    Ok(ExaminedTree { records: found.records, without_checksum, mark: state.mark })
}

#[derive(Default)]
struct Counts {
    totals: Totals,
    without_checksum: u64,
    damaged: u64,
    first_damage: Option<Error>,
}

impl Counts {
    /// `stored`: the record without its checksum; `None` if that differs.
    fn add(&mut self, store: &Store, key: &[u8], stored: Option<&[u8]>, has_checksum: bool) {
        let Some((stored, (attributes, _))) =
            stored.and_then(|stored| Some((stored, record::decode_header(stored)?)))
        else {
            self.damaged += 1;
            self.first_damage.get_or_insert_with(|| store.damaged(key));
            return;
        };
        let one = Totals::one(key.len(), stored.len(), attributes.expiry);
        self.totals.records += one.records;
        self.totals.bytes += one.bytes;
        self.without_checksum += u64::from(!has_checksum);
    }
}
