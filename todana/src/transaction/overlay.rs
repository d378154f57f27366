//! A layer of records above an engine: the changes of a transaction that is not committed yet, or
//! the old records that a commit in progress replaces.

use parking_lot::RwLock;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow, RangeInclusive};
use todana_core::{
    Action, Attributes, BoundedEngine, Engine, EngineStatus, Error, ErrorKind, NumberedEngine, OrderedEngine,
    Record, Result, ScanPosition, SharedBytes, ValueBuffer, Visitor, key_of_number, number_of_key,
    plain_value,
};

/// A copy of a record.
#[derive(Clone)]
pub(super) struct OverlayRecord {
    attributes: Attributes,
    value: OverlayValue,
}

/// A value. A long value is shared with the engine instead of copied.
#[derive(Clone)]
enum OverlayValue {
    Short(Box<[u8]>),
    /// In plain form.
    Long(SharedBytes),
}

impl OverlayRecord {
    pub(super) fn of(record: Record<'_>) -> OverlayRecord {
        let value = match record.shared {
            Some(shared) => OverlayValue::Long(plain_value(shared)),
            None => OverlayValue::Short(record.value.into()),
        };
        OverlayRecord { attributes: record.attributes, value }
    }

    pub(super) fn record(&self) -> Record<'_> {
        match &self.value {
            OverlayValue::Short(value) => Record::new(value, self.attributes),
            OverlayValue::Long(value) => {
                let plain = value.plain().unwrap_or_default();
                Record { value: plain, shared: Some(value), attributes: self.attributes }
            }
        }
    }
}

/// Records by key; `None` for a record that does not exist.
#[derive(Default)]
pub(super) struct RecordOverlay(RwLock<BTreeMap<Box<[u8]>, Option<OverlayRecord>>>);

impl RecordOverlay {
    pub(super) fn over<'l>(&'l self, base: &'l dyn Engine) -> OverlaidEngine<'l> {
        OverlaidEngine { overlay: self, base }
    }

    pub(super) fn put(&self, key: &[u8], record: Option<OverlayRecord>) {
        self.0.write().insert(key.into(), record);
    }

    /// Returns the changes in the order of their keys.
    pub(super) fn into_changes(self) -> BTreeMap<Box<[u8]>, Option<OverlayRecord>> {
        self.0.into_inner()
    }
}

/// The first byte of a scan position that is a key. It states whether the scan is still in the
/// engine, or has reached the layer.
const BELOW: u8 = 0;
const ABOVE: u8 = 1;

fn tagged(tag: u8, key: &[u8]) -> ScanPosition {
    ScanPosition::Key([&[tag], key].concat().into())
}

/// An engine with a layer above it. Writes change only the layer.
pub(super) struct OverlaidEngine<'l> {
    overlay: &'l RecordOverlay,
    base: &'l dyn Engine,
}

impl OverlaidEngine<'_> {
    fn read(
        &self,
        key: &[u8],
        see: &mut dyn FnMut(Record<'_>),
        below: impl FnOnce(&mut dyn FnMut(Record<'_>)) -> Result<bool>,
    ) -> Result<bool> {
        let records = self.overlay.0.read();
        match records.get(key) {
            Some(Some(record)) => {
                see(record.record());
                Ok(true)
            }
            Some(None) => Ok(false),
            None => {
                drop(records);
                below(see)
            }
        }
    }
}

/// The action of a visitor, in a form that does not borrow from the record.
enum VisitOutcome {
    Keep,
    Put(OverlayRecord),
    Remove,
}

/// Runs a visitor. `is_there` is true if the record exists; `old` is then `None` only if the record
/// is damaged.
fn outcome(visitor: &mut dyn Visitor, old: Option<Record<'_>>, is_there: bool) -> VisitOutcome {
    match visitor.visit(old) {
        Action::Keep => VisitOutcome::Keep,
        Action::Put(record) => VisitOutcome::Put(OverlayRecord::of(record)),
        Action::Retag(attributes) => match old {
            Some(old) => VisitOutcome::Put(OverlayRecord::of(Record { attributes, ..old })),
            None => VisitOutcome::Keep,
        },
        Action::Remove if is_there => VisitOutcome::Remove,
        Action::Remove => VisitOutcome::Keep,
    }
}

impl Engine for OverlaidEngine<'_> {
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.read(key, see, |see| self.base.view(key, see))
    }

    fn peek(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.read(key, see, |see| self.base.peek(key, see))
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let mut records = self.overlay.0.write();
        let outcome = match records.get(key) {
            Some(old) => outcome(visitor, old.as_ref().map(OverlayRecord::record), old.is_some()),
            None => {
                let mut found = None;
                let seen =
                    self.base.view(key, &mut |record| found = Some(outcome(visitor, Some(record), true)));
                let is_damaged = match seen {
                    Err(error) if error.kind() == ErrorKind::Corrupt && visitor.overwrites() => true,
                    seen => seen.map(|_| false)?,
                };
                found.unwrap_or_else(|| outcome(visitor, None, is_damaged))
            }
        };
        let new = match outcome {
            VisitOutcome::Keep => return Ok(()),
            VisitOutcome::Put(record) => Some(record),
            VisitOutcome::Remove => None,
        };
        visitor.applied(new.as_ref().map(OverlayRecord::record));
        records.insert(key.into(), new);
        Ok(())
    }

    fn wait_for_visits(&self) {}

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        // The engine's records that the layer does not contain come first, then the records of the
        // layer. Positions in the engine may be keys, too.
        let below = match from {
            Some(ScanPosition::Key(key)) => match key.split_first() {
                Some((&ABOVE, key)) => Err(key.to_vec()),
                Some((_, key)) => Ok(Some(ScanPosition::Key(key.into()))),
                None => Ok(None),
            },
            place => Ok(place),
        };
        let from = match below {
            Err(above) => above,
            Ok(place) => {
                let next = self.base.scan(place, &mut |key, record| {
                    if self.overlay.0.read().contains_key(key) {
                        return ControlFlow::Continue(());
                    }
                    see(key, record)
                })?;
                match next {
                    Some(ScanPosition::Key(key)) => return Ok(Some(tagged(BELOW, &key))),
                    Some(number) => return Ok(Some(number)),
                    None => Vec::new(),
                }
            }
        };
        let records = self.overlay.0.read();
        let mut flow = ControlFlow::Continue(());
        for (key, record) in records.range::<[u8], _>((Bound::Included(&from[..]), Bound::Unbounded)) {
            if flow.is_break() {
                return Ok(Some(tagged(ABOVE, key)));
            }
            if let Some(record) = record {
                flow = see(key, record.record());
            }
        }
        Ok(None)
    }

    fn clear(&self, _: &mut dyn FnMut()) -> Result<()> {
        Err(Error::new(ErrorKind::Invalid, "transaction: cannot remove all records at once"))
    }

    fn status(&self) -> EngineStatus {
        self.base.status()
    }

    fn bounded(&self) -> Option<&dyn BoundedEngine> {
        self.base.bounded()
    }

    fn ordered(&self) -> Option<&dyn OrderedEngine> {
        self.base.ordered().map(|_| self as &dyn OrderedEngine)
    }

    fn numbered(&self) -> Option<&dyn NumberedEngine> {
        self.base.numbered().map(|_| self as &dyn NumberedEngine)
    }

    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        self.base.buffer(len)
    }

    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        self.base.room(buffer, len)
    }
}

impl OverlaidEngine<'_> {
    /// Merges the records of the engine, which `walk` returns, with those of the layer, in the
    /// order of their keys.
    fn merge<'r>(
        above: impl Iterator<Item = (&'r Box<[u8]>, &'r Option<OverlayRecord>)>,
        is_before: impl Fn(&[u8], &[u8]) -> bool,
        walk: impl FnOnce(&mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>) -> Result<()>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut above = above.peekable();
        let mut show = |key: &[u8], record: Option<Record<'_>>| match record {
            Some(record) => see(key, record),
            None => ControlFlow::Continue(()),
        };
        let mut has_broken = false;
        walk(&mut |key, record| {
            while let Some((upper, record)) = above.next_if(|(upper, _)| is_before(upper, key)) {
                if show(upper, record.as_ref().map(OverlayRecord::record)).is_break() {
                    has_broken = true;
                    return ControlFlow::Break(());
                }
            }
            let flow = match above.next_if(|(upper, _)| &***upper == key) {
                Some((upper, record)) => show(upper, record.as_ref().map(OverlayRecord::record)),
                None => show(key, Some(record)),
            };
            has_broken = flow.is_break();
            flow
        })?;
        while !has_broken && let Some((key, record)) = above.next() {
            has_broken = show(key, record.as_ref().map(OverlayRecord::record)).is_break();
        }
        Ok(())
    }
}

impl OrderedEngine for OverlaidEngine<'_> {
    fn ascend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let Some(base) = self.base.ordered() else { return Err(unordered()) };
        let records = self.overlay.0.read();
        let above = records.range::<[u8], _>((from, Bound::Unbounded));
        Self::merge(above, |one, other| one < other, |see| base.ascend(from, see), see)
    }

    fn descend(
        &self,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let Some(base) = self.base.ordered() else { return Err(unordered()) };
        let records = self.overlay.0.read();
        let above = records.range::<[u8], _>((Bound::Unbounded, from)).rev();
        Self::merge(above, |one, other| one > other, |see| base.descend(from, see), see)
    }
}

impl OverlaidEngine<'_> {
    fn numbered_base(&self) -> &dyn NumberedEngine {
        self.base.numbered().expect("the buffer has numbers only if its engine does")
    }
}

impl NumberedEngine for OverlaidEngine<'_> {
    fn width(&self) -> usize {
        self.numbered_base().width()
    }

    fn number_max(&self) -> u64 {
        self.numbered_base().number_max()
    }

    fn walk_numbers(
        &self,
        numbers: RangeInclusive<u64>,
        is_descending: bool,
        see: &mut dyn FnMut(u64, Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let (records, base) = (self.overlay.0.read(), self.numbered_base());
        let mut above: Vec<_> = records.iter().collect();
        above.retain(|(key, _)| number_of_key(key).is_some_and(|number| numbers.contains(&number)));
        above.sort_unstable_by_key(|(key, _)| number_of_key(key));
        if is_descending {
            above.reverse();
        }
        let is_before = |one: &[u8], other: &[u8]| match (one.len(), one).cmp(&(other.len(), other)) {
            Ordering::Equal => false,
            order => (order == Ordering::Greater) == is_descending,
        };
        let walk = |see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>| {
            let mut text = [0; 20];
            base.walk_numbers(numbers, is_descending, &mut |number, record| {
                see(key_of_number(number, &mut text), record)
            })
        };
        Self::merge(above.into_iter(), is_before, walk, &mut |key, record| {
            number_of_key(key).map_or(ControlFlow::Continue(()), |number| see(number, record))
        })
    }
}

fn unordered() -> Error {
    Error::new(ErrorKind::Invalid, "unordered database: ordered iteration is not supported")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::OverwriteVisitor;
    use todana_engine::{MemHash, MemHashOptions, MemTree, MemTreeOptions};

    #[test]
    fn overlay_scan_shows_each_record_once() {
        let engines: [Box<dyn Engine>; 2] = [
            Box::new(MemHash::new(MemHashOptions::default()).unwrap()),
            Box::new(MemTree::new(MemTreeOptions::default()).unwrap()),
        ];
        for engine in engines {
            let put = |engine: &dyn Engine, key: u32, value: &[u8]| {
                let record = Record::new(value, Attributes::default());
                engine.visit(&key.to_be_bytes(), &mut OverwriteVisitor(Action::Put(record))).unwrap();
            };
            (0..500).for_each(|key| put(&*engine, key, b"below"));
            let overlay = RecordOverlay::default();
            let overlaid = overlay.over(&*engine);
            (400..600).for_each(|key| put(&overlaid, key, b"above"));
            overlaid.visit(&7u32.to_be_bytes(), &mut OverwriteVisitor(Action::Remove)).unwrap();
            let mut seen = BTreeMap::new();
            let mut place = None;
            loop {
                let mut count = 0;
                place = overlaid
                    .scan(place, &mut |key, record| {
                        assert_eq!(seen.insert(key.to_vec(), record.value.to_vec()), None);
                        count += 1;
                        if count == 7 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    })
                    .unwrap();
                if place.is_none() {
                    break;
                }
            }
            let expected: BTreeMap<_, _> = (0..600u32)
                .filter(|&key| key != 7)
                .map(|key| {
                    (
                        key.to_be_bytes().to_vec(),
                        if key < 400 { b"below".to_vec() } else { b"above".to_vec() },
                    )
                })
                .collect();
            assert_eq!(seen, expected);
        }
    }
}
