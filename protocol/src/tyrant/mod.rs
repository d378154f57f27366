//! Tokyo Tyrant's protocols. A connection may use any of them: the first byte of each request
//! decides.
//!
//! ```text
//! bytes -> TyrantDecoder::decode -> TyrantStep::Request -> server -> reply -> ReplySink
//!                                   TyrantStep::Text       the request is a line of text
//! ```
//!
//! ```text
//! binary       the decoder of the binary protocol
//! encoder      the encoder of the binary protocol, for clients
//! command      the commands: their bytes, and their names in statistics and masks
//! request      a decoded request
//! fields       byte strings with their lengths, alone and in lists
//! http         requests and answers over HTTP
//! mask         sets of forbidden commands
//! reply        replies of the binary protocol
//! number       the real numbers of `adddouble`, which have 16 bytes
//!
//! update_log   records of an update log, and the commands in them
//! replication  the messages of a master to its replica
//! log_text     an update log as text
//! ```
//!
//! Invariants:
//! - Requests borrow from the input and allocate nothing.
//! - The decoder is a few words of state and has no buffer.
//! - The requests do not depend on how the input is split.
//! - Each byte of an incomplete list is examined once.
//! - An announced length reserves no memory.
//!
//! Not here: the effect of commands, functions of `misc`, databases, sockets.

mod binary;
mod command;
mod encoder;
mod fields;
mod http;
pub mod log_text;
mod mask;
pub mod number;
pub mod replication;
pub mod reply;
mod request;
pub mod update_log;

pub use binary::{FIRST_BYTE, TyrantDecoder, TyrantLimits, TyrantStep};
pub use command::TyrantCommand;
pub use fields::{FieldBuffer, FieldList};
pub use http::{
    HttpFunction, HttpStep, TyrantHttpMethod, TyrantHttpRequest, begins_http, decode_http, put_http_form,
    put_http_head, put_http_status,
};
pub use mask::{CommandMask, TyrantForm};
pub use request::{CHECKS_OUTCOMES, MISC_NOT_LOGGED, TyrantPutMode, TyrantRequest};
pub use update_log::{AbsoluteChange, LoggedCommand};

/// The longest key, value, list element, prefix, path and text of parameters, in bytes.
pub const LEN_MAX: usize = 1 << 28;
/// The largest number of keys of `mget` and of arguments of `misc`.
pub const COUNT_MAX: u32 = 1 << 20;
/// The longest name of a function of `ext` and `misc`, in bytes.
pub const NAME_LEN_MAX: usize = 1023;
