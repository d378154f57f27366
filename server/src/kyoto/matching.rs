//! Calls that look through all keys.

use super::executor::{Answer, Scope, failure};
use super::procedures::Ended;
use todana::{Records, Symbols};
use todana_core::{ErrorKind, Result as Outcome};
use todana_protocol::kyoto::{self, Call, Failure};

impl Scope {
    pub(super) fn match_prefix(
        &self,
        call: &Call<'_>,
        pairs: &mut kyoto::Output,
        answer: &mut Answer<'_>,
    ) -> Ended {
        let reach = self.reach(call.target())?;
        let prefix = call.required(b"prefix")?;
        self.counters().misc.add(1);
        let found = reach.match_prefix(prefix, limit(call)).map_err(|error| failure(&error))?;
        tell(found.iter().map(Vec::as_slice), pairs, answer);
        Ok(())
    }

    pub(super) fn match_regex(
        &self,
        call: &Call<'_>,
        pairs: &mut kyoto::Output,
        answer: &mut Answer<'_>,
    ) -> Ended {
        let reach = self.reach(call.target())?;
        let pattern = call.required(b"regex")?;
        self.counters().misc.add(1);
        let pattern = std::str::from_utf8(pattern).map_err(|_| Failure::COMPILATION_FAILED)?;
        let found: Outcome<Vec<Vec<u8>>> = reach.match_regex(pattern, limit(call));
        let found = found.map_err(|error| match error.kind() {
            ErrorKind::Invalid => Failure::COMPILATION_FAILED,
            _ => failure(&error),
        })?;
        tell(found.iter().map(Vec::as_slice), pairs, answer);
        Ok(())
    }

    pub(super) fn match_similar(
        &self,
        call: &Call<'_>,
        pairs: &mut kyoto::Output,
        answer: &mut Answer<'_>,
    ) -> Ended {
        let reach = self.reach(call.target())?;
        let origin = call.required(b"origin")?;
        self.counters().misc.add(1);
        let range = call.integer(b"range").filter(|&range| range >= 0).unwrap_or(1);
        let range = usize::try_from(range).unwrap_or(usize::MAX);
        let symbols = if call.flag(b"utf") { Symbols::Characters } else { Symbols::Bytes };
        let found =
            reach.match_similar(origin, range, symbols, limit(call)).map_err(|error| failure(&error))?;
        tell(found.iter().map(|(key, _)| key.as_slice()), pairs, answer);
        Ok(())
    }
}

/// How many may be found.
fn limit(call: &Call<'_>) -> usize {
    call.max().map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX))
}

/// Keys with their positions, in which their order is told, and how many there are.
fn tell<'k>(
    keys: impl ExactSizeIterator<Item = &'k [u8]>,
    pairs: &mut kyoto::Output,
    answer: &mut Answer<'_>,
) {
    pairs.clear();
    let count = keys.len();
    for (position, key) in keys.enumerate() {
        pairs.push_record(key, itoa::Buffer::new().format(position).as_bytes());
    }
    pairs.push_number(b"num", count);
    answer.done_with(pairs);
}
