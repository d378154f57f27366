//! Detects the dialect of a connection by its first bytes.

use crate::shared::SharedState;
use todana_protocol::kyoto::{self, ProtocolGuess};
use todana_protocol::memcached::DialectChoice;
use todana_protocol::replication;

/// A dialect that is identified by the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DetectedDialect {
    Memcached,
    Kyoto,
    Tyrant,
    /// A replica that follows this server in Todana's own protocol.
    Replica,
    #[cfg(test)]
    Echo,
    /// More bytes are needed.
    Unsure,
}

/// Returns the dialect of a connection whose first bytes are `input`, on a listener that is not
/// restricted to one dialect.
pub(super) fn detect(shared: &SharedState, input: &[u8]) -> DetectedDialect {
    #[cfg(test)]
    if input.starts_with(super::echo::FIRST_BYTES) {
        return DetectedDialect::Echo;
    }
    let any = Some(DialectChoice::Auto);
    let Some(&first) = input.first() else { return DetectedDialect::Unsure };
    if first == replication::FIRST_BYTE {
        return DetectedDialect::Replica;
    }
    if shared.speaks_tyrant(any) && shared.begins_tyrant(first) {
        return DetectedDialect::Tyrant;
    }
    if !shared.speaks_kyoto(any) {
        return DetectedDialect::Memcached;
    }
    match kyoto::begins(input) {
        ProtocolGuess::Kyoto => DetectedDialect::Kyoto,
        ProtocolGuess::Unsure => DetectedDialect::Unsure,
        ProtocolGuess::Other => DetectedDialect::Memcached,
    }
}
