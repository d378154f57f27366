//! Computes hashes as in the original. Only the lowest 48 bits are kept, because a Lua number can
//! represent them.

use crate::arguments::TextArgument;
use mlua::{Lua, Table};

const MASK: u64 = (1 << 48) - 1;
const MURMUR_FACTOR: u64 = 0xc6a4_a793_5bd1_e995;
const MURMUR_SEED: u64 = 19_780_211;
const FNV_BASIS: u64 = 14_695_981_039_346_656_037;
/// This is not the usual prime, because the original lacks a digit.
const FNV_FACTOR: u64 = 109_951_162_811;

/// Computes MurmurHash64A, except that blocks are added after the multiplication.
fn murmur(bytes: &[u8]) -> u64 {
    let mut hash = MURMUR_SEED ^ (bytes.len() as u64).wrapping_mul(MURMUR_FACTOR);
    let (blocks, rest) = bytes.as_chunks::<8>();
    for block in blocks {
        let mut block = u64::from_le_bytes(*block).wrapping_mul(MURMUR_FACTOR);
        block = (block ^ (block >> 47)).wrapping_mul(MURMUR_FACTOR);
        hash = hash.wrapping_mul(MURMUR_FACTOR) ^ block;
    }
    if !rest.is_empty() {
        let rest = rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        hash = (hash ^ rest).wrapping_mul(MURMUR_FACTOR);
    }
    hash = (hash ^ (hash >> 47)).wrapping_mul(MURMUR_FACTOR);
    hash ^ (hash >> 47)
}

fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(FNV_BASIS, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(FNV_FACTOR))
}

pub(super) fn define(lua: &Lua, kyoto: &Table) -> mlua::Result<()> {
    let murmur =
        |_: &Lua, text: TextArgument| Ok(text.0.map(|text| (murmur(&text.as_bytes()) & MASK) as f64));
    kyoto.set("hash_murmur", lua.create_function(murmur)?)?;
    let fnv = |_: &Lua, text: TextArgument| Ok(text.0.map(|text| (fnv(&text.as_bytes()) & MASK) as f64));
    kyoto.set("hash_fnv", lua.create_function(fnv)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_the_originals() {
        let texts: [&[u8]; 5] = [b"", b"a", b"abc", b"12345678", b"hello world"];
        assert_eq!(
            texts.map(|text| murmur(text) & MASK),
            [
                33_346_480_082_061,
                178_013_140_068_799,
                114_849_429_314_854,
                267_678_655_380_560,
                41_887_138_601_910
            ]
        );
        let texts: [&[u8]; 4] = [b"", b"a", b"abc", b"hello world"];
        assert_eq!(
            texts.map(|text| fnv(text) & MASK),
            [172_505_283_306_277, 280_391_095_641_772, 101_813_348_627_779, 229_247_393_592_607]
        );
    }
}
