//! An engine that a test holds beside its user, for example to compress its values.

use std::ops::ControlFlow;
use std::sync::Arc;
use todana_core::{
    Engine, EngineStatus, ImagedEngine, OrderedEngine, Record, Result, ScanPosition, SweepableEngine,
    ValueBuffer, Visitor,
};

pub(crate) struct HeldEngine(pub(crate) Arc<dyn Engine>);

impl Engine for HeldEngine {
    fn view(&self, key: &[u8], see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.0.view(key, see)
    }

    fn view_shared(&self, key: &[u8], counts: bool, see: &mut dyn FnMut(Record<'_>)) -> Result<bool> {
        self.0.view_shared(key, counts, see)
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.0.visit(key, visitor)
    }

    fn wait_for_visits(&self) {
        self.0.wait_for_visits();
    }

    fn scan(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.0.scan(from, see)
    }

    fn scan_shared(
        &self,
        from: Option<ScanPosition>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<ScanPosition>> {
        self.0.scan_shared(from, see)
    }

    fn clear(&self, cleared: &mut dyn FnMut()) -> Result<()> {
        self.0.clear(cleared)
    }

    fn status(&self) -> EngineStatus {
        self.0.status()
    }

    fn buffer(&self, len: usize) -> Result<Box<dyn ValueBuffer>> {
        self.0.buffer(len)
    }

    fn room<'b>(&self, buffer: &'b mut dyn ValueBuffer, len: usize) -> Result<&'b mut [u8]> {
        self.0.room(buffer, len)
    }

    fn imaged(&self) -> Option<&dyn ImagedEngine> {
        self.0.imaged()
    }

    fn sweepable(&self) -> Option<&dyn SweepableEngine> {
        self.0.sweepable()
    }

    fn ordered(&self) -> Option<&dyn OrderedEngine> {
        self.0.ordered()
    }
}
