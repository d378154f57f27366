//! Answers `stats detail on|off|dump`: reads and stores by prefix of the key.

use crate::shared::SharedState;
use todana_core::Reply;

pub(super) fn answer(shared: &SharedState, word: Option<&[u8]>, out: &mut dyn FnMut(Reply<'_>)) {
    let refusal = "CLIENT_ERROR stats detail not allowed";
    match word {
        // Prefixes are parts of keys, so they are protected in the same way as lists of keys.
        _ if !shared.options.limits.dump_allowed => out(Reply::Faulty(refusal)),
        Some(b"on") => {
            shared.observation.observers.count_prefixes(true);
            out(Reply::Done);
        }
        Some(b"off") => {
            shared.observation.observers.count_prefixes(false);
            out(Reply::Done);
        }
        Some(b"dump") => {
            shared.observation.observers.prefixes.report(out);
            out(Reply::End);
        }
        _ => out(Reply::Faulty("CLIENT_ERROR usage: stats detail on|off|dump")),
    }
}
