//! The visitor of stores: set, add, replace, append, prepend and cas.

use crate::access::AccessTracking;
use crate::expiry::resolve;
use crate::long_value::SeenValue;
use crate::versions::{VersionCounter, equals};
use todana_core::{
    Action, Attributes, LONG_VALUE_LEN, Record, RefusalReason, Reply, SharedBytes, StaleMarks, Store,
    StoreMode, StoredReply, UnixSeconds, Visitor,
};

/// The number of bytes that memcached adds to key + value when it compares an item with its size
/// limit: 48 for the header, 8 for the CAS ID, one for the end of the key, and two for the line end
/// of the value; 4 more for flags.
const ITEM_OVERHEAD: u64 = 59;

/// Returns the size of an item by memcached's rule.
pub(crate) fn item_size(key_len: usize, value_len: usize, flags: u32) -> u64 {
    ITEM_OVERHEAD + (key_len + value_len) as u64 + if flags != 0 { 4 } else { 0 }
}

pub(crate) struct StoreVisitor<'v> {
    pub(crate) store: &'v Store<'v>,
    pub(crate) now: UnixSeconds,
    pub(crate) tracking: &'v AccessTracking,
    pub(crate) versions: &'v VersionCounter,
    /// The reply to the client.
    pub(crate) outcome: Reply<'static>,
    /// The value that append or prepend has joined.
    joined: Vec<u8>,
    long: LongJoin,
}

/// The state of an append or prepend with a long result. The result is assembled outside of the
/// record's lock, from a value that was seen under the lock.
#[derive(Default)]
pub(crate) enum LongJoin {
    /// The result is short, or was not needed so far.
    #[default]
    None,
    /// The result must be assembled from this value.
    Wanted(SeenValue),
    /// The result was assembled from this value. It is valid while the record still has the value.
    Made(SeenValue, SharedBytes),
    /// The result must be assembled under the lock.
    UnderLock,
}

impl<'v> StoreVisitor<'v> {
    pub(crate) fn new(
        store: &'v Store<'v>,
        now: UnixSeconds,
        tracking: &'v AccessTracking,
        versions: &'v VersionCounter,
    ) -> Self {
        StoreVisitor {
            store,
            now,
            tracking,
            versions,
            outcome: Reply::NotStored,
            joined: Vec::new(),
            long: LongJoin::None,
        }
    }

    /// Returns the value that was seen, if the result must be assembled outside of the lock.
    #[inline]
    pub(crate) fn take_wanted(&mut self) -> Option<SeenValue> {
        // This is rarely true, so it is checked before anything is moved.
        if !matches!(self.long, LongJoin::Wanted(_)) {
            return None;
        }
        match std::mem::take(&mut self.long) {
            LongJoin::Wanted(seen) => Some(seen),
            _ => None,
        }
    }

    /// Sets the state for the next visit.
    pub(crate) fn go_on(&mut self, long: LongJoin) {
        self.long = long;
    }

    /// Returns the pieces of an append or prepend in their order.
    pub(crate) fn pieces<'p>(store: &Store<'p>, old: &'p [u8]) -> [&'p [u8]; 2] {
        match store.mode {
            StoreMode::Append => [old, store.value],
            _ => [store.value, old],
        }
    }

    fn keep(&mut self, outcome: Reply<'static>) -> Action<'static> {
        self.outcome = outcome;
        Action::Keep
    }

    /// Returns the attributes that the request specifies.
    fn attributes(&self) -> Attributes {
        Attributes {
            has_value_list: false,
            flags: self.store.flags,
            expiry: resolve(self.store.ttl, self.now),
            version: self.versions.for_write(self.store.version, self.store.needs.version),
            marks: StaleMarks::default(),
            access: self.tracking.on_write(self.now),
        }
    }

    fn put<'a>(&'a mut self, attributes: Attributes) -> Action<'a> {
        self.outcome = Reply::Stored(StoredReply {
            version: attributes.version,
            value_len: self.store.value.len() as u64,
        });
        Action::Put(Record { shared: self.store.shared.0, ..Record::new(self.store.value, attributes) })
    }

    fn visit_absent<'a>(&'a mut self) -> Action<'a> {
        match self.store.mode {
            StoreMode::Set | StoreMode::Replace if self.store.compare.is_some() => self.keep(Reply::NotFound),
            StoreMode::Replace => self.keep(Reply::NotStored),
            StoreMode::Set | StoreMode::Add => {
                let attributes = self.attributes();
                self.put(attributes)
            }
            StoreMode::Append | StoreMode::Prepend => match self.store.vivify {
                None => self.keep(Reply::NotStored),
                Some(ttl) => {
                    let attributes = Attributes { expiry: resolve(ttl, self.now), ..self.attributes() };
                    self.put(attributes)
                }
            },
        }
    }

    fn join<'a>(&'a mut self, old: Record<'_>) -> Action<'a> {
        let pieces = StoreVisitor::pieces(self.store, old.value);
        let len = pieces[0].len() + pieces[1].len();
        let item = item_size(self.store.key.len(), len, old.attributes.flags);
        if self.store.item_size_max.is_some_and(|max| item > max) {
            return self.keep(Reply::NotStored);
        }
        let is_made = matches!(&self.long, LongJoin::Made(seen, _) if seen.is_of(old));
        // A compressed value is shown without its bytes, so it is always joined as a long one.
        if (len >= LONG_VALUE_LEN || old.compressed().is_some())
            && !is_made
            && !matches!(self.long, LongJoin::UnderLock)
            && let Some(seen) = SeenValue::of(old, LONG_VALUE_LEN)
        {
            self.long = LongJoin::Wanted(seen);
            return Action::Keep;
        }
        if !is_made {
            self.joined.clear();
            if self.joined.try_reserve_exact(len).is_err() {
                return self.keep(Reply::Refused(RefusalReason::OutOfMemory));
            }
            pieces.iter().for_each(|piece| self.joined.extend_from_slice(piece));
        }
        let attributes = Attributes {
            version: self.versions.for_write(self.store.version, self.store.needs.version),
            marks: StaleMarks::default(),
            access: self.tracking.on_write(self.now),
            expiry: old.attributes.expiry.after_access(self.now),
            ..old.attributes
        };
        self.outcome = Reply::Stored(StoredReply { version: attributes.version, value_len: len as u64 });
        Action::Put(match &self.long {
            LongJoin::Made(_, made) if is_made => {
                Record { value: made.plain().unwrap_or_default(), shared: Some(made), attributes }
            }
            _ => Record::new(&self.joined, attributes),
        })
    }
}

impl Visitor for StoreVisitor<'_> {
    fn visit<'a>(&'a mut self, old: Option<Record<'a>>) -> Action<'a> {
        let Some(old) = old else { return self.visit_absent() };
        if self.store.mode == StoreMode::Add {
            self.outcome = Reply::NotStored;
            // A failed add counts as an access, although the client did not receive the value.
            let before = old.attributes;
            let access = self.tracking.on_use(self.now, before.access).or(before.access);
            let after = Attributes { access, expiry: before.expiry.after_access(self.now), ..before };
            return if after == before { Action::Keep } else { Action::Retag(after) };
        }
        let stored = old.attributes.version;
        if let Some(wanted) = self.store.compare
            && !equals(stored, wanted)
        {
            let replaces = matches!(self.store.mode, StoreMode::Set | StoreMode::Replace);
            if !(replaces && self.store.stale_if_older && self.versions.is_older(wanted, stored)) {
                return self.keep(Reply::Exists);
            }
            // The new value is older than the existing one, but the existing one is stale. So the
            // new value is stored as stale, with the remaining time to live of the existing one.
            let marks = StaleMarks { stale: true, token_sent: old.attributes.marks.token_sent };
            let attributes = Attributes {
                expiry: old.attributes.expiry.after_access(self.now),
                marks,
                ..self.attributes()
            };
            return self.put(attributes);
        }
        match self.store.mode {
            StoreMode::Append | StoreMode::Prepend => self.join(old),
            _ => {
                let attributes = self.attributes();
                self.put(attributes)
            }
        }
    }

    fn overwrites(&self) -> bool {
        self.store.mode == StoreMode::Set && self.store.compare.is_none()
    }

    fn ignores_value(&self) -> bool {
        self.overwrites()
    }

    fn reads_shared(&self) -> bool {
        // A long value is joined outside of the lock, except after many attempts.
        !matches!(self.long, LongJoin::UnderLock)
    }
}
