//! Expiry: an expired record does not exist for commands. Every visitor and every read is wrapped
//! for expiry, and for the update log, which receives their changes.

use crate::classes::plain_size;
use crate::transaction::EngineView;
use crate::update_log::{LogChange, LogPosition};
use todana_core::{Action, Attributes, Expiry, Record, Ttl, UnixSeconds, Visitor};

/// Returns the expiry for a time to live.
pub(crate) fn resolve(ttl: Ttl, now: UnixSeconds) -> Expiry {
    match ttl {
        Ttl::Never => Expiry::Never,
        // Long ago, so that the remaining seconds are negative, as memcached shows them.
        Ttl::Expired => Expiry::At(UnixSeconds(1)),
        Ttl::Seconds(seconds) => Expiry::At(UnixSeconds(now.0 + u64::from(seconds))),
        Ttl::At(at) => Expiry::At(UnixSeconds(at)),
        Ttl::Sliding(span_s) => Expiry::Sliding { at: UnixSeconds(now.0 + u64::from(span_s)), span_s },
    }
}

/// Returns the second at which a record expires as things stand; the end of time if it never does.
pub(crate) fn deadline(expiry: Expiry) -> u64 {
    expiry.at().map_or(u64::MAX, |at| at.0)
}

/// Hides expired records from `inner`, and removes those that it visits.
pub(crate) struct ExpiryVisitor<'v> {
    inner: &'v mut dyn Visitor,
    now: UnixSeconds,
    key: &'v [u8],
    /// The record existed, but had expired.
    pub(crate) met_expired: bool,
    /// The size of the existing record for its size class; 0 if there was none.
    pub(crate) met_size: usize,
    /// The expired record is removed, and `inner` changed nothing.
    removes_expired: bool,
    view: EngineView<'v>,
    /// A transaction is open, and nothing was done.
    pub(crate) turned_away: bool,
    /// Returns true if records can disappear without an entry in the log.
    may_evict: &'v dyn Fn() -> bool,
    /// The change to log when the visit is applied.
    to_log: ChangeToLog,
    /// The position after the last entry logged.
    pub(crate) logged: Option<LogPosition>,
    /// Something was changed, with or without a log.
    pub(crate) has_changed: bool,
    puts: bool,
}

/// The change of a visit that must be logged.
#[derive(Clone, Copy, PartialEq)]
enum ChangeToLog {
    Nothing,
    Put,
    Retag,
    Remove,
}

/// Returns true if two records differ only in their access times, which are not logged.
fn differ_only_in_access(one: Attributes, other: Attributes) -> bool {
    Attributes { access: None, ..one } == Attributes { access: None, ..other }
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
            turned_away: false,
            may_evict,
            to_log,
            logged,
            has_changed: false,
            puts: false,
        }
    }

    /// Returns true if a record was put: created, or in place of another one.
    pub(crate) fn has_put(&self) -> bool {
        self.has_changed && self.puts
    }
}

impl Visitor for ExpiryVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.met_size = old.map_or(0, |old| plain_size(self.key, &old));
        self.met_expired = old.is_some_and(|old| !old.attributes.expiry.is_live(self.now));
        self.removes_expired = false;
        self.turned_away = self.view.is_closed();
        if self.turned_away {
            return Action::Keep;
        }
        if !self.met_expired {
            let action = self.inner.visit(old);
            self.puts = matches!(action, Action::Put(_));
            if let Some(log) = self.view.log {
                // The record may have been evicted. A client that got "not found" must not find it
                // after a restart, so the removal is logged too. It is logged here, under the
                // record's lock, because nothing will be applied.
                if old.is_none() && matches!(action, Action::Remove) && (self.may_evict)() {
                    self.logged =
                        Some(log.append_from(self.view.origin, &LogChange::Remove { key: self.key }));
                }
                self.to_log = match action {
                    Action::Put(_) => ChangeToLog::Put,
                    Action::Retag(new)
                        if old.is_some_and(|old| !differ_only_in_access(old.attributes, new)) =>
                    {
                        ChangeToLog::Retag
                    }
                    Action::Remove if old.is_some() => ChangeToLog::Remove,
                    _ => ChangeToLog::Nothing,
                };
            }
            return action;
        }
        self.to_log = ChangeToLog::Put;
        match self.inner.visit(None) {
            Action::Put(record) => {
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
        self.inner.ignores_value()
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        if self.removes_expired {
            return;
        }
        self.has_changed = true;
        if let Some(log) = self.view.log {
            let key = self.key;
            let change = match (self.to_log, now) {
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
        self.inner.applied(now);
    }
}

/// Removes a record if it has expired.
pub(crate) struct RemoveIfExpired;

impl Visitor for RemoveIfExpired {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Keep
    }
}
