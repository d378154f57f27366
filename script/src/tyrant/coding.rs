//! `_codec`, `_hash` and `_ucs`. Compressions of the original that no current library has (TCBS,
//! bzip2) are absent: `_codec` returns nil.

use super::records::Bytes;
use crate::arguments::elements;
use crate::context::ScriptContext;
use md5::{Digest, Md5};
use mlua::{Function, Lua, LuaString, Value};
use std::fmt::Write;
use std::sync::Arc;

pub(super) fn define(lua: &Lua, context: &Arc<ScriptContext>, of_kyoto: Function) -> mlua::Result<()> {
    let globals = lua.globals();
    let memory_max = context.options.memory_max;
    let codec = move |lua: &Lua, (mode, text): (LuaString, Bytes)| -> mlua::Result<Value> {
        let coded = match &*mode.as_bytes() {
            b"url" => url(&text.0),
            b"pack" => packed(&text.0),
            b"~pack" => match unpacked(&text.0, memory_max) {
                Some(text) => text,
                None => return Err(mlua::Error::MemoryError("the text does not fit into memory".into())),
            },
            b"xml" => escaped(&text.0),
            b"~xml" => unescaped(&text.0),
            _ => return of_kyoto.call((&mode, lua.create_string(&text.0)?)),
        };
        lua.create_string(coded).map(Value::String)
    };
    globals.set("_codec", lua.create_function(codec)?)?;
    let hash = |lua: &Lua, (mode, text): (LuaString, Bytes)| {
        Ok(match &*mode.as_bytes() {
            b"md5" => {
                let mut digits = String::new();
                for byte in Md5::digest(&text.0) {
                    let _ = write!(digits, "{byte:02x}");
                }
                Value::String(lua.create_string(digits)?)
            }
            b"md5raw" => Value::String(lua.create_string(Md5::digest(&text.0).as_slice())?),
            b"crc32" => Value::Number(f64::from(crc32fast::hash(&text.0))),
            _ => Value::Nil,
        })
    };
    globals.set("_hash", lua.create_function(hash)?)?;
    globals.set("_ucs", lua.create_function(ucs)?)
}

/// `_ucs`: the numbers of a text's symbols, or the text of such numbers.
fn ucs(lua: &Lua, given: Value) -> mlua::Result<Value> {
    match given {
        Value::Table(numbers) => {
            let mut text = String::new();
            for number in elements(&numbers) {
                let number = lua.coerce_number(number?)?.unwrap_or_default() as u32;
                text.push(char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            lua.create_string(text).map(Value::String)
        }
        Value::String(text) => {
            let numbers = lua.create_table()?;
            for symbol in text.to_string_lossy().chars() {
                numbers.push(u32::from(symbol))?;
            }
            Ok(Value::Table(numbers))
        }
        _ => Ok(Value::Nil),
    }
}

fn url(text: &[u8]) -> Vec<u8> {
    let mut coded = Vec::new();
    for &byte in text {
        if byte.is_ascii_alphanumeric() || b"_-.!~*'()".contains(&byte) {
            coded.push(byte);
        } else {
            coded.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
    coded
}

/// PackBits: a run of equal bytes is a negative count and the byte; other bytes follow their count.
fn packed(text: &[u8]) -> Vec<u8> {
    let (mut coded, mut rest) = (Vec::new(), text);
    while let [first, ..] = rest {
        let run = rest.iter().take(128).take_while(|byte| *byte == first).count();
        if run > 1 {
            coded.extend_from_slice(&[(1 - run as i32) as u8, *first]);
            rest = &rest[run..];
            continue;
        }
        let pairs = rest.windows(2).take(127).take_while(|pair| pair[0] != pair[1]).count();
        let len = if pairs + 1 == rest.len() { pairs + 1 } else { pairs.max(1) };
        coded.push(len as u8 - 1);
        coded.extend_from_slice(&rest[..len]);
        rest = &rest[len..];
    }
    coded
}

fn unpacked(coded: &[u8], len_max: usize) -> Option<Vec<u8>> {
    let (mut text, mut rest) = (Vec::new(), coded);
    while let [count, after @ ..] = rest {
        let count = *count as i8;
        let used = if count >= 0 {
            let len = (count as usize + 1).min(after.len());
            text.extend_from_slice(&after[..len]);
            len
        } else {
            let Some(&byte) = after.first() else { break };
            text.resize(text.len() + 1 + usize::from(count.unsigned_abs()), byte);
            1
        };
        if text.len() > len_max {
            return None;
        }
        rest = &after[used..];
    }
    Some(text)
}

const ENTITIES: [(u8, &[u8]); 4] = [(b'&', b"&amp;"), (b'<', b"&lt;"), (b'>', b"&gt;"), (b'"', b"&quot;")];

fn escaped(text: &[u8]) -> Vec<u8> {
    let mut coded = Vec::new();
    for &byte in text {
        match ENTITIES.iter().find(|(plain, _)| *plain == byte) {
            Some((_, entity)) => coded.extend_from_slice(entity),
            None => coded.push(byte),
        }
    }
    coded
}

fn unescaped(text: &[u8]) -> Vec<u8> {
    let (mut plain, mut rest) = (Vec::new(), text);
    while let [first, after @ ..] = rest {
        match ENTITIES.iter().find(|(_, entity)| rest.starts_with(entity)) {
            Some((byte, entity)) => {
                plain.push(*byte);
                rest = &rest[entity.len()..];
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::{escaped, packed, unescaped, unpacked, url};

    #[test]
    fn coded_texts_are_restored() {
        for text in
            [&b""[..], b"a", b"aa", b"ab", b"aab", b"abb", b"abcabbbbbbc", &[7; 1000], b"<a&b>\"&amp;"]
        {
            assert_eq!(unpacked(&packed(text), 1 << 20).as_deref(), Some(text));
            assert_eq!(unescaped(&escaped(text)), text);
        }
        assert_eq!(packed(&[5; 200]).len(), 4);
        assert_eq!(unpacked(&packed(&[5; 200]), 100), None);
        assert_eq!(unpacked(b"\x81", 100).as_deref(), Some(&b""[..]));
        assert_eq!(url(b"a b*/"), b"a%20b*%2F");
    }
}
