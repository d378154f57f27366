//! What has to be settled before a connection is told more.

use todana::update_log::Position;

/// How far the logs of databases, by number, have to come before a connection is told more.
pub(crate) type Changes = Vec<(usize, Position)>;

/// How far the logs of databases have to come, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Awaits {
    first: Option<Position>,
    /// Those that only protocols with a choice of databases can change.
    others: Vec<(usize, Position)>,
}

impl Awaits {
    /// There is nothing to wait for.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none() && self.others.is_empty()
    }

    /// The database's log has to come this far, which is further than before.
    #[inline]
    pub(crate) fn note(&mut self, number: usize, position: Position) {
        if number == 0 {
            self.first = Some(position);
        } else if let Some((_, awaited)) = self.others.iter_mut().find(|(other, _)| *other == number) {
            *awaited = position;
        } else {
            self.others.push((number, position));
        }
    }

    /// Numbers of databases, and how far they have to come.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, Position)> + '_ {
        self.first.iter().map(|&position| (0, position)).chain(self.others.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_database_is_awaited_at_its_last_change() {
        let mut awaits = Awaits::default();
        assert!(awaits.is_empty());
        let at = Position;
        for (number, raw) in [(2, 5), (0, 1), (2, 9), (1, 3), (0, 4)] {
            awaits.note(number, at(raw));
        }
        assert!(!awaits.is_empty());
        assert_eq!(awaits.iter().collect::<Vec<_>>(), [(0, at(4)), (2, at(9)), (1, at(3))]);
    }
}
