//! Operations in the binary dialect.

use super::exptime::packet_exptime;
use super::{AskedKind, NotSpoken, RecordFields, ServerReply, has_meta_options, hit_of, number_of};
use crate::memcached::binary::PacketStatus;
use crate::memcached::client::packet::{RequestPacket, ResponsePacket, put_packet, sole_packet};
use crate::memcached::client::reply::MalformedReply;
use todana_core::{
    Arithmetic, ArithmeticDirection, Attributes, Get, Operation, RefusalReason, Reply, Store, StoreMode,
    StoredReply, Ttl,
};

/// The expiry by which `incr` and `decr` do not create the record.
const DO_NOT_CREATE: u32 = u32::MAX;

const GET: u8 = 0x00;
const SET: u8 = 0x01;
const ADD: u8 = 0x02;
const REPLACE: u8 = 0x03;
const DELETE: u8 = 0x04;
const INCREMENT: u8 = 0x05;
const DECREMENT: u8 = 0x06;
const FLUSH: u8 = 0x08;
const NOOP: u8 = 0x0a;
const APPEND: u8 = 0x0e;
const PREPEND: u8 = 0x0f;
const TOUCH: u8 = 0x1c;
const GET_AND_TOUCH: u8 = 0x1d;

/// Writes an operation as a packet.
pub(super) fn put(
    operation: &Operation<'_>,
    fields: RecordFields,
    out: &mut Vec<u8>,
) -> Result<AskedKind, NotSpoken> {
    let key = operation.key().unwrap_or_default();
    if key.is_empty() && operation.key().is_some() {
        return Err(NotSpoken::Key);
    }
    match operation {
        Operation::Get(get) => read(get, fields, out),
        Operation::Store(store) => self::store(store, out),
        Operation::Delete(delete) => {
            if delete.mark_stale || delete.drop_value {
                return Err(NotSpoken::Flag);
            }
            let version = compared(delete.compare);
            put_packet(&RequestPacket { opcode: DELETE, key, version, ..RequestPacket::default() }, out)?;
            Ok(AskedKind::Delete)
        }
        Operation::Arithmetic(arithmetic) => self::arithmetic(arithmetic, out),
        Operation::Touch(touch) => {
            put_touch(TOUCH, key, touch.ttl, out)?;
            Ok(AskedKind::Touch)
        }
        Operation::Flush { at } => {
            let extras = packet_exptime(*at)?.to_be_bytes();
            let extras = if matches!(at, Ttl::Never | Ttl::Expired) { &[][..] } else { &extras };
            put_packet(&RequestPacket { opcode: FLUSH, extras, ..RequestPacket::default() }, out)?;
            Ok(AskedKind::Flush)
        }
        Operation::Noop => {
            put_packet(&RequestPacket { opcode: NOOP, ..RequestPacket::default() }, out)?;
            Ok(AskedKind::Noop)
        }
        Operation::Inspect(_) => Err(NotSpoken::Flag),
        Operation::RefusedStore(_) | Operation::Modify(_) => Err(NotSpoken::Operation),
    }
}

/// Returns the version of a header for a comparison. There, 0 means none, so a comparison with
/// version 0, which no record has, becomes one with another version that no record has.
fn compared(version: Option<u64>) -> u64 {
    match version {
        None => 0,
        Some(0) => u64::MAX,
        Some(version) => version,
    }
}

fn put_touch(opcode: u8, key: &[u8], ttl: Ttl, out: &mut Vec<u8>) -> Result<(), NotSpoken> {
    let extras = &packet_exptime(ttl)?.to_be_bytes();
    put_packet(&RequestPacket { opcode, extras, key, ..RequestPacket::default() }, out)
}

fn read(get: &Get<'_>, fields: RecordFields, out: &mut Vec<u8>) -> Result<AskedKind, NotSpoken> {
    if has_meta_options(get) {
        return Err(NotSpoken::Flag);
    }
    let with_value = fields.value || get.touch.is_none();
    match get.touch {
        None => put_packet(&RequestPacket { opcode: GET, key: get.key, ..RequestPacket::default() }, out)?,
        Some(ttl) if with_value => put_touch(GET_AND_TOUCH, get.key, ttl, out)?,
        Some(ttl) => put_touch(TOUCH, get.key, ttl, out)?,
    }
    // Each reply has the version.
    Ok(AskedKind::Record { with_value, with_version: true })
}

fn store(store: &Store<'_>, out: &mut Vec<u8>) -> Result<AskedKind, NotSpoken> {
    if store.stale_if_older || store.version.is_some() || store.vivify.is_some() {
        return Err(NotSpoken::Flag);
    }
    let opcode = match store.mode {
        // With a version, each packet that stores a value is a comparison. `add` with a version
        // exists only in the meta dialect.
        StoreMode::Add if store.compare.is_some() => return Err(NotSpoken::Flag),
        StoreMode::Set => SET,
        StoreMode::Add => ADD,
        StoreMode::Replace => REPLACE,
        StoreMode::Append => APPEND,
        StoreMode::Prepend => PREPEND,
    };
    let mut extras = [0; 8];
    let extends = matches!(store.mode, StoreMode::Append | StoreMode::Prepend);
    if !extends {
        extras[..4].copy_from_slice(&store.flags.to_be_bytes());
        extras[4..].copy_from_slice(&packet_exptime(store.ttl)?.to_be_bytes());
    }
    let extras = if extends { &[][..] } else { &extras };
    let (Store { key, value, .. }, version) = (*store, compared(store.compare));
    put_packet(&RequestPacket { opcode, extras, key, value, version }, out)?;
    Ok(AskedKind::of_store(store))
}

fn arithmetic(arithmetic: &Arithmetic<'_>, out: &mut Vec<u8>) -> Result<AskedKind, NotSpoken> {
    if arithmetic.touch.is_some() || arithmetic.version.is_some() {
        return Err(NotSpoken::Flag);
    }
    let expiry = arithmetic.vivify.map(packet_exptime).transpose()?.unwrap_or(DO_NOT_CREATE);
    let mut extras = [0; 20];
    extras[..8].copy_from_slice(&arithmetic.delta.to_be_bytes());
    extras[8..16].copy_from_slice(&arithmetic.initial.to_be_bytes());
    extras[16..].copy_from_slice(&expiry.to_be_bytes());
    let opcode = match arithmetic.direction {
        ArithmeticDirection::Increment => INCREMENT,
        ArithmeticDirection::Decrement => DECREMENT,
    };
    let (key, version) = (arithmetic.key, compared(arithmetic.compare));
    put_packet(&RequestPacket { opcode, extras: &extras, key, value: b"", version }, out)?;
    Ok(AskedKind::Arithmetic)
}

/// Decodes the reply to a packet.
pub(super) fn decode_reply(kind: AskedKind, reply: &[u8]) -> Result<ServerReply<'_>, MalformedReply> {
    // Requests of one kind have different opcodes.
    let opcode = *reply.get(1).ok_or(MalformedReply)?;
    let packet = sole_packet(reply, opcode)?;
    if !kind.has_opcode(opcode) {
        return Err(MalformedReply);
    }
    let reply = match packet.status() {
        Some(PacketStatus::Success) => success(kind, &packet)?,
        Some(PacketStatus::NotFound) => kind.missing()?,
        Some(PacketStatus::Exists) => match kind {
            AskedKind::Store { mode: StoreMode::Add, .. } => Reply::NotStored,
            AskedKind::Store { .. } | AskedKind::Delete | AskedKind::Arithmetic => Reply::Exists,
            _ => return Err(MalformedReply),
        },
        Some(PacketStatus::NotStored) => match kind {
            AskedKind::Store { .. } | AskedKind::Delete | AskedKind::Arithmetic => Reply::NotStored,
            _ => return Err(MalformedReply),
        },
        status => match (kind, status) {
            (AskedKind::Store { .. }, Some(PacketStatus::TooLarge)) => {
                Reply::Refused(RefusalReason::TooLarge)
            }
            (AskedKind::Store { .. } | AskedKind::Arithmetic, Some(PacketStatus::OutOfMemory)) => {
                Reply::Refused(RefusalReason::OutOfMemory)
            }
            (AskedKind::Arithmetic, Some(PacketStatus::NonNumeric)) => {
                Reply::Refused(RefusalReason::NonNumeric)
            }
            _ => return Ok(ServerReply::Error(packet.error_line())),
        },
    };
    Ok(ServerReply::Reply(reply))
}

fn success<'a>(kind: AskedKind, packet: &ResponsePacket<'a>) -> Result<Reply<'a>, MalformedReply> {
    let version = packet.header.version;
    Ok(match kind {
        AskedKind::Record { with_value, .. } => {
            let flags = match packet.extras {
                // Some servers report no flags after `touch`.
                [] if !with_value => 0,
                extras => u32::from_be_bytes(extras.try_into().map_err(|_| MalformedReply)?),
            };
            let value = if with_value { packet.value } else { b"" };
            Reply::Hit(hit_of(value, Attributes { flags, version, ..Attributes::default() }))
        }
        AskedKind::Store { value_len, .. } => {
            Reply::Stored(StoredReply { version, value_len: value_len.into() })
        }
        AskedKind::Arithmetic => {
            let value = packet.value.try_into().map_err(|_| MalformedReply)?;
            Reply::Number(number_of(u64::from_be_bytes(value), version))
        }
        AskedKind::Delete => Reply::Deleted,
        AskedKind::Touch => Reply::Touched,
        AskedKind::Flush | AskedKind::Noop => Reply::Done,
        AskedKind::TouchedRecord | AskedKind::Inspection { .. } => return Err(MalformedReply),
    })
}

impl AskedKind {
    /// Returns true if a packet with this opcode can be the reply.
    fn has_opcode(self, opcode: u8) -> bool {
        match self {
            AskedKind::Record { .. } => matches!(opcode, GET | GET_AND_TOUCH | TOUCH),
            AskedKind::Store { .. } => matches!(opcode, SET | ADD | REPLACE | APPEND | PREPEND),
            AskedKind::Arithmetic => matches!(opcode, INCREMENT | DECREMENT),
            AskedKind::Delete => opcode == DELETE,
            AskedKind::Touch => opcode == TOUCH,
            AskedKind::Flush => opcode == FLUSH,
            AskedKind::Noop => opcode == NOOP,
            AskedKind::TouchedRecord | AskedKind::Inspection { .. } => false,
        }
    }
}
