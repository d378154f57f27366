//! The visitor of reads. A plain read only reads. A read is a visit if it sets a time to live,
//! creates a missing record, wins the right to recompute a stale one, or shows a version that the
//! record does not have yet.

use crate::access::AccessTracking;
use crate::expiry::resolve;
use crate::versions::VersionCounter;
use todana_core::{
    Action, Attributes, CommandSyntax, Expiry, Get, HitReply, RecacheState, Record, Reply, StaleMarks,
    UnixSeconds, Visitor,
};

/// The outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GetOutcome {
    Hit,
    Miss,
    /// A missing record was created, which the client should fill.
    Vivified,
    /// There was no memory for the new record, and the reply says so.
    Refused,
    /// The record could not be read, and the reply says so. It is unknown whether the record
    /// exists.
    Unread,
}

/// Returns true if this read rarely changes the record. It then takes only the read lock, unless
/// `plain_hit` returns `None`.
#[inline]
pub(crate) fn is_plain_read(get: &Get<'_>) -> bool {
    get.touch.is_none() && get.vivify.is_none() && get.recache_below_s.is_none() && !get.needs.access
}

/// Returns the hit of a plain read, or `None` if the record must be visited: it is stale and no
/// client recomputes it yet, or this read moves its sliding expiry, or the reply needs a version
/// and the record has none. A client that requests versions usually requests all of them, so most
/// records have one.
#[inline]
pub(crate) fn plain_hit<'r>(get: &Get<'_>, record: Record<'r>, now: UnixSeconds) -> Option<HitReply<'r>> {
    let StaleMarks { stale, token_sent } = record.attributes.marks;
    let lacks_version = get.needs.version && record.attributes.version == 0;
    let slides = !get.silent && record.attributes.expiry.after_access(now) != record.attributes.expiry;
    if lacks_version || slides || (stale && !token_sent && get.syntax == CommandSyntax::Meta) {
        return None;
    }
    Some(unchanged(record, now))
}

/// Returns the hit for a record that this read does not change.
#[inline]
pub(crate) fn unchanged(record: Record<'_>, now: UnixSeconds) -> HitReply<'_> {
    let StaleMarks { stale, token_sent } = record.attributes.marks;
    HitReply {
        record,
        expiry_before: record.attributes.expiry,
        access_before: record.attributes.access,
        recache: RecacheState { won: false, stale, token_sent },
        now,
    }
}

/// The visitor of a read that may change the record.
pub(crate) struct GetVisitor<'v> {
    pub(crate) get: &'v Get<'v>,
    pub(crate) now: UnixSeconds,
    pub(crate) tracking: &'v AccessTracking,
    pub(crate) versions: &'v VersionCounter,
    pub(crate) reply: &'v mut dyn FnMut(Reply<'_>),
    pub(crate) outcome: GetOutcome,
    /// True if memory is scarce. The access time is then updated only if the record already has
    /// one.
    is_tight: bool,
    before: Attributes,
    recache: RecacheState,
}

impl<'v> GetVisitor<'v> {
    pub(crate) fn new(
        get: &'v Get<'v>,
        now: UnixSeconds,
        tracking: &'v AccessTracking,
        versions: &'v VersionCounter,
        reply: &'v mut dyn FnMut(Reply<'_>),
        is_tight: bool,
    ) -> Self {
        let (before, recache) = Default::default();
        GetVisitor {
            get,
            now,
            tracking,
            versions,
            reply,
            outcome: GetOutcome::Miss,
            is_tight,
            before,
            recache,
        }
    }

    fn reply_hit(&mut self, record: Record<'_>) {
        (self.reply)(Reply::Hit(HitReply {
            record,
            expiry_before: self.before.expiry,
            access_before: self.before.access,
            recache: self.recache,
            now: self.now,
        }));
    }

    /// Decides whether this client should recompute the record. The first reader of a record that
    /// is stale or nearly expired should.
    fn recache(&self, old: &Attributes, expiry: Expiry) -> RecacheState {
        let StaleMarks { stale, token_sent } = old.marks;
        let nearly_expired = match (self.get.recache_below_s, expiry.seconds_left(self.now)) {
            (Some(below), Some(left)) => left < below,
            _ => false,
        };
        let wanted = self.get.syntax == CommandSyntax::Meta && (stale || nearly_expired);
        RecacheState { won: wanted && !token_sent, stale, token_sent }
    }
}

impl Visitor for GetVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let Some(old) = old else {
            let Some(ttl) = self.get.vivify else {
                self.outcome = GetOutcome::Miss;
                return Action::Keep;
            };
            self.outcome = GetOutcome::Vivified;
            self.recache = RecacheState { won: true, stale: false, token_sent: false };
            self.before = Attributes {
                has_value_list: false,
                flags: 0,
                expiry: resolve(ttl, self.now),
                version: self.versions.for_write(self.get.version, self.get.needs.version),
                marks: StaleMarks { stale: false, token_sent: true },
                access: self.tracking.on_write(self.now),
            };
            return Action::Put(Record::new(b"", self.before));
        };
        self.outcome = GetOutcome::Hit;
        self.before = old.attributes;
        let mut attributes = old.attributes;
        if let Some(ttl) = self.get.touch {
            attributes.expiry = resolve(ttl, self.now);
        } else if !self.get.silent {
            attributes.expiry = attributes.expiry.after_access(self.now);
        }
        let seen_expiry = if self.get.recache_after_touch { attributes.expiry } else { self.before.expiry };
        self.recache = self.recache(&self.before, seen_expiry);
        attributes.marks.token_sent |= self.recache.won;
        if self.get.needs.version && attributes.version == 0 {
            attributes.version = self.versions.fresh();
        }
        if !self.get.silent && (attributes.access.is_some() || !self.is_tight) {
            attributes.access = self.tracking.on_read(self.now);
        }
        if attributes == old.attributes {
            self.reply_hit(old);
            return Action::Keep;
        }
        Action::Retag(attributes)
    }

    fn reads_shared(&self) -> bool {
        self.get.reads_shared
    }

    fn applied(&mut self, now: Option<Record<'_>>) {
        if let Some(record) = now {
            self.reply_hit(record);
        }
    }
}
