//! The hash functions of libmemcached and twemproxy, with results of 32 bits.
//!
//! Both programs read the bytes of a key as signed characters. A byte above 0x7f is therefore
//! sign-extended before it is added or xored. Every formula here is written from its published
//! description, and `client/tests/ring.rs` compares it with values of the programs themselves.

use super::RingError;
use md5::block_api::compress;
use md5::{Digest, Md5};
use std::fmt;
use std::str::FromStr;

/// A hash function of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum KeyHash {
    OneAtATime,
    Md5,
    Crc16,
    Crc32,
    Crc32a,
    Fnv1_64,
    Fnv1a64,
    Fnv1_32,
    Fnv1a32,
    Hsieh,
    Murmur,
    Jenkins,
}

impl KeyHash {
    /// All functions with their names in configurations.
    pub const ALL: [(&str, KeyHash); 12] = [
        ("one_at_a_time", KeyHash::OneAtATime),
        ("md5", KeyHash::Md5),
        ("crc16", KeyHash::Crc16),
        ("crc32", KeyHash::Crc32),
        ("crc32a", KeyHash::Crc32a),
        ("fnv1_64", KeyHash::Fnv1_64),
        ("fnv1a_64", KeyHash::Fnv1a64),
        ("fnv1_32", KeyHash::Fnv1_32),
        ("fnv1a_32", KeyHash::Fnv1a32),
        ("hsieh", KeyHash::Hsieh),
        ("murmur", KeyHash::Murmur),
        ("jenkins", KeyHash::Jenkins),
    ];

    /// Returns the hash of a key.
    #[inline]
    pub fn of(self, key: &[u8]) -> u32 {
        match self {
            KeyHash::OneAtATime => one_at_a_time(key),
            KeyHash::Md5 => md5_words(key)[0],
            KeyHash::Crc16 => crc16(key),
            KeyHash::Crc32 => (crc32fast::hash(key) >> 16) & 0x7fff,
            KeyHash::Crc32a => crc32fast::hash(key),
            KeyHash::Fnv1_64 => fnv1_64(key),
            KeyHash::Fnv1a64 => fnv1a(key, 0x8422_2325, 0x1b3),
            KeyHash::Fnv1_32 => key
                .iter()
                .fold(FNV_32_START, |hash, byte| hash.wrapping_mul(FNV_32_PRIME) ^ sign_extended(*byte)),
            KeyHash::Fnv1a32 => fnv1a(key, FNV_32_START, FNV_32_PRIME),
            KeyHash::Hsieh => hsieh(key),
            KeyHash::Murmur => murmur2(key),
            KeyHash::Jenkins => jenkins(key),
        }
    }
}

impl FromStr for KeyHash {
    type Err = RingError;

    fn from_str(text: &str) -> Result<KeyHash, RingError> {
        RingError::find("hash", text, &KeyHash::ALL)
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(KeyHash::ALL.iter().find(|(_, hash)| hash == self).expect("every function is listed").0)
    }
}

fn sign_extended(byte: u8) -> u32 {
    i32::from(byte.cast_signed()).cast_unsigned()
}

/// Returns the MD5 digest as four numbers in little-endian order.
///
/// A text of up to 55 bytes fits one block with its padding. Without the buffer of the general
/// digest, which finds that out step by step, it takes 140 ns instead of 210 (2026-11-23, AMD EPYC,
/// profile `fast`).
#[inline]
pub(super) fn md5_words(text: &[u8]) -> [u32; 4] {
    let mut block = [0; 64];
    if text.len() < 56 {
        block[..text.len()].copy_from_slice(text);
        block[text.len()] = 0x80;
        block[56..].copy_from_slice(&(text.len() as u64 * 8).to_le_bytes());
        let mut state = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
        compress(&mut state, &[block]);
        return state;
    }
    let digest = Md5::digest(text);
    let (words, _) = digest.as_chunks::<4>();
    [0, 1, 2, 3].map(|word: usize| u32::from_le_bytes(words[word]))
}

/// Jenkins' one-at-a-time (Dr. Dobb's Journal, September 1997).
fn one_at_a_time(key: &[u8]) -> u32 {
    let mut hash = 0u32;
    for byte in key {
        hash = hash.wrapping_add(sign_extended(*byte));
        hash = hash.wrapping_add(hash << 10);
        hash ^= hash >> 6;
    }
    hash = hash.wrapping_add(hash << 3);
    hash ^= hash >> 11;
    hash.wrapping_add(hash << 15)
}

/// The table of CRC-16/XMODEM (polynomial 0x1021).
const CRC16_TABLE: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            value = (value << 1) ^ if value & 0x8000 != 0 { 0x1021 } else { 0 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
};

/// CRC-16/XMODEM, except that the state has 32 bits and is never reduced to 16.
fn crc16(key: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (crc << 8) ^ u32::from(CRC16_TABLE[(((crc >> 8) ^ u32::from(*byte)) & 0xff) as usize])
    };
    key.iter().fold(0, step)
}

const FNV_32_START: u32 = 2_166_136_261;
const FNV_32_PRIME: u32 = 16_777_619;

/// FNV-1a with 32 bits (Fowler, Noll and Vo). With the low halves of the parameters of 64 bits, it
/// is the function that both programs call `fnv1a_64`.
#[inline]
fn fnv1a(key: &[u8], start: u32, prime: u32) -> u32 {
    key.iter().fold(start, |hash, byte| (hash ^ sign_extended(*byte)).wrapping_mul(prime))
}

/// The low half of FNV-1 with 64 bits.
fn fnv1_64(key: &[u8]) -> u32 {
    let step = |hash: u64, byte: &u8| {
        hash.wrapping_mul(0x100_0000_01b3) ^ i64::from(byte.cast_signed()).cast_unsigned()
    };
    key.iter().fold(0xcbf2_9ce4_8422_2325, step) as u32
}

/// SuperFastHash by Paul Hsieh, with start 0. Only the last byte of three left-over bytes is
/// signed.
fn hsieh(key: &[u8]) -> u32 {
    if key.is_empty() {
        return 0;
    }
    let pair = |bytes: &[u8]| u32::from(bytes[0]) | u32::from(bytes[1]) << 8;
    let (blocks, rest) = key.as_chunks::<4>();
    let mut hash = 0u32;
    for block in blocks {
        hash = hash.wrapping_add(pair(block));
        hash = (hash << 16) ^ (pair(&block[2..]) << 11) ^ hash;
        hash = hash.wrapping_add(hash >> 11);
    }
    match rest {
        [_, _, last] => {
            hash = hash.wrapping_add(pair(rest));
            hash ^= hash << 16;
            hash ^= sign_extended(*last) << 18;
            hash = hash.wrapping_add(hash >> 11);
        }
        [_, _] => {
            hash = hash.wrapping_add(pair(rest));
            hash ^= hash << 11;
            hash = hash.wrapping_add(hash >> 17);
        }
        [last] => {
            hash = hash.wrapping_add(u32::from(*last));
            hash ^= hash << 10;
            hash = hash.wrapping_add(hash >> 1);
        }
        _ => {}
    }
    hash ^= hash << 3;
    hash = hash.wrapping_add(hash >> 5);
    hash ^= hash << 4;
    hash = hash.wrapping_add(hash >> 17);
    hash ^= hash << 25;
    hash.wrapping_add(hash >> 6)
}

/// Returns up to 8 bytes as a number in little-endian order.
pub(super) fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// MurmurHash2 by Austin Appleby, seeded with 0xdeadbeef times the length.
fn murmur2(key: &[u8]) -> u32 {
    const FACTOR: u32 = 0x5bd1_e995;
    let len = key.len() as u32;
    let (blocks, rest) = key.as_chunks::<4>();
    let mut hash = 0xdead_beef_u32.wrapping_mul(len) ^ len;
    for block in blocks {
        let mut word = u32::from_le_bytes(*block).wrapping_mul(FACTOR);
        word ^= word >> 24;
        hash = hash.wrapping_mul(FACTOR) ^ word.wrapping_mul(FACTOR);
    }
    if !rest.is_empty() {
        hash = (hash ^ little_endian(rest) as u32).wrapping_mul(FACTOR);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(FACTOR);
    hash ^ (hash >> 15)
}

/// Bob Jenkins' lookup3, `hashlittle` with start 13 (burtleburtle.net/bob/c/lookup3.c, public
/// domain).
fn jenkins(key: &[u8]) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(key.len() as u32).wrapping_add(13);
    let (mut a, mut b, mut c) = (start, start, start);
    let mut rest = key;
    loop {
        let (block, following) = rest.split_at(rest.len().min(12));
        if block.is_empty() {
            return c;
        }
        let word = |at: usize| little_endian(&block[at.min(block.len())..(at + 4).min(block.len())]) as u32;
        a = a.wrapping_add(word(0));
        b = b.wrapping_add(word(4));
        c = c.wrapping_add(word(8));
        if following.is_empty() {
            break;
        }
        rest = following;
        a = a.wrapping_sub(c) ^ c.rotate_left(4);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(6);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(8);
        b = b.wrapping_add(a);
        a = a.wrapping_sub(c) ^ c.rotate_left(16);
        c = c.wrapping_add(b);
        b = b.wrapping_sub(a) ^ a.rotate_left(19);
        a = a.wrapping_add(c);
        c = c.wrapping_sub(b) ^ b.rotate_left(4);
        b = b.wrapping_add(a);
    }
    c = (c ^ b).wrapping_sub(b.rotate_left(14));
    a = (a ^ c).wrapping_sub(c.rotate_left(11));
    b = (b ^ a).wrapping_sub(a.rotate_left(25));
    c = (c ^ b).wrapping_sub(b.rotate_left(16));
    a = (a ^ c).wrapping_sub(c.rotate_left(4));
    b = (b ^ a).wrapping_sub(a.rotate_left(14));
    (c ^ b).wrapping_sub(b.rotate_left(24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn md5_of_short_texts_equals_the_digest() {
        for len in 0..130 {
            let text: Vec<u8> = (0..len).map(|byte: u8| byte.wrapping_mul(151)).collect();
            let words = md5_words(&text).map(u32::to_le_bytes);
            assert_eq!(words.as_flattened(), Md5::digest(&text).as_slice(), "{len}");
        }
    }
}
