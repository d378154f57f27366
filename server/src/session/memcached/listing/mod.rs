//! Writes replies that need a walk over all records. They are sent in pieces, so that they neither
//! delay other connections nor use much memory.

mod sizes;

pub(crate) use sizes::SizeHistogram;

use crate::session::memcached::crawler::CrawlerState;
use crate::transport::output::{ConnectionOutput, OUTPUT_MAX};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use todana::Database;
use todana_core::{RecordDetails, Reply, ScanPosition};
use todana_protocol::memcached::ClassSet;
use todana_protocol::memcached::{ReplyForm, encode, item_size, size_class};

/// A piece ends after this number of records, even if none of them is shown.
const PIECE_RECORDS: usize = 4096;

/// A walk in progress.
pub(crate) struct ListingProgress {
    crawler: Arc<CrawlerState>,
    database: Arc<Database>,
    form: ReplyForm<'static>,
    place: Option<ScanPosition>,
    walk: ListingKind,
}

/// The number of records and bytes that a list may still contain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListingRoom {
    pub(crate) records: u64,
    pub(crate) bytes: usize,
}

/// The kind of a walk.
pub(crate) enum ListingKind {
    /// Shows each record of these classes.
    Records(ClassSet),
    /// Shows each record of these classes, while there is room.
    Items { classes: ClassSet, room: ListingRoom },
    /// Counts the sizes of all records, and shows the counts at the end.
    Sizes(SizeHistogram),
}

impl ListingProgress {
    pub(crate) fn new(
        crawler: Arc<CrawlerState>,
        database: Arc<Database>,
        form: ReplyForm<'static>,
        walk: ListingKind,
    ) -> ListingProgress {
        crawler.begin();
        ListingProgress { crawler, database, form, place: None, walk }
    }

    /// Writes the next piece. Returns true after the last piece.
    pub(crate) fn step(&mut self, output: &mut ConnectionOutput) -> bool {
        if self.walk.is_full() {
            encode(&self.form, &Reply::End, output);
            return true;
        }
        let (form, walk) = (self.form, &mut self.walk);
        let mut seen = 0;
        let next = self.database.list(self.place.take(), &mut |key, inspection| {
            seen += 1;
            let may_continue = walk.visit_record(key, inspection, &form, output);
            if may_continue && seen < PIECE_RECORDS && output.len() < OUTPUT_MAX {
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
            histogram.report(&mut |reply| encode(&form, &reply, output));
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
    /// Handles a record. Returns false if the list is complete.
    fn visit_record(
        &mut self,
        key: &[u8],
        inspection: RecordDetails,
        form: &ReplyForm<'_>,
        output: &mut ConnectionOutput,
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
                    // A key that the text dialect cannot represent is omitted, and does not count.
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
