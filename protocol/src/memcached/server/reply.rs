//! Encodes replies as bytes.

use super::flags::KEY_BASE64;
use super::form::{FormKind, MetaForm, MetaVerb, ReplyForm, ValueForm};
use super::{KEY_LEN_MAX, OUT_OF_MEMORY, OUT_OF_MEMORY_IN_READ, TOO_LARGE};
use crate::memcached::{binary, item_size, size_class};
use base64::Engine as _;
use todana_core::{
    ArithmeticReply, Expiry, HitReply, PrefixCounters, Record, RecordDetails, RefusalReason, Reply,
    SharedBytes, StoredReply, UnixSeconds, plain_value,
};

/// A destination for reply bytes.
pub trait ReplySink {
    /// Copies bytes.
    fn put(&mut self, bytes: &[u8]);
    /// Keeps a reference to a large value instead of copying it. The value may be compressed.
    fn share(&mut self, bytes: &SharedBytes) {
        match bytes.plain() {
            Some(plain) => self.put(plain),
            None => self.put(plain_value(bytes).plain().unwrap_or_default()),
        }
    }
}

impl ReplySink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Writes a reply in the form that its request wants. Writes nothing after `noreply`, for a reply
/// that `q` suppresses, and for a missing key of a `get` line.
#[inline]
pub fn encode(form: &ReplyForm<'_>, reply: &Reply<'_>, out: &mut impl ReplySink) {
    match &form.0 {
        FormKind::Value(form) => value(form, reply, out),
        FormKind::Silent => {}
        FormKind::Keys => match reply {
            Reply::Listed { key, .. } => meta_get(key, out),
            Reply::End => out.put(b"EN\r\n"),
            _ => line(reply, out),
        },
        FormKind::Items => match reply {
            Reply::Listed { key, inspection } => item(key, inspection, out),
            _ => line(reply, out),
        },
        FormKind::Line | FormKind::StoreLine | FormKind::ReadLine => match (&form.0, reply) {
            (FormKind::StoreLine, Reply::Refused(RefusalReason::OutOfMemory)) => {
                refused_line(OUT_OF_MEMORY, out)
            }
            (FormKind::ReadLine, Reply::Refused(RefusalReason::OutOfMemory)) => {
                refused_line(OUT_OF_MEMORY_IN_READ, out)
            }
            _ => line(reply, out),
        },
        FormKind::Meta(form) => meta(form, reply, out),
        FormKind::Binary(form) => binary::encode(form, reply, out),
        FormKind::Noop => match reply {
            Reply::Done => out.put(b"MN\r\n"),
            _ => line(reply, out),
        },
    }
}

/// Writes the reply for one key of a `get` line.
#[inline]
fn value(form: &ValueForm<'_>, reply: &Reply<'_>, out: &mut impl ReplySink) {
    let end: &[u8] = if form.is_last { b"END\r\n" } else { b"" };
    let record = match reply {
        Reply::Hit(hit) => &hit.record,
        // A record that cannot be read must not be reported as missing, so the error replaces
        // `END`.
        Reply::Refused(
            refusal @ (RefusalReason::Damaged
            | RefusalReason::Unavailable
            | RefusalReason::ReadOnly
            | RefusalReason::Unreachable
            | RefusalReason::OutcomeUnknown
            | RefusalReason::Overloaded
            | RefusalReason::NotOnCluster
            | RefusalReason::Replica
            | RefusalReason::Superseded
            | RefusalReason::Unconfirmed),
        ) if form.is_last => {
            return refused_line(refusal_text(*refusal), out);
        }
        // All other replies count as a miss. Clients would take an error for the end of the list,
        // and the rest of the list for another reply.
        _ => return out.put(end),
    };
    out.put(b"VALUE ");
    out.put(form.key);
    out.put(b" ");
    number(record.attributes.flags, out);
    out.put(b" ");
    number(record.value.len(), out);
    if form.with_version {
        out.put(b" ");
        number(record.attributes.version, out);
    }
    out.put(b"\r\n");
    body(record, out);
    out.put(if form.is_last { b"\r\nEND\r\n" } else { b"\r\n" });
}

/// Writes the value of a record.
#[inline]
pub(in crate::memcached) fn body(record: &Record<'_>, out: &mut impl ReplySink) {
    match record.shared {
        Some(shared) => out.share(shared),
        None => out.put(record.value),
    }
}

#[inline]
fn number(number: impl itoa::Integer, out: &mut impl ReplySink) {
    out.put(itoa::Buffer::new().format(number).as_bytes());
}

#[cold]
fn refused_line(message: &str, out: &mut impl ReplySink) {
    out.put(message.as_bytes());
    out.put(b"\r\n");
}

/// Writes a reply that does not depend on the form of its request.
fn line(reply: &Reply<'_>, out: &mut impl ReplySink) {
    let text: &str = match *reply {
        Reply::Stored(_) => "STORED",
        Reply::NotStored => "NOT_STORED",
        Reply::Exists => "EXISTS",
        Reply::NotFound | Reply::Miss => "NOT_FOUND",
        Reply::Deleted => "DELETED",
        Reply::Touched => "TOUCHED",
        Reply::Done => "OK",
        Reply::Reset => "RESET",
        Reply::End => "END",
        Reply::Unknown => "ERROR",
        // In the text dialect a login is a `set`, so it is answered like a `set`.
        Reply::Authenticated => "STORED",
        Reply::Faulty(message) => message,
        Reply::Refused(refusal) => refusal_text(refusal),
        Reply::Number(ArithmeticReply { value, .. }) => {
            number(value, out);
            ""
        }
        Reply::Version(version) => {
            out.put(b"VERSION ");
            version
        }
        Reply::Listed { key, ref inspection } => return listed(key, inspection, out),
        Reply::Statistic { name, value } => {
            out.put(b"STAT ");
            out.put(name.as_bytes());
            out.put(b" ");
            value
        }
        Reply::Prefixes(all) => return prefixes(all, out),
        // No command whose reply is a line reads a record.
        Reply::Hit(_)
        | Reply::Inspection(_)
        | Reply::Integer(_)
        | Reply::Real(_)
        | Reply::Mechanisms(_)
        | Reply::Challenge(_) => "SERVER_ERROR unexpected reply",
    };
    out.put(text.as_bytes());
    out.put(b"\r\n");
}

/// The longest key that `lru_crawler metadump` lists, in bytes. It bounds the length of a line, in
/// which each byte may need three characters.
const LISTED_KEY_LEN_MAX: usize = 256 << 10;

/// Writes a line of `lru_crawler metadump`, or nothing for a key above [`LISTED_KEY_LEN_MAX`].
/// Unlike all other lines, this line ends in a blank and LF.
fn listed(key: &[u8], inspection: &RecordDetails, out: &mut impl ReplySink) {
    if key.len() > LISTED_KEY_LEN_MAX {
        return;
    }
    let RecordDetails { expiry, access, version, flags, key_len, value_len, further_values, .. } =
        *inspection;
    let size = item_size(key_len, value_len, flags);
    out.put(b"key=");
    put_uri_encoded(key, out);
    out.put(b" exp=");
    match expiry.at() {
        None => out.put(b"-1"),
        Some(at) => number(at.0, out),
    }
    flag(b" la=", access.map_or(0, |access| access.at.0), out);
    flag(b" cas=", version, out);
    out.put(if access.is_some_and(|access| access.fetched) { b" fetch=yes" } else { b" fetch=no" });
    flag(b" cls=", size_class(size), out);
    flag(b" size=", size, out);
    flag(b" flags=", flags, out);
    if let Some(span_s) = expiry.span_s() {
        flag(b" sliding=", span_s, out);
    }
    if further_values > 0 {
        flag(b" values=", further_values + 1, out);
    }
    out.put(b" \n");
}

/// Writes a key in URI encoding, so that any bytes become one word.
pub fn put_uri_encoded(key: &[u8], out: &mut impl ReplySink) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in key {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.put(&[byte]);
        } else {
            out.put(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
    }
}

/// Writes a line of `lru_crawler mgdump`: a command that reads the record. A key that is not plain
/// text is written in base64. Writes nothing for a key that no `mg` can name, because the key is
/// empty or because its word would be longer than [`KEY_LEN_MAX`].
fn meta_get(key: &[u8], out: &mut impl ReplySink) {
    let is_plain = key.iter().all(u8::is_ascii_graphic);
    let word_len = if is_plain { key.len() } else { key.len().div_ceil(3) * 4 };
    if word_len == 0 || word_len > KEY_LEN_MAX {
        return;
    }
    out.put(b"mg ");
    if is_plain {
        out.put(key);
        out.put(b"\r\n");
    } else {
        base64(key, out);
        out.put(b" b\r\n");
    }
}

/// Returns true if a text command can name this key. Other dialects can store keys of any bytes and
/// any length.
fn is_text_key(key: &[u8]) -> bool {
    let is_word = !key.iter().any(|byte| matches!(byte, b' ' | b'\r' | b'\n' | 0));
    is_word && !key.is_empty() && key.len() <= KEY_LEN_MAX
}

/// Writes a line of `stats cachedump`. Writes nothing for a key that no text command can name,
/// because a client would read it as another key or as a line of its own.
fn item(key: &[u8], inspection: &RecordDetails, out: &mut impl ReplySink) {
    if !is_text_key(key) {
        return;
    }
    out.put(b"ITEM ");
    out.put(key);
    flag(b" [", inspection.value_len, out);
    match inspection.expiry.at() {
        None => out.put(b" b; 0"),
        Some(at) => flag(b" b; ", at.0, out),
    }
    out.put(b" s]\r\n");
}

/// Writes the lines of `stats detail dump`.
pub(in crate::memcached) fn prefixes(all: &[PrefixCounters<'_>], out: &mut impl ReplySink) {
    for prefix in all {
        out.put(b"PREFIX ");
        // A key of a binary packet may contain line ends, so its prefix may contain them too.
        if is_text_key(prefix.name) {
            out.put(prefix.name)
        } else {
            put_uri_encoded(prefix.name, out)
        }
        flag(b" get ", prefix.gets, out);
        flag(b" hit ", prefix.hits, out);
        flag(b" set ", prefix.sets, out);
        flag(b" del ", prefix.deletes, out);
        out.put(b"\r\n");
    }
}

/// Returns the line, without its end, that reports a refusal to clients of the text dialects.
pub fn refusal_text(refusal: RefusalReason) -> &'static str {
    match refusal {
        RefusalReason::TooLarge => TOO_LARGE,
        RefusalReason::OutOfMemory => "SERVER_ERROR out of memory",
        RefusalReason::NonNumeric => "CLIENT_ERROR cannot increment or decrement non-numeric value",
        RefusalReason::NotAuthenticated => "CLIENT_ERROR authentication failure",
        RefusalReason::LogUnwritable => "SERVER_ERROR cannot write the update log",
        RefusalReason::FilesUnwritable => "SERVER_ERROR cannot write the files of the database",
        RefusalReason::ReadOnly => "SERVER_ERROR the database is read-only",
        RefusalReason::Replica => "SERVER_ERROR this server is a replica; send changes to its master",
        RefusalReason::TooOld => "SERVER_ERROR the records of this replica are too old",
        RefusalReason::OtherLog => "SERVER_ERROR the position is not in the log of this server or its master",
        RefusalReason::Superseded => "SERVER_ERROR another server has become the master; send changes to it",
        RefusalReason::Unconfirmed => "SERVER_ERROR the changes were made here, but may not be on a replica",
        RefusalReason::NoPlans => "SERVER_ERROR this database keeps no plan of a flush: flush at once",
        RefusalReason::Damaged => "SERVER_ERROR the record is damaged on disk",
        RefusalReason::Unavailable => "SERVER_ERROR the database is unavailable",
        RefusalReason::Busy => "SERVER_ERROR a transaction is open",
        RefusalReason::Unreachable => "SERVER_ERROR the cluster has not executed the request",
        RefusalReason::OutcomeUnknown => {
            "SERVER_ERROR the cluster has not answered, a write may have been executed"
        }
        RefusalReason::Overloaded => "SERVER_ERROR busy, too many requests wait for the cluster",
        RefusalReason::NotOnCluster => "SERVER_ERROR not possible in a database on a cluster",
        RefusalReason::NotEnabled => "SERVER_ERROR: shutdown not enabled",
        RefusalReason::LimitTooSmall => "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
        RefusalReason::LimitInBytes => "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes",
        RefusalReason::LimitNotAdjustable => "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust",
    }
}

/// Writes the reply to a meta command with a key.
#[inline]
fn meta(form: &MetaForm<'_>, reply: &Reply<'_>, out: &mut impl ReplySink) {
    match (form.verb, reply) {
        (MetaVerb::Get, Reply::Hit(hit)) => meta_hit(form, hit, out),
        (MetaVerb::Get, Reply::Miss) => {
            if !form.is_quiet {
                meta_status(form, b"EN", out);
            }
        }
        (MetaVerb::Store, Reply::Stored(stored)) => {
            if !form.is_quiet {
                meta_stored(form, b"HD", *stored, out);
            }
        }
        (MetaVerb::Store, Reply::NotStored) => meta_not_stored(form, b"NS", out),
        (MetaVerb::Store, Reply::Exists) => meta_not_stored(form, b"EX", out),
        (MetaVerb::Store, Reply::NotFound) => meta_not_stored(form, b"NF", out),
        (MetaVerb::Store, Reply::Refused(RefusalReason::OutOfMemory)) => {
            refused_line(OUT_OF_MEMORY, out);
        }
        (MetaVerb::Delete, Reply::Deleted) => {
            if !form.is_quiet {
                meta_status(form, b"HD", out);
            }
        }
        (MetaVerb::Arithmetic, Reply::Number(number)) => {
            if !form.is_quiet {
                meta_number(form, number, out);
            }
        }
        (MetaVerb::Delete | MetaVerb::Arithmetic, Reply::NotFound) => meta_status(form, b"NF", out),
        (MetaVerb::Delete | MetaVerb::Arithmetic, Reply::Exists) => meta_status(form, b"EX", out),
        (MetaVerb::Delete | MetaVerb::Arithmetic, Reply::NotStored) => meta_status(form, b"NS", out),
        (MetaVerb::Inspect, Reply::Inspection(inspection)) => meta_inspection(form, inspection, out),
        (MetaVerb::Inspect, Reply::Miss) => out.put(b"EN\r\n"),
        _ => line(reply, out),
    }
}

#[inline]
fn meta_hit(form: &MetaForm<'_>, hit: &HitReply<'_>, out: &mut impl ReplySink) {
    let record = &hit.record;
    let attributes = &record.attributes;
    // Version 0 means that no client has seen a version of this record, so no client can know it.
    let is_known = attributes.version != 0 && form.known_version == Some(attributes.version);
    let with_value = form.with_value && !is_known;
    if with_value {
        out.put(b"VA ");
        number(record.value.len(), out);
    } else {
        out.put(b"HD");
    }
    for letter in form.returns.as_slice() {
        match letter {
            b's' => flag(b" s", record.value.len(), out),
            b'c' => flag(b" c", attributes.version, out),
            b't' => {
                time_left(if form.ttl_before { hit.expiry_before } else { attributes.expiry }, hit.now, out)
            }
            b'f' => flag(b" f", attributes.flags, out),
            b'h' => flag(b" h", u8::from(hit.access_before.is_some_and(|access| access.fetched)), out),
            b'l' => {
                let since = hit.access_before.map_or(0, |access| hit.now.0.saturating_sub(access.at.0));
                flag(b" l", since, out);
            }
            _ => echo(form, *letter, out),
        }
    }
    for (is_marked, mark) in
        [(hit.recache.token_sent, b" Z"), (hit.recache.stale, b" X"), (hit.recache.won, b" W")]
    {
        if is_marked {
            out.put(mark);
        }
    }
    out.put(b"\r\n");
    if with_value {
        body(record, out);
        out.put(b"\r\n");
    }
}

fn meta_stored(form: &MetaForm<'_>, code: &[u8], stored: StoredReply, out: &mut impl ReplySink) {
    out.put(code);
    for letter in form.returns.as_slice() {
        match letter {
            b'c' => flag(b" c", stored.version, out),
            b's' => flag(b" s", stored.value_len, out),
            _ => echo(form, *letter, out),
        }
    }
    out.put(b"\r\n");
}

/// Writes the reply to an `ms` that stored nothing. The reply still contains the fields of `c` and
/// `s`: 0 as the version, and the length of the value that the client sent.
fn meta_not_stored(form: &MetaForm<'_>, code: &[u8], out: &mut impl ReplySink) {
    meta_stored(form, code, StoredReply { version: 0, value_len: form.value_len as u64 }, out);
}

fn meta_number(form: &MetaForm<'_>, number: &ArithmeticReply, out: &mut impl ReplySink) {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(number.value);
    if form.with_value {
        out.put(b"VA ");
        self::number(digits.len(), out);
    } else {
        out.put(b"HD");
    }
    for letter in form.returns.as_slice() {
        match letter {
            b'c' => flag(b" c", number.version, out),
            b't' => {
                time_left(if form.ttl_before { number.expiry_before } else { number.expiry }, number.now, out)
            }
            _ => echo(form, *letter, out),
        }
    }
    out.put(b"\r\n");
    if form.with_value {
        out.put(digits.as_bytes());
        out.put(b"\r\n");
    }
}

/// Writes a reply without a record. It contains only `k`, `O` and `Y`, if the request has them.
fn meta_status(form: &MetaForm<'_>, code: &[u8], out: &mut impl ReplySink) {
    out.put(code);
    for letter in form.returns.as_slice() {
        echo(form, *letter, out);
    }
    out.put(b"\r\n");
}

/// Writes the field of `k`, `O` or `Y`, and nothing for other letters.
#[inline]
fn echo(form: &MetaForm<'_>, letter: u8, out: &mut impl ReplySink) {
    match letter {
        b'k' => {
            out.put(b" k");
            key(form, out);
            if form.is_base64 {
                out.put(b" b");
            }
        }
        b'O' => {
            out.put(b" O");
            out.put(form.opaque);
        }
        b'Y' => {
            out.put(b" Y");
            out.put(form.freshness.unwrap_or_default());
        }
        _ => {}
    }
}

/// Writes the key in the form in which the client sent it: as it is, or in base64 if the request
/// has `b`.
#[inline]
fn key(form: &MetaForm<'_>, out: &mut impl ReplySink) {
    if !form.is_base64 {
        return out.put(form.key);
    }
    base64(form.key, out);
}

/// Writes a key of any length in base64.
fn base64(key: &[u8], out: &mut impl ReplySink) {
    const PIECE: usize = 96;
    let mut text = [0; PIECE / 3 * 4];
    for piece in key.chunks(PIECE) {
        let len = KEY_BASE64.encode_slice(piece, &mut text).expect("text is four thirds of a piece");
        out.put(&text[..len]);
    }
}

#[inline]
fn flag(letter: &[u8], argument: impl itoa::Integer, out: &mut impl ReplySink) {
    out.put(letter);
    number(argument, out);
}

fn time_left(expiry: Expiry, now: UnixSeconds, out: &mut impl ReplySink) {
    match expiry.seconds_left(now) {
        None => out.put(b" t-1"),
        // An expired record shows a huge number, which is the result of memcached's unsigned
        // subtraction.
        Some(left) if left < 0 => flag(b" t", left as u32, out),
        Some(left) => flag(b" t", left, out),
    }
}

fn meta_inspection(form: &MetaForm<'_>, inspection: &RecordDetails, out: &mut impl ReplySink) {
    let RecordDetails { expiry, access, version, flags, key_len, value_len, now, .. } = *inspection;
    let size = item_size(key_len, value_len, flags);
    out.put(b"ME ");
    key(form, out);
    flag(b" exp=", expiry.seconds_left(now).unwrap_or(-1), out);
    flag(b" la=", access.map_or(0, |access| now.0.saturating_sub(access.at.0)), out);
    flag(b" cas=", version, out);
    out.put(if access.is_some_and(|access| access.fetched) { b" fetch=yes" } else { b" fetch=no" });
    flag(b" cls=", size_class(size), out);
    flag(b" size=", size, out);
    if let Some(span_s) = expiry.span_s() {
        flag(b" sliding=", span_s, out);
    }
    out.put(b"\r\n");
}
