//! The texts that ttserver prints for `--help` and `--version`.

use todana_server::{TYRANT_LIBRARY_VERSION, TYRANT_PROTOCOL_VERSION, TYRANT_VERSION};

/// The last sentence of errors about options.
pub(super) const HINT: &str = "--help lists all options";

/// Returns the version in ttserver's format, because scripts extract the number from it.
pub(crate) fn version() -> String {
    format!(
        "Tokyo Tyrant version {TYRANT_VERSION} ({TYRANT_LIBRARY_VERSION}:{TYRANT_PROTOCOL_VERSION}) for Linux (Todana {})\n",
        env!("CARGO_PKG_VERSION")
    )
}

pub(super) fn help() -> String {
    version() + HELP
}

const HELP: &str = "\
This is Todana under the name of Tokyo Tyrant's server: the same options, protocols and defaults, less memory.

Usage: ttserver [OPTION]... [DATABASE]

The database is one of * (in memory, hash), + (in memory, ordered), PATH.tch (on disk, hash) and PATH.tcb
(on disk, ordered), or another name that `todana` accepts. Its name may be followed by tuning, as in
*#capnum=1000000; tuning without a meaning here is accepted, and logged with -ld. The default is *

Network
  -host HOST      listen on this address only (all addresses)
  -port N         port (1978); with 0, HOST is the path of a Unix socket; -1 lets the system choose
  -thnum N        worker threads (4)
  -tout SECONDS   time limit for the rest of a request (none)

Log
  -log FILE       log to this file (standard output); SIGHUP reopens it
  -ld -le         -ld logs everything, -le only errors and actions of the server

Process
  -dmn            run in the background; relative paths are relative to the directory /
  -pid FILE       write the process ID to this file; a daemon writes /ttserver.pid by default
  -kl             first end the process that the pid file names

Data
  -ulog DIR       write an update log, which also restores databases in memory; needs -sid
  -ulim SIZE      maximum size of a log file (1g)
  -uas            accepted, no effect
  -sid N          ID of this server, 1 to 65535
  -mul N          accepted, no effect

Scripts
  -ext FILE       file with Lua functions for ext, or @TEXT with the script itself; SIGHUP reloads the file
  -extpc NAME SECONDS   call this function at this interval; may be given up to 7 times
  -extd DIR       directory in which scripts may use files (.), and copy writes (any)
  -extt SECONDS   maximum run time of a call (5)
  -extm SIZE      maximum memory of a call (64m)

Replication
  -mhost HOST     follow this master; needs -sid
  -mport N        port of the master (1978)
  -rts FILE       file with the position in the log of the master (ttserver.rts)
  -rcc            stop following at the first command whose outcome differs from that at the master

Clients
  -mask LIST      forbid commands: names, all, allorg, allmc, allhttp, allread, allwrite, allmanage, or bits 0x...
  -unmask LIST    allow these commands again

SIGTERM and SIGINT stop the server. Exit codes: 0 stopped, 1 any failure.
";
