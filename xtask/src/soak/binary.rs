//! Drafts requests of the binary protocol.

use super::draft::{RequestBatch, RequestDraft};
use super::model::{
    CountOperation, CountOutcome, ExpectedReply, ModelItem, ModelStep, RecordAfterRefusal, ReplyPiece,
    RequestTtl, StoreMode, StoreOperation, StoreOutcome, VersionToken,
};
use std::sync::Arc;

const NOT_FOUND: (u16, &str) = (1, "Not found");
const EXISTS: (u16, &str) = (2, "Data exists for key.");
const NOT_STORED: (u16, &str) = (5, "Not stored.");
const NO_NUMBER: (u16, &str) = (6, "Non-numeric server-side value for incr or decr");
const FULL: (u16, &str) = (0x82, "Out of memory");
const NOTHING_CREATED: u32 = u32::MAX;

/// Adds a random request to the batch.
pub(super) fn request(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    batch.requests += 1;
    match draft.random.u32(..40) {
        0..=13 => get(draft, batch),
        14..=24 => store(draft, batch),
        25..=28 => join(draft, batch),
        29..=30 => delete(draft, batch),
        31..=34 => count(draft, batch),
        35..=37 => touch(draft, batch),
        38 => {
            let packet = BinaryPacket::new(draft, 0x0b);
            packet.send(&[], &[], &[], 0, batch);
            batch.steps.push(ModelStep::fixed(packet.plain(0, "1.6.45")));
        }
        _ => add_noop(draft, batch),
    }
}

/// Adds a noop, whose reply shows that no earlier request still has one.
pub(super) fn add_noop(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let packet = BinaryPacket::new(draft, 0x0a);
    packet.send(&[], &[], &[], 0, batch);
    batch.steps.push(ModelStep::fixed(packet.plain(0, "")));
}

/// The fields that a request and its reply share.
#[derive(Clone, Copy)]
struct BinaryPacket {
    opcode: u8,
    opaque: u32,
}

impl BinaryPacket {
    fn new(draft: &mut RequestDraft<'_>, opcode: u8) -> BinaryPacket {
        BinaryPacket { opcode, opaque: draft.serial() as u32 }
    }

    fn head(self, magic: u8, lens: [usize; 3], status: u16) -> Vec<u8> {
        let [key, extras, value] = lens;
        let mut head = vec![magic, self.opcode];
        head.extend_from_slice(&(key as u16).to_be_bytes());
        head.extend_from_slice(&[extras as u8, 0]);
        head.extend_from_slice(&status.to_be_bytes());
        head.extend_from_slice(&((key + extras + value) as u32).to_be_bytes());
        head.extend_from_slice(&self.opaque.to_be_bytes());
        head
    }

    fn send(self, key: &[u8], extras: &[u8], value: &[u8], version: u64, batch: &mut RequestBatch) {
        batch.bytes.extend_from_slice(&self.head(0x80, [key.len(), extras.len(), value.len()], 0));
        batch.bytes.extend_from_slice(&version.to_be_bytes());
        for part in [extras, key, value] {
            batch.bytes.extend_from_slice(part);
        }
    }

    fn reply(
        self,
        status: u16,
        key: &[u8],
        extras: &[u8],
        value: &[u8],
        token: Option<VersionToken>,
    ) -> Vec<ReplyPiece> {
        let mut reply =
            vec![ReplyPiece::Bytes(self.head(0x81, [key.len(), extras.len(), value.len()], status))];
        reply.push(token.map_or_else(|| ReplyPiece::Bytes(vec![0; 8]), ReplyPiece::Version8));
        reply.push(ReplyPiece::Bytes([extras, key, value].concat()));
        reply
    }

    fn error(self, (status, text): (u16, &str)) -> Vec<ReplyPiece> {
        self.reply(status, &[], &[], text.as_bytes(), None)
    }

    /// Returns a reply without a version.
    fn plain(self, status: u16, value: &str) -> Vec<u8> {
        [&self.head(0x81, [0, 0, value.len()], status)[..], &[0; 8], value.as_bytes()].concat()
    }

    /// Returns the reply to a request that is refused because memory is full.
    fn full(self) -> Vec<u8> {
        self.plain(FULL.0, FULL.1)
    }
}

/// Returns an expiry, which is unsigned in this protocol and never sliding.
fn expiry(draft: &mut RequestDraft<'_>) -> (u32, RequestTtl) {
    let ttl = draft.plain_ttl();
    match ttl {
        RequestTtl::Plain(seconds) => (seconds as u32, ttl),
        RequestTtl::Sliding(_) => (0, RequestTtl::Plain(0)),
    }
}

fn get(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key();
    let name = draft.keys.name(key);
    let (opcode, shows_key, is_quiet) =
        draft.one_of(&[(0x00, false, false), (0x09, false, true), (0x0c, true, false), (0x0d, true, true)]);
    // Gets that also touch.
    let (opcode, touch) = match draft.chance(15) {
        false => (opcode, None),
        true => {
            let opcodes =
                [(0x1d, false, false), (0x1e, false, true), (0x23, true, false), (0x24, true, true)];
            let gat = opcodes.iter().find(|gat| (gat.1, gat.2) == (shows_key, is_quiet));
            (gat.map_or(0x1d, |gat| gat.0), Some(expiry(draft)))
        }
    };
    let packet = BinaryPacket::new(draft, opcode);
    let extras = touch.map_or(Vec::new(), |(seconds, _)| seconds.to_be_bytes().to_vec());
    packet.send(&name, &extras, &[], 0, batch);
    batch.replies_len += draft.reply_len(key);
    batch.steps.push(ModelStep::for_key(key, move |old, context| {
        let Some(old) = old else {
            if is_quiet {
                return ExpectedReply::new(vec![ReplyPiece::NotOpaque(packet.opaque)], None);
            }
            let reply =
                if shows_key { packet.reply(1, &name, &[], &[], None) } else { packet.error(NOT_FOUND) };
            return ExpectedReply::new(reply, None);
        };
        let mut item = old.accessed(context.now);
        if let Some((_, ttl)) = touch {
            item.expiry = ttl.resolve(context.now);
        }
        let token = context.version_of(&mut item);
        let shown: &[u8] = if shows_key { &name } else { &[] };
        let mut reply = vec![
            ReplyPiece::Bytes(packet.head(0x81, [shown.len(), 4, item.value.len()], 0)),
            ReplyPiece::Version8(token),
        ];
        reply.push(ReplyPiece::Bytes([&item.flags.to_be_bytes()[..], shown].concat()));
        reply.push(ReplyPiece::Value(Arc::clone(&item.value)));
        ExpectedReply::new(reply, Some(item))
    }));
}

fn store(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key();
    let name = draft.keys.name(key);
    let (opcode, mode) = draft.one_of(&[
        (0x01, StoreMode::Set),
        (0x01, StoreMode::Set),
        (0x01, StoreMode::Set),
        (0x02, StoreMode::Add),
        (0x03, StoreMode::Replace),
    ]);
    let is_quiet = draft.chance(25);
    let packet = BinaryPacket::new(draft, if is_quiet { opcode + 0x10 } else { opcode });
    let value = draft.value(key);
    let flags = draft.one_of(&[0, 0, 1, u32::MAX]);
    let (seconds, ttl) = expiry(draft);
    let compare = (mode != StoreMode::Add && draft.chance(15)).then(|| draft.version(key));
    let extras = [flags.to_be_bytes(), seconds.to_be_bytes()].concat();
    packet.send(&name, &extras, &value, compare.unwrap_or(0), batch);
    let left = if mode == StoreMode::Set && compare.is_none() {
        RecordAfterRefusal::Absent
    } else {
        RecordAfterRefusal::Unknown
    };
    let store = StoreOperation {
        mode,
        value,
        flags,
        ttl,
        compare,
        shows: !is_quiet,
        version: None,
        vivify: None,
        stale_if_older: false,
    };
    batch.steps.push(expect_store(packet, key, store, is_quiet).or_refusal(packet.full(), left));
}

fn expect_store(packet: BinaryPacket, key: usize, store: StoreOperation, is_quiet: bool) -> ModelStep {
    ModelStep::for_key(key, move |old, context| {
        let (outcome, after) = store.apply(old, context);
        let reply = match outcome {
            StoreOutcome::Yes(..) if is_quiet => Vec::new(),
            StoreOutcome::Yes(token, _) => packet.reply(0, &[], &[], &[], token),
            StoreOutcome::Exists => packet.error(EXISTS),
            StoreOutcome::NotFound => packet.error(NOT_FOUND),
            StoreOutcome::No => match store.mode {
                StoreMode::Add => packet.error(EXISTS),
                StoreMode::Replace => packet.error(NOT_FOUND),
                _ => packet.error(NOT_STORED),
            },
        };
        ExpectedReply::new(reply, after)
    })
}

fn join(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key();
    let (opcode, mode) = draft.one_of(&[(0x0e, StoreMode::Append), (0x0f, StoreMode::Prepend)]);
    let is_quiet = draft.chance(25);
    let packet = BinaryPacket::new(draft, if is_quiet { opcode + 0x0b } else { opcode });
    let value = draft.piece(key);
    packet.send(&draft.keys.name(key), &[], &value, 0, batch);
    let store = StoreOperation {
        mode,
        value,
        flags: 0,
        ttl: RequestTtl::Plain(0),
        compare: None,
        shows: !is_quiet,
        version: None,
        vivify: None,
        stale_if_older: false,
    };
    batch.steps.push(
        expect_store(packet, key, store, is_quiet).or_refusal(packet.full(), RecordAfterRefusal::Unknown),
    );
}

fn delete(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key();
    let is_quiet = draft.chance(25);
    let packet = BinaryPacket::new(draft, if is_quiet { 0x14 } else { 0x04 });
    let compare = draft.chance(20).then(|| draft.version(key));
    packet.send(&draft.keys.name(key), &[], &[], compare.unwrap_or(0), batch);
    batch.steps.push(ModelStep::for_key(key, move |old, context| match old {
        None => ExpectedReply::new(packet.error(NOT_FOUND), None),
        Some(old) if compare.is_some_and(|version| !context.has_version(old, version)) => {
            ExpectedReply::new(packet.error(EXISTS), Some(old.clone()))
        }
        Some(_) if is_quiet => ExpectedReply::text("", None),
        Some(_) => ExpectedReply::new(packet.reply(0, &[], &[], &[], None), None),
    }));
}

fn count(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key() / 4 * 4;
    let up = draft.chance(60);
    let is_quiet = draft.chance(25);
    let opcode = if up { 0x05 } else { 0x06 };
    let packet = BinaryPacket::new(draft, if is_quiet { opcode + 0x10 } else { opcode });
    let delta = draft.one_of(&[0, 1, 1000, u64::MAX]);
    let initial = draft.random.u64(..1000);
    // If the server may evict or refuse, it is unknown whether this request creates the record.
    let creates = draft.is_never_full() && draft.chance(50);
    let (seconds, ttl) = if creates { expiry(draft) } else { (NOTHING_CREATED, RequestTtl::Plain(0)) };
    let extras = [&delta.to_be_bytes()[..], &initial.to_be_bytes()[..], &seconds.to_be_bytes()[..]].concat();
    packet.send(&draft.keys.name(key), &extras, &[], 0, batch);
    let vivify = (seconds != NOTHING_CREATED).then_some((initial, ttl));
    let count = CountOperation { up, delta, vivify, touch: None, compare: None, shows: !is_quiet };
    let step = ModelStep::for_key(key, move |old, context| match count.apply(old, context) {
        CountOutcome::Number(_, item) if is_quiet => ExpectedReply::text("", Some(item)),
        CountOutcome::Number(number, item) => {
            let reply = packet.reply(0, &[], &[], &number.to_be_bytes(), item.version);
            ExpectedReply::new(reply, Some(item))
        }
        CountOutcome::NotFound => ExpectedReply::new(packet.error(NOT_FOUND), None),
        CountOutcome::Exists => ExpectedReply::new(packet.error(EXISTS), old.cloned()),
        CountOutcome::NoNumber => ExpectedReply::new(packet.error(NO_NUMBER), old.cloned()),
    });
    batch.steps.push(step.or_refusal(packet.full(), RecordAfterRefusal::Unchanged));
}

fn touch(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key();
    let packet = BinaryPacket::new(draft, 0x1c);
    let (seconds, ttl) = expiry(draft);
    packet.send(&draft.keys.name(key), &seconds.to_be_bytes(), &[], 0, batch);
    batch.steps.push(ModelStep::for_key(key, move |old, context| {
        let Some(old) = old else { return ExpectedReply::new(packet.error(NOT_FOUND), None) };
        let mut item = ModelItem { expiry: ttl.resolve(context.now), ..old.clone() };
        let token = context.version_of(&mut item);
        let reply = packet.reply(0, &[], &item.flags.to_be_bytes(), &[], Some(token));
        ExpectedReply::new(reply, Some(item))
    }));
}
