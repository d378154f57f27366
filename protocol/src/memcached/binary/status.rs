//! Defines the status codes of responses.

/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::memcached) enum PacketStatus {
    Success,
    NotFound,
    Exists,
    TooLarge,
    Invalid,
    NotStored,
    NonNumeric,
    /// A server of Couchbase does not have the vbucket of the request.
    NotMyVbucket,
    NotAuthenticated,
    /// The SASL exchange continues.
    Continue,
    UnknownCommand,
    OutOfMemory,
    /// A later attempt may succeed.
    TemporaryFailure,
    /// The request can never succeed here.
    NotSupported,
    InternalError,
}

impl PacketStatus {
    const ALL: [PacketStatus; 15] = [
        PacketStatus::Success,
        PacketStatus::NotFound,
        PacketStatus::Exists,
        PacketStatus::TooLarge,
        PacketStatus::Invalid,
        PacketStatus::NotStored,
        PacketStatus::NonNumeric,
        PacketStatus::NotMyVbucket,
        PacketStatus::NotAuthenticated,
        PacketStatus::Continue,
        PacketStatus::UnknownCommand,
        PacketStatus::OutOfMemory,
        PacketStatus::TemporaryFailure,
        PacketStatus::NotSupported,
        PacketStatus::InternalError,
    ];

    /// Returns the status with this code.
    pub(in crate::memcached) fn of(code: u16) -> Option<PacketStatus> {
        PacketStatus::ALL.into_iter().find(|status| status.code() == code)
    }

    /// Returns the status code.
    pub(super) fn code(self) -> u16 {
        match self {
            PacketStatus::Success => 0x00,
            PacketStatus::NotFound => 0x01,
            PacketStatus::Exists => 0x02,
            PacketStatus::TooLarge => 0x03,
            PacketStatus::Invalid => 0x04,
            PacketStatus::NotStored => 0x05,
            PacketStatus::NonNumeric => 0x06,
            PacketStatus::NotMyVbucket => 0x07,
            PacketStatus::NotAuthenticated => 0x20,
            PacketStatus::Continue => 0x21,
            PacketStatus::UnknownCommand => 0x81,
            PacketStatus::OutOfMemory => 0x82,
            PacketStatus::TemporaryFailure => 0x86,
            PacketStatus::NotSupported => 0x83,
            PacketStatus::InternalError => 0x84,
        }
    }

    /// Returns the text of a response that has no other content. Clients print this text, and some
    /// compare it.
    pub(super) fn text(self) -> &'static str {
        match self {
            PacketStatus::Success | PacketStatus::Continue => "",
            PacketStatus::NotFound => "Not found",
            PacketStatus::Exists => "Data exists for key.",
            PacketStatus::TooLarge => "Too large.",
            PacketStatus::Invalid => "Invalid arguments",
            PacketStatus::NotStored => "Not stored.",
            PacketStatus::NonNumeric => "Non-numeric server-side value for incr or decr",
            PacketStatus::NotMyVbucket => "Not my vbucket",
            PacketStatus::NotAuthenticated => "Auth failure.",
            PacketStatus::UnknownCommand => "Unknown command",
            PacketStatus::OutOfMemory => "Out of memory",
            PacketStatus::TemporaryFailure => "Temporary failure",
            PacketStatus::NotSupported => "Not supported",
            PacketStatus::InternalError => "Internal error",
        }
    }
}
