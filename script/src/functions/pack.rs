//! Encodes numbers as bytes in many formats.

use super::bytes;
use crate::arguments::elements;
use mlua::{Lua, LuaString, MultiValue, Table, Value};

/// A letter of a format and its count. `None` means all remaining elements.
struct FormatField {
    letter: u8,
    times: Option<usize>,
}

fn fields(format: &[u8]) -> Vec<FormatField> {
    let (mut fields, mut rest) = (Vec::new(), format);
    while let [letter, behind @ ..] = rest {
        let digits = behind.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let times = match behind.first() {
            Some(b'*') => None,
            _ if digits == 0 => Some(1),
            // Larger than the number of elements of any table.
            _ => Some(
                std::str::from_utf8(&behind[..digits])
                    .ok()
                    .and_then(|n| n.parse().ok())
                    .unwrap_or(usize::MAX),
            ),
        };
        let skipped = if times.is_none() { 1 } else { digits };
        fields.push(FormatField { letter: *letter, times });
        rest = &behind[skipped..];
    }
    fields
}

/// Converts a number to an integer, with wrapping as in the original. A negative number keeps its
/// bits.
fn whole(number: f64) -> u64 {
    if number >= 9_223_372_036_854_775_808.0 { number as u64 } else { number as i64 as u64 }
}

fn put(letter: u8, number: f64, out: &mut Vec<u8>) {
    let bits = whole(number);
    match letter {
        b'c' | b'C' => out.push(bits as u8),
        b's' | b'S' => out.extend_from_slice(&(bits as u16).to_le_bytes()),
        b'i' | b'I' => out.extend_from_slice(&(bits as u32).to_le_bytes()),
        b'l' | b'L' => out.extend_from_slice(&bits.to_le_bytes()),
        b'f' => out.extend_from_slice(&(number as f32).to_le_bytes()),
        b'd' => out.extend_from_slice(&number.to_le_bytes()),
        b'n' => out.extend_from_slice(&(bits as u16).to_be_bytes()),
        b'N' => out.extend_from_slice(&(bits as u32).to_be_bytes()),
        b'M' => out.extend_from_slice(&bits.to_be_bytes()),
        b'w' => {
            let groups = (u64::BITS - bits.leading_zeros()).div_ceil(7).max(1);
            out.extend((0..groups).rev().map(|group| {
                let bits = (bits >> (7 * group)) as u8 & 0x7F;
                if group > 0 { bits | 0x80 } else { bits }
            }));
        }
        _ => {}
    }
}

/// The letters that stand for numbers.
const KNOWN: &[u8] = b"cCsSiIlLfdnNMw";

/// Removes the number at the start of the input and returns it. Returns `None` if there are too few
/// bytes.
fn take(letter: u8, bytes: &mut &[u8]) -> Option<f64> {
    fn first<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
        let (first, rest) = bytes.split_first_chunk::<N>()?;
        *bytes = rest;
        Some(*first)
    }
    Some(match letter {
        b'c' => f64::from(i8::from_le_bytes(first(bytes)?)),
        b'C' => f64::from(u8::from_le_bytes(first(bytes)?)),
        b's' => f64::from(i16::from_le_bytes(first(bytes)?)),
        b'S' => f64::from(u16::from_le_bytes(first(bytes)?)),
        b'i' => f64::from(i32::from_le_bytes(first(bytes)?)),
        b'I' => f64::from(u32::from_le_bytes(first(bytes)?)),
        b'l' => i64::from_le_bytes(first(bytes)?) as f64,
        b'L' => u64::from_le_bytes(first(bytes)?) as f64,
        b'f' => f64::from(f32::from_le_bytes(first(bytes)?)),
        b'd' => f64::from_le_bytes(first(bytes)?),
        b'n' => f64::from(u16::from_be_bytes(first(bytes)?)),
        b'N' => f64::from(u32::from_be_bytes(first(bytes)?)),
        b'M' => u64::from_be_bytes(first(bytes)?) as f64,
        b'w' => {
            let mut number = 0u64;
            loop {
                let [byte] = first(bytes)?;
                number = number << 7 | u64::from(byte & 0x7F);
                if byte & 0x80 == 0 {
                    return Some(number as f64);
                }
                if bytes.is_empty() {
                    return Some(number as f64);
                }
            }
        }
        _ => return None,
    })
}

fn pack(lua: &Lua, (format, values): (LuaString, MultiValue)) -> mlua::Result<LuaString> {
    let mut numbers = Vec::new();
    for value in values {
        match value {
            Value::Table(table) => {
                for value in elements(&table) {
                    numbers.push(lua.coerce_number(value?).unwrap_or_default().unwrap_or_default());
                }
            }
            value => numbers.push(lua.coerce_number(value).unwrap_or_default().unwrap_or_default()),
        }
    }
    let (mut out, mut numbers) = (Vec::new(), numbers.into_iter());
    for FormatField { letter, times } in fields(&format.as_bytes()) {
        numbers.by_ref().take(times.unwrap_or(usize::MAX)).for_each(|number| put(letter, number, &mut out));
    }
    lua.create_string(out)
}

fn unpack(lua: &Lua, (format, packed): (LuaString, Value)) -> mlua::Result<Table> {
    let packed = bytes(lua, packed)?;
    let (numbers, mut rest) = (lua.create_table()?, packed.as_slice());
    'all: for FormatField { letter, times } in fields(&format.as_bytes()) {
        for _ in 0..times.unwrap_or(usize::MAX) {
            let Some(number) = take(letter, &mut rest) else {
                // If there are too few bytes for a letter, the result ends, except for two cases:
                // the letter has no count and has taken all available elements, or it does not
                // stand for a number.
                if times.is_some() && KNOWN.contains(&letter) {
                    break 'all;
                }
                break;
            };
            numbers.push(number)?;
        }
    }
    Ok(numbers)
}

pub(super) fn define(lua: &Lua, kyoto: &Table) -> mlua::Result<()> {
    kyoto.set("pack", lua.create_function(pack)?)?;
    kyoto.set("unpack", lua.create_function(unpack)?)
}
