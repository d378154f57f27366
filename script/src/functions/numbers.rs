//! Parses numbers in text, and computes with bits.

use super::bytes;
use crate::arguments::NumberArgument;
use mlua::{Lua, LuaString, Table, Value};

/// Parses the integer at the start of a text.
fn integer(text: &[u8]) -> f64 {
    let text = text.trim_ascii_start();
    let (is_negative, digits) = sign(text);
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    let number =
        digits.fold(0i64, |number, byte| number.saturating_mul(10).saturating_add(i64::from(byte - b'0')));
    (if is_negative { -number } else { number }) as f64
}

fn sign(text: &[u8]) -> (bool, &[u8]) {
    match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    }
}

/// Returns the number at the start of a text, and the rest.
fn real(text: &[u8]) -> (f64, &[u8]) {
    let (is_negative, rest) = sign(text.trim_ascii_start());
    let signed = |number: f64| if is_negative { -number } else { number };
    for (word, number) in [(&b"inf"[..], f64::INFINITY), (b"nan", f64::NAN)] {
        if rest.len() >= 3 && rest[..3].eq_ignore_ascii_case(word) {
            return (signed(number), &rest[3..]);
        }
    }
    let count =
        |from: usize| rest[from.min(rest.len())..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut end = count(0);
    if rest.get(end) == Some(&b'.') {
        end += 1 + count(end + 1);
    }
    if matches!(rest.get(end), Some(b'e' | b'E')) {
        let signs = usize::from(matches!(rest.get(end + 1), Some(b'+' | b'-')));
        let digits = count(end + 1 + signs);
        end += if digits > 0 { 1 + signs + digits } else { 0 };
    }
    let number = std::str::from_utf8(&rest[..end]).ok().and_then(|text| text.parse().ok());
    (signed(number.unwrap_or(0.0)), &rest[end..])
}

/// Parses a number without an exponent, with an optional unit K, M, G, T, P or E (powers of 1024).
/// A number that is too large becomes the limit of 64 bits.
fn measured(text: &[u8]) -> f64 {
    let text = text.trim_ascii_start();
    let of_number = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'+' | b'-');
    let (number, rest) = text.split_at(text.iter().take_while(|byte| of_number(byte)).count());
    let (number, _) = real(number);
    let power = match rest.trim_ascii_start().first().map(u8::to_ascii_lowercase) {
        Some(b'k') => 1,
        Some(b'm') => 2,
        Some(b'g') => 3,
        Some(b't') => 4,
        Some(b'p') => 5,
        Some(b'e') => 6,
        _ => 0,
    };
    // The conversion drops the fraction, and replaces numbers out of range by the limits.
    (number * 1024f64.powi(power)) as i64 as f64
}

fn bit(_: &Lua, (mode, number, other): (LuaString, NumberArgument, NumberArgument)) -> mlua::Result<Value> {
    let word = |number: f64| number as i64 as u32;
    let (one, other) = (word(number.0.unwrap_or_default()), word(other.0.unwrap_or_default()));
    let result = match &*mode.as_bytes() {
        b"and" => one & other,
        b"or" => one | other,
        b"xor" => one ^ other,
        b"not" => !one,
        // As in the original, only the lowest five bits of the distance count.
        b"left" => one.wrapping_shl(other),
        b"right" => one.wrapping_shr(other),
        _ => one,
    };
    Ok(Value::Number(f64::from(result)))
}

pub(super) fn define(lua: &Lua, kyoto: &Table) -> mlua::Result<()> {
    kyoto.set("atoi", lua.create_function(|lua, text: Value| Ok(integer(&bytes(lua, text)?)))?)?;
    kyoto.set("atoix", lua.create_function(|lua, text: Value| Ok(measured(&bytes(lua, text)?)))?)?;
    kyoto.set("atof", lua.create_function(|lua, text: Value| Ok(real(&bytes(lua, text)?).0))?)?;
    kyoto.set("bit", lua.create_function(bit)?)
}
