//! The texts that twemproxy prints for `-h`, `-V` and `-D`.

pub(super) const USAGE: &str = "\
Usage: nutcracker [-?hVdDt] [-v verbosity level] [-o output file]
                  [-c conf file] [-s stats port] [-a stats addr]
                  [-i stats interval] [-p pid file] [-m mbuf size]
";

pub(super) const HELP: &str = "\
Usage: nutcracker [-?hVdDt] [-v verbosity level] [-o output file]
                  [-c conf file] [-s stats port] [-a stats addr]
                  [-i stats interval] [-p pid file] [-m mbuf size]

This is Todana under twemproxy's name, for memcached's protocol only.

Options:
  -h, --help             this help
  -V, --version          print the version
  -t, --test-conf        check the configuration file
  -d, --daemonize        run in the background
  -D, --describe-stats   print the meaning of the statistics
  -v, --verbose=N        level of the log, from 0 to 11 (5)
  -o, --output=S         log file (standard error); SIGHUP opens it again
  -c, --conf-file=S      configuration file (/etc/nutcracker/nutcracker.yml)
  -s, --stats-port=N     port of the statistics (22222)
  -a, --stats-addr=S     address of the statistics (0.0.0.0)
  -i, --stats-interval=N accepted, no effect: the statistics are always current
  -p, --pid-file=S       write the process ID to this file
  -m, --mbuf-size=N      accepted, no effect
";

/// The statistics of the port of `-s`, by their names in twemproxy.
pub(super) const STATISTICS: &str = "\
pool stats:
  client_eof          connections that clients have closed
  client_err          connections of clients that have failed
  client_connections  open connections of clients
  server_ejects       times that a server was left out
  forward_error       requests that could not be sent
  fragments           parts of requests with several keys

server stats:
  server_eof          connections that the server has closed
  server_err          connections to the server that have failed
  server_timedout     requests that were not answered in time
  server_connections  open connections to the server
  server_ejected_at   time at which the server was left out, in microseconds
  requests            requests
  request_bytes       bytes of requests
  responses           replies
  response_bytes      bytes of replies
  in_queue            requests that wait to be sent
  in_queue_bytes      bytes of those requests
  out_queue           requests that wait for a reply
  out_queue_bytes     bytes of those requests
";

pub(super) fn version() -> String {
    format!("This is nutcracker-0.5.0\nTodana {} under this name\n\n", env!("CARGO_PKG_VERSION"))
}
