//! Writes values unchanged, as hexadecimal pairs, or with another character in place of zero bytes.

use super::ToolFailure;
use std::io::Write;

/// The form of keys and values on the command line and in the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ValueForm {
    /// True if arguments are hexadecimal (`-sx`).
    pub(super) reads_hex: bool,
    /// True if the output is hexadecimal (`-px`).
    pub(super) writes_hex: bool,
    /// The character that stands for a zero byte (`-sep`).
    pub(super) separator: Option<u8>,
}

impl ValueForm {
    /// Decodes an argument.
    pub(super) fn bytes(self, argument: &str) -> Vec<u8> {
        if self.reads_hex {
            let digits: Vec<u8> =
                argument.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
            return digits
                .chunks(2)
                .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit))
                .collect();
        }
        let mut bytes = argument.as_bytes().to_vec();
        if let Some(separator) = self.separator {
            bytes.iter_mut().filter(|byte| **byte == separator).for_each(|byte| *byte = 0);
        }
        bytes
    }

    /// Writes bytes in this form.
    pub(super) fn put(self, bytes: &[u8], out: &mut impl Write) -> Result<(), ToolFailure> {
        if self.writes_hex {
            return put_hex(bytes, out);
        }
        match self.separator {
            None => out.write_all(bytes)?,
            Some(separator) => {
                let text: Vec<u8> =
                    bytes.iter().map(|&byte| if byte == 0 { separator } else { byte }).collect();
                out.write_all(&text)?;
            }
        }
        Ok(())
    }
}

/// Writes pairs of upper-case digits with blanks between them.
pub(super) fn put_hex(bytes: &[u8], out: &mut impl Write) -> Result<(), ToolFailure> {
    for (index, byte) in bytes.iter().enumerate() {
        let blank = if index == 0 { "" } else { " " };
        write!(out, "{blank}{byte:02X}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::ValueForm;

    #[test]
    fn forms_are_read_and_written() {
        let hex = ValueForm { reads_hex: true, writes_hex: true, separator: None };
        let separated = ValueForm { separator: Some(b'|'), ..ValueForm::default() };
        assert_eq!(hex.bytes("00fF 0a"), [0, 255, 10]);
        assert_eq!(separated.bytes("a|b"), b"a\0b");
        let text = |form: ValueForm, bytes: &[u8]| {
            let mut out = Vec::new();
            form.put(bytes, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(hex, b"\0\xffa"), "00 FF 61");
        assert_eq!(text(separated, b"a\0b"), "a|b");
    }
}
