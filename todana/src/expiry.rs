//! Expiry: makes expired records invisible to commands. Every visitor and every read is wrapped for
//! this. The wrapper of a visitor also appends its change to the update log.
//!
//! The wrapper also shows only the first of several values of a key, and replaces or removes only
//! the first value, unless the visitor asks for the list.

use crate::classes::plain_size;
use crate::transaction::EngineView;
use crate::update_log::{LogChange, LogPosition, TransactionEncoder, UpdateLog};
use todana_core::{Action, Attributes, Expiry, Record, Ttl, UnixSeconds, Visitor};

/// Converts a time to live to an expiry.
pub(crate) fn resolve(ttl: Ttl, now: UnixSeconds) -> Expiry {
    match ttl {
        Ttl::Never => Expiry::Never,
        // This second lies long ago, so that the remaining time is negative, as memcached shows it.
        Ttl::Expired => Expiry::At(UnixSeconds(1)),
        Ttl::Seconds(seconds) => Expiry::At(UnixSeconds(now.0 + u64::from(seconds))),
        Ttl::At(at) => Expiry::At(UnixSeconds(at)),
        Ttl::Sliding(span_s) => Expiry::Sliding { at: UnixSeconds(now.0 + u64::from(span_s)), span_s },
    }
}

/// Returns the second at which a record expires if it is not accessed again, or the highest number
/// if it never expires.
pub(crate) fn deadline(expiry: Expiry) -> u64 {
    expiry.at().map_or(u64::MAX, |at| at.0)
}

/// Returns the log if it may lack accesses.
fn log_with_gaps(view: EngineView<'_>) -> Option<&UpdateLog> {
    view.log.filter(|log| log.has_skipped_accesses())
}

/// Hides an expired record from the visitor `inner`, and removes the record.
pub(crate) struct ExpiryVisitor<'v> {
    inner: &'v mut dyn Visitor,
    now: UnixSeconds,
    key: &'v [u8],
    /// The record existed, but had expired.
    pub(crate) met_expired: bool,
    /// The size of the existing record, for its size class; 0 if there was no record.
    pub(crate) met_size: usize,
    /// True if the only change is the removal of the expired record.
    removes_expired: bool,
    view: EngineView<'v>,
    /// True if a transaction was open, so that nothing was done.
    pub(crate) found_transaction: bool,
    /// Returns true if the engine may evict records, which is not logged.
    may_evict: &'v dyn Fn() -> bool,
    /// The log, if it lacked accesses before the visit. Then a new expiry may have to be logged
    /// with its record, so the engine must show the value. This is decided before each visit.
    log_with_gaps: Option<&'v UpdateLog>,
    /// The change that is logged when the visit is applied.
    to_log: ChangeToLog,
    /// The position after the last entry that was logged.
    pub(crate) logged: Option<LogPosition>,
    /// True if the record was changed, logged or not.
    pub(crate) has_changed: bool,
    puts: bool,
    /// True if the visitor removed the first of several values, so that a record remains.
    removes_first: bool,
    /// True if the old record had several values, even if it had expired.
    replaces_list: bool,
    /// The list of values that is stored.
    list: Vec<u8>,
}

/// What a visit must append to the log.
#[derive(Clone, Copy, PartialEq)]
enum ChangeToLog {
    Nothing,
    Put,
    Retag,
    Remove,
}

impl ChangeToLog {
    /// Returns the change to log if a record has new attributes. Access times are not logged.
    /// `log_with_gaps` is the log if it may lack accesses. Readers of the log may have removed the
    /// record if the log lacks its last access.
    fn of_retag(old: Attributes, new: Attributes, log_with_gaps: Option<&UpdateLog>) -> Self {
        if (Attributes { access: None, ..old }) == (Attributes { access: None, ..new }) {
            return ChangeToLog::Nothing;
        }
        match log_with_gaps.is_some_and(|log| log.lacks_access(old.expiry)) {
            true => ChangeToLog::Put,
            false => ChangeToLog::Retag,
        }
    }
}

impl<'v> ExpiryVisitor<'v> {
    pub(crate) fn new(
        inner: &'v mut dyn Visitor,
        key: &'v [u8],
        now: UnixSeconds,
        view: EngineView<'v>,
        may_evict: &'v dyn Fn() -> bool,
    ) -> Self {
        let (to_log, logged) = (ChangeToLog::Nothing, None);
        ExpiryVisitor {
            inner,
            now,
            key,
            met_expired: false,
            met_size: 0,
            removes_expired: false,
            view,
            found_transaction: false,
            may_evict,
            log_with_gaps: log_with_gaps(view),
            to_log,
            logged,
            has_changed: false,
            puts: false,
            removes_first: false,
            replaces_list: false,
            list: Vec::new(),
        }
    }

    /// Prepares a visit at a later time than the last one.
    #[cold]
    pub(crate) fn visit_later(&mut self, now: UnixSeconds) {
        self.now = now;
        self.log_with_gaps = log_with_gaps(self.view);
    }

    /// Shows the first value of a list to the visitor, and applies its action to this value.
    #[cold]
    fn visit_first_value<'a>(&'a mut self, old: Record<'a>) -> Action<'a> {
        let ExpiryVisitor { inner, list, puts, to_log, removes_first, log_with_gaps, .. } = self;
        let others = old.values().skip(1);
        let (now, attributes) = match inner.visit(Some(old.with_first_value())) {
            Action::Keep => {
                *to_log = ChangeToLog::Nothing;
                return Action::Keep;
            }
            Action::Retag(attributes) => {
                let attributes = Attributes { has_value_list: true, access: None, ..attributes };
                *to_log = ChangeToLog::of_retag(old.attributes, attributes, *log_with_gaps);
                return Action::Retag(attributes);
            }
            Action::Put(now) => (Some(now.value), now.attributes),
            Action::Remove => {
                *removes_first = true;
                (None, Attributes { version: 0, ..old.attributes })
            }
        };
        (*puts, *to_log) = (true, ChangeToLog::Put);
        let left = Record::of_values(now.into_iter().chain(others), attributes, list);
        left.map_or(Action::Remove, Action::Put)
    }

    /// Returns true if a record was created or replaced.
    pub(crate) fn has_put(&self) -> bool {
        self.has_changed && self.puts
    }
}

impl Visitor for ExpiryVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.met_size = old.map_or(0, |old| plain_size(self.key, &old));
        self.replaces_list = old.is_some_and(|old| old.attributes.has_value_list);
        self.met_expired = old.is_some_and(|old| !old.attributes.expiry.is_live(self.now));
        (self.removes_expired, self.removes_first) = (false, false);
        self.found_transaction = self.view.is_closed();
        if self.found_transaction {
            return Action::Keep;
        }
        if let Some(old) = old
            && old.attributes.has_value_list
            && !self.met_expired
            && !self.inner.sees_value_list()
        {
            return self.visit_first_value(old);
        }
        if !self.met_expired {
            let action = self.inner.visit(old);
            self.puts = matches!(action, Action::Put(_));
            if let Some(log) = self.view.log {
                // The record may have been evicted, in which case the log still contains it. The
                // reply will say that the record does not exist, so a restart must not bring it
                // back, and the removal is logged too. It is logged here and not in `applied`,
                // which the engine calls only for changes. The record is locked here, too.
                if old.is_none() && matches!(action, Action::Remove) && (self.may_evict)() {
                    self.logged =
                        Some(log.append_from(self.view.origin, &LogChange::Remove { key: self.key }));
                }
                self.to_log = match action {
                    Action::Put(_) => ChangeToLog::Put,
                    Action::Retag(new) => old.map_or(ChangeToLog::Nothing, |old| {
                        ChangeToLog::of_retag(old.attributes, new, self.log_with_gaps)
                    }),
                    Action::Remove if old.is_some() => ChangeToLog::Remove,
                    _ => ChangeToLog::Nothing,
                };
            }
            return action;
        }
        match self.inner.visit(None) {
            Action::Put(record) => {
                self.to_log = ChangeToLog::Put;
                self.puts = true;
                Action::Put(record)
            }
            Action::Keep | Action::Retag(_) | Action::Remove => {
                self.removes_expired = true;
                Action::Remove
            }
        }
    }

    fn overwrites(&self) -> bool {
        self.inner.overwrites()
    }

    fn ignores_value(&self) -> bool {
        self.inner.ignores_value() && self.log_with_gaps.is_none()
    }

    fn reads_shared(&self) -> bool {
        self.inner.reads_shared() && self.log_with_gaps.is_none()
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        if self.removes_expired {
            return;
        }
        self.has_changed = true;
        if let Some(log) = self.view.log {
            let key = self.key;
            let change = match (self.to_log, now) {
                (ChangeToLog::Put, Some(record)) if self.replaces_list => {
                    self.logged = Some(log_replacement(log, self.view.origin, key, record));
                    None
                }
                (ChangeToLog::Put, Some(record)) => Some(LogChange::Put { key, record }),
                (ChangeToLog::Retag, Some(record)) => {
                    Some(LogChange::Retag { key, attributes: record.attributes })
                }
                (ChangeToLog::Remove, None) => Some(LogChange::Remove { key }),
                _ => None,
            };
            if let Some(change) = change {
                self.logged = Some(log.append_from(self.view.origin, &change));
            }
        }
        let now = now.filter(|_| !self.removes_first);
        let now = if self.inner.sees_value_list() { now } else { now.map(Record::with_first_value) };
        self.inner.applied(now);
    }
}

/// Logs the put of a record in place of a record with several values.
#[cold]
fn log_replacement(log: &UpdateLog, origin: Option<u32>, key: &[u8], record: Record<'_>) -> LogPosition {
    let mut both = TransactionEncoder::default();
    match both.push_replacement(key, record) {
        true => log.append_from(origin, &both.change()),
        false => log.append_from(origin, &LogChange::Put { key, record }),
    }
}

/// Removes a record if it has expired.
pub(crate) struct RemoveIfExpired;

impl Visitor for RemoveIfExpired {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Keep
    }

    fn reads_shared(&self) -> bool {
        true
    }
}
