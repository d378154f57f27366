//! `stats`: the data that is kept, where there is a data directory or a database on disk.

use super::Writer;
use super::databases::{health, takes_writes};
use crate::shared::Shared;
use std::time::Duration;
use todana::update_log::Sync;

fn words(sync: Sync) -> String {
    match sync {
        Sync::Always => "always".to_string(),
        Sync::Every(interval) => interval.as_millis().to_string(),
        Sync::Never => "never".to_string(),
    }
}

pub(super) fn put(shared: &Shared, w: &mut Writer<'_, '_>) {
    if let Some(syncing) = &shared.databases.primary().syncing {
        w.put("todana_sync", words(syncing.sync()));
        w.put("todana_log_health", health(shared.databases.primary()).unwrap_or("well"));
        w.put("todana_log_takes_writes", u8::from(takes_writes(shared.databases.primary())));
        w.put("todana_log_refusals", shared.databases.primary().database.counters().log_refusals);
        return;
    }
    let Some(place) = &shared.options.databases.data else { return };
    w.put("todana_sync", words(place.sync));
    w.put("todana_loading", u8::from(shared.lifecycle.is_loading()));
    let Some(log) = shared.databases.primary().database.log() else { return };
    // In this order, so that no more is on disk than was appended.
    let synced = log.synced().0;
    let end = log.end().0;
    w.put("todana_log_health", health(shared.databases.primary()).unwrap_or("well"));
    w.put("todana_log_takes_writes", u8::from(takes_writes(shared.databases.primary())));
    w.put("todana_log_refusals", shared.databases.primary().database.counters().log_refusals);
    w.put("todana_log_end", end);
    w.put("todana_log_synced", synced);
    w.put("todana_log_unsynced_bytes", end.saturating_sub(synced));
    let Some(directory) = shared.persistence.exports.directory(0) else { return };
    let (footprint, history) = (directory.footprint(), directory.history());
    w.put("todana_log_segments", footprint.log_segments);
    w.put("todana_log_bytes", footprint.log_bytes);
    w.put("todana_checkpoints", footprint.checkpoints);
    w.put("todana_checkpoint_bytes", footprint.checkpoint_bytes);
    w.put("todana_checkpoints_made", history.made);
    w.put("todana_checkpoints_failed", history.failed);
    let last = history.last.as_ref();
    w.put("todana_last_checkpoint_time", last.map_or(0, |last| last.made_ms / 1000));
    let took = last.map_or(Duration::ZERO, |last| last.took);
    w.put("todana_last_checkpoint_seconds", super::seconds(took));
    w.put("todana_last_checkpoint_bytes", last.map_or(0, |last| last.len));
    w.put("todana_last_checkpoint_records", last.map_or(0, |last| last.records));
}
