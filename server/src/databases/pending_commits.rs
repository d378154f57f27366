//! The commits that must be durable before a connection receives further replies.

use std::sync::Arc;
use todana::{CommitPoint, Database, LatestCommit, WorkerCounters};

/// Pairs of a database's number and the point to which it must be durable.
pub(crate) type Changes = Vec<(usize, CommitPoint)>;

/// The handle by which one thread writes to a database.
#[derive(Clone)]
pub(crate) struct WorkerDatabase {
    /// The thread's counters.
    pub(crate) worker_counters: Arc<WorkerCounters>,
    /// The latest commit that no reply waits for yet.
    pub(crate) commits: Arc<LatestCommit>,
}

impl WorkerDatabase {
    pub(crate) fn new(database: &Database) -> WorkerDatabase {
        WorkerDatabase { worker_counters: database.worker_counters(), commits: Arc::default() }
    }
}

/// The points to which databases must be durable, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct PendingCommits {
    first: Option<CommitPoint>,
    /// Databases other than the first, which only some protocols can change.
    others: Vec<(usize, CommitPoint)>,
}

impl PendingCommits {
    /// Returns true if nothing must become durable.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.others.is_empty()
    }

    /// Adds the requirement that a database is durable to this point.
    #[inline]
    pub(crate) fn note(&mut self, number: usize, point: CommitPoint) {
        // Another thread may report changes for a connection before or after the connection's own.
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

    #[test]
    fn each_database_is_awaited_at_its_last_change_in_whatever_order_they_are_noted() {
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
