//! Stores records in databases whose keys are numbers: values are cut to the width.

use super::numbers::width;
use super::operations::{put, visit};
use super::session_state::TyrantSession;
use crate::session::worker_context::WorkerContext;
use todana::tyrant::{CutVisitor, ShiftVisitor};
use todana_protocol::tyrant::TyrantPutMode;

impl TyrantSession {
    /// Stores a record; returns false if it is not stored. A value is cut to the width.
    pub(super) fn store(
        &mut self,
        context: &mut WorkerContext,
        mode: TyrantPutMode,
        key: &[u8],
        value: &[u8],
    ) -> bool {
        match width(context) {
            Some(width) if mode == TyrantPutMode::Cat => {
                let mut append = ShiftVisitor::new(value, usize::MAX);
                visit(context, key, &mut CutVisitor::new(&mut append, width))
            }
            Some(width) => self.change(context, &put(mode, key, &value[..value.len().min(width)])),
            None => self.change(context, &put(mode, key, value)),
        }
    }
}
