//! Defines functions on text: pieces, patterns, edit distances.

use crate::arguments::TextArgument;
use crate::context::ScriptContext;
use mlua::{Lua, LuaString, Table, Value};
use regex::bytes::{Regex, RegexBuilder};
use std::sync::Arc;
use todana::kyoto::translate;

/// The maximum memory of a compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// The maximum length of a pattern, in bytes.
const PATTERN_LEN_MAX: usize = 64 << 10;

fn split(lua: &Lua, (text, delimiters): (LuaString, TextArgument)) -> mlua::Result<Table> {
    let delimiters = delimiters.0.map_or(vec![0], |delimiters| delimiters.as_bytes().to_vec());
    let pieces = lua.create_table()?;
    let mut is_delimiter = [false; 256];
    delimiters.iter().for_each(|&byte| is_delimiter[usize::from(byte)] = true);
    for piece in text.as_bytes().split(|&byte| is_delimiter[usize::from(byte)]) {
        pieces.push(lua.create_string(piece)?)?;
    }
    Ok(pieces)
}

fn place_of(text: &[u8], piece: &[u8]) -> Option<usize> {
    // This search takes time linear in the length of the text.
    memchr::memmem::find(text, piece)
}

/// Fails if a result of this length exceeds the memory limit of an interpreter.
fn check_len(context: &ScriptContext, len: usize) -> mlua::Result<()> {
    if len > context.options.memory_max {
        return Err(mlua::Error::MemoryError("the text does not fit into memory".into()));
    }
    Ok(())
}

fn replace(context: &ScriptContext, text: &[u8], piece: &[u8], other: &[u8]) -> mlua::Result<Vec<u8>> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some(at) = place_of(rest, piece).filter(|_| !piece.is_empty()) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(other);
        check_len(context, out.len())?;
        rest = &rest[at + piece.len()..];
    }
    out.extend_from_slice(rest);
    Ok(out)
}

/// Compiles an extended POSIX pattern. Clients write the same patterns for `match_regex`. Returns
/// `None` if the pattern is invalid.
pub(crate) fn regex(pattern: &[u8]) -> Option<Regex> {
    if pattern.len() > PATTERN_LEN_MAX {
        return None;
    }
    RegexBuilder::new(&translate(pattern)).size_limit(PATTERN_BYTES_MAX).build().ok()
}

/// Replaces all matches. `$1` to `$9` are groups, and `$&` is the entire match. An empty match is
/// the last match that is replaced.
fn replace_regex(context: &ScriptContext, regex: &Regex, text: &[u8], other: &[u8]) -> mlua::Result<Vec<u8>> {
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(groups) = regex.captures_at(text, at).filter(|_| at < text.len() || at == 0) {
        let Some(whole) = groups.get(0) else { break };
        out.extend_from_slice(&text[at..whole.start()]);
        let mut rest = other;
        while let [symbol, behind @ ..] = rest {
            rest = behind;
            match (symbol, behind) {
                (b'$', [b'&', behind @ ..]) => {
                    out.extend_from_slice(whole.as_bytes());
                    rest = behind;
                }
                (b'$', [digit, behind @ ..]) if digit.is_ascii_digit() => {
                    let group = groups.get(usize::from(digit - b'0'));
                    out.extend_from_slice(group.map_or(b"", |group| group.as_bytes()));
                    rest = behind;
                }
                // A `$` makes any other symbol after it literal.
                (b'$', [other, behind @ ..]) => {
                    out.push(*other);
                    rest = behind;
                }
                (b'$', []) => {}
                _ => out.push(*symbol),
            }
        }
        check_len(context, out.len())?;
        context.deadline.check()?;
        at = whole.end();
        if whole.is_empty() {
            break;
        }
    }
    out.extend_from_slice(&text[at..]);
    Ok(out)
}

/// Returns the minimum number of symbols that must be inserted, removed or replaced to turn one
/// text into the other.
fn distance<T: PartialEq>(context: &ScriptContext, one: &[T], other: &[T]) -> mlua::Result<usize> {
    check_len(context, other.len() * size_of::<usize>())?;
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, symbol) in one.iter().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], above + 1);
        for (column, other) in other.iter().enumerate() {
            let replaced = corner + usize::from(symbol != other);
            corner = row[column + 1];
            row[column + 1] = replaced.min(corner + 1).min(row[column] + 1);
        }
        context.deadline.check()?;
    }
    Ok(row[other.len()])
}

pub(super) fn define(lua: &Lua, context: &Arc<ScriptContext>, kyoto: &Table) -> mlua::Result<()> {
    kyoto.set("split", lua.create_function(split)?)?;
    let of = Arc::clone(context);
    type ReplaceArguments = (LuaString, LuaString, TextArgument);
    let strstr = move |lua: &Lua, (text, piece, other): ReplaceArguments| {
        let (text, piece) = (text.as_bytes(), piece.as_bytes());
        match other.0 {
            None => Ok(Value::Number(place_of(&text, &piece).map_or(0, |at| at + 1) as f64)),
            Some(other) => {
                let text = replace(&of, &text, &piece, &other.as_bytes())?;
                lua.create_string(text).map(Value::String)
            }
        }
    };
    kyoto.set("strstr", lua.create_function(strstr)?)?;
    let begins =
        |_: &Lua, (text, piece): (LuaString, LuaString)| Ok(text.as_bytes().starts_with(&piece.as_bytes()));
    kyoto.set("strfwm", lua.create_function(begins)?)?;
    let ends =
        |_: &Lua, (text, piece): (LuaString, LuaString)| Ok(text.as_bytes().ends_with(&piece.as_bytes()));
    kyoto.set("strbwm", lua.create_function(ends)?)?;
    let of = Arc::clone(context);
    let match_or_replace = move |lua: &Lua, (text, pattern, other): ReplaceArguments| {
        let regex = regex(&pattern.as_bytes());
        match (regex, other.0) {
            (None, None) => Ok(Value::Boolean(false)),
            // If the pattern is invalid or empty, nothing is replaced.
            (None, Some(_)) => Ok(Value::String(text)),
            (Some(_), Some(_)) if pattern.as_bytes().is_empty() => Ok(Value::String(text)),
            (Some(regex), None) => Ok(Value::Boolean(regex.is_match(&text.as_bytes()))),
            (Some(regex), Some(other)) => {
                let text = replace_regex(&of, &regex, &text.as_bytes(), &other.as_bytes())?;
                lua.create_string(text).map(Value::String)
            }
        }
    };
    kyoto.set("regex", lua.create_function(match_or_replace)?)?;
    let of = Arc::clone(context);
    let levdist = move |_: &Lua, (one, other, utf): (LuaString, LuaString, Option<bool>)| {
        if utf.unwrap_or(false) {
            let symbols = |text: &LuaString| text.to_string_lossy().chars().collect::<Vec<_>>();
            return distance(&of, &symbols(&one), &symbols(&other));
        }
        distance(&of, &one.as_bytes(), &other.as_bytes())
    };
    kyoto.set("levdist", lua.create_function(levdist)?)
}
