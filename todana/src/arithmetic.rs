//! incr and decr: decimal numbers that are stored as text.

use crate::access::AccessTracking;
use crate::expiry::resolve;
use crate::store::item_size;
use crate::versions::{VersionCounter, equals};
use todana_core::{
    Action, Arithmetic, ArithmeticDirection, ArithmeticReply, Attributes, Expiry, Record, RefusalReason,
    Reply, StaleMarks, UnixSeconds, Visitor,
};

/// Any 64-bit number has at most twenty digits.
const DIGITS_MAX: usize = 20;

/// Longest item that can be a number. memcached stores a longer item in several chunks and never
/// treats it as a number. The limit also prevents clients from making the server copy a megabyte of
/// padding for each `incr`.
const ITEM_SIZE_MAX: u64 = 512 << 10;

pub(crate) struct ArithmeticVisitor<'v> {
    pub(crate) arithmetic: &'v Arithmetic<'v>,
    pub(crate) now: UnixSeconds,
    pub(crate) tracking: &'v AccessTracking,
    pub(crate) versions: &'v VersionCounter,
    pub(crate) outcome: Reply<'static>,
    text: Vec<u8>,
}

impl<'v> ArithmeticVisitor<'v> {
    pub(crate) fn new(
        arithmetic: &'v Arithmetic<'v>,
        now: UnixSeconds,
        tracking: &'v AccessTracking,
        versions: &'v VersionCounter,
    ) -> Self {
        let outcome = Reply::NotFound;
        ArithmeticVisitor { arithmetic, now, tracking, versions, outcome, text: Vec::new() }
    }

    fn write(&mut self, value: u64, at_least: usize) {
        self.text.clear();
        let mut digits = [0; DIGITS_MAX];
        let mut at = DIGITS_MAX;
        let mut rest = value;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text.extend_from_slice(&digits[at..]);
        if self.text.len() < at_least {
            self.text.resize(at_least, b' ');
        }
    }

    fn put<'a>(
        &'a mut self,
        value: u64,
        attributes: Attributes,
        expiry_before: Expiry,
        created: bool,
    ) -> Action<'a> {
        self.outcome = Reply::Number(ArithmeticReply {
            value,
            version: attributes.version,
            expiry_before,
            expiry: attributes.expiry,
            created,
            now: self.now,
        });
        Action::Put(Record::new(&self.text, attributes))
    }
}

/// Parses a value as a number: digits, optionally surrounded by blanks.
fn number(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii();
    // Leading zeros are legal in any number; too many other digits make the parser below report an
    // overflow.
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    digits.iter().try_fold(0u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

impl Visitor for ArithmeticVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let arithmetic = self.arithmetic;
        let version = |this: &Self| this.versions.for_write(arithmetic.version, arithmetic.needs.version);
        let Some(old) = old else {
            let Some(ttl) = arithmetic.vivify else {
                self.outcome = Reply::NotFound;
                return Action::Keep;
            };
            let expiry = resolve(ttl, self.now);
            let access = self.tracking.on_write(self.now);
            let attributes = Attributes { expiry, version: version(self), access, ..Attributes::default() };
            self.write(arithmetic.initial, 0);
            return self.put(arithmetic.initial, attributes, expiry, true);
        };
        if arithmetic.compare.is_some_and(|wanted| !equals(old.attributes.version, wanted)) {
            self.outcome = Reply::Exists;
            return Action::Keep;
        }
        let size = item_size(arithmetic.key.len(), old.value.len(), old.attributes.flags);
        let stored = if size > ITEM_SIZE_MAX { None } else { number(old.value) };
        let Some(stored) = stored else {
            self.outcome = Reply::Refused(RefusalReason::NonNumeric);
            return Action::Keep;
        };
        let value = match arithmetic.direction {
            ArithmeticDirection::Increment => stored.wrapping_add(arithmetic.delta),
            ArithmeticDirection::Decrement => stored.saturating_sub(arithmetic.delta),
        };
        // If the new number has fewer digits, it is padded with blanks to the old length, because
        // memcached overwrites the item in place and clients expect that. A number of the same
        // length keeps the marks of the record. A longer number replaces the record, which loses
        // its marks.
        self.write(value, old.value.len());
        let in_place = self.text.len() == old.value.len();
        let attributes = Attributes {
            has_value_list: false,
            flags: old.attributes.flags,
            expiry: match arithmetic.touch {
                Some(ttl) => resolve(ttl, self.now),
                None => old.attributes.expiry.after_access(self.now),
            },
            version: version(self),
            marks: if in_place { old.attributes.marks } else { StaleMarks::default() },
            access: if in_place {
                self.tracking.on_use(self.now, old.attributes.access)
            } else {
                self.tracking.on_write(self.now)
            },
        };
        self.put(value, attributes, old.attributes.expiry, false)
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_may_have_blanks_around_and_zeros_before() {
        for (text, value) in
            [("0", 0), ("007", 7), (" 12", 12), ("5  ", 5), ("18446744073709551615", u64::MAX)]
        {
            assert_eq!(number(text.as_bytes()), Some(value), "{text:?}");
        }
        for text in ["", " ", "-5", "+5", "12x", "1 2", "0x10", "1.0", "18446744073709551616"] {
            assert_eq!(number(text.as_bytes()), None, "{text:?}");
        }
    }
}
