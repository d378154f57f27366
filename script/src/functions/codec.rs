//! Defines text encodings and compression.

use crate::context::ScriptContext;
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use flate2::Compression;
use flate2::read::{DeflateDecoder, DeflateEncoder, GzDecoder, GzEncoder, ZlibDecoder, ZlibEncoder};
use mlua::{Lua, LuaString, Table, Value};
use std::io::Read;
use std::sync::Arc;

/// The base64 of scripts. Padding is optional, and the excess bits of an incomplete group are
/// dropped.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

fn hex_digit(nibble: u8) -> u8 {
    b"0123456789abcdef"[usize::from(nibble & 15)]
}

fn nibble(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

fn url(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for &byte in text {
        if byte.is_ascii_alphanumeric() || b"_-.~".contains(&byte) {
            out.push(byte);
        } else {
            out.extend_from_slice(&[b'%', hex_digit(byte >> 4), hex_digit(byte)]);
        }
    }
    out
}

fn from_url(text: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let [byte, behind @ ..] = rest {
        rest = behind;
        match (byte, behind) {
            (b'%', [one, other, behind @ ..]) => {
                out.push(nibble(*one).unwrap_or_default() << 4 | nibble(*other).unwrap_or_default());
                rest = behind;
            }
            // A `%` without two digits ends the text.
            (b'%', _) => break,
            (b'+', _) => out.push(b' '),
            _ => out.push(*byte),
        }
    }
    out
}

fn from_base64(text: &[u8]) -> Vec<u8> {
    let is_symbol = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let mut symbols: Vec<u8> =
        text.iter().copied().take_while(|&byte| byte != b'=').filter(is_symbol).collect();
    // A single symbol has fewer bits than a byte, so it is dropped.
    if symbols.len() % 4 == 1 {
        symbols.pop();
    }
    BASE64.decode(symbols).unwrap_or_default()
}

fn from_hex(text: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = text.iter().filter_map(|&digit| nibble(digit)).collect();
    digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect()
}

fn quote(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for &byte in text {
        if byte == b'=' || !(0x20..=0x7E).contains(&byte) {
            let upper = |nibble: u8| hex_digit(nibble).to_ascii_uppercase();
            out.extend_from_slice(&[b'=', upper(byte >> 4), upper(byte)]);
        } else {
            out.push(byte);
        }
    }
    out
}

fn from_quote(text: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let [byte, behind @ ..] = rest {
        rest = match (byte, behind) {
            (b'=', [b'\r', b'\n', behind @ ..] | [b'\n', behind @ ..]) => behind,
            (b'=', [one, other, behind @ ..]) => {
                out.push(nibble(*one).unwrap_or_default() << 4 | nibble(*other).unwrap_or_default());
                behind
            }
            (b'=', _) => break,
            _ => {
                out.push(*byte);
                behind
            }
        };
    }
    out
}

/// Reads all bytes of a reader. Returns `None` if the data is damaged. Fails if the result exceeds
/// the memory limit of an interpreter.
fn all(context: &ScriptContext, reader: impl Read) -> mlua::Result<Option<Vec<u8>>> {
    let (len_max, mut out) = (context.options.memory_max as u64, Vec::new());
    match reader.take(len_max + 1).read_to_end(&mut out) {
        Ok(_) if out.len() as u64 > len_max => {
            Err(mlua::Error::MemoryError("the text does not fit into memory".into()))
        }
        Ok(_) => Ok(Some(out)),
        Err(_) => Ok(None),
    }
}

pub(super) fn define(lua: &Lua, context: &Arc<ScriptContext>, kyoto: &Table) -> mlua::Result<()> {
    let of = Arc::clone(context);
    let codec = move |lua: &Lua, (mode, text): (LuaString, LuaString)| -> mlua::Result<Value> {
        let (mode, text, level) = (mode.as_bytes(), text.as_bytes(), Compression::default());
        let text: &[u8] = &text;
        let out = match &*mode {
            b"url" => Some(url(text)),
            b"~url" => Some(from_url(text)),
            b"base" => Some(BASE64.encode(text).into_bytes()),
            b"~base" => Some(from_base64(text)),
            b"hex" => Some(text.iter().flat_map(|byte| [hex_digit(byte >> 4), hex_digit(*byte)]).collect()),
            b"~hex" => Some(from_hex(text)),
            b"quote" => Some(quote(text)),
            b"~quote" => Some(from_quote(text)),
            b"zlib" => all(&of, DeflateEncoder::new(text, level))?,
            b"~zlib" => all(&of, DeflateDecoder::new(text))?,
            b"deflate" => all(&of, ZlibEncoder::new(text, level))?,
            b"~deflate" => all(&of, ZlibDecoder::new(text))?,
            b"gzip" => all(&of, GzEncoder::new(text, level))?,
            b"~gzip" => all(&of, GzDecoder::new(text))?,
            _ => None,
        };
        Ok(match out {
            Some(out) => Value::String(lua.create_string(out)?),
            None => Value::Nil,
        })
    };
    kyoto.set("codec", lua.create_function(codec)?)
}
