//! Executes REST requests.

use super::answers::{DUPLICATION, NO_PERMISSION, NO_RECORD, TOO_OLD, refused};
use super::call_context::CallContext;
use super::session::KyotoSession;
use crate::execution::Completion;
use crate::replica::freshness;
use crate::session::worker_context::WorkerContext;
use crate::transport::output::ConnectionOutput;
use todana::kyoto::{time_of, ttl_of};
use todana_core::{Delete, Get, Operation, Reply, Store, StoreMode};
use todana_protocol::kyoto::{
    AnswerBanner, CallFailure, FreshnessHeader, HttpForm, RestAction, RestAnswer, RestMode, RestRequest,
    answer_rest, expiry,
};

impl CallContext {
    /// Reads, stores or removes a resource, and writes the answer.
    pub(super) fn resource(
        &self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        rest: &RestRequest<'_>,
        banner: &AnswerBanner,
        output: &mut ConnectionOutput,
    ) -> Completion {
        self.try_resource(session, context, rest, banner, output).unwrap_or_else(|failure| {
            answer_rest(rest, banner, &RestAnswer::Failed(failure), output);
            Completion::Done
        })
    }

    fn try_resource(
        &self,
        session: &mut KyotoSession,
        context: &mut WorkerContext,
        rest: &RestRequest<'_>,
        banner: &AnswerBanner,
        output: &mut ConnectionOutput,
    ) -> Result<Completion, CallFailure<'static>> {
        if rest.action == RestAction::Unknown {
            answer_rest(rest, banner, &RestAnswer::Unknown, output);
            return Ok(Completion::Done);
        }
        let database = self.database(rest.target)?;
        if rest.action != RestAction::Get && self.is_reader(database) {
            return Err(NO_PERMISSION);
        }
        let is_persistent = self.is_persistent(database);
        let (key, counters) = (rest.key, self.counters());
        let (operation, otherwise, count, misses) = match rest.action {
            RestAction::Get | RestAction::Unknown => {
                let get = Operation::Get(Get { key, ..Get::default() });
                (get, NO_RECORD, &counters.get, &counters.get_misses)
            }
            RestAction::Put { value, mode, xt } => {
                let (mode, otherwise) = match mode {
                    RestMode::Set => (StoreMode::Set, NO_RECORD),
                    RestMode::Add => (StoreMode::Add, DUPLICATION),
                    RestMode::Replace => (StoreMode::Replace, NO_RECORD),
                };
                let ttl = ttl_of(xt.unwrap_or(expiry::NEVER), is_persistent);
                let store = Operation::Store(Store { key, value, ttl, mode, ..Store::default() });
                (store, otherwise, &counters.set, &counters.set_misses)
            }
            RestAction::Delete => {
                let delete = Operation::Delete(Delete { key, ..Delete::default() });
                (delete, NO_RECORD, &counters.remove, &counters.remove_misses)
            }
        };
        let mut ended = Ok(());
        let completion = session.pending.execute_alone(context, database, &operation, &mut |reply| {
            count.add(1);
            if let FreshnessHeader::Present(required) = rest.form.freshness
                && !freshness::still_holds(&self.shared, database, required)
            {
                ended = Err(TOO_OLD);
                return;
            }
            let answer = match reply {
                Reply::Hit(hit) => {
                    let xt = time_of(hit.record.attributes.expiry).filter(|_| !is_persistent);
                    RestAnswer::Found { value: hit.record.value, xt }
                }
                Reply::Stored(_) => RestAnswer::Stored { port: self.shared.listening.tcp_port },
                Reply::Deleted => RestAnswer::Removed,
                other => {
                    misses.add(1);
                    let is_refused = matches!(other, Reply::Refused(_) | Reply::Faulty(_));
                    ended = Err(if is_refused { refused(&other) } else { otherwise });
                    return;
                }
            };
            let form = match rest.form.freshness {
                FreshnessHeader::Absent => rest.form,
                _ => HttpForm { position: freshness::position(&self.shared, database), ..rest.form },
            };
            answer_rest(&RestRequest { form, ..*rest }, banner, &answer, output);
        });
        ended.map(|()| completion)
    }
}
