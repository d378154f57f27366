//! Detection of a connection's dialect by its first bytes.

use todana_protocol::kyoto::{self, ProtocolGuess};

/// A dialect that its first bytes identify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DetectedDialect {
    Memcached,
    Kyoto,
    #[cfg(test)]
    Echo,
    /// More bytes are needed.
    Unsure,
}

/// Returns the dialect of a request that begins with these bytes.
pub(super) fn detect(input: &[u8]) -> DetectedDialect {
    #[cfg(test)]
    if input.starts_with(super::echo::FIRST_BYTES) {
        return DetectedDialect::Echo;
    }
    match kyoto::begins(input) {
        ProtocolGuess::Kyoto => DetectedDialect::Kyoto,
        ProtocolGuess::Unsure => DetectedDialect::Unsure,
        ProtocolGuess::Other => DetectedDialect::Memcached,
    }
}
