//! The texts of `-h`, `-V` and `-i`.

/// The reported version, by which tools choose features.
pub(super) const VERSION: &str = "1.6.45";

/// The help after the line with the version.
const HELP: &str = "\
This is Todana under memcached's name: the same options, commands and defaults, less memory.

Network
  -p, --port=<n>                TCP port, on all addresses (11211); 0 is off, -1 lets the system choose
  -U, --udp-port=<n>            UDP port (0, off); without -p the TCP port too
  -l, --listen=<address>        listen here only: host, host:port, [v6]:port or *; a list with commas, repeatable;
                                prefixes notls: btls: mtls: proto[ascii]: tag_x_:
  -s, --unix-socket=<path>      listen on a Unix socket instead of TCP and UDP
  -a, --unix-mask=<octal>       its permissions (700)
  -c, --conn-limit=<n>          maximum number of connections (1024)
  -b, --listen-backlog=<n>      connections that may wait to be accepted (1024)
  -R, --max-reqs-per-event=<n>  requests of one connection before others get a turn (20)
  -B, --protocol=<name>         auto, ascii or binary (auto)
  -N, --napi-ids=<n>            accepted

Memory
  -m, --memory-limit=<MB>       memory of the process, in megabytes (64)
  -M, --disable-evictions       refuse what does not fit instead of evicting
  -I, --max-item-size=<size>    largest item, with k, m or g after the number: 1k to 1g (1m)
  -k, --lock-memory             keep memory from being swapped out
  -L, --enable-largepages       accepted
  -e, --memory-file=<path>      keep the records in the directory <path>.todana, and load them at the start
  -f, --slab-growth-factor=<x>  accepted, above 1 (1.25)
  -n, --slab-min-size=<bytes>   accepted (48)

Process
  -d, --daemon                  run in the background
  -u, --user=<name>             change to this user if started as root
  -P, --pidfile=<path>          write the process ID to this file
  -t, --threads=<n>             worker threads (4)
  -r, --enable-coredumps        allow core files of any size
  -v, --verbose                 log warnings and notices; -vv also connections and requests

Permissions of clients
  -A, --enable-shutdown         allow the shutdown command
  -F, --disable-flush-all       refuse flush_all
  -X, --disable-dumping         refuse cachedump and metadump
  -W, --disable-watch           refuse watch
  -C, --disable-cas             accepted
  -D <character>                count by key prefix, up to this character (:)
  -S, --enable-sasl             logins over the binary protocol
  -Y, --auth-file=<path>        logins over the text protocol: lines user:password
  -Z, --enable-ssl              TLS

  -h, --help   -V, --version   -i, --license

  -o, --extended=<words>        a list with commas; no_ before a word switches it off:
    idle_timeout=<s>            close connections that are idle for this time (0, never)
    maxconns_fast               refuse connections over the limit at once (on)
    track_sizes                 count sizes for 'stats sizes'
    negative_exptime=sliding    a negative expiry counts from the last access
    ssl_chain_cert=<path> ssl_key=<path> ssl_ca_cert=<path> ssl_verify_mode=<0-3> ssl_ciphers=<list>
    ssl_min_version=<0-3> ssl_keyformat=<n> ssl_wbuf_size=<KB> ssl_session_cache ssl_kernel_tls
    accepted without effect: hashpower hashexpand hash_algorithm slab_reassign
    slab_automove slab_automove_ratio slab_automove_window slab_automove_freeratio slab_sizes
    slab_chunk_max chunked_items inline_ascii_resp lru_crawler lru_crawler_sleep lru_crawler_tocrawl
    lru_maintainer hot_lru_pct warm_lru_pct hot_max_factor warm_max_factor temporary_ttl
    tail_repair_time watcher_logbuf_size worker_logbuf_size read_buf_mem_limit drop_privileges
    relaxed_privileges sock_cookie_id modern ext_*

TODANA_ADMIN_PORT in the environment enables monitoring pages (HTTP: /metrics /healthz /readyz) on that
port of TODANA_ADMIN_LISTEN (127.0.0.1). TODANA_DATA_DIR keeps the records in that directory unless -e is given.
TODANA_SYNC determines when writes are on disk: always, a number of milliseconds (1000), never (default with -e).

-v names options without effect. Exit codes: 0 stopped, 1 bad value, 64 wrong usage,
67 no such user, 71 system error, 134 no memory file.
";

const LICENCE: &str = "
Todana is free software under the Apache License, version 2.0, or the MIT licence, at your choice.
It contains nothing of memcached, whose name, options and protocol it answers to.
";

pub(super) fn version() -> String {
    format!("memcached {VERSION}\n")
}

pub(super) fn help() -> String {
    version() + HELP
}

pub(super) fn licence() -> String {
    version() + LICENCE
}
