//! Operations in the meta dialect.

use super::exptime::exptime;
use super::text::put_flush;
use super::{
    AskedKind, NotSpoken, REPLY_TIME, RecordFields, ServerReply, TimeLeft, expiry_in, hit_of, number_of,
    sole_response, time_ago,
};
use crate::memcached::client::meta::{MetaField, MetaRequest};
use crate::memcached::client::reply::{ClientResponse, MalformedReply, MetaFlags, number};
use crate::memcached::client::text::put_line;
use crate::memcached::item_size;
use todana_core::{
    Arithmetic, ArithmeticDirection, Attributes, Delete, Expiry, Get, LastAccess, Operation, RecacheState,
    RecordDetails, Reply, Store, StoreMode, StoredReply, Ttl,
};

/// Writes an operation as a command.
pub(super) fn put(
    operation: &Operation<'_>,
    fields: RecordFields,
    out: &mut Vec<u8>,
) -> Result<AskedKind, NotSpoken> {
    match operation {
        Operation::Get(get) => read(get, fields, out),
        Operation::Store(store) => self::store(store, out),
        Operation::Delete(delete) => self::delete(delete, out),
        Operation::Arithmetic(arithmetic) => self::arithmetic(arithmetic, fields.time_left, out),
        Operation::Touch(touch) => {
            with_ttl(MetaRequest::get(out, touch.key)?, touch.ttl)?.end()?;
            Ok(AskedKind::Touch)
        }
        Operation::Inspect(inspect) => {
            MetaRequest::inspect(out, inspect.key)?.end()?;
            Ok(AskedKind::Inspection { key_len: inspect.key.len() as u8 })
        }
        Operation::Flush { at } => put_flush(*at, out),
        Operation::Noop => {
            put_line(out, "mn")?;
            Ok(AskedKind::Noop)
        }
        Operation::RefusedStore(_) | Operation::Modify(_) => Err(NotSpoken::Operation),
    }
}

fn with_ttl<'o, 'v>(meta: MetaRequest<'o, 'v>, ttl: Ttl) -> Result<MetaRequest<'o, 'v>, NotSpoken> {
    Ok(match ttl {
        Ttl::Sliding(span_s) => meta.sliding(span_s),
        _ => meta.ttl(exptime(ttl)?),
    })
}

/// Adds the new time to live and that of a record to create, in the order in which a server
/// understands them, and asks for the time left.
fn with_times<'o, 'v>(
    mut meta: MetaRequest<'o, 'v>,
    touch: Option<Ttl>,
    vivify: Option<Ttl>,
    time_left: TimeLeft,
) -> Result<MetaRequest<'o, 'v>, NotSpoken> {
    if time_left == TimeLeft::Before {
        meta = meta.want(MetaField::TimeLeft);
    }
    match (touch, vivify) {
        // `N` has no sliding form, but a time after it replaces its own.
        (Some(Ttl::Sliding(span_s)), Some(created)) if created == Ttl::Sliding(span_s) => {
            meta = meta.vivify(0).sliding(span_s);
        }
        _ => {
            if let Some(ttl) = touch {
                meta = with_ttl(meta, ttl)?;
            }
            if let Some(ttl) = vivify {
                meta = meta.vivify(exptime(ttl)?);
            }
        }
    }
    Ok(if time_left == TimeLeft::After { meta.want(MetaField::TimeLeft) } else { meta })
}

fn read(get: &Get<'_>, fields: RecordFields, out: &mut Vec<u8>) -> Result<AskedKind, NotSpoken> {
    let mut meta = MetaRequest::get(out, get.key)?;
    if fields.value {
        meta = meta.want(MetaField::Value);
    }
    meta = meta.want(MetaField::Flags);
    if get.needs.version {
        meta = meta.want(MetaField::Version);
    }
    if get.needs.access {
        meta = meta.want(MetaField::Fetched).want(MetaField::SinceAccess);
    }
    if get.silent {
        meta = meta.without_access();
    }
    let recache = get.recache_below_s.map(|below_s| below_s.clamp(i32::MIN.into(), i32::MAX.into()) as i32);
    if let (Some(below_s), false) = (recache, get.recache_after_touch) {
        meta = meta.recache(below_s);
    }
    meta = with_times(meta, get.touch, get.vivify, fields.time_left)?;
    if let (Some(below_s), true) = (recache, get.recache_after_touch) {
        meta = meta.recache(below_s);
    }
    if let Some(version) = get.version {
        meta = meta.version(version);
    }
    meta.end()?;
    Ok(AskedKind::Record { with_value: fields.value, with_version: get.needs.version })
}

fn store(store: &Store<'_>, out: &mut Vec<u8>) -> Result<AskedKind, NotSpoken> {
    let extends = matches!(store.mode, StoreMode::Append | StoreMode::Prepend);
    let mut meta = MetaRequest::set(out, store.key, store.value)?;
    if store.flags != 0 {
        meta = meta.flags(store.flags);
    }
    if store.ttl != Ttl::Never {
        meta = with_ttl(meta, store.ttl)?;
    }
    if store.mode != StoreMode::Set {
        meta = meta.mode(store.mode);
    }
    if let Some(version) = store.compare {
        meta = meta.compare(version);
    }
    if store.stale_if_older {
        meta = meta.mark_stale();
    }
    if let Some(version) = store.version {
        meta = meta.version(version);
    }
    if let Some(ttl) = store.vivify {
        meta = meta.vivify(exptime(ttl)?);
    }
    if store.needs.version {
        meta = meta.want(MetaField::Version);
    }
    if extends {
        meta = meta.want(MetaField::Size);
    }
    meta.end()?;
    Ok(AskedKind::of_store(store))
}

fn delete(delete: &Delete<'_>, out: &mut Vec<u8>) -> Result<AskedKind, NotSpoken> {
    let mut meta = MetaRequest::delete(out, delete.key)?;
    if let Some(version) = delete.compare {
        meta = meta.compare(version);
    }
    if delete.mark_stale {
        meta = meta.mark_stale();
    }
    if delete.drop_value {
        meta = meta.drop_value();
    }
    if let Some(ttl) = delete.ttl {
        meta = with_ttl(meta, ttl)?;
    }
    if let Some(flags) = delete.flags {
        meta = meta.flags(flags);
    }
    if let Some(version) = delete.version {
        meta = meta.version(version);
    }
    meta.end()?;
    Ok(AskedKind::Delete)
}

fn arithmetic(
    arithmetic: &Arithmetic<'_>,
    time_left: TimeLeft,
    out: &mut Vec<u8>,
) -> Result<AskedKind, NotSpoken> {
    let mut meta = MetaRequest::arithmetic(out, arithmetic.key)?.want(MetaField::Value);
    if arithmetic.needs.version {
        meta = meta.want(MetaField::Version);
    }
    if arithmetic.direction == ArithmeticDirection::Decrement {
        meta = meta.direction(arithmetic.direction);
    }
    meta = with_times(meta.delta(arithmetic.delta), arithmetic.touch, arithmetic.vivify, time_left)?;
    if arithmetic.vivify.is_some() {
        meta = meta.initial(arithmetic.initial);
    }
    if let Some(version) = arithmetic.compare {
        meta = meta.compare(version);
    }
    if let Some(version) = arithmetic.version {
        meta = meta.version(version);
    }
    meta.end()?;
    Ok(AskedKind::Arithmetic)
}

/// Decodes the reply to a command.
pub(super) fn decode_reply(kind: AskedKind, reply: &[u8]) -> Result<ServerReply<'_>, MalformedReply> {
    let (code, flags, value) = match sole_response(reply)? {
        ClientResponse::Refused(refusal) => return Ok(kind.error(refusal.line)),
        ClientResponse::Line(b"OK") if kind == AskedKind::Flush => {
            return Ok(ServerReply::Reply(Reply::Done));
        }
        ClientResponse::Meta { code, flags, value } => (code, flags, value),
        _ => return Err(MalformedReply),
    };
    let reply = match (kind, &code) {
        (AskedKind::Record { with_value: true, with_version }, b"VA") => {
            record(flags, value.ok_or(MalformedReply)?, with_version)?
        }
        (AskedKind::Record { with_value: false, with_version }, b"HD") => record(flags, b"", with_version)?,
        (AskedKind::Store { value_len, .. }, b"HD") => Reply::Stored(StoredReply {
            // The first versions of `ms` do not report these fields.
            version: flags.number(b'c').unwrap_or(0),
            value_len: flags.number(b's').unwrap_or(value_len.into()),
        }),
        (AskedKind::Arithmetic, b"VA") => {
            let expiry = flags.seconds_left().map_or(Expiry::Never, expiry_in);
            let value = number(value.map(<[u8]>::trim_ascii_end))?;
            let reply = number_of(value, flags.number(b'c').unwrap_or(0));
            Reply::Number(todana_core::ArithmeticReply { expiry_before: expiry, expiry, ..reply })
        }
        (AskedKind::Delete, b"HD") => Reply::Deleted,
        (AskedKind::Touch, b"HD") => Reply::Touched,
        (AskedKind::Inspection { key_len }, b"ME") => Reply::Inspection(details(flags, key_len)?),
        (AskedKind::Noop, b"MN") => Reply::Done,
        (AskedKind::Record { .. } | AskedKind::Touch | AskedKind::Inspection { .. }, b"EN") => {
            kind.missing()?
        }
        (AskedKind::Store { compares: true, .. } | AskedKind::Delete | AskedKind::Arithmetic, b"NF") => {
            Reply::NotFound
        }
        (AskedKind::Store { .. } | AskedKind::Delete | AskedKind::Arithmetic, b"NS") => Reply::NotStored,
        (AskedKind::Store { .. } | AskedKind::Delete | AskedKind::Arithmetic, b"EX") => Reply::Exists,
        _ => return Err(MalformedReply),
    };
    Ok(ServerReply::Reply(reply))
}

/// Returns the record of a hit.
fn record<'a>(
    flags: MetaFlags<'a>,
    value: &'a [u8],
    with_version: bool,
) -> Result<Reply<'a>, MalformedReply> {
    let client_flags = flags.number(b'f').and_then(|flags| u32::try_from(flags).ok());
    let since = flags.number(b'l');
    let attributes = Attributes {
        flags: client_flags.ok_or(MalformedReply)?,
        expiry: flags.seconds_left().map_or(Expiry::Never, expiry_in),
        version: if with_version { flags.number(b'c').ok_or(MalformedReply)? } else { 0 },
        access: since
            .map(|seconds| LastAccess { at: time_ago(seconds), fetched: flags.number(b'h') == Some(1) }),
        ..Attributes::default()
    };
    let recache = RecacheState { won: flags.has(b'W'), stale: flags.has(b'X'), token_sent: flags.has(b'Z') };
    Ok(Reply::Hit(todana_core::HitReply { recache, ..hit_of(value, attributes) }))
}

/// Returns the attributes of a record. Their length of the value counts the client's flags, which
/// the reply does not show.
fn details(flags: MetaFlags<'_>, key_len: u8) -> Result<RecordDetails, MalformedReply> {
    // The key precedes the fields.
    let fields = || flags.text().split(|&byte| byte == b' ').skip(1);
    let field = |name: &[u8]| fields().find_map(|field| field.strip_prefix(name)).ok_or(MalformedReply);
    let expiry = match field(b"exp=")? {
        b"-1" => Expiry::Never,
        seconds => expiry_in(Some(number(Some(seconds))?)),
    };
    let fetched = match field(b"fetch=")? {
        b"yes" => true,
        b"no" => false,
        _ => return Err(MalformedReply),
    };
    let overhead = item_size(key_len.into(), 0, 0);
    Ok(RecordDetails {
        expiry,
        access: Some(LastAccess { at: time_ago(number(Some(field(b"la=")?))?), fetched }),
        version: number(Some(field(b"cas=")?))?,
        flags: 0,
        key_len: key_len.into(),
        value_len: number(Some(field(b"size=")?))?.saturating_sub(overhead),
        further_values: 0,
        now: REPLY_TIME,
    })
}
