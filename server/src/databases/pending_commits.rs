//! Keeps the commits that must be durable before further replies of a connection are sent.

use std::sync::Arc;
use todana::{CommitPoint, Database, LatestCommit, WorkerCounters};

/// Pairs of a database's number and the point to which it must be durable.
pub(crate) type DatabaseCommits = Vec<(usize, CommitPoint)>;

/// The handle with which one thread writes to a database.
#[derive(Clone)]
pub(crate) struct WorkerDatabase {
    /// The counters of this thread.
    pub(crate) worker_counters: Arc<WorkerCounters>,
    /// The latest commit of this thread that no reply waits for yet.
    pub(crate) commits: Arc<LatestCommit>,
}

impl WorkerDatabase {
    pub(crate) fn new(database: &Database) -> WorkerDatabase {
        WorkerDatabase { worker_counters: database.worker_counters(), commits: Arc::default() }
    }
}

/// The points up to which databases must be durable, by the numbers of the databases.
#[derive(Debug, Default)]
pub(crate) struct PendingCommits {
    first: Option<CommitPoint>,
    /// The points of all databases except the first. Only some protocols can change these
    /// databases.
    others: Vec<(usize, CommitPoint)>,
}

impl PendingCommits {
    /// Returns true if no database must become durable.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.others.is_empty()
    }

    /// Requires that a database becomes durable up to this point.
    #[inline]
    pub(crate) fn note(&mut self, number: usize, point: CommitPoint) {
        // A point that another thread reports may be before or after the connection's own point.
        if number == 0 {
            self.first = self.first.max(Some(point));
        } else if let Some((_, awaited)) = self.others.iter_mut().find(|(other, _)| *other == number) {
            *awaited = point.max(*awaited);
        } else {
            self.others.push((number, point));
        }
    }

    /// Returns pairs of a database's number and the point to which it must be durable.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, CommitPoint)> + '_ {
        self.first.iter().map(|&position| (0, position)).chain(self.others.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use todana::update_log::LogPosition;

    /// The order in which the changes are noted does not matter.
    #[test]
    fn each_database_is_awaited_at_its_last_change() {
        let mut commits = PendingCommits::default();
        assert!(commits.is_empty());
        let at = |raw| CommitPoint::from(LogPosition(raw));
        for (number, raw) in [(2, 5), (0, 1), (2, 9), (1, 3), (0, 4), (2, 7), (0, 2)] {
            commits.note(number, at(raw));
        }
        assert!(!commits.is_empty());
        assert_eq!(commits.iter().collect::<Vec<_>>(), [(0, at(4)), (2, at(9)), (1, at(3))]);
    }
}
