//! The text commands.

use super::draft::{Batch, Draft};
use super::model::{Context, Count, Counted, Item, Left, Mode, Piece, Play, Step, Store, Stored};
use std::sync::Arc;

const FULL: &str = "SERVER_ERROR out of memory storing object\r\n";
const FULL_IN_READ: &str = "SERVER_ERROR Out of memory during read\r\n";
const TOO_LONG: &str = "CLIENT_ERROR bad command line format\r\n";

/// Adds a request.
pub(super) fn request(draft: &mut Draft<'_>, batch: &mut Batch) {
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
            batch.steps.push(Step::fixed("VERSION 1.6.45\r\n"));
        }
        _ => gat(draft, batch),
    }
}

/// `mn`, after requests that may be silent.
pub(super) fn fence(batch: &mut Batch) {
    batch.bytes.extend_from_slice(b"mn\r\n");
    batch.steps.push(Step::fixed("MN\r\n"));
}

/// A miss has no reply.
fn miss(name: &[u8]) -> Play {
    Play::new(vec![Piece::Not([b"VALUE ", name, b" "].concat())], None)
}

/// `get` of one key.
pub(super) fn get(name: &[u8], key: usize, batch: &mut Batch) {
    batch.bytes.extend_from_slice(&[b"get ", name, b"\r\n"].concat());
    let name = name.to_vec();
    batch.steps.push(Step::on(key, move |old, context| {
        let Some(old) = old else { return miss(&name) };
        let mut item = old.accessed(context.now);
        Play::new(hit(&name, &mut item, false, context), Some(item))
    }));
    batch.steps.push(Step::fixed("END\r\n"));
}

/// The reply to a hit of `get` or `gets`.
fn hit(name: &[u8], item: &mut Item, versions: bool, context: &mut Context<'_>) -> Vec<Piece> {
    let head = [b"VALUE ", name, format!(" {} {}", item.flags, item.value.len()).as_bytes()].concat();
    let mut reply = vec![Piece::Bytes(head)];
    if versions {
        reply.push(Piece::Bytes(b" ".to_vec()));
        reply.push(Piece::Version(context.show(item)));
    }
    reply.push(Piece::Bytes(b"\r\n".to_vec()));
    reply.push(Piece::Value(Arc::clone(&item.value)));
    reply.push(Piece::Bytes(b"\r\n".to_vec()));
    reply
}

fn retrieve(draft: &mut Draft<'_>, batch: &mut Batch) {
    let versions = draft.chance(30);
    batch.bytes.extend_from_slice(if versions { b"gets" } else { b"get" });
    let most = if draft.is_small { 4 } else { 12 };
    for _ in 0..draft.random.usize(1..=most) {
        let key = draft.key();
        let name = draft.keys.name(key);
        batch.bytes.push(b' ');
        batch.bytes.extend_from_slice(&name);
        batch.replies_len += draft.reply_len(key);
        batch.steps.push(Step::on(key, move |old, context| {
            let Some(old) = old else { return miss(&name) };
            let mut item = old.accessed(context.now);
            Play::new(hit(&name, &mut item, versions, context), Some(item))
        }));
    }
    batch.bytes.extend_from_slice(b"\r\n");
    batch.steps.push(Step::fixed("END\r\n"));
}

fn gat(draft: &mut Draft<'_>, batch: &mut Batch) {
    let versions = draft.chance(30);
    let key = draft.key();
    let name = draft.keys.name(key);
    let (exptime, ttl) = draft.text_ttl(key);
    batch.replies_len += draft.reply_len(key);
    let verb = if versions { "gats" } else { "gat" };
    batch.bytes.extend_from_slice(format!("{verb} {exptime} ").as_bytes());
    batch.bytes.extend_from_slice(&name);
    batch.bytes.extend_from_slice(b"\r\n");
    batch.steps.push(Step::on(key, move |old, context| {
        let Some(old) = old else { return miss(&name) };
        let mut item = old.clone();
        let reply = hit(&name, &mut item, versions, context);
        Play::new(reply, Some(Item { expiry: ttl.resolve(context.now), ..item }))
    }));
    batch.steps.push(Step::fixed("END\r\n"));
}

fn store(draft: &mut Draft<'_>, batch: &mut Batch) {
    let key = draft.key();
    let name = draft.keys.name(key);
    let (verb, mode) = match draft.random.u32(..20) {
        0..=9 => ("set", Mode::Set),
        10 | 11 => ("add", Mode::Add),
        12 | 13 => ("replace", Mode::Replace),
        14 | 15 => ("append", Mode::Append),
        16 => ("prepend", Mode::Prepend),
        _ => ("cas", Mode::Set),
    };
    let joins = matches!(mode, Mode::Append | Mode::Prepend);
    let value = if joins { draft.piece(key) } else { draft.value(key) };
    let flags = draft.one_of(&[0, 0, 0, 1, 65535, u32::MAX]);
    let (exptime, ttl) = draft.text_ttl(key);
    let compare = (verb == "cas").then(|| draft.version(key));
    // Where records go unseen, silence must not hide which of two values is there.
    let is_silent = draft.chance(20) && (draft.is_exact() || verb == "set");
    batch.bytes.extend_from_slice(format!("{verb} ").as_bytes());
    batch.bytes.extend_from_slice(&name);
    batch.bytes.extend_from_slice(format!(" {flags} {exptime} {}", value.len()).as_bytes());
    if let Some(version) = compare {
        batch.bytes.extend_from_slice(format!(" {version}").as_bytes());
    }
    batch.bytes.extend_from_slice(if is_silent { b" noreply\r\n" } else { b"\r\n" });
    batch.bytes.extend_from_slice(&value);
    batch.bytes.extend_from_slice(b"\r\n");
    let store = Store {
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
    let step = Step::on(key, move |old, context| {
        let (outcome, after) = store.play(old, context);
        let reply = match outcome {
            Stored::Yes(..) => "STORED\r\n",
            Stored::No => "NOT_STORED\r\n",
            Stored::Exists => "EXISTS\r\n",
            Stored::NotFound => "NOT_FOUND\r\n",
        };
        Play::text(if is_silent { "" } else { reply }, after)
    });
    let left = if verb == "set" { Left::Nothing } else { Left::Unknown };
    batch.steps.push(if is_silent {
        step.silent(true)
    } else {
        step.or(FULL, left).or(FULL_IN_READ, Left::Unknown)
    });
}

fn delete(draft: &mut Draft<'_>, batch: &mut Batch) {
    let key = draft.key();
    let is_silent = draft.chance(20);
    batch.bytes.extend_from_slice(b"delete ");
    batch.bytes.extend_from_slice(&draft.keys.name(key));
    batch.bytes.extend_from_slice(if is_silent { b" noreply\r\n" } else { b"\r\n" });
    batch.steps.push(Step::on(key, move |old, _| match (is_silent, old) {
        (true, _) => Play::text("", None),
        (false, Some(_)) => Play::text("DELETED\r\n", None),
        (false, None) => Play::text("NOT_FOUND\r\n", None),
    }));
}

fn count(draft: &mut Draft<'_>, batch: &mut Batch) {
    let key = if draft.chance(90) { draft.key() / 4 * 4 } else { draft.key() };
    let up = draft.chance(60);
    let delta = draft.one_of(&[0, 1, 1, 7, 1000, u64::MAX, 1 << 40]);
    let is_silent = draft.chance(15) && draft.is_exact();
    batch.bytes.extend_from_slice(if up { b"incr " } else { b"decr " });
    batch.bytes.extend_from_slice(&draft.keys.name(key));
    batch.bytes.extend_from_slice(format!(" {delta}").as_bytes());
    batch.bytes.extend_from_slice(if is_silent { b" noreply\r\n" } else { b"\r\n" });
    let count = Count { up, delta, vivify: None, touch: None, compare: None, shows: false };
    batch.steps.push(
        Step::on(key, move |old, context| {
            let (reply, after) = match count.play(old, context) {
                Counted::Number(number, item) => (format!("{number}\r\n"), Some(item)),
                Counted::NoNumber => {
                    ("CLIENT_ERROR cannot increment or decrement non-numeric value\r\n".into(), old.cloned())
                }
                Counted::NotFound | Counted::Exists => ("NOT_FOUND\r\n".into(), None),
            };
            Play::text(if is_silent { "" } else { &reply }, after)
        })
        .or("SERVER_ERROR out of memory\r\n", Left::TheOld),
    );
}

fn touch(draft: &mut Draft<'_>, batch: &mut Batch) {
    let key = draft.key();
    let (exptime, ttl) = draft.text_ttl(key);
    let is_silent = draft.chance(15);
    batch.bytes.extend_from_slice(b"touch ");
    batch.bytes.extend_from_slice(&draft.keys.name(key));
    batch.bytes.extend_from_slice(format!(" {exptime}").as_bytes());
    batch.bytes.extend_from_slice(if is_silent { b" noreply\r\n" } else { b"\r\n" });
    batch.steps.push(Step::on(key, move |old, context| {
        let reply = if old.is_some() { "TOUCHED\r\n" } else { "NOT_FOUND\r\n" };
        let after = old.map(|old| Item { expiry: ttl.resolve(context.now), ..old.clone() });
        Play::text(if is_silent { "" } else { reply }, after)
    }));
}

/// Requests that are refused and change nothing.
fn fault(draft: &mut Draft<'_>, batch: &mut Batch) {
    let key = draft.key();
    let name = draft.keys.name(key);
    let long = "k".repeat(251);
    let mut put = |request: &[u8], reply: &str| {
        batch.bytes.extend_from_slice(request);
        batch.steps.push(Step::fixed(reply));
    };
    match draft.random.u32(..8) {
        0 => put(format!("get {long}\r\n").as_bytes(), TOO_LONG),
        1 => put(format!("set {long} 0 0 3\r\nabc\r\n").as_bytes(), TOO_LONG),
        2 => put(b"no such command\r\n", "ERROR\r\n"),
        // Two replies, which over UDP were two messages.
        3 if !draft.is_small => put(
            &[b"set ", &name[..], b" 0 0 2\r\nabcd\n"].concat(),
            "CLIENT_ERROR bad data chunk\r\nCLIENT_ERROR bad command line format\r\n",
        ),
        4 => {
            put(&[b"incr ", &name[..], b" x\r\n"].concat(), "CLIENT_ERROR invalid numeric delta argument\r\n")
        }
        5 => put(&[b"touch ", &name[..], b" x\r\n"].concat(), "CLIENT_ERROR invalid exptime argument\r\n"),
        6 => put(b"get\r\n", TOO_LONG),
        _ if !draft.is_exact() || draft.is_small || draft.item_max > 4 << 20 => {
            put(format!("mg {long} v\r\n").as_bytes(), TOO_LONG);
        }
        _ => {
            // The block is swallowed, and of a set the old value is gone.
            let len = draft.item_max;
            batch.bytes.extend_from_slice(&[b"set ", &name[..]].concat());
            batch.bytes.extend_from_slice(format!(" 0 0 {len}\r\n").as_bytes());
            batch.bytes.resize(batch.bytes.len() + len, b'x');
            batch.bytes.extend_from_slice(b"\r\n");
            batch
                .steps
                .push(Step::on(key, |_, _| Play::text("SERVER_ERROR object too large for cache\r\n", None)));
        }
    }
}
