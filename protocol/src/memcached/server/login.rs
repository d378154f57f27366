//! What a client may say before it has logged in (`-Y`): a `set` whose data block is its name and password.
//!
//! Key, flags and time of that `set` mean nothing, and neither does `noreply`. Everything else is answered by a fault, so
//! that what is stored, and even which commands there are, stays hidden from strangers.

use super::frame::{Block, Frame};
use super::words::Words;
use super::{Dialect, Form, Limits, Step, number};
use crate::memcached::{Authenticate, Command};

/// The shortest line that is answered, its end included; after a shorter one the connection is closed.
const LINE_LEN_MIN: usize = 6;

/// The longest token.
const TOKEN_LEN_MAX: usize = 16 << 10;

const UNAUTHENTICATED: &str = "CLIENT_ERROR unauthenticated";
const BAD_TOKEN: &str = "CLIENT_ERROR bad authentication token format";
const TOKEN_TOO_LONG: &str = "CLIENT_ERROR auth token too long";
const BAD_TERMINATION: &str = "CLIENT_ERROR bad command line termination";

/// Decodes a stranger's line, and the data block that it announces.
#[cold]
pub(super) fn decode<'a>(dialect: &mut Dialect, limits: &Limits, frame: Frame<'a>) -> Step<'a> {
    if frame.line_len < LINE_LEN_MIN {
        return Step::Close;
    }
    let Some(token_len) = token_len(frame.line()) else { return frame.fault(UNAUTHENTICATED, Form::LINE) };
    // As in memcached the next line is read as one: a stranger's connection shall not be held for gigabytes.
    if token_len > TOKEN_LEN_MAX {
        return frame.fault(TOKEN_TOO_LONG, Form::LINE);
    }
    match frame.block(dialect, limits, token_len) {
        Block::Partial(step) => step,
        Block::Refused { message } => {
            frame.without_block(dialect, token_len, Command::Faulty { message }, Form::LINE)
        }
        // As long as was announced, so that it is known where the next line starts.
        Block::Unterminated => {
            let message = BAD_TERMINATION;
            frame.request_with_block(token_len, Command::Faulty { message }, Form::LINE)
        }
        Block::Whole(response, _) => {
            let authenticate = Authenticate { response, ..Authenticate::default() };
            let command = match authenticate.token() {
                Some(_) => Command::Authenticate(authenticate),
                None => Command::Faulty { message: BAD_TOKEN },
            };
            frame.request_with_block(token_len, command, Form::LINE)
        }
    }
}

/// The length of the data block, if the line is a `set` that has one.
fn token_len(line: &[u8]) -> Option<usize> {
    let mut words = Words::new(line);
    if words.next()? != b"set" {
        return None;
    }
    // Behind key, flags and time.
    number::unsigned_32(words.nth(3)?).and_then(|len| usize::try_from(len).ok())
}
