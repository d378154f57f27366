//! Drafts requests of the meta commands.

use super::draft::{RequestBatch, RequestDraft};
use super::model::{
    CountOperation, CountOutcome, ExpectedReply, ItemExpiry, ModelContext, ModelItem, ModelStep,
    RecordAfterRefusal, ReplyPiece, RequestTtl, StoreMode, StoreOperation, StoreOutcome,
};
use std::sync::Arc;

const FULL: &str = "SERVER_ERROR out of memory storing object\r\n";
const FULL_IN_READ: &str = "SERVER_ERROR Out of memory during read\r\n";

/// Adds a random request to the batch.
pub(super) fn request(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    batch.requests += 1;
    match draft.random.u32(..20) {
        0..=8 => get(draft, batch),
        9..=14 => store(draft, batch),
        15 | 16 => delete(draft, batch),
        17 | 18 => count(draft, batch),
        _ if draft.chance(30) => inspect(draft, batch),
        _ => super::text::add_noop(batch),
    }
}

/// The key as it is sent, and the parts of the request that flags k and O show in the reply.
struct MetaRequestLine {
    name: Vec<u8>,
    base64: bool,
    opaque: Option<u64>,
}

impl MetaRequestLine {
    fn new(draft: &mut RequestDraft<'_>, key: usize) -> MetaRequestLine {
        let name = draft.keys.name(key);
        // The base64 form of a longer key would exceed the maximum length.
        let base64 = draft.chance(15) && name.len() <= 180;
        let name = if base64 { encode(&name) } else { name };
        let opaque = draft.chance(30).then(|| draft.serial());
        MetaRequestLine { name, base64, opaque }
    }

    /// Appends the beginning of the request.
    fn begin(&self, verb: &str, batch: &mut RequestBatch) {
        batch.bytes.extend_from_slice(verb.as_bytes());
        batch.bytes.push(b' ');
        batch.bytes.extend_from_slice(&self.name);
    }

    /// Appends the rest of the request line.
    fn finish(&self, flags: &[String], batch: &mut RequestBatch) {
        if self.base64 {
            batch.bytes.extend_from_slice(b" b");
        }
        for flag in flags {
            batch.bytes.extend_from_slice(format!(" {flag}").as_bytes());
        }
        batch.bytes.extend_from_slice(b"\r\n");
    }

    /// Appends the reply to the flags k and O.
    fn echo(&self, flag: &str, reply: &mut Vec<ReplyPiece>) {
        if flag == "k" {
            let end: &[u8] = if self.base64 { b" b" } else { b"" };
            reply.push(ReplyPiece::Bytes([b" k", &self.name[..], end].concat()));
        } else if flag.starts_with('O') {
            reply.push(ReplyPiece::Bytes(format!(" {flag}").into_bytes()));
        }
    }

    /// Returns a reply without data of a record.
    fn reply_without_record(&self, code: &str, flags: &[String]) -> Vec<ReplyPiece> {
        let mut reply = vec![ReplyPiece::Bytes(code.into())];
        flags.iter().for_each(|flag| self.echo(flag, &mut reply));
        reply.push(ReplyPiece::Bytes(b"\r\n".to_vec()));
        reply
    }
}

fn encode(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::new();
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= chunk.len() { digit } else { b'=' });
        }
    }
    text
}

/// Returns some of the known flags, and perhaps k and O, in any order.
fn flags(draft: &mut RequestDraft<'_>, line: &MetaRequestLine, known: &[&str]) -> Vec<String> {
    let mut flags: Vec<String> = Vec::new();
    for flag in known {
        if draft.chance(35) {
            flags.push(flag.to_string());
        }
    }
    if draft.chance(30) {
        flags.push("k".into());
    }
    if let Some(opaque) = line.opaque {
        flags.push(format!("O{opaque}"));
    }
    draft.random.shuffle(&mut flags);
    flags
}

fn seconds(ttl: RequestTtl) -> i64 {
    match ttl {
        RequestTtl::Plain(seconds) => seconds,
        RequestTtl::Sliding(seconds) => seconds as i64,
    }
}

fn number(flags: &[String], letter: char) -> Option<i64> {
    flags.iter().find_map(|flag| flag.strip_prefix(letter)?.parse().ok())
}

fn get(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key();
    let mut line = MetaRequestLine::new(draft, key);
    let is_quiet = draft.chance(25);
    // Quiet requests may have no reply. Their opaque shows which request a reply belongs to.
    if is_quiet {
        line.opaque = Some(draft.serial());
    }
    let mut flags = flags(draft, &line, &["v", "v", "s", "f", "t", "c", "u"]);
    flags.dedup();
    let mut seen = Vec::new();
    flags.retain(|flag| {
        let is_new = !seen.contains(flag);
        seen.push(flag.clone());
        is_new
    });
    if is_quiet {
        flags.push("q".into());
    }
    if !RequestDraft::is_sliding_key(key) {
        if draft.chance(10) {
            flags.push(format!("R{}", draft.random.u32(..900)));
        }
        if draft.chance(10) && draft.is_never_full() {
            flags.push(format!("N{}", draft.random.u32(..100)));
        }
    }
    // N together with T is tested by tests/transcripts instead.
    let creates = flags.iter().any(|flag| flag.starts_with('N'));
    if draft.chance(10) && !creates {
        flags.push(format!("T{}", seconds(draft.plain_ttl())));
    } else if draft.allows_sliding && RequestDraft::is_sliding_key(key) && draft.chance(15) {
        flags.push(format!("A{}", draft.random.u32(5..300)));
    }
    draft.random.shuffle(&mut flags);
    if draft.chance(5) {
        flags.push(format!("C{}", draft.version(key)));
    }
    batch.replies_len += draft.reply_len(key);
    line.begin("mg", batch);
    line.finish(&flags, batch);
    batch
        .steps
        .push(ModelStep::for_key(key, move |old, context| expect_get(&line, &flags, is_quiet, old, context)));
}

fn expect_get(
    line: &MetaRequestLine,
    flags: &[String],
    is_quiet: bool,
    old: Option<&ModelItem>,
    context: &mut ModelContext<'_>,
) -> ExpectedReply {
    let now = context.now;
    let vivify = number(flags, 'N').map(RequestTtl::Plain);
    let has = |flag: &str| flags.iter().any(|known| known == flag);
    let (mut item, created) = match (old, vivify) {
        (Some(old), _) => (old.clone(), false),
        (None, Some(ttl)) => {
            let version = Some(context.versions.new_unshown());
            let expiry = ttl.resolve(now);
            (ModelItem { expiry, version, token_sent: true, ..ModelItem::new(Arc::default()) }, true)
        }
        (None, None) if is_quiet => return ExpectedReply::text("", None),
        (None, None) => return ExpectedReply::new(line.reply_without_record("EN", flags), None),
    };
    // A request that sets a new time does not extend the old one first.
    let touches = flags.iter().any(|flag| flag.starts_with(['T', 'A']));
    if !has("u") && !created && !touches {
        item.expiry = item.expiry.accessed(now);
    }
    let value = Arc::clone(&item.value);
    let mut wins_late = false;
    let mut tail = Vec::new();
    let mut known = false;
    // Flags act in their order: those after T show the new time.
    for flag in flags {
        let (letter, rest) = flag.split_at(1);
        match letter {
            "s" => tail.push(ReplyPiece::Bytes(format!(" s{}", value.len()).into_bytes())),
            "f" => tail.push(ReplyPiece::Bytes(format!(" f{}", item.flags).into_bytes())),
            "t" => {
                tail.push(ReplyPiece::Bytes(format!(" t{}", item.expiry.remaining_seconds(now)).into_bytes()))
            }
            "c" => {
                tail.push(ReplyPiece::Bytes(b" c".to_vec()));
                tail.push(ReplyPiece::Version(context.version_of(&mut item)));
            }
            "T" if !created => item.expiry = RequestTtl::Plain(rest.parse().unwrap_or(0)).resolve(now),
            "A" if !created => item.expiry = RequestTtl::Sliding(rest.parse().unwrap_or(1)).resolve(now),
            "R" if item.expiry != ItemExpiry::Never && !created => {
                wins_late |= item.expiry.remaining_seconds(now) < rest.parse().unwrap_or(0);
            }
            "C" => known = context.has_version(&item, rest.parse().unwrap_or(0)),
            _ => line.echo(flag, &mut tail),
        }
    }
    let was_out = item.token_sent && !created;
    let wins = created || ((wins_late || item.stale) && !was_out);
    item.token_sent |= wins;
    for (is_marked, mark) in [(was_out, " Z"), (item.stale, " X"), (wins, " W")] {
        if is_marked {
            tail.push(ReplyPiece::Bytes(mark.into()));
        }
    }
    tail.push(ReplyPiece::Bytes(b"\r\n".to_vec()));
    let mut reply = vec![ReplyPiece::Bytes(b"HD".to_vec())];
    if has("v") && !known {
        reply = vec![ReplyPiece::Bytes(format!("VA {}", value.len()).into_bytes())];
        tail.extend([ReplyPiece::Value(value), ReplyPiece::Bytes(b"\r\n".to_vec())]);
    }
    reply.append(&mut tail);
    ExpectedReply::new(reply, Some(item))
}

fn store(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key();
    let line = MetaRequestLine::new(draft, key);
    let mut flags = flags(draft, &line, &["s", "c"]);
    let (letter, mode) = draft.one_of(&[
        ('S', StoreMode::Set),
        ('S', StoreMode::Set),
        ('E', StoreMode::Add),
        ('A', StoreMode::Append),
        ('P', StoreMode::Prepend),
        ('R', StoreMode::Replace),
    ]);
    let joins = matches!(mode, StoreMode::Append | StoreMode::Prepend);
    let value = if joins { draft.piece(key) } else { draft.value(key) };
    if letter != 'S' || draft.chance(50) {
        flags.push(format!("M{letter}"));
    }
    let mut item_flags = 0;
    if draft.chance(30) {
        item_flags = draft.random.u32(..);
        flags.push(format!("F{item_flags}"));
    }
    let mut ttl = RequestTtl::Plain(0);
    if draft.allows_sliding && RequestDraft::is_sliding_key(key) && draft.chance(30) {
        ttl = RequestTtl::Sliding(draft.random.u64(5..300));
        flags.push(format!("A{}", seconds(ttl)));
    } else if draft.chance(40) {
        ttl = draft.plain_ttl();
        flags.push(format!("T{}", seconds(ttl)));
    }
    let compare = draft.chance(15).then(|| draft.version(key));
    if let Some(version) = compare {
        flags.push(format!("C{version}"));
    }
    let stale_if_older = compare.is_some() && !RequestDraft::is_sliding_key(key) && draft.chance(30);
    if stale_if_older {
        flags.push("I".into());
    }
    let vivify = (joins && draft.is_never_full() && draft.chance(30))
        .then(|| RequestTtl::Plain(draft.random.i64(0..300)));
    if let Some(ttl) = vivify {
        flags.push(format!("N{}", seconds(ttl)));
    }
    let version = draft.chance(5).then(|| (1 << 40) + draft.serial());
    if let Some(version) = version {
        flags.push(format!("E{version}"));
    }
    // If a store may be refused, a missing reply could not be attributed to one request.
    let is_quiet = draft.chance(20) && draft.is_never_full();
    if is_quiet {
        flags.push("q".into());
    }
    draft.random.shuffle(&mut flags);
    let shows = !is_quiet && flags.iter().any(|flag| flag == "c");
    line.begin("ms", batch);
    batch.bytes.extend_from_slice(format!(" {}", value.len()).as_bytes());
    line.finish(&flags, batch);
    batch.bytes.extend_from_slice(&value);
    batch.bytes.extend_from_slice(b"\r\n");
    let sent = value.len();
    let store = StoreOperation {
        mode,
        value,
        flags: item_flags,
        ttl,
        compare,
        shows,
        version,
        vivify,
        stale_if_older,
    };
    let step = ModelStep::for_key(key, move |old, context| {
        let (outcome, after) = store.apply(old, context);
        let (code, token, len) = match outcome {
            StoreOutcome::Yes(token, len) => ("HD", token, len),
            StoreOutcome::No => ("NS", None, sent),
            StoreOutcome::Exists => ("EX", None, sent),
            StoreOutcome::NotFound => ("NF", None, sent),
        };
        if code == "HD" && is_quiet {
            return ExpectedReply::text("", after);
        }
        let mut reply = vec![ReplyPiece::Bytes(code.into())];
        for flag in &flags {
            match (flag.as_str(), token) {
                ("s", _) => reply.push(ReplyPiece::Bytes(format!(" s{len}").into_bytes())),
                ("c", Some(token)) => {
                    reply.extend([ReplyPiece::Bytes(b" c".to_vec()), ReplyPiece::Version(token)]);
                }
                ("c", None) => reply.push(ReplyPiece::Bytes(b" c0".to_vec())),
                _ => line.echo(flag, &mut reply),
            }
        }
        reply.push(ReplyPiece::Bytes(b"\r\n".to_vec()));
        ExpectedReply::new(reply, after)
    });
    let left = if mode == StoreMode::Set && compare.is_none() {
        RecordAfterRefusal::Absent
    } else {
        RecordAfterRefusal::Unknown
    };
    batch.steps.push(step.or_refusal(FULL, left).or_refusal(FULL_IN_READ, RecordAfterRefusal::Unknown));
}

fn delete(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key();
    let line = MetaRequestLine::new(draft, key);
    let mut flags = flags(draft, &line, &[]);
    let is_quiet = draft.chance(20) && draft.is_never_full();
    if is_quiet {
        flags.push("q".into());
    }
    let compare = draft.chance(15).then(|| draft.version(key));
    if let Some(version) = compare {
        flags.push(format!("C{version}"));
    }
    let changes = !RequestDraft::is_sliding_key(key);
    let marks = changes && draft.chance(30);
    let drops = changes && draft.chance(20);
    let mut item_flags = 0;
    let mut ttl = None;
    if marks {
        flags.push("I".into());
    }
    if drops {
        flags.push("x".into());
        if draft.chance(30) {
            item_flags = draft.random.u32(..);
            flags.push(format!("F{item_flags}"));
        }
    }
    if (marks || drops) && draft.chance(40) {
        let given = draft.plain_ttl();
        flags.push(format!("T{}", seconds(given)));
        ttl = Some(given);
    }
    draft.random.shuffle(&mut flags);
    line.begin("md", batch);
    line.finish(&flags, batch);
    let step = ModelStep::for_key(key, move |old, context| {
        let Some(old) = old else { return ExpectedReply::new(line.reply_without_record("NF", &flags), None) };
        if compare.is_some_and(|version| !context.has_version(old, version)) {
            return ExpectedReply::new(line.reply_without_record("EX", &flags), Some(old.clone()));
        }
        let mut after = None;
        if marks || drops {
            let mut item = old.clone();
            if drops {
                item =
                    ModelItem { flags: item_flags, version: old.version, ..ModelItem::new(Arc::default()) };
            }
            if let Some(ttl) = ttl {
                item.expiry = ttl.resolve(context.now);
            }
            if marks {
                item.version = Some(context.versions.new_unshown());
                (item.stale, item.token_sent) = (true, false);
            }
            after = Some(item);
        }
        if is_quiet {
            ExpectedReply::text("", after)
        } else {
            ExpectedReply::new(line.reply_without_record("HD", &flags), after)
        }
    });
    batch.steps.push(step.or_refusal("SERVER_ERROR out of memory\r\n", RecordAfterRefusal::Unknown));
}

fn count(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key() / 4 * 4;
    let line = MetaRequestLine::new(draft, key);
    let mut flags = flags(draft, &line, &["v", "t", "c"]);
    let is_quiet = draft.chance(20) && draft.is_never_full();
    if is_quiet {
        flags.push("q".into());
    }
    let up = draft.chance(60);
    if !up || draft.chance(20) {
        flags.push(if up { "MI" } else { "MD" }.into());
    }
    let mut delta = 1;
    if draft.chance(50) {
        delta = draft.one_of(&[0, 1, 1000, u64::MAX]);
        flags.push(format!("D{delta}"));
    }
    let mut vivify = None;
    // If the server may evict or refuse, it is unknown whether this request creates the record.
    if draft.is_never_full() && draft.chance(40) {
        let initial = if draft.chance(50) { draft.random.u64(..1000) } else { 0 };
        let ttl = draft.one_of(&[0, 30, 300]);
        flags.push(format!("N{ttl}"));
        if initial > 0 {
            flags.push(format!("J{initial}"));
        }
        vivify = Some((initial, RequestTtl::Plain(ttl)));
    }
    let compare = draft.chance(10).then(|| draft.version(key));
    if let Some(version) = compare {
        flags.push(format!("C{version}"));
    }
    draft.random.shuffle(&mut flags);
    let shows = !is_quiet && flags.iter().any(|flag| flag == "c");
    let count = CountOperation { up, delta, vivify, touch: None, compare, shows };
    line.begin("ma", batch);
    line.finish(&flags, batch);
    let step = ModelStep::for_key(key, move |old, context| {
        let (number, item) = match count.apply(old, context) {
            CountOutcome::Number(number, item) => (number, item),
            CountOutcome::NotFound => {
                return ExpectedReply::new(line.reply_without_record("NF", &flags), None);
            }
            CountOutcome::Exists => {
                return ExpectedReply::new(line.reply_without_record("EX", &flags), old.cloned());
            }
            CountOutcome::NoNumber => {
                let reply = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
                return ExpectedReply::text(reply, old.cloned());
            }
        };
        if is_quiet {
            return ExpectedReply::text("", Some(item));
        }
        let text = number.to_string();
        let has_value = flags.iter().any(|flag| flag == "v");
        let head = if has_value { format!("VA {}", text.len()) } else { "HD".into() };
        let mut reply = vec![ReplyPiece::Bytes(head.into_bytes())];
        for flag in &flags {
            match (flag.as_str(), item.version) {
                ("t", _) => {
                    reply.push(ReplyPiece::Bytes(
                        format!(" t{}", item.expiry.remaining_seconds(context.now)).into_bytes(),
                    ));
                }
                ("c", Some(token)) => {
                    reply.extend([ReplyPiece::Bytes(b" c".to_vec()), ReplyPiece::Version(token)]);
                }
                _ => line.echo(flag, &mut reply),
            }
        }
        let end = if has_value { format!("\r\n{text}\r\n") } else { "\r\n".into() };
        reply.push(ReplyPiece::Bytes(end.into_bytes()));
        ExpectedReply::new(reply, Some(item))
    });
    batch.steps.push(step.or_refusal("SERVER_ERROR out of memory\r\n", RecordAfterRefusal::Unchanged));
}

fn inspect(draft: &mut RequestDraft<'_>, batch: &mut RequestBatch) {
    let key = draft.key();
    let name = draft.keys.name(key);
    batch.bytes.extend_from_slice(&[b"me ", &name[..], b"\r\n"].concat());
    batch.steps.push(ModelStep::for_key(key, move |old, context| {
        let Some(old) = old else { return ExpectedReply::text("EN\r\n", None) };
        let mut item = old.clone();
        let left = item.expiry.remaining_seconds(context.now);
        let size = 59 + name.len() + item.value.len() + if item.flags == 0 { 0 } else { 4 };
        let mut end = format!(" size={size}");
        if let ItemExpiry::Sliding { seconds, .. } = item.expiry {
            end += &format!(" sliding={seconds}");
        }
        let reply = vec![
            ReplyPiece::Bytes([b"ME ", &name[..], format!(" exp={left} la=").as_bytes()].concat()),
            ReplyPiece::Digits,
            ReplyPiece::Bytes(b" cas=".to_vec()),
            ReplyPiece::Version(context.version_of(&mut item)),
            ReplyPiece::Bytes(b" fetch=".to_vec()),
            ReplyPiece::Word,
            ReplyPiece::Bytes(b" cls=".to_vec()),
            ReplyPiece::Digits,
            ReplyPiece::Bytes(format!("{end}\r\n").into_bytes()),
        ];
        ExpectedReply::new(reply, Some(item))
    }));
}
