//! Implements `Void`, an engine that stores nothing. Visitors decide on writes and `applied` is
//! called, so that an update log contains the writes, but no record ever exists.
//!
//! The engine corresponds to the black hole of Kyoto Tycoon (`-pldb ktplugdbvoid.so`), a master
//! that only forwards the changes that it receives.

use parking_lot::Mutex;
use std::ops::ControlFlow;
use todana_core::{Action, Engine, EngineStatus, Record, Result, ScanPosition, SizeClass, Visitor};

/// An engine that stores nothing.
///
/// ```
/// use todana_core::Engine;
/// use todana_engine::Void;
///
/// let void = Void::new(1);
/// assert!(!void.view(b"k", &mut |_| panic!("there is a record"))?);
/// # Ok::<(), todana_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Void {
    /// The lock that serialises writes, so that their reports have an order.
    writing: Mutex<()>,
    classes: usize,
}

impl Void {
    /// Creates an engine whose status contains this number of size classes, all of them empty.
    pub fn new(classes: usize) -> Void {
        Void { writing: Mutex::new(()), classes }
    }
}

impl Engine for Void {
    fn view(&self, _: &[u8], _: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        Ok(false)
    }

    fn visit(&self, _: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        let _writing = self.writing.lock();
        let put = match visitor.visit(None) {
            Action::Put(record) => (record.value.to_vec(), record.attributes),
            // There is no record that could be retagged or removed.
            Action::Keep | Action::Retag(_) | Action::Remove => return Ok(()),
        };
        visitor.applied(Some(Record::new(&put.0, put.1)));
        Ok(())
    }

    fn wait_for_visits(&self) {
        drop(self.writing.lock());
    }

    fn scan(
        &self,
        _: Option<ScanPosition>,
        _: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        Ok(None)
    }

    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        let _writing = self.writing.lock();
        cleared();
        Ok(())
    }

    fn status(&self) -> EngineStatus {
        EngineStatus { classes: vec![SizeClass::default(); self.classes], ..EngineStatus::default() }
    }
}
