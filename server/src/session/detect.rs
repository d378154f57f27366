//! Which dialect a connection speaks, by its first bytes.

use todana_protocol::kyoto::{self, ProtocolGuess};

/// A dialect that is known by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detected {
    Memcached,
    Kyoto,
    #[cfg(test)]
    Echo,
    /// More bytes have to come.
    Unsure,
}

/// Returns whose a request is that begins so.
pub(super) fn detect(input: &[u8]) -> Detected {
    #[cfg(test)]
    if input.starts_with(super::echo::FIRST_BYTES) {
        return Detected::Echo;
    }
    match kyoto::begins(input) {
        ProtocolGuess::Kyoto => Detected::Kyoto,
        ProtocolGuess::Unsure => Detected::Unsure,
        ProtocolGuess::Other => Detected::Memcached,
    }
}
