//! Operations in the text dialect.

use super::exptime::exptime;
use super::{
    AskedKind, NotSpoken, RecordFields, ServerReply, has_meta_options, hit_of, number_of, sole_response,
};
use crate::memcached::client::reply::{ClientResponse, MalformedReply, decode};
use crate::memcached::client::request::check_key;
use crate::memcached::client::text::{
    StoreVerb, TextFetch, TextStore, put_get, put_line, put_store, put_words,
};
use todana_core::{
    Arithmetic, ArithmeticDirection, Attributes, Delete, Get, Operation, Reply, Store, StoreMode,
    StoredReply, Ttl,
};

/// Writes an operation as a line.
pub(super) fn put(
    operation: &Operation<'_>,
    fields: RecordFields,
    out: &mut Vec<u8>,
) -> Result<AskedKind, NotSpoken> {
    if let Some(key) = operation.key() {
        check_key(key)?;
    }
    match operation {
        Operation::Get(get) => read(get, fields, out),
        Operation::Store(store) => self::store(store, out),
        Operation::Delete(delete) => {
            let Delete { key, compare, mark_stale, drop_value, .. } = *delete;
            if mark_stale || drop_value {
                return Err(NotSpoken::Flag);
            }
            if compare.is_some() {
                return Err(NotSpoken::Steps);
            }
            put_words(out, "delete", &[key])?;
            Ok(AskedKind::Delete)
        }
        Operation::Arithmetic(arithmetic) => self::arithmetic(arithmetic, out),
        Operation::Touch(touch) => {
            put_touch(touch.key, touch.ttl, out)?;
            Ok(AskedKind::Touch)
        }
        Operation::Flush { at } => put_flush(*at, out),
        Operation::Noop => {
            put_line(out, "version")?;
            Ok(AskedKind::Noop)
        }
        Operation::Inspect(_) => Err(NotSpoken::Flag),
        Operation::RefusedStore(_) | Operation::Modify(_) => Err(NotSpoken::Operation),
    }
}

/// Writes `flush_all`.
pub(super) fn put_flush(at: Ttl, out: &mut Vec<u8>) -> Result<AskedKind, NotSpoken> {
    match at {
        Ttl::Never | Ttl::Expired => put_line(out, "flush_all")?,
        _ => put_words(out, "flush_all", &[exptime(at)?.to_string().as_bytes()])?,
    }
    Ok(AskedKind::Flush)
}

fn put_touch(key: &[u8], ttl: Ttl, out: &mut Vec<u8>) -> Result<(), NotSpoken> {
    Ok(put_words(out, "touch", &[key, exptime(ttl)?.to_string().as_bytes()])?)
}

fn read(get: &Get<'_>, fields: RecordFields, out: &mut Vec<u8>) -> Result<AskedKind, NotSpoken> {
    if has_meta_options(get) {
        return Err(NotSpoken::Flag);
    }
    if let (Some(ttl), false) = (get.touch, fields.value) {
        put_touch(get.key, ttl, out)?;
        return Ok(AskedKind::TouchedRecord);
    }
    let touch = get.touch.map(exptime).transpose()?.map(i64::from);
    put_get(out, TextFetch { versions: get.needs.version, touch }, &[get.key])?;
    Ok(AskedKind::Record { with_value: true, with_version: get.needs.version })
}

fn store(store: &Store<'_>, out: &mut Vec<u8>) -> Result<AskedKind, NotSpoken> {
    if store.stale_if_older || store.version.is_some() || store.vivify.is_some() {
        return Err(NotSpoken::Flag);
    }
    let verb = match (store.mode, store.compare) {
        (StoreMode::Set, None) => StoreVerb::Set,
        (StoreMode::Add, None) => StoreVerb::Add,
        (StoreMode::Replace, None) => StoreVerb::Replace,
        (StoreMode::Append, None) => StoreVerb::Append,
        (StoreMode::Prepend, None) => StoreVerb::Prepend,
        // A replacement of a certain version needs a record, too.
        (StoreMode::Set | StoreMode::Replace, Some(version)) => StoreVerb::Cas(version),
        (_, Some(_)) => return Err(NotSpoken::Flag),
    };
    let (Store { key, value, flags, .. }, exptime) = (*store, exptime(store.ttl)?.into());
    put_store(out, &TextStore { verb, key, value, flags, exptime }, false)?;
    Ok(AskedKind::of_store(store))
}

fn arithmetic(arithmetic: &Arithmetic<'_>, out: &mut Vec<u8>) -> Result<AskedKind, NotSpoken> {
    if arithmetic.touch.is_some() || arithmetic.version.is_some() {
        return Err(NotSpoken::Flag);
    }
    if arithmetic.vivify.is_some() || arithmetic.compare.is_some() {
        return Err(NotSpoken::Steps);
    }
    let verb = match arithmetic.direction {
        ArithmeticDirection::Increment => "incr",
        ArithmeticDirection::Decrement => "decr",
    };
    put_words(out, verb, &[arithmetic.key, arithmetic.delta.to_string().as_bytes()])?;
    Ok(AskedKind::Arithmetic)
}

/// Decodes the reply to a line.
pub(super) fn decode_reply(kind: AskedKind, reply: &[u8]) -> Result<ServerReply<'_>, MalformedReply> {
    if let AskedKind::Record { with_version, .. } = kind {
        return record(kind, with_version, reply);
    }
    let reply = match (kind, sole_response(reply)?) {
        (_, ClientResponse::Refused(refusal)) => return Ok(kind.error(refusal.line)),
        (AskedKind::Arithmetic, ClientResponse::Number(value)) => Reply::Number(number_of(value, 0)),
        (AskedKind::Flush, ClientResponse::Line(b"OK")) => Reply::Done,
        (AskedKind::Noop, ClientResponse::Line(line)) if line.starts_with(b"VERSION ") => Reply::Done,
        (kind, ClientResponse::Line(line)) => match (kind, line) {
            (AskedKind::Store { value_len, .. }, b"STORED") => {
                Reply::Stored(StoredReply { version: 0, value_len: value_len.into() })
            }
            (AskedKind::Store { compares: false, .. }, b"NOT_STORED") => Reply::NotStored,
            (AskedKind::Store { compares: true, .. }, b"EXISTS") => Reply::Exists,
            (AskedKind::Store { compares: false, .. }, b"NOT_FOUND") => return Err(MalformedReply),
            (AskedKind::Delete, b"DELETED") => Reply::Deleted,
            (AskedKind::Touch, b"TOUCHED") => Reply::Touched,
            (AskedKind::TouchedRecord, b"TOUCHED") => Reply::Hit(hit_of(b"", Attributes::default())),
            (_, b"NOT_FOUND") => kind.missing()?,
            _ => return Err(MalformedReply),
        },
        _ => return Err(MalformedReply),
    };
    Ok(ServerReply::Reply(reply))
}

/// Decodes the values of one key.
fn record(kind: AskedKind, with_version: bool, reply: &[u8]) -> Result<ServerReply<'_>, MalformedReply> {
    let (len, first) = decode(reply, usize::MAX)?.ok_or(MalformedReply)?;
    let found = match first {
        ClientResponse::Value { flags, version, value, .. } if version.is_some() == with_version => {
            let attributes = Attributes { flags, version: version.unwrap_or(0), ..Attributes::default() };
            Reply::Hit(hit_of(value, attributes))
        }
        ClientResponse::Line(b"END") if len == reply.len() => Reply::Miss,
        ClientResponse::Refused(refusal) if len == reply.len() => return Ok(kind.error(refusal.line)),
        _ => return Err(MalformedReply),
    };
    if found == Reply::Miss {
        return Ok(ServerReply::Reply(found));
    }
    match sole_response(&reply[len..])? {
        ClientResponse::Line(b"END") => Ok(ServerReply::Reply(found)),
        ClientResponse::Refused(refusal) => Ok(kind.error(refusal.line)),
        _ => Err(MalformedReply),
    }
}
