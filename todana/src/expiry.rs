//! Expiry: an expired record is nowhere. It wraps every visitor and every read, and so does the update log, which is told
//! what they have changed.

use crate::classes::plain_size;
use crate::transaction::EngineView;
use crate::update_log::{LogChange, LogPosition};
use todana_core::{Action, Attributes, Expiry, Record, Ttl, UnixSeconds, Visitor};

/// When a record with this time to live dies.
pub(crate) fn resolve(ttl: Ttl, now: UnixSeconds) -> Expiry {
    match ttl {
        Ttl::Never => Expiry::Never,
        // Long past, so that the seconds left are negative, as memcached shows them.
        Ttl::Expired => Expiry::At(UnixSeconds(1)),
        Ttl::Seconds(seconds) => Expiry::At(UnixSeconds(now.0 + u64::from(seconds))),
        Ttl::At(at) => Expiry::At(UnixSeconds(at)),
        Ttl::Sliding(span_s) => Expiry::Sliding { at: UnixSeconds(now.0 + u64::from(span_s)), span_s },
    }
}

/// The second at which this is over, as things stand; the end of time for what never is.
pub(crate) fn deadline(expiry: Expiry) -> u64 {
    expiry.at().map_or(u64::MAX, |at| at.0)
}

/// Shows `inner` no expired record, and removes the ones it meets.
pub(crate) struct ExpiryVisitor<'v> {
    inner: &'v mut dyn Visitor,
    now: UnixSeconds,
    key: &'v [u8],
    /// The record was there, but expired.
    pub(crate) met_expired: bool,
    /// The size of the record that was there, by which it is classed; 0 if there was none.
    pub(crate) met_size: usize,
    /// It is removed, and `inner` did nothing.
    buries: bool,
    space: EngineView<'v>,
    /// A transaction is open, and nothing was done.
    pub(crate) turned_away: bool,
    /// Whether records go without the log being told.
    forgets: &'v dyn Fn() -> bool,
    /// What the log is told if the visit goes through.
    tells: Tells,
    /// Behind what the log was told.
    pub(crate) logged: Option<LogPosition>,
    /// Something was changed, whether or not there is a log.
    pub(crate) has_changed: bool,
    puts: bool,
}

/// What is worth telling of a visit.
#[derive(Clone, Copy, PartialEq)]
enum Tells {
    Nothing,
    Put,
    Retag,
    Remove,
}

/// Whether two records differ only in what is not kept: the times of access.
fn are_alike(one: Attributes, other: Attributes) -> bool {
    Attributes { access: None, ..one } == Attributes { access: None, ..other }
}

impl<'v> ExpiryVisitor<'v> {
    pub(crate) fn new(
        inner: &'v mut dyn Visitor,
        key: &'v [u8],
        now: UnixSeconds,
        space: EngineView<'v>,
        forgets: &'v dyn Fn() -> bool,
    ) -> Self {
        let (tells, logged) = (Tells::Nothing, None);
        ExpiryVisitor {
            inner,
            now,
            key,
            met_expired: false,
            met_size: 0,
            buries: false,
            space,
            turned_away: false,
            forgets,
            tells,
            logged,
            has_changed: false,
            puts: false,
        }
    }

    /// Returns true if a record was put: created, or in the place of another one.
    pub(crate) fn has_put(&self) -> bool {
        self.has_changed && self.puts
    }
}

impl Visitor for ExpiryVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        self.met_size = old.map_or(0, |old| plain_size(self.key, &old));
        self.met_expired = old.is_some_and(|old| !old.attributes.expiry.is_live(self.now));
        self.buries = false;
        self.turned_away = self.space.is_closed();
        if self.turned_away {
            return Action::Keep;
        }
        if !self.met_expired {
            let action = self.inner.visit(old);
            self.puts = matches!(action, Action::Put(_));
            if let Some(log) = self.space.log {
                // It may have been evicted. Whoever is told that it is not there shall not meet it after a restart, so
                // the log is told too; here, while the record's lock is held, as nothing will be applied.
                if old.is_none() && matches!(action, Action::Remove) && (self.forgets)() {
                    self.logged =
                        Some(log.append_from(self.space.origin, &LogChange::Remove { key: self.key }));
                }
                self.tells = match action {
                    Action::Put(_) => Tells::Put,
                    Action::Retag(new) if old.is_some_and(|old| !are_alike(old.attributes, new)) => {
                        Tells::Retag
                    }
                    Action::Remove if old.is_some() => Tells::Remove,
                    _ => Tells::Nothing,
                };
            }
            return action;
        }
        self.tells = Tells::Put;
        match self.inner.visit(None) {
            Action::Put(record) => {
                self.puts = true;
                Action::Put(record)
            }
            Action::Keep | Action::Retag(_) | Action::Remove => {
                self.buries = true;
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
        if self.buries {
            return;
        }
        self.has_changed = true;
        if let Some(log) = self.space.log {
            let key = self.key;
            let change = match (self.tells, now) {
                (Tells::Put, Some(record)) => Some(LogChange::Put { key, record }),
                (Tells::Retag, Some(record)) => Some(LogChange::Retag { key, attributes: record.attributes }),
                (Tells::Remove, None) => Some(LogChange::Remove { key }),
                _ => None,
            };
            if let Some(change) = change {
                self.logged = Some(log.append_from(self.space.origin, &change));
            }
        }
        self.inner.applied(now);
    }
}

/// Removes a record if it is expired.
pub(crate) struct RemoveIfExpired;

impl Visitor for RemoveIfExpired {
    fn visit<'a>(&'a mut self, _: Option<Record<'a>>) -> Action<'a> {
        Action::Keep
    }
}
