//! Encodes replies as packets.

use super::form::{BinaryForm, ResponseKind};
use super::header::ResponseHeader;
use super::status::PacketStatus;
use crate::memcached::server::{ReplySink, put_prefixes, put_value};
use todana_core::{ArithmeticReply, HitReply, RefusalReason, Reply};

/// The body that confirms authentication.
const AUTHENTICATED: &[u8] = b"Authenticated";

/// The key of the packet with the counts of all prefixes.
const DETAILED: &[u8] = b"detailed";

/// Writes a reply in the form that its packet requested.
#[inline]
pub(in crate::memcached) fn encode(form: &BinaryForm<'_>, reply: &Reply<'_>, out: &mut impl ReplySink) {
    match *reply {
        Reply::Hit(ref hit) => self::hit(form, hit, out),
        Reply::Miss => miss(form, out),
        Reply::Stored(stored) => done(form, stored.version, b"", out),
        Reply::Number(ArithmeticReply { value, version, .. }) => {
            done(form, version, &value.to_be_bytes(), out)
        }
        Reply::Deleted | Reply::Touched | Reply::Done => done(form, 0, b"", out),
        // A list of statistics ends with a packet that has no name. The reply to `reset` consists
        // of such a packet alone.
        Reply::Reset | Reply::End => done(form, 0, b"", out),
        Reply::Version(text) | Reply::Mechanisms(text) => done(form, 0, text.as_bytes(), out),
        Reply::Authenticated => done(form, 0, AUTHENTICATED, out),
        Reply::Challenge(challenge) => plain(form, PacketStatus::Continue, 0, challenge, out),
        Reply::Statistic { name, value } => {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            head(
                form,
                PacketStatus::Success,
                BodyLengths { extras: 0, key: name.len(), value: value.len() },
                0,
                out,
            );
            out.put(name);
            out.put(value);
        }
        // One packet contains the text lines of all prefixes. The empty packet that ends a list
        // follows it.
        Reply::Prefixes(all) => {
            let mut value = Vec::new();
            put_prefixes(all, &mut value);
            value.put(b"END\r\n");
            let lengths = BodyLengths { extras: 0, key: DETAILED.len(), value: value.len() };
            head(form, PacketStatus::Success, lengths, 0, out);
            out.put(DETAILED);
            out.put(&value);
        }
        Reply::NotStored => error(form, not_stored(form), out),
        Reply::Exists => error(form, PacketStatus::Exists, out),
        Reply::NotFound => error(form, PacketStatus::NotFound, out),
        Reply::Refused(refusal) => error(form, refused(refusal), out),
        Reply::Unknown if matches!(form.answer, ResponseKind::Statistics) => {
            error(form, PacketStatus::NotFound, out)
        }
        Reply::Unknown => error(form, PacketStatus::UnknownCommand, out),
        Reply::Faulty(_) => match form.answer {
            ResponseKind::Fault(status) => error(form, status, out),
            _ => error(form, PacketStatus::Invalid, out),
        },
        // No packet has such a reply.
        Reply::Inspection(_) | Reply::Listed { .. } | Reply::Integer(_) | Reply::Real(_) => {
            error(form, PacketStatus::UnknownCommand, out)
        }
    }
}

/// The lengths of the parts after a header.
#[derive(Clone, Copy)]
struct BodyLengths {
    extras: usize,
    key: usize,
    value: usize,
}

#[inline]
fn head(
    form: &BinaryForm<'_>,
    status: PacketStatus,
    lengths: BodyLengths,
    version: u64,
    out: &mut impl ReplySink,
) {
    let header = ResponseHeader {
        opcode: form.opcode,
        status,
        key_len: lengths.key,
        extras_len: lengths.extras,
        body_len: lengths.extras + lengths.key + lengths.value,
        opaque: form.opaque,
        version,
    };
    out.put(&header.to_bytes());
}

/// Writes flags, key and value, if the request asked for them.
#[inline]
fn hit(form: &BinaryForm<'_>, hit: &HitReply<'_>, out: &mut impl ReplySink) {
    let record = &hit.record;
    let (key, with_value) = match form.answer {
        ResponseKind::Record { key, with_value } => (key.unwrap_or_default(), with_value),
        _ => (&b""[..], false),
    };
    let flags = record.attributes.flags.to_be_bytes();
    let value = if with_value { record.value.len() } else { 0 };
    let lengths = BodyLengths { extras: flags.len(), key: key.len(), value };
    head(form, PacketStatus::Success, lengths, record.attributes.version, out);
    out.put(&flags);
    out.put(key);
    if with_value {
        put_value(record, out);
    }
}

/// Writes a miss. If the client asked for the key, the response contains the key and no text.
#[inline]
fn miss(form: &BinaryForm<'_>, out: &mut impl ReplySink) {
    if form.is_quiet {
        return;
    }
    match form.answer {
        ResponseKind::Record { key: Some(key), .. } => {
            head(form, PacketStatus::NotFound, BodyLengths { extras: 0, key: key.len(), value: 0 }, 0, out);
            out.put(key);
        }
        _ => error(form, PacketStatus::NotFound, out),
    }
}

/// Writes an expected result, unless the request was quiet.
#[inline]
fn done(form: &BinaryForm<'_>, version: u64, value: &[u8], out: &mut impl ReplySink) {
    if !form.is_quiet {
        plain(form, PacketStatus::Success, version, value, out);
    }
}

#[inline]
fn plain(form: &BinaryForm<'_>, status: PacketStatus, version: u64, value: &[u8], out: &mut impl ReplySink) {
    head(form, status, BodyLengths { extras: 0, key: 0, value: value.len() }, version, out);
    out.put(value);
}

/// Writes an error. A quiet request receives it too.
fn error(form: &BinaryForm<'_>, status: PacketStatus, out: &mut impl ReplySink) {
    plain(form, status, 0, status.text().as_bytes(), out);
}

/// Writes an error with its own text, after which a later attempt may succeed.
pub(in crate::memcached) fn put_failure(form: &BinaryForm<'_>, text: &[u8], out: &mut impl ReplySink) {
    plain(form, PacketStatus::TemporaryFailure, 0, text, out);
}

fn not_stored(form: &BinaryForm<'_>) -> PacketStatus {
    match form.answer {
        ResponseKind::Store { not_stored } => not_stored,
        _ => PacketStatus::NotStored,
    }
}

fn refused(refusal: RefusalReason) -> PacketStatus {
    match refusal {
        RefusalReason::TooLarge => PacketStatus::TooLarge,
        RefusalReason::OutOfMemory => PacketStatus::OutOfMemory,
        RefusalReason::NonNumeric => PacketStatus::NonNumeric,
        RefusalReason::LogUnwritable
        | RefusalReason::FilesUnwritable
        | RefusalReason::Unavailable
        | RefusalReason::Busy
        | RefusalReason::Unreachable
        | RefusalReason::OutcomeUnknown
        | RefusalReason::Unconfirmed
        | RefusalReason::Overloaded
        | RefusalReason::TooOld => PacketStatus::TemporaryFailure,
        RefusalReason::Damaged => PacketStatus::InternalError,
        RefusalReason::NotAuthenticated | RefusalReason::NotEnabled => PacketStatus::NotAuthenticated,
        RefusalReason::ReadOnly
        | RefusalReason::Replica
        | RefusalReason::Superseded
        | RefusalReason::NotOnCluster => PacketStatus::NotSupported,
        RefusalReason::NoPlans | RefusalReason::OtherLog => PacketStatus::Invalid,
        // No packet sets a memory limit.
        RefusalReason::LimitTooSmall | RefusalReason::LimitInBytes | RefusalReason::LimitNotAdjustable => {
            PacketStatus::Invalid
        }
    }
}
