//! REST.

use super::answers::{DUPLICATION, NO_PERMISSION, NO_RECORD, failure};
use super::scope::{Scope, records};
use crate::transport::output::Output;
use todana_protocol::kyoto::{Banner, Failure, Rest, RestAction, RestAnswer, RestMode, answer_rest, expiry};

impl Scope {
    /// Reads, stores or removes a resource, and answers.
    pub(super) fn resource(&self, rest: &Rest<'_>, banner: &Banner, output: &mut Output) {
        if let Err(failure) = self.try_resource(rest, banner, output) {
            answer_rest(rest, banner, &RestAnswer::Failed(failure), output);
        }
    }

    fn try_resource(
        &self,
        rest: &Rest<'_>,
        banner: &Banner,
        output: &mut Output,
    ) -> Result<(), Failure<'static>> {
        let mut tell = |answer: &RestAnswer<'_>| answer_rest(rest, banner, answer, output);
        if rest.action == RestAction::Unknown {
            tell(&RestAnswer::Unknown);
            return Ok(());
        }
        let reach = self.reach(rest.target)?;
        let records = records(reach);
        if (self.is_read_only() || reach.is_read_only()) && rest.action != RestAction::Get {
            return Err(NO_PERMISSION);
        }
        let counters = self.counters();
        match rest.action {
            RestAction::Get => {
                counters.get.add(1);
                let found = records.view(rest.key, &mut |value, xt| tell(&RestAnswer::Found { value, xt }));
                if !matches!(found, Ok(true)) {
                    counters.get_misses.add(1);
                }
                if found.map_err(failure)? { Ok(()) } else { Err(NO_RECORD) }
            }
            RestAction::Put { value, mode, xt } => {
                counters.set.add(1);
                let time = xt.unwrap_or(expiry::NEVER);
                let (stored, otherwise) = match mode {
                    RestMode::Set => (records.set(rest.key, value, time).map(|()| true), NO_RECORD),
                    RestMode::Add => (records.add(rest.key, value, time), DUPLICATION),
                    RestMode::Replace => (records.replace(rest.key, value, time), NO_RECORD),
                };
                if !matches!(stored, Ok(true)) {
                    counters.set_misses.add(1);
                }
                if !stored.map_err(failure)? {
                    return Err(otherwise);
                }
                tell(&RestAnswer::Stored { port: self.shared.listening.tcp_port });
                Ok(())
            }
            RestAction::Delete => {
                counters.remove.add(1);
                let removed = records.remove(rest.key);
                if !matches!(removed, Ok(true)) {
                    counters.remove_misses.add(1);
                }
                if !removed.map_err(failure)? {
                    return Err(NO_RECORD);
                }
                tell(&RestAnswer::Removed);
                Ok(())
            }
            RestAction::Unknown => Ok(()),
        }
    }
}
