//! Decodes the only command that is served before a login (`-Y`): a `set` whose data block is the
//! name and password.
//!
//! Key, flags, time and `noreply` of that `set` are ignored. Any other command is answered by an
//! error, so that unauthenticated clients learn neither the stored data nor the available commands.

use super::frame::{DataBlock, LineFrame};
use super::words::LineWords;
use super::{MemcachedDecoder, MemcachedLimits, MemcachedStep, ReplyForm, number};
use crate::memcached::{LoginCredentials, MemcachedCommand};

/// The shortest line that is answered, in bytes, including its line end. A shorter line closes the
/// connection.
const LINE_LEN_MIN: usize = 6;

/// The longest token, in bytes.
const TOKEN_LEN_MAX: usize = 16 << 10;

const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated";
const BAD_TOKEN: &str = "CLIENT_ERROR bad authentication token format";
const TOKEN_TOO_LONG: &str = "CLIENT_ERROR auth token too long";
const BAD_TERMINATION: &str = "CLIENT_ERROR bad command line termination";

/// Decodes a line of an unauthenticated client, and the data block that it announces.
#[cold]
pub(super) fn decode<'a>(
    dialect: &mut MemcachedDecoder,
    limits: &MemcachedLimits,
    frame: LineFrame<'a>,
) -> MemcachedStep<'a> {
    if frame.line_len < LINE_LEN_MIN {
        return MemcachedStep::Close;
    }
    let Some(token_len) = token_len(frame.line()) else {
        return frame.fault(UNAUTHENTICATED, ReplyForm::LINE);
    };
    // As in memcached, the data block is then read as commands. If it were discarded, an
    // unauthenticated client could keep a connection open for gigabytes.
    if token_len > TOKEN_LEN_MAX {
        return frame.fault(TOKEN_TOO_LONG, ReplyForm::LINE);
    }
    match frame.block(dialect, limits, token_len) {
        DataBlock::Partial(step) => step,
        DataBlock::Refused { message } => {
            frame.without_block(dialect, token_len, MemcachedCommand::Faulty { message }, ReplyForm::LINE)
        }
        // The announced length states where the next line starts.
        DataBlock::Unterminated => {
            let message = BAD_TERMINATION;
            frame.request_with_block(token_len, MemcachedCommand::Faulty { message }, ReplyForm::LINE)
        }
        DataBlock::Whole(response, _) => {
            let credentials = LoginCredentials { response, ..LoginCredentials::default() };
            let command = match credentials.token() {
                Some(_) => MemcachedCommand::Authenticate(credentials),
                None => MemcachedCommand::Faulty { message: BAD_TOKEN },
            };
            frame.request_with_block(token_len, command, ReplyForm::LINE)
        }
    }
}

/// Returns the length of the data block if the line is a `set` that announces one.
fn token_len(line: &[u8]) -> Option<usize> {
    let mut words = LineWords::new(line);
    if words.next()? != b"set" {
        return None;
    }
    // The length follows the key, the flags and the time.
    number::unsigned_32(words.nth(3)?).and_then(|len| usize::try_from(len).ok())
}
