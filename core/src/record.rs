//! Defines records: a value and its attributes.

use std::fmt;
use std::sync::Arc;

/// Seconds since 1970-01-01 UTC. The clock counts full seconds, like memcached's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixSeconds(pub u64);

impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The time at which a record expires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// The record never expires.
    #[default]
    Never,
    /// The record expires when the clock reaches this second (it is expired if `at <= now`).
    At(UnixSeconds),
    /// The record expires `span_s` seconds after its last access.
    Sliding {
        /// The current time of expiry; an access moves it.
        at: UnixSeconds,
        /// The span in seconds.
        span_s: u32,
    },
}

impl Expiry {
    /// Returns the second at which the record currently expires; `None` if never.
    pub fn at(self) -> Option<UnixSeconds> {
        match self {
            Expiry::Never => None,
            Expiry::At(at) | Expiry::Sliding { at, .. } => Some(at),
        }
    }

    /// Returns true if a record with this expiry has not expired.
    pub fn is_live(self, now: UnixSeconds) -> bool {
        self.at().is_none_or(|at| at > now)
    }

    /// Returns the expiry after an access. A sliding expiry moves by at least one second and at
    /// least 1/[`STEPS_PER_SPAN`](Self::STEPS_PER_SPAN) of its span, so that not every read becomes
    /// a write.
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

    /// The maximum number of moves of a sliding expiry within one span. A record with a span of up
    /// to 17 minutes expires exactly at its second. A record with a longer span may expire early,
    /// by less than a thousandth of the span.
    pub const STEPS_PER_SPAN: u32 = 1024;

    /// Returns the seconds until the expiry: negative after the expiry, `None` if the record never
    /// expires.
    pub fn seconds_left(self, now: UnixSeconds) -> Option<i64> {
        self.at().map(|at| at.0 as i64 - now.0 as i64)
    }

    /// Returns the span of a sliding expiry.
    pub fn span_s(self) -> Option<u32> {
        match self {
            Expiry::Sliding { span_s, .. } => Some(span_s),
            _ => None,
        }
    }
}

/// The last access of a record, and whether the record has been read since it was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastAccess {
    /// The time of the last access.
    pub at: UnixSeconds,
    /// True if the record has been read since it was stored.
    pub fetched: bool,
}

/// The two marks of memcached's stale-while-revalidate (meta flags I, N, R; reply flags W, X, Z).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StaleMarks {
    /// The value is known to be out of date.
    pub stale: bool,
    /// A client has been asked to recompute the value (the client "won") and has not stored it yet.
    pub token_sent: bool,
}

/// The attributes of a record. An attribute with its default value takes no byte in an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The client's flags; 0 means none.
    pub flags: u32,
    /// The time of expiry.
    pub expiry: Expiry,
    /// The version (CAS ID). 0 means that no client has seen a version of the record, so none is
    /// stored.
    pub version: u64,
    /// The marks of stale-while-revalidate.
    pub marks: StaleMarks,
    /// The last access. It is recorded only while a client asks for access times.
    pub access: Option<LastAccess>,
    /// The value is a list of several values ([`Record::values`]). Then no access is recorded.
    pub has_value_list: bool,
}

/// The bytes of a long value, which an engine may hold in compressed form. Plain bytes of any type
/// implement this.
pub trait LongBytes: Send + Sync {
    /// Returns the number of bytes of the value.
    fn len(&self) -> usize;

    /// Returns true if the value has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all bytes, or `None` if they are compressed.
    fn plain(&self) -> Option<&[u8]>;

    /// Returns the number of bytes that are stored.
    fn stored_len(&self) -> usize {
        self.len()
    }

    /// Replaces the content of `chunk` by the bytes from `at` on, up to the end of the chunk that
    /// contains them. Chunks are short, so that a slow reader needs little memory.
    fn copy_chunk(&self, at: usize, chunk: &mut Vec<u8>);

    /// Returns a plain copy of compressed bytes, or `None` if they are plain already.
    fn decompressed(&self) -> Option<SharedBytes>;

    /// Returns the number of times that the bytes were decompressed since the last call.
    fn take_decompressions(&self) -> u32 {
        0
    }
}

/// The length of the chunks of plain bytes.
const PLAIN_CHUNK_LEN: usize = 64 << 10;

impl<T: AsRef<[u8]> + Send + Sync> LongBytes for T {
    fn len(&self) -> usize {
        self.as_ref().len()
    }

    fn plain(&self) -> Option<&[u8]> {
        Some(self.as_ref())
    }

    fn copy_chunk(&self, at: usize, chunk: &mut Vec<u8>) {
        chunk.clear();
        let rest = self.as_ref().get(at..).unwrap_or_default();
        chunk.extend_from_slice(&rest[..rest.len().min(PLAIN_CHUNK_LEN)]);
    }

    fn decompressed(&self) -> Option<SharedBytes> {
        None
    }
}

/// Bytes that several owners share. A slow reader keeps a large value in memory, without a copy,
/// even after the record has been removed.
pub type SharedBytes = Arc<dyn LongBytes>;

impl fmt::Debug for dyn LongBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

/// Returns the value in plain form: itself, or a copy that was decompressed.
pub fn plain_value(value: &SharedBytes) -> SharedBytes {
    value.decompressed().unwrap_or_else(|| Arc::clone(value))
}

/// The length from which a value counts as long. A long value has its own memory, which is shared
/// and not copied.
pub const LONG_VALUE_LEN: usize = (64 << 10) + 1;

/// The shared bytes of a long value, which accompany the value through a command.
///
/// Debug output and equality ignore them, because the value has the same bytes.
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

/// A record as an engine shows or receives it. The key is passed separately.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// The exact bytes of the value.
    pub value: &'a [u8],
    /// The same bytes in shared form, if the value is long. An engine stores its own shared bytes
    /// without a copy. They may be compressed even if `value` is not.
    pub shared: Option<&'a SharedBytes>,
    /// The attributes of the record.
    pub attributes: Attributes,
}

impl<'a> Record<'a> {
    /// Creates a record from a value and its attributes.
    pub fn new(value: &'a [u8], attributes: Attributes) -> Self {
        Record { value, shared: None, attributes }
    }

    /// Returns the shared bytes if they are compressed. A reader that has asked for shared bytes
    /// ([`Engine::view_shared`](crate::Engine::view_shared)) must then read these instead of
    /// `value`, which has the right length and no meaning.
    pub fn compressed(&self) -> Option<&'a SharedBytes> {
        self.shared.filter(|shared| shared.plain().is_none())
    }

    /// Returns the shared bytes if they are plain, so that they can be stored in another engine.
    pub fn plain_shared(&self) -> Option<&'a SharedBytes> {
        self.shared.filter(|shared| shared.plain().is_some())
    }

    /// Calls `see` with this record and its plain value. A compressed value is decompressed.
    pub fn with_plain_value<T>(self, see: impl FnOnce(Record<'_>) -> T) -> T {
        let Some(compressed) = self.compressed() else { return see(self) };
        let plain = plain_value(compressed);
        see(Record { value: plain.plain().unwrap_or_default(), ..self })
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
    fn access_moves_only_a_sliding_expiry() {
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
    fn long_span_moves_in_steps_of_a_thousandth() {
        let (span_s, day) =
            (86_400, |at: u64| sliding(at, 86_400).after_access(UnixSeconds(at - 86_400 + 84)));
        assert_eq!(day(100_000), sliding(100_084, span_s));
        assert_eq!(
            sliding(100_000, span_s).after_access(UnixSeconds(100_000 - 86_400 + 83)),
            sliding(100_000, span_s)
        );
    }

    #[test]
    fn sliding_expiry_ends_at_its_second() {
        assert!(sliding(10, 5).is_live(UnixSeconds(9)) && !sliding(10, 5).is_live(UnixSeconds(10)));
        assert_eq!(sliding(10, 5).seconds_left(UnixSeconds(7)), Some(3));
        assert_eq!((sliding(10, 5).span_s(), Expiry::At(UnixSeconds(1)).span_s()), (Some(5), None));
    }
}
