//! Defines the properties of a request on which the form of its response depends.

use super::status::PacketStatus;

/// The form in which a packet wants its response.
#[derive(Clone, Copy, Debug)]
pub(in crate::memcached) struct BinaryForm<'a> {
    pub(super) opcode: u8,
    pub(super) opaque: [u8; 4],
    /// True if the expected result is not answered.
    pub(in crate::memcached) is_quiet: bool,
    /// True if the connection is closed after the response.
    pub(in crate::memcached) closes: bool,
    pub(super) answer: ResponseKind<'a>,
}

/// The kinds of response.
#[derive(Clone, Copy, Debug)]
pub(super) enum ResponseKind<'a> {
    /// A record: its flags, and its key and value if the request asks for them.
    Record { key: Option<&'a [u8]>, with_value: bool },
    /// A store, with the status to report if its condition does not hold.
    Store { not_stored: PacketStatus },
    /// Statistics in several packets.
    Statistics,
    /// The content of the reply, without extras or key.
    Plain,
    /// The packet is malformed. The status states how.
    Fault(PacketStatus),
}

impl BinaryForm<'_> {
    /// Returns the form without borrows from the input, for replies that do not show a record.
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
