//! The last second of a certificate, read from its DER.

use base64::prelude::{BASE64_STANDARD, Engine as _};

/// The tags of ASN.1 in a certificate.
const SEQUENCE: u8 = 0x30;
const EXPLICIT_VERSION: u8 = 0xA0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns the Unix time until which the first certificate of a PEM file is valid.
pub(super) fn valid_until(pem: &str) -> Option<i64> {
    let (_, rest) = pem.split_once("-----BEGIN CERTIFICATE-----")?;
    let (body, _) = rest.split_once("-----END CERTIFICATE-----")?;
    let body: String = body.split_whitespace().collect();
    der_valid_until(&BASE64_STANDARD.decode(body).ok()?)
}

/// Returns the Unix time until which a certificate in DER is valid.
pub(super) fn der_valid_until(der: &[u8]) -> Option<i64> {
    // Certificate: a signed part with version, serial number, algorithm, issuer, validity.
    let (_, certificate, _) = element(der)?;
    let (_, mut signed, _) = element(certificate)?;
    if signed.first() == Some(&EXPLICIT_VERSION) {
        signed = element(signed)?.2;
    }
    for _ in 0..3 {
        signed = element(signed)?.2;
    }
    let (tag, validity, _) = element(signed)?;
    let (_, _, after_begin) = element(validity)?;
    let (time_tag, until, _) = element(after_begin)?;
    let text = std::str::from_utf8(until).ok()?;
    match (tag, time_tag) {
        // Two digits of a year from 1950 on.
        (SEQUENCE, UTC_TIME) if text.get(..2)? < "50" => unix_time(&format!("20{text}")),
        (SEQUENCE, UTC_TIME) => unix_time(&format!("19{text}")),
        (SEQUENCE, GENERALIZED_TIME) => unix_time(text),
        _ => None,
    }
}

/// Returns the tag and the content of the first element, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut len = usize::from(first);
    if first & 0x80 != 0 {
        let digits = usize::from(first & 0x7F);
        if digits > 4 {
            return None;
        }
        len = rest.get(..digits)?.iter().fold(0, |len, &byte| len << 8 | usize::from(byte));
        rest = &rest[digits..];
    }
    Some((tag, rest.get(..len)?, &rest[len..]))
}

/// Parses `YYYYMMDDHHMMSSZ`.
fn unix_time(text: &str) -> Option<i64> {
    let number = |at: usize, len: usize| text.get(at..at + len)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(4, 2)?, number(6, 2)?);
    // Days since 1970, with March as the first month of a year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1 - 719_468;
    Some(((days * 24 + number(8, 2)?) * 60 + number(10, 2)?) * 60 + number(12, 2)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_second_is_read_from_certificates() {
        let valid_to = |year| {
            let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_string()]).unwrap();
            parameters.not_after = rcgen::date_time_ymd(year, 2, 28);
            let key = rcgen::KeyPair::generate().unwrap();
            valid_until(&parameters.self_signed(&key).unwrap().pem())
        };
        assert_eq!(valid_to(2027), Some(1_803_772_800));
        assert_eq!(valid_to(2060), Some(2_845_152_000));
        assert_eq!(unix_time("20000301000000Z"), Some(951_868_800));
        assert_eq!(valid_until("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"), None);
    }
}
