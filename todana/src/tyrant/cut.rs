//! A visitor that shortens long values to a maximum length.

use todana_core::{Action, Record, Visitor};

/// Passes a visit on to another visitor, and shortens the value that it stores.
pub struct CutVisitor<'v> {
    visitor: &'v mut dyn Visitor,
    len_max: usize,
}

impl<'v> CutVisitor<'v> {
    /// Creates the visitor. If a value is longer than `len_max`, only its first `len_max` bytes are
    /// stored.
    pub fn new(visitor: &'v mut dyn Visitor, len_max: usize) -> CutVisitor<'v> {
        CutVisitor { visitor, len_max }
    }
}

impl Visitor for CutVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        match self.visitor.visit(old) {
            Action::Put(record) if record.value.len() > self.len_max => {
                Action::Put(Record::new(&record.value[..self.len_max], record.attributes))
            }
            action => action,
        }
    }

    fn overwrites(&self) -> bool {
        self.visitor.overwrites()
    }

    fn ignores_value(&self) -> bool {
        self.visitor.ignores_value()
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        self.visitor.applied(now);
    }
}

#[cfg(test)]
mod tests {
    use super::CutVisitor;
    use crate::tyrant::ShiftVisitor;
    use crate::{Db, Records};

    #[test]
    fn long_value_is_cut_to_its_beginning() {
        let db = Db::open("mem:fixed#width=4").unwrap();
        let append = |piece: &[u8]| {
            let mut append = ShiftVisitor::new(piece, usize::MAX);
            db.visit(b"7", &mut CutVisitor::new(&mut append, 4)).unwrap();
            db.get(b"7").unwrap().unwrap()
        };
        assert_eq!(
            [append(b"ab"), append(b"c"), append(b"def"), append(b"g")],
            [&b"ab"[..], b"abc", b"abcd", b"abcd"]
        );
    }
}
