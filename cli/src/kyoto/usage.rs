//! The texts that ktserver prints for `--help` and `--version`.

/// The last sentence of errors about options.
pub(super) const HINT: &str = "--help lists all options";

/// Returns the version in ktserver's format, because scripts extract the number from it.
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
  -oas            every write is on disk before its reply is sent
  -asi SECONDS -ash   with both, every write is on disk within this time (1)
  -oat -onl -otl -onr   accepted, no effect
  -bgs DIR        snapshots of databases in memory (00000000.ktss ...): read at the start, written at exit
  -bgsi SECONDS   also write snapshots at this interval (180)
  -bgsc zlib      compress the snapshots

Replication
  -ulog DIR       write an update log for replicas, which also restores databases in memory
  -ulim SIZE      maximum size of a log file (64m)
  -uasi SECONDS   the log is on disk within this time (1)
  -sid N          ID of this server, 0 to 65535; must differ among servers that replicate each other
  -mhost HOST     be a replica of the master at this host
  -mport N        port of the master (1978)
  -rts FILE       store the replication position in this file; without -mhost, a client can set the master
  -riv MILLISECONDS   time between two requests to a master that has no changes to send (40)

Process
  -dmn            run in the background; all paths must be absolute
  -pid FILE       write the process ID to this file
  -cmd DIR        directory of the programs that `synchronize` may run (.)
  -scr FILE       file with Lua procedures for play_script; the signals that reopen the log reload it
  -scrt SECONDS   maximum run time of a script call (5)
  -scrm SIZE      maximum memory of a script (64m); each worker thread can run one script

Plug-ins
  -plsv ktplugservmemc.so   serve memcached's clients too
  -plex WORDS     settings of this plug-in: host=HOST#port=N#opts=LETTERS#qtout=SECONDS. LETTERS: f stores client
                  flags after the value, r refuses writes, q creates queues in an ordered database, where get
                  waits up to qtout for a message
  -pldb ktplugdbvoid.so     store nothing: writes go only to the update log, for replicas

SIGTERM and SIGINT stop the server; SIGHUP stops it unless it is a daemon. Exit codes: 0 stopped, 1 any failure.
";
