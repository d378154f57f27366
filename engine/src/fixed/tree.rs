//! Numbered records in an ordered engine: under keys of eight bytes, which have the order of the
//! numbers.
//!
//! ```text
//! inner engine: (empty key)          the layout: width and largest number, as `width=N number_max=N`
//!               number (8 bytes, big-endian)    the record
//! ```
//!
//! Only an engine on disk stores its layout. A database that has a layout keeps it: the one with
//! which the engine is opened counts only for a new database. Checksums, checkpoints and copies are
//! those of the inner engine.
//!
//! Not here: short values in memory, which a [`FixedArray`](super::FixedArray) holds in less
//! memory.

use super::{number_of, too_long, visit_no_number};
use std::ops::{Bound, ControlFlow, RangeInclusive};
use todana_core::{
    Action, Attributes, BoundedEngine, CheckpointedEngine, Engine, EngineStatus, Error, ErrorKind,
    NumberedEngine, OrderedEngine, Record, RecordSample, Result, ScanPosition, SweepableEngine, ValueBuffer,
    Visitor, key_of_number,
};

/// The key of the layout.
const LAYOUT: &[u8] = b"";

/// The lengths and numbers that a database accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedLayout {
    /// The largest length of a value.
    pub width: usize,
    /// The largest number.
    pub number_max: u64,
}

impl FixedLayout {
    fn encode(self) -> String {
        format!("width={} number_max={}", self.width, self.number_max)
    }

    fn decode(text: &[u8]) -> Option<FixedLayout> {
        let (width, number_max) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        let width = width.strip_prefix("width=")?.parse().ok()?;
        let number_max = number_max.strip_prefix("number_max=")?.parse().ok()?;
        Some(FixedLayout { width, number_max })
    }
}

/// Numbered records in an ordered engine.
pub struct FixedTree {
    inner: Box<dyn Engine>,
    layout: FixedLayout,
    /// The bytes of the stored layout; `None` in memory, where an engine is always new and might
    /// evict the layout.
    layout_bytes: Option<u64>,
}

/// Returns the key in the inner engine.
#[inline]
fn inner_key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

#[inline]
fn number_of_inner(key: &[u8]) -> Option<u64> {
    key.try_into().ok().map(u64::from_be_bytes)
}

/// Stores a value without attributes.
struct PutLayout<'v>(&'v [u8]);

impl Visitor for PutLayout<'_> {
    fn visit<'a>(&'a mut self, _old: Option<Record<'a>>) -> Action<'a> {
        Action::Put(Record::new(self.0, Attributes::default()))
    }

    fn overwrites(&self) -> bool {
        true
    }
}

/// Passes a visit on, and keeps the old record if the new value is too long.
struct WidthVisitor<'v> {
    visitor: &'v mut dyn Visitor,
    width: usize,
    /// The length of a value that is too long.
    refused_len: Option<usize>,
}

impl Visitor for WidthVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.refused_len = None;
        match self.visitor.visit(old) {
            Action::Put(record) if record.value.len() > self.width => {
                self.refused_len = Some(record.value.len());
                Action::Keep
            }
            action => action,
        }
    }

    fn overwrites(&self) -> bool {
        self.visitor.overwrites()
    }

    fn ignores_value(&self) -> bool {
        self.visitor.ignores_value()
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        self.visitor.applied(now);
    }
}

fn put_layout(inner: &dyn Engine, layout: FixedLayout) -> Result<()> {
    inner.visit(LAYOUT, &mut PutLayout(layout.encode().as_bytes()))
}

impl FixedTree {
    /// Creates the engine over an ordered engine, which holds nothing or numbered records. `layout`
    /// counts if there is none yet. Fails with `Corrupt` if the layout cannot be read.
    pub fn new(inner: Box<dyn Engine>, layout: FixedLayout) -> Result<FixedTree> {
        if inner.ordered().is_none() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "numbered records: their engine has no order of keys",
            ));
        }
        let Some(checkpointed) = inner.checkpointed() else {
            return Ok(FixedTree { inner, layout, layout_bytes: None });
        };
        let mut stored = None;
        inner.peek(LAYOUT, &mut |record| stored = Some(record.value.to_vec()))?;
        if stored.is_none() {
            put_layout(&*inner, layout)?;
            // The layout is not in the update log, so it must not get lost with the process.
            checkpointed.checkpoint(checkpointed.log_position())?;
        }
        let text = stored.unwrap_or_else(|| layout.encode().into_bytes());
        let Some(layout) = FixedLayout::decode(&text) else {
            return Err(Error::new(ErrorKind::Corrupt, "numbered records: the layout cannot be read"));
        };
        // The header of a record without attributes takes one byte.
        Ok(FixedTree { layout, inner, layout_bytes: Some(1 + text.len() as u64) })
    }

    fn inner_order(&self) -> &dyn OrderedEngine {
        self.inner.ordered().expect("it was checked by the constructor")
    }

    /// Does a scan with a scan of the inner engine, which continues after a key. Positions here are
    /// numbers: the next one to show.
    fn scan_with(
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
        scan: impl FnOnce(
            Option<ScanPosition>,
            &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
        ) -> Result<Option<ScanPosition>>,
    ) -> Result<Option<ScanPosition>> {
        let after = from.map(|from| ScanPosition::Key(inner_key(from.number() - 1).as_slice().into()));
        let (mut text, mut next) = ([0; 20], None);
        scan(after, &mut |key, record| {
            let Some(number) = number_of_inner(key) else { return ControlFlow::Continue(()) };
            let flow = see(key_of_number(number, &mut text), record);
            next = flow.is_break().then_some(ScanPosition::Number(number + 1));
            flow
        })?;
        Ok(next)
    }

    fn find(&self, key: &[u8]) -> Option<[u8; 8]> {
        number_of(key, self.layout.number_max).map(inner_key)
    }
}

impl Engine for FixedTree {
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.find(key).map_or(Ok(false), |key| self.inner.view(&key, see))
    }

    fn peek(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.find(key).map_or(Ok(false), |key| self.inner.peek(&key, see))
    }

    fn view_shared(&self, key: &[u8], counts: bool, see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.find(key).map_or(Ok(false), |key| self.inner.view_shared(&key, counts, see))
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let FixedLayout { width, number_max } = self.layout;
        let Some(number) = number_of(key, number_max) else {
            return visit_no_number(key, number_max, visitor);
        };
        let mut visitor = WidthVisitor { visitor, width, refused_len: None };
        self.inner.visit(&inner_key(number), &mut visitor)?;
        visitor.refused_len.map_or(Ok(()), |len| Err(too_long(number, len, width)))
    }

    fn wait_for_visits(&self) {
        self.inner.wait_for_visits();
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        FixedTree::scan_with(from, see, |from, see| self.inner.scan(from, see))
    }

    fn scan_shared(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        FixedTree::scan_with(from, see, |from, see| self.inner.scan_shared(from, see))
    }

    fn scan_skipping_damaged(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        FixedTree::scan_with(from, see, |from, see| self.inner.scan_skipping_damaged(from, see))
    }

    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        self.inner.clear(cleared)?;
        if self.layout_bytes.is_some() { put_layout(&*self.inner, self.layout) } else { Ok(()) }
    }

    fn status(&self) -> EngineStatus {
        let status = self.inner.status();
        let Some(layout_bytes) = self.layout_bytes else { return status };
        EngineStatus {
            records: status.records.saturating_sub(1),
            live_bytes: status.live_bytes.saturating_sub(layout_bytes),
            ..status
        }
    }

    fn sample_records(&self) -> RecordSample {
        self.inner.sample_records()
    }

    fn prefetch(&self, key: &[u8]) {
        if let Some(key) = self.find(key) {
            self.inner.prefetch(&key);
        }
    }

    fn maintain(&self) -> bool {
        self.inner.maintain()
    }

    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        if len > self.layout.width {
            return Err(Error::new(ErrorKind::Invalid, format!("value of {len} bytes: too long")));
        }
        self.inner.buffer(len)
    }

    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        self.inner.room(buffer, len)
    }

    fn bounded(&self) -> Option<&dyn BoundedEngine> {
        self.inner.bounded()
    }

    fn checkpointed(&self) -> Option<&dyn CheckpointedEngine> {
        self.inner.checkpointed()
    }

    fn numbered(&self) -> Option<&dyn NumberedEngine> {
        Some(self)
    }

    fn sweepable(&self) -> Option<&dyn SweepableEngine> {
        self.inner.sweepable()
    }
}

impl NumberedEngine for FixedTree {
    fn width(&self) -> usize {
        self.layout.width
    }

    fn number_max(&self) -> u64 {
        self.layout.number_max
    }

    fn walk_numbers(
        &self,
        numbers: RangeInclusive<u64>,
        is_descending: bool,
        see: &mut dyn FnMut(u64, Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut see = |key: &[u8], record: Record<'_>| match number_of_inner(key) {
            Some(number) if numbers.contains(&number) => see(number, record),
            // Only the layout is below all numbers.
            _ => ControlFlow::Break(()),
        };
        if is_descending {
            self.inner_order().descend(Bound::Included(&inner_key(*numbers.end())), &mut see)
        } else {
            self.inner_order().ascend(Bound::Included(&inner_key(*numbers.start())), &mut see)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiskTree, DiskTreeOptions, MemTree, MemTreeOptions};

    struct Put(Vec<u8>);

    impl Visitor for Put {
        fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
            Action::Put(Record::new(&self.0, Attributes::default()))
        }
    }

    fn tree(layout: FixedLayout) -> FixedTree {
        FixedTree::new(Box::new(MemTree::new(MemTreeOptions::default()).unwrap()), layout).unwrap()
    }

    fn walked(tree: &FixedTree, range: RangeInclusive<u64>, is_descending: bool) -> Vec<u64> {
        let mut found = Vec::new();
        tree.walk_numbers(range, is_descending, &mut |number, _| {
            found.push(number);
            ControlFlow::Continue(())
        })
        .unwrap();
        found
    }

    #[test]
    fn walks_are_in_the_order_of_numbers() {
        let tree = tree(FixedLayout { width: 100, number_max: u64::MAX });
        for key in ["9", "10", "255", "256", "18446744073709551615"] {
            tree.visit(key.as_bytes(), &mut Put(key.into())).unwrap();
        }
        assert_eq!(walked(&tree, 0..=u64::MAX, false), [9, 10, 255, 256, u64::MAX]);
        assert_eq!(walked(&tree, 10..=256, true), [256, 255, 10]);
        assert_eq!(walked(&tree, 0..=9, true), [9]);
        assert_eq!(tree.status().records, 5);
        tree.clear(&mut || ()).unwrap();
        assert_eq!((tree.status().records, walked(&tree, 1..=u64::MAX, true)), (0, vec![]));
    }

    #[test]
    fn too_long_values_and_high_numbers_are_refused() {
        let tree = tree(FixedLayout { width: 3, number_max: 99 });
        tree.visit(b"99", &mut Put(b"abc".into())).unwrap();
        for (key, value) in [("99", "abcd"), ("100", "a"), ("0", "a"), ("x", "a"), ("", "a")] {
            let error = tree.visit(key.as_bytes(), &mut Put(value.into())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        }
        assert!(tree.view(b"99", &mut |record| assert_eq!(record.value, b"abc")).unwrap());
    }

    #[test]
    fn layout_of_a_new_database_stays() {
        let folder = tempfile::tempdir().unwrap();
        let open = |width, number_max| {
            let tree = DiskTree::open(folder.path(), DiskTreeOptions { spills: false, ..Default::default() });
            FixedTree::new(Box::new(tree.unwrap()), FixedLayout { width, number_max }).unwrap()
        };
        let tree = open(16, 1000);
        tree.clear(&mut || ()).unwrap();
        // The process ends before a checkpoint, so the clear is only in the log of the owner.
        drop(tree);
        let tree = open(255, 99);
        assert_eq!((tree.width(), tree.number_max(), tree.status().records), (16, 1000, 0));
    }
}
