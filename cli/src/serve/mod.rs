//! `todana serve`: options from the command line, the environment and a file.
//!
//! One table makes all of them: the fields of [`ServeArguments`]. A field `conn_limit` is the flag `--conn-limit`, the
//! variable `TODANA_CONN_LIMIT` and the key `conn-limit` of the file; `layers` puts them in their order.

mod folders;
mod options;
mod replication;
mod start_banner;
mod todana_program;
mod values;

pub(crate) use values::{SYNC_DEFAULT, size, sync};

use crate::option_sources::{self, ConfiguredValue};
use crate::{CommandFailure, HELP_WIDTH_MAX, ProgramArguments, serving, suggestions};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::path::PathBuf;
use todana_program::TodanaProgram;
use todana_server::{
    CheckpointCompression, DatabaseSpec, LogFormat, MasterAddress, Name, ServerOptions, Storage, SyncPolicy,
    init_logging_with_notices,
};
use values::{
    ClientCertificates, ExtendedWord, LogLineFormat, ServedProtocol, SnapshotPacking, TlsVersion,
    compression, database, delimiter, idle_timeout, mebibytes, number, octal, port, seconds, some_size,
};

pub(crate) const AFTER_HELP: &str = "\
Each option can also be a variable in the environment (--memory-limit as
TODANA_MEMORY_LIMIT) or a line in the file of --config (memory-limit = 1024);
a switch is true or false there. A flag counts before the environment, the
environment before the file, the file before the default.
`todana config show OPTIONS` prints each option and where it comes from.

Examples:
  todana serve                             64 MiB on 127.0.0.1:11211
  todana serve -m 1024 -l 10.0.0.5 -t 8    1 GiB, one address, eight threads
  todana serve -m 0                        as much as there is
  todana serve ./carts.hash                on disk, for more than memory holds
  todana serve mem:hash users=./users.tree two databases, the second in order
  TODANA_PORT=11311 todana serve
  todana serve --config /etc/todana.toml

In memcached's place: todana as memcached --help";

const CACHE: &str = "Memory";
const NETWORK: &str = "Network";
const TLS: &str = "TLS";
const REPLICATION: &str = "Replication, as Kyoto Tycoon does it";
const KYOTO: &str = "For Kyoto Tycoon's clients";
const PROCESS: &str = "Process";
const DATA: &str = "Data that stays";

/// What `serve` can be told.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArguments {
    /// The databases: mem:hash or mem:tree (in memory), PATH.hash or PATH.tree (on disk; .tree keeps an order), or one of Kyoto
    /// Cabinet's or Tokyo Cabinet's names; NAME=DB gives it a name. memcached's protocols use the first [default: mem:hash]
    #[arg(value_name = "DB", value_parser = database)]
    databases: Vec<Name>,
    /// The same for the environment and a file; the command line's own count before it
    #[arg(long, env = "TODANA_DATABASE", value_parser = database, action = ArgAction::Append, value_name = "DB", help_heading = DATA)]
    database: Vec<Name>,
    /// TCP port; 0 or -1 lets the system choose
    #[arg(short, long, env = "TODANA_PORT", default_value = "11211", value_parser = port, help_heading = NETWORK, allow_negative_numbers = true)]
    port: i32,
    /// UDP port; 0 for no UDP, -1 lets the system choose
    #[arg(short = 'U', long, env = "TODANA_UDP_PORT", default_value = "0", value_parser = port, help_heading = NETWORK, allow_negative_numbers = true)]
    udp_port: i32,
    /// All replies to one UDP request together, with k or m; senders can be forged, and then the replies hit a victim
    #[arg(long, env = "TODANA_UDP_REPLY_MAX", default_value = "16k", value_parser = size, value_name = "SIZE", help_heading = NETWORK)]
    udp_reply_max: u64,
    /// Addresses to listen on: host, host:port, `[v6]:port`, * or *:port for all; repeatable, or a list with commas. With
    /// TLS, `notls:` before one switches it off there, `mtls:` requires client certificates, `btls:` asks for none
    #[arg(short, long, env = "TODANA_LISTEN", default_value = "127.0.0.1", action = ArgAction::Append, value_delimiter = ',', value_name = "ADDRESS", help_heading = NETWORK)]
    listen: Vec<String>,
    /// Listen on this Unix socket instead of TCP
    #[arg(short = 's', long, env = "TODANA_UNIX_SOCKET", value_name = "PATH", help_heading = NETWORK)]
    unix_socket: Option<PathBuf>,
    /// Permissions of the Unix socket, octal
    #[arg(short = 'a', long, env = "TODANA_UNIX_MASK", default_value = "700", value_parser = octal, help_heading = NETWORK)]
    unix_mask: u32,
    /// Connections served at once
    #[arg(short = 'c', long, env = "TODANA_CONN_LIMIT", default_value = "1024", value_parser = number::<usize>, help_heading = NETWORK)]
    conn_limit: usize,
    /// Let connections over that number wait to be accepted, instead of refusing them
    #[arg(long, env = "TODANA_CONN_LIMIT_WAITS", help_heading = NETWORK)]
    conn_limit_waits: bool,
    /// Time after which an unused TCP connection is closed, in seconds or as 5m, 1h ...; 0 for never
    #[arg(long, env = "TODANA_IDLE_TIMEOUT", default_value = "0", value_parser = idle_timeout, value_name = "SECONDS", help_heading = NETWORK)]
    idle_timeout: u32,
    /// Connections that may wait to be accepted
    #[arg(short = 'b', long, env = "TODANA_LISTEN_BACKLOG", default_value = "1024", value_parser = number::<u32>, help_heading = NETWORK)]
    listen_backlog: u32,
    /// Requests of one connection in a row before others get a turn
    #[arg(short = 'R', long, env = "TODANA_MAX_REQS_PER_EVENT", default_value = "20", value_parser = number::<u32>, help_heading = NETWORK)]
    max_reqs_per_event: u32,
    /// Port of the pages /metrics, /healthz and /readyz; 0 for none, -1 lets the system choose [default: 10000 above the
    /// TCP port; none with a Unix socket]
    #[arg(long, env = "TODANA_ADMIN_PORT", value_parser = port, help_heading = NETWORK, allow_negative_numbers = true)]
    admin_port: Option<i32>,
    /// Addresses of these pages, without TLS
    #[arg(long, env = "TODANA_ADMIN_LISTEN", default_value = "127.0.0.1", action = ArgAction::Append, value_delimiter = ',', value_name = "ADDRESS", help_heading = NETWORK)]
    admin_listen: Vec<String>,
    /// Speak TLS, with the certificate chain in this PEM file; SIGHUP and `refresh_certs` read it again
    #[arg(long, env = "TODANA_TLS_CERT", value_name = "FILE", help_heading = TLS)]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key, PEM or DER, if it is not in the file of --tls-cert
    #[arg(long, env = "TODANA_TLS_KEY", value_name = "FILE", help_heading = TLS)]
    tls_key: Option<PathBuf>,
    /// PEM file of the authorities whose client certificates count
    #[arg(long, env = "TODANA_TLS_CA", value_name = "FILE", help_heading = TLS)]
    tls_ca: Option<PathBuf>,
    /// Client certificates [default: required, if there is --tls-ca]
    #[arg(long, env = "TODANA_TLS_CLIENTS", value_name = "WHETHER", help_heading = TLS)]
    tls_clients: Option<ClientCertificates>,
    /// The oldest version spoken
    #[arg(long, env = "TODANA_TLS_MIN_VERSION", value_name = "VERSION", default_value = "1.2", help_heading = TLS)]
    tls_min_version: TlsVersion,
    /// Cipher suites of TLS 1.2 and 1.3 by OpenSSL's names and words; those of 1.3 stay unless one is named
    #[arg(long, env = "TODANA_TLS_CIPHERS", value_name = "LIST", help_heading = TLS)]
    tls_ciphers: Option<String>,
    /// Give out no tickets by which clients resume a session
    #[arg(long, env = "TODANA_TLS_NO_RESUMPTION", help_heading = TLS)]
    tls_no_resumption: bool,
    /// Let in only who logs in with a password of --password-file: by SASL PLAIN over the binary protocol, as with -Y over
    /// the text protocol, by HTTP's Basic with each of Kyoto Tycoon's requests
    #[arg(short = 'S', long, env = "TODANA_ENABLE_SASL", help_heading = NETWORK)]
    enable_sasl: bool,
    /// Users for -S: lines that `todana password` writes
    #[arg(long, env = "TODANA_PASSWORD_FILE", value_name = "FILE", help_heading = NETWORK)]
    password_file: Option<PathBuf>,
    /// Let clients in by a login over the text protocol, or HTTP's Basic, only; the file has up to eight lines user:password
    #[arg(short = 'Y', long, env = "TODANA_AUTH_FILE", value_name = "FILE", help_heading = NETWORK)]
    auth_file: Option<PathBuf>,
    /// Memory of the process in MiB, or with m, g or t after the number; 0 for no limit. Databases in memory share it; what those on disk cache comes besides
    #[arg(short, long, env = "TODANA_MEMORY_LIMIT", default_value = "64", value_parser = mebibytes, value_name = "MIB", help_heading = CACHE)]
    memory_limit: u64,
    /// Refuse writes at the memory limit instead of evicting
    #[arg(short = 'M', long, env = "TODANA_DISABLE_EVICTIONS", help_heading = CACHE)]
    disable_evictions: bool,
    /// The largest item, 1k to 1g; bytes without k, m or g
    #[arg(short = 'I', long, env = "TODANA_MAX_ITEM_SIZE", default_value = "1m", value_parser = size, value_name = "SIZE", help_heading = CACHE)]
    max_item_size: u64,
    /// Keep the data in this directory, made if need be, and read it back at the start [default: it is gone with the process]
    #[arg(long, env = "TODANA_DATA_DIR", value_name = "DIR", help_heading = DATA)]
    data_dir: Option<PathBuf>,
    /// When a write is on disk: `always` before it is answered; a number, so many milliseconds later, which is what a loss of power
    /// can cost (the death of the process costs nothing); `never`, when the kernel likes, and a second if the process dies
    #[arg(long, env = "TODANA_SYNC", default_value = "1000", value_parser = sync, value_name = "WHEN", help_heading = DATA)]
    sync: SyncPolicy,
    /// Begin a new segment of the update log when the last one has grown to this, 4k or more
    #[arg(long, env = "TODANA_LOG_SEGMENT_SIZE", default_value = "64m", value_parser = some_size, value_name = "SIZE", help_heading = DATA)]
    log_segment_size: u64,
    /// Or when it is so many seconds old
    #[arg(long, env = "TODANA_LOG_SEGMENT_AGE", default_value = "86400", value_parser = seconds, value_name = "SECONDS", help_heading = DATA)]
    log_segment_age: u64,
    /// Keep at most so much of the update log that no checkpoint needs any longer, to restore a backup to a point in time
    /// [default: nothing, unless there is --log-keep-age]
    #[arg(long, env = "TODANA_LOG_KEEP_SIZE", value_parser = size, value_name = "SIZE", help_heading = DATA)]
    log_keep_size: Option<u64>,
    /// And nothing of it that is older than so many seconds, 1 or more, when a checkpoint is made [default: however old, if
    /// there is --log-keep-size]
    #[arg(long, env = "TODANA_LOG_KEEP_AGE", value_parser = seconds, value_name = "SECONDS", help_heading = DATA)]
    log_keep_age: Option<u64>,
    /// Make a checkpoint when the update log has grown since the last one by this and by that one's size
    #[arg(long, env = "TODANA_CHECKPOINT_LOG_SIZE", default_value = "64m", value_parser = size, value_name = "SIZE", help_heading = DATA)]
    checkpoint_log_size: u64,
    /// How checkpoints are kept: none, zstd, or zstd:1 to zstd:22, smaller and slower
    #[arg(long, env = "TODANA_CHECKPOINT_COMPRESSION", default_value = "zstd:1", value_parser = compression, value_name = "HOW", help_heading = DATA)]
    checkpoint_compression: CheckpointCompression,
    /// Follow this master, HOST or HOST:PORT: a server like this one, or Kyoto Tycoon's
    #[arg(long, env = "TODANA_REPLICATE", value_parser = replication::master, value_name = "MASTER", help_heading = REPLICATION)]
    replicate: Option<MasterAddress>,
    /// Keep in this file how far the master has been followed; without it, each start begins with all that the master has
    #[arg(long, env = "TODANA_REPLICA_POSITION", value_name = "FILE", help_heading = REPLICATION)]
    replica_position: Option<PathBuf>,
    /// Milliseconds to wait when all that the master has is taken, before it is asked for more
    #[arg(long, env = "TODANA_REPLICA_INTERVAL", default_value = "40", value_parser = number::<u32>, value_name = "MILLISECONDS", help_heading = REPLICATION)]
    replica_interval: u32,
    /// What the changes that are made here are told by, 0 to 65535: different at all servers that follow each other
    #[arg(long, env = "TODANA_SERVER_ID", default_value = "1", value_parser = number::<u16>, value_name = "NUMBER", help_heading = REPLICATION)]
    server_id: u16,
    /// Procedures in Lua that Kyoto Tycoon's clients call (`play_script`); SIGHUP reads them again
    #[arg(long, env = "TODANA_SCRIPT", value_name = "FILE", help_heading = KYOTO)]
    script: Option<PathBuf>,
    /// Seconds that a call of a script may take
    #[arg(long, env = "TODANA_SCRIPT_TIME_LIMIT", default_value = "5", value_parser = values::seconds, value_name = "SECONDS", help_heading = KYOTO)]
    script_time_limit: u64,
    /// Memory that a script may take; as many run at once as there are threads
    #[arg(long, env = "TODANA_SCRIPT_MEMORY_LIMIT", default_value = "64m", value_parser = values::some_size, value_name = "SIZE", help_heading = KYOTO)]
    script_memory_limit: u64,
    /// Where the programs lie that their `synchronize` may run [default: nowhere]
    #[arg(long, env = "TODANA_COMMANDS", value_name = "DIR", help_heading = KYOTO)]
    commands: Option<PathBuf>,
    /// Let web pages, of any site, send such requests; else what browsers mark as such is refused
    #[arg(long, env = "TODANA_ALLOW_PAGES", help_heading = KYOTO)]
    allow_pages: bool,
    /// Host names by which browsers may ask, of Kyoto Tycoon's HTTP and of the pages for monitoring, besides addresses and
    /// localhost; no client may by another name then; repeatable, or a list with commas [default: browsers by none,
    /// other clients by any]
    #[arg(long, env = "TODANA_HTTP_HOST", action = ArgAction::Append, value_delimiter = ',', value_name = "NAME", help_heading = NETWORK)]
    http_host: Vec<String>,
    /// Write snapshots of the databases in memory to this directory, as Kyoto Tycoon does (.ktss), also at the end; read them at the
    /// start. They have no place for client flags
    #[arg(long, env = "TODANA_SNAPSHOTS", value_name = "DIR", help_heading = KYOTO)]
    snapshots: Option<PathBuf>,
    /// From one snapshot to the next
    #[arg(long, env = "TODANA_SNAPSHOT_INTERVAL", default_value = "180", value_parser = seconds, value_name = "SECONDS", help_heading = KYOTO)]
    snapshot_interval: u64,
    /// How they are packed: none or zlib; files of either kind are read
    #[arg(long, env = "TODANA_SNAPSHOT_PACKING", default_value = "none", hide_possible_values = true, value_name = "HOW", help_heading = KYOTO)]
    snapshot_packing: SnapshotPacking,
    /// Worker threads
    #[arg(short, long, env = "TODANA_THREADS", default_value = "4", value_parser = number::<usize>, help_heading = PROCESS)]
    threads: usize,
    /// Log more: -v notices, -vv connections too
    #[arg(short, long, env = "TODANA_VERBOSE", action = ArgAction::Count, help_heading = PROCESS)]
    verbose: u8,
    /// Write the process id here
    #[arg(short = 'P', long, env = "TODANA_PIDFILE", value_name = "PATH", help_heading = PROCESS)]
    pidfile: Option<PathBuf>,
    /// Allow the `shutdown` command
    #[arg(short = 'A', long, env = "TODANA_ENABLE_SHUTDOWN", help_heading = PROCESS)]
    enable_shutdown: bool,
    /// Speak only this protocol: auto (a connection's first byte tells), ascii or binary
    #[arg(short = 'B', long, env = "TODANA_PROTOCOL", default_value = "auto", value_enum, hide_possible_values = true, value_name = "PROTOCOL", help_heading = PROCESS)]
    protocol: ServedProtocol,
    /// Refuse the `flush_all` command
    #[arg(short = 'F', long, env = "TODANA_DISABLE_FLUSH_ALL", help_heading = PROCESS)]
    disable_flush_all: bool,
    /// More options, a list with commas: negative_exptime=sliding (a negative time to live counts from the last access),
    /// debug_commands (takes `debugtime`), emulate_full (every store fails for want of memory)
    #[arg(short = 'o', long, env = "TODANA_EXTENDED", action = ArgAction::Append, value_delimiter = ',', value_enum, value_name = "WORDS", hide_possible_values = true, help_heading = PROCESS)]
    extended: Vec<ExtendedWord>,
    /// Refuse lists of keys: `lru_crawler metadump`, `stats cachedump`, `stats detail`
    #[arg(short = 'X', long, env = "TODANA_DISABLE_DUMPING", help_heading = PROCESS)]
    disable_dumping: bool,
    /// Refuse the `watch` command
    #[arg(short = 'W', long, env = "TODANA_DISABLE_WATCH", help_heading = PROCESS)]
    disable_watch: bool,
    /// Count reads and stores by the prefix of the key up to this character (`stats detail`)
    #[arg(short = 'D', long, env = "TODANA_PREFIX_DELIMITER", value_parser = delimiter, value_name = "CHARACTER", help_heading = PROCESS)]
    prefix_delimiter: Option<u8>,
    /// Count records by size when `stats sizes` asks
    #[arg(long, env = "TODANA_TRACK_SIZES", help_heading = PROCESS)]
    track_sizes: bool,
    /// How log lines look
    #[arg(long, env = "TODANA_LOG_FORMAT", default_value = "text", help_heading = PROCESS)]
    log_format: LogLineFormat,
    /// Read options from this TOML file
    #[arg(long, env = "TODANA_CONFIG", value_name = "FILE", help_heading = PROCESS)]
    config: Option<PathBuf>,
}

fn serve_command() -> clap::Command {
    let all = ProgramArguments::command();
    let serve =
        all.get_subcommands().find(|command| command.get_name() == "serve").expect("serve is a command");
    serve.clone().args_override_self(true).max_term_width(HELP_WIDTH_MAX).bin_name("todana serve")
}

/// The options in force, and where each comes from.
pub(crate) struct EffectiveOptions {
    pub(crate) options: ServerOptions,
    log_format: LogFormat,
    /// Name, value, origin.
    pub(crate) origins: Vec<(String, String, &'static str)>,
}

/// Reads command line, environment and file. `words` is a whole command line of `serve`, the program's name first.
pub(crate) fn effective(
    words: impl IntoIterator<Item = OsString>,
) -> Result<EffectiveOptions, CommandFailure> {
    // The program's name and `serve` are one name to the command.
    let words: Vec<OsString> = words.into_iter().skip(1).collect();
    let first =
        option_sources::flags_only(serve_command()).try_get_matches_from(&words).unwrap_or_else(|error| {
            if error.kind() == ErrorKind::DisplayHelp {
                // The help shows the variables.
                serve_command().get_matches_from(&words);
            }
            let options: Vec<String> =
                words.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
            suggestions::with_memcached(error, &options).exit()
        });
    suggestions::warn_of_unknown_variables(&serve_command());
    let file = option_sources::file(&serve_command(), first.get_one("config"));
    let (command, said) = option_sources::beneath(serve_command(), file.as_deref())?;
    let matches = command.clone().try_get_matches_from(&words).map_err(usage)?;
    let origins = origins(&command, &matches, &said);
    let arguments = ServeArguments::from_arg_matches(&matches).map_err(usage)?;
    let (options, log_format) = arguments.checked().map_err(|what| {
        // Wrong by itself, or only beside other values?
        let is_culprit = |said: &&ConfiguredValue| checked_alone(said).is_err_and(|alone| alone == what);
        match said.iter().find(is_culprit) {
            Some(said) => CommandFailure::usage(format!("{}: {what}", said.place)),
            None => CommandFailure::usage(what),
        }
    })?;
    let is_kept = |one: &DatabaseSpec| one.data.is_some() || one.name.kind.storage() == Storage::Files;
    if !options.databases.all().iter().any(is_kept) {
        nothing_is_kept(&origins, &said)?;
    }
    Ok(EffectiveOptions { options, log_format, origins })
}

/// Fails if something is said of how data is kept, where none is.
fn nothing_is_kept(
    origins: &[(String, String, &'static str)],
    said: &[ConfiguredValue],
) -> Result<(), CommandFailure> {
    let command = serve_command();
    for (name, value, origin) in origins {
        let argument = command.get_arguments().find(|argument| argument.get_long() == Some(name));
        let Some(argument) = argument.filter(|argument| argument.get_help_heading() == Some(DATA)) else {
            continue;
        };
        // The default may stand in a file that `config show` has printed.
        let is_default = match argument.get_default_values() {
            [default] => default.to_str() == Some(value.trim()),
            _ => value.is_empty(),
        };
        if ["data-dir", "database"].contains(&name.as_str())
            || *origin == "default"
            || (is_default && *origin != "flag")
        {
            continue;
        }
        let place = said.iter().find(|said| said.name == *name && *origin != "flag");
        let place = place.map_or_else(|| format!("--{name}"), |said| said.place.clone());
        return Err(CommandFailure::usage(format!(
            "{place}: nothing is kept without --data-dir DIR or a database on disk"
        )));
    }
    Ok(())
}

fn usage(error: clap::Error) -> CommandFailure {
    let text = error.to_string();
    CommandFailure::usage(text.strip_prefix("error: ").unwrap_or(&text))
}

/// What is wrong with a value if nothing else is said.
fn checked_alone(said: &ConfiguredValue) -> Result<(), String> {
    let words = std::iter::once(OsString::from("serve")).chain(said.flags.iter().cloned());
    let matches = option_sources::flags_only(serve_command()).try_get_matches_from(words);
    let arguments = matches.and_then(|matches| ServeArguments::from_arg_matches(&matches));
    arguments.map_err(|error| error.to_string())?.checked().map(|_| ())
}

fn origins(
    command: &clap::Command,
    matches: &ArgMatches,
    said: &[ConfiguredValue],
) -> Vec<(String, String, &'static str)> {
    let mut origins = Vec::new();
    for argument in command.get_arguments() {
        let (mut id, Some(long)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
        if long == "help" {
            continue;
        }
        // Those of the command line, which has a place of their own for them, count before all others.
        if long == "database" && matches.value_source("databases") == Some(ValueSource::CommandLine) {
            id = "databases";
        }
        let origin = match matches.value_source(id) {
            Some(ValueSource::CommandLine) => "flag",
            _ => said.iter().find(|said| said.name == long).map_or("default", |said| said.origin),
        };
        let raw = matches.get_raw(id).map(|values| {
            values.map(|value| value.to_string_lossy().into_owned()).collect::<Vec<_>>().join(",")
        });
        let value = match argument.get_action() {
            ArgAction::Count => matches.get_count(id).to_string(),
            ArgAction::SetTrue => matches.get_flag(id).to_string(),
            _ => raw.unwrap_or_default(),
        };
        origins.push((long.to_string(), value, origin));
    }
    origins
}

/// Runs the server.
pub(crate) fn run(words: impl IntoIterator<Item = OsString>) -> Result<(), CommandFailure> {
    let effective = effective(words)?;
    init_logging_with_notices(effective.log_format, effective.options.observation.verbosity);
    folders::expect_folders(&effective.options)?;
    serving::serve(&mut TodanaProgram::new(effective.options))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_kept_of_the_log_is_limited_by_what_is_said() {
        let kept = |line: &str| {
            let words = ["todana".to_string(), "serve".into(), "--data-dir".into(), "/d".into()].into_iter();
            let words = words.chain(line.split_whitespace().map(String::from)).map(OsString::from);
            let place = effective(words).map_err(|_| line).unwrap().options.databases.data.unwrap();
            (place.checkpoints.log_kept_len, place.checkpoints.log_kept_age)
        };
        assert_eq!(kept(""), (0, Duration::MAX));
        assert_eq!(kept("--log-keep-size 1g"), (1 << 30, Duration::MAX));
        assert_eq!(kept("--log-keep-age 60"), (u64::MAX, Duration::from_secs(60)));
        assert_eq!(kept("--log-keep-size 1k --log-keep-age 60"), (1 << 10, Duration::from_secs(60)));
        assert_eq!(kept("--log-keep-size 0 --log-keep-age 60"), (0, Duration::from_secs(60)));
    }

    #[test]
    fn the_admin_pages_stand_beside_the_port_and_are_no_condition_unless_asked_for() {
        let admin = |line: &str| {
            let words = ["todana".to_string(), "serve".into()].into_iter();
            let words = words.chain(line.split_whitespace().map(String::from)).map(OsString::from);
            let found = effective(words).map_err(|_| line).unwrap().options.observation.admin;
            found.map(|admin| (admin.port, admin.listen.join(","), admin.is_required))
        };
        let local = || "127.0.0.1".to_string();
        assert_eq!(admin(""), Some((21211, local(), false)));
        assert_eq!(admin("-p 7000 -l *"), Some((17000, local(), false)));
        assert_eq!(admin("-p 60000"), Some((0, local(), false)));
        assert_eq!(admin("-p -1"), Some((0, local(), false)));
        assert_eq!(admin("-s /run/s"), None);
        assert_eq!(admin("-s /run/s --admin-port 9"), Some((9, local(), true)));
        assert_eq!(admin("--admin-port -1"), Some((0, local(), true)));
        assert_eq!(admin("--admin-port 0"), None);
        assert_eq!(
            admin("--admin-listen ::1,10.0.0.1:7 --admin-port 9"),
            Some((9, "::1,10.0.0.1:7".into(), true))
        );
    }
}
