//! The meta commands.

use super::draft::{Batch, Draft};
use super::model::{
    Context, Count, Counted, Expiry, Item, Left, Mode, Piece, Play, Step, Store, Stored, Ttl,
};
use std::sync::Arc;

const FULL: &str = "SERVER_ERROR out of memory storing object\r\n";
const FULL_IN_READ: &str = "SERVER_ERROR Out of memory during read\r\n";

/// Adds a request.
pub(super) fn request(draft: &mut Draft<'_>, batch: &mut Batch) {
    batch.requests += 1;
    match draft.random.u32(..20) {
        0..=8 => get(draft, batch),
        9..=14 => store(draft, batch),
        15 | 16 => delete(draft, batch),
        17 | 18 => count(draft, batch),
        _ if draft.chance(30) => inspect(draft, batch),
        _ => super::text::fence(batch),
    }
}

/// The key as it is sent, and what flags k and O show of the request, in their order.
struct Line {
    name: Vec<u8>,
    base64: bool,
    opaque: Option<u64>,
}

impl Line {
    fn new(draft: &mut Draft<'_>, key: usize) -> Line {
        let name = draft.keys.name(key);
        // Longer ones are no keys any more.
        let base64 = draft.chance(15) && name.len() <= 180;
        let name = if base64 { encode(&name) } else { name };
        let opaque = draft.chance(30).then(|| draft.serial());
        Line { name, base64, opaque }
    }

    /// The beginning of the request.
    fn open(&self, verb: &str, batch: &mut Batch) {
        batch.bytes.extend_from_slice(verb.as_bytes());
        batch.bytes.push(b' ');
        batch.bytes.extend_from_slice(&self.name);
    }

    /// The rest of it.
    fn close(&self, flags: &[String], batch: &mut Batch) {
        if self.base64 {
            batch.bytes.extend_from_slice(b" b");
        }
        for flag in flags {
            batch.bytes.extend_from_slice(format!(" {flag}").as_bytes());
        }
        batch.bytes.extend_from_slice(b"\r\n");
    }

    /// The reply to the flags k and O.
    fn echo(&self, flag: &str, reply: &mut Vec<Piece>) {
        if flag == "k" {
            let end: &[u8] = if self.base64 { b" b" } else { b"" };
            reply.push(Piece::Bytes([b" k", &self.name[..], end].concat()));
        } else if flag.starts_with('O') {
            reply.push(Piece::Bytes(format!(" {flag}").into_bytes()));
        }
    }

    /// A reply that shows nothing of a record.
    fn bare(&self, code: &str, flags: &[String]) -> Vec<Piece> {
        let mut reply = vec![Piece::Bytes(code.into())];
        flags.iter().for_each(|flag| self.echo(flag, &mut reply));
        reply.push(Piece::Bytes(b"\r\n".to_vec()));
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

/// Some of the flags, in any order; k and O among them.
fn flags(draft: &mut Draft<'_>, line: &Line, known: &[&str]) -> Vec<String> {
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

fn seconds(ttl: Ttl) -> i64 {
    match ttl {
        Ttl::Plain(seconds) => seconds,
        Ttl::Sliding(seconds) => seconds as i64,
    }
}

fn number(flags: &[String], letter: char) -> Option<i64> {
    flags.iter().find_map(|flag| flag.strip_prefix(letter)?.parse().ok())
}

fn get(draft: &mut Draft<'_>, batch: &mut Batch) {
    let key = draft.key();
    let mut line = Line::new(draft, key);
    let is_quiet = draft.chance(25);
    // Quiet or not, it must be clear which request a reply belongs to.
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
    if !Draft::may_slide(key) {
        if draft.chance(10) {
            flags.push(format!("R{}", draft.random.u32(..900)));
        }
        if draft.chance(10) && draft.is_exact() {
            flags.push(format!("N{}", draft.random.u32(..100)));
        }
    }
    // The transcripts cover N together with T for a new record.
    let creates = flags.iter().any(|flag| flag.starts_with('N'));
    if draft.chance(10) && !creates {
        flags.push(format!("T{}", seconds(draft.plain_ttl())));
    } else if draft.slides && Draft::may_slide(key) && draft.chance(15) {
        flags.push(format!("A{}", draft.random.u32(5..300)));
    }
    draft.random.shuffle(&mut flags);
    if draft.chance(5) {
        flags.push(format!("C{}", draft.version(key)));
    }
    batch.replies_len += draft.reply_len(key);
    line.open("mg", batch);
    line.close(&flags, batch);
    batch.steps.push(Step::on(key, move |old, context| play_get(&line, &flags, is_quiet, old, context)));
}

fn play_get(
    line: &Line,
    flags: &[String],
    is_quiet: bool,
    old: Option<&Item>,
    context: &mut Context<'_>,
) -> Play {
    let now = context.now;
    let vivify = number(flags, 'N').map(Ttl::Plain);
    let has = |flag: &str| flags.iter().any(|known| known == flag);
    let (mut item, created) = match (old, vivify) {
        (Some(old), _) => (old.clone(), false),
        (None, Some(ttl)) => {
            let version = Some(context.versions.hidden());
            let expiry = ttl.resolve(now);
            (Item { expiry, version, token_sent: true, ..Item::new(Arc::default()) }, true)
        }
        (None, None) if is_quiet => return Play::text("", None),
        (None, None) => return Play::new(line.bare("EN", flags), None),
    };
    // A request with a new time has not extended the old one before.
    let touches = flags.iter().any(|flag| flag.starts_with(['T', 'A']));
    if !has("u") && !created && !touches {
        item.expiry = item.expiry.accessed(now);
    }
    let value = Arc::clone(&item.value);
    let mut wins_late = false;
    let mut tail = Vec::new();
    let mut known = false;
    // In their order: flags after T see the new time.
    for flag in flags {
        let (letter, rest) = flag.split_at(1);
        match letter {
            "s" => tail.push(Piece::Bytes(format!(" s{}", value.len()).into_bytes())),
            "f" => tail.push(Piece::Bytes(format!(" f{}", item.flags).into_bytes())),
            "t" => tail.push(Piece::Bytes(format!(" t{}", item.expiry.left(now)).into_bytes())),
            "c" => {
                tail.push(Piece::Bytes(b" c".to_vec()));
                tail.push(Piece::Version(context.show(&mut item)));
            }
            "T" if !created => item.expiry = Ttl::Plain(rest.parse().unwrap_or(0)).resolve(now),
            "A" if !created => item.expiry = Ttl::Sliding(rest.parse().unwrap_or(1)).resolve(now),
            "R" if item.expiry != Expiry::Never && !created => {
                wins_late |= item.expiry.left(now) < rest.parse().unwrap_or(0);
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
            tail.push(Piece::Bytes(mark.into()));
        }
    }
    tail.push(Piece::Bytes(b"\r\n".to_vec()));
    let mut reply = vec![Piece::Bytes(b"HD".to_vec())];
    if has("v") && !known {
        reply = vec![Piece::Bytes(format!("VA {}", value.len()).into_bytes())];
        tail.extend([Piece::Value(value), Piece::Bytes(b"\r\n".to_vec())]);
    }
    reply.append(&mut tail);
    Play::new(reply, Some(item))
}

fn store(draft: &mut Draft<'_>, batch: &mut Batch) {
    let key = draft.key();
    let line = Line::new(draft, key);
    let mut flags = flags(draft, &line, &["s", "c"]);
    let (letter, mode) = draft.one_of(&[
        ('S', Mode::Set),
        ('S', Mode::Set),
        ('E', Mode::Add),
        ('A', Mode::Append),
        ('P', Mode::Prepend),
        ('R', Mode::Replace),
    ]);
    let joins = matches!(mode, Mode::Append | Mode::Prepend);
    let value = if joins { draft.piece(key) } else { draft.value(key) };
    if letter != 'S' || draft.chance(50) {
        flags.push(format!("M{letter}"));
    }
    let mut item_flags = 0;
    if draft.chance(30) {
        item_flags = draft.random.u32(..);
        flags.push(format!("F{item_flags}"));
    }
    let mut ttl = Ttl::Plain(0);
    if draft.slides && Draft::may_slide(key) && draft.chance(30) {
        ttl = Ttl::Sliding(draft.random.u64(5..300));
        flags.push(format!("A{}", seconds(ttl)));
    } else if draft.chance(40) {
        ttl = draft.plain_ttl();
        flags.push(format!("T{}", seconds(ttl)));
    }
    let compare = draft.chance(15).then(|| draft.version(key));
    if let Some(version) = compare {
        flags.push(format!("C{version}"));
    }
    let stale_if_older = compare.is_some() && !Draft::may_slide(key) && draft.chance(30);
    if stale_if_older {
        flags.push("I".into());
    }
    let vivify =
        (joins && draft.is_exact() && draft.chance(30)).then(|| Ttl::Plain(draft.random.i64(0..300)));
    if let Some(ttl) = vivify {
        flags.push(format!("N{}", seconds(ttl)));
    }
    let version = draft.chance(5).then(|| (1 << 40) + draft.serial());
    if let Some(version) = version {
        flags.push(format!("E{version}"));
    }
    // Where a store may be refused, its silence could be taken for that of another.
    let is_quiet = draft.chance(20) && draft.is_exact();
    if is_quiet {
        flags.push("q".into());
    }
    draft.random.shuffle(&mut flags);
    let shows = !is_quiet && flags.iter().any(|flag| flag == "c");
    line.open("ms", batch);
    batch.bytes.extend_from_slice(format!(" {}", value.len()).as_bytes());
    line.close(&flags, batch);
    batch.bytes.extend_from_slice(&value);
    batch.bytes.extend_from_slice(b"\r\n");
    let sent = value.len();
    let store =
        Store { mode, value, flags: item_flags, ttl, compare, shows, version, vivify, stale_if_older };
    let step = Step::on(key, move |old, context| {
        let (outcome, after) = store.play(old, context);
        let (code, token, len) = match outcome {
            Stored::Yes(token, len) => ("HD", token, len),
            Stored::No => ("NS", None, sent),
            Stored::Exists => ("EX", None, sent),
            Stored::NotFound => ("NF", None, sent),
        };
        if code == "HD" && is_quiet {
            return Play::text("", after);
        }
        let mut reply = vec![Piece::Bytes(code.into())];
        for flag in &flags {
            match (flag.as_str(), token) {
                ("s", _) => reply.push(Piece::Bytes(format!(" s{len}").into_bytes())),
                ("c", Some(token)) => {
                    reply.extend([Piece::Bytes(b" c".to_vec()), Piece::Version(token)]);
                }
                ("c", None) => reply.push(Piece::Bytes(b" c0".to_vec())),
                _ => line.echo(flag, &mut reply),
            }
        }
        reply.push(Piece::Bytes(b"\r\n".to_vec()));
        Play::new(reply, after)
    });
    let left = if mode == Mode::Set && compare.is_none() { Left::Nothing } else { Left::Unknown };
    batch.steps.push(step.or(FULL, left).or(FULL_IN_READ, Left::Unknown));
}

fn delete(draft: &mut Draft<'_>, batch: &mut Batch) {
    let key = draft.key();
    let line = Line::new(draft, key);
    let mut flags = flags(draft, &line, &[]);
    let is_quiet = draft.chance(20) && draft.is_exact();
    if is_quiet {
        flags.push("q".into());
    }
    let compare = draft.chance(15).then(|| draft.version(key));
    if let Some(version) = compare {
        flags.push(format!("C{version}"));
    }
    let changes = !Draft::may_slide(key);
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
    line.open("md", batch);
    line.close(&flags, batch);
    let step = Step::on(key, move |old, context| {
        let Some(old) = old else { return Play::new(line.bare("NF", &flags), None) };
        if compare.is_some_and(|version| !context.has_version(old, version)) {
            return Play::new(line.bare("EX", &flags), Some(old.clone()));
        }
        let mut after = None;
        if marks || drops {
            let mut item = old.clone();
            if drops {
                item = Item { flags: item_flags, version: old.version, ..Item::new(Arc::default()) };
            }
            if let Some(ttl) = ttl {
                item.expiry = ttl.resolve(context.now);
            }
            if marks {
                item.version = Some(context.versions.hidden());
                (item.stale, item.token_sent) = (true, false);
            }
            after = Some(item);
        }
        if is_quiet { Play::text("", after) } else { Play::new(line.bare("HD", &flags), after) }
    });
    batch.steps.push(step.or("SERVER_ERROR out of memory\r\n", Left::Unknown));
}

fn count(draft: &mut Draft<'_>, batch: &mut Batch) {
    let key = draft.key() / 4 * 4;
    let line = Line::new(draft, key);
    let mut flags = flags(draft, &line, &["v", "t", "c"]);
    let is_quiet = draft.chance(20) && draft.is_exact();
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
    // Where records go unseen, it is unknown whether this one was created.
    if draft.is_exact() && draft.chance(40) {
        let initial = if draft.chance(50) { draft.random.u64(..1000) } else { 0 };
        let ttl = draft.one_of(&[0, 30, 300]);
        flags.push(format!("N{ttl}"));
        if initial > 0 {
            flags.push(format!("J{initial}"));
        }
        vivify = Some((initial, Ttl::Plain(ttl)));
    }
    let compare = draft.chance(10).then(|| draft.version(key));
    if let Some(version) = compare {
        flags.push(format!("C{version}"));
    }
    draft.random.shuffle(&mut flags);
    let shows = !is_quiet && flags.iter().any(|flag| flag == "c");
    let count = Count { up, delta, vivify, touch: None, compare, shows };
    line.open("ma", batch);
    line.close(&flags, batch);
    let step = Step::on(key, move |old, context| {
        let (number, item) = match count.play(old, context) {
            Counted::Number(number, item) => (number, item),
            Counted::NotFound => return Play::new(line.bare("NF", &flags), None),
            Counted::Exists => return Play::new(line.bare("EX", &flags), old.cloned()),
            Counted::NoNumber => {
                let reply = "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
                return Play::text(reply, old.cloned());
            }
        };
        if is_quiet {
            return Play::text("", Some(item));
        }
        let text = number.to_string();
        let has_value = flags.iter().any(|flag| flag == "v");
        let head = if has_value { format!("VA {}", text.len()) } else { "HD".into() };
        let mut reply = vec![Piece::Bytes(head.into_bytes())];
        for flag in &flags {
            match (flag.as_str(), item.version) {
                ("t", _) => {
                    reply.push(Piece::Bytes(format!(" t{}", item.expiry.left(context.now)).into_bytes()));
                }
                ("c", Some(token)) => {
                    reply.extend([Piece::Bytes(b" c".to_vec()), Piece::Version(token)]);
                }
                _ => line.echo(flag, &mut reply),
            }
        }
        let end = if has_value { format!("\r\n{text}\r\n") } else { "\r\n".into() };
        reply.push(Piece::Bytes(end.into_bytes()));
        Play::new(reply, Some(item))
    });
    batch.steps.push(step.or("SERVER_ERROR out of memory\r\n", Left::TheOld));
}

fn inspect(draft: &mut Draft<'_>, batch: &mut Batch) {
    let key = draft.key();
    let name = draft.keys.name(key);
    batch.bytes.extend_from_slice(&[b"me ", &name[..], b"\r\n"].concat());
    batch.steps.push(Step::on(key, move |old, context| {
        let Some(old) = old else { return Play::text("EN\r\n", None) };
        let mut item = old.clone();
        let left = item.expiry.left(context.now);
        let size = 59 + name.len() + item.value.len() + if item.flags == 0 { 0 } else { 4 };
        let mut end = format!(" size={size}");
        if let Expiry::Sliding { seconds, .. } = item.expiry {
            end += &format!(" sliding={seconds}");
        }
        let reply = vec![
            Piece::Bytes([b"ME ", &name[..], format!(" exp={left} la=").as_bytes()].concat()),
            Piece::Digits,
            Piece::Bytes(b" cas=".to_vec()),
            Piece::Version(context.show(&mut item)),
            Piece::Bytes(b" fetch=".to_vec()),
            Piece::Word,
            Piece::Bytes(b" cls=".to_vec()),
            Piece::Digits,
            Piece::Bytes(format!("{end}\r\n").into_bytes()),
        ];
        Play::new(reply, Some(item))
    }));
}
