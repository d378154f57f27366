//! What the requests of a worker get at: its databases, counters and options.

use super::counters::Counters;
use super::reach::Reach;
use crate::databases::awaits::WorkerDatabase;
use crate::session::context::WorkerContext;
use crate::shared::Shared;
use std::sync::Arc;
use todana::Clock;
use todana::kyoto::KyotoRecords;
use todana_protocol::kyoto::{Failure, Target};

/// What an answer may hold, in bytes, as a request of the original's.
pub(super) const ANSWER_MAX: usize = 1 << 28;

/// What the requests of a worker get at.
pub(super) struct Scope {
    pub(super) shared: Arc<Shared>,
    pub(super) worker: usize,
    /// What the answer to the request at hand may hold, in bytes.
    pub(super) answer_max: usize,
    reaches: Vec<Reach>,
}

impl Scope {
    pub(super) fn new(context: &WorkerContext) -> Scope {
        let shared = &context.shared;
        let reach = |(number, worker_counters): (usize, &WorkerDatabase)| {
            Reach::new(shared, number, worker_counters.clone())
        };
        let reaches = context.executor.worker_databases().enumerate().map(reach).collect();
        Scope { shared: Arc::clone(shared), worker: context.worker, answer_max: ANSWER_MAX, reaches }
    }

    #[inline]
    pub(super) fn counters(&self) -> &Counters {
        &self.shared.observation.workers[self.worker].kyoto
    }

    /// Clients may change nothing.
    #[inline]
    pub(super) fn is_read_only(&self) -> bool {
        self.shared.options.protocols.kyoto.read_only
    }

    pub(super) fn now(&self) -> u64 {
        self.shared.clock.now().0
    }

    /// All databases, by number.
    pub(super) fn reaches(&self) -> &[Reach] {
        &self.reaches
    }

    /// The database that a request is for.
    #[inline]
    pub(super) fn reach(&self, target: Target<'_>) -> Result<&Reach, Failure<'static>> {
        let number = match target {
            Target::Index(number) => usize::try_from(number).ok(),
            Target::Name(name) => self.number_of(name),
        };
        number.and_then(|number| self.reaches.get(number)).ok_or(Failure::NoSuchDatabase)
    }

    /// The database of a name: of equal ones the last.
    fn number_of(&self, name: &[u8]) -> Option<usize> {
        let is_it = |reach: &Reach| {
            let served = &reach.served().name;
            let base = served.path.as_deref().and_then(|path| path.file_name());
            served.label().as_bytes() == name || base.is_some_and(|base| base.as_encoded_bytes() == name)
        };
        self.reaches.iter().rposition(is_it)
    }
}

/// The records of a database as Kyoto's clients mean them.
#[inline]
pub(super) fn records(reach: &Reach) -> KyotoRecords<&Reach> {
    KyotoRecords::new(reach, reach.served().name.tuning.persistent)
}
