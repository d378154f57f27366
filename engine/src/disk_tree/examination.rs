//! Examines a tree: checks every page, every record with its checksum, and the totals.

use super::pages::KeyOrderCheck;
use super::record;
use super::salvage::{IntactRecord, TreeDamage, TreeSalvage};
use super::state::RecordTotals;
use std::path::Path;
use todana_core::{Error, ErrorKind, Result};

/// The records of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExaminedTree {
    /// The number of intact records.
    pub records: u64,
    /// The number of records without a checksum. Version 1 of the format wrote such records.
    pub without_checksum: u64,
    /// The position in the update log up to which the tree is complete.
    pub mark: u64,
}

/// The result of examining a tree whose pages can be read.
#[derive(Clone, Debug, Default)]
pub struct TreeExamination {
    /// The intact records.
    pub tree: ExaminedTree,
    /// The damaged records.
    pub damage: TreeDamage,
    /// A damage that makes no record unreadable: keys in the wrong order, or wrong totals.
    pub disorder: Option<Error>,
}

impl TreeExamination {
    /// Returns the intact tree. Fails with `Corrupt` if anything is damaged.
    pub(super) fn into_intact(self) -> Result<ExaminedTree> {
        if let Some(disorder) = self.disorder {
            return Err(disorder);
        }
        let Some(first) = self.damage.places.first() else { return Ok(self.tree) };
        let message = format!("{} records are damaged; the first: {}", self.damage.count, first.error);
        Err(Error::new(ErrorKind::Corrupt, message))
    }
}

/// Examines the tree in a directory, which must not be open for writing.
pub(super) fn examine(path: &Path) -> Result<TreeExamination> {
    let (tree, mut disorder) = match TreeSalvage::open_with(path, KeyOrderCheck::Done) {
        Err(error) if error.kind() == ErrorKind::Corrupt => match TreeSalvage::open(path) {
            Ok(tree) => (tree, Some(error)),
            Err(_) => return Err(error),
        },
        opened => (opened?, None),
    };
    let (mut totals, mut without_checksum) = (RecordTotals::default(), 0);
    let damage = tree.for_each_stored(&mut |key, IntactRecord { stored, has_checksum }| {
        let expiry = record::decode(stored).map(|record| record.attributes.expiry).unwrap_or_default();
        let one = RecordTotals::one(key.len(), stored.len(), expiry);
        totals.records += one.records;
        totals.bytes += one.bytes;
        without_checksum += u64::from(!has_checksum);
        Ok(())
    })?;
    let state = tree.state();
    let stated = RecordTotals { with_expiry: totals.with_expiry, ..state.totals };
    if damage.count == 0 && disorder.is_none() && totals != stated {
        let message = format!(
            "the tree has {} records of {} bytes, but its state says {} of {}",
            totals.records, totals.bytes, stated.records, stated.bytes
        );
        disorder = Some(tree.store().named(&Error::new(ErrorKind::Corrupt, message)));
    }
    let tree = ExaminedTree { records: totals.records, without_checksum, mark: state.mark };
    Ok(TreeExamination { tree, damage, disorder })
}
