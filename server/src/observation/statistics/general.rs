//! `stats`: the process, its connections, its commands, its memory.

use super::{Writer, seconds};
use crate::handle::Stopping;
use crate::observation::counters::{Own, WorkerCounters};
use crate::process;
use crate::session::memcached::service::MEMCACHED_VERSION;
use crate::shared::Shared;
use std::sync::atomic::Ordering;
use todana_core::SizeClass;

pub(super) fn put(shared: &Shared, w: &mut Writer<'_, '_>) {
    let (user, system) = process::cpu_time();
    let options = &shared.options;
    let connections = &shared.observation.connections;
    let current = connections.current.load(Ordering::Relaxed);
    let c = shared.databases.primary().database.counters();
    let status = shared.databases.primary().database.status();
    let sweeps = shared.databases.primary().database.sweeps();
    let mut classes = SizeClass::default();
    status.classes.iter().for_each(|class| classes += *class);
    let sum = |of: fn(&WorkerCounters) -> &Own| {
        shared.observation.workers.iter().fold(0u64, |sum, worker| sum.wrapping_add(of(worker).get()))
    };
    let sums = shared.observation.worker_sums();
    w.put("pid", std::process::id());
    w.put("uptime", shared.observation.started.elapsed().as_secs());
    w.put("time", todana::Clock::now(&*shared.clock).0);
    w.put("version", MEMCACHED_VERSION);
    w.put("todana_version", env!("CARGO_PKG_VERSION"));
    w.put("libevent", "none");
    w.put("pointer_size", usize::BITS);
    w.put("rusage_user", seconds(user));
    w.put("rusage_system", seconds(system));
    w.put("max_connections", options.limits.connections_max);
    w.put("curr_connections", current);
    w.put("total_connections", connections.total.load(Ordering::Relaxed));
    w.put("rejected_connections", connections.rejected.load(Ordering::Relaxed));
    w.put("connection_structures", current);
    w.put("response_obj_oom", sums.readers_cut_off);
    w.put("response_obj_count", sum(|worker| &worker.pending_outputs));
    w.put("response_obj_bytes", sum(|worker| &worker.pending_bytes));
    w.put("read_buf_count", options.limits.threads);
    w.put("read_buf_bytes", sum(|worker| &worker.partial_bytes));
    w.put("read_buf_bytes_free", 0);
    w.put("read_buf_oom", 0);
    w.put("reserved_fds", 2 * options.limits.threads + 32);
    w.put("cmd_get", c.cmd_get);
    w.put("cmd_set", c.cmd_set);
    w.put("cmd_flush", c.cmd_flush);
    w.put("cmd_touch", c.cmd_touch);
    w.put("cmd_meta", c.cmd_meta);
    w.put("get_hits", c.get_hits);
    w.put("get_misses", c.get_misses);
    w.put("get_expired", c.get_expired);
    // A flush removes at once, so no read ever meets a flushed record.
    w.put("get_flushed", 0);
    w.put("delete_misses", c.delete_misses);
    w.put("delete_hits", c.delete_hits);
    w.put("incr_misses", c.incr_misses);
    w.put("incr_hits", c.incr_hits);
    w.put("decr_misses", c.decr_misses);
    w.put("decr_hits", c.decr_hits);
    w.put("cas_misses", c.cas_misses);
    w.put("cas_hits", c.cas_hits);
    w.put("cas_badval", c.cas_badval);
    w.put("touch_hits", c.touch_hits);
    w.put("touch_misses", c.touch_misses);
    w.put("store_too_large", c.store_too_large);
    w.put("store_no_memory", c.store_no_memory);
    w.put("auth_cmds", sums.logins);
    w.put("auth_errors", sums.logins_refused);
    if options.limits.idle_timeout_s > 0 {
        w.put("idle_kicks", sums.idle_kicks);
    }
    w.put("bytes_read", sums.bytes_read);
    w.put("bytes_written", sums.bytes_written);
    w.put("limit_maxbytes", shared.memory.limit_bytes().unwrap_or(0));
    let is_paused = connections.accepting_paused.load(Ordering::Relaxed);
    w.put("accepting_conns", u8::from(shared.lifecycle.stopping() == Stopping::No && !is_paused));
    w.count("listen_disabled_num", connections.accept_pauses.load(Ordering::Relaxed));
    w.count("time_in_listen_disabled_us", connections.accept_paused_us.load(Ordering::Relaxed));
    w.put("threads", options.limits.threads);
    w.put("conn_yields", sums.connection_yields);
    // The hash grows by a bucket at a time, so this is the next lower power.
    w.put("hash_power_level", status.index.buckets.max(1).ilog2());
    w.put("hash_bytes", status.index.bytes);
    w.put("hash_is_expanding", u8::from(status.index.is_growing));
    // Blocks of records are moved so that sparse pages can be given back: that is what comes nearest.
    w.put("slab_reassign_rescues", status.blocks_moved);
    for name in [
        "slab_reassign_chunk_rescues",
        "slab_reassign_inline_reclaim",
        "slab_reassign_busy_items",
        "slab_reassign_busy_deletes",
        "slab_reassign_busy_nomem",
        "slab_reassign_last_busy_status",
        "slab_reassign_running",
    ] {
        w.put(name, 0);
    }
    w.put("slabs_moved", status.pages_emptied);
    let crawler = &shared.observation.crawler;
    let is_crawling = sweeps.is_running || crawler.running.load(Ordering::Relaxed) > 0;
    w.put("lru_crawler_running", u8::from(is_crawling));
    w.put("lru_crawler_starts", crawler.starts.load(Ordering::Relaxed) + sweeps.rounds);
    w.count("lru_maintainer_juggles", shared.observation.housekeepings.load(Ordering::Relaxed));
    w.put("malloc_fails", 0);
    let log = shared.observation.observers.watchers.counts();
    w.put("log_worker_dropped", 0);
    w.count("log_worker_written", log.written);
    w.count("log_watcher_skipped", log.skipped);
    w.count("log_watcher_sent", log.sent);
    w.put("log_watchers", log.watchers);
    if let Some(tls) = &shared.listening.tls {
        tls.put_counters(|name, value| w.put(name, value));
    }
    w.put("unexpected_napi_ids", 0);
    w.put("round_robin_fallback", 0);
    w.put("bytes", status.live_bytes);
    w.put("curr_items", status.records);
    w.put("total_items", c.total_items);
    w.put("slab_global_page_pool", 0);
    w.put("expired_unfetched", classes.expired_unfetched);
    w.put("evicted_unfetched", classes.evicted_unfetched);
    // What has been used since its last turn is never evicted.
    w.put("evicted_active", 0);
    w.put("evictions", status.evictions);
    w.put("reclaimed", c.reclaimed + status.reclaimed + classes.cleared);
    w.put("crawler_reclaimed", sweeps.removed);
    w.put("crawler_items_checked", crawler.items_checked.load(Ordering::Relaxed) + sweeps.seen);
    w.put("lrutail_reflocked", 0);
    // The main queue is what comes nearest to the warm one; nothing returns from it to the small one.
    w.put("moves_to_cold", 0);
    w.put("moves_to_warm", classes.promotions);
    w.put("moves_within_lru", classes.second_chances);
    w.put("direct_reclaims", classes.evictions_by_writes);
    w.put("lru_bumps_dropped", status.uses_dropped);
    w.put("todana_committed_bytes", status.committed_bytes);
    w.put("todana_anonymous_bytes", process::anonymous_bytes().unwrap_or(0));
    w.put("todana_started", shared.observation.started_at);
}
