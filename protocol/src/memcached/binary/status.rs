//! How a packet went.

/// The status of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Success,
    NotFound,
    Exists,
    TooLarge,
    Invalid,
    NotStored,
    NonNumeric,
    NotAuthenticated,
    /// The SASL exchange goes on.
    Continue,
    UnknownCommand,
    OutOfMemory,
    /// It may go well later.
    TemporaryFailure,
    /// What is asked can never be done here.
    NotSupported,
    InternalError,
}

impl Status {
    /// Its number.
    pub(super) fn code(self) -> u16 {
        match self {
            Status::Success => 0x00,
            Status::NotFound => 0x01,
            Status::Exists => 0x02,
            Status::TooLarge => 0x03,
            Status::Invalid => 0x04,
            Status::NotStored => 0x05,
            Status::NonNumeric => 0x06,
            Status::NotAuthenticated => 0x20,
            Status::Continue => 0x21,
            Status::UnknownCommand => 0x81,
            Status::OutOfMemory => 0x82,
            Status::TemporaryFailure => 0x86,
            Status::NotSupported => 0x83,
            Status::InternalError => 0x84,
        }
    }

    /// The body of a response that has nothing else to say. Clients print it, and some compare it.
    pub(super) fn text(self) -> &'static str {
        match self {
            Status::Success | Status::Continue => "",
            Status::NotFound => "Not found",
            Status::Exists => "Data exists for key.",
            Status::TooLarge => "Too large.",
            Status::Invalid => "Invalid arguments",
            Status::NotStored => "Not stored.",
            Status::NonNumeric => "Non-numeric server-side value for incr or decr",
            Status::NotAuthenticated => "Auth failure.",
            Status::UnknownCommand => "Unknown command",
            Status::OutOfMemory => "Out of memory",
            Status::TemporaryFailure => "Temporary failure",
            Status::NotSupported => "Not supported",
            Status::InternalError => "Internal error",
        }
    }
}
