//! `stats`: the names that tools read, with the values we have.
//!
//! Names and order are memcached 1.6's (protocol.txt and its source tree's documentation); where it has slabs we report
//! virtual classes by its size rule, and where it has something that we have not, the value is what a server without it
//! would say.

use crate::counters::{Own, WorkerCounters};
use crate::process;
use crate::server::Shared;
use crate::service::MEMCACHED_VERSION;
use crate::tls::TlsOptions;
use std::fmt::{Display, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use todana_core::{Reply, SizeClass};
use todana_protocol::memcached::{CHUNK_SIZES, ITEM_OVERHEAD_BYTES};

type Out<'a> = &'a mut dyn FnMut(Reply<'_>);

/// memcached's slab pages, by which `stats slabs` counts.
const SLAB_PAGE: u64 = 1 << 20;

/// Writes statistics, one value buffer for all.
struct Writer<'a, 'b> {
    out: &'a mut (dyn FnMut(Reply<'_>) + 'b),
    value: String,
    name: String,
}

impl Writer<'_, '_> {
    fn put(&mut self, name: &str, value: impl Display) {
        self.value.clear();
        // A String takes whatever is written.
        let _ = write!(self.value, "{value}");
        (self.out)(Reply::Statistic { name, value: &self.value });
    }

    fn put_in(&mut self, prefix: &str, class: usize, name: &str, value: impl Display) {
        let mut full = std::mem::take(&mut self.name);
        full.clear();
        let _ = write!(full, "{prefix}{class}:{name}");
        self.put(&full, value);
        self.name = full;
    }
}

/// Answers `stats GROUP`.
pub(crate) fn answer(shared: &Shared, group: &[u8], out: Out<'_>) {
    let group = group.trim_ascii();
    let word = group.split(|&byte| byte == b' ').next().unwrap_or_default();
    // Any beginning of these names is enough, as in memcached.
    let is = |name: &str| !word.is_empty() && name.as_bytes().starts_with(word);
    let mut writer = Writer { out, value: String::new(), name: String::new() };
    match word {
        b"" => general(shared, &mut writer),
        b"items" => items(shared, &mut writer),
        b"slabs" => slabs(shared, &mut writer),
        b"sizes" => writer.put("sizes_status", "disabled"),
        _ if is("reset") => {
            shared.database.reset_counters();
            shared.connections.total.store(0, Ordering::Relaxed);
            shared.connections.rejected.store(0, Ordering::Relaxed);
            return out(Reply::Reset);
        }
        _ if is("settings") => settings(shared, &mut writer),
        _ => return out(Reply::Unknown),
    }
    out(Reply::End);
}

fn seconds(time: std::time::Duration) -> String {
    format!("{}.{:06}", time.as_secs(), time.subsec_micros())
}

fn general(shared: &Shared, w: &mut Writer<'_, '_>) {
    let (user, system) = process::cpu_time();
    let options = &shared.options;
    let connections = &shared.connections;
    let current = connections.current.load(Ordering::Relaxed);
    let c = shared.database.counters();
    let status = shared.database.engine().status();
    let sum = |of: fn(&WorkerCounters) -> &Own| {
        shared.workers.iter().fold(0u64, |sum, worker| sum.wrapping_add(of(worker).get()))
    };
    w.put("pid", std::process::id());
    w.put("uptime", shared.started.elapsed().as_secs());
    w.put("time", todana::Clock::now(&*shared.clock).0);
    w.put("version", MEMCACHED_VERSION);
    w.put("todana_version", env!("CARGO_PKG_VERSION"));
    w.put("libevent", "none");
    w.put("pointer_size", usize::BITS);
    w.put("rusage_user", seconds(user));
    w.put("rusage_system", seconds(system));
    w.put("max_connections", options.connections_max);
    w.put("curr_connections", current);
    w.put("total_connections", connections.total.load(Ordering::Relaxed));
    w.put("rejected_connections", connections.rejected.load(Ordering::Relaxed));
    w.put("connection_structures", current);
    w.put("response_obj_oom", sum(|worker| &worker.readers_cut_off));
    w.put("response_obj_count", 0);
    w.put("response_obj_bytes", sum(|worker| &worker.pending_bytes));
    w.put("read_buf_count", shared.workers.len());
    w.put("read_buf_bytes", sum(|worker| &worker.partial_bytes));
    w.put("read_buf_bytes_free", 0);
    w.put("read_buf_oom", 0);
    w.put("reserved_fds", 2 * options.threads + 32);
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
    w.put("auth_cmds", 0);
    w.put("auth_errors", 0);
    w.put("bytes_read", sum(|worker| &worker.bytes_read));
    w.put("bytes_written", sum(|worker| &worker.bytes_written));
    w.put("limit_maxbytes", shared.memory_limit_bytes().unwrap_or(0));
    w.put("accepting_conns", 1);
    w.put("listen_disabled_num", connections.accept_pauses.load(Ordering::Relaxed));
    w.put("time_in_listen_disabled_us", 0);
    w.put("threads", options.threads);
    w.put("conn_yields", sum(|worker| &worker.connection_yields));
    for name in [
        "hash_power_level",
        "hash_bytes",
        "hash_is_expanding",
        "slab_reassign_rescues",
        "slab_reassign_chunk_rescues",
        "slab_reassign_inline_reclaim",
        "slab_reassign_busy_items",
        "slab_reassign_busy_deletes",
        "slab_reassign_busy_nomem",
        "slab_reassign_last_busy_status",
        "slab_reassign_running",
        "slabs_moved",
        "lru_crawler_running",
        "lru_crawler_starts",
        "lru_maintainer_juggles",
        "malloc_fails",
        "log_worker_dropped",
        "log_worker_written",
        "log_watcher_skipped",
        "log_watcher_sent",
        "log_watchers",
    ] {
        w.put(name, 0);
    }
    if let Some(tls) = &shared.tls {
        tls.put_counters(|name, value| w.put(name, value));
    }
    w.put("unexpected_napi_ids", 0);
    w.put("round_robin_fallback", 0);
    w.put("bytes", status.live_bytes);
    w.put("curr_items", status.records);
    w.put("total_items", c.total_items);
    w.put("slab_global_page_pool", 0);
    w.put("expired_unfetched", 0);
    w.put("evicted_unfetched", 0);
    w.put("evicted_active", 0);
    w.put("evictions", status.evictions);
    w.put("reclaimed", c.reclaimed);
    for name in [
        "crawler_reclaimed",
        "crawler_items_checked",
        "lrutail_reflocked",
        "moves_to_cold",
        "moves_to_warm",
        "moves_within_lru",
        "direct_reclaims",
        "lru_bumps_dropped",
    ] {
        w.put(name, 0);
    }
    w.put("todana_committed_bytes", status.committed_bytes);
    w.put("todana_resident_bytes", process::resident_bytes());
    w.put("todana_started", shared.started_at);
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

fn settings(shared: &Shared, w: &mut Writer<'_, '_>) {
    let options = &shared.options;
    let inter = if options.listen.is_empty() { "127.0.0.1".to_string() } else { options.listen.join(",") };
    let socket =
        options.unix_socket.as_ref().map_or_else(|| "NULL".into(), |path| path.display().to_string());
    w.put("maxbytes", shared.memory_limit_bytes().unwrap_or(0));
    w.put("maxconns", options.connections_max);
    w.put("tcpport", shared.tcp_port);
    w.put("udpport", 0);
    w.put("inter", inter);
    w.put("verbosity", options.verbosity);
    w.put("oldest", 0);
    w.put("evictions", on_off(!options.refuse_when_full));
    w.put("domain_socket", socket);
    w.put("umask", format_args!("{:o}", options.unix_mask));
    w.put("growth_factor", "1.25");
    w.put("chunk_size", 48);
    w.put("num_threads", options.threads);
    w.put("num_threads_per_udp", 0);
    w.put("stat_key_prefix", ":");
    w.put("detail_enabled", "no");
    w.put("reqs_per_event", options.requests_per_event);
    w.put("cas_enabled", "yes");
    w.put("tcp_backlog", options.listen_backlog);
    w.put("binding_protocol", "ascii");
    w.put("auth_enabled_sasl", "no");
    w.put("auth_enabled_ascii", "no");
    w.put("item_size_max", options.item_size_max);
    w.put("maxconns_fast", "yes");
    w.put("hashpower_init", 0);
    w.put("slab_reassign", "no");
    w.put("slab_automove", 0);
    w.put("slab_automove_ratio", "0.80");
    w.put("slab_automove_window", 10);
    w.put("slab_automove_freeratio", "0.010");
    w.put("slab_chunk_max", 524_288);
    w.put("lru_crawler", "no");
    w.put("lru_crawler_sleep", 100);
    w.put("lru_crawler_tocrawl", 0);
    w.put("tail_repair_time", 0);
    w.put("flush_enabled", yes_no(options.flush_allowed));
    w.put("dump_enabled", "no");
    w.put("hash_algorithm", "rapidhash");
    w.put("lru_maintainer_thread", "no");
    w.put("lru_segmented", "no");
    w.put("hot_lru_pct", 20);
    w.put("warm_lru_pct", 40);
    w.put("hot_max_factor", "0.20");
    w.put("warm_max_factor", "2.00");
    w.put("temp_lru", "no");
    w.put("temporary_ttl", 61);
    w.put("idle_timeout", 0);
    w.put("watcher_logbuf_size", 0);
    w.put("worker_logbuf_size", 0);
    w.put("read_buf_mem_limit", 0);
    w.put("track_sizes", "no");
    w.put("inline_ascii_response", "no");
    w.put("ext_item_size", 0);
    w.put("ext_item_age", 0);
    w.put("ext_low_ttl", 0);
    w.put("ext_recache_rate", 0);
    w.put("ext_wbuf_size", 0);
    w.put("ext_compact_under", 0);
    w.put("ext_drop_under", 0);
    w.put("ext_max_sleep", 0);
    w.put("ext_max_frag", 0);
    w.put("slab_automove_extra", 0);
    w.put("ext_drop_unread", 0);
    tls_settings(options.tls.as_ref(), w);
    w.put("memory_file", "NULL");
    w.put("client_flags_size", 4);
    w.put("shutdown_command", yes_no(options.shutdown_allowed));
}

fn tls_settings(tls: Option<&TlsOptions>, w: &mut Writer<'_, '_>) {
    let path = |path: Option<&PathBuf>| path.map_or_else(|| "NULL".into(), |path| path.display().to_string());
    w.put("ssl_enabled", yes_no(tls.is_some()));
    w.put("ssl_chain_cert", path(tls.map(|tls| &tls.chain)));
    w.put("ssl_key", path(tls.and_then(|tls| tls.key.as_ref())));
    // OpenSSL's numbers, which memcached shows: 1 asks, 2 more requires, 4 more asks once.
    w.put("ssl_verify_mode", tls.map_or(0, |tls| [0, 1, 3, 7][usize::from(tls.verify_mode.min(3))]));
    // Either format is taken, whatever is said.
    w.put("ssl_keyformat", 1);
    w.put("ssl_ciphers", tls.and_then(|tls| tls.ciphers.as_deref()).unwrap_or("NULL"));
    w.put("ssl_ca_cert", path(tls.and_then(|tls| tls.ca.as_ref())));
    w.put("ssl_wbuf_size", 16384);
    w.put("ssl_session_cache", yes_no(tls.is_some_and(|tls| tls.resumption)));
    w.put("ssl_kernel_tls", "no");
    w.put("ssl_min_version", if tls.is_some_and(|tls| tls.only_1_3) { "tlsv1.3" } else { "tlsv1.2" });
}

/// The classes that hold something, or ever evicted, numbered as memcached numbers them; what is larger than the last
/// counts there.
fn classes(shared: &Shared) -> Vec<(usize, SizeClass)> {
    let mut classes = shared.database.engine().status().classes;
    if classes.len() > CHUNK_SIZES.len() {
        let beyond = classes.split_off(CHUNK_SIZES.len());
        if let Some(last) = classes.last_mut() {
            for class in beyond {
                last.records += class.records;
                last.plain_bytes += class.plain_bytes;
                last.evictions += class.evictions;
            }
        }
    }
    let numbered = classes.into_iter().enumerate().map(|(index, class)| (index + 1, class));
    numbered.filter(|(_, class)| class.records > 0 || class.evictions > 0).collect()
}

fn items(shared: &Shared, w: &mut Writer<'_, '_>) {
    for (number, class) in classes(shared) {
        let mut put = |name: &str, value: u64| w.put_in("items:", number, name, value);
        put("number", class.records);
        put("number_hot", 0);
        put("number_warm", 0);
        put("number_cold", class.records);
        for name in ["age_hot", "age_warm", "age"] {
            put(name, 0);
        }
        put("mem_requested", class.plain_bytes + class.records * ITEM_OVERHEAD_BYTES);
        put("evicted", class.evictions);
        for name in [
            "evicted_nonzero",
            "evicted_time",
            "outofmemory",
            "tailrepairs",
            "reclaimed",
            "expired_unfetched",
            "evicted_unfetched",
            "evicted_active",
            "crawler_reclaimed",
            "crawler_items_checked",
            "lrutail_reflocked",
            "moves_to_cold",
            "moves_to_warm",
            "moves_within_lru",
            "direct_reclaims",
            "hits_to_hot",
            "hits_to_warm",
            "hits_to_cold",
            "hits_to_temp",
        ] {
            put(name, 0);
        }
    }
}

fn slabs(shared: &Shared, w: &mut Writer<'_, '_>) {
    let mut active = 0;
    let mut total = 0;
    for (number, class) in classes(shared) {
        let chunk = u64::from(CHUNK_SIZES[number - 1]);
        let per_page = SLAB_PAGE / chunk;
        let bytes = class.plain_bytes + class.records * ITEM_OVERHEAD_BYTES;
        let chunks = class.records.max(bytes.div_ceil(chunk));
        let pages = chunks.div_ceil(per_page);
        active += 1;
        total += pages * SLAB_PAGE;
        let mut put = |name: &str, value: u64| w.put_in("", number, name, value);
        put("chunk_size", chunk);
        put("chunks_per_page", per_page);
        put("total_pages", pages);
        put("total_chunks", pages * per_page);
        put("used_chunks", chunks);
        put("free_chunks", pages * per_page - chunks);
        for name in [
            "free_chunks_end",
            "get_hits",
            "cmd_set",
            "delete_hits",
            "incr_hits",
            "decr_hits",
            "cas_hits",
            "cas_badval",
            "touch_hits",
        ] {
            put(name, 0);
        }
    }
    w.put("active_slabs", active);
    w.put("total_malloced", total);
}
