//! The visitor of `putshl`, which appends to a value and keeps only the end of the result. So the
//! value contains the latest pieces.

use super::kept_attributes;
use todana_core::{Action, Record, Visitor};

/// Appends a piece to a value, and keeps the last bytes of the result.
pub struct ShiftVisitor<'v> {
    piece: &'v [u8],
    width: usize,
    value: Vec<u8>,
}

impl<'v> ShiftVisitor<'v> {
    /// Creates the visitor, which keeps the last `width` bytes. As in ttserver, a missing record
    /// gets the complete piece, even if it is longer than `width`.
    pub fn new(piece: &'v [u8], width: usize) -> ShiftVisitor<'v> {
        ShiftVisitor { piece, width, value: Vec::new() }
    }
}

impl Visitor for ShiftVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.value.clear();
        let attributes = kept_attributes(old);
        let Some(old) = old else { return Action::Put(Record::new(self.piece, attributes)) };
        let end = |bytes: &'a [u8], len: usize| &bytes[bytes.len().saturating_sub(len)..];
        let piece = end(self.piece, self.width);
        self.value.extend_from_slice(end(old.value, self.width - piece.len()));
        self.value.extend_from_slice(piece);
        Action::Put(Record::new(&self.value, attributes))
    }
}

#[cfg(test)]
mod tests {
    use super::ShiftVisitor;
    use crate::{Db, Records, Ttl};

    #[test]
    fn shift_keeps_the_end_and_the_attributes() {
        let db = Db::open("mem:hash").unwrap();
        let shift = |piece: &[u8], width| {
            db.visit(b"k", &mut ShiftVisitor::new(piece, width)).unwrap();
            db.get(b"k").unwrap().unwrap()
        };
        assert_eq!(shift(b"ABCDE", 3), b"ABCDE");
        db.set_with(b"k", b"1234567", Ttl::Never, 9).unwrap();
        for (piece, width, expected) in [
            (&b"89"[..], 4, &b"6789"[..]),
            (b"", 3, b"789"),
            (b"abcd", 2, b"cd"),
            (b"e", 100, b"cde"),
            (b"f", 0, b""),
        ] {
            assert_eq!(shift(piece, width), expected);
        }
        let mut flags = 0;
        db.view(b"k", &mut |record| flags = record.attributes.flags).unwrap();
        assert_eq!(flags, 9);
    }
}
