//! `stats settings`: the options in force.

use super::{Writer, on_off, yes_no};
use crate::options::Authentication;
use crate::shared::Shared;
use crate::transport::tls::TlsOptions;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use todana_protocol::memcached::Choice;

pub(super) fn put(shared: &Shared, w: &mut Writer<'_, '_>) {
    let options = &shared.options;
    let inter = if options.listen.addresses.is_empty() {
        "127.0.0.1".to_string()
    } else {
        options.listen.addresses.join(",")
    };
    let socket =
        options.listen.unix_socket.as_ref().map_or_else(|| "NULL".into(), |path| path.display().to_string());
    w.put("maxbytes", shared.memory.limit_bytes().unwrap_or(0));
    w.put("maxconns", options.limits.connections_max);
    w.put("tcpport", shared.listening.tcp_port);
    w.put("udpport", shared.listening.udp_port);
    w.put("inter", inter);
    w.put("verbosity", shared.observation.verbosity.load(Ordering::Relaxed));
    let flushed_at = shared
        .databases
        .primary()
        .database
        .flushed_at()
        .map_or(0, |at| at.0.saturating_sub(shared.observation.started_at));
    w.put("oldest", flushed_at);
    w.put("evictions", on_off(!options.memory.refuse_when_full));
    w.put("domain_socket", socket);
    w.put("umask", format_args!("{:o}", options.listen.unix_mask));
    w.put("growth_factor", "1.25");
    w.put("chunk_size", 48);
    w.put("num_threads", options.limits.threads);
    w.put("num_threads_per_udp", 0);
    w.put("stat_key_prefix", shared.observation.observers.prefixes.delimiter());
    w.put("detail_enabled", yes_no(shared.observation.observers.counts_prefixes()));
    w.put("reqs_per_event", options.limits.requests_per_event);
    w.put("cas_enabled", yes_no(options.protocols.cas_enabled));
    w.put("tcp_backlog", options.listen.backlog);
    w.put(
        "binding_protocol",
        match shared.logins.limits(shared.options.protocols.protocol).choice {
            Choice::Auto => "auto-negotiate",
            Choice::Text => "ascii",
            Choice::Binary => "binary",
        },
    );
    let has_sasl =
        matches!(options.protocols.authentication, Authentication::Sasl(_) | Authentication::Passwords(_));
    w.put("auth_enabled_sasl", yes_no(has_sasl));
    match &options.protocols.authentication {
        // Each statistic is one line of three words.
        Authentication::Text(path) | Authentication::Passwords(path) => {
            w.put("auth_enabled_ascii", path.display().to_string().replace(char::is_whitespace, "?"));
        }
        _ => w.put("auth_enabled_ascii", "no"),
    }
    w.put("item_size_max", options.limits.item_size_max);
    w.put("maxconns_fast", yes_no(options.limits.connections_refused));
    w.put("hashpower_init", 0);
    w.put("slab_reassign", "no");
    w.put("slab_automove", 0);
    w.put("slab_automove_ratio", "0.80");
    w.put("slab_automove_window", 10);
    w.put("slab_automove_freeratio", "0.010");
    w.put("slab_chunk_max", 524_288);
    w.put("lru_crawler", yes_no(shared.observation.crawler.is_enabled()));
    w.put("lru_crawler_sleep", shared.observation.crawler.sleep_us.load(Ordering::Relaxed));
    w.put("lru_crawler_tocrawl", shared.observation.crawler.records_max.load(Ordering::Relaxed));
    w.put("tail_repair_time", 0);
    w.put("flush_enabled", yes_no(options.limits.flush_allowed));
    w.put("dump_enabled", yes_no(options.limits.dump_allowed));
    w.put("hash_algorithm", "rapidhash");
    w.put("lru_maintainer_thread", "no");
    w.put("lru_segmented", "no");
    w.put("hot_lru_pct", 20);
    w.put("warm_lru_pct", 40);
    w.put("hot_max_factor", "0.20");
    w.put("warm_max_factor", "2.00");
    w.put("temp_lru", "no");
    w.put("temporary_ttl", 61);
    w.put("idle_timeout", options.limits.idle_timeout_s);
    w.put("watcher_logbuf_size", options.observation.watcher_buffer_bytes);
    w.put("worker_logbuf_size", 0);
    w.put("read_buf_mem_limit", 0);
    w.put("track_sizes", yes_no(options.observation.track_sizes));
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
    w.put("ext_drop_unread", "no");
    tls_settings(options.listen.tls.as_ref(), w);
    let kept = options.databases.data.as_ref().map(|place| place.directory.display().to_string());
    w.put("memory_file", kept.as_deref().unwrap_or("NULL"));
    w.put("client_flags_size", 4);
    w.put("shutdown_command", yes_no(options.limits.shutdown_allowed));
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
    w.put("ssl_wbuf_size", tls.and_then(|tls| tls.write_buffer_bytes).unwrap_or(16384));
    w.put("ssl_session_cache", yes_no(tls.is_some_and(|tls| tls.session_cache)));
    w.put("ssl_kernel_tls", "no");
    w.put("ssl_min_version", if tls.is_some_and(|tls| tls.only_1_3) { "tlsv1.3" } else { "tlsv1.2" });
}
