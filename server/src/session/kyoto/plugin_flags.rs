//! Encodes the flags of memcached's clients in four bytes after the value (`opts=f`).

use crate::options::PluginOptions;

/// The number of bytes that the flags take.
pub(super) const FLAGS_LEN: usize = 4;

/// Splits a stored value into the client's value and the flags.
pub(super) fn parts(port: PluginOptions, stored: &[u8]) -> (&[u8], u32) {
    match stored.split_last_chunk() {
        Some((value, flags)) if port.keeps_flags => (value, u32::from_be_bytes(*flags)),
        _ => (stored, 0),
    }
}
