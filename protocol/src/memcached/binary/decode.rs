//! Decodes packets into commands.

use super::form::{BinaryForm, ResponseKind};
use super::header::{HEADER_LEN, PacketHeader, REQUEST_MAGIC};
use super::opcode::{OpcodeMeaning, PacketVerb, ReadOptions, name_of};
use super::status::PacketStatus;
use crate::memcached::item_size;
use crate::memcached::server::{
    KEY_LEN_MAX, LongBlock, MemcachedLimits, MemcachedRequest, MemcachedStep, ReplyForm, RequestHead,
};
use crate::memcached::{LoginCredentials, MemcachedCommand};
use todana_core::{
    Arithmetic, ArithmeticDirection, Delete, Get, Operation, RefusalReason, RefusedStore, ReplyNeeds,
    SharedValue, Store, StoreMode, Ttl,
};

/// The longest body that is discarded, in bytes. A longer body closes the connection.
const BODY_LEN_MAX: usize = 1 << 30;

/// The longest name of a SASL mechanism.
const MECHANISM_LEN_MAX: usize = 32;

/// The longest SASL response, in bytes. memcached has the same limit for the user and password of
/// its text dialect.
const SASL_RESPONSE_LEN_MAX: usize = 16 << 10;

/// The expiry by which a client states that `incr` and `decr` must not create the record.
const DO_NOT_CREATE: u32 = u32::MAX;

/// The decoder's position in the stream.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::memcached) enum PacketPosition {
    /// At the start of a packet.
    #[default]
    Packet,
    /// In a body that is being discarded. `left` bytes of the body remain.
    Discard { left: usize },
    /// After the last packet that is served.
    End,
}

/// Decodes the next step from the unread bytes.
#[inline]
pub(in crate::memcached) fn decode<'a>(
    place: &mut PacketPosition,
    limits: &MemcachedLimits,
    is_authenticated: bool,
    input: &'a [u8],
) -> MemcachedStep<'a> {
    let skipped = skip_discarded(place, input);
    match *place {
        PacketPosition::Packet => {}
        PacketPosition::Discard { .. } => {
            return MemcachedStep::NeedMore { consumed: skipped, at_least: 1 };
        }
        PacketPosition::End => return MemcachedStep::Close,
    }
    let unread = &input[skipped..];
    match unread.first() {
        None => return MemcachedStep::NeedMore { consumed: skipped, at_least: 1 },
        Some(&REQUEST_MAGIC) => {}
        Some(_) => {
            *place = PacketPosition::End;
            return MemcachedStep::Close;
        }
    }
    let Some(header) = unread.first_chunk() else {
        return MemcachedStep::NeedMore { consumed: skipped, at_least: HEADER_LEN - unread.len() };
    };
    packet(
        place,
        limits,
        is_authenticated,
        RequestPacket { skipped, unread, header: PacketHeader::parse(header), block: None },
    )
}

/// Consumes the rest of a body that is being discarded. Returns the number of consumed bytes.
#[inline]
pub(in crate::memcached) fn skip_discarded(place: &mut PacketPosition, input: &[u8]) -> usize {
    let PacketPosition::Discard { left } = *place else { return 0 };
    let skipped = left.min(input.len());
    *place = match left - skipped {
        0 => PacketPosition::Packet,
        left => PacketPosition::Discard { left },
    };
    skipped
}

/// Returns the head of the packet that the next step will decode. Observers show it.
pub(in crate::memcached) fn head(place: PacketPosition, input: &[u8]) -> RequestHead<'_> {
    let unread = match place {
        PacketPosition::Discard { left } => input.get(left..).unwrap_or_default(),
        PacketPosition::Packet | PacketPosition::End => input,
    };
    let Some(bytes) = unread.first_chunk::<HEADER_LEN>() else { return RequestHead::Continued };
    let header = PacketHeader::parse(bytes);
    let key_at = HEADER_LEN + header.extras_len;
    let key_end = key_at + header.key_len.min(KEY_LEN_MAX);
    let stores =
        matches!(OpcodeMeaning::of(header.opcode), Some(OpcodeMeaning { verb: PacketVerb::Store(_), .. }));
    let value_len = header.body_len.checked_sub(header.extras_len + header.key_len);
    RequestHead::Packet {
        header: bytes,
        name: name_of(header.opcode),
        // If the header's lengths contradict each other, only the header can be shown.
        key: unread.get(key_at..key_end).unwrap_or_default(),
        value_len: value_len.filter(|_| stores),
    }
}

/// Decodes a packet whose value was received separately; `head` is the part of the packet before
/// the value.
pub(in crate::memcached) fn decode_block<'a>(
    place: &mut PacketPosition,
    limits: &MemcachedLimits,
    head: &'a [u8],
    block: LongBlock<'a>,
) -> MemcachedStep<'a> {
    *place = PacketPosition::Packet;
    let Some(header) = head.first_chunk() else {
        *place = PacketPosition::End;
        return MemcachedStep::Close;
    };
    let header = PacketHeader::parse(header);
    // Unauthenticated clients are refused before a block is announced.
    packet(place, limits, true, RequestPacket { skipped: 0, unread: head, header, block: Some(block) })
}

/// A packet whose header has arrived.
#[derive(Clone, Copy)]
struct RequestPacket<'a> {
    /// Consumed bytes of the input before the packet.
    skipped: usize,
    /// The input, beginning with the packet.
    unread: &'a [u8],
    header: PacketHeader,
    /// The value, if it was received separately.
    block: Option<LongBlock<'a>>,
}

#[inline]
fn packet<'a>(
    place: &mut PacketPosition,
    limits: &MemcachedLimits,
    is_authenticated: bool,
    packet: RequestPacket<'a>,
) -> MemcachedStep<'a> {
    let header = &packet.header;
    if header.key_len + header.extras_len > header.body_len {
        return packet.fatal(place, PacketStatus::UnknownCommand);
    }
    // The client is refused before the body arrives, so that no bytes of an unauthenticated client
    // are kept.
    if limits.sasl && !is_authenticated && !OpcodeMeaning::is_allowed_before_login(header.opcode) {
        return packet.fatal(place, PacketStatus::NotAuthenticated);
    }
    if header.key_len > KEY_LEN_MAX || header.body_len > BODY_LEN_MAX {
        return packet.fatal(place, PacketStatus::Invalid);
    }
    let Some(operation) = OpcodeMeaning::of(header.opcode) else {
        return packet.fault(place, 0, PacketStatus::UnknownCommand);
    };
    if !operation.verb.fits(header) {
        return packet.fatal(place, PacketStatus::Invalid);
    }
    match operation.verb {
        PacketVerb::Mechanisms | PacketVerb::Authenticate { .. } if !limits.sasl => {
            return packet.fault(place, 0, PacketStatus::UnknownCommand);
        }
        PacketVerb::Store(mode) | PacketVerb::Append(mode) => {
            // The bytes before the value decide whether the value is needed at all.
            if packet.unread.len() < packet.value_at() {
                return packet.need(packet.value_at());
            }
            let value_len = packet.value_len();
            if item_size(header.key_len as u64, value_len as u64, packet.flags()) > limits.item_size_max {
                return refused(place, packet, mode, RefusalReason::TooLarge);
            }
            match packet.block {
                None if value_len >= limits.long_block_len => {
                    return MemcachedStep::Block {
                        consumed: packet.skipped,
                        head_len: packet.value_at(),
                        value_len,
                        end_len: 0,
                    };
                }
                Some(LongBlock::Refused { .. }) => {
                    return refused(place, packet, mode, RefusalReason::OutOfMemory);
                }
                _ => {}
            }
            // If the value is received separately, only the bytes before it are in the input.
            if packet.block.is_none()
                && packet.unread.len() > limits.unfinished_len_max
                && packet.unread.len() < HEADER_LEN + header.body_len
            {
                return refused(place, packet, mode, RefusalReason::OutOfMemory);
            }
        }
        PacketVerb::Authenticate { .. }
            if header.key_len > MECHANISM_LEN_MAX || packet.value_len() > SASL_RESPONSE_LEN_MAX =>
        {
            return packet.fault(place, 0, PacketStatus::Invalid);
        }
        _ => {}
    }
    // The remaining commands have a short body, or a value within the limit.
    let total = HEADER_LEN + header.body_len;
    if packet.unread.len() < total && packet.block.is_none() {
        return packet.need(total);
    }
    let (command, answer) = match operation.verb {
        PacketVerb::Get(read) => get(&packet, read),
        PacketVerb::Store(mode) => store(&packet, limits, mode, operation.is_quiet),
        PacketVerb::Append(mode) => append(&packet, limits, mode, operation.is_quiet),
        PacketVerb::Delete => {
            let compare = packet.compare();
            (
                MemcachedCommand::Operation(Operation::Delete(Delete {
                    key: packet.key(),
                    compare,
                    ..Delete::default()
                })),
                ResponseKind::Plain,
            )
        }
        PacketVerb::Arithmetic(direction) => arithmetic(&packet, direction, operation.is_quiet),
        PacketVerb::Flush if !limits.flush_allowed => {
            return packet.fault(place, header.body_len, PacketStatus::NotAuthenticated);
        }
        PacketVerb::Flush => {
            let at = if header.extras_len == 0 { Ttl::Never } else { ttl(packet.number_at(0)) };
            (MemcachedCommand::Operation(Operation::Flush { at }), ResponseKind::Plain)
        }
        PacketVerb::Quit if operation.is_quiet => {
            *place = PacketPosition::End;
            (MemcachedCommand::Quit, ResponseKind::Plain)
        }
        PacketVerb::Quit => {
            *place = PacketPosition::End;
            let form = BinaryForm { closes: true, ..packet.form(ResponseKind::Plain) };
            return packet.request(total, MemcachedCommand::Operation(Operation::Noop), form);
        }
        PacketVerb::Noop => (MemcachedCommand::Operation(Operation::Noop), ResponseKind::Plain),
        PacketVerb::Version => (MemcachedCommand::Version, ResponseKind::Plain),
        PacketVerb::Stat => match packet.key() {
            b"" | b"reset" | b"settings" | b"items" | b"slabs" | b"sizes" | b"detail on" | b"detail off"
            | b"detail dump" => (MemcachedCommand::Stats { group: packet.key() }, ResponseKind::Statistics),
            // The text dialect has more groups and accepts prefixes of their names.
            _ => return packet.fault(place, header.body_len, PacketStatus::NotFound),
        },
        PacketVerb::Mechanisms => (MemcachedCommand::Mechanisms, ResponseKind::Plain),
        PacketVerb::Authenticate { continues } => {
            let (mechanism, response) = (packet.key(), packet.value());
            (
                MemcachedCommand::Authenticate(LoginCredentials { mechanism, response, continues }),
                ResponseKind::Plain,
            )
        }
    };
    let form = BinaryForm { is_quiet: operation.is_quiet, ..packet.form(answer) };
    packet.request(total, command, form)
}

/// Converts an unsigned time by memcached's rule of 30 days.
#[inline]
fn ttl(expiry: u32) -> Ttl {
    Ttl::from_exptime(expiry.into())
}

#[inline]
fn get<'a>(packet: &RequestPacket<'a>, read: ReadOptions) -> (MemcachedCommand<'a>, ResponseKind<'a>) {
    let key = packet.key();
    let get = Get {
        key,
        touch: read.touches.then(|| ttl(packet.number_at(0))),
        needs: ReplyNeeds { version: true, access: false },
        counts_as_touch: read.touches,
        ..Get::default()
    };
    (
        MemcachedCommand::Operation(Operation::Get(get)),
        ResponseKind::Record { key: read.with_key.then_some(key), with_value: read.with_value },
    )
}

#[inline]
fn store<'a>(
    packet: &RequestPacket<'a>,
    limits: &MemcachedLimits,
    mode: StoreMode,
    is_quiet: bool,
) -> (MemcachedCommand<'a>, ResponseKind<'a>) {
    let compare = packet.compare();
    let store = Store {
        key: packet.key(),
        value: packet.value(),
        shared: packet.shared(),
        flags: packet.flags(),
        ttl: ttl(packet.number_at(4)),
        // With a version, each of these commands is a compare-and-set.
        mode: if compare.is_some() { StoreMode::Set } else { mode },
        compare,
        // If no reply shows the version, the record needs no version.
        needs: ReplyNeeds { version: !is_quiet, access: false },
        item_size_max: Some(limits.item_size_max),
        ..Store::default()
    };
    let not_stored = if mode == StoreMode::Add { PacketStatus::Exists } else { PacketStatus::NotFound };
    (MemcachedCommand::Operation(Operation::Store(store)), ResponseKind::Store { not_stored })
}

#[inline]
fn append<'a>(
    packet: &RequestPacket<'a>,
    limits: &MemcachedLimits,
    mode: StoreMode,
    is_quiet: bool,
) -> (MemcachedCommand<'a>, ResponseKind<'a>) {
    let store = Store {
        key: packet.key(),
        value: packet.value(),
        shared: packet.shared(),
        mode,
        compare: packet.compare(),
        needs: ReplyNeeds { version: !is_quiet, access: false },
        item_size_max: Some(limits.item_size_max),
        ..Store::default()
    };
    (
        MemcachedCommand::Operation(Operation::Store(store)),
        ResponseKind::Store { not_stored: PacketStatus::NotStored },
    )
}

#[inline]
fn arithmetic<'a>(
    packet: &RequestPacket<'a>,
    direction: ArithmeticDirection,
    is_quiet: bool,
) -> (MemcachedCommand<'a>, ResponseKind<'a>) {
    let expiry = packet.number_at(16);
    let arithmetic = Arithmetic {
        key: packet.key(),
        direction,
        delta: packet.long_number_at(0),
        vivify: (expiry != DO_NOT_CREATE).then(|| ttl(expiry)),
        initial: packet.long_number_at(8),
        compare: packet.compare(),
        needs: ReplyNeeds { version: !is_quiet, access: false },
        ..Arithmetic::default()
    };
    (MemcachedCommand::Operation(Operation::Arithmetic(arithmetic)), ResponseKind::Plain)
}

/// Refuses a value. The client of a set assumes that the old value does not exist any more, so a
/// set removes the old record. The other commands make no such promise.
#[cold]
fn refused<'a>(
    place: &mut PacketPosition,
    packet: RequestPacket<'a>,
    mode: StoreMode,
    refusal: RefusalReason,
) -> MemcachedStep<'a> {
    let seen = packet.value_at() - HEADER_LEN;
    let received = match packet.block {
        Some(LongBlock::Refused { received }) => received.min(packet.header.body_len - seen),
        Some(LongBlock::Whole { .. }) => packet.header.body_len - seen,
        None => 0,
    };
    let left = packet.header.body_len - seen - received;
    *place = PacketPosition::Discard { left };
    let refused = RefusedStore {
        key: packet.key(),
        value_len: packet.value_len(),
        flags: packet.flags(),
        mode,
        compares: packet.compare().is_some(),
        discards: mode == StoreMode::Set,
        refusal,
    };
    packet.request(
        packet.value_at(),
        MemcachedCommand::Operation(Operation::RefusedStore(refused)),
        packet.form(ResponseKind::Plain),
    )
}

impl<'a> RequestPacket<'a> {
    #[inline]
    fn form(&self, answer: ResponseKind<'a>) -> BinaryForm<'a> {
        let PacketHeader { opcode, opaque, .. } = self.header;
        BinaryForm { opcode, opaque, is_quiet: false, closes: false, answer }
    }

    /// Returns a request that consists of the first `len` bytes of the packet.
    #[inline]
    fn request(&self, len: usize, command: MemcachedCommand<'a>, form: BinaryForm<'a>) -> MemcachedStep<'a> {
        let request = MemcachedRequest { command, form: ReplyForm::binary(form) };
        MemcachedStep::Request { consumed: self.skipped + len, request }
    }

    /// Returns the step that asks for more input, until `len` bytes of the packet have arrived.
    fn need(&self, len: usize) -> MemcachedStep<'a> {
        MemcachedStep::NeedMore { consumed: self.skipped, at_least: len - self.unread.len() }
    }

    /// Answers the packet with a status. `seen` bytes of the body have arrived. The other bytes are
    /// discarded as they arrive.
    #[cold]
    fn fault(&self, place: &mut PacketPosition, seen: usize, status: PacketStatus) -> MemcachedStep<'a> {
        *place = PacketPosition::Discard { left: self.header.body_len - seen };
        let message = status.text();
        self.request(
            HEADER_LEN + seen,
            MemcachedCommand::Faulty { message },
            self.form(ResponseKind::Fault(status)),
        )
    }

    /// Answers a packet and closes the connection, because after such a malformed packet the stream
    /// cannot be trusted.
    #[cold]
    fn fatal(&self, place: &mut PacketPosition, status: PacketStatus) -> MemcachedStep<'a> {
        *place = PacketPosition::End;
        let form = BinaryForm { closes: true, ..self.form(ResponseKind::Fault(status)) };
        self.request(HEADER_LEN, MemcachedCommand::Faulty { message: status.text() }, form)
    }

    #[inline]
    fn extras(&self) -> &'a [u8] {
        &self.unread[HEADER_LEN..][..self.header.extras_len]
    }

    #[inline]
    fn key(&self) -> &'a [u8] {
        &self.unread[HEADER_LEN + self.header.extras_len..][..self.header.key_len]
    }

    /// Returns the offset of the value in the packet.
    #[inline]
    fn value_at(&self) -> usize {
        HEADER_LEN + self.header.extras_len + self.header.key_len
    }

    #[inline]
    fn value_len(&self) -> usize {
        HEADER_LEN + self.header.body_len - self.value_at()
    }

    #[inline]
    fn value(&self) -> &'a [u8] {
        match self.block {
            Some(LongBlock::Whole { value, .. }) => value.plain().unwrap_or_default(),
            _ => &self.unread[self.value_at()..][..self.value_len()],
        }
    }

    #[inline]
    fn shared(&self) -> SharedValue<'a> {
        match self.block {
            Some(LongBlock::Whole { value, .. }) => SharedValue(Some(value)),
            _ => SharedValue(None),
        }
    }

    /// Returns the 32-bit number at this offset of the extras. The caller has checked the length of
    /// the extras.
    #[inline]
    fn number_at(&self, at: usize) -> u32 {
        self.extras()[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    /// Returns the 64-bit number at this offset of the extras. The caller has checked the length of
    /// the extras.
    #[inline]
    fn long_number_at(&self, at: usize) -> u64 {
        self.extras()[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }

    /// Returns the client's flags, or 0 for a packet without extras.
    #[inline]
    fn flags(&self) -> u32 {
        if self.header.extras_len == 0 { 0 } else { self.number_at(0) }
    }

    /// Returns the version that the record must have, if the packet names one.
    #[inline]
    fn compare(&self) -> Option<u64> {
        Some(self.header.version).filter(|&version| version != 0)
    }
}
