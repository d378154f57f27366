//! Requests to which Todana replies differently on purpose. docs/protocol/memcached.md,
//! "Differences to memcached 1.6.45", has a row for each.

use super::request::RandomRequest;

/// Removes such requests from a session.
pub(super) fn remove_documented(session: &mut Vec<RandomRequest>) {
    session.retain(|request| !is_documented(&request.render("p00000000")));
    // The servers differ on whether a record that `mg` creates or `md` empties counts as read.
    let makes = |request: &RandomRequest| is(request, b"mg ", " N") || is(request, b"md ", " x");
    if session.iter().any(makes) {
        session.retain(|request| !is(request, b"me ", "") && !is(request, b"", " h"));
    }
    // memcached pads a number that shrinks with blanks; bytes appended later follow the blanks.
    if session.iter().any(RandomRequest::is_sent_alone) {
        let grows = |request: &RandomRequest| {
            is(request, b"append ", "") || is(request, b"prepend ", "") || is(request, b"ms ", " M")
        };
        session.retain(|request| !grows(request));
    }
}

/// Returns true if the request begins with `command` and contains `further`.
fn is(request: &RandomRequest, command: &[u8], further: &str) -> bool {
    let bytes = request.render("");
    let has = further.is_empty() || bytes.windows(further.len()).any(|part| part == further.as_bytes());
    bytes.starts_with(command) && has
}

fn is_documented(request: &[u8]) -> bool {
    let line = request.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
    let Some((&command, words)) = words.split_first() else { return false };
    match command {
        b"touch" | b"gat" | b"gats" => words.contains(&&b"-"[..]),
        b"delete" => !matches!(words, [_] | [_, b"noreply"]),
        b"mg" | b"ms" | b"md" | b"ma" | b"me" => is_documented_meta(command, words),
        _ => false,
    }
}

fn is_documented_meta(command: &[u8], words: &[&[u8]]) -> bool {
    let flags = words.get(if command == b"ms" { 2.. } else { 1.. }).unwrap_or_default();
    let has = |letter| flags.iter().any(|flag| flag[0] == letter);
    let has_long_opaque = flags.iter().any(|flag| flag[0] == b'O' && flag.len() > 32);
    flags.contains(&&b"M"[..])
        // Only Todana has this flag.
        || has(b'A')
        || command == b"me" && !flags.is_empty()
        || has(b'b') && has(b'N')
        || matches!(command, b"mg" | b"ma") && has(b't') && has(b'N')
        || (has(b't') || has(b'R')) && flags.iter().any(|flag| flag.starts_with(b"T-"))
        || flags.iter().any(|flag| flag[1..] == *b"-")
        || command == b"ma" && has(b'C')
        || has_long_opaque
}
