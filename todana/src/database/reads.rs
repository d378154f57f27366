//! Executes reads: by a view of the record if that is enough, or by a visit if the read has side
//! effects.

use super::Database;
use super::commands::refusal;
use super::visits::VisitGuarantee;
use crate::classes::plain_size;
use crate::counters::WorkerCounters;
use crate::expiry::RemoveIfExpired;
use crate::get::{self, GetOutcome, GetVisitor};
use crate::transaction::EngineView;
use todana_core::{CommandSyntax, ErrorKind, Get, Record, Reply, UnixSeconds};

impl Database {
    pub(super) fn get(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        get: &Get<'_>,
        now: UnixSeconds,
        reply: &mut dyn FnMut(Reply<'_>),
    ) {
        if get.needs.access {
            self.tracking.request(now);
        }
        let (mut text, resolved);
        let mut get = get;
        if self.must_resolve(get.key) {
            text = [0; 20];
            match self.resolved(space, get.key, now, &mut text) {
                Ok(key) => resolved = Get { key, ..*get },
                Err(error) => return reply(Reply::Refused(refusal(&error))),
            }
            get = &resolved;
        }
        let (outcome, class) = if get::is_plain_read(get) && (get.silent || !self.tracking.is_on(now)) {
            self.look(space, worker_counters, get, now, reply)
        } else {
            self.visit_get(space, worker_counters, get, now, reply)
        };
        if outcome == GetOutcome::Miss {
            reply(Reply::Miss);
        }
        // As in memcached, a record that is created for the caller to fill counts as found.
        let found = matches!(outcome, GetOutcome::Hit | GetOutcome::Vivified);
        if outcome == GetOutcome::Vivified {
            worker_counters.counts.total_items.one();
        }
        if get.syntax == CommandSyntax::Meta {
            worker_counters.counts.cmd_meta.one();
        }
        // As in memcached, an `mg` that sets an expiry counts as a touch if it hits, and as a get
        // if it misses.
        if get.counts_as_touch || (get.touch.is_some() && found) {
            worker_counters.counts.cmd_touch.one();
            if found {
                worker_counters.counts.touch_hits.one();
                worker_counters.class(class).touch_hits.one();
            } else {
                worker_counters.counts.touch_misses.one();
            }
        } else if !get.silent {
            // A read that does not count as an access is also left out of the hit ratio.
            worker_counters.counts.cmd_get.one();
            if found {
                worker_counters.counts.get_hits.one();
                worker_counters.class(class).get_hits.one();
            } else if outcome != GetOutcome::Unread {
                worker_counters.counts.get_misses.one();
            }
        }
    }

    #[inline]
    fn look(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        get: &Get<'_>,
        now: UnixSeconds,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> (GetOutcome, usize) {
        let mut outcome = GetOutcome::Miss;
        let mut size = 0;
        let (mut must_visit, mut is_expired) = (false, false);
        let see = |record: Record<'_>| {
            let record = record.with_first_value();
            if !record.attributes.expiry.is_live(now) {
                is_expired = true;
            } else if let Some(hit) = get::plain_hit(get, record, now) {
                outcome = GetOutcome::Hit;
                size = plain_size(get.key, &record);
                reply(Reply::Hit(hit));
            } else {
                must_visit = true;
            }
        };
        if let Err(error) = space.read(get.key, (!get.silent, get.reads_shared), see) {
            // It is unknown whether an unreadable record exists, so it does not count as a miss.
            reply(Reply::Refused(refusal(&error)));
            return (GetOutcome::Unread, self.classes.of(get.key.len()));
        }
        if must_visit {
            return self.visit_get(space, worker_counters, get, now, reply);
        }
        if is_expired && !space.is_closed() {
            let _ = self.visit(space, worker_counters, get.key, now, &mut RemoveIfExpired);
        }
        (outcome, self.classes.of(size))
    }

    fn visit_get(
        &self,
        space: EngineView<'_>,
        worker_counters: &WorkerCounters,
        get: &Get<'_>,
        now: UnixSeconds,
        reply: &mut dyn FnMut(Reply<'_>),
    ) -> (GetOutcome, usize) {
        // If memory is scarce, side effects of reads must not evict records.
        let is_tight =
            self.tracking.is_on(now) && self.engine.bounded().is_some_and(|bounded| bounded.is_near_limit());
        let mut visitor = GetVisitor::new(get, now, &self.tracking, &self.versions, reply, is_tight);
        let is_change = get.touch.is_some() || get.vivify.is_some();
        // If the reply shows a version, the version must be stored with the record. The other side
        // effects may be lost.
        let guarantee = match get.needs.version {
            _ if is_change => VisitGuarantee::Change,
            true => VisitGuarantee::Answer,
            false => VisitGuarantee::Note,
        };
        let noting = if is_change { space } else { self.for_side_effects(space) };
        let met = self.visit_with_guarantee(noting, guarantee, worker_counters, get.key, now, &mut visitor);
        let outcome = visitor.outcome;
        self.note_ttls([get.touch, get.vivify], now);
        match met {
            Ok(_) if outcome == GetOutcome::Vivified => (outcome, self.classes.of(get.key.len())),
            Ok(met) => (outcome, met.class),
            Err(error) => {
                // The read succeeds even if its side effect fails.
                let may_show = outcome == GetOutcome::Hit || error.kind() == ErrorKind::Busy;
                let mut shown = false;
                let _ = space.read(get.key, (true, get.reads_shared), |record| {
                    shown = may_show && record.attributes.expiry.is_live(now);
                    if shown {
                        reply(Reply::Hit(get::unchanged(record.with_first_value(), now)));
                    }
                });
                if shown {
                    return (outcome, 0);
                }
                if error.kind() == ErrorKind::Busy {
                    return (GetOutcome::Miss, 0);
                }
                let class = self.classes.of(get.key.len());
                if error.is_out_of_memory() {
                    worker_counters.class(class).out_of_memory.one();
                }
                reply(Reply::Refused(refusal(&error)));
                let is_unread = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unavailable);
                (if is_unread { GetOutcome::Unread } else { GetOutcome::Refused }, class)
            }
        }
    }
}
