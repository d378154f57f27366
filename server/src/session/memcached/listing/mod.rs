//! Replies that walk over all records, sent in pieces, so that they neither delay other connections
//! nor use much memory.

mod sizes;

pub(crate) use sizes::SizeHistogram;

use crate::session::memcached::crawler::Crawler;
use crate::transport::output::{OUTPUT_MAX, Output};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use todana::Database;
use todana_core::{RecordDetails, Reply, ScanPosition};
use todana_protocol::memcached::ClassSet;
use todana_protocol::memcached::{ReplyForm, encode, item_size, size_class};

/// A piece ends after this number of records, even if none of them is shown.
const PIECE_RECORDS: usize = 4096;

/// A walk that is under way.
pub(crate) struct ListingProgress {
    crawler: Arc<Crawler>,
    database: Arc<Database>,
    form: ReplyForm<'static>,
    place: Option<ScanPosition>,
    walk: ListingKind,
}

/// The remaining room of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRoom {
    pub(crate) records: u64,
    pub(crate) bytes: usize,
}

/// The kind of a walk.
pub(crate) enum ListingKind {
    /// Shows each record of these classes.
    Records(ClassSet),
    /// Shows each record of these classes, while there is room.
    Items { classes: ClassSet, room: KeyRoom },
    /// Counts sizes, and shows them at the end.
    Sizes(SizeHistogram),
}

impl ListingProgress {
    pub(crate) fn new(
        crawler: Arc<Crawler>,
        database: Arc<Database>,
        form: ReplyForm<'static>,
        walk: ListingKind,
    ) -> ListingProgress {
        crawler.begin();
        ListingProgress { crawler, database, form, place: None, walk }
    }

    /// Writes a piece; returns true after the last one.
    pub(crate) fn step(&mut self, output: &mut Output) -> bool {
        if self.walk.is_full() {
            encode(&self.form, &Reply::End, output);
            return true;
        }
        let (form, walk) = (self.form, &mut self.walk);
        let mut seen = 0;
        let next = self.database.list(self.place.take(), &mut |key, inspection| {
            seen += 1;
            let goes_on = walk.meet(key, inspection, &form, output);
            if goes_on && seen < PIECE_RECORDS && output.len() < OUTPUT_MAX {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        self.crawler.items_checked.fetch_add(seen as u64, Ordering::Relaxed);
        if let (Ok(Some(place)), false) = (next, self.walk.is_full()) {
            self.place = Some(place);
            return false;
        }
        if let ListingKind::Sizes(histogram) = &self.walk {
            histogram.tell(&mut |reply| encode(&form, &reply, output));
        }
        encode(&form, &Reply::End, output);
        true
    }
}

impl Drop for ListingProgress {
    fn drop(&mut self) {
        self.crawler.end();
    }
}

impl ListingKind {
    /// Handles a record; returns false if no more are wanted.
    fn meet(
        &mut self,
        key: &[u8],
        inspection: RecordDetails,
        form: &ReplyForm<'_>,
        output: &mut Output,
    ) -> bool {
        let class = || size_class(item_size(inspection.key_len, inspection.value_len, inspection.flags));
        match self {
            ListingKind::Records(classes) => {
                if classes.contains(class()) {
                    encode(form, &Reply::Listed { key, inspection }, output);
                }
            }
            ListingKind::Items { classes, room } => {
                if classes.contains(class()) && room.records > 0 {
                    let before = output.len();
                    encode(form, &Reply::Listed { key, inspection }, output);
                    let written = output.len() - before;
                    // Keys that the text dialect cannot represent are left out.
                    room.records -= u64::from(written > 0);
                    room.bytes = room.bytes.saturating_sub(written);
                }
                return !self.is_full();
            }
            ListingKind::Sizes(histogram) => histogram.add(&inspection),
        }
        true
    }

    fn is_full(&self) -> bool {
        matches!(self, ListingKind::Items { room, .. } if room.records == 0 || room.bytes == 0)
    }
}
