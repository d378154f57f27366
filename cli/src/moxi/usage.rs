//! The texts that moxi prints for `-h` and `-i`.

const HELP: &str = "\
This is Todana under moxi's name: the same options, clusters and behaviours.

Usage: moxi [FLAGS] -z LPORT=HOST[:PORT[:WEIGHT]][,...][;LPORT=...]
       moxi [FLAGS] -z LPORT={ map of vbuckets in JSON }
       moxi [FLAGS] -z FILE      a file with such a text; begins with / or .

  -Z <key=value,...>  behaviours, or the path of a file with them
  -l <address>        listen only at this address (all)
  -s <path>           listen on a Unix socket instead of TCP
  -a <octal>          permissions of the Unix socket (700)
  -t <n>              worker threads (4)
  -c <n>              maximum number of connections (1024)
  -R <n>              requests served for one connection before others get a turn (20)
  -b <n>              connections that may wait to be accepted (1024)
  -B <name>           protocol of clients: auto, ascii or binary (auto)
  -d                  run in the background;  -P <path>  write the process ID to this file
  -u <name>           change to this user if started as root
  -r                  allow core files;  -k  keep memory from being swapped out
  -v                  log warnings and notices; -vv also connections
  -O <path>           log file (standard error); SIGHUP opens it again
  -Y <y|n>            y: stop when standard input is closed
  -h  -i              this help; the licence

Behaviours: port_listen usr pwd downstream_protocol concurrency downstream_conn_max
downstream_timeout downstream_conn_queue_timeout wait_queue_timeout connect_timeout auth_timeout
connect_max_errors connect_retry_interval downstream_retry downstream_weight front_cache_max
front_cache_lifespan front_cache_spec front_cache_unspec key_stats_max key_stats_lifespan
key_stats_spec key_stats_unspec mcs_opts

Refused: URLs and logins of Couchbase, -p other than 0, -X, optimize_set.
Accepted without effect: -U -m -M -f -n -L -D -C, cycle time_stats bucket default_bucket_name host port.
";

const LICENCE: &str = "
Todana is free software under the Apache License, version 2.0, or the MIT licence, at your choice.
It contains nothing of moxi, whose name and options it answers to.
";

fn version() -> String {
    format!("moxi {}\n", env!("CARGO_PKG_VERSION"))
}

pub(super) fn help() -> String {
    version() + HELP
}

pub(super) fn licence() -> String {
    version() + LICENCE
}
