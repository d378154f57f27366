//! A database, as one worker gets at it.

use crate::shared::Shared;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use todana::{Heading, Lane, Records};
use todana_core::{Arithmetic, Operation, Place, Record, Reply, Result, Store, Visitor};

/// A database of the server's, with a lane of the worker's.
#[derive(Clone)]
pub(crate) struct Reach {
    shared: Arc<Shared>,
    number: usize,
    lane: Arc<Lane>,
}

impl Reach {
    pub(crate) fn new(shared: &Arc<Shared>, number: usize, lane: Arc<Lane>) -> Reach {
        Reach { shared: Arc::clone(shared), number, lane }
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn served(&self) -> &crate::databases::Served {
        &self.shared.databases[self.number]
    }

    /// Returns true if the database was opened for reading.
    pub(crate) fn is_read_only(&self) -> bool {
        self.served().database.is_read_only()
    }

    /// Whether clients may remove all records at once.
    pub(crate) fn flush_allowed(&self) -> bool {
        self.shared.options.limits.flush_allowed
    }

    pub(crate) fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Others go for what has just been written, where there are too many.
    fn limit(&self, written: &[u8]) {
        if let Some(limiter) = &self.served().limiter {
            // Where nothing can be removed, the next change is refused.
            let _ = limiter.enforce(&self.served().database, &self.lane, written);
        }
    }
}

impl Records for Reach {
    #[inline]
    fn execute(&self, command: &Operation<'_>, reply: &mut dyn FnMut(Reply<'_>)) -> Result<()> {
        self.served().database.execute(&self.lane, command, reply);
        if let Operation::Store(Store { key, .. }) | Operation::Arithmetic(Arithmetic { key, .. }) = command {
            self.limit(key);
        }
        Ok(())
    }

    fn visit(&self, key: &[u8], visitor: &mut dyn Visitor) -> Result<()> {
        self.served().database.visit_record(&self.lane, key, visitor)?;
        self.limit(key);
        Ok(())
    }

    fn is_ordered(&self) -> bool {
        self.served().database.engine().ordered().is_some()
    }

    fn scan(
        &self,
        from: Option<Place>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Place>> {
        self.served().database.scan(from, see)
    }

    fn walk(
        &self,
        heading: Heading,
        from: Bound<&[u8]>,
        see: &mut dyn FnMut(&[u8], Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.served().database.walk(heading, from, see)
    }
}
