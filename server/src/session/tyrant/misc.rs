//! The functions of `misc`.

use super::background_call::{TyrantAction, TyrantTask};
use super::numbers::{are_numbers, width};
use super::operations::{get, is_table, may_list, out};
use super::records::optimize;
use super::session_state::{TyrantSession, TyrantWorker};
use super::{TyrantState, values};
use crate::databases::PRIMARY_DATABASE;
use crate::session::NextAction;
use crate::session::worker_context::WorkerContext;
use crate::transport::output::ConnectionOutput;
use todana_core::{Operation, Reply};
use todana_protocol::ReplySink;
use todana_protocol::tyrant::{FieldBuffer, FieldList, TyrantPutMode, reply};

impl TyrantSession {
    /// Executes a function of `misc`. All are logged like other commands, also if the client does
    /// not want them to be, because the log keeps the records safe.
    pub(super) fn misc(
        &mut self,
        worker: &mut TyrantWorker,
        context: &mut WorkerContext,
        name: &[u8],
        arguments: FieldList<'_>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        if is_table(context)
            && let Some(next) = self.misc_on_table(context, name, arguments, output)
        {
            return next;
        }
        if values::may_have_several(context)
            && values::execute(context, name, arguments, worker.list_len_max, output)
        {
            return NextAction::Continue;
        }
        let done = match (name, arguments.get(0), arguments.get(1)) {
            (b"put", Some(key), Some(value)) => self.store(context, TyrantPutMode::Put, key, value),
            (b"putkeep", Some(key), Some(value)) => self.store(context, TyrantPutMode::Keep, key, value),
            (b"putcat", Some(key), Some(value)) => self.store(context, TyrantPutMode::Cat, key, value),
            (b"out", Some(key), _) => self.change(context, &out(key)),
            (b"putlist", ..) => self.put_list(context, arguments),
            (b"outlist" | b"getlist", ..) if !are_numbers(context, arguments) => false,
            (b"outlist", ..) => {
                for key in arguments {
                    self.change(context, &out(key));
                }
                true
            }
            (b"get", Some(key), _) => return self.get_value(context, key, &whole, output),
            (b"getpart", Some(key), offset) => {
                let offset = offset.map_or(0, decimal);
                let len = arguments.get(2).map_or(-1, decimal);
                return self.get_value(context, key, &|value| part(value, offset, len), output);
            }
            (b"getlist", ..) => return self.get_list(worker, context, arguments, output),
            (b"regex", Some(pattern), limit) => {
                let limit = limit.map_or(usize::MAX, |limit| limit_of(decimal(limit)));
                let action = TyrantAction::Regex { pattern: pattern.to_vec(), limit };
                return self.search(context, action, output);
            }
            (b"range", first, limit) if has_ranges(context) => {
                let limit = limit.map_or(usize::MAX, |limit| limit_of(decimal(limit)));
                let first = first.map(<[u8]>::to_vec);
                let end = arguments.get(2).map(<[u8]>::to_vec);
                return self.search(context, TyrantAction::Range { first, end, limit }, output);
            }
            (b"iterinit", Some(key), _) => {
                return self.search(context, TyrantAction::MoveIterator { key: key.to_vec() }, output);
            }
            (b"iterinit", None, _) => may_list(context) && TyrantState::restart_iterator(&context.shared),
            (b"iternext", ..) => return self.search(context, TyrantAction::NextRecord, output),
            (b"sync", ..) => {
                let task = TyrantTask { action: TyrantAction::Sync, is_misc: true };
                return self.perform(context, task, output);
            }
            (b"vanish", ..) => self.vanish(context),
            (b"optimize", tuning, _) => optimize(context, tuning.unwrap_or_default()),
            // Files of this server need no such work, and databases in memory do not know it.
            (b"cacheclear" | b"defrag", ..) => is_on_disk(context),
            (b"error", ..) if is_on_disk(context) => {
                let fields = FieldBuffer::from_iter([&b"0: success"[..]]);
                reply::put_fields(true, &fields.list(), output);
                return NextAction::Continue;
            }
            _ => false,
        };
        if self.pending.is_waiting() {
            return NextAction::Wait;
        }
        reply::put_fields(done, &FieldList::default(), output);
        NextAction::Continue
    }

    /// Changes a record; returns false if nothing changes.
    pub(super) fn change(&mut self, context: &mut WorkerContext, operation: &Operation<'_>) -> bool {
        let mut is_done = false;
        self.pending.execute(context, PRIMARY_DATABASE, operation, &mut |reply| {
            is_done = matches!(reply, Reply::Stored(_) | Reply::Deleted | Reply::Done);
        });
        is_done
    }

    /// Stores records until one is not stored.
    fn put_list(&mut self, context: &mut WorkerContext, arguments: FieldList<'_>) -> bool {
        let mut pairs = arguments.iter();
        while let (Some(key), Some(value)) = (pairs.next(), pairs.next()) {
            // A store that waits for its reply is not a failure.
            if !self.store(context, TyrantPutMode::Put, key, value) && !self.pending.is_waiting() {
                return false;
            }
        }
        true
    }

    /// Answers the value of a record, or a part of it.
    fn get_value(
        &mut self,
        context: &mut WorkerContext,
        key: &[u8],
        part: &dyn Fn(&[u8]) -> Option<&[u8]>,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        self.pending.execute(context, PRIMARY_DATABASE, &get(key), &mut |reply| {
            let Reply::Hit(hit) = reply else {
                return reply::put_fields(false, &FieldList::default(), output);
            };
            let Some(value) = part(hit.record.value) else {
                return reply::put_fields(false, &FieldList::default(), output);
            };
            output.put(&reply::count_head(1));
            output.put(&(value.len() as u32).to_be_bytes());
            match hit.record.shared {
                Some(shared) if value.len() == hit.record.value.len() => output.share(shared),
                _ => output.put(value),
            }
        });
        NextAction::Continue
    }

    /// Executes a search, if clients may list keys.
    fn search(
        &mut self,
        context: &mut WorkerContext,
        action: TyrantAction,
        output: &mut ConnectionOutput,
    ) -> NextAction {
        if !may_list(context) {
            reply::put_fields(false, &FieldList::default(), output);
            return NextAction::Continue;
        }
        self.perform(context, TyrantTask { action, is_misc: true }, output)
    }
}

/// Returns true if the keys are in the order of their bytes or of their numbers.
fn has_ranges(context: &WorkerContext) -> bool {
    context.shared.databases.primary().name.kind.is_ordered() || width(context).is_some()
}

fn is_on_disk(context: &WorkerContext) -> bool {
    !context.shared.databases.primary().name.kind.is_in_memory()
}

fn whole(value: &[u8]) -> Option<&[u8]> {
    Some(value)
}

/// Returns the part of a value from an offset on; a negative length means the rest.
fn part(value: &[u8], offset: i64, len: i64) -> Option<&[u8]> {
    let rest = value.get(usize::try_from(offset).unwrap_or(0)..).filter(|rest| !rest.is_empty())?;
    Some(&rest[..usize::try_from(len).unwrap_or(usize::MAX).min(rest.len())])
}

/// Returns a limit; a number below 1 sets none.
fn limit_of(number: i64) -> usize {
    usize::try_from(number).ok().filter(|&limit| limit > 0).unwrap_or(usize::MAX)
}

/// Reads a decimal number up to its last digit. A text without digits is 0.
pub(super) fn decimal(text: &[u8]) -> i64 {
    todana_protocol::memcached::plugin::number(text)
}

#[cfg(test)]
mod tests {
    use super::{decimal, limit_of, part};

    #[test]
    fn part_needs_an_offset_within_the_value() {
        for (offset, len, expected) in [
            (0, -1, Some(&b"abc"[..])),
            (1, 1, Some(b"b")),
            (2, 9, Some(b"c")),
            (1, 0, Some(b"")),
            (-5, 2, Some(b"ab")),
            (3, 1, None),
        ] {
            assert_eq!(part(b"abc", offset, len), expected, "{offset} {len}");
        }
    }

    #[test]
    fn numbers_end_at_their_last_digit() {
        for (text, number) in [("12x", 12), ("-3", -3), ("", 0), ("x", 0)] {
            assert_eq!(decimal(text.as_bytes()), number, "{text}");
        }
        assert_eq!([limit_of(-1), limit_of(0), limit_of(7)], [usize::MAX, usize::MAX, 7]);
    }
}
