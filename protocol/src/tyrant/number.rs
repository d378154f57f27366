//! Encodes the real numbers of `adddouble`, which have 16 bytes: an integral part and a fraction.
//!
//! ```text
//! number = integral(8) | fraction(8), in units of 10^-12; both signed and big-endian
//! ```
//!
//! Both parts have the sign of the number and are truncated toward zero. Not here: the form in
//! which the number is stored (`todana::tyrant`).

/// The length of an encoded number, in bytes.
pub const LEN: usize = 16;

const UNITS: f64 = 1e12;

/// Reads a number.
pub fn decode(bytes: [u8; LEN]) -> f64 {
    let (integral, fraction) = bytes.split_at(8);
    let part = |bytes: &[u8]| i64::from_be_bytes(bytes.try_into().expect("half of the number"));
    match (part(integral), part(fraction)) {
        (i64::MAX, _) => f64::INFINITY,
        (i64::MIN, i64::MIN) => f64::NAN,
        (i64::MIN, _) => f64::NEG_INFINITY,
        (integral, fraction) => integral as f64 + fraction as f64 / UNITS,
    }
}

/// Writes a number. A number beyond 2^63 becomes infinite.
pub fn encode(number: f64) -> [u8; LEN] {
    // A conversion to an integer truncates toward zero, and uses the nearest limit if the number is
    // too large.
    let (integral, fraction) = match number {
        _ if number.is_nan() => (i64::MIN, i64::MIN),
        _ if number.is_infinite() => (number as i64, 0),
        _ => (number.trunc() as i64, (number.fract() * UNITS) as i64),
    };
    let mut bytes = [0; LEN];
    bytes[..8].copy_from_slice(&integral.to_be_bytes());
    bytes[8..].copy_from_slice(&fraction.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::{decode, encode};

    fn hex(number: f64) -> String {
        encode(number).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn number_has_two_signed_parts() {
        for (number, bytes) in [
            (1.5, "0000000000000001000000746a528800"),
            (-2.25, "fffffffffffffffeffffffc5cad6bc00"),
            (-0.75, "0000000000000000ffffff5160843400"),
            (0.1, "0000000000000000000000174876e800"),
            (0.1 + 0.2, "000000000000000000000045d964b800"),
            (f64::INFINITY, "7fffffffffffffff0000000000000000"),
            (f64::NEG_INFINITY, "80000000000000000000000000000000"),
            (f64::NAN, "80000000000000008000000000000000"),
            (0.0, "00000000000000000000000000000000"),
        ] {
            assert_eq!(hex(number), bytes, "{number}");
            let read = decode(encode(number));
            assert!((read - number).abs() < 1e-12 || read == number || read.is_nan() && number.is_nan());
        }
        assert_eq!(decode(encode(1e300)), f64::INFINITY);
        assert_eq!(decode(encode(-1e300)), f64::NEG_INFINITY);
    }
}
