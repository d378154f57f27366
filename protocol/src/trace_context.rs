//! The trace to which a client says that a request belongs, in the opaque token of a meta command
//! (docs/tracing.md). Trace and span are those of OpenTelemetry and of W3C's Trace Context.
//!
//! ```text
//! t<22 letters of base64url><up to 8 other bytes>   the trace
//! T<30 letters of base85>                           the trace and the span of the client
//! ```
//!
//! An opaque token has at most 31 bytes, so neither 32 hexadecimal digits nor base64 for both
//! numbers would fit.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fmt::{self, Display, Formatter, Write as _};

/// The trace of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The ID of the trace, which is not zero.
    pub trace_id: [u8; 16],
    /// The ID of the client's span, if it is known. It is not zero.
    pub parent_span_id: Option<[u8; 8]>,
}

/// The number of letters of an ID of a trace in base64.
const BASE64_LEN: usize = 22;
/// The length of both IDs in bytes, and in letters of base85.
const BOTH_LEN: usize = 24;
const BASE85_LEN: usize = BOTH_LEN / 4 * 5;
/// The letters of base85 as in RFC 1924, git and Python's `base64.b85encode`.
const BASE85: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

impl TraceContext {
    /// Reads an opaque token. Returns `None` if it names no trace.
    #[inline]
    pub fn parse(opaque: &[u8]) -> Option<TraceContext> {
        match opaque {
            [b't', rest @ ..] => of_trace(rest.get(..BASE64_LEN)?),
            [b'T', rest @ ..] => of_both(rest),
            _ => None,
        }
    }
}

fn of_trace(letters: &[u8]) -> Option<TraceContext> {
    // The decoder asks for memory in units of three bytes.
    let mut bytes = [0; 18];
    // Bits that belong to no byte must be 0, so few other tokens are taken for a trace.
    URL_SAFE_NO_PAD.decode_slice(letters, &mut bytes).ok()?;
    let trace_id = *bytes.first_chunk()?;
    (trace_id != [0; 16]).then_some(TraceContext { trace_id, parent_span_id: None })
}

fn of_both(letters: &[u8]) -> Option<TraceContext> {
    if letters.len() != BASE85_LEN {
        return None;
    }
    let mut bytes = [0; BOTH_LEN];
    for (letters, bytes) in letters.chunks_exact(5).zip(bytes.chunks_exact_mut(4)) {
        let value = letters.iter().try_fold(0u32, |value, letter| {
            let digit = BASE85.iter().position(|one| one == letter)? as u32;
            value.checked_mul(85)?.checked_add(digit)
        });
        bytes.copy_from_slice(&value?.to_be_bytes());
    }
    let (trace_id, span_id) = (*bytes.first_chunk()?, *bytes.last_chunk()?);
    let has_both = trace_id != [0; 16] && span_id != [0; 8];
    has_both.then_some(TraceContext { trace_id, parent_span_id: Some(span_id) })
}

impl Display for TraceContext {
    /// Writes the opaque token.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(span_id) = self.parent_span_id else {
            return write!(f, "t{}", URL_SAFE_NO_PAD.encode(self.trace_id));
        };
        f.write_char('T')?;
        let mut both = [0; BOTH_LEN];
        both[..16].copy_from_slice(&self.trace_id);
        both[16..].copy_from_slice(&span_id);
        for bytes in both.chunks_exact(4) {
            let value = bytes.iter().fold(0, |value, &byte| value << 8 | u32::from(byte));
            for power in [85u32.pow(4), 85u32.pow(3), 85u32.pow(2), 85, 1] {
                f.write_char(BASE85[(value / power % 85) as usize].into())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The example of W3C's Trace Context, encoded by Python 3.11.
    const TRACE_ID: [u8; 16] = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736u128.to_be_bytes();
    const SPAN_ID: [u8; 8] = 0x00f0_67aa_0ba9_02b7u64.to_be_bytes();
    const TRACE: &str = "tS_kvNXezTaajzpKdDg5HNg";
    const BOTH: &str = "TOZhJ~ce72Vqt23@4h}~)0Ptt33#kIP";

    #[test]
    fn tokens_are_those_of_other_encoders() {
        let trace = TraceContext { trace_id: TRACE_ID, parent_span_id: None };
        let both = TraceContext { trace_id: TRACE_ID, parent_span_id: Some(SPAN_ID) };
        for (context, token) in [(trace, TRACE), (both, BOTH)] {
            assert_eq!(context.to_string(), token);
            assert_eq!(TraceContext::parse(token.as_bytes()), Some(context));
        }
        assert_eq!(BOTH.len(), 31);
        assert_eq!(TraceContext::parse(format!("{TRACE}/#1234567").as_bytes()), Some(trace));
    }

    #[test]
    fn other_tokens_name_no_trace() {
        let cut = &BOTH[..30];
        let zero_span = TraceContext { trace_id: TRACE_ID, parent_span_id: Some([0; 8]) }.to_string();
        let too_high = format!("T~~~~~{}", &BOTH[6..]);
        for token in [
            "",
            "t",
            "17",
            "S_kvNXezTaajzpKdDg5HNg",
            "tS_kvNXezTaajzpKdDg5HN",
            "tS_kvNXezTaajzpKdDg5HNh",
            "tS+kvNXezTaajzpKdDg5HNg",
            "tAAAAAAAAAAAAAAAAAAAAAA",
            cut,
            &zero_span,
            &too_high,
            "T\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"\"",
        ] {
            assert_eq!(TraceContext::parse(token.as_bytes()), None, "{token}");
        }
    }
}
