//! Flags of memcached's clients, stored after the value (`opts=f`).

use crate::options::CompatiblePort;

/// The length of the flags.
pub(super) const FLAGS_LEN: usize = 4;

/// Returns a stored value and its flags.
pub(super) fn parts(port: CompatiblePort, stored: &[u8]) -> (&[u8], u32) {
    match stored.split_last_chunk() {
        Some((value, flags)) if port.keeps_flags => (value, u32::from_be_bytes(*flags)),
        _ => (stored, 0),
    }
}
