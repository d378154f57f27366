//! Defines the rows of `stats settings`: the options that are in force.

use super::{MeasurementValue, ServerReadings, table};
use crate::options::AuthenticationMode;
use crate::shared::SharedState;
use crate::transport::tls::TlsOptions;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use todana::EvictionGoal;
use todana_protocol::memcached::DialectChoice;

table! { SETTINGS, "Settings of the crawler",
    "The other rows of `stats settings` are the options of the command line, by memcached's names.\n`io` (the interface in use, `uring` or `epoll`), `compress` and `evict_for` at the end exist only in\nTodana.", |s, _r: ServerReadings|
    "maxbytes" => s.memory.limit_bytes().unwrap_or(0);
    "maxconns" => s.options.limits.connections_max;
    "tcpport" => s.listening.tcp_port;
    "udpport" => s.listening.udp_port;
    "inter" => addresses(&s.options.listen.addresses);
    "verbosity" => s.observation.verbosity.load(Relaxed);
    "oldest" => flushed_after_s(s);
    "evictions" => if s.options.memory.refuse_when_full { "off" } else { "on" };
    "domain_socket" => path(s.options.listen.unix_socket.as_deref());
    "umask" => format!("{:o}", s.options.listen.unix_mask);
    "growth_factor" => "1.25";
    "chunk_size" => 48u64;
    "num_threads" => s.options.limits.threads;
    "num_threads_per_udp" => 0u64;
    "stat_key_prefix" => s.observation.observers.prefixes.delimiter().to_string();
    "detail_enabled" => MeasurementValue::Flag(s.observation.observers.counts_prefixes());
    "reqs_per_event" => s.options.limits.requests_per_event;
    "cas_enabled" => MeasurementValue::Flag(s.options.protocols.cas_enabled);
    "tcp_backlog" => s.options.listen.backlog;
    "binding_protocol" => binding_protocol(s.logins.limits(s.options.protocols.protocol).choice);
    "auth_enabled_sasl" => MeasurementValue::Flag(has_sasl(&s.options.protocols.authentication));
    "auth_enabled_ascii" => text_logins(&s.options.protocols.authentication);
    "item_size_max" => s.options.limits.item_size_max;
    "maxconns_fast" => MeasurementValue::Flag(s.options.limits.connections_refused);
    "hashpower_init" => 0u64;
    "slab_reassign" => "no";
    "slab_automove" => 0u64;
    "slab_automove_ratio" => "0.80";
    "slab_automove_window" => 10u64;
    "slab_automove_freeratio" => "0.010";
    "slab_chunk_max" => 524_288u64;
    "lru_crawler", _, "memcached_lru_crawler_enabled", Gauge, "1 if the crawler is enabled." =>
        MeasurementValue::Flag(s.observation.crawler.is_enabled());
    "lru_crawler_sleep", _, "memcached_lru_crawler_sleep", Gauge, "Configured pause of the crawler in microseconds." =>
        s.observation.crawler.sleep_us.load(Relaxed);
    "lru_crawler_tocrawl", _, "memcached_lru_crawler_to_crawl", Gauge, "Configured number of records to crawl in a class." =>
        s.observation.crawler.records_max.load(Relaxed);
    "tail_repair_time" => 0u64;
    "flush_enabled" => MeasurementValue::Flag(s.options.limits.flush_allowed);
    "dump_enabled" => MeasurementValue::Flag(s.options.limits.dump_allowed);
    "hash_algorithm" => "rapidhash";
    "lru_maintainer_thread", _, "memcached_lru_crawler_maintainer_thread", Gauge,
        "1 with memcached's LRU maintainer thread; always 0." => MeasurementValue::Flag(false);
    "lru_segmented" => "no";
    "hot_lru_pct", _, "memcached_lru_crawler_hot_percent", Gauge, "Share of the hot queue: memcached's default." => 20u64;
    "warm_lru_pct", _, "memcached_lru_crawler_warm_percent", Gauge, "Share of the warm queue: memcached's default." => 40u64;
    "hot_max_factor", _, "memcached_lru_crawler_hot_max_factor", Gauge,
        "Age of the hot queue relative to the cold one: memcached's default." => "0.20";
    "warm_max_factor", _, "memcached_lru_crawler_warm_max_factor", Gauge,
        "Age of the warm queue relative to the cold one: memcached's default." => "2.00";
    "temp_lru" => "no";
    "temporary_ttl" => 61u64;
    "idle_timeout" => s.options.limits.idle_timeout_s;
    "watcher_logbuf_size" => s.options.observation.watcher_buffer_bytes;
    "worker_logbuf_size" => 0u64;
    "read_buf_mem_limit" => 0u64;
    "track_sizes" => MeasurementValue::Flag(s.options.observation.track_sizes);
    "inline_ascii_response" => "no";
    "ext_item_size" => 0u64;
    "ext_item_age" => 0u64;
    "ext_low_ttl" => 0u64;
    "ext_recache_rate" => 0u64;
    "ext_wbuf_size" => 0u64;
    "ext_compact_under" => 0u64;
    "ext_drop_under" => 0u64;
    "ext_max_sleep" => 0u64;
    "ext_max_frag" => 0u64;
    "ext_drop_unread" => "no";
    "ssl_enabled" => MeasurementValue::Flag(tls(s).is_some());
    "ssl_chain_cert" => path(tls(s).map(|tls| &*tls.chain));
    "ssl_key" => path(tls(s).and_then(|tls| tls.key.as_deref()));
    // memcached shows OpenSSL's numbers: 1 requests a certificate. Adding 2 requires it, and
    // adding 4 requests it only once.
    "ssl_verify_mode" => tls(s).map_or(0, |tls| [0u64, 1, 3, 7][usize::from(tls.verify_mode.min(3))]);
    // Both formats of keys are accepted, whatever this setting says.
    "ssl_keyformat" => 1u64;
    "ssl_ciphers" => tls(s).and_then(|tls| tls.ciphers.as_deref()).unwrap_or("NULL");
    "ssl_ca_cert" => path(tls(s).and_then(|tls| tls.ca.as_deref()));
    "ssl_wbuf_size" => tls(s).and_then(|tls| tls.write_buffer_bytes).unwrap_or(16384);
    "ssl_session_cache" => MeasurementValue::Flag(tls(s).is_some_and(|tls| tls.session_cache));
    "ssl_kernel_tls" => "no";
    "ssl_min_version" => if tls(s).is_some_and(|tls| tls.only_1_3) { "tlsv1.3" } else { "tlsv1.2" };
    "memory_file" => path(s.options.databases.data.as_ref().map(|place| &*place.directory));
    "client_flags_size" => 4u64;
    "shutdown_command" => MeasurementValue::Flag(s.options.limits.shutdown_allowed);
    "io" => if s.uses_rings { "uring" } else { "epoll" };
    "compress" => if s.options.memory.stores_plain { "never" } else { "auto" };
    "evict_for" => match s.options.memory.evict_for {
        EvictionGoal::Objects => "objects",
        EvictionGoal::Bytes => "bytes",
    };
}

fn addresses(given: &[String]) -> String {
    if given.is_empty() { "127.0.0.1".to_string() } else { given.join(",") }
}

fn path(path: Option<&Path>) -> String {
    path.map_or_else(|| "NULL".to_string(), |path| path.display().to_string())
}

fn tls(shared: &SharedState) -> Option<&TlsOptions> {
    shared.options.listen.tls.as_ref()
}

/// Returns the seconds from the start of the server to the last flush, or to the planned one.
fn flushed_after_s(shared: &SharedState) -> u64 {
    let flushed_at = shared.databases.primary().database.flushed_at();
    flushed_at.map_or(0, |at| at.0.saturating_sub(shared.observation.started_at))
}

fn binding_protocol(choice: DialectChoice) -> &'static str {
    match choice {
        DialectChoice::Auto => "auto-negotiate",
        DialectChoice::Text => "ascii",
        DialectChoice::Binary => "binary",
    }
}

fn has_sasl(authentication: &AuthenticationMode) -> bool {
    matches!(authentication, AuthenticationMode::Sasl(_) | AuthenticationMode::Passwords(_))
}

fn text_logins(authentication: &AuthenticationMode) -> String {
    match authentication {
        // Blanks in a path are replaced, because each statistic is one line of three words.
        AuthenticationMode::Text(path) | AuthenticationMode::Passwords(path) => {
            path.display().to_string().replace(char::is_whitespace, "?")
        }
        _ => "no".to_string(),
    }
}
