//! What rides with a record: flags, and how long it lives.

use crate::answer::invalid;
use crate::raw::Bytes;
use std::ffi::c_int;
use todana::{Expiry, OwnedRecord, Record, Result, Ttl, UnixSeconds};

/// It stays until it is removed.
pub const TODANA_NEVER: c_int = 0;
/// It lives for so many seconds.
pub const TODANA_SECONDS: c_int = 1;
/// It lives until this Unix time.
pub const TODANA_AT: c_int = 2;
/// It lives until it has not been used for so many seconds.
pub const TODANA_SLIDING: c_int = 3;

/// What rides with a record. All zero: no flags, and it stays.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Attributes {
    /// TODANA_NEVER, TODANA_SECONDS, TODANA_AT or TODANA_SLIDING. What is read is never TODANA_SECONDS.
    life: c_int,
    /// The program's own.
    flags: u32,
    /// As `life` says.
    seconds: u64,
}

/// A record that is shown. All of it belongs to who shows it: copy what you keep. No NUL stands behind these bytes: `len` tells where they end.
#[repr(C)]
pub struct Shown {
    key: Bytes,
    value: Bytes,
    attributes: Attributes,
    /// The Unix time at which it is gone, as things stand; 0 if never.
    expires_at: u64,
}

impl Attributes {
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

    /// The same, from this moment on.
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

    pub(crate) fn of(flags: u32, expiry: Expiry) -> Attributes {
        let (life, seconds) = match expiry {
            Expiry::Never => (TODANA_NEVER, 0),
            Expiry::At(at) => (TODANA_AT, at.0),
            Expiry::Sliding { span_s, .. } => (TODANA_SLIDING, span_s.into()),
        };
        Attributes { life, flags, seconds }
    }
}

impl Shown {
    pub(crate) const NOTHING: Shown = Shown {
        key: Bytes::NONE,
        value: Bytes::NONE,
        attributes: Attributes { life: TODANA_NEVER, flags: 0, seconds: 0 },
        expires_at: 0,
    };

    pub(crate) fn of(key: &[u8], record: Record<'_>) -> Shown {
        let expiry = record.attributes.expiry;
        Shown {
            key: Bytes::lend(key),
            value: Bytes::lend(record.value),
            attributes: Attributes::of(record.attributes.flags, expiry),
            expires_at: expiry.at().map_or(0, |at| at.0),
        }
    }

    /// Of what stays where it is while it is shown.
    pub(crate) fn of_owned(key: &[u8], record: &OwnedRecord) -> Shown {
        Shown {
            key: Bytes::lend(key),
            value: Bytes::lend(&record.value),
            attributes: Attributes::of(record.flags, record.expiry),
            expires_at: record.expiry.at().map_or(0, |at| at.0),
        }
    }

    /// Only a key.
    pub(crate) fn of_key(key: &[u8]) -> Shown {
        Shown { key: Bytes::lend(key), ..Shown::NOTHING }
    }
}
