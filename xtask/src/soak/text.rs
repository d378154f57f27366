//! Drafts requests of the text commands.

use super::draft::{RequestBatch, RequestDraft};
use super::model::{
    CountOperation, CountOutcome, ExpectedReply, ModelContext, ModelItem, ModelStep, RecordAfterRefusal,
    ReplyPiece, StoreMode, StoreOperation, StoreOutcome,
};
use std::sync::Arc;

const FULL: &str = "SERVER_ERROR out of memory storing object\r\n";
const FULL_IN_READ: &str = "SERVER_ERROR Out of memory during read\r\n";
const TOO_LONG: &str = "CLIENT_ERROR bad command line format\r\n";

/// Adds a random request to the batch.
pub(super) fn request(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    batch.requests += 1;
    match draft.random.u32(..100) {
        0..=35 => retrieve(draft, batch),
        36..=68 => store(draft, batch),
        69..=74 => delete(draft, batch),
        75..=83 => count(draft, batch),
        84..=88 => touch(draft, batch),
        89..=91 => fault(draft, batch),
        92 => {
            batch.bytes.extend_from_slice(b"version\r\n");
            batch.steps.push(ModelStep::fixed("VERSION 1.6.45\r\n"));
        }
        _ => gat(draft, batch),
    }
}

/// Adds `mn`, whose reply shows that no earlier request still has one.
pub(super) fn add_noop(batch: &mut RequestBatch) {
    batch.bytes.extend_from_slice(b"mn\r\n");
    batch.steps.push(ModelStep::fixed("MN\r\n"));
}

/// Returns the expected reply to a miss.
fn miss(name: &[u8]) -> ExpectedReply {
    ExpectedReply::new(vec![ReplyPiece::Not([b"VALUE ", name, b" "].concat())], None)
}

/// Adds a `get` of one key.
pub(super) fn get(name: &[u8], key: usize, batch: &mut RequestBatch) {
    batch.bytes.extend_from_slice(&[b"get ", name, b"\r\n"].concat());
    let name = name.to_vec();
    batch.steps.push(ModelStep::for_key(key, move |old, context| {
        let Some(old) = old else { return miss(&name) };
        let mut item = old.accessed(context.now);
        ExpectedReply::new(hit(&name, &mut item, false, context), Some(item))
    }));
    batch.steps.push(ModelStep::fixed("END\r\n"));
}

/// Returns the expected reply to a hit of `get` or `gets`.
fn hit(name: &[u8], item: &mut ModelItem, versions: bool, context: &mut ModelContext<'_>) -> Vec<ReplyPiece> {
    let head = [b"VALUE ", name, format!(" {} {}", item.flags, item.value.len()).as_bytes()].concat();
    let mut reply = vec![ReplyPiece::Bytes(head)];
    if versions {
        reply.push(ReplyPiece::Bytes(b" ".to_vec()));
        reply.push(ReplyPiece::Version(context.version_of(item)));
    }
    reply.push(ReplyPiece::Bytes(b"\r\n".to_vec()));
    reply.push(ReplyPiece::Value(Arc::clone(&item.value)));
    reply.push(ReplyPiece::Bytes(b"\r\n".to_vec()));
    reply
}

fn retrieve(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let versions = draft.chance(30);
    batch.bytes.extend_from_slice(if versions { b"gets" } else { b"get" });
    let most = if draft.is_small { 4 } else { 12 };
    for _ in 0..draft.random.usize(1..=most) {
        let key = draft.key();
        let name = draft.keys.name(key);
        batch.bytes.push(b' ');
        batch.bytes.extend_from_slice(&name);
        batch.replies_len += draft.reply_len(key);
        batch.steps.push(ModelStep::for_key(key, move |old, context| {
            let Some(old) = old else { return miss(&name) };
            let mut item = old.accessed(context.now);
            ExpectedReply::new(hit(&name, &mut item, versions, context), Some(item))
        }));
    }
    batch.bytes.extend_from_slice(b"\r\n");
    batch.steps.push(ModelStep::fixed("END\r\n"));
}

fn gat(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let versions = draft.chance(30);
    let key = draft.key();
    let name = draft.keys.name(key);
    let (exptime, ttl) = draft.text_ttl(key);
    batch.replies_len += draft.reply_len(key);
    let verb = if versions { "gats" } else { "gat" };
    batch.bytes.extend_from_slice(format!("{verb} {exptime} ").as_bytes());
    batch.bytes.extend_from_slice(&name);
    batch.bytes.extend_from_slice(b"\r\n");
    batch.steps.push(ModelStep::for_key(key, move |old, context| {
        let Some(old) = old else { return miss(&name) };
        let mut item = old.clone();
        let reply = hit(&name, &mut item, versions, context);
        ExpectedReply::new(reply, Some(ModelItem { expiry: ttl.resolve(context.now), ..item }))
    }));
    batch.steps.push(ModelStep::fixed("END\r\n"));
}

fn store(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key();
    let name = draft.keys.name(key);
    let (verb, mode) = match draft.random.u32(..20) {
        0..=9 => ("set", StoreMode::Set),
        10 | 11 => ("add", StoreMode::Add),
        12 | 13 => ("replace", StoreMode::Replace),
        14 | 15 => ("append", StoreMode::Append),
        16 => ("prepend", StoreMode::Prepend),
        _ => ("cas", StoreMode::Set),
    };
    let joins = matches!(mode, StoreMode::Append | StoreMode::Prepend);
    let value = if joins { draft.piece(key) } else { draft.value(key) };
    let flags = draft.one_of(&[0, 0, 0, 1, 65535, u32::MAX]);
    let (exptime, ttl) = draft.text_ttl(key);
    let compare = (verb == "cas").then(|| draft.version(key));
    // If the server may evict or refuse, a request without a reply would leave it unknown which
    // of two values is stored.
    let is_silent = draft.chance(20) && (draft.is_never_full() || verb == "set");
    batch.bytes.extend_from_slice(format!("{verb} ").as_bytes());
    batch.bytes.extend_from_slice(&name);
    batch.bytes.extend_from_slice(format!(" {flags} {exptime} {}", value.len()).as_bytes());
    if let Some(version) = compare {
        batch.bytes.extend_from_slice(format!(" {version}").as_bytes());
    }
    batch.bytes.extend_from_slice(if is_silent { b" noreply\r\n" } else { b"\r\n" });
    batch.bytes.extend_from_slice(&value);
    batch.bytes.extend_from_slice(b"\r\n");
    let store = StoreOperation {
        mode,
        value,
        flags,
        ttl,
        compare,
        shows: false,
        version: None,
        vivify: None,
        stale_if_older: false,
    };
    let step = ModelStep::for_key(key, move |old, context| {
        let (outcome, after) = store.apply(old, context);
        let reply = match outcome {
            StoreOutcome::Yes(..) => "STORED\r\n",
            StoreOutcome::No => "NOT_STORED\r\n",
            StoreOutcome::Exists => "EXISTS\r\n",
            StoreOutcome::NotFound => "NOT_FOUND\r\n",
        };
        ExpectedReply::text(if is_silent { "" } else { reply }, after)
    });
    let left = if verb == "set" { RecordAfterRefusal::Absent } else { RecordAfterRefusal::Unknown };
    batch.steps.push(if is_silent {
        step.silent(true)
    } else {
        step.or_refusal(FULL, left).or_refusal(FULL_IN_READ, RecordAfterRefusal::Unknown)
    });
}

fn delete(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key();
    let is_silent = draft.chance(20);
    batch.bytes.extend_from_slice(b"delete ");
    batch.bytes.extend_from_slice(&draft.keys.name(key));
    batch.bytes.extend_from_slice(if is_silent { b" noreply\r\n" } else { b"\r\n" });
    batch.steps.push(ModelStep::for_key(key, move |old, _| match (is_silent, old) {
        (true, _) => ExpectedReply::text("", None),
        (false, Some(_)) => ExpectedReply::text("DELETED\r\n", None),
        (false, None) => ExpectedReply::text("NOT_FOUND\r\n", None),
    }));
}

fn count(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = if draft.chance(90) { draft.key() / 4 * 4 } else { draft.key() };
    let up = draft.chance(60);
    let delta = draft.one_of(&[0, 1, 1, 7, 1000, u64::MAX, 1 << 40]);
    let is_silent = draft.chance(15) && draft.is_never_full();
    batch.bytes.extend_from_slice(if up { b"incr " } else { b"decr " });
    batch.bytes.extend_from_slice(&draft.keys.name(key));
    batch.bytes.extend_from_slice(format!(" {delta}").as_bytes());
    batch.bytes.extend_from_slice(if is_silent { b" noreply\r\n" } else { b"\r\n" });
    let count = CountOperation { up, delta, vivify: None, touch: None, compare: None, shows: false };
    batch.steps.push(
        ModelStep::for_key(key, move |old, context| {
            let (reply, after) = match count.apply(old, context) {
                CountOutcome::Number(number, item) => (format!("{number}\r\n"), Some(item)),
                CountOutcome::NoNumber => {
                    ("CLIENT_ERROR cannot increment or decrement non-numeric value\r\n".into(), old.cloned())
                }
                CountOutcome::NotFound | CountOutcome::Exists => ("NOT_FOUND\r\n".into(), None),
            };
            ExpectedReply::text(if is_silent { "" } else { &reply }, after)
        })
        .or_refusal("SERVER_ERROR out of memory\r\n", RecordAfterRefusal::Unchanged),
    );
}

fn touch(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key();
    let (exptime, ttl) = draft.text_ttl(key);
    let is_silent = draft.chance(15);
    batch.bytes.extend_from_slice(b"touch ");
    batch.bytes.extend_from_slice(&draft.keys.name(key));
    batch.bytes.extend_from_slice(format!(" {exptime}").as_bytes());
    batch.bytes.extend_from_slice(if is_silent { b" noreply\r\n" } else { b"\r\n" });
    batch.steps.push(ModelStep::for_key(key, move |old, context| {
        let reply = if old.is_some() { "TOUCHED\r\n" } else { "NOT_FOUND\r\n" };
        let after = old.map(|old| ModelItem { expiry: ttl.resolve(context.now), ..old.clone() });
        ExpectedReply::text(if is_silent { "" } else { reply }, after)
    }));
}

/// Adds an invalid request, which the server refuses.
fn fault(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key();
    let name = draft.keys.name(key);
    let long = "k".repeat(251);
    let mut put = |request: &[u8], reply: &str| {
        batch.bytes.extend_from_slice(request);
        batch.steps.push(ModelStep::fixed(reply));
    };
    match draft.random.u32(..8) {
        0 => put(format!("get {long}\r\n").as_bytes(), TOO_LONG),
        1 => put(format!("set {long} 0 0 3\r\nabc\r\n").as_bytes(), TOO_LONG),
        2 => put(b"no such command\r\n", "ERROR\r\n"),
        // This request gets two replies, which would be two messages over UDP.
        3 if !draft.is_small => put(
            &[b"set ", &name[..], b" 0 0 2\r\nabcd\n"].concat(),
            "CLIENT_ERROR bad data chunk\r\nCLIENT_ERROR bad command line format\r\n",
        ),
        4 => {
            put(&[b"incr ", &name[..], b" x\r\n"].concat(), "CLIENT_ERROR invalid numeric delta argument\r\n")
        }
        5 => put(&[b"touch ", &name[..], b" x\r\n"].concat(), "CLIENT_ERROR invalid exptime argument\r\n"),
        6 => put(b"get\r\n", TOO_LONG),
        _ if !draft.is_never_full() || draft.is_small || draft.item_max > 4 << 20 => {
            put(format!("mg {long} v\r\n").as_bytes(), TOO_LONG);
        }
        _ => {
            // The server skips the data block, and a `set` removes the old value.
            let len = draft.item_max;
            batch.bytes.extend_from_slice(&[b"set ", &name[..]].concat());
            batch.bytes.extend_from_slice(format!(" 0 0 {len}\r\n").as_bytes());
            batch.bytes.resize(batch.bytes.len() + len, b'x');
            batch.bytes.extend_from_slice(b"\r\n");
            batch.steps.push(ModelStep::for_key(key, |_, _| {
                ExpectedReply::text("SERVER_ERROR object too large for cache\r\n", None)
            }));
        }
    }
}
