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
}

impl Expiry {
    /// True while a record with this expiry still counts.
    pub fn is_live(self, now: UnixSeconds) -> bool {
        match self {
            Expiry::Never => true,
            Expiry::At(at) => at > now,
        }
    }

    /// Seconds left, `None` for a record that never expires; negative once it is past.
    pub fn seconds_left(self, now: UnixSeconds) -> Option<i64> {
        match self {
            Expiry::Never => None,
            Expiry::At(at) => Some(at.0 as i64 - now.0 as i64),
        }
    }
}

/// When a record was last read or written, and whether anybody has read it since it was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The last access.
    pub at: UnixSeconds,
    /// Read at least once since it was stored.
    pub fetched: bool,
}

/// The two marks of memcached's stale-while-revalidate (meta flags I, N, R; answers W, X, Z).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The value is known to be out of date.
    pub stale: bool,
    /// Some client was told to recompute the value ("won") and has not stored it yet.
    pub token_out: bool,
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
    pub marks: Marks,
    /// Last access, only while somebody asks for access times.
    pub access: Option<Access>,
}

/// Bytes shared with whoever is still sending them: a large value outlives its record's removal
/// for as long as a slow reader holds it, without a copy.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A record as an engine shows it or is given it. The key travels beside it.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// The value, exact text.
    pub value: &'a [u8],
    /// The same bytes in shared form, where the engine keeps them so (large values).
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
