//! What a response must know of its request.

use super::status::Status;

/// How a packet wants its response written.
#[derive(Clone, Copy, Debug)]
pub(in crate::memcached) struct BinaryForm<'a> {
    pub(super) opcode: u8,
    pub(super) opaque: [u8; 4],
    /// What goes as expected is not answered.
    pub(super) is_quiet: bool,
    /// The connection is closed behind the response.
    pub(in crate::memcached) closes: bool,
    pub(super) answer: Answer<'a>,
}

/// The kinds of response.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer<'a> {
    /// A record: flags, perhaps its key, perhaps its value.
    Record { key: Option<&'a [u8]>, with_value: bool },
    /// A store, and what it means that its condition does not hold.
    Store { not_stored: Status },
    /// Statistics: many packets.
    Statistics,
    /// Whatever the reply says.
    Plain,
    /// The packet is at fault, and how.
    Fault(Status),
}

impl BinaryForm<'_> {
    /// The same for replies that show no record.
    pub(in crate::memcached) fn detached(self) -> BinaryForm<'static> {
        let answer = match self.answer {
            Answer::Record { with_value, .. } => Answer::Record { key: None, with_value },
            Answer::Store { not_stored } => Answer::Store { not_stored },
            Answer::Statistics => Answer::Statistics,
            Answer::Plain => Answer::Plain,
            Answer::Fault(status) => Answer::Fault(status),
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
