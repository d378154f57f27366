//! The texts of `--help` and `--version`.

/// A pointer to the help, for errors.
pub(super) const HINT: &str = "--help lists all options";

/// Returns the version in the original's format, from which scripts cut the number.
pub(super) fn version() -> String {
    format!(
        "Kyoto Tycoon {} (2.19) on Linux (Todana {})\n",
        todana_server::KYOTO_VERSION,
        env!("CARGO_PKG_VERSION")
    )
}

pub(super) fn help() -> String {
    version() + HELP
}

const HELP: &str = "\
This is Todana under the name of Kyoto Tycoon's server: the same options, protocols and defaults, less memory.

Usage: ktserver [OPTION]... [DATABASE]...

A database is one of : - * (in memory, hash), % + (in memory, ordered), PATH.kch PATH.kcd (on disk, hash),
PATH.kct PATH.kcf (on disk, ordered), or mem:hash mem:tree PATH.hash PATH.tree. Its name may be followed by
tuning: #ktopts=p (no expiry), #ktcapcnt=N, #ktcapsiz=SIZE, #opts=c, #zcomp=NAME. The default is :

Network
  -host HOST      listen on this address only (all addresses)
  -port N         port (1978); -1 lets the system choose, and the log names the port
  -tout SECONDS   time limit for the rest of a request (30)
  -th N           worker threads (4)

Log
  -log FILE       log to this file (standard output); SIGUSR1, and SIGHUP for a daemon, reopen it
  -li -ls -le -lz log everything; no connections; errors only; nothing (-li)

Data
  -ord            refuse writes
  -oas            every write is on disk before its reply
  -asi SECONDS -ash   together: every write is on disk within this time (1)
  -oat -onl -otl -onr   accepted
  -bgs DIR        snapshots of databases in memory (00000000.ktss ...): read at the start, written at exit
  -bgsi SECONDS   and at this interval (180)
  -bgsc zlib      compressed

Replication
  -ulog DIR       write an update log for replicas, which also restores databases in memory
  -ulim SIZE      maximum size of a log file (64m)
  -uasi SECONDS   the log is on disk within this time (1)
  -sid N          ID of this server among those that replicate each other, 0 to 65535
  -mhost HOST     replicate from this master ...
  -mport N        ... at this port (1978)
  -rts FILE       store the position in the master's log; without -mhost a client may choose the master
  -riv MILLISECONDS   time to wait before asking an idle master for more (40)

Process
  -dmn            run in the background; all paths must be absolute
  -pid FILE       write the process ID to this file
  -cmd DIR        directory of the commands of `synchronize` (.)
  -scr FILE       procedures in Lua, for play_script; the signals that reopen the log reload it
  -scrt SECONDS   maximum run time of a script call (5)
  -scrm SIZE      maximum memory of a script (64m); one script can run per worker thread

Plug-ins
  -plsv ktplugservmemc.so   serve memcached's clients too
  -plex WORDS     its settings: host=HOST#port=N#opts=LETTERS#qtout=SECONDS; f stores client flags after the value,
                  r refuses writes, q makes queues in an ordered database: get waits up to qtout for a message
  -pldb ktplugdbvoid.so     store nothing: writes go only to the update log, for replicas

SIGTERM and SIGINT stop the server, and so does SIGHUP unless it is a daemon. Exit codes: 0 stopped, 1 any failure.
";
