//! What `--help` and `--version` print.

/// Where to read on.
pub(super) const HINT: &str = "--help shows all";

/// In the original's form: scripts cut the number out of it.
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
PATH.kct PATH.kcf (on disk, ordered), or mem:hash mem:tree PATH.hash PATH.tree. Behind its name may stand
tuning: #ktopts=p (no expiry), #ktcapcnt=N, #ktcapsiz=SIZE, #opts=c, #zcomp=NAME. Without one it is :

Network
  -host HOST      listen here only (all addresses)
  -port N         port (1978); -1 lets the system choose, and the log says which
  -tout SECONDS   how long the rest of a request may take (30)
  -th N           worker threads (4)

Log
  -log FILE       here, not to standard output; SIGUSR1, and SIGHUP for a daemon, open it again
  -li -ls -le -lz all; not connections; errors only; nothing (-li)

Data
  -ord            nothing is written
  -oas            what is written is on disk before it is answered
  -asi SECONDS -ash   both: it is on disk within so long (1)
  -oat -onl -otl -onr   accepted
  -bgs DIR        snapshots of databases in memory (00000000.ktss ...): read at the start, written at the end
  -bgsi SECONDS   and every so often (180)
  -bgsc zlib      packed

Replication
  -ulog DIR       an update log for replicas, which also brings databases in memory back
  -ulim SIZE      of a file of it (64m)
  -uasi SECONDS   it is on disk within so long (1)
  -sid N          this server's number among those that follow each other, 0 to 65535
  -mhost HOST     follow this master ...
  -mport N        ... at this port (1978)
  -rts FILE       where the position in its log is kept; without -mhost a client may choose the master
  -riv MILLISECONDS   wait so long when all that it has is taken (40)

Process
  -dmn            go on in the background; paths have to be absolute
  -pid FILE       write the process id here
  -cmd DIR        where the commands of `synchronize` lie (.)
  -scr FILE       procedures in Lua, for play_script; the signals that open the log again read it again
  -scrt SECONDS   how long a call of one may take (5)
  -scrm SIZE      how much memory (64m), each of as many at once as there are threads

Plug-ins
  -plsv ktplugservmemc.so   serve memcached's clients, too
  -plex WORDS     of it: host=HOST#port=N#opts=LETTERS#qtout=SECONDS; f keeps flags behind the value, r refuses writes,
                  q makes queues, in an ordered database: get waits up to qtout for a message

  -pldb ktplugdbvoid.so     databases store nothing: what is written goes to the update log, for replicas

SIGTERM and SIGINT stop the server, and so does SIGHUP where it is no daemon. Exit codes: 0 stopped, 1 anything else.
";
