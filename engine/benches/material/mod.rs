//! The records that benchmarks store, and the memory that they take.

/// Resident bytes of this process.
pub(crate) fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number of pages") * 4096
}

pub(crate) fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Eight digits.
pub(crate) fn decimal(n: u64) -> [u8; 8] {
    let mut text = [b'0'; 8];
    let mut rest = n;
    for byte in text.iter_mut().rev() {
        *byte = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text
}

/// The n-th of a fixed stream of arbitrary 64-bit numbers (splitmix64).
pub(crate) fn arbitrary(n: u64) -> u64 {
    let mut x = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}
