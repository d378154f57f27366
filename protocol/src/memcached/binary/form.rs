//! The properties of a request that its response depends on.

use super::status::PacketStatus;

/// The form in which a packet wants its response.
#[derive(Clone, Copy, Debug)]
pub(in crate::memcached) struct BinaryForm<'a> {
    pub(super) opcode: u8,
    pub(super) opaque: [u8; 4],
    /// A result as expected is not answered.
    pub(super) is_quiet: bool,
    /// The connection is closed after the response.
    pub(in crate::memcached) closes: bool,
    pub(super) answer: ResponseKind<'a>,
}

/// The kinds of response.
#[derive(Clone, Copy, Debug)]
pub(super) enum ResponseKind<'a> {
    /// A record: flags, optionally its key, optionally its value.
    Record { key: Option<&'a [u8]>, with_value: bool },
    /// A store, with the status to report if its condition does not hold.
    Store { not_stored: PacketStatus },
    /// Statistics in several packets.
    Statistics,
    /// The content of the reply.
    Plain,
    /// The packet is malformed; the status reports how.
    Fault(PacketStatus),
}

impl BinaryForm<'_> {
    /// Returns the form for replies that show no record, without borrows from the input.
    pub(in crate::memcached) fn detached(self) -> BinaryForm<'static> {
        let answer = match self.answer {
            ResponseKind::Record { with_value, .. } => ResponseKind::Record { key: None, with_value },
            ResponseKind::Store { not_stored } => ResponseKind::Store { not_stored },
            ResponseKind::Statistics => ResponseKind::Statistics,
            ResponseKind::Plain => ResponseKind::Plain,
            ResponseKind::Fault(status) => ResponseKind::Fault(status),
        };
        BinaryForm {
            opcode: self.opcode,
            opaque: self.opaque,
            is_quiet: self.is_quiet,
            closes: self.closes,
            answer,
        }
    }
}
