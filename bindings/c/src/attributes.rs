//! Defines the attributes of a record: flags and expiry.

use crate::answer::invalid;
use crate::raw::Bytes;
use std::ffi::c_int;
use todana::{Expiry, OwnedRecord, Record, Result, Ttl, UnixSeconds};

/// The record does not expire.
pub const TODANA_NEVER: c_int = 0;
/// The record expires after `seconds` seconds.
pub const TODANA_SECONDS: c_int = 1;
/// The record expires at the Unix time `seconds`.
pub const TODANA_AT: c_int = 2;
/// The record expires when it has not been used for `seconds` seconds.
pub const TODANA_SLIDING: c_int = 3;

/// The attributes of a record. If all fields are zero, the record has no flags and does not expire.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RecordAttributes {
    /// The kind of expiry: TODANA_NEVER, TODANA_SECONDS, TODANA_AT or TODANA_SLIDING. A record that
    /// was read never has TODANA_SECONDS.
    life: c_int,
    /// The flags. The program defines their meaning.
    flags: u32,
    /// The time for `life`.
    seconds: u64,
}

/// A record that a function shows. Its memory belongs to the library, so copy the bytes that you
/// keep. No NUL follows the bytes; use `len`.
#[repr(C)]
pub struct ShownRecord {
    key: Bytes,
    value: Bytes,
    attributes: RecordAttributes,
    /// The Unix time at which the record expires unless it is used again, or 0 if it does not
    /// expire.
    expires_at: u64,
}

impl RecordAttributes {
    pub(crate) fn flags(&self) -> u32 {
        self.flags
    }

    pub(crate) fn ttl(&self) -> Result<Ttl> {
        Ok(match self.life {
            TODANA_NEVER => Ttl::Never,
            TODANA_SECONDS => Ttl::Seconds(self.span()?),
            TODANA_AT => Ttl::At(self.seconds),
            TODANA_SLIDING => Ttl::Sliding(self.span()?),
            other => return Err(invalid(format!("there is no life of kind {other}"))),
        })
    }

    /// Returns the expiry of a record that is stored now.
    pub(crate) fn expiry(&self, now: UnixSeconds) -> Result<Expiry> {
        let after = |span: u32| UnixSeconds(now.0.saturating_add(u64::from(span)));
        Ok(match self.ttl()? {
            Ttl::Never => Expiry::Never,
            Ttl::Expired => Expiry::At(UnixSeconds(0)),
            Ttl::Seconds(span) => Expiry::At(after(span)),
            Ttl::At(at) => Expiry::At(UnixSeconds(at)),
            Ttl::Sliding(span_s) => Expiry::Sliding { at: after(span_s), span_s },
        })
    }

    fn span(&self) -> Result<u32> {
        u32::try_from(self.seconds)
            .map_err(|_| invalid(format!("a life of {} seconds is too long", self.seconds)))
    }

    pub(crate) fn of(flags: u32, expiry: Expiry) -> RecordAttributes {
        let (life, seconds) = match expiry {
            Expiry::Never => (TODANA_NEVER, 0),
            Expiry::At(at) => (TODANA_AT, at.0),
            Expiry::Sliding { span_s, .. } => (TODANA_SLIDING, span_s.into()),
        };
        RecordAttributes { life, flags, seconds }
    }
}

impl ShownRecord {
    pub(crate) const NOTHING: ShownRecord = ShownRecord {
        key: Bytes::NONE,
        value: Bytes::NONE,
        attributes: RecordAttributes { life: TODANA_NEVER, flags: 0, seconds: 0 },
        expires_at: 0,
    };

    pub(crate) fn of(key: &[u8], record: Record<'_>) -> ShownRecord {
        let expiry = record.attributes.expiry;
        ShownRecord {
            key: Bytes::lend(key),
            value: Bytes::lend(record.value),
            attributes: RecordAttributes::of(record.attributes.flags, expiry),
            expires_at: expiry.at().map_or(0, |at| at.0),
        }
    }

    /// Returns a view of a record. The record must stay in its place while the view is used.
    pub(crate) fn of_owned(key: &[u8], record: &OwnedRecord) -> ShownRecord {
        ShownRecord {
            key: Bytes::lend(key),
            value: Bytes::lend(&record.value),
            attributes: RecordAttributes::of(record.flags, record.expiry),
            expires_at: record.expiry.at().map_or(0, |at| at.0),
        }
    }

    /// Returns a view of a key without a record.
    pub(crate) fn of_key(key: &[u8]) -> ShownRecord {
        ShownRecord { key: Bytes::lend(key), ..ShownRecord::NOTHING }
    }
}
