//! Engines of numbered records under the suite's keys and values: each key has a number. A value
//! that is longer than the width is kept outside of the engine, under a number that the engine
//! holds.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};
use todana_core::{
    Action, BoundedEngine, CheckpointedEngine, Engine, EngineStatus, Record, Result, ScanPosition,
    SweepableEngine, ValueBuffer, Visitor,
};
use todana_engine::FixedLayout;

/// The width and the numbers of the trees under test.
pub(crate) const LAYOUT: FixedLayout = FixedLayout { width: 1 << 30, number_max: 1 << 17 };
/// Longer values are passed on, so that the engine refuses them.
const LONG_MAX: usize = 1 << 24;
const INLINE: u8 = 0;
const OUTSIDE: u8 = 1;

/// The numbers of keys, and the long values.
#[derive(Default)]
struct Names {
    numbers: HashMap<Vec<u8>, u64>,
    keys: HashMap<u64, Vec<u8>>,
    values: Vec<Arc<Vec<u8>>>,
}

impl Names {
    /// Returns the number of a key. Consecutive keys have numbers that are far apart.
    fn number(&mut self, key: &[u8]) -> u64 {
        if let Some(number) = self.numbers.get(key) {
            return *number;
        }
        let number = 1 + self.numbers.len() as u64 * 4999 % LAYOUT.number_max;
        assert!(self.keys.insert(number, key.into()).is_none(), "there are numbers for all keys");
        self.numbers.insert(key.into(), number);
        number
    }
}

/// The names of each directory, which outlive the engine.
static NAMES: LazyLock<Mutex<HashMap<PathBuf, Arc<Mutex<Names>>>>> = LazyLock::new(Mutex::default);

/// An engine of numbered records that takes any key and value.
pub(crate) struct Numbered<E> {
    engine: E,
    names: Arc<Mutex<Names>>,
}

impl<E: Engine + 'static> Numbered<E> {
    pub(crate) fn over(engine: E, directory: &Path) -> Box<dyn Engine> {
        let names = Arc::clone(NAMES.lock().unwrap().entry(directory.into()).or_default());
        Box::new(Numbered { engine, names })
    }

    fn number(&self, key: &[u8]) -> String {
        match key.len() {
            0..=LONG_MAX => self.names.lock().unwrap().number(key).to_string(),
            _ => "no number".into(),
        }
    }

    fn key(&self, number: &[u8]) -> Vec<u8> {
        let number: u64 = std::str::from_utf8(number).unwrap().parse().unwrap();
        self.names.lock().unwrap().keys[&number].clone()
    }

    fn width(&self) -> usize {
        self.engine.numbered().expect("its records are numbered").width()
    }

    fn encode(&self, value: &[u8]) -> Vec<u8> {
        match value.len() {
            len if len < self.width() || len > LONG_MAX => [&[INLINE], value].concat(),
            _ => {
                let values = &mut self.names.lock().unwrap().values;
                values.push(Arc::new(value.into()));
                [&[OUTSIDE][..], &(values.len() - 1).to_le_bytes()].concat()
            }
        }
    }

    fn decode(&self, value: &[u8]) -> Arc<Vec<u8>> {
        match value.split_first().expect("a value begins with its form") {
            (&INLINE, value) => Arc::new(value.into()),
            (_, number) => {
                let number = usize::from_le_bytes(number.try_into().unwrap());
                Arc::clone(&self.names.lock().unwrap().values[number])
            }
        }
    }

    fn see(&self, record: Record<'_>, see: &mut dyn FnMut(Record<'_>)) {
        see(Record::new(&self.decode(record.value), record.attributes));
    }

    fn scan_with(
        &self,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
        scan: impl FnOnce(&mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>) -> Result<Option<ScanPosition>>,
    ) -> Result<Option<ScanPosition>> {
        scan(&mut |number, record| {
            see(&self.key(number), Record::new(&self.decode(record.value), record.attributes))
        })
    }
}

struct NamedVisitor<'v, E> {
    visitor: &'v mut dyn Visitor,
    engine: &'v Numbered<E>,
    value: Vec<u8>,
}

impl<E: Engine + 'static> Visitor for NamedVisitor<'_, E> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let shown = old.map(|old| (self.engine.decode(old.value), old.attributes));
        let shown = shown.as_ref().map(|(value, attributes)| Record::new(value, *attributes));
        match self.visitor.visit(shown) {
            Action::Keep => Action::Keep,
            Action::Retag(attributes) => Action::Retag(attributes),
            Action::Remove => Action::Remove,
            Action::Put(record) => {
                self.value = self.engine.encode(record.value);
                Action::Put(Record::new(&self.value, record.attributes))
            }
        }
    }

    fn overwrites(&self) -> bool {
        self.visitor.overwrites()
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        match now {
            None => self.visitor.applied(None),
            Some(now) => self.engine.see(now, &mut |now| self.visitor.applied(Some(now))),
        }
    }
}

impl<E: Engine + 'static> Engine for Numbered<E> {
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.engine.view(self.number(key).as_bytes(), &mut |record| self.see(record, see))
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let mut visitor = NamedVisitor { visitor, engine: self, value: Vec::new() };
        self.engine.visit(self.number(key).as_bytes(), &mut visitor)
    }

    fn wait_for_visits(&self) {
        self.engine.wait_for_visits();
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan_with(see, |see| self.engine.scan(from, see))
    }

    fn scan_skipping_damaged(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.scan_with(see, |see| self.engine.scan_skipping_damaged(from, see))
    }

    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        self.engine.clear(cleared)
    }

    fn status(&self) -> EngineStatus {
        self.engine.status()
    }

    fn maintain(&self) -> bool {
        self.engine.maintain()
    }

    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        self.engine.buffer(len)
    }

    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        self.engine.room(buffer, len)
    }

    fn bounded(&self) -> Option<&dyn BoundedEngine> {
        self.engine.bounded()
    }

    fn checkpointed(&self) -> Option<&dyn CheckpointedEngine> {
        self.engine.checkpointed()
    }

    fn sweepable(&self) -> Option<&dyn SweepableEngine> {
        self.engine.sweepable()
    }
}
