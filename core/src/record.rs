//! A record: a value and the attributes that ride with it.

use std::fmt;
use std::sync::Arc;

/// Seconds since 1970-01-01 UTC; the store's clock is a whole-second clock, like memcached's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixSeconds(pub u64);

impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// When a record dies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// It stays until somebody removes it.
    #[default]
    Never,
    /// It is gone once the clock reads this second (`at <= now` is dead).
    At(UnixSeconds),
    /// It is gone so many seconds after its last access.
    Sliding {
        /// When that will be, as things stand: an access moves it.
        at: UnixSeconds,
        /// How many seconds.
        span_s: u32,
    },
}

impl Expiry {
    /// The second in which it is over, as things stand; `None` if never.
    pub fn at(self) -> Option<UnixSeconds> {
        match self {
            Expiry::Never => None,
            Expiry::At(at) | Expiry::Sliding { at, .. } => Some(at),
        }
    }

    /// True while a record with this expiry still counts.
    pub fn is_live(self, now: UnixSeconds) -> bool {
        self.at().is_none_or(|at| at > now)
    }

    /// What an access makes of it. So that not every read is a write, a sliding expiry moves by whole seconds, and by no
    /// less than [`STEPS_PER_SPAN`](Self::STEPS_PER_SPAN) allow.
    pub fn after_access(self, now: UnixSeconds) -> Expiry {
        match self {
            Expiry::Sliding { at, span_s } => {
                let moved = now.0 + u64::from(span_s);
                let is_worthwhile = moved >= at.0 + u64::from((span_s / Self::STEPS_PER_SPAN).max(1));
                if is_worthwhile { Expiry::Sliding { at: UnixSeconds(moved), span_s } } else { self }
            }
            _ => self,
        }
    }

    /// A sliding expiry moves at most so many times in a span: it is exact to the second up to a span of 17 minutes, and
    /// beyond that early by less than a thousandth of its span.
    pub const STEPS_PER_SPAN: u32 = 1024;

    /// Seconds left, `None` for a record that never expires; negative once it is past.
    pub fn seconds_left(self, now: UnixSeconds) -> Option<i64> {
        self.at().map(|at| at.0 as i64 - now.0 as i64)
    }

    /// The span of a sliding expiry.
    pub fn span_s(self) -> Option<u32> {
        match self {
            Expiry::Sliding { span_s, .. } => Some(span_s),
            _ => None,
        }
    }
}

/// When a record was last read or written, and whether anybody has read it since it was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastAccess {
    /// The last access.
    pub at: UnixSeconds,
    /// Read at least once since it was stored.
    pub fetched: bool,
}

/// The two marks of memcached's stale-while-revalidate (meta flags I, N, R; answers W, X, Z).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StaleMarks {
    /// The value is known to be out of date.
    pub stale: bool,
    /// Some client was told to recompute the value ("won") and has not stored it yet.
    pub token_sent: bool,
}

/// What a record may carry besides its value. The default of each costs no byte in an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The client's flags; 0 is "none".
    pub flags: u32,
    /// When it dies.
    pub expiry: Expiry,
    /// The version (CAS id); 0 means that none has been shown to anybody, so none is stored.
    pub version: u64,
    /// Stale and token-out marks.
    pub marks: StaleMarks,
    /// Last access, only while somebody asks for access times.
    pub access: Option<LastAccess>,
}

/// Bytes shared with whoever is still sending them: a large value outlives its record's removal
/// for as long as a slow reader holds it, without a copy.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Values from this length on are long: they have memory of their own, which is shared rather than copied.
pub const LONG_VALUE_LEN: usize = (64 << 10) + 1;

/// A long value's memory on its way through a command, beside the value itself.
///
/// Debug output and equality look past it: the bytes stand beside it.
#[derive(Clone, Copy, Default)]
pub struct SharedValue<'a>(pub Option<&'a SharedBytes>);

impl fmt::Debug for SharedValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

impl PartialEq for SharedValue<'_> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SharedValue<'_> {}

/// A record as an engine shows it or is given it. The key travels beside it.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// The value, exact text.
    pub value: &'a [u8],
    /// The same bytes in shared form, where the engine keeps them so (large values). An engine that is given one of its
    /// own keeps it without a copy.
    pub shared: Option<&'a SharedBytes>,
    /// Everything besides the value.
    pub attributes: Attributes,
}

impl<'a> Record<'a> {
    /// A record of a value and its attributes.
    pub fn new(value: &'a [u8], attributes: Attributes) -> Self {
        Record { value, shared: None, attributes }
    }
}

impl fmt::Debug for Record<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("value", &self.value.escape_ascii().to_string())
            .field("attributes", &self.attributes)
            .finish()
    }
}

impl PartialEq for Record<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value && self.attributes == other.attributes
    }
}

#[cfg(test)]
mod tests {
    use super::{Expiry, UnixSeconds};

    fn sliding(at: u64, span_s: u32) -> Expiry {
        Expiry::Sliding { at: UnixSeconds(at), span_s }
    }

    #[test]
    fn an_access_moves_a_sliding_expiry_and_no_other() {
        let now = UnixSeconds(1000);
        for (before, after) in [
            (sliding(1001, 300), sliding(1300, 300)),
            (sliding(1299, 300), sliding(1300, 300)),
            (sliding(1300, 300), sliding(1300, 300)),
            (sliding(1005, 1), sliding(1005, 1)),
            (Expiry::At(UnixSeconds(1001)), Expiry::At(UnixSeconds(1001))),
            (Expiry::Never, Expiry::Never),
        ] {
            assert_eq!(before.after_access(now), after);
        }
    }

    #[test]
    fn a_long_span_moves_by_a_thousandth_of_itself() {
        let (span_s, day) =
            (86_400, |at: u64| sliding(at, 86_400).after_access(UnixSeconds(at - 86_400 + 84)));
        assert_eq!(day(100_000), sliding(100_084, span_s));
        assert_eq!(
            sliding(100_000, span_s).after_access(UnixSeconds(100_000 - 86_400 + 83)),
            sliding(100_000, span_s)
        );
    }

    #[test]
    fn a_sliding_expiry_is_over_at_its_second() {
        assert!(sliding(10, 5).is_live(UnixSeconds(9)) && !sliding(10, 5).is_live(UnixSeconds(10)));
        assert_eq!(sliding(10, 5).seconds_left(UnixSeconds(7)), Some(3));
        assert_eq!((sliding(10, 5).span_s(), Expiry::At(UnixSeconds(1)).span_s()), (Some(5), None));
    }
}
