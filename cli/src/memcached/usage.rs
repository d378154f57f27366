//! The texts that memcached prints for `-h`, `-V` and `-i`.

/// The version that is reported to clients. Tools decide by it which features they use.
pub(super) const VERSION: &str = "1.6.45";

/// The help text, without its first line, which contains the version.
const HELP: &str = "\
This is Todana under memcached's name: the same options, commands and defaults, less memory.

Network
  -p, --port=<n>                TCP port, on all addresses (11211); 0 is off, -1 lets the system choose
  -U, --udp-port=<n>            UDP port (0, off); also the TCP port if -p is not given
  -l, --listen=<address>        listen only at: host, host:port, [v6]:port or *; a list with commas, repeatable;
                                prefixes notls: btls: mtls: proto[ascii]: tag_x_:
  -s, --unix-socket=<path>      listen on a Unix socket instead of TCP and UDP
  -a, --unix-mask=<octal>       permissions of the Unix socket (700)
  -c, --conn-limit=<n>          maximum number of connections (1024)
  -b, --listen-backlog=<n>      connections that may wait to be accepted (1024)
  -R, --max-reqs-per-event=<n>  requests served for one connection before others get a turn (20)
  -B, --protocol=<name>         auto, ascii or binary (auto)
  -N, --napi-ids=<n>            accepted, no effect

Memory
  -m, --memory-limit=<MB>       memory of the process, in megabytes (64)
  -M, --disable-evictions       refuse items for which there is no memory, instead of evicting others
  -I, --max-item-size=<size>    largest item, with k, m or g after the number: 1k to 1g (1m)
  -k, --lock-memory             keep memory from being swapped out
  -L, --enable-largepages       accepted, no effect
  -e, --memory-file=<path>      keep the records in the directory <path>.todana, and load them at the start
  -f, --slab-growth-factor=<x>  accepted, no effect; above 1 (1.25)
  -n, --slab-min-size=<bytes>   accepted, no effect (48)

Process
  -d, --daemon                  run in the background
  -u, --user=<name>             change to this user if started as root
  -P, --pidfile=<path>          write the process ID to this file
  -t, --threads=<n>             worker threads (4)
  -r, --enable-coredumps        allow core files of any size
  -v, --verbose                 log warnings and notices; -vv also connections and requests

Permissions of clients
  -A, --enable-shutdown         allow the command shutdown
  -F, --disable-flush-all       refuse the command flush_all
  -X, --disable-dumping         refuse the commands cachedump and metadump
  -W, --disable-watch           refuse the command watch
  -C, --disable-cas             accepted, no effect
  -D <character>                count reads and stores by key prefix, which ends at this character (:)
  -S, --enable-sasl             logins over the binary protocol
  -Y, --auth-file=<path>        logins over the text protocol: lines user:password
  -Z, --enable-ssl              TLS

  -h, --help   -V, --version   -i, --license

  -o, --extended=<words>        a list with commas; the prefix no_ switches a word off:
    idle_timeout=<s>            close connections that have been idle for this time (0, never)
    maxconns_fast               refuse connections above the limit instead of letting them wait (on)
    track_sizes                 count items by size, for 'stats sizes'
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
port of the addresses in TODANA_ADMIN_LISTEN (127.0.0.1). TODANA_DATA_DIR keeps the records in that directory,
unless -e is given.
TODANA_SYNC determines when writes are on disk: always, a number of milliseconds (1000), never (default with -e).
TODANA_IO=epoll uses no io_uring. TODANA_COMPRESS=never stores records as they are.

-v lists options that have no effect. Exit codes: 0 stopped, 1 bad value, 64 wrong usage,
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
