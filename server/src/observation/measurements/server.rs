//! Defines the figures of the process, its connections, its commands and its background work.

use super::{MeasurementValue, ServerReadings, table};
use crate::handle::StopStage;
use crate::process;
use crate::session::memcached::commands::MEMCACHED_VERSION;
use crate::shared::SharedState;
use std::sync::atomic::Ordering::Relaxed;
use todana::Counters;

table! { PROCESS, "Process", "", |s, r: ServerReadings|
    _, _, "memcached_up", Gauge, "Always 1." => 1u64;
    "pid", "serv_proc_id", _, Gauge, "Process ID." => std::process::id();
    "uptime", _, "memcached_uptime_seconds", Counter, "Seconds since the start." =>
        s.observation.started.elapsed().as_secs();
    _, "serv_running_term", _, Counter, "Seconds since the start, with six decimals." => s.observation.started.elapsed();
    "time", _, "memcached_time_seconds", Gauge, "The server's clock, Unix time." => todana::Clock::now(&*s.clock).0;
    _, "serv_current_time", _, Gauge, "The system's clock, Unix time, with six decimals." => process::unix_time();
    "version", _, "memcached_version{version}", Gauge, "The version of memcached that the server reports to clients." =>
        MEMCACHED_VERSION;
    "todana_version", _, "todana_build_info{version}", Gauge, "The version of Todana." => env!("CARGO_PKG_VERSION");
    "libevent", _, _, Gauge, "The version of libevent: always `none`." => "none";
    "pointer_size", _, _, Gauge, "Bits of an address." => usize::BITS;
    "rusage_user", "sys_ru_utime", "memcached_process_user_cpu_seconds_total", Counter, "CPU time in user mode." =>
        r.cpu_time.0;
    "rusage_system", "sys_ru_stime", "memcached_process_system_cpu_seconds_total", Counter, "CPU time in the kernel." =>
        r.cpu_time.1;
    _, _, "memcached_process_cpu_seconds_total", Counter, "CPU time, user and system." => r.cpu_time.0 + r.cpu_time.1;
    _, "sys_mem_rss", "memcached_process_resident_memory_bytes", Gauge, "Resident memory." =>
        Some(process::resident_bytes()).filter(|&bytes| bytes > 0);
    _, "sys_mem_size", "memcached_process_virtual_memory_bytes", Gauge, "Address space in use." =>
        process::virtual_bytes();
    _, _, "memcached_process_virtual_memory_max_bytes", Gauge, "Limit of the address space; the largest number if there is none." =>
        process::virtual_bytes_max().unwrap_or(u64::MAX);
    _, "sys_mem_peak", _, Gauge, "Largest address space so far." =>
        process::kibibytes("/proc/self/status", "VmPeak:");
    _, "sys_mem_total", _, Gauge, "Memory of the machine." => process::kibibytes("/proc/meminfo", "MemTotal:");
    _, "sys_mem_free", _, Gauge, "Free memory of the machine." => process::kibibytes("/proc/meminfo", "MemFree:");
    _, "sys_mem_cached", _, Gauge, "Memory of the machine in the page cache." => process::kibibytes("/proc/meminfo", "Cached:");
    _, _, "memcached_process_open_fds", Gauge, "Open files." => process::open_files();
    _, _, "memcached_process_max_fds", Gauge, "Limit of open files." => process::files_max();
    _, _, "memcached_process_start_time_seconds", Gauge, "Start of the process, Unix time." => process::started_at();
}

table! { CONNECTIONS, "Connections", "", |s, r: ServerReadings|
    "max_connections", _, "memcached_max_connections", Gauge, "Limit of connections at one time (-c)." =>
        s.options.limits.connections_max;
    "curr_connections", "serv_conn_count", "memcached_current_connections", Gauge, "Open connections." =>
        r.connections;
    "total_connections", _, "memcached_connections_total", Counter, "Connections opened." => r.sums.connections;
    "rejected_connections", _, "memcached_connections_rejected_total", Counter, "Connections refused at the limit (-c)." =>
        r.sums.connections_rejected;
    "connection_structures", _, _, Gauge, "Open connections." => r.connections;
    "response_obj_oom", _, "todana_readers_cut_off_total", Counter,
        "Clients disconnected because too many bytes waited for them." => r.sums.readers_cut_off;
    _, _, "todana_cold_gets_total", Counter, "Gets that waited for a read from the disk." => r.sums.cold_gets;
    "response_obj_count", _, _, Gauge, "Slow clients for which replies wait." =>
        s.observation.sum(|worker| &worker.pending_outputs);
    "response_obj_bytes", _, "todana_pending_output_bytes", Gauge, "Bytes waiting for clients that read slowly." =>
        s.observation.sum(|worker| &worker.pending_bytes);
    "read_buf_count", _, _, Gauge, "Read buffers, one per thread." => s.options.limits.threads;
    "read_buf_bytes", _, "todana_partial_request_bytes", Gauge, "Bytes of requests that are not complete yet." =>
        s.observation.sum(|worker| &worker.partial_bytes);
    "read_buf_bytes_free", _, _, Gauge, "Always 0." => 0u64;
    "read_buf_oom", _, _, Counter, "Always 0." => 0u64;
    "reserved_fds", _, _, Gauge, "Descriptors reserved for purposes other than connections." =>
        2 * s.options.limits.threads + 32;
    _, _, "todana_held_bytes", Gauge,
        "Memory that connections hold for unfinished requests and unsent replies, without long values." =>
        s.memory.held_bytes();
    _, _, "todana_held_limit_bytes", Gauge, "Limit of `todana_held_bytes`: a quarter of -m, or 1 GiB with -m 0." => s.memory.held_max();
}

table! { COMMANDS, "Commands",
    "The labels of `memcached_commands_total` are: `get`, `delete`, `incr`, `decr`, `cas` and `touch`,\n\
     each with `hit` and `miss`; `cas` with `badval`; `set` and `flush` with `hit`.", |s, r: ServerReadings|
    "cmd_get", _, _, Counter, "Reads: one for each key." => r.counters.cmd_get;
    "cmd_set", _, _, Counter, "Stores, including compare-and-sets." => r.counters.cmd_set;
    _, _, "memcached_commands_total{command=set,status=hit}", Counter,
        "Requests by command and outcome; `set` does not include compare-and-sets." => plain_sets(&r.counters);
    "cmd_flush", _, "memcached_commands_total{command=flush,status=hit}", Counter, "Flushes." => r.counters.cmd_flush;
    "cmd_touch", _, _, Counter, "Touches, and reads that gave a new time to live." => r.counters.cmd_touch;
    "cmd_meta", _, "todana_meta_commands_total", Counter, "Meta commands of any kind." => r.counters.cmd_meta;
    "get_hits", _, "memcached_commands_total{command=get,status=hit}", Counter, "Reads that found a record." =>
        r.counters.get_hits;
    "get_misses", _, "memcached_commands_total{command=get,status=miss}", Counter, "Reads that found no record." =>
        r.counters.get_misses;
    "get_expired", _, "todana_get_expired_total", Counter,
        "Commands that found an expired record; such a read is also a miss." => r.counters.get_expired;
    "get_flushed", _, _, Counter, "Always 0, because a flush removes records at once." => 0u64;
    "delete_misses", _, "memcached_commands_total{command=delete,status=miss}", Counter, "Deletes that found no record." =>
        r.counters.delete_misses;
    "delete_hits", _, "memcached_commands_total{command=delete,status=hit}", Counter, "Deletes that found a record." =>
        r.counters.delete_hits;
    "incr_misses", _, "memcached_commands_total{command=incr,status=miss}", Counter, "Increments that found no record." =>
        r.counters.incr_misses;
    "incr_hits", _, "memcached_commands_total{command=incr,status=hit}", Counter, "Increments that found a record." =>
        r.counters.incr_hits;
    "decr_misses", _, "memcached_commands_total{command=decr,status=miss}", Counter, "Decrements that found no record." =>
        r.counters.decr_misses;
    "decr_hits", _, "memcached_commands_total{command=decr,status=hit}", Counter, "Decrements that found a record." =>
        r.counters.decr_hits;
    "cas_misses", _, "memcached_commands_total{command=cas,status=miss}", Counter,
        "Compare-and-sets that found no record." => r.counters.cas_misses;
    "cas_hits", _, "memcached_commands_total{command=cas,status=hit}", Counter, "Compare-and-sets that stored a value." =>
        r.counters.cas_hits;
    "cas_badval", _, "memcached_commands_total{command=cas,status=badval}", Counter,
        "Compare-and-sets that found another version." => r.counters.cas_badval;
    "touch_hits", _, "memcached_commands_total{command=touch,status=hit}", Counter, "Touches that found a record." =>
        r.counters.touch_hits;
    "touch_misses", _, "memcached_commands_total{command=touch,status=miss}", Counter, "Touches that found no record." =>
        r.counters.touch_misses;
    "store_too_large", _, "memcached_item_too_large_total", Counter, "Stores refused because of their size (-I)." =>
        r.counters.store_too_large;
    "store_no_memory", _, "memcached_item_no_memory_total", Counter, "Stores refused because memory was short." =>
        r.counters.store_no_memory;
    "auth_cmds", _, "todana_auth_attempts_total", Counter, "Login attempts." => r.sums.logins;
    "auth_errors", _, "todana_auth_errors_total", Counter, "Logins refused." => r.sums.logins_refused;
    "idle_kicks", _, _, Counter, "Connections closed because they were idle; only with an idle timeout." =>
        Some(r.sums.idle_kicks).filter(|_| s.options.limits.idle_timeout_s > 0);
    "bytes_read", _, "memcached_read_bytes_total", Counter, "Bytes received from clients." => r.sums.bytes_read;
    "bytes_written", _, "memcached_written_bytes_total", Counter, "Bytes sent to clients." => r.sums.bytes_written;
}

table! { LISTENING, "Limits and listening", "", |s, r: ServerReadings|
    "limit_maxbytes", _, "memcached_limit_bytes", Gauge, "The memory limit of the process, 0 for none (-m)." =>
        s.memory.limit_bytes().unwrap_or(0);
    "accepting_conns", _, "memcached_accepting_connections", Gauge, "1 while new connections are accepted." =>
        is_accepting(s);
    // The name in memcached_exporter up to 0.10.
    _, _, "memcached_accepting_conns", Gauge, "1 while new connections are accepted (older name)." => is_accepting(s);
    "listen_disabled_num", _, "memcached_connections_listener_disabled_total", Counter,
        "Number of times that accepting paused." => r.sums.accept_pauses;
    "time_in_listen_disabled_us", _, _, Counter, "Microseconds for which accepting was paused." => r.sums.accept_paused_us;
    "threads", "serv_thread_count", "todana_worker_threads", Gauge, "Threads that serve clients (-t)." =>
        s.options.limits.threads;
    "conn_yields", _, "memcached_connections_yielded_total", Counter, "Number of times that a connection yielded to others (-R)." =>
        r.sums.connection_yields;
}

table! { MAINTENANCE, "Index and maintenance", "", |s, r: ServerReadings|
    // The hash grows by one bucket at a time, so this is the next lower power of two.
    "hash_power_level", _, _, Gauge, "Buckets of all shards, as a power of two, rounded down." =>
        r.status.index.buckets.max(1).ilog2();
    "hash_bytes", _, _, Gauge, "Bytes of the directories of all indexes." => r.status.index.bytes;
    "hash_is_expanding", _, _, Gauge, "1 if an index has grown within the last second or two." => r.status.index.is_growing;
    // This is the figure of Todana that is nearest to memcached's.
    "slab_reassign_rescues", _, _, Counter, "Blocks of records moved so that sparse memory could be freed." =>
        r.status.blocks_moved;
    "slab_reassign_chunk_rescues", _, _, Counter, "Always 0." => 0u64;
    "slab_reassign_inline_reclaim", _, _, Counter, "Always 0." => 0u64;
    "slab_reassign_busy_items", _, _, Counter, "Always 0." => 0u64;
    "slab_reassign_busy_deletes", _, _, Counter, "Always 0." => 0u64;
    "slab_reassign_busy_nomem", _, _, Counter, "Always 0." => 0u64;
    "slab_reassign_last_busy_status", _, _, Gauge, "Always 0." => 0u64;
    "slab_reassign_running", _, _, Gauge, "Always 0." => 0u64;
    "slabs_moved", _, _, Counter, "Pages, or parts of larger regions, emptied by these moves." => r.status.pages_emptied;
    "lru_crawler_running", _, _, Gauge, "1 while a sweep or a list is running." =>
        r.sweeps.is_running || s.observation.crawler.running.load(Relaxed) > 0;
    "lru_crawler_starts", _, "memcached_lru_crawler_starts_total", Counter, "Sweeps and lists of keys that have begun." =>
        s.observation.crawler.starts.load(Relaxed) + r.sweeps.rounds;
    "lru_maintainer_juggles", _, _, Counter, "Rounds of the maintenance thread." => r.sums.maintenance_rounds;
    "malloc_fails", _, _, Counter, "Always 0." => 0u64;
    "log_worker_dropped", _, _, Counter, "Always 0." => 0u64;
    "log_worker_written", _, _, Counter, "Lines written for watchers." => r.sums.lines_written;
    "log_watcher_skipped", _, _, Counter, "Lines dropped because the buffer of a watcher was full." => r.sums.lines_skipped;
    "log_watcher_sent", _, _, Counter, "Lines sent to watchers." => r.sums.lines_sent;
    "log_watchers", _, _, Gauge, "Connections that watch events." => s.observation.observers.watchers.counts().watchers;
    "ssl_new_sessions", _, _, Counter, "New TLS sessions; only with a session cache." =>
        s.listening.tls.as_ref().and_then(|tls| tls.new_sessions());
    "ssl_handshake_errors", _, _, Counter, "TLS handshakes that failed." =>
        s.listening.tls.as_ref().map(|tls| tls.handshake_errors());
    "ssl_proto_errors", _, _, Counter, "TLS connections that failed after the handshake." =>
        s.listening.tls.as_ref().map(|tls| tls.protocol_errors());
    "time_since_server_cert_refresh", _, _, Gauge, "Seconds since the certificates were read." =>
        s.listening.tls.as_ref().map(|tls| tls.age_s());
    "todana_spans_sent", _, "todana_spans_sent_total", Counter,
        "Spans that the collector of OpenTelemetry has accepted; only with --trace-to." =>
        s.observation.spans.as_ref().map(|spans| spans.sent());
    "todana_spans_dropped", _, "todana_spans_dropped_total", Counter,
        "Spans that were dropped, because the queue was full or the collector did not accept them." =>
        s.observation.spans.as_ref().map(|spans| spans.dropped());
    "unexpected_napi_ids", _, _, Counter, "Always 0." => 0u64;
    "round_robin_fallback", _, _, Counter, "Always 0." => 0u64;
}

fn is_accepting(shared: &SharedState) -> bool {
    let is_paused = shared.observation.connections.accepting_paused.load(Relaxed);
    shared.lifecycle.stopping() == StopStage::No && !is_paused
}

/// Returns all stores less those by cas.
fn plain_sets(counters: &Counters) -> MeasurementValue {
    let part = counters.cas_hits + counters.cas_misses + counters.cas_badval;
    MeasurementValue::Difference { all: counters.cmd_set, part }
}
