//! Defines the tail of a bucket. Once memory has become scarce, the tail records how the records of
//! the bucket are used, in one of two forms.
//!
//! ```text
//! tail = 0xF0                                        no marks
//!      | 0xF8 | records (u8) | 8 ghosts | marks      two marks a byte, the first in the lower half
//!      | 0xF9 | records (u8) | marks                 a byte each
//! mark of half a byte = uses since it was last passed over (0 to 3), bit 2: read,
//!        bit 3: in the main queue
//! mark of a byte = uses (see `credit`), bit 2: read, bits 3 to 7: credit
//! ghost = 7 bits of the hash of an evicted key, bit 0: it was in the main queue; 0: none
//! ```
//!
//! In the first form, the records of a group are in the order in which they arrived. They form the
//! two queues of S3-FIFO (Yang et al., SOSP 2023), small and main, interleaved: the mark of each
//! record says to which queue the record belongs. The second form is for records of different
//! sizes.
//!
//! Invariant: a tail with marks has as many marks as its bucket has records, which are at most 255.

use super::group::{CREDIT_TAIL, END, QUEUE_TAIL};

/// The number of ghosts of a bucket.
pub(super) const GHOSTS: usize = 8;
/// The maximum number of records of a bucket with marks.
const MARKS_MAX: usize = u8::MAX as usize;

/// The form of marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkForm {
    Queues,
    Credits,
}

impl MarkForm {
    /// Returns the offset of the marks in a tail.
    fn marks_at(self) -> usize {
        match self {
            MarkForm::Queues => 2 + GHOSTS,
            MarkForm::Credits => 2,
        }
    }

    fn marks_len(self, records: usize) -> usize {
        match self {
            MarkForm::Queues => records.div_ceil(2),
            MarkForm::Credits => records,
        }
    }

    /// Returns the form of a tail with marks that begins with this byte.
    fn of(first: u8) -> MarkForm {
        if first == CREDIT_TAIL { MarkForm::Credits } else { MarkForm::Queues }
    }
}

/// The part of a tail that does not belong to a single record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Marking {
    /// There are no marks.
    #[default]
    None,
    Queues(GhostList),
    Credits,
}

impl Marking {
    /// Returns the form of the marks, if there are any.
    pub(super) fn form(self) -> Option<MarkForm> {
        match self {
            Marking::None => None,
            Marking::Queues(_) => Some(MarkForm::Queues),
            Marking::Credits => Some(MarkForm::Credits),
        }
    }

    /// Returns the marking of a bucket that gets its first marks.
    pub(super) fn first(form: MarkForm) -> Marking {
        match form {
            MarkForm::Queues => Marking::Queues(GhostList::default()),
            MarkForm::Credits => Marking::Credits,
        }
    }
}

/// The mark of a record, which states how the record has been used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UseMark(u8);

impl UseMark {
    pub(super) const USES_MAX: u8 = 3;
    const READ: u8 = 4;
    const MAIN: u8 = 8;
    const CREDIT_SHIFT: u32 = 3;
    /// The maximum of a credit.
    pub(super) const CREDIT_MAX: u8 = 31;
    /// The bits of a mark of half a byte.
    const HALF: u8 = 15;

    /// Creates the mark of an unread record. A new record has uses if a ghost of its key was found.
    pub(super) fn new(uses: u8, is_main: bool) -> UseMark {
        UseMark(uses.min(Self::USES_MAX) | if is_main { Self::MAIN } else { 0 })
    }

    /// Creates the mark of a record with this credit.
    pub(super) fn with_credit(uses: u8, is_read: bool, credit: u8) -> UseMark {
        let read = if is_read { Self::READ } else { 0 };
        UseMark(uses.min(Self::USES_MAX) | read | credit.min(Self::CREDIT_MAX) << Self::CREDIT_SHIFT)
    }

    pub(super) fn uses(self) -> u8 {
        self.0 & Self::USES_MAX
    }

    /// Returns true if the record is in the main queue. A credit has no queue.
    pub(super) fn is_main(self) -> bool {
        self.0 & Self::MAIN != 0
    }

    /// Returns the credit, if the mark has that form.
    pub(super) fn credit(self) -> u8 {
        self.0 >> Self::CREDIT_SHIFT
    }

    /// Returns true if the record was read since its value was stored. Eviction does not need this;
    /// observers do.
    pub(super) fn is_read(self) -> bool {
        self.0 & Self::READ != 0
    }

    /// Returns the mark of a queue after one more use, or `None` if no more uses can be counted.
    pub(super) fn used(self) -> Option<UseMark> {
        (self.uses() < Self::USES_MAX).then_some(UseMark((self.0 + 1) | Self::READ))
    }

    /// Returns the mark after the value was read, without a use.
    pub(super) fn read(self) -> UseMark {
        UseMark(self.0 | Self::READ)
    }

    /// Returns the mark after the record was passed over: it is in the main queue, with this number
    /// of uses left.
    pub(super) fn passed(self, uses: u8) -> UseMark {
        UseMark(UseMark::new(uses, true).0 | self.0 & Self::READ)
    }

    /// Returns the mark of a queue for a record with this mark of a credit.
    pub(super) fn queued(self) -> UseMark {
        UseMark(UseMark::new(self.uses(), self.uses() > 0).0 | self.0 & Self::READ)
    }

    /// Returns the mark after a new value was stored, which is unread.
    pub(super) fn stored(self) -> UseMark {
        UseMark(self.0 & !Self::READ)
    }
}

/// The traces of the keys that a bucket has evicted recently, oldest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GhostList([u8; GHOSTS]);

impl GhostList {
    /// Returns bits of the hash that are nearly independent of the bucket's number.
    fn tag(hash: u32) -> u8 {
        // A zero would mean that there is no ghost.
        ((hash >> 24) as u8 & 0xFE).max(2)
    }

    /// Adds a ghost of the key with these low bits of its hash. It replaces the oldest ghost.
    pub(super) fn push(&mut self, hash: u32, was_main: bool) {
        self.0.copy_within(1.., 0);
        self.0[GHOSTS - 1] = Self::tag(hash) | u8::from(was_main);
    }

    /// Removes the ghost of a key that returns. Returns true if the key was in the main queue.
    /// Returns `None` if the key has no ghost.
    pub(super) fn take(&mut self, hash: u32) -> Option<bool> {
        let tag = Self::tag(hash);
        let at = self.0.iter().rposition(|&ghost| ghost & 0xFE == tag)?;
        let was_main = self.0[at] & 1 != 0;
        self.0.copy_within(..at, 1);
        self.0[0] = 0;
        Some(was_main)
    }
}

/// The tail of a bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketTail<'a> {
    pub(super) marking: Marking,
    marks: &'a [u8],
}

impl<'a> BucketTail<'a> {
    /// The tail without marks.
    pub(super) const PLAIN: BucketTail<'static> = BucketTail { marking: Marking::None, marks: &[] };

    /// Decodes the tail at `end`, after the last record.
    #[inline]
    pub(super) fn read(bytes: &'a [u8], end: usize) -> BucketTail<'a> {
        let tail = &bytes[end..];
        if tail[0] == END {
            return BucketTail::PLAIN;
        }
        let form = MarkForm::of(tail[0]);
        let marks = &tail[form.marks_at()..][..form.marks_len(usize::from(tail[1]))];
        let marking = match form {
            MarkForm::Queues => {
                let mut ghosts = GhostList::default();
                ghosts.0.copy_from_slice(&tail[2..2 + GHOSTS]);
                Marking::Queues(ghosts)
            }
            MarkForm::Credits => Marking::Credits,
        };
        BucketTail { marking, marks }
    }

    /// Returns the length of the tail at `end`.
    #[inline]
    pub(super) fn len_at(bytes: &[u8], end: usize) -> usize {
        match bytes[end] {
            END => 1,
            first => tail_len(MarkForm::of(first), usize::from(bytes[end + 1])),
        }
    }

    /// Returns the mark of the record with this index in the bucket.
    #[inline]
    pub(super) fn mark(self, index: usize) -> UseMark {
        match self.marking {
            Marking::None => UseMark::default(),
            Marking::Queues(_) => UseMark(self.marks[index / 2] >> (index % 2 * 4) & UseMark::HALF),
            Marking::Credits => UseMark(self.marks[index]),
        }
    }
}

/// Returns the length of a tail with marks for this number of records. Returns 1 if there are too
/// many records for marks.
pub(super) fn tail_len(form: MarkForm, records: usize) -> usize {
    if records > MARKS_MAX { 1 } else { form.marks_at() + form.marks_len(records) }
}

/// Returns the length of the tail with which `bytes` begin, after a bucket with this number of
/// records. Returns `None` if they do not begin with such a tail.
pub(super) fn checked_tail_len(bytes: &[u8], records: usize) -> Option<usize> {
    let form = match *bytes.first()? {
        END => return Some(1),
        QUEUE_TAIL => MarkForm::Queues,
        CREDIT_TAIL => MarkForm::Credits,
        _ => return None,
    };
    let len = tail_len(form, records);
    (len > 1 && bytes.len() >= len && usize::from(bytes[1]) == records).then_some(len)
}

/// Returns the offset and the new value of the byte that contains a record's mark, in the tail at
/// `end`.
pub(super) fn marked(bytes: &[u8], end: usize, index: usize, mark: UseMark) -> (usize, u8) {
    let form = MarkForm::of(bytes[end]);
    let first = end + form.marks_at();
    match form {
        MarkForm::Queues => {
            let (at, shift) = (first + index / 2, index % 2 * 4);
            (at, bytes[at] & !(UseMark::HALF << shift) | mark.0 << shift)
        }
        MarkForm::Credits => (first + index, mark.0),
    }
}

/// Appends the tail of a bucket, with the marks of its records. If there are too many marks, the
/// tail has none.
pub(super) fn put_tail(out: &mut Vec<u8>, marking: Marking, marks: impl ExactSizeIterator<Item = UseMark>) {
    let count = marks.len();
    match marking {
        Marking::Queues(ghosts) if count <= MARKS_MAX => {
            out.extend_from_slice(&[QUEUE_TAIL, count as u8]);
            out.extend_from_slice(&ghosts.0);
            let first = out.len();
            for (index, mark) in marks.enumerate() {
                if index % 2 == 0 {
                    out.push(mark.0);
                } else {
                    out[first + index / 2] |= mark.0 << 4;
                }
            }
        }
        Marking::Credits if count <= MARKS_MAX => {
            out.extend_from_slice(&[CREDIT_TAIL, count as u8]);
            out.extend(marks.map(|mark| mark.0));
        }
        _ => out.push(END),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_read_as_it_was_put() {
        for records in [0, 1, 2, 7, 63, 255] {
            let mut ghosts = GhostList::default();
            ghosts.push(0xAB00_0000, true);
            let marks: Vec<UseMark> = (0..records).map(|n| UseMark::new(n as u8 % 4, n % 3 == 0)).collect();
            let mut bytes = vec![b'x'; 5];
            put_tail(&mut bytes, Marking::Queues(ghosts), marks.iter().copied());
            assert_eq!(BucketTail::len_at(&bytes, 5), bytes.len() - 5);
            let tail = BucketTail::read(&bytes, 5);
            assert_eq!(tail.marking, Marking::Queues(ghosts));
            assert_eq!((0..records).map(|n| tail.mark(n)).collect::<Vec<_>>(), marks);
            for n in 0..records {
                let (at, byte) = marked(&bytes, 5, n, UseMark::new(3, true));
                bytes[at] = byte;
            }
            let tail = BucketTail::read(&bytes, 5);
            assert!((0..records).all(|n| tail.mark(n) == UseMark::new(3, true)));
        }
        let mut bytes = Vec::new();
        for marking in [Marking::Queues(GhostList::default()), Marking::Credits, Marking::None] {
            put_tail(&mut bytes, marking, vec![UseMark::default(); 256].into_iter());
        }
        assert_eq!(bytes, [END; 3]);
        assert_eq!(BucketTail::len_at(&bytes, 0), 1);
    }

    #[test]
    fn credits_are_read_as_they_were_put() {
        for records in [1, 2, 255] {
            let mark = |n: usize| UseMark::with_credit(n as u8 % 4, n.is_multiple_of(3), n as u8 % 32);
            let mut bytes = vec![b'x'; 3];
            put_tail(&mut bytes, Marking::Credits, (0..records).map(mark));
            assert_eq!(checked_tail_len(&bytes[3..], records), Some(records + 2));
            assert_eq!(checked_tail_len(&bytes[3..], records + 1), None);
            assert_eq!(checked_tail_len(&bytes[3..records + 4], records), None);
            let tail = BucketTail::read(&bytes, 3);
            assert_eq!(tail.marking, Marking::Credits);
            for n in 0..records {
                let mark = tail.mark(n);
                assert_eq!((mark.uses(), mark.is_read()), (n as u8 % 4, n.is_multiple_of(3)));
                assert_eq!(mark.credit(), n as u8 % 32);
                let (at, byte) = marked(&bytes, 3, n, UseMark::default());
                assert_eq!((at, byte), (5 + n, 0));
            }
        }
    }

    #[test]
    fn mark_counts_at_most_three_uses() {
        let mut mark = UseMark::new(0, true);
        for uses in 1..=3 {
            mark = mark.used().unwrap();
            assert_eq!((mark.uses(), mark.is_main()), (uses, true));
        }
        assert_eq!(mark.used(), None);
    }

    #[test]
    fn record_stays_read_until_its_value_changes() {
        let returned = UseMark::new(1, false);
        assert!(!returned.is_read());
        let read = returned.used().unwrap();
        assert_eq!((read.uses(), read.is_main(), read.is_read()), (2, false, true));
        let passed = read.passed(0);
        assert_eq!((passed.uses(), passed.is_main(), passed.is_read()), (0, true, true));
        assert_eq!(passed.stored(), UseMark::new(0, true));
    }

    #[test]
    fn oldest_ghost_is_dropped_first() {
        let mut ghosts = GhostList::default();
        assert_eq!(ghosts.take(0), None, "nobody is there");
        (1..=9).for_each(|n: u32| ghosts.push(n << 25, n.is_multiple_of(2)));
        assert_eq!(ghosts.take(1 << 25), None);
        assert_eq!(ghosts.take(2 << 25), Some(true));
        assert_eq!(ghosts.take(2 << 25), None);
        assert_eq!(ghosts.take(9 << 25), Some(false));
        ghosts.push(7 << 25, true);
        assert_eq!(ghosts.take(7 << 25), Some(true), "the younger of two");
        assert_eq!(ghosts.take(7 << 25), Some(false));
    }
}
