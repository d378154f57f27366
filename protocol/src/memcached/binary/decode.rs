//! Packets as commands.

use super::form::{Answer, BinaryForm};
use super::header::{HEADER_LEN, Header, REQUEST_MAGIC};
use super::opcode::{Opcode, Read, Verb, name_of};
use super::status::Status;
use crate::memcached::item_size;
use crate::memcached::server::{Form, Head, KEY_LEN_MAX, Limits, LongBlock, Request, Step};
use crate::memcached::{Authenticate, Command};
use todana_core::{
    Arithmetic, ArithmeticDirection, Delete, Get, Operation, RefusalReason, RefusedStore, ReplyNeeds,
    SharedValue, Store, StoreMode, Ttl,
};

/// The longest body that is even dropped; a longer one closes the connection.
const BODY_LEN_MAX: usize = 1 << 30;

/// The longest name of a SASL mechanism.
const MECHANISM_LEN_MAX: usize = 32;

/// The longest SASL response: memcached's own bound for what its text dialect takes as user and password.
const SASL_RESPONSE_LEN_MAX: usize = 16 << 10;

/// An expiry of `incr` and `decr` that asks not to create the record.
const DO_NOT_CREATE: u32 = u32::MAX;

/// Where in the stream a decoder stands.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::memcached) enum Place {
    /// At the start of a packet.
    #[default]
    Packet,
    /// In a body that nobody wants; so many bytes of it are left.
    Swallow { left: usize },
    /// Behind the last packet that is served.
    End,
}

/// The next step from the unread bytes.
#[inline]
pub(in crate::memcached) fn decode<'a>(
    place: &mut Place,
    limits: &Limits,
    is_admitted: bool,
    input: &'a [u8],
) -> Step<'a> {
    let skipped = match *place {
        Place::Packet => 0,
        Place::Swallow { left } if input.len() < left => {
            *place = Place::Swallow { left: left - input.len() };
            return Step::NeedMore { consumed: input.len(), at_least: 1 };
        }
        Place::Swallow { left } => left,
        Place::End => return Step::Close,
    };
    *place = Place::Packet;
    let unread = &input[skipped..];
    match unread.first() {
        None => return Step::NeedMore { consumed: skipped, at_least: 1 },
        Some(&REQUEST_MAGIC) => {}
        Some(_) => {
            *place = Place::End;
            return Step::Close;
        }
    }
    let Some(header) = unread.first_chunk() else {
        return Step::NeedMore { consumed: skipped, at_least: HEADER_LEN - unread.len() };
    };
    packet(place, limits, is_admitted, Packet { skipped, unread, header: Header::parse(header), block: None })
}

/// What the packet begins with that the next step is about, for those who look on.
pub(in crate::memcached) fn head(place: Place, input: &[u8]) -> Head<'_> {
    let unread = match place {
        Place::Swallow { left } => input.get(left..).unwrap_or_default(),
        Place::Packet | Place::End => input,
    };
    let Some(bytes) = unread.first_chunk::<HEADER_LEN>() else { return Head::Continued };
    let header = Header::parse(bytes);
    let key_at = HEADER_LEN + header.extras_len;
    let key_end = key_at + header.key_len.min(KEY_LEN_MAX);
    let stores = matches!(Opcode::of(header.opcode), Some(Opcode { verb: Verb::Store(_), .. }));
    let value_len = header.body_len.checked_sub(header.extras_len + header.key_len);
    Head::Packet {
        header: bytes,
        name: name_of(header.opcode),
        // A header that lies about its lengths is all there is of its packet.
        key: unread.get(key_at..key_end).unwrap_or_default(),
        value_len: value_len.filter(|_| stores),
    }
}

/// The packet whose value was received apart; `head` is what stands before it.
pub(in crate::memcached) fn decode_block<'a>(
    place: &mut Place,
    limits: &Limits,
    head: &'a [u8],
    block: LongBlock<'a>,
) -> Step<'a> {
    *place = Place::Packet;
    let Some(header) = head.first_chunk() else {
        *place = Place::End;
        return Step::Close;
    };
    let header = Header::parse(header);
    // Strangers are told off before a block is announced.
    packet(place, limits, true, Packet { skipped: 0, unread: head, header, block: Some(block) })
}

/// A packet of which at least the header has arrived.
#[derive(Clone, Copy)]
struct Packet<'a> {
    /// Bytes of the input before it that are done with.
    skipped: usize,
    /// The input from it on.
    unread: &'a [u8],
    header: Header,
    /// Its value, if that was received apart.
    block: Option<LongBlock<'a>>,
}

#[inline]
fn packet<'a>(place: &mut Place, limits: &Limits, is_admitted: bool, packet: Packet<'a>) -> Step<'a> {
    let header = &packet.header;
    if header.key_len + header.extras_len > header.body_len {
        return packet.fatal(place, Status::UnknownCommand);
    }
    // Said before the body is there: nothing of a stranger's is kept.
    if limits.sasl && !is_admitted && !Opcode::is_for_strangers(header.opcode) {
        return packet.fatal(place, Status::NotAuthenticated);
    }
    if header.key_len > KEY_LEN_MAX || header.body_len > BODY_LEN_MAX {
        return packet.fatal(place, Status::Invalid);
    }
    let Some(operation) = Opcode::of(header.opcode) else {
        return packet.fault(place, 0, Status::UnknownCommand);
    };
    if !operation.verb.fits(header) {
        return packet.fatal(place, Status::Invalid);
    }
    match operation.verb {
        Verb::Mechanisms | Verb::Authenticate { .. } if !limits.sasl => {
            return packet.fault(place, 0, Status::UnknownCommand);
        }
        Verb::Store(mode) | Verb::Append(mode) => {
            // Whether a value is wanted at all shows in what stands before it.
            if packet.unread.len() < packet.value_at() {
                return packet.need(packet.value_at());
            }
            let value_len = packet.value_len();
            if item_size(header.key_len as u64, value_len as u64, packet.flags()) > limits.item_size_max {
                return refused(place, packet, mode, RefusalReason::TooLarge);
            }
            match packet.block {
                None if value_len >= limits.long_block_len => {
                    return Step::Block {
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
            // Of a block that has been received, only the head is to be seen here.
            if packet.block.is_none()
                && packet.unread.len() > limits.unfinished_len_max
                && packet.unread.len() < HEADER_LEN + header.body_len
            {
                return refused(place, packet, mode, RefusalReason::OutOfMemory);
            }
        }
        Verb::Authenticate { .. }
            if header.key_len > MECHANISM_LEN_MAX || packet.value_len() > SASL_RESPONSE_LEN_MAX =>
        {
            return packet.fault(place, 0, Status::Invalid);
        }
        _ => {}
    }
    // What is left is short, or a value within the limit.
    let total = HEADER_LEN + header.body_len;
    if packet.unread.len() < total && packet.block.is_none() {
        return packet.need(total);
    }
    let (command, answer) = match operation.verb {
        Verb::Get(read) => get(&packet, read),
        Verb::Store(mode) => store(&packet, limits, mode, operation.is_quiet),
        Verb::Append(mode) => append(&packet, limits, mode, operation.is_quiet),
        Verb::Delete => {
            let compare = packet.compare();
            (
                Command::Operation(Operation::Delete(Delete {
                    key: packet.key(),
                    compare,
                    ..Delete::default()
                })),
                Answer::Plain,
            )
        }
        Verb::Arithmetic(direction) => arithmetic(&packet, direction, operation.is_quiet),
        Verb::Flush if !limits.flush_allowed => {
            return packet.fault(place, header.body_len, Status::NotAuthenticated);
        }
        Verb::Flush => {
            let at = if header.extras_len == 0 { Ttl::Never } else { ttl(packet.number_at(0)) };
            (Command::Operation(Operation::Flush { at }), Answer::Plain)
        }
        Verb::Quit if operation.is_quiet => {
            *place = Place::End;
            (Command::Quit, Answer::Plain)
        }
        Verb::Quit => {
            *place = Place::End;
            let form = BinaryForm { closes: true, ..packet.form(Answer::Plain) };
            return packet.request(total, Command::Operation(Operation::Noop), form);
        }
        Verb::Noop => (Command::Operation(Operation::Noop), Answer::Plain),
        Verb::Version => (Command::Version, Answer::Plain),
        Verb::Stat => match packet.key() {
            b"" | b"reset" | b"settings" | b"items" | b"slabs" | b"sizes" | b"detail on" | b"detail off"
            | b"detail dump" => (Command::Stats { group: packet.key() }, Answer::Statistics),
            // The text dialect knows more groups, and takes beginnings of their names.
            _ => return packet.fault(place, header.body_len, Status::NotFound),
        },
        Verb::Mechanisms => (Command::Mechanisms, Answer::Plain),
        Verb::Authenticate { continues } => {
            let (mechanism, response) = (packet.key(), packet.value());
            (Command::Authenticate(Authenticate { mechanism, response, continues }), Answer::Plain)
        }
    };
    let form = BinaryForm { is_quiet: operation.is_quiet, ..packet.form(answer) };
    packet.request(total, command, form)
}

/// An unsigned time, by the rule of 30 days.
#[inline]
fn ttl(expiry: u32) -> Ttl {
    Ttl::from_memcached(expiry.into())
}

#[inline]
fn get<'a>(packet: &Packet<'a>, read: Read) -> (Command<'a>, Answer<'a>) {
    let key = packet.key();
    let get = Get {
        key,
        touch: read.touches.then(|| ttl(packet.number_at(0))),
        needs: ReplyNeeds { version: true, access: false },
        counts_as_touch: read.touches,
        ..Get::default()
    };
    (
        Command::Operation(Operation::Get(get)),
        Answer::Record { key: read.with_key.then_some(key), with_value: read.with_value },
    )
}

#[inline]
fn store<'a>(
    packet: &Packet<'a>,
    limits: &Limits,
    mode: StoreMode,
    is_quiet: bool,
) -> (Command<'a>, Answer<'a>) {
    let compare = packet.compare();
    let store = Store {
        key: packet.key(),
        value: packet.value(),
        shared: packet.shared(),
        flags: packet.flags(),
        ttl: ttl(packet.number_at(4)),
        // With a version any of them is a compare-and-set.
        mode: if compare.is_some() { StoreMode::Set } else { mode },
        compare,
        // A version that nobody will be told is none.
        needs: ReplyNeeds { version: !is_quiet, access: false },
        item_size_max: Some(limits.item_size_max),
        ..Store::default()
    };
    let not_stored = if mode == StoreMode::Add { Status::Exists } else { Status::NotFound };
    (Command::Operation(Operation::Store(store)), Answer::Store { not_stored })
}

#[inline]
fn append<'a>(
    packet: &Packet<'a>,
    limits: &Limits,
    mode: StoreMode,
    is_quiet: bool,
) -> (Command<'a>, Answer<'a>) {
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
    (Command::Operation(Operation::Store(store)), Answer::Store { not_stored: Status::NotStored })
}

#[inline]
fn arithmetic<'a>(
    packet: &Packet<'a>,
    direction: ArithmeticDirection,
    is_quiet: bool,
) -> (Command<'a>, Answer<'a>) {
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
    (Command::Operation(Operation::Arithmetic(arithmetic)), Answer::Plain)
}

/// A value that is not taken. The client of a set believes its old value gone; the others have promised nothing.
#[cold]
fn refused<'a>(place: &mut Place, packet: Packet<'a>, mode: StoreMode, refusal: RefusalReason) -> Step<'a> {
    let seen = packet.value_at() - HEADER_LEN;
    let received = match packet.block {
        Some(LongBlock::Refused { received }) => received.min(packet.header.body_len - seen),
        Some(LongBlock::Whole { .. }) => packet.header.body_len - seen,
        None => 0,
    };
    let left = packet.header.body_len - seen - received;
    *place = Place::Swallow { left };
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
        Command::Operation(Operation::RefusedStore(refused)),
        packet.form(Answer::Plain),
    )
}

impl<'a> Packet<'a> {
    #[inline]
    fn form(&self, answer: Answer<'a>) -> BinaryForm<'a> {
        let Header { opcode, opaque, .. } = self.header;
        BinaryForm { opcode, opaque, is_quiet: false, closes: false, answer }
    }

    /// A request of the packet's first `len` bytes.
    #[inline]
    fn request(&self, len: usize, command: Command<'a>, form: BinaryForm<'a>) -> Step<'a> {
        let request = Request { command, form: Form::binary(form) };
        Step::Request { consumed: self.skipped + len, request }
    }

    /// So many bytes of the packet have to be there.
    fn need(&self, len: usize) -> Step<'a> {
        Step::NeedMore { consumed: self.skipped, at_least: len - self.unread.len() }
    }

    /// The packet is answered by a status. Of its body `seen` bytes have arrived; the rest is dropped as it comes.
    #[cold]
    fn fault(&self, place: &mut Place, seen: usize, status: Status) -> Step<'a> {
        *place = Place::Swallow { left: self.header.body_len - seen };
        let message = status.text();
        self.request(HEADER_LEN + seen, Command::Faulty { message }, self.form(Answer::Fault(status)))
    }

    /// A packet so wrong that nothing behind it can be trusted.
    #[cold]
    fn fatal(&self, place: &mut Place, status: Status) -> Step<'a> {
        *place = Place::End;
        let form = BinaryForm { closes: true, ..self.form(Answer::Fault(status)) };
        self.request(HEADER_LEN, Command::Faulty { message: status.text() }, form)
    }

    #[inline]
    fn extras(&self) -> &'a [u8] {
        &self.unread[HEADER_LEN..][..self.header.extras_len]
    }

    #[inline]
    fn key(&self) -> &'a [u8] {
        &self.unread[HEADER_LEN + self.header.extras_len..][..self.header.key_len]
    }

    /// Where the value starts in the packet.
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
            Some(LongBlock::Whole { value, .. }) => (**value).as_ref(),
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

    /// The 32-bit number at this offset of the extras, whose length has been checked.
    #[inline]
    fn number_at(&self, at: usize) -> u32 {
        self.extras()[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    /// The 64-bit number at this offset.
    #[inline]
    fn long_number_at(&self, at: usize) -> u64 {
        self.extras()[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
    }

    /// The client's flags; what has no extras has none.
    #[inline]
    fn flags(&self) -> u32 {
        if self.header.extras_len == 0 { 0 } else { self.number_at(0) }
    }

    /// The version that the record shall have.
    #[inline]
    fn compare(&self) -> Option<u64> {
        Some(self.header.version).filter(|&version| version != 0)
    }
}
